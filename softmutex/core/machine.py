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

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from softmutex.core import options
from softmutex.core.chance import Rng
from softmutex.core.errors import ConfigError
from softmutex.core.events import NOBODY, U64, Effect, Event, Instant, NodeId, Token
from softmutex.core.handover import Passing
from softmutex.core.laws import IN_ANY_WEATHER, Law, Weather
from softmutex.core.messages import Message
from softmutex.core.timing import Pace, Timing
from softmutex.core.tuples import NamedTuple

WhenIsolated: TypeAlias = Literal["wait", "proceed", "raise"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a driver hands to a machine when it makes it. `members` is shared and live (D5)."""

    me: NodeId
    members: Sequence[NodeId]
    rng: Rng
    timing: Timing = field(default_factory=Timing)
    options: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's own switches, as the user wrote them
    slots: int = 1  # how many may run A at once
    when_isolated: WhenIsolated = "wait"  # where too few members answer to know anything
    place: U64 = 0  # a number that all members make of the mutex's name: spreads whatever is chosen by it
    instant: bool = False  # the papers' own world: each message arrives at once, once
    shared: dict[str, Any] = field(default_factory=dict)  # what machines with the same `members` make of them once


class View(NamedTuple):
    """What a machine shows of itself to `status`, to checkers and to tests. Never used to decide anything."""

    tokens: tuple[Token, ...]  # those that this node may use or pass on now
    holding: tuple[int, ...]  # requests that run A now
    waiting: int  # requests of this node that wait
    holder: NodeId = NOBODY  # where the token was last known to be
    queue: tuple[NodeId, ...] = ()  # who waits, as far as this node knows
    epoch: int = 0
    state: str = ""  # one word for a person


class Algorithm(ABC):
    """One mutex on one node, and all that is the algorithm's own. Derive from it.

    Constructed as `SomeAlgorithm(setup)`; refuses impossible settings with `ConfigError`.
    """

    __slots__ = ()

    name: ClassVar[str]  # under which it is registered in the entry points `softmutex.algorithms`
    Options: ClassVar[type[options.Options]] = options.Options  # its switches, see `core/options.py`
    messages: ClassVar[Mapping[int, type[Message]]] = {}  # number on the wire -> class, see `core/messages.py`
    laws: ClassVar[Mapping[Law, Weather]] = IN_ANY_WEATHER  # what it claims, see `core/laws.py`
    pace: ClassVar[Pace] = Pace()  # how its time constants follow from what the user states
    slots_most: ClassVar[int] = 1
    has_token: ClassVar[bool] = True  # which rests somewhere, or is on its way between two; else nothing does
    needs_every_member: ClassVar[bool] = False  # grants nothing while a member does not answer, and must know them all

    ticket_s: ClassVar[float] = 1.0  # and six delays: until a ticket has its place, from when on two rounds are a law
    may_be_forgotten: ClassVar[bool] = False  # by a node that neither uses it nor has been told of a use for a minute
    small_talk: ClassVar[frozenset[str]] = frozenset()  # messages, by class, that tell of no use: beats, questions
    elects: ClassVar[bool] = False  # who holds it leads: it is granted to the first in rank, not in turn

    @abstractmethod
    def __init__(self, setup: Setup) -> None: ...

    @abstractmethod
    def handle(self, event: Event, now: Instant) -> Sequence[Effect]: ...

    @abstractmethod
    def view(self) -> View: ...

    def may_take_again(self) -> bool:
        """Whether this node could be granted once more without a message, so that others should be heard first."""
        return True

    def when_isolated(self, choice: WhenIsolated) -> None:  # noqa: B027 most have nothing to change
        """What the application of this node wants, told later: until now the machine was here for others only."""

    @classmethod
    def passing(cls, setup: Setup) -> Passing:
        """How tokens change hands, for those who follow them (`handover.py`)."""
        return Passing.FOUR_WAY

    @classmethod
    def holds_of_one_node(cls, options: Mapping[str, Any]) -> int:
        """How many requests of one node may run A at once, with these switches."""
        return 1

    @classmethod
    def check(cls, setup: Setup) -> None:
        """What every machine would refuse alike."""
        if not 1 <= setup.slots <= cls.slots_most:
            most = f"at most {cls.slots_most}" if cls.slots_most > 1 else "one"
            raise ConfigError(
                f"the algorithm {cls.name!r} has {most} slot{'s' * (cls.slots_most > 1)}, and slots is {setup.slots}. "
                "Use fewer, or algorithm 'wandering'."
            )


def pick_other(members: Sequence[NodeId], me: NodeId, rng: Rng) -> NodeId:
    """A uniformly random other member, or NOBODY when this node is alone."""
    count = len(members)
    if count < 2:
        return NOBODY if not count or members[0] == me else members[0]
    while True:
        node = members[int(rng.random() * count)]
        if node != me:
            return node
