"""Tasks that are told to end, and do.

What it decides: a cancellation is said until it was heard. The naive way, `cancel()` once and to wait, waits for ever
where a library swallowed it: `asyncio.wait_for` of Python 3.11 does, if what it waits for is done in that moment.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

AGAIN_S: Final = 1.0  # whoever heard it has so long to clean up undisturbed


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Returns when all of them have ended, however they did."""
    each = {task for task in tasks if task is not None}
    running = each
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=AGAIN_S)
    for task in each:
        if not task.cancelled():
            task.exception()  # asyncio complains of one that nobody looked at
