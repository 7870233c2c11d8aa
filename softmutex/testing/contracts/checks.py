"""What the contracts check with: no pytest, no clock where a condition will do, nothing that `python -O` removes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from softmutex.ending import end
from softmutex.ports import Closed

T = TypeVar("T")


def check(condition: bool, otherwise: str) -> None:
    """`assert`, but also under `python -O`, and readable without pytest's rewriting."""
    if not condition:
        raise AssertionError(otherwise)


async def eventually(
    condition: Callable[[], bool], otherwise: str | Callable[[], str], within_s: float = 100.0
) -> None:
    """Waits for the condition, not for the clock."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        if loop.time() >= deadline:
            said = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"{said} (waited {within_s:g} s)")
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def repeating(act: Callable[[], object]) -> AsyncIterator[None]:
    """Datagrams may be lost: `act` is done again and again until the body ends."""

    async def repeat() -> None:
        while True:
            act()
            await asyncio.sleep(0.05)

    repeater = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        if repeater.done():
            repeater.result()  # it failed, and what it does was not done again
        await end(repeater)


class Holdings:
    """Tasks, descriptors and timers that are there now, and whether only those are there again later."""

    def __init__(self) -> None:
        self._before = self._count()

    async def must_return(self) -> None:
        left: list[str] = []

        def are_back() -> bool:
            now = self._count()
            left[:] = [f"{now[kind] - count} {kind}" for kind, count in self._before.items() if now[kind] > count]
            return not left

        with contextlib.suppress(AssertionError):
            await eventually(are_back, "", within_s=5.0)  # a socket of asyncio closes in the turn after
        check(not left, f"left behind after aclose: {', '.join(left)}")

    @staticmethod
    def _count() -> dict[str, int]:
        scheduled = getattr(asyncio.get_running_loop(), "_scheduled", ())  # not every loop lists its timers
        return {
            "tasks": len(asyncio.all_tasks()),
            "descriptors": len(os.listdir("/dev/fd")),
            "timers": sum(not handle.cancelled() for handle in scheduled),
        }


async def in_time(what: Awaitable[T], otherwise: str, within_s: float) -> T:
    try:
        return await asyncio.wait_for(what, within_s)
    except TimeoutError:
        raise AssertionError(f"{otherwise} (waited {within_s:g} s)") from None


async def must_be_closed(waiting: Awaitable[object], within_s: float) -> None:
    try:
        got = await in_time(waiting, "it still waits after aclose", within_s)
    except Closed:
        return
    raise AssertionError(f"after aclose it returned {got!r} instead of raising Closed")
