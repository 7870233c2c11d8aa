"""Groups without I/O: many `Group`s, a network in virtual time, and what each of them did.

The network has delay, loss, dead links, addresses that refuse and addresses that are silent. Everything is drawn from
one seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from softmutex.core.events import (
    NOBODY,
    SECOND,
    CancelTimer,
    Duration,
    Instant,
    MembersChanged,
    NodeId,
    Received,
    Returned,
    Send,
    SetTimer,
    Silenced,
    TimerName,
    from_seconds,
)
from softmutex.core.group import Ego, Group, Listed, Listing
from softmutex.core.group.effects import (
    Answer,
    Double,
    Drop,
    GiveUp,
    GroupEffect,
    Mail,
    Mismatch,
    RefuseMutex,
    Say,
    Stalled,
    Start,
    TakePart,
    Tell,
    Unwrap,
)
from softmutex.core.messages import Description, Message, Relay, Standing

# Of everything, and not of one address, member or mutex. A timer of one of these ends with it.
MAY_FIND_NOTHING: tuple[TimerName, ...] = ("look", "late news", ("found", 0))
START: Instant = 1_000 * SECOND
TERMS = Description(Standing.KNOWN, "wandering", 1, 4 * SECOND, 300)


class Sealed(bytes):
    """What stands for a sealed frame inside of a `Relay`: the network does not look into it."""

    content: tuple[NodeId, NodeId, str, Message]

    @classmethod
    def of(cls, *content: Any) -> Sealed:
        frame = cls(b"sealed")
        frame.content = content
        return frame


class House:
    """One node: its group, and all that came out of it."""

    def __init__(self, village: Village, id: NodeId, address: str, **options: Any) -> None:
        self.village = village
        self.address = address
        ego = Ego(id, address, f"name of {address}", 1, address.encode(), random.Random(id ^ village.seed))
        self.group = Group(ego, **options)
        self.told: list[MembersChanged | Silenced | Returned] = []  # what machines hear
        self.reach: list[Answer] = []
        self.started: dict[str, Start] = {}
        self.did: list[GroupEffect] = []  # all that concerns nobody else
        self.said: list[str] = []
        self.warned: list[str] = []  # what is said where something is wrong
        self.dropped: Counter[str] = Counter()
        self.received: list[tuple[NodeId, str, Message]] = []  # of mutexes
        self.timers: dict[TimerName, int] = {}
        self.is_open = True

    @property
    def id(self) -> NodeId:
        return self.group.ego.id

    def others(self) -> list[NodeId]:
        return [id for id in self.group.members if id != self.id]

    def do(self, call: Callable[..., object], *args: Any, **options: Any) -> Any:
        """Calls the group, and performs what comes out."""
        result = call(*args, **options)
        self.perform()
        return result

    def perform(self) -> None:
        out = self.group.out
        while out:
            self._perform(out.popleft())

    def _perform(self, effect: GroupEffect) -> None:
        village = self.village
        match effect:
            case Send(to, message):
                self.send(to, "", message)
            case Tell(to, mutex, message):
                self.send(to, mutex, message)
            case Mail(address, to, message, by):
                self._post(address, to, "", message, by)
            case SetTimer(name, at):
                assert at >= village.now, f"{name} is set in the past"
                village.waits.setdefault(name if isinstance(name, str) else str(name[0]), []).append(at - village.now)
                number = self.timers[name] = next(village.numbers)
                village.at(at, self._fire, name, number)
            case CancelTimer(name):
                self.timers.pop(name, None)
            case MembersChanged() | Silenced() | Returned():
                self.told.append(effect)
            case Answer():
                self.reach.append(effect)
            case Start(mutex):
                assert mutex not in self.started
                self.started[mutex] = effect
                self.did.append(effect)
            case Unwrap(frame, by):
                assert isinstance(frame, Sealed)
                sender, receiver, mutex, message = frame.content
                if receiver == self.id:
                    self.take(sender, True, mutex, message, "", by)
            case Say(_, text):
                self.said.append(text)
                self.warned += [] if effect.is_routine else [text]
            case Drop(why, number):
                self.dropped[why] += number
            case GiveUp(mutex):
                self.started.pop(mutex, None)
                self.did.append(effect)
            case TakePart() | RefuseMutex() | Mismatch() | Stalled() | Double():
                self.did.append(effect)

    def _fire(self, name: TimerName, number: int) -> None:
        if self.is_open and self.timers.get(name) == number:
            del self.timers[name]
            self.group.fired(name, self.village.now)
            assert self.group.out or name in MAY_FIND_NOTHING, f"what the timer {name} was for is over"
            self.perform()

    def send(self, to: NodeId, mutex: str, message: Message) -> None:
        route = self.group.route(to, self.village.now)
        if route is not None:
            self._post(route[0], to, mutex, message, route[1])

    def _post(self, address: str, to: NodeId, mutex: str, message: Message, by: NodeId) -> None:
        if by:
            message, mutex = Relay(to, Sealed.of(self.id, to, mutex, message)), ""
            to = by
        self.village.carry(self, address, (self.id, to, mutex, message))

    def take(self, sender: NodeId, to_me: bool, mutex: str, message: Message, source: str, by: NodeId) -> None:
        """As the runtime's pump does."""
        now = self.village.now
        if self.do(self.group.received, sender, mutex, message, source, to_me, now, by):
            return
        if type(message) is Description or not to_me:
            return
        is_heard = self.group.relayed(sender, by, now) if by else self.group.heard(sender, source, now)
        self.perform()
        if is_heard and mutex:
            self.received.append((sender, mutex, message))
            if mutex not in self.started:
                self.do(self.group.founding.keep, mutex, Received(sender, message), now)

    # --- what a driver does -----------------------------------------------------------------------------------------

    def listed(self, *places: Listed | House, **listing: Any) -> None:
        shown = tuple(each if isinstance(each, Listed) else Listed(each.address) for each in places)
        self.do(self.group.listed, Listing(shown, **listing), self.village.now)

    def open(self, mutex: str = "x", terms: Description = TERMS, **options: Any) -> None:
        self.do(self.group.founding.open, mutex, terms, self.village.now, **options)

    def suspect(self, node: House) -> None:
        self.do(self.group.suspect, node.id, self.village.now)

    def founded(self, mutex: str = "x") -> bool:
        return mutex in self.started and self.started[mutex].founder


