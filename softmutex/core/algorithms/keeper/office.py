"""What a keeper keeps: who waits, where each token is, and until when it is lent. Only who keeps has one.

    CLAIM --> register --FED--> token's queue            BEAT --roll call--> LEASE (lent for as long as it asked)
                  ^--- found missing in the next BEAT ---'   '--- replaced: `better`
    no BEAT: the holder is suspected; its lease is over, or it is dead: a search (`installer`), and a token is made

O1  A lease is lent only by a keeper that was confirmed by a majority, and reached one just now (`wait`; half of the
    group and the keeper will do): it ends LEASE_MOST + ROLL_FRESH after a roll call at the latest. Whoever slept, or
    reached too few, is confirmed anew by a round of its own term.
O2  A token is made only by the keeper, in a round in which everybody that counts promised to take none of that slot
    and none is passing; or a majority did, and whatever was lent is over.
O3  A ticket leaves the register only into a token; it comes back when a BEAT shows that it is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from softmutex.core.algorithms.keeper.desk import Desk, KeeperOptions, rank
from softmutex.core.algorithms.keeper.holder import LEASE_MOST, LOW, QUEUE
from softmutex.core.algorithms.keeper.messages import Beat, Claim, Entered, Fed, Keeps, Lease, Legacy, Name
from softmutex.core.events import (
    NOBODY,
    SECOND,
    CallRoll,
    Duration,
    FactKind,
    Instant,
    Level,
    NodeId,
    RequestId,
    Ticket,
    from_seconds,
)

STEPS: Final = 40
FEED: Final = (
    8  # tickets at a time: who comes late to the register, and waited for longer, is behind no more than these
)
PATIENCE: Final = 6 * SECOND  # of a waiter whose claim is in the register, or
PATIENCE_EACH: Final = 6 * SECOND  # so long for each of those that wait: together they ask once in so long
PATIENCE_LEAST: Final = 2 * SECOND  # where turns are so short that all are served before they ask again
ROUNDS: Final = 4  # so many times as long as those turns take that wait before it
ROLL_FRESH: Final = SECOND // 2  # a roll call allows the longest lease for so long, a shorter one so much longer,
ROLL_OLD: Final = 5 * SECOND // 2  # and none after that
ON_ITS_WAY: Final = SECOND  # a ticket that a beat does not show may be
LATE: Final = 3 * SECOND // 10  # of a beat


class Waits(NamedTuple):
    request: RequestId
    since: Instant
    claimed_at: Instant
    fed_at: Instant = 0  # when it was put into a token's queue
    fed_hop: int = 0  # of the token, as it was known then


class Post:
    """One slot: the token that the keeper believes in."""

    __slots__ = ("due", "fed", "holder", "lent_until", "missing", "more", "name", "parked", "sent", "turn", "turned_at")

    def __init__(self, name: Name, holder: NodeId, lent_until: Instant, due: Instant) -> None:
        self.name = name
        self.holder = holder
        self.lent_until = lent_until
        self.due = due  # the next beat
        self.parked = False
        self.missing = False  # it is searched for
        self.sent: Instant = 0  # the last beat, by its sender's clock
        self.more = False  # as the holder was told last
        self.turn: Duration = 10 * SECOND  # how long one takes, hand-over included, at the most
        self.turned_at: Instant = 0  # the first beat of this hop
        self.fed: dict[NodeId, Waits] = {}  # tickets in its queue

    def count_turns(self, hop: int, now: Instant) -> None:
        """Before `name` is that of the beat."""
        if hop > self.name.hop:
            if self.turned_at:
                self.turn = (self.turn + (now - self.turned_at) // (hop - self.name.hop)) // 2
            self.turned_at = now
        elif self.turned_at and not self.parked:
            self.turn = max(self.turn, now - self.turned_at)


class Office:
    __slots__ = (
        "_beats",
        "_desk",
        "_options",
        "_rolled_at",
        "_search",
        "confirmed",
        "isolated",
        "posts",
        "register",
        "unlent_from",
    )

    def __init__(self, desk: Desk, options: KeeperOptions, search: Callable[[], None]) -> None:
        self._desk = desk
        self._options = options
        self._search = search
        self.posts: dict[int, Post] = {}
        self.register: dict[NodeId, Waits] = {}  # who waits
        self._beats: dict[int, tuple[NodeId, Beat]] = {}  # that wait for a roll call, by slot
        self._rolled_at: Instant = -SECOND
        self.confirmed = False  # O1
        self.isolated = False
        self.unlent_from: Instant = 0  # when the leases of earlier keepers are over

    # --- the role ----------------------------------------------------------------------------------------------------

    def begin(self, unlent_from: Instant) -> None:
        self.confirmed = True
        self.unlent_from = unlent_from

    def end(self) -> None:
        """Somebody else keeps: who waits here hears of it, and asks there."""
        for node in [*self.register, *(node for post in self.posts.values() for node in post.fed)]:
            self._desk.tell_keeper(node)
        for post in self.posts.values():
            self._desk.tell_keeper(post.holder)
            self._desk.cancel(("watch", post.name.slot))
        self.posts.clear()
        self.register.clear()

    def doubt(self) -> None:
        """It slept, or was cut off: others may have installed a keeper since."""
        self.confirmed = False
        self._rolled_at = -SECOND
        self._search()

    def missing(self) -> list[int]:
        return [slot for slot in range(self._desk.slots) if slot not in self.posts or self.posts[slot].missing]

    def lent_until(self, slot: int) -> Instant:
        post = self.posts.get(slot)
        return max(self.unlent_from, 0 if post is None else post.lent_until)

    # --- where the tokens are ----------------------------------------------------------------------------------------

    def found(self, name: Name, holder: NodeId) -> None:
        """In a report, or made here."""
        if self._desk.better(name) is not None:
            return
        now = self._desk.now
        post = self.posts.get(name.slot)
        if post is None or rank(post.name) != rank(name):
            lent = self.lent_until(name.slot)
            post = self.posts[name.slot] = Post(name, holder, lent, now)
        if post.holder != holder:
            post.sent = 0  # by the clock of another node
        post.name, post.holder, post.missing = name, holder, False
        self._expect(post, now + 2 * SECOND)

    def missed(self, name: Name) -> None:
        """Who passed it on has given it up: where is it?"""
        post = self.posts.get(name.slot)
        if post is not None and rank(post.name) == rank(name) and name.hop > post.name.hop:
            self._miss(post)

    def _expect(self, post: Post, at: Instant) -> None:
        post.due = at
        self._desk.timer(("watch", post.name.slot), at + max(LATE, self._desk.patience.wait()))

    def fired(self, slot: int) -> None:
        """A beat is overdue."""
        desk = self._desk
        post = self.posts.get(slot)
        if post is None or not desk.keeps or post.missing:
            return
        if desk.now < post.due:  # tickets that did not reach an idle token
            back = {node: ticket for node, ticket in post.fed.items() if desk.now - ticket.fed_at >= ON_ITS_WAY}
            post.fed = {node: ticket for node, ticket in post.fed.items() if node not in back}
            self.register = {node: ticket for node, ticket in back.items() if node not in self.register} | self.register
            self._expect(post, post.due)
            self.feed(post)
        elif desk.now < post.lent_until:
            desk.suspect(post.holder)
            desk.timer(("watch", slot), post.lent_until)
        else:
            self._miss(post)

    def _miss(self, post: Post) -> None:
        if not post.missing:
            post.missing = True
            self._take_back(post)
            self._search()

    def forget_silent(self, since: Instant, answered: Collection[NodeId]) -> None:
        """A token went missing, and who did not answer since may have been taken with it: let them claim again."""
        here = {*answered, self._desk.me}
        for node in [n for n, t in self.register.items() if t.claimed_at < since and n not in here]:
            ticket = self.register.pop(node)
            self._desk.post(node, Entered(ticket.request, self._desk.term, 0))

    def _take_back(self, post: Post) -> None:
        """What was fed to a token that is missing, first of all."""
        before = self.register
        self.register = {node: ticket for node, ticket in post.fed.items() if node not in before} | before
        post.fed = {}

    # --- beats -------------------------------------------------------------------------------------------------------

    def beat(self, sender: NodeId, beat: Beat) -> None:
        desk = self._desk
        post = self.posts.get(beat.token.slot)
        better = desk.better(beat.token)
        if better is not None:
            desk.post(sender, Lease(desk.term, beat.token, False, False, better, beat.sent))
            return
        if not 0 <= beat.token.slot < desk.slots:
            return
        desk.learn(beat.token)
        if post is None or post.missing or rank(post.name) != rank(beat.token):
            self.found(beat.token, sender)
            post = self.posts[beat.token.slot]
        if beat.token.hop < post.name.hop or (post.holder == sender and beat.sent < post.sent):
            return  # of an earlier holder, or late
        post.sent = beat.sent
        post.count_turns(beat.token.hop, desk.now)
        post.name, post.holder, post.parked = beat.token, sender, beat.parked
        self._reconcile(post, beat)
        if beat.parked:
            self._borrow(post)
            self._expect(post, desk.now + from_seconds(self._options.idle_pace))
            self._answer(sender, beat, False)
            if post.fed:
                desk.timer(("watch", post.name.slot), desk.now + ON_ITS_WAY)
        elif desk.when_isolated == "proceed" or self._may_lend(min(beat.lease, LEASE_MOST)):
            self._answer(sender, beat, True)
        else:
            self._expect(post, max(post.due, desk.now + 2 * SECOND))
            self._beats[beat.token.slot] = (sender, beat)
            if self.confirmed:
                desk.out.append(CallRoll(False))
            else:
                self._search()
        self.feed(post)

    def _may_lend(self, lease: Duration) -> bool:
        """O1. What is lent on one roll call is over at the same time, however late it was lent."""
        age = self._desk.now - self._rolled_at
        return self.confirmed and age <= min(ROLL_OLD, LEASE_MOST + ROLL_FRESH - lease)

    def _answer(self, sender: NodeId, beat: Beat, lends: bool) -> None:
        desk = self._desk
        post = self.posts.get(beat.token.slot)
        if post is None or post.holder != sender or rank(post.name) != rank(beat.token):
            return
        if lends:
            lease = min(beat.lease, LEASE_MOST)
            post.lent_until = max(post.lent_until, desk.now + lease)
            self._expect(post, desk.now + max(lease // 2, lease - from_seconds(self._options.slack)))
        post.more = bool(self.register)
        desk.post(sender, Lease(desk.term, beat.token, lends, post.more, None, beat.sent))

    def reaches(self, level: Level) -> None:
        """A roll call has ended."""
        desk = self._desk
        if not desk.keeps:
            self._beats.clear()
        elif level is Level.LESS:  # or the network is slower than a roll call waits: a round of its own term tells
            self.confirmed = False
            self._search()
        elif self.confirmed:
            self.set_isolated(False)
            self._rolled_at = desk.now
            self.answer_all()

    def confirm(self) -> None:
        """A majority has promised to follow this keeper in its term."""
        self.confirmed = True
        self._rolled_at = self._desk.now
        self.set_isolated(False)
        self.answer_all()

    def answer_all(self) -> None:
        beats, self._beats = self._beats, {}
        for sender, beat in beats.values():
            self._answer(sender, beat, True)

    def set_isolated(self, isolated: bool) -> None:
        if isolated != self.isolated:
            self.isolated = isolated
            self._desk.note(FactKind.ISOLATED if isolated else FactKind.REJOINED)

    # --- who waits ---------------------------------------------------------------------------------------------------

    def claimed(self, claim: Claim) -> None:
        desk = self._desk
        node = claim.node
        old = self.register.get(node)
        fed = next((post.fed[node] for post in self.posts.values() if node in post.fed), None)
        known = fed is not None and fed.request == claim.request
        if (fed is not None and fed.request > claim.request) or (old is not None and old.request > claim.request):
            return
        if not known:
            since = desk.now - claim.waited + claim.late
            for post in self.posts.values():
                post.fed.pop(node, None)
            self.register[node] = Waits(claim.request, since if old is None else old.since, desk.now)
        waiting = len(self.register) + sum(len(post.fed) for post in self.posts.values())
        patience = self._patience(waiting)
        if not known and old is None:  # spread: all who came at once would ask at once, and nobody before that
            patience = min(patience, PATIENCE + round((patience - PATIENCE) * desk.rng.random()))
        desk.post(node, Entered(claim.request, desk.term, patience))
        if not known:
            self.feed_all()

    def _patience(self, waiting: int) -> Duration:
        """Several times as long as it should take, or so long that all together ask at their pace."""
        turn = max((post.turn for post in self.posts.values()), default=SECOND)
        return max(PATIENCE_LEAST, min(max(PATIENCE, PATIENCE_EACH * waiting), ROUNDS * waiting * turn))

    def unclaimed(self, ticket: Ticket) -> None:
        node, request = ticket
        for tickets in (self.register, *(post.fed for post in self.posts.values())):
            if node in tickets and tickets[node].request <= request:
                del tickets[node]

    def returned(self, fed: Fed) -> None:
        """It did not find its token: the next beat tells where that is."""
        for node, request in fed.tickets:
            for post in self.posts.values():
                if node in post.fed and post.fed[node].request == request:
                    self.register = {node: post.fed.pop(node)} | self.register
                    self._desk.timer(("watch", post.name.slot), self._desk.now + ON_ITS_WAY // 4)

    def feed_all(self) -> None:
        posts = [post for post in self.posts.values() if not post.missing]
        for post in sorted(posts, key=lambda post: (not post.parked, len(post.fed))):
            self.feed(post)

    def feed(self, post: Post) -> None:
        """To an idle token, or one that has few left."""
        desk = self._desk
        if post.missing or not self.register or len(post.fed) > LOW:
            return
        if desk.slots > 1 and (not post.parked or post.fed):
            return  # with several slots nobody waits behind one that is in use
        room = FEED if desk.slots == 1 else 1
        tickets: list[Ticket] = []
        for node in sorted(self.register, key=lambda node: self.register[node].since)[:room]:
            post.fed[node] = ticket = self.register.pop(node)._replace(fed_at=desk.now, fed_hop=post.name.hop)
            tickets.append(Ticket(node, ticket.request))
        if tickets:
            post.parked = False
            post.more = bool(self.register)
            desk.post(post.holder, Fed(post.name, tuple(tickets), post.more, STEPS))
            self._expect(post, min(post.due, max(post.lent_until, desk.now + 2 * desk.patience.wait())))

    def _borrow(self, post: Post) -> None:
        """It is idle, and others wait for tokens that are in use: the first of these comes here instead."""
        waits = [(ticket.since, node, other) for other in self.posts.values() for node, ticket in other.fed.items()]
        waits = [each for each in waits if each[2] is not post and each[1] != each[2].holder]
        waits = [each for each in waits if self._desk.now - each[2].fed[each[1]].fed_at > ON_ITS_WAY]
        if waits:
            _, node, other = min(waits, key=lambda each: each[:2])
            self.register[node] = other.fed.pop(node)

    def _reconcile(self, post: Post, beat: Beat) -> None:
        """What was served is over; what is neither in the queue nor on its way comes back."""
        fed, queue = post.fed, {ticket.node: ticket.request for ticket in beat.queue}
        order = list(fed)
        mine = fed.get(post.holder)  # served, if the token moved since: else the beat was sent before FED arrived
        is_served = mine is not None and post.holder not in queue and beat.token.hop > mine.fed_hop
        done = order.index(post.holder) + 1 if is_served else 0
        first = next((node for node in order if node in queue), None)
        if first is not None:
            done = max(done, order.index(first))
        for node in order[:done]:
            ticket = fed.pop(node)
            if node != post.holder or node == self._desk.me:  # served, most likely: who was not claims again at once
                self._desk.post(node, Entered(ticket.request, self._desk.term, 0))
        late = [n for n, t in fed.items() if n not in queue and self._desk.now - t.fed_at > ON_ITS_WAY]
        if late:
            back = {node: fed.pop(node) for node in late}
            self.register = {n: t for n, t in back.items() if n not in self.register} | self.register

    # --- comings and goings ------------------------------------------------------------------------------------------

    def left(self, node: NodeId) -> None:
        self.register.pop(node, None)
        for post in list(self.posts.values()):
            post.fed.pop(node, None)
            if post.holder == node:
                self._miss(post)

    def bequest(self) -> Legacy:
        desk = self._desk
        tickets = [Ticket(node, request) for post in self.posts.values() for node, (request, *_) in post.fed.items()]
        tickets += [Ticket(node, request) for node, (request, *_) in self.register.items()]
        posts = [post for post in self.posts.values() if not post.missing][:8]
        names, holders = tuple(post.name for post in posts), tuple(post.holder for post in posts)
        lent = max([self.unlent_from, *(post.lent_until for post in self.posts.values())]) - desk.now
        queue = tuple(ticket for ticket in tickets if ticket.node != desk.me)[:QUEUE]
        return Legacy(desk.term + 1, queue, names, holders, min(max(0, lent), LEASE_MOST))

    def inherit(self, bequest: Legacy) -> None:
        desk = self._desk
        self.begin(desk.now + min(bequest.lent, LEASE_MOST))
        for name, holder in zip(bequest.tokens, bequest.holders, strict=False):
            self.found(name, holder)
        for ticket in bequest.tickets:
            self.register[ticket.node] = Waits(ticket.request, desk.now, desk.now)
        for post in self.posts.values():
            desk.tell_keeper(post.holder)
        if self.missing():
            self._search()


def announce(desk: Desk, number: int = 0) -> None:
    """Who keeps is told to those who are asked first, and to whoever kept before."""
    for node in dict.fromkeys((*desk.homes(), *desk.former)):
        if node not in (desk.me, NOBODY):
            desk.post(node, Keeps(desk.term, desk.keeper, number))
