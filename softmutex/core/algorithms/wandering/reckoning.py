"""After two tokens of a slot have met: who held which of them at the same time, and that both are told.

The node that discards one asks along both chains of holders, from where the tokens met back into the past, as far as
the two can have overlapped, and forward where a hold goes on after its token is gone:

    discard --> ask own visit and the better one's holder --ACCOUNT--> ask `before` and `after` of each, while useful
                                                              '------> spans of different tokens overlap: tell both

Clocks of different nodes are not compared. An answer says how long ago things were, and it was given between the
question and its arrival: spans are known to half a round trip, whatever the clocks show.

E2  Each pair of holds of two tokens that met, with an overlap of more than a round trip, is told on both sides, if all
    nodes of the two chains between them live, can be reached within a minute, and remember (`ledger.A4`).
L1  A case ends: each question is asked at most `TRIES` times, and there are at most `RECORDS` of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from softmutex.core.algorithms.wandering.desk import Desk
from softmutex.core.algorithms.wandering.ledger import Visit
from softmutex.core.algorithms.wandering.messages import Account, Place, Recall, Told
from softmutex.core.events import SECOND, Duration, Instant, RequestId

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering

CASES: Final = 8
RECORDS: Final = 96
AROUND: Final = 16  # others are asked for what a node knew that is gone
TRIES: Final = 20
PRECISE: Final = 12 * SECOND  # so long no answer is good enough that was long on its way
WAIT_LEAST: Final = SECOND // 20
WAIT_MOST: Final = 4 * SECOND
AGAIN: Final = 5 * SECOND  # while a hold goes on without its token, others begin theirs


class Record(NamedTuple):
    """What a node said of a visit, in this node's time."""

    place: Place
    tokens: frozenset[int]  # it was the same one under these names
    came: Instant
    spans: tuple[tuple[RequestId, Instant, Instant], ...]
    error: Duration  # half a round trip
    links: tuple[Place | None, Place | None]  # before, after

    @property
    def last(self) -> Instant:
        return max((ended for _, _, ended in self.spans), default=self.came)


class Question:
    __slots__ = ("place", "rival", "sent", "told", "tries")

    def __init__(self, place: Place, rival: Place, told: Told | None) -> None:
        self.place = place
        self.rival = rival
        self.told = told  # None: only asks
        self.tries = 0
        self.sent: dict[int, Instant] = {}


class Case:
    __slots__ = ("asked", "better", "number", "questions", "records", "visit")

    def __init__(self, number: int, visit: Visit, better: Place) -> None:
        self.number = number
        self.visit = visit  # of the token that was discarded here
        self.better = better
        self.questions: list[Question] = []
        self.records: list[Record] = []
        self.asked: set[tuple[Place, Told | None]] = set()


