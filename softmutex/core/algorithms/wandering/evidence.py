"""What this node can say of its holds when it turns out, perhaps much later, that there were two tokens; and who asks.

The naive evidence, a warning to whoever might not be alone, is given at a moment when nobody knows: it comes too often,
and not at all to those whose hold was over before anybody knew. So each node remembers its last visits of a token (when
it came, when it was used, from whom it came, to whom it went), and those that had rivals look back along both chains:

    token A   P ----> Q ----> X discards it: a better one was found
                              |  RECALL ->  <- ACCOUNT(spans, before, after, rivals)
    token B       M made it ----> Y ----> Z

Nothing is written into the token and nothing is sent while there is one token: an honest run pays a few assignments a
visit. A hold that overlapped is told once: `Lose` while it runs, and a note in any case, on both sides.

The node that discards one asks along both chains of holders, from where the tokens met back into the past, as far as
the two can have overlapped, and forward where a hold goes on after its token is gone:

    discard --> ask own visit and the better one's holder --ACCOUNT--> ask `before` and `after` of each, while useful
                                                              '------> spans of different tokens overlap: tell both

A token that is made anew leads back to the one in whose place it was made: that may have been lost before it met any.

Clocks of different nodes are not compared. An answer says how long ago things were, and it was given between the
question and its arrival: spans are known to half a round trip, whatever the clocks show.

E1  A span is noted at most once, however often it is found; a pair of them is told of again when it is longer.
E2  Each pair of holds of two tokens that met, with an overlap of more than a round trip, is told on both sides, if all
    nodes of the two chains between them live, can be reached within a minute, and remember (A4).
L1  A case ends: each question is asked at most `TRIES` times, and there are at most `RECORDS` of them.
A4  At most `VISITS` visits of `SPANS` spans and `RIVALS` rivals are remembered. What is older is forgotten, untold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.context import same_token
from softmutex.core.algorithms.wandering.messages import Account, Place, Recall, Span, Together
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    FactKind,
    Instant,
    LostReason,
    NodeId,
    Overlapped,
    RequestId,
    Token,
)
from softmutex.core.tuples import NamedTuple

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.tokens import TokensHere

VISITS: Final = 32
SPANS: Final = 16
RIVALS: Final = 4
CASES: Final = 8
RECORDS: Final = 192  # of all tokens together
AROUND: Final = 16  # others are asked for what a node knew that is gone
TRIES: Final = 20
TRIES_ALONE: Final = 4  # then others are asked as well: half a second
LATE: Final = 4  # times the usual
WAIT_LEAST: Final = SECOND // 20
WAIT_MOST: Final = 4 * SECOND
AGAIN: Final = 5 * SECOND  # while a hold goes on without its token, others begin theirs


class RememberedHold:
    """A hold."""

    __slots__ = ("begun", "ended", "request", "said")

    def __init__(self, request: RequestId, begun: Instant) -> None:
        self.request = request
        self.begun = begun
        self.ended: Instant = 0  # 0: it runs
        self.said = False


class Visit:
    """One stay of a token here."""

    __slots__ = ("after", "before", "came", "place", "rivals", "token", "uses")

    def __init__(self, token: Token, place: Place, before: Place | None, came: Instant) -> None:
        self.token = token
        self.place = place  # as it came
        self.before = before
        self.after: Place | None = None
        self.came = came
        self.uses: list[RememberedHold] = []  # the last of them; mostly it is one, and a `deque` of that is large
        self.rivals: tuple[Place, ...] = ()  # tokens that were discarded for this one

    @property
    def running(self) -> bool:
        return bool(self.uses) and not self.uses[-1].ended

    def went_to(self, place: Place) -> None:
        self.after = place

    def age(self, now: Instant) -> Duration:
        """Of the hold that runs, or ran last."""
        return now - self.uses[-1].begun

    def begin(self, request: RequestId, now: Instant) -> None:
        self.uses.append(RememberedHold(request, now))
        if len(self.uses) > SPANS:
            del self.uses[0]

    def end(self, now: Instant) -> None:
        if self.running:
            self.uses[-1].ended = now


class VisitRecord(NamedTuple):
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


class RecallQuestion:
    __slots__ = ("place", "rival", "sent", "told", "tries")

    def __init__(self, place: Place, rival: Place, told: Together | None) -> None:
        self.place = place
        self.rival = rival
        self.told = told  # None: only asks
        self.tries = 0
        self.sent: dict[int, Instant] = {}


class OverlapCase:
    __slots__ = ("asked", "better", "number", "questions", "records", "visit")

    def __init__(self, number: int, visit: Visit, better: Place) -> None:
        self.number = number
        self.visit = visit  # of the token that was discarded here
        self.better = better
        self.questions: list[RecallQuestion] = []
        self.records: list[VisitRecord] = []
        self.asked: set[tuple[Place, Together | None, Place | None]] = set()


class OverlapEvidence:
    __slots__ = ("_last", "_serial", "_usual", "cases", "context", "here", "visits")

    def __init__(self, here: TokensHere) -> None:
        self.context = here.context
        self.here = here
        self.visits: list[Visit] = []
        self.cases: dict[int, OverlapCase] = {}
        self._last = 0
        self._serial = 0  # of the questions
        self._usual: Duration = 0  # time that an answer takes; 0: not known yet

    # --- what is remembered ------------------------------------------------------------------------------------------

    def begin(self, token: Token, place: Place, sender: NodeId) -> Visit:
        """A token is here: from `sender`, or made here."""
        slot, epoch, stamp, id, hop, _ = place
        if sender != NOBODY:
            before: Place | None = Place(slot, epoch, stamp, id, max(0, hop - 1), sender)
        else:  # it is made in place of that one, which may have ended with nobody who meets its rivals
            before = self.context.best.get(slot)
        visit = Visit(token, place, before, self.context.now)
        self.visits.append(visit)
        if len(self.visits) > VISITS:
            del self.visits[0]
        return visit

    def renamed(self, visit: Visit, token: Token, place: Place) -> Visit:
        """The same token goes on under another name: the chain leads through this node."""
        new = self.begin(token, place, NOBODY)
        new.before = visit.place
        visit.went_to(place)
        if visit.running:  # the hold is the new visit's
            new.uses.append(visit.uses.pop())
        return new

    def last_seen(self) -> list[Place]:
        """Where the tokens went that were here: a home that believes them here would miss them when we leave."""
        places = {visit.place.slot: visit.after for visit in self.visits}
        return [place for place in places.values() if place is not None]

    # --- what others ask ---------------------------------------------------------------------------------------------

    def recalled(self, sender: NodeId, recall: Recall) -> None:
        visit = self.find(recall.place)
        if visit is None:
            self.context.post(sender, Account(recall.number, None, 0, (), False, None, None, ()))
            return
        if recall.told is not None:
            self.tell(visit, recall.told, recall.rival.holder)
        elif not same_token(recall.rival, visit.place) and recall.rival not in visit.rivals:
            visit.rivals = (*visit.rivals, recall.rival)[-RIVALS:]
        now = self.context.now
        spans = tuple(Span(use.request, now - use.begun, now - use.ended if use.ended else 0) for use in visit.uses)
        links = (visit.before, self.here.after(visit), visit.rivals)
        self.context.post(sender, Account(recall.number, visit.place, now - visit.came, spans, visit.running, *links))

    def tell(self, visit: Visit, told: Together, peer: NodeId) -> None:
        """This use overlapped with one of `peer`."""
        for use in visit.uses:
            if use.request == told.request:
                self.context.out.append(Overlapped(told.request, peer, told.other, told.length))
                if not use.said:
                    use.said = True
                    self.context.note(FactKind.OVERLAP, visit.token, peer)
                    if not use.ended:
                        self.here.tell_visit(visit, LostReason.OVERLAP)

    def find(self, place: Place) -> Visit | None:
        """The last visit of that token that began no later than at that hop."""
        for visit in reversed(self.visits):
            if same_token(visit.place, place) and visit.place.hop <= place.hop:
                return visit
        return None

    # --- two of them have met ----------------------------------------------------------------------------------------

    def met(self, visit: Visit, better: Place) -> None:
        """The token of this visit had a rival, which was better."""
        self._last += 1
        case = self.cases[self._last] = OverlapCase(self._last, visit, better)
        for other in list(self.cases.values()):
            if other is not case and other.visit is visit:
                self._close(other)
        if len(self.cases) > CASES:
            self._close(next(iter(self.cases.values())))
        self._ask(case, visit.place, better)
        self._ask(case, better, visit.place)
        self._go_on(case)

    def looked_again(self, visit: Visit, better: Place) -> None:
        """By now that one may have been replaced, too; what is there instead leads back to it."""
        newest = self.context.best.get(better.slot, better)
        self.met(visit, better if same_token(newest, better) or same_token(newest, visit.place) else newest)

    def fired(self, number: int) -> None:
        case = self.cases.get(number)
        if case is None:
            return
        if not case.questions:  # a hold goes on without its token: who has begun one since?
            self.looked_again(case.visit, case.better)
            return
        for question in list(case.questions):
            if question.tries == TRIES_ALONE:
                self.context.suspicious(question.place.holder)  # there may be a way by another
                if question.told is None:  # or it may sleep for long
                    self._ask_around(case, question.place, question.rival)
            if question.tries < TRIES and self._is_there(question.place):
                self._send(question)
            else:
                case.questions.remove(question)
        self._go_on(case)

    def answered(self, account: Account) -> None:
        for case in self.cases.values():
            for question in case.questions:
                if account.number in question.sent:
                    took = self.context.now - question.sent[account.number]
                    if self._is_late(took) and question.told is None and question.tries < TRIES:
                        if account.number == max(question.sent):  # who asked it is awake by now
                            self._send(question)
                        return  # it was long on its way, and the spans would be as vague
                    case.questions.remove(question)
                    if question.told is None:
                        self._learn(case, question, account)
                    self._go_on(case)
                    return

    def _learn(self, case: OverlapCase, question: RecallQuestion, account: Account) -> None:
        if account.place is not None:
            self._enter(case, question, account, account.place)
        elif not any(same_token(record.place, question.place) for record in case.records):
            self._ask_around(case, question.place, question.rival)  # it was sent there, and not taken

    def _is_late(self, took: Duration) -> bool:
        """Longer on its way than others are: they may vary, and who compares with the quickest one asks most of them
        again, each time later. Who slept, here or there, answers all at once, and is no measure."""
        usual = self._usual or min(took, WAIT_LEAST)
        if took:
            most = max(self.context.rto, WAIT_LEAST)
            self._usual = min(usual + (min(took, LATE * usual) - usual) // 4, most)
        return took > LATE * usual

    # --- one case ----------------------------------------------------------------------------------------------------

    def _is_there(self, place: Place) -> bool:
        return place.holder == self.context.me or self.context.is_member(place.holder)

    def _ask(self, case: OverlapCase, place: Place, rival: Place, told: Together | None = None) -> None:
        question = (place, told, None if told is None else rival)
        if question in case.asked:
            return
        case.asked.add(question)
        if not self._is_there(place):  # the chain is broken: whoever else had that token knows where it was before
            if told is None:
                self._ask_around(case, place, rival)
        else:
            case.questions.append(RecallQuestion(place, rival, told))
            self._send(case.questions[-1])

    def _ask_around(self, case: OverlapCase, place: Place, rival: Place) -> None:
        anywhere = (place._replace(holder=NOBODY), None, None)
        if anywhere in case.asked:
            return
        case.asked.add(anywhere)
        for node in (self.context.me, *self.context.random_others(AROUND)):
            self._ask(case, place._replace(holder=node), rival)

    def _send(self, question: RecallQuestion) -> None:
        self._serial += 1
        question.tries += 1
        question.sent[self._serial] = self.context.now
        self.context.post(question.place.holder, Recall(self._serial, question.place, question.rival, question.told))

    def _enter(self, case: OverlapCase, question: RecallQuestion, account: Account, place: Place) -> None:
        """A new record: compared with all others, and followed where that may be of use."""
        if any(record.place == place for record in case.records):
            return
        sent = question.sent[account.number]
        then = (sent + self.context.now) // 2
        spans = [(span.request, then - span.begun, then - span.ended) for span in account.spans]
        if account.running and spans:
            spans[-1] = (*spans[-1][:2], then)  # as far as is known; what comes after, the next look finds
        links = (account.before, account.after)
        tokens = frozenset(each.id for each in (place, account.after) if each is not None)
        record = VisitRecord(place, tokens, then - account.came, tuple(spans), self.context.now - then, links)
        for other in case.records:
            if not record.tokens & other.tokens:
                self._compare(case, record, other)
        case.records.append(record)
        for rival in account.rivals:
            if len(case.records) < RECORDS:
                self._ask(case, rival, case.visit.place)

    def _compare(self, case: OverlapCase, one: VisitRecord, two: VisitRecord) -> None:
        for request, begun, ended in one.spans:
            for other, other_begun, other_ended in two.spans:
                length = min(ended, other_ended) - max(begun, other_begun)
                error = one.error + two.error
                if length > error:
                    if error > 2 * self._usual:
                        length -= error  # an answer was late: at least so long
                    self._ask(case, one.place, two.place, Together(request, other, length))
                    self._ask(case, two.place, one.place, Together(other, request, length))

    def _go_on(self, case: OverlapCase) -> None:
        """Ask further where holds may still be found that overlap with those of the token that was discarded. (Those of
        others with each other are told of when one of these is discarded.)"""
        if len(case.records) < RECORDS:
            names = {case.visit.place.id}
            for record in case.records:
                if names & record.tokens:
                    names |= record.tokens
            own = [record for record in case.records if names & record.tokens]
            others = [record for record in case.records if not names & record.tokens]
            for those, rivals in ((own, others), (others, own)):
                first = min((record.came for record in rivals), default=self.context.now)
                last = max((record.last for record in rivals), default=0)
                for record in those:
                    before, after = record.links
                    is_news = before is not None and (those is own or before.id not in names)
                    if before is not None and is_news and first < record.came:
                        self._ask(case, before, case.visit.place)
                    if after is not None and last > record.last:
                        self._ask(case, after, case.visit.place)
        if case.questions:
            tries = min(question.tries for question in case.questions)
            wait = min(max(2 * self.context.round_trip, WAIT_LEAST) << min(tries - 1, 8), WAIT_MOST)
            self.context.timer(("case", case.number), self.context.now + wait)
        elif case.visit.running:
            self.context.timer(("case", case.number), self.context.now + AGAIN)
        else:
            self._close(case)

    def _close(self, case: OverlapCase) -> None:
        del self.cases[case.number]
        self.context.cancel(("case", case.number))
