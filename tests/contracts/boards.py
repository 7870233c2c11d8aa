"""What Redis and etcd have in common as memberships: the contract, and what no outage of the board may do."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from softmutex import plugins
from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests import prepared
from tests.registry.inside import until
from tests.registry.store_process import Process
from tests.sight import Sight

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
    process = prepared.Popen([sys.executable, "-c", JOIN_AND_WAIT, url, me.address, str(me.id)], stdout=subprocess.PIPE)
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
    patience_s = 60.0
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

    def url(self, login: str = "", port: int | None = None, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in {"ttl": TTL_S, **options}.items())
        return f"{self.kind}://{login}127.0.0.1:{port or self.process.port}/contract?{query}"

    def make(self) -> Membership:
        return plugins.membership(self.url())

    def make_board(self) -> Any:
        """What is behind such a membership, for whoever writes there by itself."""
        raise NotImplementedError

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        return await asyncio.to_thread(join_in_another_process, self.url(), me)

    async def break_it(self) -> None:
        await asyncio.to_thread(self.process.stop)

    async def mend_it(self) -> None:
        await asyncio.to_thread(self.process.start)

    # --- beyond the contract ----------------------------------------------------------------------------------------

    async def test_l1_nobody_is_lost_when_the_board_was_away_for_longer_than_a_lease(self) -> None:
        async with self.made(2) as (one, two), Sight(one) as sight:
            await one.join(ONE)
            await two.join(TWO)
            await until(lambda: sight.others == (TWO,), "it sees the other one", 100.0)
            del sight.lists[:-1]
            await self.break_it()
            await asyncio.sleep(TTL_S + 1.0)
            await self.mend_it()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 6, "it is back", 100.0)
            assert all(TWO in seen for seen in sight.lists), "at no time was the other one missing"

    async def test_l2_a_board_that_lost_everything_is_written_anew_and_nobody_is_missed(self) -> None:
        async with self.made(3) as (one, two, onlooker), Sight(one) as sight:
            await one.join(ONE)
            await two.join(TWO)
            await until(lambda: sight.others == (TWO,), "it sees the other one", 100.0)
            del sight.lists[:-1]
            await asyncio.to_thread(self.process.stop)
            (self.process.folder / self.kind).rename(self.process.folder / "lost")
            await self.mend_it()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 6, "it is back", 100.0)
            assert all(TWO in seen for seen in sight.lists), "at no time was the other one missing"
            async with Sight(onlooker) as its:
                await until(lambda: its.others == (ONE, TWO), "it is all written again", 100.0)

    async def test_l3_complete_is_said_when_the_others_were_seen_or_had_time_to_write(self) -> None:
        async with self.made(2) as (one, two):
            assert not one.complete
            await one.join(ONE)
            assert not one.complete, "others may be about to write again"
            assert one.pending[0].startswith("the list of ")
            await until(lambda: one.complete, "it is alone", 100.0)
            assert not one.pending
            await two.join(TWO)
            assert two.complete, "it sees who was there before"
            await self.break_it()
            await until(lambda: not two.complete, "a list that cannot be read is old soon", 100.0)
            await self.mend_it()

    async def test_l4_who_restarts_in_place_replaces_its_predecessor_whose_end_harms_nobody(self) -> None:
        async with self.made(2) as (new, other), Wire(self.process.port) as wire, Sight(other) as sight:
            old = plugins.membership(self.url(port=wire.port))
            await other.join(TWO)
            await old.join(ONE)
            await until(lambda: sight.others == (ONE,), "it is there", 100.0)
            wire.cut()  # it hangs, as far as the board can tell
            successor = Member(ONE.address, 9, "successor")
            await new.join(successor)
            await until(lambda: sight.others == (successor,), "it is replaced", 100.0)
            wire.mend()
            await old.leave()
            beats = beats_of(other)
            await until(lambda: beats_of(other) > beats + 2, "some beats later", 100.0)
            assert sight.others == (successor,)
            await old.aclose()

    async def test_whatever_others_write_there_is_no_member_and_no_harm(self) -> None:
        async with self.made(1) as (one,):
            await one.join(ONE)
            for place, junk in enumerate(
                ("", "{", "[" * 500, '["xyz","n","s"]', "[1,2,3]", '["' + "0" * 16 + '",7,"s"]')
            ):
                board = self.make_board()
                await board.beat(f"10.9.9.9:{place}", junk or " ", 60.0, may_sweep=False)
                await board.aclose()
            beats = beats_of(one)
            await until(lambda: beats_of(one) > beats + 3, "some beats later", 100.0)
            assert await one.watch() == ()
            assert one.statistics()["troubles"] == 0


def beats_of(membership: Membership) -> int:
    return membership.statistics()["beats"]


class Wire:
    """A way to the board that can be cut: a proxy between one member and the board."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        self.cut()
        await until(lambda: not self._writers, "all is closed")

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    async def _serve(self, from_member: asyncio.StreamReader, to_member: asyncio.StreamWriter) -> None:
        if self._is_cut:
            to_member.transport.abort()
            return
        from_board, to_board = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {to_member, to_board}
        await asyncio.gather(self._carry(from_member, to_board), self._carry(from_board, to_member))
        self._writers -= {to_member, to_board}

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()
