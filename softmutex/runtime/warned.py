"""A membership, with the bans of an authority that is somebody else.

    membership.watch() --list-----.--> watch() of the node
    authority.watch() --its bans--'

What it decides: whoever certifies the members also says whom it no longer vouches for, wherever the list of members
comes from. The naive way, bans in the list of the members only, leaves a banned identity in every group whose members
find each other by mDNS, a DNS or a fixed list, until its certificate ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from softmutex.ending import end
from softmutex.ports import Closed, Member


class Warned:
    """Is the membership, as far as anybody asks; `banned` is what both say."""

    def __init__(self, membership: Any, authority: Any) -> None:
        self._membership, self._authority = membership, authority
        self._shown: Sequence[Member] | None = None
        self._heard: frozenset[int | bytes] = frozenset()
        self._lists: asyncio.Future[Sequence[Member]] | None = None
        self._bans: asyncio.Future[Sequence[Member]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._membership, name)

    @property
    def banned(self) -> frozenset[int | bytes]:
        found: frozenset[int | bytes] = self._authority.banned | getattr(self._membership, "banned", frozenset())
        return found

    async def watch(self) -> Sequence[Member]:
        while True:
            self._lists = self._lists or asyncio.ensure_future(self._membership.watch())
            self._bans = self._bans or asyncio.ensure_future(self._authority.watch())
            waiting = {self._lists} if self._shown is None else {self._lists, self._bans}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._lists.done():
                lists, self._lists = self._lists, None
                self._shown = lists.result()
                return self._shown
            bans, self._bans = self._bans, None
            if isinstance(bans.exception(), Closed):  # the last ones stand
                self._bans = asyncio.get_running_loop().create_future()
            if self.banned != self._heard and self._shown is not None:
                self._heard = self.banned
                return self._shown

    async def aclose(self) -> None:
        await end(self._lists, self._bans)
        await self._membership.aclose()
