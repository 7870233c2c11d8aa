"""Takes the picture of the registry's page: `python -m tests.browser.take_picture docs/pictures/registry.png`.

What is on it is real: a registry, six members in processes of their own that copy to two servers, a holder that is
killed in the middle, and a Chromium that looks.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import Tab, chromium
from tests.registry.serving import Served

SECONDS = 100.0
KILL_AT_S = 55.0
NAMES = ["web-1", "web-2", "mail", "build-1", "build-2", "archive"]
MEMBER = """
import asyncio, random, sys
from softmutex import Node

membership, name, seed = sys.argv[1:]
rng = random.Random(seed)

async def work(node, mutex, hold_s, rest_s):
    while True:
        async with node.mutex(mutex):
            await asyncio.sleep(hold_s * rng.lognormvariate(0, 0.5))
        await asyncio.sleep(rest_s * rng.lognormvariate(0, 0.7))

async def main():
    async with Node(transport="udp://127.0.0.1:0", membership=membership, name=name, insecure=True) as node:
        jobs = [work(node, "nightly-ftp", 2.5, 9.0)]
        if not name.startswith("build"):
            jobs.append(work(node, "db-load", 0.4, 6.0))
        await asyncio.gather(*jobs)

asyncio.run(main())
"""


async def start(served: Served, name: str) -> asyncio.subprocess.Process:
    words = [sys.executable, "-W", "ignore", "-c", MEMBER, served.url("lab"), name, str(random.random())]
    return await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)


async def kill_a_holder(tab: Tab, members: dict[str, asyncio.subprocess.Process]) -> None:
    holder = "document.querySelector('[aria-label=\"Mutex nightly-ftp\"] .holds bdi')"
    await tab.until(holder, "somebody holds it")
    members[await tab.ask(f"{holder}.textContent")].kill()


async def take(path: Path, dark: bool, each: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder))
        await asyncio.to_thread(served.start)
        members = {name: await start(served, name) for name in NAMES}
        try:
            async with chromium(Path(folder)) as tab:
                await tab.size(1180, 1190, dark=dark)
                await tab.open(f"{served.base}/#lab")
                await asyncio.sleep(KILL_AT_S)
                await kill_a_holder(tab, members)
                await asyncio.sleep(SECONDS - KILL_AT_S)
                await tab.until(
                    "document.querySelector('.now .holds') && document.querySelector('.now .waits')", "busy"
                )
                await tab.picture(path)
                for name, width in (("wide", 1180), ("phone", 390)) if each else ():
                    for scheme in ("light", "dark"):
                        await tab.size(width, 1190, dark=scheme == "dark")
                        await tab.picture(path.with_suffix(f".{name}.{scheme}.png"))
        finally:
            for one in members.values():
                if one.returncode is None:
                    one.kill()
                await one.wait()
            await asyncio.to_thread(served.stop)
    sys.stdout.write(f"{path}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--each", action="store_true", help="wide and as on a phone, light and dark, beside it")
    arguments = parser.parse_args()
    asyncio.run(take(arguments.path, arguments.dark, arguments.each))
