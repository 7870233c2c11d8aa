"""One machine on a bench: events are put in by hand, effects are looked at, timers fire when told to.

The times of these tests are small numbers of seconds; op is 4 s and nodes_max 300, so min is 600 s and max 1800 s.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Depart,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Lose,
    Note,
    Received,
    Released,
    Requested,
    Send,
    SetTimer,
    Started,
    TimerName,
    Token,
)
from softmutex.core.machine import Algorithm, Setup
from softmutex.core.messages import Message, Offer
from softmutex.core.timing import Timing
from softmutex.core.wire import Frame, learn, write_body

E = TypeVar("E", bound=Effect)
START = 1_000_000  # seconds; no test begins at 0, which could be taken for "never"


def token(stamp: float, token_id: int = 1, hop: int = 0, epoch: int = 1) -> Token:
    return Token(epoch, round(stamp * SECOND), token_id, hop)


class Bench:
    def __init__(
        self,
        machine: type[Algorithm],
        *,
        members: Iterable[int] = (1, 2, 3),
        me: int = 1,
        passing: str = "direct",
        timing: Timing | None = None,
        seed: int = 1,
        **options: Any,
    ) -> None:
        self.members = list(members)
        if "passing" in {each.name for each in fields(machine.Options)}:
            options = {"passing": passing, **options}
        learn(machine.name, machine.messages)
        self.rng = random.Random(seed)
        self.machine = machine(Setup(me, self.members, self.rng, timing or Timing(), options))
        self.me = me
        self.now_s: float = START
        self.timers: dict[TimerName, Instant] = {}
        self.effects: list[Effect] = []
        self.everything: list[Effect] = []

    @property
    def now(self) -> Instant:
        return round(self.now_s * SECOND)

    def at(self, seconds: float) -> Bench:
        """Puts the clock to so many seconds after the start."""
        assert START + seconds >= self.now_s, "time never runs backwards"
        self.now_s = START + seconds
        return self

    def handle(self, event: Event) -> list[Effect]:
        self.effects = list(self.machine.handle(event, self.now))
        self.everything += self.effects
        for effect in self.effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.timer] = effect.at
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.timer, None)
            elif isinstance(effect, Send):
                assert write_body(Frame(self.me, effect.to, "x", effect.message)), "it can be said"
        return self.effects

    # --- events ---

    def start(self, founder: bool = False) -> list[Effect]:
        return self.handle(Started(founder))

    def request(self, request: int = 1) -> list[Effect]:
        return self.handle(Requested(request))

    def release(self, request: int = 1, baggage: bytes = b"") -> list[Effect]:
        return self.handle(Released(request, baggage))

    def receive(self, message: Message, sender: int = 2) -> list[Effect]:
        return self.handle(Received(sender, message))

    def visit(self, visitor: Token, sender: int = 2) -> list[Effect]:
        """The token comes, in the papers' own way."""
        return self.receive(Offer(1, visitor), sender)

    def fire(self, timer: TimerName) -> list[Effect]:
        """The clock goes on to when the timer is due, and it fires."""
        self.now_s = max(self.now_s, self.timers.pop(timer) / SECOND)
        return self.handle(Fired(timer))

    def patience(self) -> float:
        """How long, in seconds from now, until a token is made here if none comes: tried out on a copy."""
        copied = copy.deepcopy(self)
        copied.effects = []
        if "skip" in copied.timers:  # the token goes on
            copied.fire("skip")
        while not copied.noted(FactKind.GENERATED):
            copied.fire(min(copied.timers, key=lambda timer: copied.timers[timer]))
        return (copied.now - self.now) / SECOND

    # --- effects of the last event ---

    def all_of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def one(self, kind: type[E]) -> E:
        found = self.all_of(kind)
        assert len(found) == 1, self.effects
        return found[0]

    @property
    def granted(self) -> list[int]:
        return [grant.request for grant in self.all_of(Grant)]

    @property
    def lost(self) -> list[int]:
        return [lose.request for lose in self.all_of(Lose)]

    @property
    def departs(self) -> bool:
        return bool(self.all_of(Depart))

    @property
    def passed(self) -> list[tuple[int, Token]]:
        """(to whom, which token) in the papers' own way."""
        return [(send.to, send.message.token) for send in self.all_of(Send) if isinstance(send.message, Offer)]

    def noted(self, kind: FactKind) -> list[Note]:
        return [note for note in self.all_of(Note) if note.kind is kind]

    def due_in(self, timer: TimerName) -> float | None:
        """Seconds from now; None: not set."""
        return (self.timers[timer] - self.now) / SECOND if timer in self.timers else None


# --- machines that are broken, by whoever does not know what is in them ----------------------------------------------


def muted(kind: type[Algorithm]) -> Iterator[type[Algorithm]]:
    """The same machine without one of its functions, each in turn."""
    for name, part in vars(kind).items():
        if isinstance(part, FunctionType) and not name.startswith("__"):
            yield type(kind.__name__, (kind,), {name: lambda *_: None, "__slots__": ()})


def crossed(one: Algorithm, other: Algorithm) -> Iterator[Algorithm]:
    """Copies of the one with a single part of its state from the other one, each in turn."""
    for name in state_of(one):
        mixed = copy.copy(one)
        setattr(mixed, name, getattr(other, name))
        yield mixed


def state_of(machine: object) -> list[str]:
    slots = [name for kind in type(machine).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in (*slots, *getattr(machine, "__dict__", ())) if hasattr(machine, name)]


def weight(of: object, *besides: object) -> int:
    """The bytes of it and of all that only it leads to; classes, functions and what is named `besides` are others'."""
    seen = {id(each) for each in besides}
    total, found = 0, [of]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
            seen.add(id(each))
            total += sys.getsizeof(each)
            found += gc.get_referents(each)
    return total
