"""What `static://` and `dns://` have in common: a list that this node only reads, of names that are looked up.

    watch: the list, or what is pending (M8), differs from what was shown? --yes--> show it
              | no: wait until a look-up has changed something
    look up --well--> again after `refresh`        --badly--> again after RETRY, 2 RETRY, ... up to `refresh`

Nobody is told of this node; it takes itself out of the list by the address that `join` tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from softmutex.ending import end
from softmutex.ports import Closed, Member


class LookedUpMembership:
    def __init__(self, refresh_s: float, retry_s: float, counters: Sequence[str]) -> None:
        self._refresh_s, self._retry_s = refresh_s, retry_s
        self._me = ""
        self._shown: tuple[Sequence[Member], Sequence[str]] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._is_told = False  # of what is wrong with the names
        self._refresher: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(counters, 0)

    # --- what differs -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> Sequence[str]:
        """M8."""
        raise NotImplementedError

    def _needs_looking_up(self) -> bool:
        raise NotImplementedError

    async def _look_up_all(self) -> bool:
        """Whether it went well; what is known by now is in `_shown_as`."""
        raise NotImplementedError

    def _shown_as(self) -> Mapping[str, str]:
        """The addresses as this node's transport writes them, each with its label."""
        raise NotImplementedError

    async def _before_first_list(self) -> None:
        """Where it is worth a moment to have one."""

    # --- what the node asks -----------------------------------------------------------------------------------------

    async def join(self, me: Member) -> None:
        self._me = me.address
        self._changed.set()

    async def leave(self) -> None:
        """Nobody is told: whoever keeps the list has to know of this node."""

    async def watch(self) -> Sequence[Member]:
        if self._refresher is None and not self._closed and self._needs_looking_up():
            self._refresher = asyncio.get_running_loop().create_task(self._refresh(), name="softmutex names")
        if self._shown is None and not self._closed:
            await self._before_first_list()
        while not self._closed:
            shown = self._shown_as()
            others = tuple(Member(where, label=label) for where, label in shown.items() if where != self._me)
            if (others, self.pending) != self._shown:
                self._shown = others, self.pending
                return others
            self._changed.clear()
            await self._changed.wait()
        raise Closed("the membership is closed")

    async def aclose(self) -> None:
        self._closed = True
        self._changed.set()
        await self._stop_looking_up()

    def group_key(self) -> bytes | None:
        return None

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "members": len(self._shown_as())}

    # --- how --------------------------------------------------------------------------------------------------------

    async def _stop_looking_up(self) -> None:
        await end(self._refresher)

    async def _refresh(self) -> None:
        failures = 0
        while True:
            failures = 0 if await self._look_up_all() else failures + 1
            self._changed.set()
            retry_s = self._retry_s * 2 ** min(failures - 1, 10)
            await asyncio.sleep(min(retry_s, self._refresh_s) if failures else self._refresh_s)
