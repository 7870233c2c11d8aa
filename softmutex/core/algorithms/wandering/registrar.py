"""The home's side: who waits, where each token is, and when to look for one that fell silent.

Any node can be a home: the first on the ring from the resource's spot, found by everybody alone (seed 003's "cheap"
messages, with a better address than a random one). The register is soft state: a home that dies takes it along, the
waiters ask again, and no safety is lost, since only a token grants.

    WANT ----> register --FEED----> holder          while the token's queue is short: one message, at once
                   '----HEARD----> holder           when it is long: by the batch, in answers to SEEN (`more`)

A `Post` for each slot:  unknown --SEEN--> known, watched until --silence--> inquiry --> found | replaced
                                     '---> known, parked (no time limit)

L1  While somebody is registered, some post is watched, or an inquiry runs, or a parked holder was just fed.
A4  The register is bounded by `REGISTER`; who does not fit is told nothing, and asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.desk import Desk, place_of, rank, same_token
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
from softmutex.core.algorithms.wandering.post import Post
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
from softmutex.core.events import NOBODY, Duration, Instant, NodeId, RequestId, Ticket, Token, escorted

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering
    from softmutex.core.algorithms.wandering.seat import Seat

REGISTER: Final = 1 << 18
LOW: Final = 4  # tickets that are fed one by one; more are given by the batch
STEPS: Final = 4


class Registrar:
    __slots__ = ("late", "looks_after", "machine", "posts", "precedence", "ready", "returned_at", "turn")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.ready: dict[NodeId, RequestId] = {}
        self.late: dict[NodeId, RequestId] = {}  # had their turn less than the least interval ago
        self.precedence = Precedence(machine.desk.options)
        self.posts: dict[int, Post] = {}
        self.looks_after: set[int] = set()  # slots whose holders should ask for more
        self.turn: Duration = 0  # how long one takes, as far as can be seen from here
        self.returned_at: Instant = 0  # tickets that did not reach a holder were last fed again

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    # --- who waits ---------------------------------------------------------------------------------------------------

    def wanted(self, want: Want, credit: Duration = 0) -> None:
        desk = self.desk
        if (want.node == desk.me and not self.machine.waiter.waiting) or want.node in desk.gone:
            return
        for seat in sorted(self.machine.seats.by_slot.values(), key=lambda seat: not seat.parked):
            room = not seat.token.escort.more and (seat.parked or not desk.options.by_home)
            if not seat.giving and room and not seat.doubt and desk.options.hints:
                ticket = Ticket(want.node, want.request)
                if not self.machine.seats.add(seat, (ticket,)):
                    if not seat.parked:
                        if not seat.unanswered:
                            desk.timer(("queued", seat.token.slot), desk.now + LAZY)
                        seat.unanswered.append(ticket)
                    self.machine.seats.fed(seat, (), False)
                    return
        ahead, steps = self.machine.ahead.waits_there(want.node, new=True), min(want.steps, STEPS)
        if self.machine.ahead.keep((Ticket(want.node, want.request),), False, want.ahead):
            desk.timer("kept", desk.now + LAZY)
            return
        if ahead != NOBODY and steps > 0:
            desk.post(ahead, want._replace(steps=steps - 1, ahead=self.machine.ahead.trail.hop))
            return
        after = self.machine.seats.passed_to()
        if after not in (NOBODY, want.node) and steps > 0:
            desk.post(after, want._replace(steps=steps - 1, ahead=self.machine.ahead.hop_to(after)))
            return
        want = want._replace(ahead=0)
        home = self.machine.heir if self.machine.seats.leaving else desk.home
        if home == desk.me or steps == 0:
            self._register(want, credit)
        else:
            desk.ask(home, want._replace(steps=steps - 1), credit)

    def _register(self, want: Want, credit: Duration) -> None:
        node, request = want.node, want.request
        for post in self.posts.values():
            if post.lent.get(node) == request:
                self._asked_again(post, Ticket(node, request))
                return
            if post.lent.get(node, request) < request:
                del post.lent[node]  # that one had its turn
        register = self.late if want.late else self.ready
        if node in self.ready or node in self.late:
            if node in self.late and not want.late:
                del self.late[node]
            elif node in self.ready:
                register = self.ready
        elif len(self.ready) + len(self.late) >= REGISTER:
            return
        register[node] = request
        self.precedence.asks(node, self.desk.now - credit)
        if not self.serve():
            self.desk.post(node, Queued(request, self.patience))

    @property
    def patience(self) -> int:
        waiting = len(self.ready) + len(self.late) + sum(len(post.lent) for post in self.posts.values())
        return max(PATIENCE, max(PATIENCE_EACH, self.turn * 5 // 4) * waiting)

    def _asked_again(self, post: Post, ticket: Ticket) -> None:
        """The holder was told and did not come: the FEED was lost, or the holder is."""
        is_well = self.heard_of(post.place.slot) is not None
        if not is_well or post.idle:
            post.again += 1
        if (post.again >= 2 or post.idle) and self.desk.options.census:
            self.machine.inquirer.start(post.place.slot, "a waiter was fed to the holder and asks again")
        if not is_well or ticket.node in post.unsure:
            self._feed(post, (ticket,))
        self.desk.post(ticket.node, Queued(ticket.request, self.patience))

    def _next(self, count: int, holder: NodeId = NOBODY) -> tuple[Ticket, ...]:
        """First come, first served; the late ones when nobody else waits. Not `holder`, where a node may use several:
        it would wait for its own turn to end."""
        but = holder if self.desk.options.each > 1 else NOBODY
        out: list[Ticket] = []
        for register in (self.ready, self.late):
            able = min(count - len(out), len(register) - (but in register))
            out += [Ticket(*self.precedence.take(register, but)) for _ in range(able)]
        return tuple(out)

    def departed(self, node: NodeId) -> None:
        """Its turn will not come: an id that left does not return (events.N1)."""
        for register in (self.ready, self.late, self.machine.borrowing.moved, self.precedence.due):
            register.pop(node, None)
        for post in self.posts.values():
            post.lent.pop(node, None)

    # --- to the tokens -----------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Feed tokens whose queue is short. True if an idle one was: then its offer is answer enough."""
        if not self.ready and not self.late:
            return False
        slots, idle = self.desk.options.slots, False
        low = 1 if self.desk.options.by_home else LOW
        for slot in sorted(range(slots), key=self.machine.borrowing.load) if slots > 1 else (0,):
            seat = self.machine.seats.by_slot.get(slot)
            if seat is not None:
                if not seat.giving:
                    self._serve_here(seat)
                continue  # if it is being given away, `moved` serves
            post = self.posts.get(slot)
            if post is None and slot in self.desk.best:
                post = self.posts[slot] = Post(self.desk.best[slot])
                self._watch(post, GRACE)
            if post is None:
                self.machine.inquirer.start(slot, "somebody waits, and no token was ever seen here")
                continue
            if post.place.holder in self.desk.gone:
                self.machine.inquirer.start(slot, "its holder left the group")
            if self.desk.options.ageing and post.until and post.lent and not post.more:
                post.more = True
                self._feed(post, ())  # as long as they wait here, a more urgent one comes before them
            if post.more:
                self._look_after(slot, len(post.lent))
            if self.machine.inquirer.running(slot) or post.more:
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

    def _look_after(self, slot: int, lent: int) -> None:
        """Its holder is to ask for more when its queue is short. It may not have been told: the token was faster."""
        if slot not in self.looks_after:
            self.looks_after.add(slot)
            self.desk.timer(("more", slot), self.desk.now + 2 * self.desk.rto + (lent + LOW) * self.turn)

    def looked_after(self, slot: int) -> None:
        self.looks_after.discard(slot)
        post = self.posts.get(slot)
        if post is not None and post.more:
            post.more = False
            self.serve()

    def _serve_here(self, seat: Seat) -> None:
        """The home is the holder."""
        room = (1 if self.desk.options.by_home else QUEUE) - len(seat.token.queue)
        tickets = self._next(room, NOBODY if seat.using is None else self.desk.me)
        self.machine.seats.fed(seat, tickets, bool(self.ready or self.late))

    def lend(self, post: Post, tickets: tuple[Ticket, ...]) -> None:
        if post.until == 0:
            post.idle = True
            self._watch(post, GRACE)
        post.lent.update(tickets)
        post.unsure.update(dict.fromkeys(ticket.node for ticket in tickets))
        self._feed(post, tickets)

    def _feed(self, post: Post, tickets: tuple[Ticket, ...]) -> None:
        self.desk.post(post.place.holder, Feed(post.place.slot, tickets, post.more, STEPS))

    def fed(self, sender: NodeId, feed: Feed) -> None:
        """To the holder, or after it."""
        seat = self.machine.seats.by_slot.get(feed.slot)
        if seat is not None and not seat.giving:
            self.machine.watch.answered(seat, sender)
            self.machine.seats.fed(seat, feed.tickets, feed.more)
        elif seat is None and self.machine.ahead.keep(feed.tickets, feed.more, feed.ahead):
            pass
        elif seat is not None or feed.steps > 0:
            self.forward(feed.slot, feed.tickets, feed.more, max(0, min(feed.steps, STEPS) - 1))
        else:
            self.give_back(feed.tickets)  # the token is faster than they are

    def forward(self, slot: int, tickets: tuple[Ticket, ...], more: bool, steps: int = STEPS) -> None:
        desk = self.desk
        seat = self.machine.seats.by_slot.get(slot)
        best = desk.best.get(slot)
        if seat is not None and seat.giving:
            room = QUEUE - len(seat.late)
            seat.late += tickets[:room]  # they follow it when it has arrived
            seat.late_more = seat.late_more or more
            self.give_back(tickets[room:])
        elif (ahead := self.machine.ahead.waits_there(desk.me, new=False)) != NOBODY:
            desk.post(ahead, Feed(slot, tickets, more, steps, self.machine.ahead.trail.hop))
        elif best is not None and best.holder in desk.gone:
            desk.post(desk.home, Bequest(best, tickets))  # the trail ends here: the home looks for it
        elif best is not None and best.holder != desk.me:
            desk.post(best.holder, Feed(slot, tickets, more, steps))

    def arrives(self, seat: Seat) -> None:
        """A token is here: it takes along who waits in the register."""
        room = (1 if self.desk.options.by_home else QUEUE) - len(seat.token.queue)
        self.give_back(self.machine.seats.add(seat, self._next(max(0, room))))
        if self.ready or self.late:
            seat.token = escorted(seat.token, more=True)

    def give_back(self, tickets: tuple[Ticket, ...]) -> None:
        """They did not fit into the token's queue, or did not reach it."""
        if tickets:
            self.desk.post(self.desk.home, Bequest(None, tickets))

    def feed_elsewhere(self, token: Token, better: Place) -> None:
        """A discarded token's queue goes to the one that won."""
        if token.queue:
            self.desk.post(better.holder, Feed(token.slot, token.queue, token.escort.more, STEPS))

    # --- where the tokens are ----------------------------------------------------------------------------------------

    def heard_of(self, slot: int) -> Place | None:
        """Where this node hears from, as it should: whoever misses that token cannot reach its holder, that is all."""
        post = self.posts.get(slot)
        if post is None or not post.heard_at or not self.desk.is_member(post.place.holder):
            return None
        return post.place if (post.until or post.heard_at + PARKED_BEAT + SLACK) > self.desk.now else None

    def _follow(self, post: Post, place: Place, has: tuple[Ticket, ...]) -> None:
        lost = post.follow(place, has, all_of_them=self.desk.home == self.desk.me)
        there = (place.holder, self.desk.me, *post.lent, *self.desk.gone)
        if lost:
            self.ready = {**{node: lost[node] for node in lost if node not in there}, **self.ready}

    def seen(self, sender: NodeId, seen: Seen) -> None:
        desk, place = self.desk, seen.place
        if not 0 <= place.slot < desk.options.slots:
            return
        known = desk.best.get(place.slot)
        if known is not None and rank(known) > rank(place) and not same_token(known, place):
            desk.post(place.holder, Sight(0, place.slot, known, Presence.ABSENT, False))
            return
        if desk.learn(place, sender) and known is not None and known.holder != desk.me and not same_token(known, place):
            desk.post(known.holder, Sight(0, place.slot, place, Presence.ABSENT, False))
        post = self.posts.get(place.slot)
        if sender != place.holder:
            self._overheard(place, seen)
            return
        if post is None:
            post = self.posts[place.slot] = Post(place)
        elif same_token(post.place, place) and place.hop < post.place.hop:
            return  # overtaken
        if sender != desk.me:
            self.machine.inquirer.seen(place)
        known_parked = not post.until and post.place == place
        hops = place.hop - post.place.hop
        if post.turned_at and same_token(post.place, place):
            took = (desk.now - post.turned_at) // max(hops, 1)
            if hops:
                self.turn = took if not self.turn else self.turn + (took - self.turn) // 4
            elif took > self.turn:
                self.turn = took
        if not seen.lease:
            post.turned_at = 0  # to be parked is no turn
        elif hops or not post.turned_at:
            post.turned_at = desk.now
        if place.slot in self.looks_after:
            self.looks_after.discard(place.slot)
            desk.cancel(("more", place.slot))
        if not seen.lease and same_token(post.place, place):
            for node, request in post.fed().items():  # it is idle: they may still wait. Once, or they would be for ever
                if node not in (place.holder, desk.me) and self.machine.borrowing.once(Ticket(node, request)):
                    self.ready.setdefault(node, request)
        self._follow(post, place, desk.living(seen.queue))
        post.unsure.clear()
        taken_again = post.idle and seen.lease and desk.options.slots > 1
        post.again, post.idle, post.second = 0, False, False
        post.heard_at = 0 if sender == desk.me else desk.now
        if seen.lease:
            self._watch(post, seen.lease)
        else:
            post.until = 0
            desk.cancel(("watch", place.slot))
        if (seen.lease or hops > 0) and not self.machine.roll.may_lend():
            desk.post(place.holder, Sight(0, place.slot, place, Presence.DOUBTED, False))
            return
        room = (1 if desk.options.by_home else QUEUE) - len(post.lent)
        tickets = self._next(room, sender if seen.lease else NOBODY)
        tickets = tickets or (() if seen.lease else self.machine.borrowing.for_idle(post))
        post.more = bool(self.ready or self.late or (tickets and (post.more or len(tickets) > LOW)))
        post.lent.update(tickets)
        if tickets and not seen.lease:
            self._watch(post, GRACE)
        desk.post(sender, Heard(place.slot, place.epoch, place.hop, tickets, post.more, seen.sent))
        if sender != desk.me and desk.options.watchers > 1:
            self._relay(post, seen, known_parked)
        if taken_again:
            self.machine.borrowing.relieve()

    def _relay(self, post: Post, seen: Seen, known_parked: bool) -> None:
        """The second watcher needs to know less: each other time, and of parking."""
        post.relayed += 1
        if post.relayed % SECOND_BEAT != 1 and (seen.lease or known_parked):
            return
        lease = SECOND_BEAT * seen.lease
        for node in self.desk.homes(2 if lease else 3):
            if node not in (self.desk.me, seen.place.holder):
                self.desk.post(node, Seen(seen.place, lease, seen.queue))
                return

    def _overheard(self, place: Place, seen: Seen) -> None:
        """As a second watcher."""
        post = self.posts.get(place.slot)
        if post is None:
            post = self.posts[place.slot] = Post(place)
        elif same_token(post.place, place) and place.hop < post.place.hop:
            return
        if post.place != place:
            post.heard_at = post.turned_at = 0
        self._follow(post, place, self.desk.living(seen.queue))
        if seen.lease:
            self._watch(post, seen.lease)
        else:
            post.until = 0
            self.desk.cancel(("watch", place.slot))
        post.more = False
        post.second = True
        self.serve()

    def moved(self, place: Place, token: Token, stand_in: NodeId) -> None:
        """We passed it on. If we are one of its watchers, nobody else has to tell us."""
        post = self.posts.get(place.slot)
        home = post is not None and self.desk.home == self.desk.me
        if self.desk.me in token.escort.watch or home or self.ready or self.late:
            if post is None:
                post = self.posts[place.slot] = Post(place)
            self._follow(post, place, token.queue)
            post.heard_at = 0
            post.more = token.escort.more
            first = self.desk.me == token.escort.watch[0] if token.escort.watch else True
            self._watch(post, GRACE if first else GRACE + SECOND_EXTRA)
            if first and stand_in not in (NOBODY, place.holder):
                # Who watched over us while we were the holder is the second one again, and waits longer.
                self.desk.post(stand_in, Seen(place, GRACE + SECOND_EXTRA, token.queue))
            self.serve()

    def _watch(self, post: Post, span: int) -> None:
        post.until = self.desk.now + span
        if self.desk.options.watch:
            self.desk.timer(("watch", post.place.slot), post.until)

    def watch_fired(self, slot: int) -> None:
        post = self.posts.get(slot)
        if post is not None and post.until and self.machine.seats.by_slot.get(slot) is None:
            self.machine.inquirer.start(slot, "its watcher hears nothing of it")

    def found(self, place: Place, presence: Presence) -> None:
        """An inquiry ended well."""
        post = self.posts.get(place.slot)
        if post is None:
            if not (self.ready or self.late):
                return
            post = self.posts[place.slot] = Post(place)
        if not same_token(post.place, place):
            self._follow(post, place, ())
        post.place = place
        post.heard_at = 0
        post.again = 0
        if presence is Presence.PARKED and not post.lent:
            post.until = 0
            self.desk.cancel(("watch", place.slot))
        else:
            self._watch(post, GRACE)
            lent = tuple(Ticket(node, request) for node, request in post.lent.items())
            if lent and presence is Presence.PARKED:
                self._feed(post, lent[:QUEUE])
                post.lent.clear()  # once: who is not there any more would be fed for ever
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
            post.place = place_of(token, self.desk.me)
            post.until = 0
            self.desk.cancel(("watch", token.slot))

    # --- succession --------------------------------------------------------------------------------------------------

    def hand_over(self, to: NodeId) -> None:
        """Another node is the home now: it gets the register, and where the tokens are."""
        if to == self.desk.me:
            return
        for node, request in (*self.ready.items(), *self.late.items()) if self.desk.options.ageing else ():
            late, credit = node not in self.ready, self.precedence.lead((node,), self.desk.now)
            self.desk.ask(to, Want(node, request, late, 0), credit)  # each with its due time, as a ticket has none
        tickets = self._next(REGISTER)[: 0 if self.desk.options.ageing else None]
        places: list[Place | None] = [post.place for post in self.posts.values()] or [None]
        for at in range(max(len(places), -(-len(tickets) // QUEUE))):
            self.desk.post(to, Bequest(places[min(at, len(places) - 1)], tickets[at * QUEUE : (at + 1) * QUEUE]))

    def bequeathed(self, bequest: Bequest) -> None:
        """From the home before us, in order; or, without a place, given back by a holder: those had come to the head of
        the register, and go there again. At its end they would wait for another round."""
        place, news = bequest.place, False
        if place is None:
            for post in self.posts.values():
                post.more = False  # the holder that was told so has not heard it
            self.ready = {**dict(bequest.tickets), **self.ready}
        elif self.desk.learn(place):
            news = True
            post = self.posts.setdefault(place.slot, Post(place))
            post.place = place
            self._watch(post, GRACE)
        for node, request in self.desk.living(bequest.tickets):
            self.ready.setdefault(node, request)
        if not news and self.desk.now < self.returned_at + LAZY:
            self.desk.timer("serve", self.returned_at + LAZY)  # nobody knows better yet: not to and fro at full speed
        else:
            self.serve_returned()

    def serve_returned(self) -> None:
        self.returned_at = self.desk.now
        self.serve()
