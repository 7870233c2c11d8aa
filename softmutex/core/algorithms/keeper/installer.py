"""Rounds in which everybody is asked: who is to keep, and where is a token that is missing?

    nobody keeps, or it is dead or silent --a little later--> PROPOSE(term + 1) to all --REPORT--> decided:
        somebody keeps in a later term, or heard the keeper lately          it is followed, and no round goes on
        more than half promised (`proceed`: all that answer)                installed: KEEPS to all that answered
    a keeper misses a token, or is not sure of its role --> PROPOSE(its own term) to all --REPORT--> decided:
        more than half promised (or half, with the keeper itself)           it is confirmed
        the token is here, or being passed on                               found, or asked again
        nobody has it (office.O2)                                                  made anew, epoch + 1

Silence says nothing: who is silent still counts. The naive way, to ask a sample or those that answer, makes a keeper on
each side of a cut; to make a token because nobody has it *now* makes a second one of a token that moves, so whoever
reports promises to take none for a while.

I1  Of one term, a node promises to one proposer only, and to none while it heard the keeper lately. To propose a term
    is not to keep in it: a proposer is followed when it says so.
I2  A round counts answers that bear its number, each node once; majority is of the largest membership reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from softmutex.core.algorithms.keeper.desk import Desk
from softmutex.core.algorithms.keeper.holder import LEASE_MOST, Holder
from softmutex.core.algorithms.keeper.messages import Propose, Report
from softmutex.core.algorithms.keeper.office import Office, announce
from softmutex.core.algorithms.keeper.waiter import PROMISE
from softmutex.core.events import NOBODY, SECOND, Duration, FactKind, Instant, NodeId, Token

LATELY: Final = 2 * SECOND  # the keeper was heard: it lives
WAIT_MOST: Final = 2 * SECOND  # between two rounds of questions
UNKNOWN: Final = 2 * SECOND  # nobody ever heard of a keeper: so long one is looked for, or
UNKNOWN_TO_SOME: Final = 20 * SECOND  # where not everybody was asked
ISOLATED_AFTER: Final = 4 * SECOND
ANSWER: Final = 4 * SECOND  # who does not answer for so long is silent, whatever the group says
PASSING: Final = 4 * SECOND  # after its lease, a token that is said to be on its way is believed no longer


STRANGERS: Final = 64
NUMBERS: Final = 0xFFFF  # of the copies of a question, beside the number of the round


class InstallAnswer(NamedTuple):
    report: Report
    asked_at: Instant
    unknown: int  # members that it counts, and the proposer does not


class InstallAsked(NamedTuple):
    at: Instant
    known: int  # members


class InstallRound:
    __slots__ = (
        "alive",
        "asked",
        "asked_as",
        "begun",
        "copies",
        "due",
        "gone",
        "number",
        "reports",
        "strangers",
        "term",
        "tries",
    )

    def __init__(self, number: int, term: int, now: Instant) -> None:
        self.number = number & ~NUMBERS
        self.term = term
        self.begun = now
        self.tries = 0
        self.copies = 0  # of the question
        self.due: Instant = 0  # when those that are missing are asked again
        self.asked: set[NodeId] = set()
        self.gone: set[NodeId] = set()  # somebody said so
        self.strangers: dict[NodeId, None] = {}  # members that others know
        self.asked_as: dict[int, InstallAsked] = {}  # by the number of the copy: an answer is as old as its question
        self.reports: dict[NodeId, InstallAnswer] = {}
        self.alive = False  # somebody heard the keeper lately


class Installer:
    __slots__ = (
        "_claim_again",
        "_desk",
        "_generate",
        "_promise",
        "_proposed",
        "_round",
        "_since",
        "_vain",
        "holder",
        "office",
    )

    def __init__(self, desk: Desk, generate: Callable[[int], None]) -> None:
        self._desk = desk
        self._generate = generate
        self._claim_again: Callable[[], None]  # these from `connect`
        self.office: Office
        self.holder: Holder
        self._round: InstallRound | None = None
        self._promise: tuple[int, NodeId, Instant] = (0, NOBODY, 0)  # I1: term, proposer, until
        self._proposed = 0  # the last term
        self._vain = 0  # rounds
        self._since: Instant | None = None  # since when a keeper is looked for

    def connect(self, office: Office, holder: Holder, claim_again: Callable[[], None]) -> None:
        self.office = office
        self.holder = holder
        self._claim_again = claim_again

    # --- beginning ---------------------------------------------------------------------------------------------------

    def consider(self) -> None:
        """A keeper is needed. Not all who need one propose themselves at once."""
        desk = self._desk
        if self._round is None and not desk.leaving:
            if self._since is None:
                self._since = desk.now
            span = desk.patience.wait() * (1 if self.holder.seats else 2)
            self._round = InstallRound(0, 0, desk.now)
            desk.timer("round", desk.now + round(span * desk.rng.random()))

    def search(self) -> None:
        """This node keeps, and misses a token, or a majority."""
        desk = self._desk
        if self._round is None or self._round.term != desk.term:
            self._round = InstallRound(desk.draw(), desk.term, desk.now)
            desk.timer("round", desk.now)

    def stop(self) -> None:
        self._round = self._since = None
        self._desk.cancel("round")

    def members_changed(self) -> None:
        """Who left is missing no more, and counts nowhere; who joined is asked."""
        current = self._round
        if current is not None and current.tries and not current.alive:
            for node in [node for node in current.strangers if node in self._desk.members]:
                del current.strangers[node]
            for node in self._desk.departed:
                current.strangers.pop(node, None)
                current.reports.pop(node, None)
            self._ask_newcomers(current)
            self._decide()

    def _ask_newcomers(self, current: InstallRound) -> None:
        """At once: where somebody comes each second, all would never have answered at one time."""
        desk = self._desk
        new = [node for node in (*desk.members, *current.strangers) if node not in current.asked and node != desk.me]
        new = [node for node in new if node not in desk.departed]
        if new:
            self._propose(current, new)
            self._hurry(current)

    def _propose(self, current: InstallRound, nodes: list[NodeId]) -> None:
        desk = self._desk
        current.copies += 1
        number = current.number + min(current.copies, NUMBERS)
        current.asked_as.setdefault(number, InstallAsked(desk.now, len(desk.members) + len(current.strangers)))
        current.asked.update(nodes)
        for node in nodes:
            desk.post(node, Propose(number, current.term, desk.departed))

    def _hurry(self, current: InstallRound) -> None:
        at = self._desk.now + self._desk.patience.wait()
        if at < current.due:
            current.due = at
            self._desk.timer("round", at)

    def followed(self) -> None:
        """There is another keeper. If it is known to be gone, somebody goes on looking."""
        looking = self._round is not None and not self._desk.keeper_counts
        self.stop()
        self.office.set_isolated(False)
        if looking:
            self.consider()

    def fired(self) -> None:
        desk = self._desk
        current = self._round
        if current is None:
            return
        if not current.number:
            if desk.leaving:
                self.stop()
                return
            self._proposed = max(desk.term, self._proposed, self._promise[0]) + 1
            current = self._round = InstallRound(desk.draw(), self._proposed, desk.now)
        if current.alive:
            self.stop()
            return
        if current.term > desk.term and self._is_refused(current):
            self._vain += 1
            self._round = InstallRound(0, 0, desk.now)
            span = min(desk.patience.wait() << min(self._vain, 4), WAIT_MOST)
            desk.timer("round", desk.now + round(span * desk.rng.random()))
            return
        self._ask(current)
        self._decide()

    def _is_refused(self, current: InstallRound) -> bool:
        """The votes are split: whoever comes first after a random while asks for a later term, and the others yield."""
        refused = sum(not answer.report.promised for answer in current.reports.values())
        return 2 * refused >= self._count(current)

    def _ask(self, current: InstallRound) -> None:
        desk = self._desk
        now = desk.now
        final = current.term == desk.term and all(now >= self.office.lent_until(s) for s in self.office.missing())
        nodes: list[NodeId] = []
        for node in (*desk.members, *current.strangers):
            if node == desk.me or node in desk.departed:
                continue
            answered = current.reports.get(node)
            if answered is None or self._is_passing(answered.report) or self._is_to_promise(current, answered, final):
                if current.tries == 2 and answered is None:
                    desk.suspect(node)
                nodes.append(node)
        self._propose(current, nodes)
        wait = min(desk.patience.wait() << min(current.tries, 4), WAIT_MOST)
        current.tries += 1
        if current.tries > 2 and now - current.begun > ISOLATED_AFTER and not self.is_majority(current):
            self.office.set_isolated(desk.when_isolated != "proceed")
        ends = [self.office.lent_until(slot) for slot in self.office.missing() if self.office.lent_until(slot) > now]
        current.due = min([now + desk.jitter(wait), *(end + 1 for end in ends)])
        desk.timer("round", current.due)

    def _is_to_promise(self, current: InstallRound, answered: InstallAnswer, final: bool) -> bool:
        """Who kept no promise yet, or may not keep it much longer, where all promises together are enough."""
        desk = self._desk
        have_all = all(n in current.reports or n == desk.me or n in desk.departed for n in desk.members)
        hopeful = final or (current.term == desk.term and have_all)
        is_old = desk.now - answered.asked_at > PROMISE // 2
        return hopeful and (not answered.report.promised or answered.unknown > 0 or is_old)

    def _is_passing(self, report: Report) -> bool:
        missing = self.office.missing()
        return any(name.slot in missing for name in report.passing)

    # --- being asked -------------------------------------------------------------------------------------------------

    def proposed(self, sender: NodeId, propose: Propose) -> bool:
        """Whether it is promised to take no token."""
        desk = self._desk
        holder = self.holder
        promised = self._promises(sender, propose.term)
        heard = 0 if desk.keeps else max(0, desk.now - desk.heard_at)
        if not desk.keeper_counts:
            heard = 1 << 50
        if promised:
            self._promise = (propose.term, sender, desk.now + PROMISE)
            self._yield_to(sender, propose.term)
        best = tuple(desk.best.values())[:8]
        members = len(desk.members) - sum(node in desk.members for node in propose.left)
        answer = Report(
            propose.number, promised, desk.term, desk.keeper, min(heard, 1 << 50), members, desk.joined,
            desk.departed[-8:], holder.here(), holder.passing(), best,
        )  # fmt: skip
        desk.post(sender, answer)
        return promised

    def _yield_to(self, sender: NodeId, term: int) -> None:
        """Who promised a later term has no use for an earlier one: two would be installed."""
        desk, mine = self._desk, self._round
        if sender != desk.me and mine is not None and mine.number and desk.term < mine.term < term:
            self._begin_later(min(PROMISE, 4 * desk.patience.wait()))

    def _begin_later(self, span: Duration) -> None:
        self._round = InstallRound(0, 0, self._desk.now)
        self._desk.timer("round", self._desk.now + round(span * (1 + self._desk.rng.random()) / 2))

    def _promises(self, sender: NodeId, term: int) -> bool:
        desk = self._desk
        if sender == desk.keeper and term == desk.term:
            return True
        if term <= desk.term:
            return False
        if desk.keeper_counts and (desk.keeps or desk.now - desk.heard_at < LATELY):
            return False
        promised, to, until = self._promise
        if desk.now < until and to != sender and term <= promised:
            return False
        mine = self._round
        return not (mine is not None and mine.number and mine.term >= term and (mine.term, desk.me) > (term, sender))

    # --- answers -----------------------------------------------------------------------------------------------------

    def reported(self, sender: NodeId, report: Report) -> None:
        current = self._round
        if current is None or not current.number or report.number & ~NUMBERS != current.number:
            if report.promised and self._desk.keeps:
                self._desk.tell_keeper(sender, report.number)  # it is over
            return
        before = current.reports.get(sender)
        asked = current.asked_as.get(report.number)
        if sender not in current.asked or asked is None or (before and before.report.number > report.number):
            return
        current.gone.update(report.left)
        for node in report.left:
            current.strangers.pop(node, None)
        gone = {*self._desk.departed, *current.gone}
        strangers = [node for node in report.joined if node not in self._desk.members and node not in gone]
        if any(node not in current.strangers for node in strangers) and len(current.strangers) < STRANGERS:
            current.strangers.update(dict.fromkeys(strangers))
            self._ask_newcomers(current)
        self._desk.learn_departed(report.left)
        known = max(asked.known, len(self._desk.members) + len(current.strangers))
        current.reports[sender] = InstallAnswer(report, asked.at, max(0, report.members - known))
        keeper_lives = report.keeper not in (NOBODY, self._desk.me) and report.heard < LATELY
        if current.term > self._desk.term and keeper_lives and not report.promised:
            if report.keeper in self._desk.silent:
                self._desk.silent.pop(report.keeper)
            self._desk.suspect(report.keeper)
            current.alive = True
            self._desk.timer("round", self._desk.now + SECOND)
            return
        self._decide()

    def is_majority(self, current: InstallRound) -> bool:
        desk = self._desk
        count = self._count(current)
        mine = 1 + sum(answer.report.promised for answer in current.reports.values())
        if desk.when_isolated == "proceed":
            heard = {desk.me, *current.reports, *desk.silent, *desk.departed}
            awaited = [node for node in desk.members if node not in heard]
            return current.tries > 3 or not awaited or 2 * mine > count
        return 2 * mine > count or (2 * mine == count and current.term == desk.term)

    def _count(self, current: InstallRound) -> int:
        """Who counts: all that this node knows, or somebody else does, and that did not leave."""
        unknown = max((answer.unknown for answer in current.reports.values()), default=0)
        return len(self._desk.members) - self._desk.departed_members + len(current.strangers) + unknown

    def _decide(self) -> None:
        desk = self._desk
        current = self._round
        if current is None or not current.number or not current.tries or current.alive:
            return
        if not self.is_majority(current):
            return
        if current.term > desk.term:
            known = max([desk.term, *(answer.report.term for answer in current.reports.values())])
            count = self._count(current)
            patience = UNKNOWN if len(current.reports) + 1 >= count else UNKNOWN_TO_SOME
            if known == 0 and self._since is not None and desk.now - self._since < patience:
                return
            if known == 0 and desk.now - current.begun > PROMISE // 2:  # they may have promised others meanwhile
                self._begin_later(desk.patience.wait())
                return
            self._install(current)
            if len(current.reports) + 1 >= count:
                desk.timer("round", desk.now)  # who did not promise another one may do so now
        if desk.keeps and current.term == desk.term:
            if not self.office.confirmed:
                self.office.confirm()
            self._look_for_tokens(current)

    def _install(self, current: InstallRound) -> None:
        desk = self._desk
        desk.follow(current.term, desk.me)
        self._since = None
        self._vain = 0
        self.office.begin(max(current.begun, desk.now - PROMISE) + LEASE_MOST)
        announce(desk, current.number)
        self.office.set_isolated(False)
        for node in current.reports:
            desk.tell_keeper(node)
        self._claim_again()  # of itself: what the last keeper had in its register is gone

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _look_for_tokens(self, current: InstallRound) -> None:
        desk, office, holder = self._desk, self.office, self.holder
        for report, _, _ in current.reports.values():
            for name in report.best:
                holder.replaced(name)
        missing = office.missing()
        for slot in missing:
            for node, (report, _, _) in current.reports.items():
                for name in report.here:
                    if name.slot == slot and desk.better(name) is None and node in desk.members:
                        office.found(name, node)
            for name in holder.here():
                if name.slot == slot and desk.better(name) is None:
                    office.found(name, desk.me)
        for slot in office.missing():
            if self.is_gone(current, slot):
                office.forget_silent(current.begun, current.reports)
                self._generate(slot)
        if not office.missing():
            for node in current.reports:
                desk.tell_keeper(node, current.number)
            self.stop()
            holder.beat_all()
            office.feed_all()

    def is_gone(self, current: InstallRound, slot: int) -> bool:
        """office.O2."""
        desk = self._desk
        names = [
            *self.holder.passing(),
            *(name for answer in current.reports.values() for name in answer.report.passing),
        ]
        over = desk.now >= self.office.lent_until(slot)
        if any(name.slot == slot for name in names) and desk.now < self.office.lent_until(slot) + PASSING:
            return False
        fresh = [
            node
            for node, (report, asked_at, _) in current.reports.items()
            if report.promised and desk.now - asked_at < PROMISE and (node in desk.members or node in current.strangers)
        ]
        members = self._count(current)
        if 1 + len(fresh) >= members:
            return True
        if desk.now - current.begun < ANSWER and any(
            node not in fresh and node != desk.me and node not in desk.silent and node not in desk.departed
            for node in desk.members
        ):
            return False  # they may be about to say that it is there
        enough = 2 * (1 + len(fresh)) >= members if desk.when_isolated != "proceed" else True
        return over and enough

    def make(self, slot: int, epoch: int = 0) -> Token:
        """The epochs of all but the first ones count seconds since 1970, one more where two come in a second."""
        desk = self._desk
        best = desk.best.get(slot)
        why = "the first one" if epoch else "none was reported"
        epoch = epoch or max(desk.now // SECOND, 2 if best is None else best.epoch + 1)
        token = Token(epoch, desk.now, desk.draw(), 0, slot, settings=desk.fingerprint)
        desk.note(FactKind.GENERATED, token, detail=why)
        return token
