"""A list on a board that others run (Redis, etcd): everybody writes a line with a lease, and reads those of the others.

    join --> beat: my line, my lease, the list --.          every BEAT_S, and at once when the board says "changed"
    watch ------------------------------------> list --> view
                       ^ failed: tenacity's back-off; the last list stands

What it decides: the board may be restarted, emptied or gone, and a group goes on. The naive way, keys with a time to
live and a list of what is left, tells everybody after an outage that everybody is dead, since nobody could renew.

L1  A line ends by its lease, which is counted by the board's clock, and only while somebody who could renew looks on.
L2  A list that comes after the board lost what it had, is taken after SETTLE_S: until then the old lines stand, too.
L3  `complete` (M7) holds while the list is fresh, and not before the own line was in it. Who sees nobody waits SETTLE_S
    longer: by then those have written again whose lines the board had lost.
L4  There is one line for an address: who comes later replaces who was there. Leaving ends the own line, no other's.
L5  Whoever changes the list, everybody looks; but not more often than the board can bear: the pace follows the number.
L6  Each trouble is told once, with its remedy, and again only after all was well in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from softmutex.core.errors import ConfigError
from softmutex.ending import end
from softmutex.ports import CannotOpen, Closed, Member
from softmutex.saying import logger
from softmutex_adapters.registry import wire

log = logger("membership")

TTL_S = 4.0
BEATS = 4  # in the time of a lease: three may be lost
SETTLE_S = 2.0
JOIN_S = 5.0
LOOK_S = 0.5  # the first `watch` waits so long for a list
LEAVE_S = 0.8
BACK_OFF_S, BACK_OFF_MAX_S = 0.1, 2.0
LOOKS_A_SECOND = 2_000.0  # of all members together, when the list changes all the time
GAP_S = 0.02
LINE_MAX = 1024
COUNTERS = ("beats", "lists", "lost_lists", "rewritten", "troubles")


class BoardFailed(Exception):
    """The text is for the user. `is_final`: trying again cannot help, somebody has to change something."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Page(NamedTuple):
    """`lines`: address -> line; None: as last time. `history` is another one where the board lost something."""

    history: str
    lines: Mapping[str, str] | None


class Board(Protocol):
    """All of them raise BoardFailed within seconds where it fails, and the next call may work again."""

    where: str

    async def beat(self, address: str, line: str, ttl_s: float, *, may_sweep: bool) -> Page:
        """Writes my line (an empty one: only reads), and reads. `may_sweep`: those may end whose lease is over."""
        ...

    async def changed(self) -> None:
        """Waits until the list has changed, or may have."""
        ...

    async def drop(self, address: str, line: str) -> None: ...

    async def aclose(self) -> None: ...


