"""Starts the server and the crowds, hears what they tell, and leaves nothing behind.

Whoever is started here lives in a process group of its own, so that Ctrl-C reaches this process alone, and holds a
pipe whose other end is here, so that it ends with us however we end. On the way out the group is killed all the same:
a subscriber in the middle of a transfer has nothing to tidy up.

The naive way, children that share our group and a `finally` that terminates them, prints 33 stack traces at Ctrl-C and
leaves 33 processes after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from softmutex_adapters.demo.plan import FILE, STAGES, Plan
from softmutex_adapters.demo.tally import Tally

READY_S = 60.0
SAID = "stderr"


class DemoFailed(Exception):
    """The run could not be made, or a part of it ended early."""


def write_into(path: Path) -> BinaryIO:
    return path.open("wb")


@asynccontextmanager
async def process(
    *words: str, within: Sequence[str] = (), pass_fds: tuple[int, ...] = (), cwd: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python of ours with a life line, without the user's softmutex settings: they are for the user's own groups."""
    with write_into(Path(cwd, SAID)) as said:
        child = await asyncio.create_subprocess_exec(
            *within,
            sys.executable,
            "-m",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            process_group=0,
            pass_fds=pass_fds,
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")},
        )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


def last_words(cwd: str) -> str:
    """The last line that the process which was started last left on standard error."""
    lines = Path(cwd, SAID).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it does not say why"


class Demo:
    """`tallies` has what was measured so far, whenever one looks."""

    def __init__(
        self, plan: Plan, directory: str, news: Callable[[Tally], None], *, within: Sequence[str] = ()
    ) -> None:
        """`within`: what a command is preceded by, to run where the subscribers live (`ip netns exec ...`)."""
        self.plan = plan
        self.tallies: list[Tally] = []
        self._directory, self._news, self._within = directory, news, within

    def _served(self) -> str:
        """A directory with one file in it."""
        served = Path(self._directory, "served")
        served.mkdir()
        (served / FILE).write_bytes(os.urandom(self.plan.size))
        return str(served)

    async def run(self, port: int) -> None:
        """All stages, with a server of our own; port 0: any that is free."""
        words = ("softmutex_adapters.demo.server", self.plan.to_json(), self._served(), str(port))
        async with process(*words, cwd=self._directory) as server:
            assert server.stdout is not None
            told = await server.stdout.readline()
            if not told:
                raise DemoFailed(f"the FTP server did not start: {last_words(self._directory)}")
            for stage in STAGES:
                await self.stage(stage, "127.0.0.1", int(told))

    async def stage(self, stage: str, host: str, port: int) -> None:
        """One of the three, with a server that is there."""
        tally = Tally(self.plan, stage)
        self.tallies.append(tally)
        waits_for_go, go = os.pipe()
        take, give = os.pipe()
        try:
            os.write(give, b"." * self.plan.slots)
            orders = {
                "plan": asdict(self.plan),
                "stage": stage,
                "host": host,
                "port": port,
                "directory": tempfile.mkdtemp(dir=self._directory),  # a group of its own for each run
                "go": waits_for_go,
                "take": take,
                "give": give,
            }
            words = ("softmutex_adapters.demo.crowd", json.dumps(orders))
            async with process(
                *words, within=self._within, pass_fds=(waits_for_go, take, give), cwd=self._directory
            ) as crowd:
                async with asyncio.timeout(READY_S):
                    await self._listen(crowd, tally, lambda: tally.ready == self.plan.clients)
                os.close(go)
                go = -1
                await self._listen(crowd, tally, lambda: all(client.ended for client in tally.clients))
                tally.complete = True
                self._news(tally)
        finally:
            for descriptor in (waits_for_go, go, take, give):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _listen(self, crowd: asyncio.subprocess.Process, tally: Tally, is_enough: Callable[[], bool]) -> None:
        assert crowd.stdout is not None
        while not is_enough():
            line = await crowd.stdout.readline()
            if not line:
                raise DemoFailed(f"a subscriber ended early: {last_words(self._directory)}")
            tally.hear(json.loads(line))
            self._news(tally)
