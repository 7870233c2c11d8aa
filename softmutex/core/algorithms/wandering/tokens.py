"""A token that is here: who uses it, who gets it next, and that its watchers know.

        Taken           queue empty, nobody waits            FEED, request
    ------------> free ----------------------------> parked ---------------> free
                 |    ^--- released ---.
                 |                     |              watchers silent beyond the lease
                 '---- grant -----> in use  ............................................> doubted
                 '---- give / commit ---> giving --Passed--> gone                             |
                          ^-- Failed: next in the queue --'            inquiry: not replaced -'-> free, or discarded

A holder that nobody hears of may have been replaced; it cannot know. The naive way, to go on and pass the token,
carries the doubt to the next node and doubles every hold from then on. So a doubted token is neither granted nor
passed on before an inquiry has answered.

The early offer: the next holder is asked while A still runs here, so that the release costs one message.

    in use --invite--> offered --ACCEPT--> promised ---release---> COMMIT     one message, one delay after the release
              |           '-- silence, REFUSE --> the next in the queue
              '-- spoke a moment ago --> nothing: the token is committed to it at once when A ends

The naive way asks at the release, and the resource idles for three delays. To ask whoever spoke just now is naive too:
a message for nothing, where one commits at once. It is looked at again, for A may last, and it may have died by then.

S1  A grant needs a token here, not outranked, not doubted, not being given: `_grant` is the only place that makes one.
S2  One grant at most on each token. (epoch, hop) grows with each grant: passing counts, and so does serving in a row.
S3  An invitation is no right: it is withdrawn freely until the release, and nothing is committed before.
L1  A token here is in use, parked, being given, or has a timer (`walk`, `beat`) or an inquiry that comes back to it.
L2  Who keeps tickets ahead waits for the token itself: it was in the queue at a later hop than it last had the token,
    or refused it. When it waits no more, it gives them back to the home.
A4  Kept ahead are at most four times as many tickets as a token has room for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.in_common import row_goes_on
from softmutex.core.algorithms.wandering.context import Context, place_of
from softmutex.core.algorithms.wandering.messages import Bequest, Feed, Heard, Place, Presence, Queued, Want
from softmutex.core.algorithms.wandering.settings import FRESH, LAZY, PATIENCE, QUEUE
from softmutex.core.algorithms.wandering.watch import Beats, Watch
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    Escort,
    FactKind,
    Grant,
    Instant,
    Lose,
    LostReason,
    NodeId,
    RequestId,
    Ticket,
    Token,
    escorted,
    queued,
)
from softmutex.core.handover import Handover
from softmutex.core.machine import pick_other
from softmutex.core.tuples import NamedTuple

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.evidence import OverlapEvidence, Visit
    from softmutex.core.algorithms.wandering.home import Home
    from softmutex.core.algorithms.wandering.requests import OwnRequests
    from softmutex.core.algorithms.wandering.search import Deafness, TokenSearches

ATTEMPTS = 3  # to reach who does not answer; meanwhile the group may have found a way
LOW: Final = 1  # tickets left in a token when its holder asks for more
STEPS: Final = 4  # how often a WANT or a FEED is passed on


class HeldToken:
    """One token that is here, and what this node notes of it: who uses it, and who is invited."""

    __slots__ = (
        "arrived",
        "beats",
        "came_at",
        "declined",
        "doubt",
        "doubted_at",
        "given_for",
        "giving",
        "invite_set",
        "invited",
        "invited_at",
        "late",
        "late_more",
        "moved",
        "parked",
        "plain",
        "retry",
        "row",
        "token",
        "told",
        "unanswered",
        "used",
        "using",
        "visit",
    )

    def __init__(self, token: Token, visit: Visit, now: Instant) -> None:
        self.token = token
        self.visit = visit
        self.beats = Beats(now - token.escort.unseen)  # what its watchers heard
        self.using: RequestId | None = None
        self.told = False  # the hold was told that it may not be alone
        self.used = token.hop if token.hop == 0 else -1  # the hop of the last grant; hop 0 is never granted
        self.row = 0  # grants in a row
        self.arrived = now  # its row began
        self.came_at = now
        self.parked = False
        self.invited = NOBODY  # who has an offer
        self.invited_at: Instant = 0
        self.invite_set = False  # the timer that looks whether the next holder still is there
        self.plain = NOBODY  # who did not stand for its ticket
        self.retry: Ticket | None = None  # for which the token was committed at once
        self.unanswered: list[Ticket] = []  # added here, and not told yet
        self.declined: dict[NodeId, RequestId] = {}  # who refused it in this turn: the home may feed them once more
        self.given_for: Ticket | None = None  # whose turn it is to be
        self.giving = False  # offered for good, perhaps committed
        self.late: tuple[Ticket, ...] = ()  # came while it was being given away
        self.late_more = False  # ... and others wait that are not among them
        self.moved = False  # it is committed, and this node, its home, feeds it where it goes
        self.doubt = False  # it may have been replaced
        self.doubted_at: Instant = 0

    def escort(self, *, watch: tuple[NodeId, ...] | None = None, more: bool | None = None) -> None:
        """What it takes along: who watches over it, and whether others wait than those in its queue."""
        if watch is not None:
            self.token = escorted(self.token, watch=watch)
        if more is not None and more != self.token.escort.more:
            self.token = escorted(self.token, more=more)


class TokensHere:
    """The tokens that are here, and what may be known of them elsewhere in this node."""

    __slots__ = ("by_slot", "context", "handover", "leaving", "orphans")

    def __init__(self, context: Context, handover: Handover) -> None:
        self.context = context
        self.handover = handover
        self.by_slot: dict[int, HeldToken] = {}
        self.orphans: dict[RequestId, tuple[Visit, Place]] = {}  # holds whose token was discarded while A ran
        self.leaving = False

    @property
    def in_use(self) -> int:
        count = len(self.orphans)
        for held in self.by_slot.values():
            if held.using is not None:
                count += 1
        return count

    def presence(self, slot: int) -> Presence:
        held = self.by_slot.get(slot)
        if held is None:
            return Presence.ABSENT
        if held.giving and all(token.key != held.token.key for token in self.handover.offered):
            return Presence.PASSING
        if held.doubt:
            return Presence.DOUBTED
        return Presence.PARKED if held.parked else Presence.IN_USE

    def may_use(self) -> bool:
        return not self.leaving and self.in_use < self.context.options.each

    def leave(self) -> None:
        """This node is on its way out: it takes nothing any more."""
        self.leaving = True

    def after(self, visit: Visit) -> Place | None:
        """Where the token of that visit went, also while nobody has confirmed that it is there."""
        held = self.by_slot.get(visit.place.slot)
        if held is None or held.visit is not visit:
            return visit.after
        return self.next_place(held) if self.presence(visit.place.slot) is Presence.PASSING else None

    def next_place(self, held: HeldToken) -> Place:
        """Where it will be when it is over there."""
        return place_of(held.token._replace(hop=held.token.hop + 1), held.invited)

    def tell_visit(self, visit: Visit, reason: LostReason) -> None:
        for held in self.by_slot.values():
            if held.visit is visit:
                self.tell(held, reason)

    def tell(self, held: HeldToken, reason: LostReason) -> None:
        """Once a hold is enough: the application cannot become more careful."""
        if held.using is not None and not held.told:
            held.told = True
            self.context.out.append(Lose(held.using, reason))


class Trail(NamedTuple):
    """A token that was here."""

    left_at: Instant
    stay: Duration  # how long it was here
    queue: tuple[Ticket, ...]  # behind the one that it went to
    hop: int
    to: NodeId
    home: NodeId  # as it was then, as far as this node knew
    is_new: bool  # another one than when a token left before


NO_TRAIL: Final = Trail(-SECOND, SECOND, (), 0, NOBODY, NOBODY, False)


class KeptAhead:
    """What is sent ahead of a token that moves faster than anything can follow it.

        A passes the token on, with T waiting in its queue        T keeps what comes for the token, until it comes by
        A is fed a ticket for it, too late  ------- FEED ------>  and puts it behind those in the queue

    The naive way, to send the ticket after the token, from holder to holder, is as fast as the token at best, and may
    follow it for a round. So it goes to the last one of whom the sender knows that the token will still come there; and
    who gets it before the token keeps it. L2 says for how long, A4 how many.
    """

    __slots__ = ("context", "early", "kept", "more", "past", "trail")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trail = NO_TRAIL  # of the token that was here last
        self.past = 0  # the hop until which what others know of this node's place in the queue is no longer so
        self.kept: dict[NodeId, RequestId] = {}  # tickets that followed it, and are next when it comes here
        self.early: dict[NodeId, RequestId] = {}  # those that overtook it are the last of its queue
        self.more = False  # ... and others wait

    def leaves(self, token: Token, came_at: Instant, to: NodeId) -> None:
        now, home = self.context.now, self.context.home
        is_new = self.trail.home not in (NOBODY, home)
        self.trail = Trail(now, now - came_at, token.queue, token.hop, to, home, is_new)
        self.past = token.hop

    def refused(self, token: Token) -> None:
        """It was this node's turn, and it did not want it any more."""
        self.past = max(self.past, token.hop)

    def beside_a_new_home(self) -> NodeId:
        """Where the token went just now, if the home is another one than it was: nobody there may know that token."""
        context, trail = self.context, self.trail
        lately = context.now - trail.left_at < FRESH and trail.home == context.home
        return trail.to if trail.is_new and lately and context.is_member(trail.to) else NOBODY

    def last_of(self, hop: int) -> NodeId:
        """If the token left from here to this hop, and moves too fast for a message: the last one of its queue."""
        context, trail = self.context, self.trail
        fast = trail.hop + 1 == hop and trail.stay <= max(context.round_trip, 2 * context.way)
        return self._last() if fast else NOBODY

    def waits_there(self) -> NodeId:
        """Somebody whom the token that left has not reached yet: the last one of its queue. NOBODY: it has not been
        gone for as long as it was here, and what is sent after it will reach it."""
        context, trail = self.context, self.trail
        if context.now - trail.left_at < trail.stay or context.options.by_home:
            return NOBODY
        return self._last()

    def _last(self) -> NodeId:
        me, is_member = self.context.me, self.context.is_member
        return next((node for node, _ in reversed(self.trail.queue) if node != me and is_member(node)), NOBODY)

    def keep(self, tickets: tuple[Ticket, ...], hop: int, early: bool) -> bool:
        """Until the token comes by, in whose queue this node, which waits, was at that hop. False: it does not."""
        context, there = self.context, self.early if early else self.kept
        if hop <= self.past or len(there) + len(tickets) > 2 * QUEUE:
            return False
        for node, request in context.living(tickets):
            if node != context.me and there.get(node, 0) < request:
                there[node] = request
        return True

    def others_wait(self, more: bool) -> None:
        self.more = self.more or more

    def arrives(self, queue: tuple[Ticket, ...]) -> tuple[tuple[Ticket, ...], bool]:
        """The token is here, with this queue: those whom it takes along, in order, and whether others wait."""
        kept, early = self._take()
        more, self.more = self.more, False
        return kept + queue + early, more

    def rest(self) -> None:
        """This node waits no longer, and no token came."""
        kept, early = self._take()
        kept += early
        for start in range(0, len(kept), QUEUE):
            self.context.give_back(kept[start : start + QUEUE])

    def _take(self) -> tuple[tuple[Ticket, ...], tuple[Ticket, ...]]:
        if not self.kept and not self.early:
            return (), ()
        kept, early = (tuple(Ticket(*item) for item in each.items()) for each in (self.kept, self.early))
        self.kept.clear()
        self.early.clear()
        return kept, early


