"""The greeting, explored: whatever somebody without the key does with the frames of two nodes, for so many steps,
nobody else becomes a member, and they meet as soon as he lets them.

The groups are the real ones. He may deliver any frame that was ever sent, in any order, from any address, to anybody;
what the seal refuses (`runtime/sealing.py`, S2 and S3) does not get through: a frame for another life, and one that was
opened before, unless it is for whoever gets it. Each path is run anew from the beginning, so nothing is left out.

To so many steps; and, where time stands still and he may deliver each frame as often as he likes (more than the seal
lets him), to the fixpoint of all that two nodes can come to while they have said no more than so many different things.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import pytest

from softmutex.core.events import NOBODY, SECOND, CancelTimer, Instant, NodeId, SetTimer
from softmutex.core.group import Ego, Group, Listed, Listing
from softmutex.core.group.effects import Double, Mail
from softmutex.core.group.greeter import OWN_FOR
from softmutex.core.messages import Message

T = OWN_FOR + 10 * SECOND  # by reflecting three frames he makes one take the other's address for its own, so long
STEP = SECOND // 100
A, B = 0xA, 0xB
PLACES = {A: "a", B: "b"}
SOURCES = ("a", "b", "elsewhere")


class Sealed(NamedTuple):
    number: int
    sender: NodeId
    to: NodeId
    address: str
    message: Message


class Choice(NamedTuple):
    """He delivers this frame to that node, as from there."""

    frame: int
    at: NodeId
    source: str


class Pair:
    """`honest`: so many frames arrived before he took the network over."""

    def __init__(self, honest: int = 0) -> None:
        self.now: Instant = 1000 * SECOND
        self.sent: list[Sealed] = []
        self.opened: set[tuple[int, NodeId]] = set()
        self.timers: list[tuple[Instant, int, NodeId, Any]] = []
        self.live: dict[tuple[NodeId, Any], int] = {}
        self.doubled = False
        self.groups = {
            id: Group(Ego(id, place, place, 7, bytes([id]) * 16, random.Random(id))) for id, place in PLACES.items()
        }
        for id, group in self.groups.items():
            group.listed(Listing(tuple(Listed(place) for place in PLACES.values())), self.now)
            self.perform(id)
        for number in range(honest):
            self.now += STEP
            self.arrive(self.sent[number])

    def arrive(self, frame: Sealed) -> None:
        for there, place in PLACES.items():
            if place == frame.address:
                self.deliver(frame, there, PLACES[frame.sender])

    def perform(self, id: NodeId) -> None:
        out = self.groups[id].out
        while out:
            match out.popleft():
                case Mail(address, to, message, _):
                    self.sent.append(Sealed(len(self.sent), id, to, address, message))
                case SetTimer(name, at):
                    self.live[id, name] = serial = len(self.live) + len(self.timers) + len(self.sent) * 1000
                    heappush(self.timers, (at, serial, id, name))
                case CancelTimer(name):
                    self.live.pop((id, name), None)
                case Double():
                    self.doubled = True
                case _:
                    pass

    def passes(self, frame: Sealed, at: NodeId) -> bool:
        """The seal opens it there."""
        if frame.to == NOBODY:
            return True
        return frame.to == at and (frame.number, at) not in self.opened

    def deliver(self, frame: Sealed, at: NodeId, source: str) -> None:
        if self.passes(frame, at):
            self.opened.add((frame.number, at))
            self.groups[at].received(frame.sender, "", frame.message, source, bool(frame.to), self.now)
            self.perform(at)

    def choices(self) -> list[Choice]:
        return [
            Choice(frame.number, at, source)
            for frame in self.sent
            for at in PLACES
            if self.passes(frame, at)
            for source in SOURCES
        ]

    def take(self, choice: Choice) -> None:
        self.now += STEP
        self.deliver(self.sent[choice.frame], choice.at, choice.source)

    def let_go(self) -> None:
        """He does nothing more: what is sent from now on arrives."""
        until, at = self.now + T, len(self.sent)
        while self.timers and self.timers[0][0] <= until:
            due, serial, id, name = heappop(self.timers)
            if self.live.get((id, name)) == serial:
                del self.live[id, name]
                self.now = max(self.now, due)
                self.groups[id].fired(name, self.now)
                self.perform(id)
            while at < len(self.sent):
                self.arrive(self.sent[at])
                at += 1


def explore(honest: int, path: Sequence[Choice], depth: int) -> int:
    """How many paths there are."""
    pair = Pair(honest)
    for choice in path:
        pair.take(choice)
        for id, group in pair.groups.items():
            assert set(group.members) <= {A, B}, path
            assert id in group.members
    if depth:
        return sum(explore(honest, [*path, choice], depth - 1) for choice in pair.choices())
    pair.let_go()
    assert not pair.doubled, path
    for group in pair.groups.values():
        assert list(group.members) == [A, B], path
    return 1


@pytest.mark.parametrize(
    ("honest", "depth"),
    [(0, 2), (4, 2), *(pytest.param(honest, 3, marks=pytest.mark.slow) for honest in range(8))],
)
def test_two_meet_whatever_is_done_with_their_frames_before(honest: int, depth: int):
    assert explore(honest, [], depth) > 100


class Frozen(Pair):
    """He has no time, and the seal remembers nothing."""

    def passes(self, frame: Sealed, at: NodeId) -> bool:
        return frame.to in (NOBODY, at)

    def forget(self) -> None:
        """What was said twice is said."""
        different = dict.fromkeys(frame[1:] for frame in self.sent)
        self.sent = [Sealed(number, *said) for number, said in enumerate(different)]
        self.opened.clear()

    def state(self) -> tuple[bytes, frozenset[tuple[Any, ...]]]:
        return pickle.dumps(list(self.groups.values())), frozenset(frame[1:] for frame in self.sent)


def reach_all(honest: int, most: int) -> int:
    """How many states there are with at most so many frames that differ. All of them are looked at."""
    first = Frozen(honest)
    first.forget()
    seen, left = {first.state()}, [pickle.dumps(first)]
    while left:
        before = left.pop()
        for choice in pickle.loads(before).choices():
            pair = pickle.loads(before)
            pair.deliver(pair.sent[choice.frame], choice.at, choice.source)
            for id, group in pair.groups.items():
                assert {id} <= set(group.members) <= {A, B}
            pair.forget()
            if len(pair.sent) > most or pair.state() in seen:
                continue
            seen.add(pair.state())
            left.append(pickle.dumps(pair))
            pair.let_go()
            assert not pair.doubled
            assert all(list(group.members) == [A, B] for group in pair.groups.values())
    return len(seen)


@pytest.mark.parametrize(
    ("honest", "most", "states"),
    [
        *((0, 5, 200), (2, 6, 50), (4, 7, 15)),
        *(pytest.param(*bounds, marks=pytest.mark.slow) for bounds in ((0, 6, 1000), (2, 7, 200), (4, 8, 50))),
    ],
)
def test_no_state_that_two_can_be_brought_to_is_one_that_they_do_not_come_back_from(
    honest: int, most: int, states: int
):
    assert reach_all(honest, most) > states
