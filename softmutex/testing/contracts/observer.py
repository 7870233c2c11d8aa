from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from softmutex.core.events import SECOND, FactKind, NodeId, Note
from softmutex.ports import Choosy, Courier, Guest, Lately, Observation, Observer, Reader, Sleeper, Tracer
from softmutex.testing.contracts.checks import check

BAGGAGE_MAX = 64
MUTEX = "contract"


class SeenNode:
    """A node as observers see it."""

    def __init__(self, id: NodeId) -> None:
        self.id = id
        self.name = f"node-{id}"
        self.lasting_name = "node"

    def members(self) -> int:
        return 2

    def sent(self) -> Mapping[tuple[str, str], int]:
        return {(MUTEX, "COMMIT"): 3}

    def algorithm(self, mutex: str) -> str:
        return "wandering" if mutex == MUTEX else ""

    def settle(self) -> None: ...


class SeenDiary:
    """One mutex on a node, as readers see it: one waits, one holds."""

    mutex, algorithm = MUTEX, "wandering"

    def __init__(self, node: NodeId) -> None:
        self.node = node

    def is_used(self) -> bool:
        return True

    def waiting(self) -> Sequence[tuple[int, int, int]]:
        return [(SECOND, 1, 0)]

    def holding(self) -> Sequence[tuple[int, int, int, int, int]]:
        return [(SECOND, 0, 1, 2, 1)]

    def tokens(self) -> Mapping[int, tuple[int, int, NodeId]]:
        return {0: (1, 2, self.node)}


QUICK_OF = 3  # tries that the machine may have stood still in; what waits, waits in each


