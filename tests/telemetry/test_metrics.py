"""Metrics, with the real SDK and nodes in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from softmutex_adapters.observers.otel import OpenTelemetry

from softmutex import Node, SoftMutex, plugins
from softmutex.core.events import FactKind, Note, Send
from softmutex.core.messages import Withdraw
from softmutex.ports import Lately, Observation
from softmutex.testing import MemoryNetwork
from softmutex.testing.contracts.observer import SeenDiary, SeenNode
from tests.runtime.group import Puppet, perform, puppet_mutex, until
from tests.telemetry.sdk import Kept

ALL = {
    "softmutex.wait.duration",
    "softmutex.hold.duration",
    "softmutex.acquisitions",
    "softmutex.handovers",
    "softmutex.regenerations",
    "softmutex.discards",
    "softmutex.overlaps",
    "softmutex.overruns",
    "softmutex.messages",
    "softmutex.members",
    "softmutex.loop.lag",
}


async def use(mutex: SoftMutex) -> None:
    async with mutex.hold(timeout=60):
        pass


async def test_every_promised_metric_is_there(here: Node, there: Node, kept: Kept):
    await use(here.mutex("x"))
    await use(there.mutex("x"))
    await until(lambda: set(kept.points()) >= ALL)


async def test_counters_are_there_at_zero_before_anything_goes_wrong(here: Node, kept: Kept):
    await use(here.mutex("x"))
    for name in ("handovers", "regenerations", "discards", "overlaps", "overruns"):
        assert [point.value for point in kept.points()[f"softmutex.{name}"]] == [0], name
    outcomes = {point.attributes["softmutex.outcome"]: point.value for point in kept.points()["softmutex.acquisitions"]}
    assert outcomes == {"granted": 1, "timeout": 0, "cancelled": 0, "closed": 0}


async def test_durations_are_in_seconds(here: Node, kept: Kept):
    async with here.mutex("x"):
        before = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > before + 0.05)
    [hold] = kept.points()["softmutex.hold.duration"]
    assert hold.count == 1
    assert 0.05 <= hold.sum < 45
    assert hold.explicit_bounds[0] == 0.001 and hold.explicit_bounds[-1] == 36000


async def test_labels_name_the_mutex_its_algorithm_and_the_node(here: Node, kept: Kept):
    await use(here.mutex("x"))
    [hold] = kept.points()["softmutex.hold.duration"]
    assert dict(hold.attributes) == {
        "softmutex.name": "x",
        "softmutex.algorithm": "wandering",
        "softmutex.node": "here",
    }


async def test_a_program_that_joins_again_and_again_has_one_series(network: MemoryNetwork, kept: Kept):
    for _ in range(3):
        async with Node(
            transport=network.transport(), membership=network.membership(), observers=[kept.observer]
        ) as node:
            await use(node.mutex("x"))
    [hold] = kept.points()["softmutex.hold.duration"]
    assert hold.count == 3
    assert str(hold.attributes["softmutex.node"]).endswith(f"-{os.getpid()}")
    assert kept.sum("softmutex.acquisitions", outcome="granted") == 3


async def test_messages_stay_counted_when_their_node_is_closed(here: Node, there: Node, kept: Kept):
    await use(here.mutex("x"))
    await use(there.mutex("x"))
    before = kept.sum("softmutex.messages")
    assert kept.sum("softmutex.messages", kind="COMMIT", node="here") >= 1
    await there.close()
    assert kept.sum("softmutex.messages") >= before > 0


async def test_members_are_those_that_a_node_knows_with_itself(here: Node, there: Node, kept: Kept):
    await until(lambda: kept.sum("softmutex.members", node="here") == 2)
    await there.close()
    await until(lambda: kept.sum("softmutex.members", node="here") == 1)
    assert kept.sum("softmutex.members", node="there") == 0


async def test_hand_overs_are_counted_by_their_sender(here: Node, there: Node, kept: Kept):
    for node in (here, there, here):
        await use(node.mutex("x"))
    await until(lambda: kept.sum("softmutex.handovers") == 2)
    assert kept.sum("softmutex.handovers", node="there") == 1


@pytest.mark.parametrize(
    ("kind", "detail", "metric", "more"),
    [
        (FactKind.GENERATED, "the first one", "regenerations", 0),
        (FactKind.GENERATED, "the holder is silent", "regenerations", 1),
        (FactKind.DISCARDED, "", "discards", 1),
        (FactKind.OVERLAP, "", "overlaps", 1),
    ],
)
async def test_facts_are_counted(here: Node, kept: Kept, kind: FactKind, detail: str, metric: str, more: int):
    await use(puppet_mutex(here))
    await perform(here, Note(kind, detail=detail))
    assert kept.sum(f"softmutex.{metric}", name="x", algorithm="puppet") == more


async def test_every_machine_calls_its_first_token_the_first_one():
    """The metric of regenerations leaves that one out by these words."""
    core = Path(__file__).parent.parent.parent / "softmutex" / "core" / "algorithms"
    makers = [path for path in core.rglob("*.py") if re.search(r"FactKind\.GENERATED", path.read_text())]
    first = [path for path in core.rglob("*.py") if '"the first one"' in path.read_text()]
    assert {path.parent for path in makers} == {path.parent for path in first}


async def test_facts_about_a_mutex_that_only_others_use_are_counted_too(
    here: Node, there: Node, kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plugins, "algorithm", lambda name: {"puppet": Puppet}[name])
    await use(puppet_mutex(there))
    await perform(there, Send(here.id, Withdraw(1)))
    await until(lambda: here.statistics().mutexes)
    await perform(here, Note(FactKind.OVERLAP))
    assert kept.sum("softmutex.overlaps", name="x", algorithm="puppet", node="here") == 1


async def test_an_overrun_is_counted(here: Node, kept: Kept):
    mutex = here.mutex("x", max_hold=0.001)
    async with mutex:
        await until(lambda: mutex.statistics().overruns)
    assert kept.sum("softmutex.overruns", name="x") == 1


async def test_a_loop_is_timed_also_while_nothing_blocks_it(here: Node, kept: Kept):
    await until(lambda: kept.sum("softmutex.loop.lag", node="here") >= 2)


@pytest.mark.parametrize("traced", [0, 1000])
async def test_who_is_cancelled_as_it_is_granted_is_counted_once(network: MemoryNetwork, traced: int):
    kept = Kept(traced_at_once=traced, traced_a_second=0)
    async with Node(transport=network.transport(), membership=network.membership(), observers=[kept.observer]) as node:
        mutex = node.mutex("x")
        async with mutex:
            waiting = asyncio.create_task(use(mutex))
            await until(lambda: mutex.statistics().waiting)
        waiting.cancel()  # it is granted, and does not know it
        await asyncio.gather(waiting, return_exceptions=True)
    outcomes = {outcome: kept.sum("softmutex.acquisitions", outcome=outcome) for outcome in ("granted", "cancelled")}
    assert outcomes == {"granted": 1, "cancelled": 1}
    assert (kept.sum("softmutex.wait.duration"), kept.sum("softmutex.hold.duration")) == (2, 1)
    kept.close()


def test_loops_that_begin_at_once_have_the_same_instruments():
    """Made twice, the second set of counters is refused by the SDK, and the first is forgotten here."""

    class Slow(MeterProvider):
        def get_meter(self, *args: Any, **kwargs: Any) -> Any:
            made.append(threading.get_ident())
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # as long as the other one has to come here, too
            return super().get_meter(*args, **kwargs)

    made: list[int] = []
    both = threading.Barrier(2)
    provider = Slow(shutdown_on_exit=False)
    observer = OpenTelemetry(tracer_provider=TracerProvider(shutdown_on_exit=False), meter_provider=provider)
    threads = [threading.Thread(target=observer.follows) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


async def test_what_is_read_while_its_node_is_closed_is_told_under_its_name(kept: Kept):
    """The SDK collects in a thread of its own, and may have the last of it in hand."""
    seen = SeenNode(7)
    kept.observer.opened(seen)
    kept.observer.closed(seen)
    kept.observer.read(SeenDiary(7), Lately([0], [(0, 1)], 0, 1))
    kept.observer.notice(Observation("x", 7, "wait_ended", {"claim": 1, "outcome": "closed", "seconds": 1.0}))
    names = {point.attributes["softmutex.node"] for point in kept.points()["softmutex.wait.duration"]}
    assert names == {seen.lasting_name}
