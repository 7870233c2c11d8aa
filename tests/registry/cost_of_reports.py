"""What telling the registry's page costs a hop: `python -m tests.registry.cost_of_reports`.

Two nodes pass one mutex to and fro over UDP, with reports and without, in turns, so that whatever else the machine does
meets both alike.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from softmutex import Node, SoftMutex
from tests.registry.serving import Served

ROUNDS, HOPS = 10, 6000


async def hops(served: Served, report: str, number: int) -> float:
    """Seconds a hop."""
    membership = served.url(f"g{number}", report=report)
    options = {"transport": "udp://127.0.0.1:0", "membership": membership, "insecure": True}
    async with Node(name="a", **options) as one, Node(name="b", **options) as two:

        async def work(mutex: SoftMutex, count: int) -> None:
            for _ in range(count):
                async with mutex:
                    pass

        mutexes = [one.mutex("m"), two.mutex("m")]
        await asyncio.gather(*(work(mutex, 100) for mutex in mutexes))
        began = time.process_time()
        await asyncio.gather(*(work(mutex, HOPS // 2) for mutex in mutexes))
        return (time.process_time() - began) / HOPS


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder))
        await asyncio.to_thread(served.start)
        try:
            took: dict[str, list[float]] = {"yes": [], "no": []}
            for number in range(ROUNDS):
                for report in ("yes", "no") if number % 2 else ("no", "yes"):
                    took[report].append(await hops(served, report, number))
        finally:
            await asyncio.to_thread(served.stop)
    with_s, without_s = (statistics.median(took[report]) for report in ("yes", "no"))
    ratio = statistics.median(one / other for one, other in zip(took["yes"], took["no"], strict=True))
    sys.stdout.write(
        f"processor time a hop, both ends: {with_s * 1e6:.0f} us with reports, {without_s * 1e6:.0f} us without: "
        f"{(ratio - 1) * 100:+.1f} % (median of {ROUNDS} pairs)\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
