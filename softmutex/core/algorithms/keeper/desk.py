"""What all parts share: who I am, which keeper I follow, the best tokens I heard of, and the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from softmutex.core.algorithms.in_common import fingerprint_of, least_interval
from softmutex.core.algorithms.keeper.messages import Keeps, Name
from softmutex.core.chance import drawn
from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    Instant,
    NodeId,
    Suspect,
    Token,
)
from softmutex.core.machine import Setup, WhenIsolated
from softmutex.core.options import Options, within
from softmutex.core.outbox import Outbox
from softmutex.core.patience import Patience
from softmutex.core.routing import PrefixRing, key_of

FIRST_PATIENCE: Final = SECOND  # while no round trip was measured; up to four times that later
DEPARTED: Final = 16  # of those that left, so many are remembered: others may still count them
JOINED: Final = 8  # and so many that joined: others may not know them yet
HOMES: Final = 2  # members that are told who keeps, and asked first: pointers, which decide nothing


@dataclass(frozen=True)
class KeeperOptions(Options):
    """Durations in seconds."""

    pace: float = within(1.6, 0.2, 5.0)  # of the beats of a young hold, and at least
    slack: float = within(1.2, 0.2, 5.0)  # by which a lease outlasts the pace; more where the network is slow
    pace_most: float = within(5.8, 0.2, 5.8)  # of a long hold
    age_paces: float = within(2.0, 1.0, 100.0)  # a hold is spoken for so many times in its age
    idle_pace: float = within(8.0, 1.0, 600.0)  # of a parked token's beats
    each: int = within(1, 1, 1)
    min_interval: float = within(0.0, 0.0)  # who had its turn less than that ago lets others go first
    row: int = within(16, 1, 4096)  # requests of one node that are served in a row while others wait
    row_time: float = within(0.02, 0.0)  # no further one is started after this


def fingerprint(options: KeeperOptions, slots: int, least: Duration) -> int:
    return fingerprint_of(f"keeper 1 {slots} {options.each} {least}")


def rank(name: Name | Token) -> tuple[int, int, int]:
    """Higher is better."""
    return (name.epoch, -name.stamp, -name.id)


def name_of(token: Token) -> Name:
    return Name(token.slot, token.epoch, token.stamp, token.id, token.hop)


class Desk(Outbox):
    __slots__ = (
        "_ring",
        "best",
        "departed",
        "fingerprint",
        "former",
        "heard_at",
        "joined",
        "keeper",
        "least",
        "leaving",
        "members",
        "patience",
        "place",
        "silent",
        "slots",
        "term",
        "when_isolated",
        "woke_at",
    )

    def __init__(self, setup: Setup, options: KeeperOptions) -> None:
        super().__init__(setup)
        self.least: Duration = least_interval(options.min_interval, setup.timing)
        self.fingerprint = fingerprint(options, setup.slots, self.least)
        self.members: Sequence[NodeId] = setup.members
        self.slots = setup.slots
        self.when_isolated: WhenIsolated = setup.when_isolated
        self.place = setup.place
        if "ring" not in setup.shared:
            setup.shared["ring"] = PrefixRing(setup.members)
        self._ring: PrefixRing = setup.shared["ring"]
        self.term = 0
        self.keeper: NodeId = NOBODY
        self.former: list[NodeId] = []  # who kept before, and whoever took its place has not said so yet
        self.heard_at: Instant = -(1 << 62)  # when the keeper was last heard
        self.best: dict[int, Name] = {}  # of each slot
        self.silent: dict[NodeId, None] = {}
        self.departed: tuple[NodeId, ...] = ()  # the last that left
        self.joined: tuple[NodeId, ...] = ()  # the last that joined, and did not leave
        self.patience = Patience(FIRST_PATIENCE)
        self.leaving = False
        self.woke_at: Instant = -SECOND

    # --- effects -----------------------------------------------------------------------------------------------------

    def suspect(self, node: NodeId) -> None:
        if node not in (NOBODY, self.me):
            self.out.append(Suspect(node))

    def draw(self) -> int:
        return 1 + drawn(self.rng)

    # --- who keeps ---------------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        return self.keeper == self.me

    @property
    def keeper_counts(self) -> bool:
        """It is known, a member, and not silent."""
        return self.keeper != NOBODY and self.keeper in self.members and self.keeper not in self.silent

    @property
    def alone(self) -> bool:
        return len(self.members) < 2

    def follow(self, term: int, keeper: NodeId) -> bool:
        """Whether that is a new keeper, which is followed from now on. Terms grow; of one term the higher id wins."""
        if keeper == NOBODY or (term, keeper) <= (self.term, self.keeper):
            return False
        if self.keeper not in (NOBODY, keeper):
            self.former.append(self.keeper)
        self.term, self.keeper, self.heard_at = term, keeper, self.now
        return True

    def homes(self) -> list[NodeId]:
        first = self._ring.owner(key_of(self.place, 0))
        second = self._ring.owner(key_of(self.place, 0), but=first)
        return [node for node in (first, second) if node not in (NOBODY, self.me)]

    def members_changed(self, joined: Sequence[NodeId], left: Sequence[NodeId]) -> None:
        self._ring.update(joined, left)
        for node in left:
            self.silent.pop(node, None)
        self.departed = (*(node for node in self.departed if node not in left), *left)[-DEPARTED:]
        self.joined = tuple(node for node in (*self.joined, *joined)[-JOINED:] if node not in left)

    def learn_departed(self, nodes: Sequence[NodeId]) -> None:
        """Others know it first."""
        new = tuple(node for node in nodes if node not in self.departed and node in self.members and node != self.me)
        if new:
            self.departed = (*self.departed, *new)[-DEPARTED:]

    @property
    def departed_members(self) -> int:
        """They count no more, though the group shows them still."""
        return sum(node in self.members for node in self.departed)

    def tell_keeper(self, to: NodeId, number: int = 0) -> None:
        self.post(to, Keeps(self.term, self.keeper, number))

    # --- which token is the best of its slot ------------------------------------------------------------------------

    def learn(self, name: Name) -> None:
        known = self.best.get(name.slot)
        if known is None or (rank(name), name.hop) > (rank(known), known.hop):
            self.best[name.slot] = name

    def better(self, name: Name | Token) -> Name | None:
        """The one that replaced it, if one did."""
        known = self.best.get(name.slot)
        return known if known is not None and rank(known) > rank(name) else None