class TokenHolder:
    """What is done with a token that is here: the one part that grants, passes and discards."""

    __slots__ = (
        "ahead",
        "context",
        "deafness",
        "evidence",
        "handover",
        "here",
        "home",
        "mismatches",
        "requests",
        "search",
        "skip",
        "unreached",
        "watch",
    )

    def __init__(
        self,
        here: TokensHere,
        ahead: KeptAhead,
        evidence: OverlapEvidence,
        deafness: Deafness,
        search: TokenSearches,
        requests: OwnRequests,
        watch: Watch,
        home: Home,
        skip: Duration,
    ) -> None:
        self.context = here.context
        self.handover = here.handover
        self.here = here
        self.ahead = ahead
        self.evidence = evidence
        self.deafness = deafness
        self.search = search
        self.requests = requests
        self.watch = watch
        self.home = home
        self.skip = skip  # how long a token stays that nobody wants, where there are no hints
        self.unreached: dict[NodeId, int] = {}  # who did not answer our offers, how often
        self.mismatches: tuple[int, ...] = ()  # fingerprints of settings that differ from ours

    # --- a token comes -----------------------------------------------------------------------------------------------

    def take(self, token: Token, sender: NodeId) -> None:
        """It is here now: passed on to us, or made here."""
        context = self.context
        if token.queue:
            token = queued(token, context.living(token.queue))
        old = self.here.by_slot.get(token.slot)
        visit = self.evidence.begin(token, place_of(token, context.me), sender)
        if old is not None and self.here.presence(token.slot) is not Presence.PASSING:
            newer = (token.epoch, -token.stamp, -token.id) > (old.token.epoch, -old.token.stamp, -old.token.id)
            if not newer:
                context.note(FactKind.DISCARDED, token, detail="a better one of this slot is here")
                self.evidence.met(visit, old.visit.place)
                return
            self.discard(old, place_of(token, context.me), Presence.PARKED)
        self.search.came(token.slot)  # not before: whether a doubted one was replaced is still to be found out
        held = self.here.by_slot[token.slot] = HeldToken(token, visit, context.now)
        context.learn(place_of(token, context.me))
        self.requests.visited()
        self._compare_settings(token)
        better = context.outranked(token)
        if better is not None or context.comes_late(token) or context.just_woke:
            self.search.doubt(held)
        self.watch.began(held)
        if old is not None and old.giving:  # its return says that it had arrived
            old.visit.went_to(self.here.next_place(old))
            self.context.give_back(self.add(held, old.late))
            self.ahead.others_wait(old.late_more)
        self._take_along(held)
        self.advance(held)
        if self.here.by_slot.get(token.slot) is held and not held.giving:
            self._ask_for_more(held)

    def _take_along(self, held: HeldToken) -> None:
        """Those that were kept for it here, and who waits in the register."""
        queue, more = self.ahead.arrives(held.token.queue)
        if more:
            held.escort(more=True)
        if len(queue) > len(held.token.queue):
            held.token = queued(held.token, ())
            self.context.give_back(self.add(held, queue))
        if self.home.somebody_waits:
            first, more = self.home.take_along(len(held.token.queue))
            self.context.give_back(self.add(held, first))
            if more:
                held.escort(more=True)

    def _ask_for_more(self, held: HeldToken) -> bool:
        """Others wait at the home, and nobody is left in the queue: it is asked once, and its answer is waited for."""
        low = LOW if self.context.options.by_home else 0
        if not held.token.escort.more or len(held.token.queue) > low or held.doubt:
            return False
        if not held.beats.sent_at:
            self.watch.beat(held)
        return True

    def _compare_settings(self, token: Token) -> None:
        said, known = token.settings, self.mismatches
        if said not in (0, self.context.fingerprint) and said not in known and len(known) < 16:
            self.mismatches = (*known, said)
            self.context.note(FactKind.MISMATCH, token, detail="slots, min_interval or switches differ from ours")

    def add(self, held: HeldToken, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Put tickets into the token's queue: no node twice. Those that do not fit are given back."""
        if not tickets:
            return ()
        queue = list(held.token.queue)
        nodes = {ticket.node: i for i, ticket in enumerate(queue)}
        for ticket in tickets:  # one that waits already, for a later request by now
            at = nodes.get(ticket.node, -1)
            if at >= 0 and queue[at].request < ticket.request:
                queue[at] = ticket
                held.token = queued(held.token, tuple(queue))
        latest: dict[NodeId, Ticket] = {}  # what was kept for a token and what is in its queue may be of the same node
        for ticket in self.context.living(tickets):
            older = latest.get(ticket.node, ticket)
            if ticket.node not in nodes and older.request <= ticket.request:
                latest[ticket.node] = ticket
        new = list(latest.values())
        strangers: list[Ticket] = []
        if len(queue) + len(new) > QUEUE:  # those whom this node can serve come first
            strangers = [ticket for ticket in queue if not self.context.is_member(ticket.node)]
            queue = [ticket for ticket in queue if ticket not in strangers]
        room = QUEUE - len(queue)
        if new[:room]:
            held.token = queued(held.token, (*queue, *new[:room]))
            self.watch.is_missed(held)
        return (*new[room:], *strangers)

    # --- what to do with it ------------------------------------------------------------------------------------------

    def advance(self, held: HeldToken) -> None:
        """The one place that decides what happens to a token that is here."""
        requests = self.requests
        if held.giving:
            return
        if held.using is not None:
            self.invite(held)
            return
        if held.parked and self.watch.overslept(held) and (requests.waiting or held.token.queue):
            self.search.doubt(held)
        if held.doubt:
            return
        queue = held.token.queue and self.known_first(held)
        if queue and queue[0].node == self.context.me:
            while queue and queue[0].node == self.context.me:
                queue = queue[1:]
                held.token = queued(held.token, queue)
                if requests.waiting:
                    held.row, held.arrived = 0, self.context.now
                    self.uninvite(held)
            queue = self.known_first(held)
        hints = self.context.options.hints
        others = bool(queue) or (held.token.escort.more and not self.context.options.by_home)
        if requests.waiting and self.here.may_use() and ((hints and not others) or self._row_goes_on(held)):
            self._grant(held)
        elif queue:
            self._pass(held)
        elif self.here.leaving and not self.context.alone:
            self._leave_to(held, self.context.heir)
        elif not hints:
            if not held.parked:
                pause = 0 if held.row else self.skip
                self.context.timer(("walk", held.token.slot), self.context.now + pause)
                held.parked = True
        elif self.context.options.by_home or not self._ask_for_more(held):
            self._park(held)

    def known_first(self, held: HeldToken) -> tuple[Ticket, ...]:
        """Whom this node does not know yet it cannot pass to: others may. Nor to who hears nobody, and to who is silent
        only when nobody else waits. Empty where it knows nobody else in the queue."""
        queue, reaches, silent = held.token.queue, self.context.reaches, self.context.silent
        if not queue or (reaches(queue[0].node) and queue[0].node not in silent):
            return queue
        queue = self.context.living(queue)
        if len(queue) < len(held.token.queue):
            held.token = held.token._replace(queue=queue)
        known = tuple(ticket for ticket in queue if reaches(ticket.node))
        if silent:
            known = tuple(sorted(known, key=lambda ticket: ticket.node in silent))
        if known:
            strangers = tuple(ticket for ticket in queue if not reaches(ticket.node))
            held.token = held.token._replace(queue=known + strangers)
        return known and held.token.queue

    def members_changed(self) -> None:
        """Those who left wait no more, and whom we did not know may be here now."""
        for held in list(self.here.by_slot.values()):
            queue = self.context.living(held.token.queue)
            if not held.giving and len(queue) < len(held.token.queue):
                held.token = held.token._replace(queue=queue)
            is_here = self.here.by_slot.get(held.token.slot) is held
            if held.token.queue and is_here and (held.parked or held.using is not None):
                self.advance(held)

    def _row_goes_on(self, held: HeldToken) -> bool:
        if held.row == 0:
            return not (self.requests.late and held.token.queue)
        asked = next(iter(self.requests.waiting.values()))
        return row_goes_on(self.context.options, held.row, held.arrived, asked, self.context.now)

    def _grant(self, held: HeldToken) -> None:
        requests = self.requests
        if held.using is not None or held.giving or held.doubt or self.here.in_use >= self.context.options.each:
            raise InvariantBreach(f"node {self.context.me} grants {held.token} twice, or while it is not its to grant")
        if held.used >= held.token.hop:
            held.token = held.token._replace(hop=held.used + 1)
            self.context.learn(place_of(held.token, self.context.me))
        held.used = held.token.hop
        held.using = requests.next()
        held.visit.begin(held.using, self.context.now)
        held.declined.clear()
        held.told = False
        held.row += 1
        if held.parked:
            held.parked = False
            self.watch.unparked(held)
        requests.rest()
        requests.ran()
        self.context.out.append(Grant.by(held.token, held.using))
        self.invite(held)
        if requests.waiting:
            self.queue_self(held)
        elif held.token.queue:
            queue = tuple(ticket for ticket in held.token.queue if ticket.node != self.context.me)
            if len(queue) < len(held.token.queue):  # all are served
                held.token = queued(held.token, queue)

    def queue_self(self, held: HeldToken) -> None:
        """More requests wait here than one turn serves: a ticket behind the others'."""
        requests = self.requests
        there = [ticket.request for ticket in held.token.queue if ticket.node == self.context.me]
        if there and self.context.options.ageing:
            requests.noted(there[0])
            return
        request = requests.label
        full = self.context.options.each in (1, self.here.in_use)  # else another token may be free: ask for it
        direct = full and not held.token.escort.more and self.context.options.hints and not self.context.options.ageing
        direct = direct and (bool(there) or not requests.asks)  # else it is on its way to the home
        if there:  # it stands for this one now
            mine = Ticket(self.context.me, request)
            queue = tuple(mine if ticket.node == mine.node else ticket for ticket in held.token.queue)
            held.token = held.token._replace(queue=queue)
        if direct and not self.add(held, (Ticket(self.context.me, request),)):
            requests.noted(request)
        else:
            requests.ask()

    def release(self, request: RequestId, baggage: bytes) -> None:
        orphan = self.here.orphans.pop(request, None)
        if orphan is not None:
            visit, better = orphan
            visit.end(self.context.now)
            self.evidence.looked_again(visit, better)
        for held in self.here.by_slot.values():
            if held.using == request:
                held.using = None
                held.visit.end(self.context.now)
                if held.token.baggage != baggage:
                    held.token = held.token._replace(baggage=baggage)
                self.requests.ran()
                self.watch.check(held)
                self.advance(held)
                self.deafness.say(held.token.slot)
                self.requests.freed()
                return
        for held in list(self.here.by_slot.values()):
            self.advance(held)

    # --- asked early -------------------------------------------------------------------------------------------------

    def invite(self, held: HeldToken) -> None:
        """The early offer: while A runs, the next holder says yes already; the release then costs one message."""
        if not self.context.options.early or held.invited != NOBODY or held.doubt:
            return
        queue = self.known_first(held)
        if not queue or queue[0].node == self.context.me:
            return
        ticket = queue[0]
        wait = self.context.asks_later(ticket.node, *self.pace(held))
        if wait and held.plain != ticket.node:
            if not held.invite_set:
                held.invite_set = True
                self.context.timer(("invite", held.token.slot), self.context.now + wait)
            return
        held.invited, held.invited_at = ticket.node, self.context.now
        self.handover.offer_early(held.token, ticket.node, self.context.now, self.context.out)

    def invite_fired(self, slot: int) -> None:
        held = self.here.by_slot.get(slot)
        if held is not None:
            held.invite_set = False
            if held.using is not None:
                self.invite(held)

    def pace(self, held: HeldToken) -> tuple[Duration, Duration]:
        """How long a turn takes, and a round trip. A home, which asks nobody for turns, knows that by its offers."""
        turn = max(self.ahead.trail.stay, self.context.now - held.came_at)
        return turn, 2 * self.context.way or self.handover.patience.round_trip

    def uninvite(self, held: HeldToken) -> None:
        if held.invited != NOBODY:
            self.handover.withdraw(held.token, self.context.out)
            held.invited = NOBODY

    # --- to the next -------------------------------------------------------------------------------------------------

    def tell_queued(self, slot: int) -> None:
        """They wait in our token, and will wait for a while."""
        held = self.here.by_slot.get(slot)
        if held is not None and held.unanswered:
            for ticket in held.unanswered:
                if ticket not in held.token.queue:
                    continue
                if self.context.home == self.context.me:
                    self.home.queue(ticket.node, ticket.request, len(held.token.queue))
                else:
                    self.context.post(ticket.node, Queued(ticket.request, PATIENCE))
            held.unanswered.clear()

    def _pass(self, held: HeldToken) -> None:
        ticket, *rest = held.token.queue
        self._give(held, ticket.node, tuple(rest), ticket.request)

    def _leave_to(self, held: HeldToken, heir: NodeId) -> None:
        """This node leaves, and knows nobody in the queue: its heir may. A token with a queue would be refused."""
        if held.token.queue:
            self.context.post(heir, Bequest(None, held.token.queue))
        self._give(held, heir, ())

    def _give(self, held: HeldToken, to: NodeId, queue: tuple[Ticket, ...], request: RequestId = 0) -> None:
        context = self.context
        if self.requests.waiting and not self.here.leaving:
            self.queue_self(held)  # before the token leaves: behind those who are in its queue
            queue = tuple(ticket for ticket in held.token.queue if ticket.node != to)
        if held.invited not in (NOBODY, to):
            self.uninvite(held)
        self.watch.ended(held)
        lately = context.fresh(*self.pace(held))
        at_once = request > 0 and to not in (held.invited, held.plain) and context.is_there(to, lately)
        asked = held.invited == to and context.now - held.invited_at >= 2 * context.way
        ways = 1 if at_once or asked else 3
        unseen = self.watch.unseen(held, ways * context.way)
        escort = Escort(held.token.escort.watch, unseen, held.token.escort.more)
        token = Token(*held.token[:5], queue, context.fingerprint, held.token.baggage, escort)
        held.giving = True
        held.parked = False
        held.token = token
        self.ahead.leaves(token, held.came_at, to)
        held.given_for = Ticket(to, request) if request else None
        if held.invited == to:
            self.handover.commit(token, context.now, context.out)
        elif at_once:
            held.invited = held.plain = to
            held.retry = Ticket(to, request)
            self.handover.give_at_once(token, to, request, context.now, context.out)
        else:
            held.invited = to
            self.handover.give(token, to, context.now, context.out)
        is_on_its_way = self.here.presence(token.slot) is Presence.PASSING
        if is_on_its_way and context.home == context.me and not context.options.by_home:
            held.moved = True  # whoever waits here is not to wait until it has arrived
            self.home.moved(self.here.next_place(held), token, held.beats.watcher)
        self.tell_queued(token.slot)

    def passed(self, token: Token, to: NodeId) -> None:
        """It is over there."""
        context = self.context
        held = self.here.by_slot.get(token.slot)
        if held is None or held.token.key != token.key or not held.giving:
            return
        del self.here.by_slot[token.slot]
        self.unreached.pop(to, None)
        place = Place(token.slot, token.epoch, token.stamp, token.id, token.hop + 1, to)
        held.visit.went_to(place)
        context.learn(place)
        if not held.moved:
            self.home.moved(place, token, held.beats.watcher)
        if held.late:
            self.forward(token.slot, held.late, token.escort.more or held.late_more)

    def failed(self, token: Token, to: NodeId, is_silent: bool) -> None:
        """It is still, or again, here. Who refused has no need; who is silent keeps its place behind the others."""
        held = self.here.by_slot.get(token.slot)
        if held is None or held.token.key != token.key:
            self.context.note(FactKind.DISCARDED, token, to, "it came back when a better one had been here")
            visit = self.evidence.find(place_of(token, self.context.me))
            better = self.context.best.get(token.slot)
            if visit is not None and better is not None:
                self.evidence.met(visit, better)
            return
        lost = [ticket for ticket in (*held.token.queue, held.given_for) if ticket is not None and ticket.node == to]
        queue = tuple(ticket for ticket in held.token.queue if ticket.node != to)
        if not is_silent:
            held.declined.update((ticket.node, ticket.request) for ticket in lost[: QUEUE - len(held.declined)])
        else:
            self.context.suspicious(to)
            self.unreached[to] = self.unreached.get(to, 0) + 1
            if self.unreached[to] <= ATTEMPTS and self.context.is_member(to) and to not in self.context.silent:
                queue = (*queue, *(lost[:1] if held.retry is None else ()))[:QUEUE]
            else:
                del self.unreached[to]
        held.given_for = None
        held.token = held.token._replace(queue=queue)
        if held.retry is not None:  # it did not stand for its ticket any more: now it is asked
            held.token = held.token._replace(queue=(held.retry, *queue)[:QUEUE])
            held.retry = None
        held.invited = NOBODY
        late, held.late = tuple(one for one in held.late if held.declined.get(one.node) != one.request), ()
        self.context.give_back(self.add(held, late))
        inherited = self.here.leaving and not queue
        if held.giving:
            held.giving = held.moved = False
            # Others may have heard that it is over there, one hop later: what they hear from here must be later still.
            held.token = held.token._replace(hop=held.token.hop + 2)
            self.context.learn(place_of(held.token, self.context.me))
            self.watch.began(held)
        if inherited:
            (self.context.suspect if is_silent else self.context.leaves)(to)
            held.parked = True
            self.context.timer(("walk", token.slot), self.context.now + self.context.rto)
        else:
            self.advance(held)

    def gone(self, token: Token, to: NodeId) -> None:
        """Committed and never confirmed. Not ours to use; whether it lives is to be found out."""
        self.passed(token, to)
        self.context.suspicious(to)
        if self.context.options.watch:
            self.search.start(token.slot, "a hand-over was never confirmed")

    def walk(self, slot: int) -> None:
        """Without hints the token wanders at random, as in the seeds; a leaver looks for another heir."""
        held = self.here.by_slot.get(slot)
        if held is None or not held.parked or held.giving or held.using is not None:
            return
        if self.here.leaving:
            self.advance(held)
            return
        to = pick_other(self.context.members, self.context.me, self.context.rng)
        if to != NOBODY:
            self._give(held, to, held.token.queue)
        else:
            held.parked = False  # alone: look around again later
            self.advance(held)

    def _park(self, held: HeldToken) -> None:
        held.row = 0
        if not held.parked:
            held.parked = True
            self.watch.parked(held)

    def fed(self, held: HeldToken, tickets: tuple[Ticket, ...], more: bool) -> None:
        """Somebody waits."""
        self.context.give_back(self.add(held, tickets))
        held.escort(more=more)
        if held.parked and self.known_first(held) and not self.watch.overslept(held):
            held.parked = False
            self.watch.wanted(held)
        self.advance(held)

    # --- what comes for it -------------------------------------------------------------------------------------------

    def wanted(self, want: Want, credit: Duration = 0) -> None:
        context = self.context
        if (want.node == context.me and not self.requests.waiting) or want.node in context.gone:
            return
        here = self.here.by_slot.values()
        for held in sorted(here, key=lambda held: not held.parked) if len(here) > 1 else here:
            room = not held.token.escort.more and (held.parked or not context.options.by_home)
            if not held.giving and room and not held.doubt and context.options.hints:
                ticket = Ticket(want.node, want.request)
                if not self.add(held, (ticket,)):
                    if not held.parked:
                        if not held.unanswered:
                            context.timer(("queued", held.token.slot), context.now + LAZY)
                        held.unanswered.append(ticket)
                    self.fed(held, (), False)
                    return
        if self.requests.asks and self.ahead.keep((Ticket(want.node, want.request),), want.ahead, early=True):
            return
        want, steps = want._replace(ahead=0), min(want.steps, STEPS)
        home = context.heir if self.here.leaving else context.home
        if home == context.me or steps == 0:
            self.home.register(want, credit)
        else:
            context.ask(home, want._replace(steps=steps - 1), credit)

    def feed(self, sender: NodeId, feed: Feed) -> None:
        """To the holder, or after it."""
        held = self.here.by_slot.get(feed.slot)
        if held is not None and not held.giving:
            self.watch.answered(held, sender)
            self.fed(held, feed.tickets, feed.more)
        elif self.requests.asks and self.ahead.keep(feed.tickets, feed.ahead, feed.steps == STEPS):
            self.ahead.others_wait(feed.more)
        elif held is not None or feed.steps > 0:
            self.forward(feed.slot, feed.tickets, feed.more, max(0, min(feed.steps, STEPS) - 1))
        else:
            self.context.give_back(feed.tickets)  # the token is faster than they are

    def forward(self, slot: int, tickets: tuple[Ticket, ...], more: bool, steps: int = STEPS - 1) -> None:
        context = self.context
        held = self.here.by_slot.get(slot)
        best = context.best.get(slot)
        if context.home == context.me and not context.options.by_home:
            context.give_back(tickets)  # the register knows best where it went, or that it comes by
        elif held is not None and held.giving:
            room = QUEUE - len(held.late)
            held.late += tickets[:room]  # they follow it when it has arrived
            held.late_more = held.late_more or more
            self.context.give_back(tickets[room:])
        elif (ahead := self.ahead.waits_there()) != NOBODY:
            context.post(ahead, Feed(slot, tickets, more, steps, self.ahead.trail.hop))
        elif best is not None and best.holder in context.gone:
            context.post(context.home, Bequest(best, tickets))  # the trail ends here: the home looks for it
        elif best is not None and best.holder != context.me:
            context.post(best.holder, Feed(slot, tickets, more, steps))

    def heard(self, sender: NodeId, message: Heard) -> None:
        """Its watcher is well; and these wait, but for those who do not any more. Whose ticket got lost asks itself."""
        held = self.here.by_slot.get(message.slot)
        if held is None or held.token.epoch != message.epoch or held.giving:
            if message.tickets:
                self.forward(message.slot, message.tickets, message.more)
            return
        self.watch.heard(held, sender, message)
        if message.tickets or sender == next(iter(held.token.escort.watch), sender):
            declined = held.declined.get
            self.fed(held, tuple(one for one in message.tickets if declined(one.node) != one.request), message.more)

    # --- rivals ------------------------------------------------------------------------------------------------------

    def discard(self, held: HeldToken, better: Place, presence: Presence) -> None:
        """Another token of this slot won. A goes on, knowing that it is not alone."""
        context = self.context
        if self.here.presence(held.token.slot) is Presence.PASSING:
            return  # out of our hands
        self.handover.withdraw(held.token, context.out)
        self.watch.ended(held)
        del self.here.by_slot[held.token.slot]
        context.note(FactKind.DISCARDED, held.token, better.holder, f"epoch {better.epoch} hop {better.hop} wins")
        if held.using is not None:
            self.here.orphans[held.using] = (held.visit, better)
            self.here.tell(held, LostReason.OVERLAP)
        self.evidence.met(held.visit, better)
        token = held.token
        if token.queue:  # to the one that won
            context.post(better.holder, Feed(token.slot, token.queue, token.escort.more, STEPS))

    def withhold(self, held: HeldToken) -> bool:
        """Take back what is offered, until the doubt is settled. False: it is committed already."""
        if self.here.presence(held.token.slot) is Presence.PASSING:
            return False
        self.handover.withdraw(held.token, self.context.out)
        held.invited = NOBODY
        held.giving = False
        held.parked = False
        if not held.doubt:
            held.doubt = True
            held.doubted_at = self.context.now
        self.watch.ended(held)
        return True

    def renew(self, held: HeldToken) -> None:
        """The same hold goes on with a token that outranks one that was heard of and is nowhere any more."""
        context = self.context
        context.note(FactKind.DISCARDED, held.token, detail="renewed")
        epoch = context.next_epoch(held.token.slot)
        held.token = held.token._replace(epoch=epoch, stamp=context.now, id=int(context.rng.random() * 2**53), hop=0)
        held.used = 0
        context.note(FactKind.GENERATED, held.token, detail="in place of one that was heard of and not found")
        place = place_of(held.token, context.me)
        visit, better = held.visit, context.best.get(held.token.slot)
        held.visit = self.evidence.renamed(visit, held.token, place)
        context.learn(place)
        if better is not None:
            self.evidence.met(visit, better)

    def settled(self, held: HeldToken) -> None:
        """We are in touch, and nobody has a better token than the one we doubted."""
        better = self.context.outranked(held.token)
        held.doubt = False
        if better is not None:  # heard of, and nowhere any more: ours is replaced by one that outranks it
            self.renew(held)
        held.escort(watch=())
        self.watch.settled(held)
        self.advance(held)
        if self.here.by_slot.get(held.token.slot) is held and not held.giving and not held.parked:
            self.watch.beat(held)
