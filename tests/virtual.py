"""Tests that need no real time, and leave nothing behind: the fixture `no_leaks` looks at the loop of real time."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from softmutex.testing import in_virtual_time
from tests.leaks import Census

P = ParamSpec("P")


def no_leaks_in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    async def watched(*args: P.args, **named: P.kwargs) -> None:
        before = Census.take()
        await test(*args, **named)
        await before.must_return()

    return in_virtual_time(watched)
