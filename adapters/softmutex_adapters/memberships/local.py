"""The processes of one user on one host find each other, with nothing to start: `local://`, the default.

What it decides: looking is shared. A process has one directory of a group open, however many nodes it runs, and one
timer a loop looks after it, only while somebody waits in `watch`. A thousand nodes that each look five times a second
would be a thousand times the cost, and see the same.

    join ----> rundir.publish       leave, aclose ----> rundir.withdraw
    watch ---> the list differs from what was shown? --yes--> show it
                    | no: wait for the poller, which looks every POLL_S

What is in the directory, and how the dead are noticed: see `rundir`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from softmutex.core.errors import ConfigError
from softmutex.meeting import meeting_place
from softmutex.ports import Closed, Member
from softmutex.urls import Url
from softmutex_adapters.memberships.rundir import POLL_S, RunDir, acquire, release

DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class LocalMembership:
    """`local://name?directory=/a/path/of/yours`

    Without `directory` it is /tmp/softmutex-<uid>, whatever TMPDIR and XDG_RUNTIME_DIR say: jobs of cron, services
    and shells meet there; where another user has taken that name, in the home (`softmutex.meeting`). A service with a
    private /tmp needs `directory`, the same for all.
    """

    on_this_host = True  # M9
    complete = True  # M7: `publish` comes before the first look, and the kernel tells who died

    def __init__(self, name: str = DEFAULT_NAME, *, directory: str | None = None) -> None:
        name = name or DEFAULT_NAME
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"local://{name}: a group's name has up to 64 letters, digits, dots, dashes and underscores, and "
                "starts with no dot and no dash."
            )
        self._name = name
        self._base = directory or meeting_place()
        self._rundir: RunDir | None = None
        self._mine = ""
        self._shown: tuple[Member, ...] | None = None
        self._shown_version = -1
        self._poller: _Poller | None = None
        self._last_counts: Mapping[str, int] = {}
        self._closed = False

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = Url(url)
        directory = parts.text("directory")
        parts.finish()
        return cls(parts.place, directory=directory)

    async def join(self, me: Member) -> None:
        if self._mine:
            raise RuntimeError("this membership was joined before; leave first, or make a new one")
        self._mine = self._open().publish(me)

    async def watch(self) -> Sequence[Member]:
        while not self._closed:
            rundir = self._open()
            if self._shown is None:
                rundir.poll()
            if self._shown_version != rundir.version:
                self._shown_version = rundir.version
                others = rundir.others(self._mine)
                if others != self._shown:
                    self._shown = others
                    return others
            self._poller = _Poller.of(rundir)
            try:
                await self._poller.until_it_differs(self._shown_version)
            finally:
                self._poller = None
        raise Closed("the membership is closed")

    async def leave(self) -> None:
        if self._rundir is not None:
            self._rundir.withdraw(self._mine)
        self._mine = ""

    async def aclose(self) -> None:
        await self.leave()
        self._closed = True
        if self._poller is not None:
            self._poller.wake_all()  # whoever else waits looks, and waits again
        if self._rundir is not None:
            self._last_counts = dict(self._rundir.counts)
            release(self._rundir)
            self._rundir = None

    def group_key(self) -> bytes | None:
        return self._open().group_key()

    def statistics(self) -> Mapping[str, int]:
        """Of all memberships of this group in the process together."""
        return dict(self._rundir.counts) if self._rundir is not None else self._last_counts

    def _open(self) -> RunDir:
        if self._closed:
            raise Closed("the membership is closed")
        if self._rundir is None:
            self._rundir = acquire(self._base, self._name)
        return self._rundir


class _Poller:
    """Looks after one directory for all who wait in one loop; its timer is there only while one does."""

    _running: ClassVar[dict[tuple[asyncio.AbstractEventLoop, RunDir], _Poller]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop, rundir: RunDir) -> None:
        self._loop, self._rundir = loop, rundir
        self._waiting: dict[asyncio.Future[None], int] = {}  # to the version that each has seen
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, rundir: RunDir) -> _Poller:
        key = (asyncio.get_running_loop(), rundir)
        return cls._running.get(key) or cls._running.setdefault(key, cls(*key))

    async def until_it_differs(self, version: int) -> None:
        future = self._loop.create_future()
        self._waiting[future] = version
        if self._timer is None:
            self._timer = self._loop.call_later(POLL_S, self._look)
        try:
            await future
        finally:
            del self._waiting[future]
            if not self._waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._running.pop((self._loop, self._rundir), None)

    def wake_all(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _look(self) -> None:
        self._timer = self._loop.call_later(POLL_S, self._look)
        self._rundir.poll()
        for future, version in self._waiting.items():
            if version != self._rundir.version and not future.done():
                future.set_result(None)
