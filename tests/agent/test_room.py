"""Who waits at an agent keeps the place, through pauses and for a while when nobody asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from softmutex import AcquireTimeout, Node, NodeClosed
from softmutex.agent.room import OnOverrun, Room, Rooms

PATIENCE_S = 100.0


def member(name: str) -> Node:
    return Node(name=name, transport="memory://room", membership="memory://room", leave_timeout=1.0)


@pytest.fixture
async def agent(no_leaks: Any) -> AsyncIterator[Node]:
    async with member("agent") as node:
        yield node


@pytest.fixture
async def other(agent: Node) -> AsyncIterator[Node]:
    async with member("other") as node:
        yield node


@pytest.fixture
async def room(agent: Node) -> AsyncIterator[Room]:
    room = Room(lambda on_overrun: agent.mutex("link", on_overrun=on_overrun))
    yield room
    room.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def visit(
    room: Room, seen: list[str], name: str, since_s: float, limit_s: float | None = None, keep_s: float = 0.0
) -> None:
    async with room.turn(since_s, time.time(), limit_s, keep_s, lambda hold: None):
        seen.append(name)


def waiting(node: Node) -> int:
    return node.mutex("link").statistics().waiting


async def test_who_began_to_wait_first_comes_first_whoever_came_back_when(agent: Node, other: Node, room: Room):
    now_s, seen = time.time(), list[str]()
    async with other.mutex("link"):
        visits = [
            asyncio.create_task(visit(room, seen, name, since_s))
            for name, since_s in (
                ("third", now_s - 10),
                ("first", now_s - 60),
                ("fourth", now_s + 60),
                ("second", now_s - 30),
            )
        ]
        await until(lambda: waiting(agent) == 4)
    await asyncio.gather(*visits)
    assert seen == ["first", "second", "third", "fourth"]
    assert room.is_empty


async def test_a_place_that_is_kept_is_before_others_of_the_group_who_came_later(agent: Node, other: Node, room: Room):
    began_s, seen = time.time(), list[str]()
    holding = asyncio.Event()

    async def third_party() -> None:
        async with member("third") as node, node.mutex("link"):
            holding.set()
            await gone.wait()

    async def later() -> None:
        async with other.mutex("link"):
            seen.append("other")

    gone = asyncio.Event()
    third = asyncio.create_task(third_party())
    await holding.wait()
    with pytest.raises(AcquireTimeout):
        await visit(room, seen, "job", began_s, limit_s=0.2, keep_s=60.0)
    assert waiting(agent) == 1
    asking = asyncio.create_task(later())
    await until(lambda: waiting(other) == 1)
    again = asyncio.create_task(visit(room, seen, "job", began_s))
    gone.set()
    await asyncio.gather(third, asking, again)
    assert seen == ["job", "other"]


async def test_a_turn_that_comes_while_nobody_is_here_is_handed_on_at_once(agent: Node, other: Node, room: Room):
    seen = list[str]()
    async with other.mutex("link"):
        with pytest.raises(AcquireTimeout):
            await visit(room, seen, "job", time.time(), limit_s=0.1, keep_s=60.0)
    await until(lambda: room.is_empty)
    async with other.mutex("link").hold(timeout=PATIENCE_S):
        pass


async def test_a_place_is_kept_for_as_long_as_was_asked_for(agent: Node, other: Node, room: Room):
    seen = list[str]()
    async with other.mutex("link"):
        with pytest.raises(AcquireTimeout):
            await visit(room, seen, "job", time.time(), limit_s=0.1, keep_s=0.2)
        assert waiting(agent) == 1
        await until(lambda: room.is_empty and waiting(agent) == 0)


async def test_a_newcomer_does_not_take_the_place_that_is_kept_for_another(agent: Node, other: Node, room: Room):
    began_s, seen = time.time(), list[str]()
    async with other.mutex("link"):
        with pytest.raises(AcquireTimeout):
            await visit(room, seen, "job", began_s, limit_s=0.1, keep_s=60.0)
        newcomer = asyncio.create_task(visit(room, seen, "newcomer", time.time() + 1))
        await until(lambda: waiting(agent) == 2)
        again = asyncio.create_task(visit(room, seen, "job", began_s))
    await asyncio.gather(newcomer, again)
    assert seen == ["job", "newcomer"]


async def test_who_is_cancelled_leaves_its_turn_to_the_next(agent: Node, other: Node, room: Room):
    now_s, seen = time.time(), list[str]()
    async with other.mutex("link"):
        one = asyncio.create_task(visit(room, seen, "one", now_s))
        two = asyncio.create_task(visit(room, seen, "two", now_s + 1))
        await until(lambda: waiting(agent) == 2)
        one.cancel()
        await until(lambda: waiting(agent) == 1)
    await two
    assert seen == ["two"]
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_an_overrun_is_told_to_whoever_holds(agent: Node):
    told: list[str] = []
    room = Room(lambda on_overrun: agent.mutex("link", max_hold=0.05, on_overrun=on_overrun))
    async with room.turn(time.time(), time.time(), None, 0.0, lambda hold: told.append(hold.name)):
        await until(lambda: told)
    assert told == ["link"]


async def test_a_node_that_closes_ends_the_waits(no_leaks: Any):
    async with member("other") as other, other.mutex("link"):
        node = member("agent")
        await node.open()
        rooms = Rooms()

        def make(on_overrun: OnOverrun) -> Any:
            return node.mutex("link", on_overrun=on_overrun)

        async def wait() -> None:
            async with rooms.room("link", make) as room:
                await visit(room, [], "job", time.time())

        waits = asyncio.create_task(wait())
        await until(lambda: waiting(node) == 1)
        rooms.close()
        await node.close()
        with pytest.raises(NodeClosed):
            await waits
