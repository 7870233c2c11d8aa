"""The home's side: who waits, where each token is, and when to look for one that fell silent.

Any node can be a home: the first on the ring from the resource's spot, found by everybody alone (seed 003's "cheap"
messages, with a better address than a random one). The register is soft state: a home that dies takes it along, the
waiters ask again, and no safety is lost, since only a token grants.

    WANT ----> register --FEED----> holder          while the token's queue is short: one message, at once
                   '----HEARD----> holder           when it is long: by the batch, in answers to SEEN (`more`)

A `TokenPost` for each slot:  unknown --SEEN--> known, watched until --silence--> inquiry --> found | replaced
                                     '---> known, parked (no time limit, but of several slots: until its host is silent)

L1  While somebody is registered, some post is watched, or an inquiry runs, or a parked holder was just fed.
A4  The register is bounded by `REGISTER`; who does not fit is told nothing, and asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from softmutex.core.algorithms.wandering.context import place_of, rank, same_token
from softmutex.core.algorithms.wandering.messages import (
    Bequest,
    Feed,
    Heard,
    Place,
    Presence,
    Queued,
    Seen,
    Sight,
    Want,
)
from softmutex.core.algorithms.wandering.precedence import Precedence
from softmutex.core.algorithms.wandering.settings import (
    GRACE,
    LAZY,
    PARKED_BEAT,
    PATIENCE,
    PATIENCE_EACH,
    QUEUE,
    SECOND_BEAT,
    SECOND_EXTRA,
    SLACK,
)
from softmutex.core.algorithms.wandering.watch import doubts_another
from softmutex.core.events import NOBODY, SECOND, Duration, Instant, NodeId, RequestId, Ticket, Token
from softmutex.core.tuples import NamedTuple

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.context import Context
    from softmutex.core.algorithms.wandering.search import TokenSearches
    from softmutex.core.algorithms.wandering.tokens import HeldToken, KeptAhead, TokensHere
    from softmutex.core.algorithms.wandering.watch import LendersRoll

REGISTER: Final = 1 << 18
REMINDED: Final = 3
LOW: Final = 4  # tickets that are fed one by one; more are given by the batch
STEPS: Final = 4
SHORT: Final = SECOND  # turns that are shorter, and so long at most others wait for a token that is to come by anyway


class TokenPost:
    """What a home knows of one slot's token."""

    __slots__ = (
        "again",
        "fed_at",
        "heard_at",
        "idle",
        "lent",
        "more",
        "place",
        "relayed",
        "second",
        "turn",
        "turn_at",
        "unsure",
        "until",
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        self.until: Instant = 0  # when to look for it; 0: it is parked
        self.lent: dict[NodeId, RequestId] = {}  # tickets that are, or should be, in its queue
        self.more = False  # the holder asks for more when its queue is short
        self.relayed = 0  # times that it was seen
        self.turn: Place | None = None  # the last turn that was seen, from its beginning as far as is known here ...
        self.turn_at: Instant = 0  # ... that was then
        self.unsure: dict[NodeId, None] = {}  # fed since it was last seen
        self.fed_at: Instant = 0
        self.idle = False  # it was parked when it was fed last: the fed should have come at once
        self.heard_at: Instant = 0  # from the holder itself, for this place; 0: from others, or it passed it on
        self.second = False  # we only hear of it from its first watcher
        self.again = 0  # waiters that asked again since it was last seen

    def fed_now(self, tickets: tuple[Ticket, ...], now: Instant) -> None:
        """They are on their way to the holder, and may get lost."""
        if tickets:
            self.unsure.update(dict.fromkeys(ticket.node for ticket in tickets))
            self.fed_at = now

    def never_arrived(self, place: Place, there: tuple[Ticket, ...]) -> dict[NodeId, RequestId]:
        """They were fed, are not in its queue, and fewer turns have begun since then than were to come before."""
        served = islice(self.lent, place.hop - self.place.hop)
        nodes = {place.holder, *served, *(ticket.node for ticket in there)}
        return {node: request for node, request in self.fed().items() if node not in nodes}

    def fed(self) -> dict[NodeId, RequestId]:
        """Who was fed to the holder since it was last seen."""
        return {node: self.lent[node] for node in self.unsure if node in self.lent}

    def follow(self, place: Place, has: tuple[Ticket, ...], all_of_them: bool) -> dict[NodeId, RequestId]:
        """The token is there, with these in its queue. Who was lent to another one, which is lost or discarded, waits
        again: all of them as far as a home knows, else those whom this node fed itself."""
        lost: dict[NodeId, RequestId] = {}
        if not same_token(self.place, place):
            lost = self.lent if all_of_them else self.fed()
        self.place = place
        self.lent = dict(has)
        return lost


class Borrowing:
    """With several slots: who waits behind a long turn of one comes to another one that is free.

    A ticket is put into the queue of one token, and the naive way leaves it there: while that turn takes a minute,
    other tokens become free and stay so. So the home moves it to the one that is, when its holder says that it is
    parked.

    Each ticket moves but once: it cannot be sent round in a circle. Its old place stays, and is void when it is served.
    """

    __slots__ = ("here", "moved", "posts")

    def __init__(self, here: TokensHere, posts: dict[int, TokenPost]) -> None:
        self.here = here
        self.posts = posts
        self.moved: dict[NodeId, RequestId] = {}

    def once(self, ticket: Ticket) -> bool:
        if ticket.request <= self.moved.get(ticket.node, 0):  # they grow: an older one had its turn
            return False
        self.moved[ticket.node] = ticket.request
        return True

    def departed(self, node: NodeId) -> None:
        self.moved.pop(node, None)

    def taken_again(self, post: TokenPost) -> None:
        """Its holder took it just when they were moved to it: they wait behind a turn as before."""
        for node in post.lent:
            self.moved.pop(node, None)

    def for_idle(self, idle: TokenPost | None) -> tuple[Ticket, ...]:
        """One that waits behind a turn of another slot, of a token that is here or elsewhere."""
        for ticket in self._behind_a_turn_here():
            if self.once(ticket):
                return (ticket,)
        for post in self.posts.values():
            for node, request in post.lent.items():
                if post is not idle and post.until and self.once(Ticket(node, request)):
                    del post.lent[node]
                    return (Ticket(node, request),)
        return ()

    def _behind_a_turn_here(self) -> Iterator[Ticket]:
        for held in self.here.by_slot.values():
            if held.using is not None:
                yield from held.token.queue

    def load(self, slot: int) -> tuple[int, int]:
        """The free ones first."""
        held = self.here.by_slot.get(slot)
        if held is not None:
            return (len(held.token.queue) + (not held.parked), slot)
        post = self.posts.get(slot)
        return (1000, slot) if post is None else (len(post.lent) + (post.until != 0), slot)


class ToldToWait(NamedTuple):
    """Who was told to be patient."""

    request: RequestId
    hop: int  # of the only token, as it was known then; 0: there are several
    turns: int  # of its to be seen until it is served: 2 if an earlier request of it was in a token's queue then
    times: int  # that it was reminded
    at: Instant


class Reminders:
    """Who was told to be patient is asked whether it still waits, as soon as a token is idle.

    A waiter asks again when its turn is overdue by what the register knew: with long turns, or many before it, that is
    minutes. Its ticket may be lost meanwhile, by a datagram, or with a holder and its home that died together, and the
    naive way leaves it to its patience beside an idle token. To ask again each few seconds would be most of all
    messages.

        QUEUED(long) --> told --a token is parked, nobody is registered--> QUEUED(0): ask again --WANT--> told anew

    Who was told and has not been seen with a token since is reminded at each idle moment, `REMINDED` times in all: a
    reminder may be lost as well. Who asks again as its turn begins is told before that turn is seen: it is the next
    one that counts; and a word of the turn before may come later than the ticket of the next one. Who has had its turn
    does not answer. At most `REGISTER` are noted.
    """

    __slots__ = ("context", "posts", "told")

    def __init__(self, context: Context, posts: dict[int, TokenPost]) -> None:
        self.context = context
        self.posts = posts
        self.told: dict[NodeId, ToldToWait] = {}

    def patient(self, node: NodeId, request: RequestId, patience: Duration, turns: int) -> None:
        told = self.told.pop(node, None)
        if told is not None and told.request == request:
            turns = max(turns, told.turns)
        if patience > PATIENCE and len(self.told) < REGISTER:
            post = self.posts.get(0) if self.context.options.slots == 1 else None
            self.told[node] = ToldToWait(request, 0 if post is None else post.place.hop, turns, 0, self.context.now)

    def departed(self, node: NodeId) -> None:
        self.told.pop(node, None)

    def knows(self, node: NodeId, request: RequestId) -> bool:
        """It was told to wait with this request, not with an earlier one."""
        told = self.told.get(node)
        return told is not None and told.request == request

    def seen(self, place: Place, is_idle: bool) -> None:
        """A token is there. Who waits behind a turn of another one, as far as is known here, is left alone."""
        told = self.told.get(place.holder)
        context = self.context
        if told is not None and place.hop > told.hop and context.now - told.at > 2 * context.there_and_back:
            if is_idle or told.turns == 1:
                del self.told[place.holder]  # it had its turn
            else:
                self.told[place.holder] = told._replace(hop=place.hop, turns=1)
        if not is_idle or not self.told:
            return
        behind_a_turn = {node for post in self.posts.values() if post.until for node in post.lent}
        for node, told in list(self.told.items()):
            if node in behind_a_turn:
                continue
            if told.times + 1 < REMINDED:
                self.told[node] = told._replace(times=told.times + 1)
            else:
                del self.told[node]
            self.context.post(node, Queued(told.request, 0))


class Feeder(Protocol):
    def fed(self, held: HeldToken, tickets: tuple[Ticket, ...], more: bool) -> None:
        """These wait, and are to be in the queue of a token that is here."""


class Home:
    __slots__ = (
        "ahead",
        "borrowing",
        "called_at",
        "context",
        "feeder",
        "here",
        "late",
        "looks_after",
        "posts",
        "precedence",
        "ready",
        "reminders",
        "returned_at",
        "roll",
        "search",
        "trip",
        "turn",
    )

    def __init__(
        self, here: TokensHere, ahead: KeptAhead, search: TokenSearches, roll: LendersRoll, feeder: Feeder
    ) -> None:
        self.context = here.context
        self.ahead = ahead
        self.here = here
        self.search = search
        self.roll = roll
        self.feeder = feeder
        self.ready: dict[NodeId, RequestId] = {}
        self.late: dict[NodeId, RequestId] = {}  # had their turn less than the least interval ago
        self.precedence = Precedence(here.context.options)
        self.posts: dict[int, TokenPost] = {}
        self.borrowing = Borrowing(here, self.posts)
        self.reminders = Reminders(here.context, self.posts)
        self.looks_after: dict[int, None] = {}  # slots whose holders should ask for more
        self.turn: Duration = 0  # how long one takes, as far as can be seen from here
        self.trip: Duration = 0  # how long a watcher's answer took that came when its token had gone
        self.called_at: Instant = 0  # our own ticket was last sent after a token
        self.returned_at: Instant = 0  # tickets that did not reach a holder were last fed again

    # --- who waits ---------------------------------------------------------------------------------------------------

    def register(self, want: Want, credit: Duration) -> None:
        node, request = want.node, want.request
        if not self.context.living((Ticket(node, request),)):
            return
        turns = 1
        for post in self.posts.values():
            if post.lent.get(node) == request:
                self._asked_again(post, Ticket(node, request))
                return
            if post.lent.get(node, request) < request:
                del post.lent[node]  # that one has its turn, which is yet to be seen
                turns = 2
        register = self.late if want.late else self.ready
        again = node in self.ready or node in self.late
        is_the_same = request in (self.ready.get(node), self.late.get(node))
        if again:
            if node in self.late and not want.late:
                del self.late[node]
            elif node in self.ready:
                register = self.ready
        elif len(self.ready) + len(self.late) >= REGISTER:
            return
        if not again and register is self.ready and self.reminders.knows(node, request):
            self.ready = {node: request, **self.ready}  # it was fed and is lost: at the end it would wait a round more
        else:
            register[node] = request
        self.precedence.asks(node, self.context.now - credit, again=is_the_same)
        if not self.serve() and (again or self.turn * self._waiting > LAZY or not self.turn):
            self.queue(node, request, self._waiting, turns)  # else its turn comes sooner than it would ask again

    @property
    def somebody_waits(self) -> bool:
        return bool(self.ready or self.late)

    @property
    def _waiting(self) -> int:
        return len(self.ready) + len(self.late) + sum(len(post.lent) for post in self.posts.values())

    def queue(self, node: NodeId, request: RequestId, waiting: int, turns: int = 1) -> None:
        """Its turn comes later, after those of so many."""
        each = max(PATIENCE_EACH, self.turn * 5 // 4)
        patience = max(PATIENCE, each * waiting // self.context.options.slots)
        self.reminders.patient(node, request, patience, turns)
        self.context.post(node, Queued(request, patience))

    def _asked_again(self, post: TokenPost, ticket: Ticket) -> None:
        """The holder was told and did not come: the FEED was lost, or the holder is."""
        is_well = self.heard_of(post.place.slot) is not None
        if not is_well or post.idle:
            post.again += 1
        if (post.again >= 2 or post.idle) and self.context.options.census:
            self.search.start(post.place.slot, "a waiter was fed to the holder and asks again")
        if not is_well or ticket.node in post.unsure:
            self._feed(post, (ticket,))
        self.queue(ticket.node, ticket.request, self._waiting)

    def _next(self, count: int, holder: NodeId = NOBODY) -> tuple[Ticket, ...]:
        """First come, first served; the late ones when nobody else waits. Not `holder`, where a node may use several:
        it would wait for its own turn to end."""
        if not self.ready and not self.late:
            return ()
        but = holder if self.context.options.each > 1 else NOBODY
        out: list[Ticket] = []
        for register in (self.ready, self.late):
            while (able := min(count - len(out), len(register) - (but in register))) > 0:
                out += self.context.living(tuple(Ticket(*self.precedence.take(register, but)) for _ in range(able)))
        return tuple(out)

    def departed(self, node: NodeId) -> None:
        """Its turn will not come: an id that left does not return (events.N1)."""
        for register in (self.ready, self.late, self.precedence.due):
            register.pop(node, None)
        self.borrowing.departed(node)
        self.reminders.departed(node)
        for post in self.posts.values():
            post.lent.pop(node, None)

    # --- to the tokens -----------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Feed tokens whose queue is short. True if an idle one was: then its offer is answer enough."""
        if not self.ready and not self.late:
            return False
        slots, idle = self.context.options.slots, False
        low = 1 if self.context.options.by_home else LOW
        for slot in sorted(range(slots), key=self.borrowing.load) if slots > 1 else (0,):
            held = self.here.by_slot.get(slot)
            if held is not None and not held.moved:
                if not held.giving:
                    self._serve_here(held)
                continue  # if it is being given away, `moved` serves
            post = self.posts.get(slot)
            if post is None and slot in self.context.best:
                post = self.posts[slot] = TokenPost(self.context.best[slot])
                self._watch(post, GRACE)
            if post is None:
                self.search.start(slot, "somebody waits, and no token was ever seen here")
                continue
            if post.place.holder in self.context.gone:
                self.search.start(slot, "its holder left the group")
            if self.context.options.ageing and post.until and post.lent and not post.more:
                post.more = True
                self._feed(post, ())  # as long as they wait here, a more urgent one comes before them
            if post.more:
                self._look_after(slot, len(post.lent))
            comes_by = post.until != 0 and self.context.me in post.lent and not self.context.options.by_home
            asks_us = post.more and not (comes_by and len(post.lent) <= low)  # said for those who wait here for that
            if self.search.running(slot) or asks_us or len(post.lent) >= QUEUE:
                continue
            if comes_by and self._comes_soon():
                continue
            room = 1 if low == 1 else QUEUE if post.until == 0 else max(1, low + 1 - len(post.lent))
            tickets = self._next(room, post.place.holder if post.until else NOBODY)
            if not tickets:
                continue
            if post.until == 0:
                idle = True
                post.lent.clear()
            post.more = len(post.lent) + len(tickets) > low
            self.lend(post, tickets)
            if not self.ready and not self.late:
                break
        return idle

    def _comes_soon(self) -> bool:
        """A token with our own ticket in its queue: others may wait here. Where turns are long they are better off in
        its queue, where everybody sees them, and where they are not lost with this node."""
        short = max(SHORT, min(2 * self.trip, 3 * SHORT))
        if 0 < self.turn < short:
            return True
        if self.context.now >= self.called_at + short:
            return False
        self.context.timer("serve", self.called_at + short)
        return True

    def heard_back(self, answer: Heard) -> None:
        """From a watcher of a token that was here. Where turns are shorter than ways nothing else tells of these."""
        held, trail = self.here.by_slot.get(answer.slot), self.ahead.trail
        if (held is None or held.giving) and trail.left_at - trail.stay <= answer.sent <= self.context.now:
            self.trip = self.context.now - answer.sent

    def _look_after(self, slot: int, lent: int) -> None:
        """Its holder is to ask for more when its queue is short. It may not have been told: the token was faster."""
        if slot not in self.looks_after:
            self.looks_after[slot] = None
            self.context.timer(("more", slot), self.context.now + 2 * self.context.rto + (lent + LOW) * self.turn)

    def looked_after(self, slot: int) -> None:
        self.looks_after.pop(slot, None)
        post = self.posts.get(slot)
        if post is not None and post.more:
            post.more = False
            self.serve()

    def _serve_here(self, held: HeldToken) -> None:
        """The home is the holder."""
        room = (1 if self.context.options.by_home else QUEUE) - len(held.token.queue)
        tickets = self._next(room, NOBODY if held.using is None else self.context.me)
        self.feeder.fed(held, tickets, bool(self.ready or self.late))

    def lend(self, post: TokenPost, tickets: tuple[Ticket, ...]) -> None:
        if post.until == 0:
            post.idle = True
            self._watch(post, GRACE)
        post.lent.update(tickets)
        post.fed_now(tickets, self.context.now)
        if any(ticket.node == self.context.me for ticket in tickets):
            self.called_at = self.context.now
        self._feed(post, tickets)

    def _feed(self, post: TokenPost, tickets: tuple[Ticket, ...]) -> None:
        place, to = post.place, post.place.holder
        if self.context.options.by_home:
            self.context.post(to, Feed(place.slot, tickets, post.more, STEPS))
        else:  # either it is there, or will come there
            if self.turn >= SHORT and to in (fed := dict(tickets)):  # it went on to the next one
                to = next((node for node in post.lent if node not in fed and self.context.reaches(node)), to)
            to = self.ahead.last_of(place.hop) or to
            self.context.post(to, Feed(place.slot, tickets, post.more, STEPS, place.hop))

    def take_along(self, queue: int) -> tuple[tuple[Ticket, ...], bool]:
        """For a token that came here with so many in its queue: who waits in the register, and whether there are
        others."""
        room = (1 if self.context.options.by_home else QUEUE) - queue
        tickets = self._next(max(0, room))
        return tickets, self.somebody_waits

    def _relieve(self) -> None:
        """A free token was taken again by its holder just when somebody was sent to it: is another one free?"""
        for slot, post in self.posts.items():
            if post.until == 0 and slot not in self.here.by_slot:
                tickets = self.borrowing.for_idle(post)
                if not tickets:
                    return
                self.lend(post, tickets)

    # --- where the tokens are ----------------------------------------------------------------------------------------

    def heard_of(self, slot: int) -> Place | None:
        """Where this node hears from, as it should: whoever misses that token cannot reach its holder, that is all."""
        post = self.posts.get(slot)
        if post is None or not post.heard_at:
            return None
        if not self.context.is_member(post.place.holder) and post.place.holder not in self.context.heard:
            return None  # it left, and has not spoken since
        return post.place if (post.until or post.heard_at + PARKED_BEAT + SLACK) > self.context.now else None

    @property
    def lends(self) -> bool:
        """Whether it hears from a holder, which has its lease from this node then."""
        return any(post.heard_at for post in self.posts.values())

    def takes_back_leases(self) -> None:
        """This node is cut off. Who has a token parked needs no lease to use it again, and is told as well."""
        for post in self.posts.values():
            if post.heard_at:
                self._doubt(post.place)

    def _doubt(self, place: Place) -> None:
        """Its holder may be on the smaller side of a cut, as this node is."""
        self.context.post(place.holder, Sight(0, place.slot, place, Presence.DOUBTED, False))

    def misses(self, slot: int) -> bool:
        """Its holder should have spoken by now."""
        post = self.posts.get(slot)
        return post is not None and post.until != 0 and post.until <= self.context.now

    def is_lost(self, slot: int) -> bool:
        """A death that the membership tells of before the watch noticed: of the holder, or of the home before us."""
        post = self.posts.get(slot)
        if post is None:
            return bool(self.context.best)  # we never heard of this one, but there are tokens: who knew of it left
        return not self.context.is_member(post.place.holder) or bool(post.second and post.until)

    def silenced(self, node: NodeId) -> None:
        """A parked token is missed when somebody waits for it. Of several one may never be: it is expected to be heard
        of, as it should each `PARKED_BEAT`."""
        for post in self.posts.values():
            if post.place.holder == node and post.heard_at and not post.until and self.context.options.slots > 1:
                self._watch(post, max(0, post.heard_at + PARKED_BEAT + SLACK - self.context.now))

    def holder_is_deaf(self, slot: int, holder: NodeId) -> bool:
        """It has the token, and does not use it: who waits is not to wait for that. Whether anybody does."""
        post = self.posts.get(slot)
        if post is None or post.place.holder != holder:
            return False
        post.heard_at = 0
        return bool(post.until or post.lent)

    def _follow(self, post: TokenPost, place: Place, has: tuple[Ticket, ...]) -> None:
        lost = post.follow(place, has, all_of_them=self.context.home == self.context.me or not post.second)
        if lost:
            there = (place.holder, self.context.me, *post.lent, *self.context.gone)
            self.ready = {**{node: lost[node] for node in lost if node not in there}, **self.ready}

    def seen(self, sender: NodeId, seen: Seen) -> None:
        context, place = self.context, seen.place
        if not 0 <= place.slot < context.options.slots:
            return
        known = context.best.get(place.slot)
        if known is not None and rank(known) > rank(place) and not same_token(known, place):
            context.post(place.holder, Sight(0, place.slot, known, Presence.ABSENT, False))
            return
        if (
            context.learn(place, sender)
            and known is not None
            and known.holder != context.me
            and not same_token(known, place)
        ):
            context.post(known.holder, Sight(0, place.slot, place, Presence.ABSENT, False))
        post = self.posts.get(place.slot)
        if sender != place.holder:
            self._overheard(place, seen)
            return
        held = self.here.by_slot.get(place.slot)
        if held is not None and sender != context.me and self.search.copied(held, place):
            return
        if post is None:
            post = self.posts[place.slot] = TokenPost(place)
        elif same_token(post.place, place) and place.hop < post.place.hop:
            return  # overtaken
        if sender != context.me:
            self.search.seen(place)
        known_parked = not post.until and post.place == place
        hops = place.hop - post.place.hop
        self._time_turns(post, seen)
        if place.slot in self.looks_after:
            del self.looks_after[place.slot]
            context.cancel(("more", place.slot))
        coming: dict[NodeId, RequestId] = {}
        if not seen.lease and same_token(post.place, place):
            for node, request in post.fed().items():  # it is idle: they may still wait. Once, or they would be for ever
                if node not in (place.holder, context.me) and self.borrowing.once(Ticket(node, request)):
                    self.ready.setdefault(node, request)
        elif same_token(post.place, place):
            if context.now - post.fed_at > context.there_and_back:
                self.ready = {**post.never_arrived(place, seen.queue), **self.ready}
            else:
                coming = post.never_arrived(place, seen.queue)  # said before they arrived there
        self._follow(post, place, context.living(seen.queue))
        post.lent.update(coming)
        post.unsure = dict.fromkeys(coming)
        taken_again = post.idle and seen.lease and context.options.slots > 1
        post.again, post.idle, post.second = 0, False, False
        is_unsure = doubts_another(self.here, place.slot, post.heard_at)
        post.heard_at = 0 if sender == context.me else context.now
        if seen.lease:
            self._watch(post, seen.lease)
        else:
            post.until = 0
            context.cancel(("watch", place.slot))
        is_lent = seen.lease or hops > 0 or self.roll.cut_off
        lends = is_lent and sender != context.me  # to itself the other watcher lends
        if lends and (not self.roll.may_lend() or is_unsure):
            self._doubt(place)
            return
        if context.options.by_home:
            room = 1 - len(post.lent)
        else:  # where it is parked, those in its queue are not known there
            room = QUEUE - len(post.lent) if not (post.lent and seen.lease) else 0
        tickets = self._next(room, sender if seen.lease else NOBODY)
        tickets = tickets or (() if seen.lease else self.borrowing.for_idle(post))
        post.more = bool(self.ready or self.late or (tickets and (post.more or len(tickets) > LOW)))
        post.lent.update(tickets)
        if tickets and not seen.lease:
            self._watch(post, GRACE)
        post.fed_now(tickets, context.now)
        self.reminders.seen(place, is_idle=not seen.lease and not tickets)
        context.post(sender, Heard(place.slot, place.epoch, place.hop, tickets, post.more, seen.sent))
        if sender != context.me and context.options.watchers > 1:
            self._relay(post, seen, known_parked)
        if taken_again:
            self.borrowing.taken_again(post)
            self._relieve()

    def _time_turns(self, post: TokenPost, seen: Seen) -> None:
        """How long a turn takes, by two words of the same token: who has it says how many turns were between."""
        now, place, last = self.context.now, seen.place, post.turn
        hops = -1 if last is None or not same_token(last, place) else place.hop - last.hop
        if hops >= 0:
            took = (now - post.turn_at) // max(hops, 1)
            if hops:
                self.turn = took if not self.turn else self.turn + (took - self.turn) // 4
            elif took > self.turn:
                self.turn = took
        if not seen.lease:
            post.turn = None  # to be parked is no turn
        elif hops:
            post.turn, post.turn_at = place, now

    def _relay(self, post: TokenPost, seen: Seen, known_parked: bool) -> None:
        """The second watcher needs to know less: each other time, and of parking."""
        post.relayed += 1
        if post.relayed % SECOND_BEAT != 1 and (seen.lease or known_parked):
            return
        lease = SECOND_BEAT * seen.lease
        for node in self.context.homes(2 if lease else 3):
            if node not in (self.context.me, seen.place.holder):
                self.context.post(node, Seen(seen.place, lease, seen.queue))
                return

    def _overheard(self, place: Place, seen: Seen) -> None:
        """As a second watcher."""
        post = self.posts.get(place.slot)
        if post is None:
            post = self.posts[place.slot] = TokenPost(place)
        elif same_token(post.place, place) and place.hop < post.place.hop:
            return
        if post.place != place:
            post.heard_at, post.turn = 0, None
        self._follow(post, place, self.context.living(seen.queue))
        if seen.lease:
            self._watch(post, seen.lease)
        else:
            post.until = 0
            self.context.cancel(("watch", place.slot))
        post.more = False
        post.second = True
        self.reminders.seen(place, is_idle=not seen.lease and not self.somebody_waits)
        self.serve()

    def moved(self, place: Place, token: Token, stand_in: NodeId) -> None:
        """We passed it on. If we are one of its watchers, nobody else has to tell us."""
        post = self.posts.get(place.slot)
        home = post is not None and self.context.home == self.context.me
        if self.context.me in token.escort.watch or home or self.ready or self.late:
            if post is None:
                post = self.posts[place.slot] = TokenPost(place)
            self._follow(post, place, token.queue)
            post.heard_at = 0
            post.more = token.escort.more
            first = self.context.me == token.escort.watch[0] if token.escort.watch else True
            self._watch(post, GRACE if first else GRACE + SECOND_EXTRA)
            if first and stand_in not in (NOBODY, place.holder):
                # Who watched over us while we were the holder is the second one again, and waits longer.
                self.context.post(stand_in, Seen(place, GRACE + SECOND_EXTRA, token.queue))
            self.serve()

    def _watch(self, post: TokenPost, span: int) -> None:
        post.until = self.context.now + span
        if self.context.options.watch:
            self.context.timer(("watch", post.place.slot), post.until)

    def watch_fired(self, slot: int) -> None:
        post = self.posts.get(slot)
        if post is not None and post.until and self.here.by_slot.get(slot) is None:
            self.search.start(slot, "its watcher hears nothing of it")

    def found(self, place: Place, presence: Presence) -> None:
        """An inquiry ended well."""
        post = self.posts.get(place.slot)
        if post is None:
            if not (self.ready or self.late):
                return
            post = self.posts[place.slot] = TokenPost(place)
        if not same_token(post.place, place):
            self._follow(post, place, ())
        post.place = place
        post.heard_at = 0
        post.again = 0
        if presence is Presence.PARKED and not post.lent:
            post.until = 0
            self.context.cancel(("watch", place.slot))
        else:
            self._watch(post, GRACE)
            fed = tuple(Ticket(node, request) for node, request in post.fed().items())
            if presence is Presence.PARKED:
                if fed:
                    self._feed(post, fed[:QUEUE])
                post.lent.clear()  # they were in its queue, and had their turn; and who was fed is fed again but once
        post.more = False
        self.serve()

    def queue_for(self, slot: int) -> tuple[tuple[Ticket, ...], bool]:
        """For a token made here: those that the lost one had, then those in the register."""
        post = self.posts.get(slot)
        lent = dict(post.lent) if post is not None else {}
        if slot != 0 and post is None:
            return ((), False)
        for node, request in self._next(max(0, QUEUE - len(lent))):
            lent[node] = request
        return tuple(Ticket(*item) for item in lent.items())[:QUEUE], bool(self.ready or self.late)

    def made(self, token: Token) -> None:
        post = self.posts.get(token.slot)
        if post is not None:
            post.place = place_of(token, self.context.me)
            post.until = 0
            self.context.cancel(("watch", token.slot))

    # --- succession --------------------------------------------------------------------------------------------------

    def hand_over(self, to: NodeId) -> None:
        """Another node is the home now: it gets the register, and where the tokens are."""
        if to == self.context.me:
            return
        for node, request in (*self.ready.items(), *self.late.items()) if self.context.options.ageing else ():
            late, credit = node not in self.ready, self.precedence.lead((node,), self.context.now)
            self.context.ask(to, Want(node, request, late, 0), credit)  # each with its due time, as a ticket has none
        tickets = self._next(REGISTER)[: 0 if self.context.options.ageing else None]
        places: list[Place | None] = [post.place for post in self.posts.values()] or [None]
        for at in range(max(len(places), -(-len(tickets) // QUEUE))):
            self.context.post(to, Bequest(places[min(at, len(places) - 1)], tickets[at * QUEUE : (at + 1) * QUEUE]))

    def bequeathed(self, sender: NodeId, bequest: Bequest) -> None:
        """From the home before us, in order; or, without a place, given back by a holder: those had come to the head of
        the register, and go there again. At its end they would wait for another round."""
        place, news = bequest.place, False
        if place is not None and sender == self.context.home:
            self.context.leaves(sender)  # it would be given all of this back before we are told so
        tickets = tuple(ticket for ticket in self.context.living(bequest.tickets) if not self._has_asked_since(ticket))
        if place is None:
            for post in self.posts.values():
                post.more = False  # the holder that was told so has not heard it
                for node, request in bequest.tickets:
                    if post.lent.get(node) == request:
                        del post.lent[node]  # it is in no token's queue
            self.ready = {**dict(tickets), **self.ready}
        elif self.context.learn(place):
            news = True
            post = self.posts.setdefault(place.slot, TokenPost(place))
            post.place = place
            self._watch(post, GRACE)
        for node, request in tickets:
            self.ready.setdefault(node, request)
        if not news and self.context.now < self.returned_at + LAZY:
            self.context.timer(
                "serve", self.returned_at + LAZY
            )  # nobody knows better yet: not to and fro at full speed
        else:
            self.serve_returned()

    def _has_asked_since(self, ticket: Ticket) -> bool:
        """It is served: it would go round after tokens that move faster, and be refused where it meets one."""
        return any(post.lent.get(ticket.node, 0) > ticket.request for post in self.posts.values())

    def serve_returned(self) -> None:
        self.returned_at = self.context.now
        self.serve()