class LeasedMembership:
    def __init__(self, board: Board, group: str, *, ttl: float = TTL_S) -> None:
        if not re.fullmatch(wire.GROUP, group):
            raise ConfigError(
                f"{board.where}: {group!r} is no name of a group. Write it behind the address: .../GROUP, with "
                "letters, digits, dots, dashes and underscores."
            )
        self._board, self._group, self._ttl_s = board, group, ttl
        self._me: Member | None = None
        self._line = ""
        self._fresh: dict[str, str] = {}  # as the board shows them
        self._lines: dict[str, str] = {}  # as they stand here (L2)
        self._others: tuple[Member, ...] = ()
        self._shown: tuple[Member, ...] | None = None
        self._history = ""
        self._settled_at = 0.0  # L2
        self._alone_until = 0.0  # L3
        self._beaten_at = float("-inf")
        self._well_since = float("inf")  # since when beats succeed; never, so far
        self._changed, self._listed, self._joined, self._look = (asyncio.Event() for _ in range(4))
        self._was_complete = False
        self._refused = ""  # join can never work
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._told: set[str] = set()
        self._counts = dict.fromkeys(COUNTERS, 0)

    # --- what the node asks -----------------------------------------------------------------------------------------

    async def join(self, me: Member) -> None:
        if self._me is not None:
            raise RuntimeError("this membership was joined before; leave first, or make a new one")
        if self._closed:
            raise Closed("the membership is closed")
        await self._stop()
        if self._closed:
            raise Closed("the membership is closed")
        self._me, self._line = me, write(me)
        self._start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_S):
                await self._joined.wait()
        if self._refused:
            self._me, self._line = None, ""
            await self._stop()
            raise CannotOpen(self._refused)
        if not self._joined.is_set():
            log.warning("%s does not answer. This node goes on, and joins when it does.", self._board.where)

    async def watch(self) -> Sequence[Member]:
        if not self._closed and not self._tasks:
            self._start()
        if self._shown is None and not self._listed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._listed.wait()
        while not self._closed:
            if self._others != self._shown:
                self._shown = self._others
                return self._others
            self._changed.clear()
            await self._changed.wait()
        raise Closed("the membership is closed")

    async def leave(self) -> None:
        if self._me is None:
            return
        me, line, self._me, self._line = self._me, self._line, None, ""
        await self._stop()
        with contextlib.suppress(BoardFailed, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._board.drop(me.address, line)
        if not self._closed and not self._tasks:  # `watch` may have begun meanwhile
            self._start()

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        self._listed.set()
        await self.leave()
        await self._stop()
        await self._board.aclose()

    def group_key(self) -> bytes | None:
        return None

    @property
    def complete(self) -> bool:
        """L3."""
        is_in = self._me is None or (self._joined.is_set() and not self._refused)
        if not self._tasks or not is_in or not self._listed.is_set():
            return False
        now = self._tasks[0].get_loop().time()
        is_fresh = now - self._beaten_at < self._ttl_s and now >= self._settled_at
        return is_fresh and (bool(self._others) or now >= self._alone_until)

    @property
    def pending(self) -> tuple[str, ...]:
        """M8: a list that was never whole."""
        self._was_complete = self._was_complete or self.complete
        return () if self._was_complete else (f"the list of {self._board.where}",)

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "members": len(self._lines)}

    # --- beats ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._joined.clear()
        self._refused = ""
        self._alone_until = loop.time() + SETTLE_S
        name = f"softmutex {self._board.where}"
        self._tasks = [loop.create_task(work(), name=name) for work in (self._beat_forever, self._follow_forever)]

    async def _stop(self) -> None:
        """Until then they are ours, or `watch` would start others, of which nobody knows when the next are started."""
        await end(*self._tasks)
        self._tasks = [task for task in self._tasks if not task.done()]

    async def _beat_forever(self) -> None:
        import tenacity  # here, since few programs need it

        back_off = tenacity.wait_random_exponential(multiplier=BACK_OFF_S, max=BACK_OFF_MAX_S)
        again = tenacity.retry_if_exception_type(BoardFailed)
        while True:
            try:
                await tenacity.AsyncRetrying(wait=back_off, retry=again)(self._beat)
            except Exception:  # M4: a mistake of ours is no reason to leave a node without its list
                self._counts["troubles"] += 1
                log.exception("the membership %s broke down; it begins again", self._board.where)
                await asyncio.sleep(BACK_OFF_MAX_S)
            await asyncio.sleep(max(GAP_S, len(self._lines) / LOOKS_A_SECOND))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ttl_s / BEATS * (0.8 + 0.4 * random.random())):
                    await self._look.wait()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._look.clear()
        address = self._me.address if self._me else ""
        may_sweep = loop.time() - self._well_since >= self._ttl_s  # L1
        try:
            page = await self._board.beat(address, self._line, self._ttl_s, may_sweep=may_sweep)
        except BoardFailed as trouble:
            self._well_since = float("inf")
            self._tell(trouble)
            raise
        now = loop.time()
        self._counts["beats"] += 1
        self._well_since = min(self._well_since, now)
        if self._told:
            self._told.clear()
            log.warning("%s gives the list again (%d members)", self._board.where, len(self._lines))
        self._beaten_at = now
        self._take(page, now)

    def _take(self, page: Page, now: float) -> None:
        if self._history and page.history != self._history and self._lines:
            self._counts["lost_lists"] += 1
            self._settled_at = now + SETTLE_S
            self._say(
                "lost", f"{self._board.where} lost its list; the last one stands until members have written anew."
            )
        self._history = page.history
        if page.lines is not None:
            self._counts["lists"] += 1
            self._fresh = dict(page.lines)
        kept = self._lines if now < self._settled_at else {}
        self._lines = {**kept, **self._fresh}
        if self._me is not None:
            is_mine = self._fresh.get(self._me.address) == self._line
            if is_mine:
                self._joined.set()
            elif self._joined.is_set():
                self._counts["rewritten"] += 1
                why = (
                    f"another one has written itself down at {self._me.address}: give each its own address, or end one"
                )
                self._say("address", f"{self._board.where}: {why}.")
        self._listed.set()
        self._others = self._read()
        self._changed.set()

    def _read(self) -> tuple[Member, ...]:
        own = self._me.address if self._me else ""
        found = [read(address, line) for address, line in sorted(self._lines.items()) if address != own]
        return tuple(member for member in found if member is not None)

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._board.changed()
                self._look.set()
            except BoardFailed as trouble:
                self._tell(trouble)
                await asyncio.sleep(BACK_OFF_MAX_S * random.random())  # meanwhile the beats read the list

    def _tell(self, trouble: BoardFailed) -> None:
        if trouble.is_final:
            self._refused = str(trouble)
            self._joined.set()
        self._counts["troubles"] += 1
        stands = f" The last list ({len(self._lines)} members) stands." if self._lines else ""
        self._say("trouble", f"{trouble}{stands}")

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s", text)


def write(me: Member) -> str:
    """The line of one life; no other has the same."""
    return json.dumps([f"{me.id:016x}", me.name[: wire.NAME_MAX], secrets.token_hex(8)])


def read(address: str, line: str) -> Member | None:
    """Anybody who can write on the board may have written anything."""
    try:
        id, name, _ = json.loads(line) if len(line) <= LINE_MAX else ("", "", "")
        if wire.ID.fullmatch(id) and re.fullmatch(wire.ADDRESS, address) and isinstance(name, str):
            return Member(address, int(id, 16), name[: wire.NAME_MAX])
    except (ValueError, TypeError, RecursionError):
        pass
    return None
