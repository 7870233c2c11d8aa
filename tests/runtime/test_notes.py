"""What each member notes for the others to read: `node.note`, `node.notes`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from softmutex import ConfigError, Node, sync
from softmutex.core.messages import ReadNote
from softmutex.core.wire import Frame
from softmutex.runtime.keys import seal_with
from softmutex.testing import MemoryNetwork, virtual_time
from tests.runtime.group import node_on, until

DELAY_S = 0.05  # one way


def in_a_group(of: int, story: Callable[..., Awaitable[None]], loss: float = 0.0) -> None:
    async def main() -> None:
        network = MemoryNetwork(seed=of, delay=DELAY_S, loss=loss)
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(node_on(network, name=f"n{i}")) for i in range(of)]
            await until(lambda: all(len(node.peers()) == of - 1 for node in nodes))
            await story(network, *nodes)

    with virtual_time() as runner:
        runner.run(main())


@pytest.mark.parametrize("of", [1, 2, 5, 30])
def test_everybody_reads_what_each_notes_in_one_round_trip(of: int):
    async def story(_: MemoryNetwork, *nodes: Node) -> None:
        for node in nodes:
            node.note("cars", {"of": node.name})
        nodes[-1].note("cars", None)
        loop = asyncio.get_running_loop()
        for node in nodes:
            begun = loop.time()
            assert await node.notes("cars") == {each.id: {"of": each.name} for each in nodes[:-1]}
            assert loop.time() - begun < 2 * DELAY_S + 0.01
        assert await nodes[0].notes("ships") == {}

    in_a_group(of, story)


@pytest.mark.parametrize("size", [0, 1_000, 1_025, 15_000])
def test_a_long_note_comes_whole_over_a_network_that_loses_a_fifth(size: int):
    async def story(_: MemoryNetwork, a: Node, b: Node) -> None:
        a.note("long", "x" * size)
        found: dict[int, Any] = {}
        while a.id not in found:  # within a second it may not be all there yet
            found = await b.notes("long")
        assert found == {a.id: "x" * size}

    in_a_group(2, story, loss=0.2)


def test_who_does_not_answer_counts_with_its_last_word_until_it_is_known_to_be_silent():
    async def story(network: MemoryNetwork, a: Node, b: Node, c: Node) -> None:
        c.note("cars", "red")
        assert await a.notes("cars") == {c.id: "red"}
        network.partition([a.address, b.address], [c.address])
        assert await a.notes("cars") == {c.id: "red"}, "a second of silence is no death"
        await until(lambda: any(peer.silent for peer in a.peers()))
        assert await a.notes("cars") == {}
        network.heal()
        await until(lambda: not any(peer.silent for peer in a.peers()))
        assert await a.notes("cars") == {c.id: "red"}

    in_a_group(3, story)


def test_a_note_goes_with_its_node():
    async def story(_: MemoryNetwork, a: Node, b: Node) -> None:
        b.note("cars", "red")
        assert await a.notes("cars") == {b.id: "red"}
        await b.close()
        assert await a.notes("cars") == {}

    in_a_group(2, story)


def test_a_note_that_is_too_long_or_one_too_many_is_an_error_that_says_so():
    async def story(_: MemoryNetwork, a: Node) -> None:
        with pytest.raises(ConfigError, match="at most 15360 bytes"):
            a.note("x", "y" * 16_000)
        for number in range(64):
            a.note(f"topic {number}", number)
        a.note("topic 0", "again")
        with pytest.raises(ConfigError, match="at most 64 topics"):
            a.note("one more", 1)

    in_a_group(1, story)


def test_who_is_no_member_is_told_nothing():
    async def story(network: MemoryNetwork, a: Node) -> None:
        a.note("cars", "red")
        stranger = network.transport()
        await stranger.open()
        stranger.send(a.address, seal_with((), "default", 77).seal(Frame(77, a.id, "cars", ReadNote(5))))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await stranger.receive()
        await stranger.aclose()

    in_a_group(1, story)


def test_threads_read_and_write_them_too():
    where = {"transport": "memory://notes", "membership": "memory://notes"}
    with sync.Node(**where) as a, sync.Node(**where) as b:
        a.note("cars", [1, 2])
        assert b.notes("cars") == {a.id: [1, 2]}