class Village:
    def __init__(self, seed: int = 0, delay_s: float = 0.001, jitter: float = 0.5, loss: float = 0.0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now: Instant = START
        self.delay, self.jitter, self.loss = from_seconds(delay_s), jitter, loss
        self.numbers = count(1)
        self.houses: dict[str, House] = {}  # by address
        self.cuts: set[tuple[str, str]] = set()  # one way: from, to
        self.silent_hosts: set[str] = set()  # addresses from which nothing comes back, not even a refusal
        self.sent: Counter[type] = Counter()
        self.waits: dict[str, list[Duration]] = {}  # by what is waited for: how long each timer was set for
        self.tap: Callable[[str, str, tuple[NodeId, NodeId, str, Message]], None] | None = None
        self._heap: list[tuple[Instant, int, Callable[..., object], tuple[Any, ...]]] = []

    def house(self, id: NodeId, address: str = "", **options: Any) -> House:
        house = self.houses[address or f"h{id}"] = House(self, id, address or f"h{id}", **options)
        return house

    def neighbours(self, number: int, **options: Any) -> list[House]:
        """So many who know each other, by a complete membership."""
        houses = [self.house(id, **options) for id in self.rng.sample(range(1, 10_000), number)]
        everybody = [Listed(house.address, house.id) for house in houses]
        for house in houses:
            house.listed(*(place for place in everybody if place.id != house.id), complete=True)
        return houses

    # --- time -------------------------------------------------------------------------------------------------------

    def at(self, when: Instant, call: Callable[..., object], *args: Any) -> None:
        heappush(self._heap, (when, next(self.numbers), call, args))

    def run(self, seconds: float) -> None:
        end = self.now + from_seconds(seconds)
        while self._heap and self._heap[0][0] <= end:
            self.now, _, call, args = heappop(self._heap)
            call(*args)
        self.now = end

    def until(self, condition: Callable[[], object], within_s: float) -> float:
        """Runs until it is so, and says how long that took; fails where it does not become so."""
        begun, end = self.now, self.now + from_seconds(within_s)
        while not condition():
            assert self._heap and self._heap[0][0] <= end, f"not within {within_s} s"
            self.now, _, call, args = heappop(self._heap)
            call(*args)
        return (self.now - begun) / SECOND

    # --- the network ------------------------------------------------------------------------------------------------

    def carry(self, sender: House, to: str, frame: tuple[NodeId, NodeId, str, Message]) -> None:
        self.sent[type(frame[3])] += 1
        if not sender.is_open:
            return
        if self.tap is not None:
            self.tap(sender.address, to, frame)
        self.deliver(sender.address, to, frame)

    def deliver(self, source: str, to: str, frame: tuple[NodeId, NodeId, str, Message]) -> None:
        if (source, to) not in self.cuts and self.rng.random() >= self.loss:
            self.at(self.now + self._lag(), self._arrive, source, to, frame)

    def _arrive(self, source: str, to: str, frame: tuple[NodeId, NodeId, str, Message]) -> None:
        house = self.houses.get(to)
        if house is not None and house.is_open:
            sender, receiver, mutex, message = frame
            if receiver in (NOBODY, house.id) and not (sender == house.id and receiver not in (NOBODY, sender)):
                house.take(sender, receiver == house.id, mutex, message, source, NOBODY)
        elif to not in self.silent_hosts and (to, source) not in self.cuts and source in self.houses:
            self.at(self.now + self._lag(), self._refuse, source, to)

    def _refuse(self, source: str, to: str) -> None:
        house = self.houses[source]
        if house.is_open:
            house.do(house.group.refused, to, self.now)

    def _lag(self) -> Duration:
        return round(self.delay * (1 + self.jitter * (2 * self.rng.random() - 1)))

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill(self, house: House, *, host_lives: bool = True) -> None:
        """The process. Where its host lives, that refuses what comes; else there is silence."""
        house.is_open = False
        if not host_lives:
            self.silent_hosts.add(house.address)

    def cut(self, some: Iterable[House | str], others: Iterable[House | str], *, both: bool = True) -> None:
        for one in map(_address, some):
            for other in map(_address, others):
                self.cuts.add((one, other))
                if both:
                    self.cuts.add((other, one))

    def heal(self) -> None:
        self.cuts.clear()


def _address(house: House | str) -> str:
    return house if isinstance(house, str) else house.address
