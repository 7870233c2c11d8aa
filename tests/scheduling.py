"""Which test runs when, and beside what, where there are several workers (`pytest` alone, `pytest -n 8`).

    pure      computes and waits for nothing (PURE_ROOMS)               at a lower priority, by one worker a core
    beside    starts processes, listens on sockets, watches the clock   by all other workers, side by side
    alone     says that it needs a quiet machine (`mark.alone`)         last, one by one, when nothing else runs

A real-process test waits most of its time, so many of them fill the cores no better than one computing test does: the
naive way, as many workers as cores, takes three times as long, and on a machine with many cores it lets tests of
timers meet whatever comes. A worker that waits takes what computes when nothing is left to wait for, and one that
computed helps to wait when all is computed.

A unit is what one worker runs in a row: a test, or the tests of one file that share a fixture. The longest, those
marked `slow`, are handed out first.

A worker of pytest-xdist runs a test when it knows the next one or that there is none. So each has one in hand.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PURE, BESIDE, ALONE = "pure", "beside", "alone"
ONE_RUNS_AND_THE_NEXT = 2  # in hand
MOST_CORES = 16  # more have nothing to do, and each worker takes a quarter of a gigabyte
GIVES_WAY = 5  # nice of what computes: a third of what others get. 19 is a hundredth: beside a busy program, an hour
PURE_ROOMS = ("algorithms", "core", "group", "handover", "sim", "wandering", "wire")


def is_pure(nodeid: str) -> bool:
    return nodeid.startswith(tuple(f"tests/{room}/" for room in PURE_ROOMS))


def workers() -> int:
    """For a whole run: who computes, and who waits. One more costs 4 s of computing, to find the tests."""
    return cores() + 6


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Those that we may use: a container shows all of its host, and has what its quota says."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share, _, period = quota.read_text().partition(" ") if quota.exists() else ("max", "", "")
    granted = seen if share == "max" else max(1, round(int(share) / int(period)))
    return min(seen, granted, MOST_CORES)


# --- what a worker knows of the tests, and whoever hands them out does not --------------------------------------------


class Place(NamedTuple):
    kind: str
    unit: str
    is_slow: bool


def place_of(item: pytest.Item) -> Place:
    if item.get_closest_marker("alone"):
        kind = ALONE
    else:
        kind = PURE if is_pure(item.nodeid) else BESIDE
    known = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 nothing public tells it
    shared = any(each[-1].scope in ("module", "class", "package") for each in known.values() if each)
    unit = item.nodeid.partition("::")[0] if shared else item.nodeid
    return Place(kind, unit, item.get_closest_marker("slow") is not None)


def write_plan(where: Path, items: Iterable[pytest.Item]) -> None:
    """Every worker writes the same."""
    draft = where.with_name(f"{where.name}.{os.getpid()}")
    draft.write_text(json.dumps({item.nodeid: place_of(item) for item in items}))
    draft.replace(where)


# --- who hands them out ----------------------------------------------------------------------------------------------


class Scheduling:
    """As pytest-xdist wants one (`xdist.scheduler.Scheduling`)."""

    def __init__(self, workers: int, plan: Path) -> None:
        self._workers, self._plan = workers, plan
        self._collections: dict[Any, list[str]] = {}
        self._in_hand: dict[Any, list[str]] = {}  # of each worker; the first one runs
        self._queues: dict[str, deque[list[str]]] = {kind: deque() for kind in (PURE, BESIDE, ALONE)}
        self._places: dict[str, Place] = {}
        self._has_begun = False
        self._computing: set[Any] = set()
        self._last: Any = None  # the worker of those that run alone

    # What it is asked

    @property
    def nodes(self) -> list[Any]:
        return list(self._in_hand)

    @property
    def collection_is_completed(self) -> bool:
        return len(self._collections) >= self._workers

    @property
    def has_pending(self) -> bool:
        return any(self._queues.values()) or any(self._in_hand.values())

    @property
    def tests_finished(self) -> bool:
        """Everything is handed out, and everybody knows it."""
        return self._has_begun and not any(self._queues.values()) and all(node.shutting_down for node in self._in_hand)

    # What it is told

    def add_node(self, node: Any) -> None:
        self._in_hand[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._collections[node] = list(collection)

    def schedule(self) -> None:
        """All have found their tests; or one has that came in the place of one that died."""
        if not self._has_begun:
            self._has_begun = True
            found = list(self._collections.values())
            differ = sorted(set().union(*found).difference(set(found[0]).intersection(*found)))
            assert not differ, f"not every worker found {differ[:5]}"
            self._computing = set(self.nodes[: min(cores(), self._workers // 2)])
            self._fill_queues(found[0])
        self._hand_out()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._in_hand[node].remove(self._collections[node][item_index])
        self._hand_out()

    def remove_node(self, node: Any) -> str | None:
        """The test during which it died, where it did; what else it had in hand another one runs."""
        left = self._in_hand.pop(node)
        if not self._has_begun:
            self._collections.pop(node, None)
            return None
        for test in reversed(left[1:]):
            self._queues[self._places[test].kind].appendleft([test])
        self._last = None if self._last is node else self._last
        self._hand_out()
        return left[0] if left else None

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        raise NotImplementedError

    # What it does

    def _fill_queues(self, tests: Sequence[str]) -> None:
        if tests:
            self._places = {test: Place(*place) for test, place in json.loads(self._plan.read_text()).items()}
        units: dict[tuple[str, str], list[str]] = {}
        for test in sorted(tests, key=lambda test: not self._places[test].is_slow):
            units.setdefault((self._places[test].kind, self._places[test].unit), []).append(test)
        for (kind, _), unit in units.items():
            self._queues[kind].append(unit)

    def _hand_out(self) -> None:
        for node in self.nodes:
            if node in self._collections and not node.shutting_down:
                self._hand_to(node)

    def _hand_to(self, node: Any) -> None:
        if node is not self._last:
            for kind in (PURE, BESIDE) if node in self._computing else (BESIDE, PURE):
                while self._queues[kind] and len(self._in_hand[node]) < self._enough(kind):
                    self._give(node, self._queues[kind].popleft())
                if self._queues[kind]:
                    break  # the other kind when nothing is left of this one
            if len(self._in_hand[node]) >= ONE_RUNS_AND_THE_NEXT:
                return
            if not self._queues[ALONE] or node in self._computing or self._is_another_left(node):
                node.shutdown()  # after what it has in hand
                return
            self._last = node
        self._hand_alone(node)

    def _is_another_left(self, node: Any) -> bool:
        return any(not one.shutting_down for one in self._in_hand if one is not node and one not in self._computing)

    def _hand_alone(self, node: Any) -> None:
        """Until it is quiet one at most, which it does not begin before it knows the next."""
        alone = self._queues[ALONE]
        if any(tests for one, tests in self._in_hand.items() if one is not node):
            if alone and len(self._in_hand[node]) == 1 and self._places[self._in_hand[node][0]].kind != ALONE:
                self._give(node, alone.popleft())
            return
        while alone:
            self._give(node, alone.popleft())
        node.shutdown()

    def _enough(self, kind: str) -> int:
        """In hand. Of what is over in no time some more, so that nobody waits for the next."""
        if kind != PURE or self._places[self._queues[PURE][0][0]].is_slow:
            return ONE_RUNS_AND_THE_NEXT
        return max(ONE_RUNS_AND_THE_NEXT, min(len(self._queues[PURE]) // (8 * self._workers), 16))

    def _give(self, node: Any, unit: list[str]) -> None:
        self._in_hand[node] += unit
        index = self._collections[node].index
        node.send_runtest_some([index(test) for test in unit])
