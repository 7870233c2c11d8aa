"""Any process with the key may ask the nodes what they know, and is no member for that."""

import asyncio
import json
from pathlib import Path

import pytest

from softmutex import Node
from softmutex.core.messages import Challenge, StatusReply, StatusRequest
from softmutex.ports import Member
from softmutex.runtime.config import resolve, with_places
from softmutex.runtime.status import PAGE, ask_all
from softmutex.testing import MemoryNetwork
from tests.limits import limit
from tests.runtime.group import Stranger, node_on, until


async def test_every_node_tells_what_it_knows_and_the_visitor_stays_a_stranger(no_leaks: None):
    where = {"transport": "memory://status", "membership": "memory://status"}
    async with Node(name="a", **where) as a, Node(name="b", **where) as b, a.mutex("x"):
        waiting = asyncio.create_task(_enter(b))
        await until(lambda: b.mutex("x").statistics().waiting)
        said = await ask_all(with_places(resolve(where)))
        assert {member.id for member in said} == {a.id, b.id}
        by_name = {document["name"]: document for document in said.values() if document}
        [on_a], [on_b] = by_name["a"]["mutexes"], by_name["b"]["mutexes"]
        assert (on_a["name"], on_a["state"], on_a["epoch"], on_a["tokens"]) == ("x", "holding", 1, 1)
        assert len(on_a["holding"]) == 1
        assert (on_b["waiting_count"], len(on_b["waiting"]), on_b["holding"]) == (1, 1, [])
        assert [peer.name for peer in a.peers()] == ["b"]
    await waiting


async def test_a_long_answer_comes_in_pages(no_leaks: None, tmp_path: Path):
    where = {"membership": f"local://?directory={tmp_path}"}
    async with Node(**where) as node:
        for number in range(40):
            async with node.mutex(f"mutex number {number}"):
                pass
        [document] = (await ask_all(with_places(resolve(where)))).values()
        assert document is not None
        assert len(document["mutexes"]) == 40
        assert len(json.dumps(document)) > 4 * PAGE


async def test_who_does_not_answer_is_none(no_leaks: None):
    where = {"transport": "memory://silent", "membership": "static://127.0.0.1:1"}
    said = await ask_all(with_places(resolve(where)), timeout_s=0.05)
    assert said == {Member("127.0.0.1:1"): None}


async def test_nothing_is_told_before_the_cookie_came_back(no_leaks: None, network: MemoryNetwork):
    stranger = Stranger(network.transport("stranger"), 4711)
    await stranger.open()
    async with node_on(network) as node:
        size = stranger.say(node, StatusRequest(9, 0, 0), receiver=0)
        challenge = (await stranger.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        assert stranger.sizes == [size - 1]  # a challenge has no page
        stranger.say(node, StatusRequest(9, challenge.cookie, 0))
        reply = (await stranger.hear(StatusReply)).message
        assert isinstance(reply, StatusReply)
        assert json.loads(reply.content)["name"] == node.name
        assert node.peers() == ()
    await stranger.close()


async def test_the_documents_that_are_kept_are_few(no_leaks: None, network: MemoryNetwork):
    kept = limit("such answers that are kept")
    async with node_on(network) as node, Stranger(network.transport("stranger"), 4711) as stranger:
        stranger.say(node, StatusRequest(0, 0, 0), receiver=0)
        cookie = await stranger.cookie()

        async def ask(nonce: int) -> str:
            before = stranger.count(StatusReply)
            stranger.say(node, StatusRequest(nonce, cookie, 0))
            await until(lambda: stranger.count(StatusReply) > before)
            reply = stranger.heard[-1].message
            assert isinstance(reply, StatusReply)
            return str(reply.content)

        first = [await ask(nonce) for nonce in range(50)]
        assert len(set(first)) > 25  # each of its own time, which is told in milliseconds
        kept_still = [nonce for nonce in range(49, -1, -1) if await ask(nonce) == first[nonce]]
        assert kept_still == list(range(49, 49 - kept, -1))
        before = len(stranger.heard)
        stranger.say(node, StatusRequest(49, cookie, 7))  # a page that there is not
        stranger.say(node, StatusRequest(49, cookie, 0))
        await until(lambda: len(stranger.heard) == before + 1)


async def _enter(node: Node) -> None:
    async with node.mutex("x"):
        pass


@pytest.mark.parametrize("pages", [0, 300])
async def test_an_impossible_number_of_pages_is_no_answer(no_leaks: None, network: MemoryNetwork, pages: int):
    from softmutex.runtime.keys import seal_with
    from softmutex.runtime.status import Visitor

    transport = network.transport("visitor")
    await transport.open()
    visitor = Visitor(transport, seal_with([], "default", 5), 5)
    liar = Stranger(network.transport("liar"), 6)
    await liar.open()
    listening = asyncio.create_task(visitor.listen())
    asking = asyncio.create_task(visitor.ask(Member("liar", 6)))
    request = (await liar.hear(StatusRequest)).message
    assert isinstance(request, StatusRequest)
    from softmutex.core.wire import Frame, encode

    liar.transport.send("visitor", encode(Frame(6, 5, "", StatusReply(request.nonce, 0, pages, b"{}"))))
    await until(lambda: len(liar.heard) >= 2)  # it asks again
    assert not asking.done()
    asking.cancel()
    listening.cancel()
    await asyncio.gather(asking, listening, return_exceptions=True)
    await transport.aclose()
    await liar.close()
