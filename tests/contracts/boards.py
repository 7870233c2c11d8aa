"""What Redis and etcd have in common as memberships: the contract, and what no outage of the board may do."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.memberships.leased import LeasedMembership

from softmutex import plugins
from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests.registry.inside import until
from tests.registry.store_process import Process

JOIN_AND_WAIT = """
import asyncio, sys
from softmutex import plugins
from softmutex.ports import Member

async def main():
    membership = plugins.membership(sys.argv[1])
    await membership.join(Member(sys.argv[2], id=int(sys.argv[3])))
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
TTL_S = 2.0
ONE, TWO = (Member(f"10.0.0.1:{number}", number, f"node-{number}") for number in (1, 2))


def a_process(url: str, me: Member) -> "subprocess.Popen[bytes]":
    """That has joined."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN_AND_WAIT, url, me.address, str(me.id)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as answers:
        assert answers.readline() == b"joined\n"
    return process


def join_in_another_process(url: str, me: Member) -> Callable[[], None]:
    process = a_process(url, me)

    def kill() -> None:
        process.kill()
        process.wait()

    return kill


class BoardContract(MembershipContract):
    patience_s = 15.0
    can_kill = True
    can_break = True
    can_refuse = True
    kind = ""

    @pytest.fixture(autouse=True)
    async def server(self, no_leaks: None, tmp_path: Path) -> AsyncIterator[None]:
        self.process = Process(self.kind, tmp_path)
        await asyncio.to_thread(self.process.start)
        yield
        await asyncio.to_thread(self.process.stop)

    def url(self, login: str = "", **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in {"ttl": TTL_S, **options}.items())
        return f"{self.kind}://{login}127.0.0.1:{self.process.port}/contract?{query}"

    def make(self) -> Membership:
        return plugins.membership(self.url())

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        return await asyncio.to_thread(join_in_another_process, self.url(), me)

    async def break_it(self) -> None:
        await asyncio.to_thread(self.process.stop)

    async def mend_it(self) -> None:
        await asyncio.to_thread(self.process.start)

    # --- beyond the contract ----------------------------------------------------------------------------------------

    async def test_l1_nobody_is_lost_when_the_board_was_away_for_longer_than_a_lease(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(ONE)
            await two.join(TWO)
            await self.until_sees(one, TWO)
            sight = Sight(one, TWO)
            await self.break_it()
            await asyncio.sleep(TTL_S + 1.0)
            await self.mend_it()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 6, "it is back", 30.0)
            assert not sight.was_lost, "at no time was the other one missing"

    async def test_l2_a_board_that_lost_everything_is_written_anew_and_nobody_is_missed(self) -> None:
        async with self.made(2) as (one, two):
            await one.join(ONE)
            await two.join(TWO)
            await self.until_sees(one, TWO)
            sight = Sight(one, TWO)
            await asyncio.to_thread(self.process.stop)
            (self.process.folder / self.kind).rename(self.process.folder / "lost")
            await self.mend_it()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 6, "it is back", 30.0)
            assert not sight.was_lost, "at no time was the other one missing"
            onlooker = self.make()
            try:
                await self.until_sees(onlooker, ONE, TWO)
            finally:
                await onlooker.aclose()

    async def test_l3_complete_is_said_when_the_others_were_seen_or_had_time_to_write(self) -> None:
        async with self.made(2) as (one, two):
            assert not one.complete
            await one.join(ONE)
            assert not one.complete, "others may be about to write again"
            await until(lambda: one.complete, "it is alone", 15.0)
            await two.join(TWO)
            assert two.complete, "it sees who was there before"
            await self.break_it()
            await until(lambda: not two.complete, "a list that cannot be read is old soon", 15.0)
            await self.mend_it()

    async def test_l4_who_restarts_in_place_replaces_its_predecessor_whose_end_harms_nobody(self) -> None:
        async with self.made(3) as (old, new, other):
            await other.join(TWO)
            await old.join(ONE)
            await self.until_sees(other, ONE)
            await old._stop()  # it hangs
            successor = Member(ONE.address, 9, "successor")
            await new.join(successor)
            await self.until_sees(other, successor)
            await old.leave()
            beats = beats_of(other)
            await until(lambda: beats_of(other) > beats + 2, "some beats later", 15.0)
            assert other._others == (successor,)

    async def test_whatever_others_write_there_is_no_member_and_no_harm(self) -> None:
        async with self.made(1) as (one,):
            await one.join(ONE)
            for place, junk in enumerate(
                ("", "{", "[" * 500, '["xyz","n","s"]', "[1,2,3]", '["' + "0" * 16 + '",7,"s"]')
            ):
                board = self.make()._board
                await board.beat(f"10.9.9.9:{place}", junk or " ", 60.0, may_sweep=False)
                await board.aclose()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 3, "some beats later", 15.0)
            assert one._others == ()
            assert one.statistics()["troubles"] == 0

    @staticmethod
    async def until_sees(membership: LeasedMembership, *wanted: Member) -> None:
        while list(membership._others) != list(wanted):
            async with asyncio.timeout(15.0):
                await membership.watch()


def beats_of(membership: LeasedMembership) -> int:
    return membership.statistics()["beats"]


class Sight:
    """Whether another one is missing from the list at any time."""

    def __init__(self, membership: LeasedMembership, other: Member) -> None:
        self.was_lost = False
        take = membership._take

        def look(*told: Any) -> None:
            take(*told)
            self.was_lost |= other not in membership._others

        membership._take = look  # type: ignore[method-assign]