class ObserverContract:
    """O1 of `softmutex.ports.Observer`, and O3 to O8 of those that are more than that. (O2 is the node's to keep.)"""

    at_once_s: ClassVar[float] = 0.25  # far more than it should take, and far less than a call over a network may

    def make(self) -> Observer:
        """One that is awake."""
        raise NotImplementedError

    # --- O1 ---------------------------------------------------------------------------------------------------------

    async def test_o1_notice_returns_at_once_whatever_happened(self) -> None:
        observer, node = self.make(), SeenNode(7)
        open_for(observer, node)
        tries: list[list[float]] = []
        for number in range(QUICK_OF):
            tries.append([])
            for observation in story(node.id, first_request=1 + number):
                began = time.perf_counter()
                observer.notice(observation)
                tries[-1].append(time.perf_counter() - began)
        for observation, *took_s in zip(story(node.id), *tries, strict=True):
            check(min(took_s) < self.at_once_s, f"notice of {observation.what} took {min(took_s):.3f} s")
        close_for(observer, node)

    async def test_o1_notice_may_be_called_from_any_thread(self) -> None:
        observer, node = self.make(), SeenNode(7)
        open_for(observer, node)
        failed: list[BaseException] = []

        def tell() -> None:
            try:
                for observation in story(node.id):
                    observer.notice(observation)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=tell) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        check(not failed, f"notice raised in a thread: {failed}")
        close_for(observer, node)

    # --- O3 to O8, where it is more than an observer ------------------------------------------------------------------

    async def test_o3_it_says_at_once_whether_it_is_asleep_and_once_awake_stays_awake(self) -> None:
        observer = self.make()
        if not isinstance(observer, Sleeper):
            return
        fastest = self.at_once_s
        for _ in range(QUICK_OF):
            began = time.perf_counter()
            check(observer.asleep() is False, "an observer that is awake says that it is asleep")
            fastest = min(fastest, time.perf_counter() - began)
        check(fastest < self.at_once_s, "asleep() takes its time")
        node = SeenNode(7)
        open_for(observer, node)
        for observation in story(node.id):
            observer.notice(observation)
        check(observer.asleep() is False, "it fell asleep")
        close_for(observer, node)

    async def test_o4_its_baggage_fits_and_comes_out_at_the_next_hold(self) -> None:
        observer, node = self.make(), SeenNode(7)
        if not isinstance(observer, Courier):
            return
        open_for(observer, node)
        packed = b""
        for observation in story(node.id):
            if observation.what == "hold_ended":
                packed = observer.baggage(observation)
                check(len(packed) <= BAGGAGE_MAX, f"{len(packed)} bytes of baggage, and {BAGGAGE_MAX} may travel")
            observer.notice(observation)
        for observation in story(node.id, packed, first_request=2):
            observer.notice(observation)
        for strange in (b"\xff", bytes(BAGGAGE_MAX)):  # it came from outside
            for observation in story(node.id, strange, first_request=3):
                observer.notice(observation)
        close_for(observer, node)

    async def test_o5_which_messages_it_wants_stays_the_same(self) -> None:
        observer = self.make()
        if not isinstance(observer, Choosy):
            return
        wanted = observer.messages
        check(isinstance(wanted, bool) or all(isinstance(kind, str) for kind in wanted), f"it wants {wanted!r}")
        node = SeenNode(7)
        open_for(observer, node)
        check(observer.messages == wanted, "it changed its mind")
        close_for(observer, node)

    async def test_o7_the_trace_of_a_hold_is_told_while_it_lasts(self) -> None:
        observer, node = self.make(), SeenNode(7)
        if not isinstance(observer, Tracer):
            return
        open_for(observer, node)
        for observation in story(node.id):
            observer.notice(observation)
            if observation.what == "hold_started":
                headers = observer.trace_of(observation)
                check(set(headers) <= {"traceparent", "tracestate"}, f"unknown headers: {dict(headers)}")
                check(len(headers.get("traceparent", "").split("-")) in (1, 4), f"no traceparent: {dict(headers)}")
            if observation.what == "hold_ended":
                check(not observer.trace_of(observation), "the hold is over")
        close_for(observer, node)

    async def test_o6_it_may_be_shown_several_nodes(self) -> None:
        observer = self.make()
        if not isinstance(observer, Guest):
            return
        one, two = SeenNode(7), SeenNode(8)
        observer.opened(one)
        observer.opened(two)
        observer.closed(one)
        for observation in story(two.id):
            observer.notice(observation)
        observer.closed(two)

    async def test_o8_it_reads_at_once_in_any_thread(self) -> None:
        observer, node = self.make(), SeenNode(7)
        if not isinstance(observer, Reader):
            return
        reader, diary = observer, SeenDiary(7)
        open_for(observer, node)
        many = Lately([0, SECOND] * 8, [(SECOND, 2 * SECOND), (2 * SECOND, 2 * SECOND)] * 8, 16, 3 * SECOND)
        took: list[float] = []

        def read() -> None:
            for lately in (many, Lately([], [], 0, 4 * SECOND)):
                began = time.perf_counter()
                check(isinstance(reader.follows(), bool), "follows() says neither yes nor no")
                reader.read(diary, lately)
                took.append(time.perf_counter() - began)

        read()
        for _ in range(QUICK_OF):
            await asyncio.to_thread(read)
        check(len(took) == 2 * (1 + QUICK_OF), "it could not be read in a thread")
        check(min(took[::2]) < self.at_once_s and min(took[1::2]) < self.at_once_s, "read() takes its time")
        close_for(observer, node)


def open_for(observer: Observer, node: SeenNode) -> None:
    if isinstance(observer, Guest):
        observer.opened(node)


def close_for(observer: Observer, node: SeenNode) -> None:
    if isinstance(observer, Guest):
        observer.closed(node)


def story(node: NodeId, baggage: bytes = b"", first_request: int = 1) -> list[Observation]:
    """One acquisition, with all that may happen to it; one that was not granted; and what concerns the whole node."""

    def seen(what: str, **values: float | int | str) -> Observation:
        return Observation(MUTEX, node, what, values)

    request = first_request
    facts = [Observation(MUTEX, node, kind.value, {"detail": "x"}, Note(kind, None, 9, "x")) for kind in FactKind]
    return [
        seen("wait_started", claim=request, algorithm="wandering"),
        seen("message_sent", kind="WANT"),
        seen("message_received", kind="COMMIT"),
        seen("wait_ended", claim=request, outcome="granted", seconds=0.1),
        seen(
            "hold_started",
            claim=request,
            request=request,
            algorithm="wandering",
            epoch=1,
            hop=2,
            baggage=baggage.hex(),
        ),
        seen("overrun", request=request),
        seen("hold_lost", request=request, reason="overlap"),
        seen("hold_ended", request=request, seconds=0.2),
        *facts,
        seen("wait_started", claim=-request, algorithm="wandering"),
        seen("wait_ended", claim=-request, outcome="timeout", seconds=0.1),
        Observation("", node, "members", {"count": 2}),
        Observation("", node, "loop_lag", {"seconds": 0.01}),
    ]
