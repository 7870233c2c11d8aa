"""Whom an agent serves, and what one of them may not do to the others.

    its own user alone (the default)        all users of the host (`softmutex agent --system`)
    no limits: who asks could do worse      each known by the kernel (SO_PEERCRED), each with a share of everything

What it decides: what a user of the host gets of an agent that is everybody's. The naive way, one queue and one table
for all, is whoever asks most: a thousand connections fill the table, a thousand names the group, a stream of words the
loop, and who says that it waits since 1970 is always the next one. So whatever can be used up has a share for each
user, and nothing that a job says of itself counts against another user's.

V1  A user is whom the kernel names; nothing that is said on the link changes that.
V2  At once, of one user: `jobs` connections, `turns` of them in the group's queue or holding, as many kept places.
V3  In time, of one user: WORDS_A_SECOND on the links, a wish counts for many; NEW_NAMES_A_MINUTE. Who says more is read
    later; nobody else is.
V4  Terms that the agent's settings name are the agent's. What is not named there the first one says, as in any group.
V5  Who is no administrator (root, the agent's own user) ends no hold.
V6  Nobody is signalled: the mutex is held until a killed job's processes are gone (`Session`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from softmutex.core.errors import AcquireTimeout, ConfigError, SoftMutexError
from softmutex.core.tuples import NamedTuple
from softmutex.runtime.config import Settings

WORDS_A_SECOND: Final = 2000.0
WORDS_BURST: Final = 4000.0
WORDS_OF_A_WISH: Final = 20
NEW_NAMES_A_MINUTE: Final = 60.0
NEW_NAMES_BURST: Final = 200.0
READ_MOST: Final = 4096  # bytes at once, so that nobody's stream takes long to be read
OPEN_TO_JOBS: Final = frozenset(
    (
        "slots",
        "weight",
        "priority",
        "ageing",
        "algorithm",
        "min_interval",
        "max_hold",
        *(f"timing.{name}" for name in ("op", "nodes_max", "skip")),
    )
)


class TooMuch(SoftMutexError):
    """One user has all that an agent gives to one user."""


class Limits(NamedTuple):
    jobs: int = 256
    turns: int = 64


class Bucket:
    """Fills up with time, and may be overdrawn: the debt is waited for."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, time.monotonic()

    def take(self, amount: float) -> float:
        """Seconds to wait."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        return max(0.0, -self._left / self._rate)

    def has(self, amount: float) -> bool:
        self.take(0)
        return self._left >= amount

    @property
    def is_full(self) -> bool:
        return self.has(self._burst)


class User:
    """One user of the host. `limits`: None for the one whose agent it is."""

    def __init__(self, uid: int, limits: Limits | None = None) -> None:
        self.uid = uid
        self.limits = limits
        self.jobs = 0
        self.kept = 0  # places that are kept for jobs that gave up (room.py)
        self._turns = asyncio.Semaphore(limits.turns) if limits else None
        self._words = Bucket(WORDS_A_SECOND, WORDS_BURST)
        self._names = Bucket(NEW_NAMES_A_MINUTE / 60.0, NEW_NAMES_BURST)

    @property
    def reads_most(self) -> int:
        return READ_MOST if self.limits else 1 << 16

    @property
    def may_keep(self) -> bool:
        return self.limits is None or self.kept < self.limits.turns

    @property
    def may_evict(self) -> bool:
        return self.limits is None or self.uid in (0, os.geteuid())

    def why_no_eviction(self) -> str:
        return f"a hold is ended by an administrator only: sudo -u {name_of(os.geteuid())} softmutex evict"

    @property
    def is_resting(self) -> bool:
        return not (self.jobs or self.kept) and self._words.is_full and self._names.is_full

    async def say(self, words: int) -> None:
        """Waits where this user says more than its share."""
        if self.limits and (owed_s := self._words.take(words)):
            await asyncio.sleep(owed_s)

    def name_new(self) -> None:
        if self.limits and not self._names.has(1):
            raise TooMuch(
                f"user {self.uid} has named {NEW_NAMES_BURST:g} new mutexes lately, and one a second is let in. "
                "Name what is shared, not each use of it."
            )
        self._names.take(1)

    def full(self) -> str:
        """In words, empty where one more job is let in."""
        if self.limits is None or self.jobs < self.limits.jobs:
            return ""
        return (
            f"user {self.uid} has {self.jobs} jobs at this agent, which is what one user may have (--jobs-per-user). "
            "Try again later."
        )

    @asynccontextmanager
    async def turn(self, limit_s: float | None) -> AsyncIterator[None]:
        """Around a wait and its hold."""
        if self._turns is None:
            yield
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._turns.acquire()
        except TimeoutError:
            raise AcquireTimeout(f"all turns of user {self.uid} at this agent are in use (--turns-per-user).") from None
        try:
            yield
        finally:
            self._turns.release()

    def words_of(self, purpose: str | None) -> str | None:
        """What others see of a job. Whose it is says the agent, not the job."""
        if self.limits is None:
            return purpose
        return f"{name_of(self.uid)}: {purpose or 'a job'}".encode()[:64].decode(errors="ignore")

    def check(self, mine: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
        """V4. What the job may say of the mutex and the agent does not say already; `mine`: the agent's, for it."""
        if self.limits is None:
            return dict(options)
        said = dict[str, Any]()
        for key, value in options.items():
            if value == mine[key] or (key == "max_hold" and shortens(value, mine[key])):
                said |= {key: value} if key == "max_hold" else {}
            elif key not in OPEN_TO_JOBS or mine.given(key):
                raise ConfigError(
                    f"{key} is {mine[key]} at the agent of this host, and {value} is wanted. Leave it out."
                )
            else:
                said[key] = value
        return said


def shortens(value: float | None, mine: float | None) -> bool:
    return value is not None and (mine is None or value <= mine)


class Users:
    """All whom an agent serves; those that have nothing to do with it are forgotten."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits
        self._of: dict[int, User] = {}

    def find(self, uid: int | None) -> User | None:
        """None: a stranger."""
        mine = os.geteuid()
        if self._limits is None:
            return self._take(mine) if uid in (None, mine) else None
        return None if uid is None else self._take(uid)

    def _take(self, uid: int) -> User:
        user = self._of.get(uid)
        if user is None:
            self._of = {each: found for each, found in self._of.items() if not found.is_resting}
            user = self._of[uid] = User(uid, self._limits)
        return user


def name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name[:32]
    except KeyError:
        return str(uid)
