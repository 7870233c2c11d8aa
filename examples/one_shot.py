"""Eight workers of one user on one host: at most one uploads at a time. Nothing to start, nothing to configure."""

import asyncio

from softmutex import SoftMutex


async def worker(number: int) -> None:
    async with SoftMutex("example-one-shot", timeout=30) as hold:
        print(f"worker {number} uploads (it waited {hold.waited:.3f} s; token {hold.epoch}.{hold.hop})")
        await asyncio.sleep(0.02)


async def main() -> None:
    await asyncio.gather(*(worker(number) for number in range(8)))


asyncio.run(main())
