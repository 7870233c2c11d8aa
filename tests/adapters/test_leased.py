"""What LeasedMembership promises on any board; on real ones: tests/contracts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from softmutex_adapters.memberships.leased import LeasedMembership, Page

from softmutex.ports import Member
from softmutex.testing import in_virtual_time

ME = Member("127.0.0.1:1", 1, "me")


class Lingering:
    """A board that takes its time to hear that it is not wanted any more."""

    where = "board://lingering"

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    async def beat(self, address: str, line: str, ttl_s: float, *, may_sweep: bool) -> Page:
        if line:
            self.lines[address] = line
        return Page("first", dict(self.lines))

    async def changed(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)

    async def drop(self, address: str, line: str) -> None:
        await asyncio.sleep(0.5)
        del self.lines[address]

    async def aclose(self) -> None:
        pass


def at_work() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "board://lingering" in task.get_name()]


@pytest.mark.parametrize("change", ["join", "leave"])
@in_virtual_time
async def test_who_watches_while_it_joins_or_leaves_starts_nothing_that_stays(change: str):
    """Those of before were ending, and those that the watcher began were forgotten: they beat for ever."""
    membership = LeasedMembership(Lingering(), "lab")
    if change == "leave":
        await membership.join(ME)
    await membership.watch()
    changes: dict[str, Callable[[], Awaitable[None]]] = {
        "join": lambda: membership.join(ME),
        "leave": membership.leave,
    }
    changing = asyncio.ensure_future(changes[change]())
    watching = []
    for _ in range(30):
        await asyncio.sleep(0.1)
        watching.append(asyncio.create_task(membership.watch()))
    await changing
    assert len(at_work()) == 2
    await membership.aclose()
    assert at_work() == []
    await asyncio.gather(*watching, return_exceptions=True)