class Reckoning:
    __slots__ = ("_last", "_quickest", "_serial", "cases", "machine")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.cases: dict[int, Case] = {}
        self._last = 0
        self._serial = 0  # of the questions
        self._quickest: Duration = WAIT_LEAST  # answer so far

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    def open(self, visit: Visit, better: Place) -> None:
        """The token of this visit had a rival, which was better."""
        self._last += 1
        case = self.cases[self._last] = Case(self._last, visit, better)
        for other in list(self.cases.values()):
            if other is not case and other.visit is visit:
                self._close(other)
        if len(self.cases) > CASES:
            self._close(next(iter(self.cases.values())))
        self._ask(case, visit.place, better)
        self._ask(case, better, visit.place)
        self._go_on(case)

    def fired(self, number: int) -> None:
        case = self.cases.get(number)
        if case is None:
            return
        if not case.questions:  # a hold goes on without its token: who has begun one since?
            self.open(case.visit, case.better)
            return
        for question in list(case.questions):
            if question.tries < TRIES and self._is_there(question.place):
                self._send(question)
            else:
                case.questions.remove(question)
        self._go_on(case)

    def answered(self, account: Account) -> None:
        for case in self.cases.values():
            for question in case.questions:
                if account.number in question.sent:
                    took = self.desk.now - question.sent[account.number]
                    if took:
                        self._quickest = min(self._quickest, took)
                    asked_for = self.desk.now - min(question.sent.values())
                    if took > 4 * self._quickest and asked_for < PRECISE and question.told is None:
                        return  # it was long on its way, and the spans would be as vague: the timer asks again
                    case.questions.remove(question)
                    if account.place is not None and question.told is None:
                        self._enter(case, question, account, account.place)
                    elif question.told is None and question.place == case.better:
                        self._ask_around(case, question.place, question.rival)  # it was sent there, and not taken
                    self._go_on(case)
                    return

    # --- one case ----------------------------------------------------------------------------------------------------

    def _is_there(self, place: Place) -> bool:
        return place.holder == self.desk.me or self.desk.is_member(place.holder)

    def _ask(self, case: Case, place: Place, rival: Place, told: Told | None = None) -> None:
        if (place, told) in case.asked:
            return
        case.asked.add((place, told))
        if not self._is_there(place):  # the chain is broken: whoever else had that token knows where it was before
            if told is None:
                self._ask_around(case, place, rival)
        else:
            question = Question(place, rival, told)
            case.questions.append(question)
            self._send(question)

    def _ask_around(self, case: Case, place: Place, rival: Place) -> None:
        for node in (self.desk.me, *self.desk.random_others(AROUND)):
            self._ask(case, place._replace(holder=node), rival)

    def _send(self, question: Question) -> None:
        self._serial += 1
        question.tries += 1
        question.sent[self._serial] = self.desk.now
        self.desk.post(question.place.holder, Recall(self._serial, question.place, question.rival, question.told))

    def _enter(self, case: Case, question: Question, account: Account, place: Place) -> None:
        """A new record: compared with all others, and followed where that may be of use."""
        if any(record.place == place for record in case.records):
            return
        sent = question.sent[account.number]
        then = (sent + self.desk.now) // 2
        spans = [(span.request, then - span.begun, then - span.ended) for span in account.spans]
        if account.running and spans:
            spans[-1] = (*spans[-1][:2], then)  # as far as is known; what comes after, the next look finds
        links = (account.before, account.after)
        tokens = frozenset(each.id for each in (question.place, place, *links) if each is not None)
        record = Record(place, tokens, then - account.came, tuple(spans), self.desk.now - then, links)
        for other in case.records:
            if not record.tokens & other.tokens:
                self._compare(case, record, other)
        case.records.append(record)
        for rival in account.rivals:
            if len(case.records) < RECORDS:
                self._ask(case, rival, case.visit.place)

    def _compare(self, case: Case, one: Record, two: Record) -> None:
        for request, begun, ended in one.spans:
            for other, other_begun, other_ended in two.spans:
                length = min(ended, other_ended) - max(begun, other_begun)
                error = one.error + two.error
                if length > error:
                    length -= max(0, error - 2 * self._quickest)  # an answer was late: at least so long
                    self._ask(case, one.place, two.place, Told(request, other, length))
                    self._ask(case, two.place, one.place, Told(other, request, length))

    def _go_on(self, case: Case) -> None:
        """Ask further where holds of different tokens may still be found that overlap."""
        if len(case.records) < RECORDS:
            for record in case.records:
                others = [other for other in case.records if not other.tokens & record.tokens]
                before, after = record.links
                if before is not None and any(other.came < record.came for other in others):
                    self._ask(case, before, case.visit.place)
                if after is not None and any(other.last > record.last for other in others):
                    self._ask(case, after, case.visit.place)
        if case.questions:
            tries = min(question.tries for question in case.questions)
            wait = min(max(self.desk.rto, WAIT_LEAST) << min(tries - 1, 8), WAIT_MOST)
            self.desk.timer(("case", case.number), self.desk.now + wait)
        elif case.visit.running:
            self.desk.timer(("case", case.number), self.desk.now + AGAIN)
        else:
            self._close(case)

    def _close(self, case: Case) -> None:
        del self.cases[case.number]
        self.desk.cancel(("case", case.number))
