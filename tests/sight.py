"""What a membership shows, followed from outside: the list as it is now, and every list since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from softmutex.ports import Closed, Member, Membership


class Sight:
    """`async with Sight(membership) as sight`: nobody else may watch meanwhile (M6)."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.lists: list[Sequence[Member]] = []

    async def __aenter__(self) -> Sight:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            while True:
                self.lists.append(await self.membership.watch())
        except Closed:
            return

    @property
    def others(self) -> Sequence[Member]:
        return self.lists[-1] if self.lists else ()

    def addresses(self) -> set[str]:
        return {member.address for member in self.others}
