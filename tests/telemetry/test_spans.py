"""Spans, with the real SDK and nodes in memory."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from opentelemetry.trace import StatusCode

from softmutex import AcquireTimeout, Node, SoftMutex, sync
from softmutex.core.events import FactKind, Lose, LostReason, Note, Token
from softmutex.ports import Observation
from softmutex.testing import MemoryNetwork
from tests.runtime.group import perform, puppet_mutex, until
from tests.telemetry.sdk import Kept, attributes, id_of, links_of, parent_of


async def test_wait_and_hold_are_children_of_the_callers_span(here: Node, kept: Kept):
    with kept.application.start_as_current_span("job") as job:
        async with here.mutex("x"):
            pass
    [wait], [hold] = kept.spans("softmutex.wait"), kept.spans("softmutex.hold")
    assert parent_of(wait) == parent_of(hold) == job.get_span_context().span_id
    assert wait.end_time is not None and hold.start_time is not None
    assert wait.end_time <= hold.start_time


async def test_without_a_span_of_the_caller_they_begin_traces_of_their_own(here: Node, kept: Kept):
    async with here.mutex("x"):
        pass
    assert parent_of(kept.spans("softmutex.hold")[0]) is None


async def test_what_a_span_says(here: Node, kept: Kept):
    async with here.mutex("x") as hold:
        epoch, hop = hold.epoch, hold.hop
    [wait], [held] = kept.spans("softmutex.wait"), kept.spans("softmutex.hold")
    known = {"softmutex.name": "x", "softmutex.node": "here", "softmutex.algorithm": "wandering"}
    assert attributes(wait) == {**known, "softmutex.outcome": "granted"}
    assert attributes(held) == {**known, "softmutex.epoch": epoch, "softmutex.hop": hop}


async def test_a_hold_is_linked_to_the_hold_before_it_on_whichever_node(here: Node, there: Node, kept: Kept):
    for node in (here, there, there, here):
        async with node.mutex("x").hold(timeout=60):
            pass
    holds = kept.spans("softmutex.hold")
    assert [attributes(hold)["softmutex.node"] for hold in holds] == ["here", "there", "there", "here"]
    assert [links_of(hold) for hold in holds] == [[], *([id_of(hold)] for hold in holds[:-1])]


async def test_a_node_without_telemetry_passes_the_story_on(network: MemoryNetwork, here: Node, kept: Kept):
    async with Node(transport=network.transport(), membership=network.membership(), observers=[]) as silent:
        for node in (here, silent, here):
            async with node.mutex("x").hold(timeout=60):
                pass
    first, second = kept.spans("softmutex.hold")
    assert links_of(second) == [id_of(first)]


async def test_a_hand_over_is_a_child_of_the_hold_that_it_ends(here: Node, there: Node, kept: Kept):
    async with here.mutex("x"):
        wanted = asyncio.create_task(use(there.mutex("x")))
        await until(lambda: asked(here))
    await wanted
    await until(lambda: kept.spans("softmutex.handover"))
    hold, handover = kept.spans("softmutex.hold")[0], kept.spans("softmutex.handover")[0]
    assert parent_of(handover) == id_of(hold)
    assert attributes(handover)["softmutex.node"] == "here"
    assert handover.start_time is not None and hold.end_time is not None
    assert handover.start_time <= hold.end_time, "told when the token was on its way already"


def asked(node: Node) -> int:
    """By whoever waits, or by the home of the mutex, which may be that one itself."""
    received = node.mutex("x").statistics().received
    return received.get("WANT", 0) + received.get("FEED", 0)


async def test_a_token_that_stayed_is_handed_over_when_it_is_wanted_not_when_it_was_let_go(
    here: Node, there: Node, kept: Kept
):
    async with here.mutex("x"):
        pass
    await asyncio.sleep(0)
    with kept.application.start_as_current_span("in between"):
        await until(lambda: kept.spans("softmutex.hold"))
    await use(there.mutex("x"))
    await until(lambda: kept.spans("softmutex.handover"))
    assert (kept.spans("softmutex.handover")[0].start_time or 0) >= (kept.spans("in between")[0].end_time or 0)


async def test_a_hand_over_that_fails_is_told_and_tried_again(here: Node, kept: Kept):
    async with puppet_mutex(here):
        pass
    token = Token(epoch=1, stamp=1, id=1, hop=7)
    await perform(here, Note(FactKind.HANDOVER_FAILED, token, 99, "nobody answers"))
    await perform(here, Note(FactKind.HANDED_OVER, token, 98))
    failed, done = kept.spans("softmutex.handover")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "nobody answers"
    assert done.status.status_code is StatusCode.UNSET
    assert attributes(done)["softmutex.hop"] == 7


async def use(mutex: SoftMutex) -> None:
    async with mutex.hold(timeout=60):
        pass


@pytest.mark.parametrize("how", ["timeout", "cancelled", "closed"])
async def test_a_wait_that_is_not_granted_says_why(network: MemoryNetwork, here: Node, kept: Kept, how: str):
    async with here.mutex("x"):
        other = Node(transport=network.transport(), membership=network.membership(), observers=[kept.observer])
        await other.open()
        mutex = other.mutex("x", timeout=0.01 if how == "timeout" else None)
        waiting = asyncio.create_task(mutex.__aenter__())
        await until(lambda: mutex.statistics().waiting or waiting.done())
        if how == "cancelled":
            waiting.cancel()
        if how != "closed":
            await asyncio.wait([waiting])
        await other.close()
        await asyncio.gather(waiting, return_exceptions=True)
    outcomes = [attributes(wait)["softmutex.outcome"] for wait in kept.spans("softmutex.wait")]
    assert outcomes == ["granted", how]
    status = kept.spans("softmutex.wait")[1].status.status_code
    assert status is (StatusCode.UNSET if how == "cancelled" else StatusCode.ERROR)
    assert kept.sum("softmutex.acquisitions", outcome=how) == 1
    assert len(kept.spans("softmutex.hold")) == 1


async def test_a_lost_or_overlong_hold_has_an_event_that_says_so(here: Node, kept: Kept):
    mutex = puppet_mutex(here, max_hold=0.001)
    async with mutex:
        await perform(here, Lose(1, LostReason.LEASE))
        await until(lambda: mutex.statistics().overruns)
    [hold] = kept.spans("softmutex.hold")
    lost, overrun = sorted(hold.events, key=lambda event: event.name)
    assert (lost.name, dict(lost.attributes or {})) == ("softmutex.lost", {"softmutex.reason": "lease"})
    assert overrun.name == "softmutex.overrun"


def test_a_thread_has_its_own_callers_span(kept: Kept):
    options = {"transport": "memory://traced", "membership": "memory://traced", "observers": [kept.observer]}
    with sync.Node(**options) as node:  # type: ignore[arg-type]
        jobs: dict[str, int] = {}

        def work(name: str) -> None:
            with kept.application.start_as_current_span(name) as job, node.mutex("x").hold(timeout=60):
                jobs[name] = job.get_span_context().span_id

        threads = [threading.Thread(target=work, args=(f"job {number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(parent_of(hold) or 0 for hold in kept.spans("softmutex.hold")) == sorted(jobs.values())


async def test_after_a_burst_only_some_are_traced_and_the_story_goes_on(network: MemoryNetwork):
    at_once, a_second, burst = 3, 5, 100
    kept = Kept(traced_at_once=at_once, traced_a_second=a_second)
    async with Node(transport=network.transport(), membership=network.membership(), observers=[kept.observer]) as node:
        begun, used = time.monotonic(), burst
        for _ in range(burst):
            await use(node.mutex("x"))
        traced = len(kept.spans("softmutex.hold"))
        assert at_once <= traced <= at_once + a_second * (time.monotonic() - begun)
        while len(kept.spans("softmutex.hold")) == traced:  # for a fifth of a second
            await use(node.mutex("x"))
            used += 1
    holds = kept.spans("softmutex.hold")
    assert len(holds) == traced + 1
    assert links_of(holds[-1]) == [id_of(holds[-2])]
    assert kept.sum("softmutex.acquisitions") == used
    kept.close()


class Courier:
    """An observer that sends along with the token whatever it was made with."""

    def __init__(self, baggage: bytes) -> None:
        self._baggage = baggage

    def notice(self, observation: Observation) -> None: ...

    def baggage(self, observation: Observation) -> bytes:
        return self._baggage


@pytest.mark.parametrize("baggage", [b"", b"\0" * 25, b"x" * 24, b"x" * 64])
async def test_what_is_no_trace_context_is_no_link(network: MemoryNetwork, here: Node, kept: Kept, baggage: bytes):
    async with Node(
        transport=network.transport(), membership=network.membership(), observers=[Courier(baggage)]
    ) as other:
        await use(other.mutex("x"))
        await use(here.mutex("x"))
    assert links_of(kept.spans("softmutex.hold")[-1]) == []


async def test_a_timeout_is_an_error_of_the_wait_not_of_the_telemetry(here: Node, there: Node, kept: Kept):
    async with here.mutex("x"):
        with pytest.raises(AcquireTimeout):
            await use_within(there, 0.01)
    assert "observers" not in there.statistics().told


async def use_within(node: Node, timeout_s: float) -> None:
    async with node.mutex("x").hold(timeout=timeout_s):
        pass
