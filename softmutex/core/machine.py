"""What an algorithm is: one sans-I/O state machine for one mutex on one node.

The runtime and the simulator are two drivers of the same machines. What a driver promises a machine:

D1  Events of one machine come one at a time, with a `now` that never runs backwards.
D2  Effects are performed in order, before the next event of that machine.
D3  A `SetTimer` is answered by exactly one `Fired` at or after `at`, unless replaced or cancelled before.
D4  `Requested` comes once a request; then either `Withdrawn` (only before its grant) or, after `Grant`, `Released`.
D5  `members` holds every known live member, this node among them, in ascending order; it changes only just
    before a `MembersChanged`.
D6  A message sent may arrive late, twice, out of order or never; what arrives is what was sent, by who is named.
D7  A driver that did not get its turn for half a second or more says so (`Slept`) before anything else.

What a machine promises its driver:

A1  `handle` is a function of its state, the event, `now` and `rng.random()`. It never raises on any message.
A2  Every request is granted at most once; a withdrawn one is never granted.
A3  It checks its own invariants after each event and raises `InvariantBreach` where one is broken.
A4  Its state is bounded whatever others send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from softmutex.core.events import NOBODY, Effect, Event, Instant, NodeId, Token
from softmutex.core.timing import Timing


class Rng(Protocol):
    """The one source of randomness: `random.Random().random` keeps its sequence for ever, its other methods do not."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What a driver hands to a machine when it makes it. `members` is shared and live (D5)."""

    me: NodeId
    members: Sequence[NodeId]
    rng: Rng
    timing: Timing = field(default_factory=Timing)
    options: dict[str, Any] = field(default_factory=dict)  # the algorithm's own switches, checked by it


class View(NamedTuple):
    """What a machine shows of itself to `status`, to checkers and to tests. Never used to decide anything."""

    tokens: tuple[Token, ...]  # those that this node may use or pass on now
    holding: tuple[int, ...]  # requests that run A now
    waiting: int  # requests of this node that wait
    holder: NodeId = NOBODY  # where the token was last known to be
    queue: tuple[NodeId, ...] = ()  # who waits, as far as this node knows
    epoch: int = 0
    state: str = ""  # one word for a person


class Algorithm(Protocol):
    """One mutex on one node. Constructed as `SomeAlgorithm(setup)`; refuses impossible settings with `ConfigError`."""

    name: ClassVar[str]

    def __init__(self, setup: Setup) -> None: ...

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]: ...

    def view(self) -> View: ...


def pick_other(members: Sequence[NodeId], me: NodeId, rng: Rng) -> NodeId:
    """A uniformly random other member, or NOBODY when this node is alone."""
    count = len(members)
    if count < 2:
        return NOBODY if not count or members[0] == me else members[0]
    while True:
        node = members[int(rng.random() * count)]
        if node != me:
            return node
