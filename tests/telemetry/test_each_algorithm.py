"""What `softmutex status`, spans, metrics and the registry's page are told: by each algorithm, with a token or without.

The naive way, to show a token where one is expected, shows one that is not there, or counts permissions as hand-overs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from softmutex_adapters.registry.reporter import Reporter

from softmutex import Node, plugins
from softmutex.cli import status
from softmutex.runtime.config import resolve, with_places
from tests.runtime.group import until
from tests.telemetry.sdk import Kept, attributes

WITH_TOKEN = {"wandering", "token-ring", "suzuki-kasami", "raymond", "ring-search", "binary-search"}
WITHOUT = {"central", "ricart-agrawala", "voting", "sigma", "e2e", "non-e2e"}
OF_THE_PAPERS = {"adaptive", "sandwich", "random-access"}  # they let two run, and are for measuring


def test_each_algorithm_is_here():
    installed = {name: plugins.algorithm(name) for name in plugins.installed(plugins.Role.ALGORITHM)}
    ours = {name for name, each in installed.items() if each.__module__.startswith("softmutex.") and not each.elects}
    told = WITH_TOKEN | WITHOUT | OF_THE_PAPERS | {"keeper"}  # it is being made
    assert ours == told, f"say here whether a token tells who holds it: WITH_TOKEN or WITHOUT {sorted(ours ^ told)}"


@pytest.mark.parametrize("algorithm", sorted(WITH_TOKEN | WITHOUT))
async def test_who_holds_and_who_waits_is_told_and_a_token_only_where_there_is_one(
    algorithm: str, kept: Kept, no_leaks: None, tmp_path: Path
):
    reporter = Reporter(lambda: None, asyncio.get_running_loop().time)
    where = {"membership": f"local://?directory={tmp_path}"}
    observers = [kept.observer, reporter]
    async with Node(name="a", observers=observers, **where) as a, Node(name="b", observers=observers, **where) as b:
        async with a.mutex("x", algorithm=algorithm).hold(timeout=60) as hold:
            waiter = asyncio.create_task(use(b, algorithm))
            await until(lambda: b.mutex("x", algorithm=algorithm).statistics().waiting)
            picture = await status.look(with_places(resolve(where)), None)
            (x,) = picture["mutexes"]
            assert (x["algorithm"], [each["node"] for each in x["holders"]]) == (algorithm, ["a"])
            assert ([each["node"] for each in x["waiting"]], x["waiting_count"]) == (["b"], 1)
            assert x["tokens_at"] == (["a"] if algorithm in WITH_TOKEN else [])
            (line,) = [each for each in status.lines(picture) if each.startswith("x ")]
            assert ("epoch" in line) == (algorithm in WITH_TOKEN | {"central"})  # that of its coordinator
            assert not hold.lost.is_set()
        await waiter
        await until(lambda: len(kept.spans("softmutex.hold")) == 2)
        said = "\n".join(status.lines(await status.look(with_places(resolve(where)), None)))
        assert algorithm in WITH_TOKEN or said.endswith("\n  free"), said
        assert {attributes(span)["softmutex.algorithm"] for span in kept.spans("softmutex.hold")} == {algorithm}
        assert {attributes(span)["softmutex.outcome"] for span in kept.spans("softmutex.wait")} == {"granted"}
        assert kept.sum("softmutex.acquisitions", outcome="granted", algorithm=algorithm) == 2
        assert kept.sum("softmutex.messages") > 0
        for metric in ("handovers", "regenerations", "discards"):
            assert algorithm in WITH_TOKEN or kept.sum(f"softmutex.{metric}") == 0, metric
        assert kept.sum("softmutex.overlaps") == 0
        told = reporter.draw()
        assert told is not None
        assert sum(each["acquisitions"] for each in told["mutexes"]) == 2
        assert algorithm in WITH_TOKEN or not any(each["tokens"] for each in told["mutexes"])


async def use(node: Node, algorithm: str) -> None:
    async with node.mutex("x", algorithm=algorithm).hold(timeout=60):
        pass
