from __future__ import annotations

import asyncio
import contextlib
import hmac
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import ClassVar

from softmutex.ending import end
from softmutex.ports import (
    Authority,
    Banning,
    CannotOpen,
    Complete,
    Member,
    Membership,
    Observer,
    Observing,
    OnThisHost,
    Provable,
    is_complete,
    is_on_this_host,
)
from softmutex.testing.contracts.checks import Holdings, check, eventually, in_time, must_be_closed

# What `watch` of each membership under test has returned so far.
SHOWN: weakref.WeakKeyDictionary[Membership, list[list[str]]] = weakref.WeakKeyDictionary()


class MembershipContract:
    """M1 to M6 of `softmutex.ports.Membership`, and M7 to M13 of those that are more than that. Each `make()` stands
    for another process of the same group."""

    patience_s: ClassVar[float] = 30.0
    quiet_s: ClassVar[float] = 0.5  # so long nothing may happen, where nothing must
    announces: ClassVar[bool] = True  # False: a fixed list, which names `member(1)` to `member(3)`
    can_kill: ClassVar[bool] = False  # `join_elsewhere` is there
    can_break: ClassVar[bool] = False  # `break_it` and `mend_it` are there
    can_refuse: ClassVar[bool] = False  # `make_impossible` is there
    can_ban: ClassVar[bool] = False  # `ban` is there

    def make(self) -> Membership:
        raise NotImplementedError

    def member(self, number: int) -> Member:
        return Member(f"127.0.0.1:{9000 + number}", id=1000 + number, name=f"node-{number}")

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        """Joins as `me` in another process (or what comes next to it), and returns what kills that without a word."""
        raise NotImplementedError

    async def break_it(self) -> None:
        """Lets the directory, server or network behind it fail."""
        raise NotImplementedError

    async def mend_it(self) -> None:
        raise NotImplementedError

    def make_impossible(self) -> Membership:
        """One whose `join` can never work, because its place is not to be had."""
        raise NotImplementedError

    def make_elsewhere(self) -> Membership | None:
        """One that shows members of other hosts; None where there is no such thing."""
        return None

    async def ban(self, who: Member) -> None:
        """Lets all members ignore it."""
        raise NotImplementedError

    # --- M1 ---------------------------------------------------------------------------------------------------------

    async def test_m1_others_learn_of_me_without_any_further_call(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(self.member(1))
            await two.join(self.member(2))
            await self.until_shown(one, [2, 3] if not self.announces else [2])
            await self.until_shown(two, [1, 3] if not self.announces else [1])

    # --- M2 ---------------------------------------------------------------------------------------------------------

    async def test_m2_the_first_watch_returns_at_once(self) -> None:
        async with self.made(1) as (one,):
            await one.join(self.member(1))
            await in_time(one.watch(), "the first watch waits", 5.0)  # the machine may stand still

    async def test_m2_watch_works_for_one_who_only_looks(self) -> None:
        async with self.made(2) as (one, onlooker):
            await one.join(self.member(1))
            await self.until_shown(onlooker, [1, 2, 3] if not self.announces else [1])

    async def test_m2_watch_shows_the_whole_list_and_never_me(self) -> None:
        async with self.made(3) as made:
            for number, membership in enumerate(made, 1):
                await membership.join(self.member(number))
            for number, membership in enumerate(made, 1):
                await self.until_shown(membership, [other for other in (1, 2, 3) if other != number])

    async def test_m2_watch_waits_until_something_differs(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(self.member(1))
            await self.until_shown(one, [2, 3] if not self.announces else [])
            waiting = asyncio.ensure_future(one.watch())
            try:
                await self._must_wait(waiting)
                if self.announces:
                    await two.join(self.member(2))
                    shown = await in_time(waiting, "watch does not notice a newcomer", self.patience_s)
                    check(addresses(shown) == addresses([self.member(2)]), f"watch shows {shown}")
            finally:
                await end(waiting)

    # --- M3 ---------------------------------------------------------------------------------------------------------

    async def test_m3_after_leave_others_stop_seeing_me(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(self.member(1))
            await two.join(self.member(2))
            await self.until_shown(two, [1, 3] if not self.announces else [1])
            await one.leave()
            if self.announces:
                await self.until_shown(two, [])
            await one.leave()

    async def test_m3_a_killed_process_disappears_too(self) -> None:
        if not self.can_kill:
            return  # a fixed list, or nothing that can die without the observer
        async with self.made(1) as (one,):
            await one.join(self.member(1))
            kill = await self.join_elsewhere(self.member(2))
            await self.until_shown(one, [2])
            kill()
            await self.until_shown(one, [])

    # --- M4 ---------------------------------------------------------------------------------------------------------

    async def test_m4_what_fails_is_silence_counted_and_retried(self) -> None:
        if not self.can_break:
            return  # nothing behind it that could fail
        async with self.made(3) as (one, two, three):
            await one.join(self.member(1))
            await two.join(self.member(2))
            await self.until_shown(one, [2, 3] if not self.announces else [2])
            before = sum(one.statistics().values())
            await self.break_it()
            waiting = asyncio.ensure_future(one.watch())
            try:
                await eventually(
                    lambda: sum(one.statistics().values()) > before, "the failure is not counted", self.patience_s
                )
                await self._must_wait(waiting)
            finally:
                await end(waiting)
                await self.mend_it()
            await three.join(self.member(3))
            await self.until_shown(three, [1, 2])
            await self.until_shown(two, [1, 3])

    async def test_m4_a_join_that_can_never_work_raises_cannot_open(self) -> None:
        if not self.can_refuse:
            return  # it needs nothing that can be refused
        membership = self.make_impossible()
        try:
            await membership.join(self.member(1))
        except CannotOpen as error:
            check(len(str(error)) > 20, f"CannotOpen does not say what to do: {error}")
        else:
            raise AssertionError("join succeeded where it cannot work")
        finally:
            await membership.aclose()

    # --- M5 ---------------------------------------------------------------------------------------------------------

    async def test_m5_after_aclose_watch_raises_closed_and_nothing_is_left(self) -> None:
        await asyncio.to_thread(lambda: None)  # the executor's thread is there before the counting
        holdings = Holdings()
        async with self.made(2) as (one, onlooker):
            await one.join(self.member(1))
            await self.until_shown(onlooker, [1, 2, 3] if not self.announces else [1])
            await one.watch()
            waiting = asyncio.ensure_future(one.watch())
            await asyncio.sleep(0)
            await one.aclose()
            await must_be_closed(waiting, self.patience_s)
            await must_be_closed(one.watch(), self.patience_s)
            if self.announces:
                await self.until_shown(onlooker, [])
            await one.aclose()
        await holdings.must_return()

    # --- M6 ---------------------------------------------------------------------------------------------------------

    async def test_m6_the_constructor_needs_no_loop(self) -> None:
        membership = await asyncio.to_thread(self.make)
        try:
            await membership.join(self.member(1))
            await in_time(membership.watch(), "the first watch waits", self.patience_s)
        finally:
            await membership.aclose()

    async def test_m6_cancelling_a_waiting_watch_loses_nothing(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(self.member(1))
            shown: list[str] = []
            for _ in range(5):
                waiting = asyncio.ensure_future(one.watch())
                await asyncio.sleep(0)
                await end(waiting)
                if not waiting.cancelled():
                    shown = addresses(waiting.result())
            await two.join(self.member(2))
            while self.member(2).address not in shown:
                shown = addresses(await in_time(one.watch(), "a change was lost", self.patience_s))

    # --- M8 ---------------------------------------------------------------------------------------------------------

    async def test_m8_what_is_pending_is_found_out(self) -> None:
        async with self.made(1) as (one,):
            await one.join(self.member(1))
            watching = asyncio.ensure_future(self._watch_on(one))
            try:
                await eventually(lambda: not getattr(one, "pending", ()), "something stays pending", self.patience_s)
            finally:
                await end(watching)

    async def test_group_key_is_32_bytes_and_the_same_for_all_or_none(self) -> None:
        async with self.made(2) as (one, two):
            key = one.group_key()
            check(key is None or len(key) == 32, f"a group key of {len(key or b'')} bytes")
            check(key == two.group_key(), "two members of one group were given different keys")

    # --- M7 to M13, where it is more than a membership ----------------------------------------------------------------

    async def test_m7_of_two_that_join_at_once_at_least_one_sees_the_other(self) -> None:
        async with self.made(2) as (one, two):
            if not isinstance(one, Complete):
                return
            await asyncio.gather(one.join(self.member(1)), two.join(self.member(2)))
            (by_one, one_is_sure), (by_two, two_is_sure) = await asyncio.gather(self._first(one), self._first(two))
            if one_is_sure and two_is_sure:
                met = self.member(2).address in by_one or self.member(1).address in by_two
                check(met, "both are complete, and neither sees the other")

    async def _first(self, membership: Membership) -> tuple[list[str], bool]:
        shown = await in_time(membership.watch(), "the first watch waits", self.patience_s)
        return addresses(shown), is_complete(membership)

    async def test_m9_it_shows_only_this_host_where_it_says_so(self) -> None:
        async with self.made(1) as (one,):
            if isinstance(one, OnThisHost):
                check(one.on_this_host in (True, False), f"on_this_host is {one.on_this_host!r}")
        elsewhere = self.make_elsewhere()
        if elsewhere is not None:
            try:
                check(not is_on_this_host(elsewhere), "it shows members of other hosts, and on_this_host is true")
            finally:
                await elsewhere.aclose()

    async def test_m10_who_is_banned_is_told_by_watch(self) -> None:
        async with self.made(1) as (one,):
            if not isinstance(one, Banning):
                check(not self.can_ban, "it can ban, and is no `Banning`")
                return
            check(one.banned == frozenset(), f"banned before anybody was: {set(one.banned)}")
            await one.join(self.member(1))
            await self.until_shown(one, [2, 3] if not self.announces else [])
            if not self.can_ban:
                return
            await self.ban(self.member(2))
            while self.member(2).id not in one.banned:
                await in_time(one.watch(), "watch does not tell who is banned", self.patience_s)

    async def test_m11_the_observer_that_it_brings_is_one_or_none(self) -> None:
        async with self.made(1) as (one,):
            if isinstance(one, Observing):
                check(one.observer is None or isinstance(one.observer, Observer), f"it brings {one.observer!r}")

    async def test_m12_who_proves_nothing_is_given_no_certificate(self) -> None:
        async with self.made(1) as (one,):
            if not isinstance(one, Authority):
                return
            check(one.public_key is None or len(one.public_key) == 32, f"its key is {one.public_key!r}")
            try:
                given = await in_time(one.certify("somebody", bytes(32), bytes(64)), "no answer", self.patience_s)
            except CannotOpen as error:
                check(len(str(error)) > 20, f"CannotOpen does not say what to do: {error}")
            else:
                raise AssertionError(f"a certificate of {len(given)} bytes for a key that nobody proved to have")

    async def test_m13_who_has_the_groups_key_is_told_from_who_has_not(self) -> None:
        async with self.made(3) as (one, two, three):
            if not isinstance(one, Provable) or not isinstance(two, Provable):
                return
            one.prove_by(HoldingKey(b"a key"))
            two.prove_by(HoldingKey(b"a key"))
            for number, each in enumerate((one, two, three), 1):
                await each.join(self.member(number))
            proven: dict[str, bool] = {}
            while len(proven) < 2:
                shown = await in_time(one.watch(), f"watch shows {proven} and then nothing", self.patience_s)
                proven = {member.address: member.is_proven for member in shown}
            wanted = {self.member(2).address: True, self.member(3).address: False}
            check(proven == wanted, f"who joined with the key, and who without: {proven}")

    # --- how --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def made(self, count: int) -> AsyncIterator[Sequence[Membership]]:
        memberships = [self.make() for _ in range(count)]
        try:
            yield memberships
        finally:
            for membership in memberships:
                await membership.aclose()

    async def until_shown(self, membership: Membership, numbers: Sequence[int]) -> None:
        """Watches until the list is that one. What was returned before counts: `watch` tells only what differs."""
        wanted = addresses(self.member(number) for number in numbers)
        seen = SHOWN.setdefault(membership, [])
        while not seen or seen[-1] != wanted:
            await in_time(
                self._watch(membership),
                f"watch shows {seen[-1:]} and then nothing, instead of {wanted}",
                self.patience_s,
            )

    @staticmethod
    async def _watch_on(membership: Membership) -> None:
        while True:
            await membership.watch()

    @staticmethod
    async def _watch(membership: Membership) -> None:
        shown = await membership.watch()
        SHOWN.setdefault(membership, []).append(addresses(shown))

    async def _must_wait(self, waiting: asyncio.Future[Sequence[Member]]) -> None:
        done, _ = await asyncio.wait([waiting], timeout=self.quiet_s)
        check(not done, f"watch returned though nothing differs: {[task.result() for task in done]}")


class HoldingKey:
    """What a node has that has a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def prove(self, what: str) -> str:
        return hmac.digest(self._key, what.encode(), "sha256")[:16].hex()

    def is_proof(self, what: str, proof: str) -> bool:
        return proof == self.prove(what)


def addresses(members: Iterable[Member]) -> list[str]:
    return sorted(member.address for member in members)
