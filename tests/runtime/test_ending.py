"""Tasks that are told to end."""

import asyncio
import contextlib

from softmutex.ending import end


async def test_a_task_that_swallows_its_cancellation_is_told_again():
    heard = 0

    async def hard_of_hearing() -> None:
        nonlocal heard
        while heard < 3:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                heard += 1

    task = asyncio.create_task(hard_of_hearing())
    await asyncio.sleep(0)
    async with asyncio.timeout(100):
        await end(task)
    assert task.done()
    assert heard == 3


async def test_all_are_ended_whatever_they_end_with(caplog):
    async def breaks() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise ValueError

    tasks = [asyncio.create_task(breaks()), asyncio.create_task(asyncio.sleep(3600)), asyncio.create_task(breaks())]
    await asyncio.sleep(0)
    await end(*tasks, None)
    assert [task.done() for task in tasks] == [True] * 3
    assert tasks[1].cancelled()
    await end(*tasks)
    await end()
    del tasks
    assert "never retrieved" not in caplog.text
