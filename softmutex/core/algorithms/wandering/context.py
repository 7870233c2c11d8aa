"""What all parts of the wandering token share: who I am, what I know, and the outbox."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from softmutex.core.algorithms.in_common import least_interval
from softmutex.core.algorithms.wandering.messages import Bequest, Place, Urge, Want
from softmutex.core.algorithms.wandering.settings import (
    FIRST_EPOCH,
    FRESH,
    FRESH_MOST,
    FRESH_TRIPS,
    RTO_FIRST,
    RTO_LEAST,
    RTO_MOST,
    SLACK,
    SLACK_MOST,
    SUSPICION,
    Switches,
    fingerprint,
)
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    Instant,
    NodeId,
    Suspect,
    Ticket,
    Token,
    new,
)
from softmutex.core.machine import Setup, WhenIsolated
from softmutex.core.outbox import Outbox

SUSPECTS: Final = 16
GONE: Final = 256
STRANGERS: Final = 256  # nodes that wait and are not known here, of which note is taken;
STRANGE_FOR: Final = 10 * SECOND  # ... so long they may become known: any two that hear each other do, in a second
STRANGE_AGAIN: Final = 60 * SECOND  # ... and after this once more
HEARD: Final = 64
DEAF: Final = 16
STALE: Final = SECOND  # after waking up: what comes may have been sent long before
NEAR: Final = 8  # successors on the ring that are looked at for a home


def rank(place: Place) -> tuple[int, int, int, int]:
    """Higher is better: the later epoch, then the older token, then the later hop."""
    return (place.epoch, -place.stamp, -place.id, place.hop)


def same_token(a: Place, b: Place) -> bool:
    return a.epoch == b.epoch and a.stamp == b.stamp and a.id == b.id


def is_copy(place: Place, own: Place, came: Place) -> bool:
    """Whether its holder's word of a token means that there are two of the one that is here. Since it `came` nobody
    else has had it, and what was said before is of an earlier hop. Only who lies makes two of one token."""
    return same_token(place, own) and place.holder != own.holder and place.hop >= came.hop


def gives_way(own: Place, place: Place, came: Place) -> bool:
    """Whether the other one is better than ours; of two copies that from further on."""
    if same_token(own, place):
        return is_copy(place, own, came) and (place.hop, place.holder) > (own.hop, own.holder)
    return rank(place) > rank(own)


def place_of(token: Token, holder: NodeId) -> Place:
    epoch, stamp, id, hop, slot, *_ = token
    return new(Place, (slot, epoch, stamp, id, hop, holder))


class Context(Outbox):
    __slots__ = (
        "_deviation",
        "_round_trip",
        "best",
        "deaf",
        "fingerprint",
        "given_up",
        "gone",
        "heard",
        "learned_at",
        "learned_from",
        "least",
        "leavers",
        "lost_at",
        "members",
        "options",
        "rto",
        "silent",
        "strange",
        "suspects",
        "way",
        "woke_at",
    )

    def __init__(self, setup: Setup, options: Switches) -> None:
        super().__init__(setup)
        self.members: Sequence[NodeId] = setup.members
        self.options = options
        self.least = least_interval(options.min_interval, setup.timing)
        self.fingerprint = fingerprint(options, self.least)
        self.best: dict[int, Place] = {}  # the best sighting of each slot
        self.learned_at: dict[int, Instant] = {}  # when this node heard of it
        self.learned_from: dict[int, NodeId] = {}  # ... and who said so
        self.given_up: dict[int, Place] = {}  # the best sighting when this node said that another one may be made
        self.suspects: dict[NodeId, Instant] = {}  # silent ones, and until when they are passed over
        self.leavers: dict[NodeId, Instant] = {}  # on their way out, and until when we believe that, whatever they say
        self.silent: dict[NodeId, None] = {}  # the group says so: they count, and are passed over
        self.deaf: dict[NodeId, Instant] = {}  # who says that it hears nobody, and until when we believe it
        self.woke_at: Instant = -SECOND
        self.heard: dict[NodeId, Instant] = {}  # who spoke last, and when
        self.gone: dict[NodeId, None] = {}  # the last that left: nobody else may know yet
        self.strange: dict[NodeId, Instant] = {}  # who waits and is not known here, and since when
        self.lost_at: Instant = -SUSPICION
        self.rto: Duration = RTO_FIRST
        self.way: Duration = 0  # of a message to another node; 0: not known yet
        self._round_trip: Duration = -1
        self._deviation: Duration = 0

    # --- what the driver says ----------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        """The next event."""
        self.now = now
        self.out = []

    def woke(self) -> None:
        self.lost()
        self.woke_at = self.now

    @property
    def just_woke(self) -> bool:
        return self.now - self.woke_at < STALE

    def isolation_is(self, choice: WhenIsolated) -> None:
        self.options = replace(self.options, when_isolated=choice)

    # --- who is there ------------------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        members = self.members
        return len(members) < 2 and (not members or members[0] == self.me)

    def ring(self) -> Sequence[NodeId]:
        """The members from the resource's spot on, at most `NEAR`. Found in O(log N), nobody has to agree on it."""
        members = self.members
        start = bisect_left(members, self.options.place)
        near = members[start : start + NEAR]
        return near if len(near) == NEAR else [*near, *members[: min(start, NEAR - len(near))]]

    @property
    def first(self) -> NodeId:
        """The ring's first member."""
        members = self.members
        if not members:
            return NOBODY
        start = bisect_left(members, self.options.place)
        return members[start] if start < len(members) else members[0]

    def homes(self, count: int, but: NodeId = NOBODY) -> tuple[NodeId, ...]:
        """The first members of the ring that are not under suspicion; all count when all are."""
        suspects, leavers, silent, deaf = self.suspects, self.leavers, self.silent, self.deaf
        near = trusted = [node for node in self.ring() if node != but]
        if suspects or leavers or silent or deaf:
            now = self.now
            trusted = [n for n in near if suspects.get(n, 0) <= now and n not in silent and n not in deaf]
            trusted = [n for n in trusted if leavers.get(n, 0) <= now]
        return tuple((trusted or near)[:count])

    @property
    def home(self) -> NodeId:
        if self.suspects or self.leavers or self.silent or self.deaf:
            return next(iter(self.homes(1)), self.me)
        members = self.members
        if not members:
            return self.me
        start = bisect_left(members, self.options.place)
        return members[start] if start < len(members) else members[0]

    @property
    def heir(self) -> NodeId:
        """The home after this node."""
        return next(iter(self.homes(1, but=self.me)), self.me)

    def is_member(self, node: NodeId) -> bool:
        members = self.members
        at = bisect_left(members, node)
        return at < len(members) and members[at] == node

    def reaches(self, node: NodeId) -> bool:
        return node not in self.deaf and self.is_member(node)

    def suspect(self, node: NodeId) -> None:
        if node == self.me:
            return
        self.lost()
        self.suspects.pop(node, None)
        self.suspects[node] = self.now + SUSPICION
        if len(self.suspects) > SUSPECTS:
            del self.suspects[next(iter(self.suspects))]

    def leaves(self, node: NodeId) -> None:
        """It refuses what an heir is given, or gave away what a home has. It goes on to speak until it has left."""
        if len(self.leavers) >= SUSPECTS:
            del self.leavers[next(iter(self.leavers))]
        self.leavers[node] = self.now + SUSPICION

    def trust(self, node: NodeId) -> None:
        """It spoke."""
        heard = self.heard
        heard[node] = self.now
        if len(heard) > HEARD:
            del heard[min(heard, key=heard.__getitem__)]
        if self.suspects:
            self.suspects.pop(node, None)
        if self.silent:
            self.silent.pop(node, None)

    def silenced(self, node: NodeId) -> None:
        self.lost()
        self.silent[node] = None

    def returned(self, node: NodeId) -> None:
        self.silent.pop(node, None)

    def hears_nobody(self, node: NodeId, span: Duration) -> None:
        """It says so, and is believed for a while."""
        self.deaf.pop(node, None)
        self.deaf[node] = self.now + span
        if len(self.deaf) > DEAF:
            del self.deaf[next(iter(self.deaf))]

    def hears(self, node: NodeId) -> None:
        del self.deaf[node]

    def changed(self, joined: Sequence[NodeId], left: Sequence[NodeId]) -> None:
        for node in joined:
            self.gone.pop(node, None)  # it was only silent
            self.strange.pop(node, None)
        for node in left:
            self.suspects.pop(node, None)
            self.leavers.pop(node, None)
            self.silent.pop(node, None)
            self.deaf.pop(node, None)
            self.heard.pop(node, None)
            self.gone[node] = None
        while len(self.gone) > GONE:
            del self.gone[next(iter(self.gone))]

    def ask(self, to: NodeId, want: Want, credit: Duration) -> None:
        self.post(to, Urge(want, credit) if self.options.ageing else want)

    def give_back(self, tickets: tuple[Ticket, ...]) -> None:
        """They did not fit into the token's queue, or did not reach it."""
        if tickets:
            self.post(self.home, Bequest(None, tickets))

    def living(self, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Those whose nodes have not left, and are known or may be soon. Who is left out and waits asks again; what
        somebody has invented would stay for ever, and others behind it."""
        members = self.members
        count = len(members)
        for ticket in tickets:
            node = ticket[0]
            at = bisect_left(members, node)
            if at == count or members[at] != node:
                break
        else:
            return tickets
        return tuple(ticket for ticket in tickets if self.is_member(ticket.node) or self._may_come(ticket.node))

    def _may_come(self, node: NodeId) -> bool:
        if node in self.gone:
            return False
        since = self.strange.get(node)
        if since is not None and self.now <= since + STRANGE_AGAIN:
            return self.now <= since + STRANGE_FOR
        while self.strange and self.now > next(iter(self.strange.values())) + STRANGE_AGAIN:
            del self.strange[next(iter(self.strange))]
        if len(self.strange) >= STRANGERS:
            return False
        self.strange[node] = self.now
        return True

    # --- what is known -----------------------------------------------------------------------------------------------

    def learn(self, place: Place, said_by: NodeId = NOBODY) -> bool:
        """Keep the better sighting. True if this one is."""
        if not 0 <= place.slot < self.options.slots:
            return False
        known = self.best.get(place.slot)
        if known is not None:
            of_one = known[1:4] == place[1:4]  # mostly it is one token that moves
            if known.hop >= place.hop if of_one else rank(known) >= rank(place):
                return False
        self.best[place.slot] = place
        self.learned_at[place.slot] = self.now
        self.learned_from[place.slot] = said_by
        return True

    def outranked(self, token: Token) -> Place | None:
        """A sighting of another token that this one has to give way to."""
        known = self.best.get(token.slot)
        if known is None or known[1:4] == token[:3]:
            return None
        return known if rank(known) > rank(place_of(token, self.me)) else None

    def gives_up(self, slot: int) -> None:
        """Somebody was told that nothing of this slot is here, and may make another token."""
        if slot in self.best:
            self.given_up[slot] = self.best[slot]

    def comes_late(self, token: Token) -> bool:
        """It was on its way when this node gave it up: it may have been replaced since."""
        place = self.given_up.get(token.slot)
        return place is not None and place[1:4] == token[:3] and token.hop <= place.hop + 1

    def next_epoch(self, slot: int) -> int:
        """Above all that we know of, and, by counting seconds, above what everybody has forgotten."""
        known = self.best.get(slot)
        return max(FIRST_EPOCH if known is None else known.epoch + 1, self.now // SECOND)

    def suspicious(self, node: NodeId) -> None:
        """It does not answer: the group finds out whether it is dead, silent, or within reach by way of another."""
        if node not in (NOBODY, self.me) and self.is_member(node):
            self.out.append(Suspect(node))

    @property
    def slack(self) -> Duration:
        """How much later than it is due a beat may come."""
        slack = 4 * self.rto
        return SLACK if slack < SLACK else min(slack, SLACK_MOST)

    def late_answer(self, since: Instant) -> None:
        """To a question that was repeated: whose answer it is nobody knows (Karn), but patience was too short."""
        if since < self.woke_at:
            return
        self.rto = max(self.rto, min(2 * self.rto, self.now - since, RTO_MOST))

    def lost(self) -> None:
        """Somebody does not answer. (Not who did not answer once: now and then a message gets lost.)"""
        self.lost_at = self.now

    def measured(self, round_trip: Duration) -> None:
        """Jacobson's estimate, over all peers: a time-out that is right for the slowest of them is right. What came
        while this node slept says nothing of the network: it would wait for a dead one for a quarter of a minute."""
        if self.now - round_trip < self.woke_at:
            return
        if self._round_trip < 0:
            self._round_trip, self._deviation = round_trip, round_trip // 2
        else:
            self._deviation += (abs(round_trip - self._round_trip) - self._deviation) // 4
            self._round_trip += (round_trip - self._round_trip) // 8
        usual = self._round_trip + max(
            4 * self._deviation, self._round_trip // 2
        )  # the deviation may shrink to nothing
        self.rto = min(max(usual, RTO_LEAST), RTO_MOST)

    @property
    def round_trip(self) -> Duration:
        """The usual one. (Not measured yet: some milliseconds.)"""
        return self._round_trip if self._round_trip >= 0 else RTO_LEAST // 4

    @property
    def there_and_back(self) -> Duration:
        """The longer of what is known of a round trip and of a way."""
        return max(self.round_trip, 2 * self.way)

    def answered(self, took: Duration, repeated: bool) -> None:
        """How long a message is under way, by an answer to our WANT; to one that was repeated only if nothing is known
        yet: it may be less. No time-out goes by this: what a home does first may take longer."""
        if not repeated:
            self.way += (took // 2 - self.way) // 2 if self.way else took // 2
        elif not self.way and took < 6 * self.rto:
            self.way = took // 2

    def is_quick(self, turn: Duration, trip: Duration) -> bool:
        """Turns end before somebody who is asked could answer, so to ask first takes longer than the turn itself. But
        where something was not answered lately, somebody may have died, or a link takes seconds that took none."""
        is_calm = self.now >= self.lost_at + SUSPICION
        return turn < trip < SECOND and is_calm and not self.options.by_home

    def fresh(self, turn: Duration, trip: Duration) -> Duration:
        """Who spoke less than this ago is there. Where all want one token each speaks once a round of turns."""
        return min(max(FRESH, FRESH_TRIPS * trip), FRESH_MOST) if self.is_quick(turn, trip) else FRESH

    def asks_later(self, node: NodeId, turn: Duration, trip: Duration) -> Duration:
        """How long until the next holder is asked: a turn that is over by then costs no offer. 0: now."""
        if self.is_there(node, FRESH // 2):
            return FRESH // 2
        stays = self.is_quick(turn, trip) and self.is_there(node, self.fresh(turn, trip) - trip)
        return min(trip, FRESH // 2) if stays else 0

    def is_there(self, node: NodeId, span: Duration) -> bool:
        return self.options.early and self.now - self.heard.get(node, 0) < span

    def random_others(self, count: int) -> list[NodeId]:
        """Different members, not this one; fewer when there are not so many, or luck has it."""
        total = len(self.members)
        if total - 1 <= count:
            return [node for node in self.members if node != self.me]
        chosen: list[NodeId] = []
        for _ in range(4 * count):
            node = self.members[int(self.rng.random() * total)]
            if node != self.me and node not in chosen:
                chosen.append(node)
                if len(chosen) == count:
                    break
        return chosen
