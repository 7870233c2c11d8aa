"""The table of docs/explanation/isolation.md: deaths and cuts, settings, what each side does. Each row is a test.

Five nodes, a list of addresses; one of them used the mutex before. It happens, and then all that are left want it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from softmutex import AcquireTimeout, Isolated, Node
from softmutex.testing import in_virtual_time
from tests.runtime.test_group import Company, company

FIVE = "abcde"
SOON_S = 15.0


async def wants(node: Node, within_s: float, when_isolated: str) -> str:
    """In a word, and the second in which it came."""
    begun = asyncio.get_running_loop().time()
    try:
        async with node.mutex("x", when_isolated=when_isolated, isolated_timeout=60).hold(timeout=within_s):
            took_s = asyncio.get_running_loop().time() - begun
            return "soon" if took_s <= SOON_S else "late" if 55 <= took_s <= 85 else f"after {took_s:.0f} s"
    except AcquireTimeout:
        return "waits"
    except Isolated:
        return "Isolated"


async def each_of(company: Company, names: str, within_s: float, when_isolated: str) -> Sequence[str]:
    return await asyncio.gather(*(wants(company[name], within_s, when_isolated) for name in names))


async def used_by(company: Company, name: str, when_isolated: str) -> None:
    """And all know how it is to be run."""
    for node in company.nodes.values():
        async with node.mutex("x", when_isolated=when_isolated, isolated_timeout=60).hold(timeout=10):
            pass
    async with company[name].mutex("x", when_isolated=when_isolated, isolated_timeout=60).hold(timeout=10):
        pass


def die(company: Company, names: str) -> None:
    """kill -9: their hosts refuse."""
    for name in names:
        company.network.crash(name)


def lose_power(company: Company, names: str) -> None:
    for name in names:
        company.network.switch_off(name)


Trouble = Callable[[Company, str], None]


@pytest.mark.parametrize("when_isolated", ["wait", "proceed", "raise"])
@pytest.mark.parametrize(
    ("trouble", "lost", "user", "expected"),
    [
        (die, "a", "a", {"wait": {"soon"}, "proceed": {"soon"}, "raise": {"soon"}}),
        (die, "abc", "a", {"wait": {"soon"}, "proceed": {"soon"}, "raise": {"soon"}}),
        (die, "abcd", "b", {"wait": {"soon"}, "proceed": {"soon"}, "raise": {"soon"}}),
        (lose_power, "ab", "a", {"wait": {"soon"}, "proceed": {"soon"}, "raise": {"soon"}}),
        (lose_power, "abc", "a", {"wait": {"late"}, "proceed": {"soon"}, "raise": {"Isolated", "late"}}),
    ],
)
def test_deaths(trouble: Trouble, lost: str, user: str, expected: dict[str, set[str]], when_isolated: str):
    @in_virtual_time
    async def main() -> None:
        async with company(FIVE, leave_timeout=0.2) as five:
            await used_by(five, user, when_isolated)
            trouble(five, lost)
            left = "".join(name for name in FIVE if name not in lost)
            assert set(await each_of(five, left, 120.0, when_isolated)) <= expected[when_isolated]

    main()


@pytest.mark.parametrize("when_isolated", ["wait", "proceed", "raise"])
@pytest.mark.parametrize("user", ["a", "e"])
def test_a_cut(user: str, when_isolated: str):
    @in_virtual_time
    async def main() -> None:
        async with company(FIVE, leave_timeout=0.2) as five:
            await used_by(five, user, when_isolated)
            five.cut("ab", "cde")
            smaller, larger = await asyncio.gather(
                each_of(five, "ab", 40.0, when_isolated), each_of(five, "cde", 40.0, when_isolated)
            )
            assert set(larger) == {"soon"}
            if user == "e":
                told = {"wait": {"waits"}, "proceed": {"soon"}, "raise": {"Isolated", "waits"}}
                assert set(smaller) <= told[when_isolated]

    main()


@pytest.mark.parametrize(("election", "by_s"), [("bully", 70), ("ring", 200)])
def test_a_leader_that_is_cut_off_with_the_smaller_side_is_told_long_before_another_leads(election: str, by_s: float):
    """It led on, unaware, until it was heard again: beside the one that the others elected after `isolated_timeout` for
    each that had been cut off, and by `ring` not at all."""

    @in_virtual_time
    async def main() -> None:
        async with company(FIVE, leave_timeout=0.2) as five:
            options = {"algorithm": election, "isolated_timeout": 60, "on_lost": "continue"}
            for node in five.nodes.values():
                async with node.lead("x", **options):
                    pass
            now = asyncio.get_running_loop().time
            async with five["a"].lead("x", **options) as lease:
                candidate = asyncio.ensure_future(five["d"].lead("x", **options).acquire())
                cut_at = now()
                five.cut("ab", "cde")
                await asyncio.wait_for(lease.lost.wait(), 10)
                assert lease.lost_reason == "isolated" and not candidate.done()
                await asyncio.wait_for(candidate, by_s)
                assert now() - cut_at > 55
            await candidate.result().release()

    main()


def test_a_leader_with_the_larger_side_leads_on():
    @in_virtual_time
    async def main() -> None:
        async with company(FIVE, leave_timeout=0.2) as five, five["a"].lead("x") as lease:
            five.cut("abc", "de")
            await asyncio.sleep(120)
            assert not lease.lost.is_set()

    main()


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
