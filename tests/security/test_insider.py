"""A hostile insider: what somebody does who has the group's key, or was a member and keeps all its secrets."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from softmutex import Node
from softmutex.core.algorithms.wandering.messages import Place, Presence, Seen, Sight, Want
from softmutex.core.events import Token
from softmutex.core.messages import (
    Bye,
    Commit,
    Describe,
    Description,
    Hello,
    Message,
    Offer,
    Ping,
    Pong,
    Standing,
    Welcome,
)
from softmutex.core.wire import Frame
from softmutex.ports import Member
from softmutex.runtime.identity import Vouching
from softmutex.runtime.sealing import KeyRing, Sealer
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import GROUP, until
from tests.security.insider import Insider, in_the_name_of, member, public_of

MOST = 2**64 - 1


def lies(victim: int, about: int) -> Iterator[tuple[str, Message]]:
    """What is sent to `victim` in the name of `about`, again and again."""
    place = Place(0, MOST, 1, 1, 1, about)
    token = Token(MOST, 0, 1, 7)
    said: list[tuple[str, Message]] = [
        ("", Bye()),
        ("", Pong(1)),
        ("", Ping(2)),
        ("", Hello(1, 0, GROUP, False, "liar")),
        ("", Hello(1, 99, GROUP, False, "liar")),
        ("", Welcome(1, GROUP, "liar")),
        ("x", Sight(1, 0, place, Presence.IN_USE, False)),
        ("x", Seen(place, 0, ())),
        ("x", Offer(5, token)),
        ("x", Commit(5, 5, token)),
        ("x", Want(victim, 1, False, 3)),
        ("y", Describe(True)),
        ("x", Description(Standing.KNOWN, "adaptive")),
    ]
    return itertools.cycle(said)


class Turns:
    """Members that take turns, watched from outside."""

    def __init__(self, *nodes: Node) -> None:
        self.inside = 0
        self.waits: list[float] = []
        self._tasks = [asyncio.create_task(self._work(node)) for node in nodes]

    async def _work(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            async with node.mutex("x").hold(timeout=60) as hold:
                self.waits.append(loop.time() - asked)
                self.inside += 1
                assert self.inside == 1
                await asyncio.sleep(0.05)
                assert not hold.lost.is_set()
                self.inside -= 1

    async def stop(self) -> list[float]:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        return self.waits


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 20), marks=pytest.mark.slow)])
def test_the_groups_key_alone_changes_nothing_where_identities_are_required(seed, tmp_path: Path):
    for each in seed if isinstance(seed, range) else [seed]:
        forged(each, tmp_path)


@in_virtual_time
async def forged(seed: int, folder: Path) -> None:
    network, banned, rng = MemoryNetwork(seed=seed, delay=0.002, jitter=0.001), set(), random.Random(seed)
    async with (
        member(network, folder, "a", banned) as a,
        member(network, folder, "b", banned) as b,
        member(network, folder, "c", banned) as c,
        Insider(network) as insider,
    ):
        nodes = (a, b, c)
        await until(lambda: all(len(node.peers()) == 2 for node in nodes))
        turns = Turns(*nodes)
        kinds = {(to.address, of.id): lies(to.id, of.id) for to in nodes for of in nodes if of is not to}
        for number in range(600):
            to, of = rng.sample(nodes, 2)
            mutex, message = next(kinds[to.address, of.id])
            counter = rng.choice([number, 2**61 + number])
            insider.send(to.address, in_the_name_of(of.id, counter, to.id, message, mutex))
            await asyncio.sleep(0.01)
            assert all(len(node.peers()) == 2 for node in nodes)
        waits = await turns.stop()
        assert len(waits) > 80
        assert max(waits) < 1.0
        for node in nodes:
            told = node.statistics()
            assert told.dropped["unsigned"] > 100
            assert "lost" not in told.told
            assert node.mutex("x").statistics().facts.get("generated", 0) <= 1
            assert "y" not in [peer.name for peer in node.peers()]


@in_virtual_time
async def test_a_banned_member_that_keeps_all_its_secrets_has_no_effect_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seals: dict[int, Sealer] = {}

    def seal_with(keys: Sequence[bytes], group: str, me: int) -> Sealer:
        return seals.setdefault(me, Sealer(KeyRing.of(*keys), group, me))

    monkeypatch.setattr("softmutex.runtime.keys.seal_with", seal_with)
    network, banned = MemoryNetwork(seed=1, delay=0.002), set()
    async with (
        member(network, tmp_path, "a", banned) as a,
        member(network, tmp_path, "b", banned) as b,
        member(network, tmp_path, "bad", banned) as bad,
    ):
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, bad)))
        bad_address, bad_id = bad.address, bad.id
        seal = seals[bad.id]  # all that it knows: keys, certificate, sessions
        async with bad.mutex("x").hold(timeout=60):
            banned.add(public_of(tmp_path, "bad"))
            await network.membership().join(Member("nobody", 7))  # the list changes, and tells of the ban
            began = asyncio.get_running_loop().time()
            await until(lambda: len(a.peers()) == len(b.peers()) == 1)
            assert asyncio.get_running_loop().time() - began < 1.0  # T
        turns = Turns(a, b)
        await until(lambda: len(turns.waits) > 2)  # the token that it had is made anew
        speaker = network.transport("the same secrets elsewhere")
        await speaker.open()
        for to in (a, b):
            for mutex, message in itertools.islice(lies(to.id, bad_id), 200):
                speaker.send(to.address, seal.seal(Frame(bad_id, to.id, mutex, message)))
                await asyncio.sleep(0.01)
                assert [peer.name for peer in to.peers()] == ["b" if to is a else "a"]
        waits = await turns.stop()
        assert (len(waits) > 40, max(waits[3:]) < 1.0) == (True, True)
        await speaker.aclose()
        assert bad_address not in [peer.address for peer in a.peers()]


@in_virtual_time
async def test_who_hands_a_token_over_and_signs_nothing_any_more_is_out_until_it_has_greeted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As if it had lost its certificate. It is told of by its name, once, and so is the next one."""
    network, attest = MemoryNetwork(seed=1, delay=0.002), Vouching.attest
    async with (
        member(network, tmp_path, "a", set()) as a,
        member(network, tmp_path, "b", set()) as b,
        member(network, tmp_path, "c", set()) as c,
    ):

        async def lapses(node: Node, other: Node) -> None:
            public = public_of(tmp_path, node.name)
            await until(lambda: all(len(each.peers()) == 2 for each in (a, b, c)))
            async with node.mutex("x").hold(timeout=60):
                asked = asyncio.create_task(other.mutex("x").acquire(timeout=60))
                await until(lambda: other.mutex("x").statistics().waiting == 1)
                monkeypatch.setattr(
                    Vouching, "attest", lambda self, *of: b"" if self.public == public else attest(self, *of)
                )
            await until(lambda: node.id not in {peer.id for peer in other.peers()})
            monkeypatch.setattr(Vouching, "attest", attest)
            await (await asked).release()

        await lapses(a, b)
        await lapses(b, c)
    said = [record.getMessage() for record in caplog.records if "hands a token over without" in record.getMessage()]
    assert [each.partition(" hands")[0] for each in said] == ["b: a at a", "c: b at b"]


@in_virtual_time
async def test_a_flood_of_who_has_the_groups_key_takes_no_memory_and_keeps_nobody_from_a_turn(tmp_path: Path):
    network, banned = MemoryNetwork(seed=3, delay=0.002), set()
    async with (
        member(network, tmp_path, "a", banned) as a,
        member(network, tmp_path, "b", banned) as b,
        Insider(network) as insider,
    ):
        await until(lambda: len(a.peers()) == len(b.peers()) == 1)
        turns = Turns(a, b)
        kinds = lies(a.id, b.id)
        for number in range(3000):
            name = b.id if number % 2 else 5000 + number  # and lives that nobody ever met
            mutex, message = next(kinds)
            insider.send(a.address, in_the_name_of(name, number, a.id, message, mutex))
            if number % 500 == 0:
                await asyncio.sleep(0.5)
        await asyncio.sleep(2.0)
        waits = await turns.stop()
        assert (len(waits) > 40, max(waits) < 2.0) == (True, True)
        assert [peer.name for peer in a.peers()] == ["b"]
        assert a.statistics().mutexes == 1
        assert a.statistics().dropped["unsigned"] > 1500
