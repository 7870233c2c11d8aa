"""Who is a member: greetings, suspicion, farewells, and what strangers can and cannot do."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from softmutex import Node
from softmutex.core.events import MembersChanged
from softmutex.core.messages import Bye, Challenge, Hello, Message, Ping, Pong, Welcome
from softmutex.core.wire import Frame, decode, encode
from softmutex.ports import Closed, Member
from softmutex.runtime.keys import group_fingerprint
from softmutex.runtime.peers import NEWCOMERS_A_SECOND, PROBES_AT_ONCE
from softmutex.testing import MemoryNetwork, MemoryTransport, in_virtual_time
from tests.runtime.group import Pulled, puppet_mutex, until

GROUP = group_fingerprint("default")


class Listed:
    """A membership that shows what the test says: addresses, with or without ids. `complete` as the test says, too."""

    def __init__(self, *members: Member, complete: bool = False) -> None:
        self.complete = complete
        self._members = members
        self._changed = asyncio.Event()
        self._changed.set()

    def show(self, *members: Member) -> None:
        self._members = members
        self._changed.set()

    async def join(self, me: Member) -> None: ...

    async def watch(self) -> Sequence[Member]:
        await self._changed.wait()
        self._changed.clear()
        return self._members

    async def leave(self) -> None: ...

    async def aclose(self) -> None: ...

    def group_key(self) -> bytes | None:
        return None

    def statistics(self) -> dict[str, int]:
        return {}


class Stranger:
    """Somebody at an address who says what the test wants, and hears what is said to it."""

    def __init__(self, transport: MemoryTransport, id: int) -> None:
        self.transport = transport
        self.id = id
        self.heard: list[Frame] = []
        self.sizes: list[int] = []

    async def open(self) -> None:
        await self.transport.open()
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        await self.transport.aclose()
        await self._task

    async def _listen(self) -> None:
        try:
            while True:
                for datagram in await self.transport.receive():
                    self.heard.append(decode(datagram.payload))
                    self.sizes.append(len(datagram.payload))
        except Closed:
            return

    def say(self, to: Node, message: Message, receiver: int | None = None) -> int:
        frame = encode(Frame(self.id, to.id if receiver is None else receiver, "", message))
        self.transport.send(to.address, frame)
        return len(frame)

    async def hear(self, kind: type[Message]) -> Frame:
        return await until(lambda: next((each for each in self.heard if isinstance(each.message, kind)), None))


@pytest.fixture
async def stranger(no_leaks: None, network: MemoryNetwork) -> AsyncIterator[Stranger]:
    stranger = Stranger(network.transport("stranger"), 4711)
    await stranger.open()
    yield stranger
    await stranger.close()


def listed_node(network: MemoryNetwork, membership: Listed, address: str, **options) -> Node:
    return Node(transport=network.transport(address), membership=membership, name=address, **options)


def known(node: Node) -> list[str]:
    return [peer.name for peer in node.peers()]


# --- greetings ------------------------------------------------------------------------------------------------------


async def test_nodes_that_know_only_addresses_greet_each_other_and_learn_id_and_name(
    no_leaks: None, network: MemoryNetwork
):
    addresses = [Member(address) for address in "abc"]
    async with (
        listed_node(network, Listed(*addresses), "a") as a,
        listed_node(network, Listed(*addresses), "b") as b,
        listed_node(network, Listed(*addresses), "c") as c,
    ):
        await until(lambda: (known(a), known(b), known(c)) == (["b", "c"], ["a", "c"], ["a", "b"]))
        assert a.life().members == sorted([a.id, b.id, c.id])
        assert {peer.id for peer in a.peers()} == {b.id, c.id}
        assert all(peer.heard_ago is not None and not peer.suspected for peer in a.peers())


async def test_a_node_recognises_itself_under_whatever_address_it_is_listed(no_leaks: None, network: MemoryNetwork):
    async with listed_node(network, Listed(Member("a")), "a") as a:
        assert a.peers() == ()
        assert not a.life().peers.greetings
        assert a.life().knows_everybody() is False  # not complete, though nobody is left to be greeted


async def test_who_knows_us_first_becomes_a_member_though_no_list_shows_it(no_leaks: None, network: MemoryNetwork):
    async with (
        listed_node(network, Listed(), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
    ):
        await until(lambda: known(a) == ["b"] and known(b) == ["a"])


async def test_a_stranger_is_greeted_back_only_after_its_cookie_came_back(network: MemoryNetwork, stranger: Stranger):
    async with listed_node(network, Listed(), "a") as a:
        size = stranger.say(a, Hello(7, 0, GROUP, False, ""), receiver=0)
        challenge = (await stranger.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        assert stranger.sizes[0] <= size
        assert a.peers() == ()
        assert not a.life().peers.greetings  # no state at all
        stranger.say(a, Hello(7, challenge.cookie ^ 2, GROUP, False, "s"))
        await until(lambda: len(stranger.heard) == 2)
        assert a.peers() == ()
        stranger.say(a, Hello(7, challenge.cookie, GROUP, False, "s"))
        welcome = (await stranger.hear(Welcome)).message
        assert welcome == Welcome(7, GROUP, "a")
        assert known(a) == ["s"]


async def test_a_cookie_is_good_for_one_source_only(network: MemoryNetwork, stranger: Stranger):
    async with listed_node(network, Listed(), "a") as a:
        stranger.say(a, Hello(7, 0, GROUP, False, ""), receiver=0)
        challenge = (await stranger.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        other = Stranger(network.transport("elsewhere"), stranger.id)
        await other.open()
        other.say(a, Hello(7, challenge.cookie, GROUP, False, "s"))
        await other.hear(Challenge)
        assert a.peers() == ()
        await other.close()


async def test_a_cookie_that_is_addressed_to_nobody_in_particular_proves_nothing(
    network: MemoryNetwork, stranger: Stranger
):
    """Such a frame can be recorded and played back: its receiver keeps no memory of it (S4)."""
    async with listed_node(network, Listed(), "a") as a:
        stranger.say(a, Hello(7, 0, GROUP, False, ""), receiver=0)
        challenge = (await stranger.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        for _ in range(3):
            stranger.say(a, Hello(7, challenge.cookie, GROUP, False, "s"), receiver=0)
        await until(lambda: len(stranger.heard) == 4)
        assert {type(each.message) for each in stranger.heard} == {Challenge}
        assert a.peers() == ()


async def test_a_node_repeats_the_cookie_to_the_very_life_that_gave_it(network: MemoryNetwork, stranger: Stranger):
    async with listed_node(network, Listed(Member("stranger")), "a") as a:
        hello = await stranger.hear(Hello)
        assert hello.receiver == 0
        assert isinstance(hello.message, Hello)
        stranger.say(a, Challenge(hello.message.nonce, 99))
        again = await until(lambda: next((each for each in stranger.heard if each.receiver), None))
        assert again.receiver == stranger.id
        assert isinstance(again.message, Hello)
        assert again.message.cookie == 99


async def test_a_visitor_is_welcomed_and_is_no_member(network: MemoryNetwork, stranger: Stranger):
    async with listed_node(network, Listed(), "a") as a:
        stranger.say(a, Hello(7, 0, GROUP, True, ""), receiver=0)
        challenge = (await stranger.hear(Challenge)).message
        assert isinstance(challenge, Challenge)
        stranger.say(a, Hello(7, challenge.cookie, GROUP, True, ""))
        await stranger.hear(Welcome)
        assert a.peers() == ()


async def test_nodes_of_another_group_do_not_meet_and_are_told_of(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    async with (
        listed_node(network, Listed(), "a") as a,
        listed_node(network, Listed(Member("a")), "b", group="other"),
    ):
        await until(lambda: a.statistics().told.get("groups"))
        assert a.peers() == ()
    assert "another group ('b', b) greets this one" in caplog.text


async def test_two_live_nodes_of_one_name_are_told_of_once(
    network: MemoryNetwork, stranger: Stranger, caplog: pytest.LogCaptureFixture
):
    async with listed_node(network, Listed(), "a") as a:
        for _ in range(3):
            a.life().peers._introduce(stranger.id, "a", "stranger", None)
        await until(lambda: known(a) == ["a"])
    assert caplog.text.count("two live nodes are named 'a'") == 1


@in_virtual_time
async def test_an_address_that_does_not_answer_is_asked_ever_more_rarely():
    network = MemoryNetwork()
    async with listed_node(network, Listed(Member("nobody")), "a") as a:
        await asyncio.sleep(60)
        after_a_minute = a.statistics().transport["sent"]
        await asyncio.sleep(3600)
        after_an_hour = a.statistics().transport["sent"]
    assert 8 <= after_a_minute <= 14
    assert (after_an_hour - after_a_minute) / 3600 <= 1 / 22


@in_virtual_time
async def test_an_address_that_answers_late_is_met_all_the_same():
    network = MemoryNetwork()
    async with listed_node(network, Listed(Member("b")), "a") as a:
        await asyncio.sleep(1000)
        async with listed_node(network, Listed(), "b") as b:
            await asyncio.sleep(40)
            assert (known(a), known(b)) == (["b"], ["a"])


# --- suspicion ------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_peer_that_is_suspected_and_silent_is_removed_within_two_seconds_and_the_machines_are_told():
    network = MemoryNetwork()
    async with (
        listed_node(network, Listed(Member("b")), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
        puppet_mutex(a),
    ):
        assert known(a) == ["b"]
        gone = b.id
        network.crash("b")
        a.life().peers.suspect(gone)
        assert a.peers()[0].suspected
        await asyncio.sleep(2)
        assert a.peers() == ()
        assert a.life().members == [a.id]
        assert MembersChanged((), (gone,)) in Pulled(a).puppet.told


@in_virtual_time
async def test_a_peer_that_answers_stays_a_member():
    network = MemoryNetwork(delay=0.5)
    async with (
        listed_node(network, Listed(Member("b")), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
    ):
        await asyncio.sleep(3)
        a.life().peers.suspect(b.id)
        assert a.peers()[0].suspected
        await asyncio.sleep(3)
        assert [peer.suspected for peer in a.peers()] == [False]


@in_virtual_time
async def test_a_node_that_was_silent_for_a_while_is_met_again():
    network = MemoryNetwork()
    async with (
        listed_node(network, Listed(Member("b")), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
    ):
        network.partition("a", "b")
        a.life().peers.suspect(b.id)
        b.life().peers.suspect(a.id)
        await asyncio.sleep(60)
        assert (known(a), known(b)) == ([], [])
        network.heal()
        await asyncio.sleep(40)
        assert (known(a), known(b)) == (["b"], ["a"])


@in_virtual_time
async def test_a_crowd_that_is_suspected_at_once_is_probed_in_portions_and_nobody_is_forgotten():
    network = MemoryNetwork()
    dead = [Member(f"dead-{id}", id, f"dead-{id}") for id in range(1, 2 * PROBES_AT_ONCE + 101)]
    async with listed_node(network, Listed(*dead, complete=True), "a") as a:
        peers = a.life().peers
        for member in dead:
            peers.suspect(member.id)
            peers.suspect(member.id)  # once is enough
        assert len(network_timers(a, "probe")) == PROBES_AT_ONCE
        assert sum(peer.suspected for peer in a.peers()) == len(dead)
        assert a.statistics().told["probes put off"] == PROBES_AT_ONCE + 100
        peers.heard(dead[-1].id, dead[-1].address)  # speaks before its turn came
        await asyncio.sleep(3 * 2)
        assert known(a) == [dead[-1].name]
        assert not a.peers()[0].suspected
        peers.suspect(dead[-1].id)  # and the count of probes is right again
        assert len(network_timers(a, "probe")) == 1


def network_timers(node: Node, kind: str) -> list[object]:
    return [key for key in node.life().timers._live if isinstance(key, tuple) and key[0] == kind]


@in_virtual_time
async def test_a_holder_whose_token_was_made_anew_is_looked_for_and_leaves_the_view():
    network = MemoryNetwork()
    addresses = [Member(address) for address in "abc"]
    async with (
        listed_node(network, Listed(*addresses), "a") as a,
        listed_node(network, Listed(*addresses), "b") as b,
        listed_node(network, Listed(*addresses), "c") as c,
    ):
        for node in (a, b, c):
            async with node.mutex("x"):
                pass
        made = {node: made_tokens(node) for node in (b, c)}
        async with a.mutex("x"):
            network.crash("a")
            async with b.mutex("x").hold(timeout=60):
                await asyncio.sleep(3)
                (maker,) = (node for node in (b, c) if made_tokens(node) > made[node])
                assert "a" not in known(maker)
        a.life().settings._values["leave_timeout"] = 0.0


def made_tokens(node: Node) -> int:
    return node.mutex("x").statistics().facts.get("generated", 0)


@in_virtual_time
async def test_nobody_says_anything_while_nothing_happens():
    network = MemoryNetwork()
    async with (
        listed_node(network, Listed(Member("b")), "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
    ):
        await asyncio.sleep(10)
        before = a.statistics().transport["sent"] + b.statistics().transport["sent"]
        await asyncio.sleep(3600)
        assert a.statistics().transport["sent"] + b.statistics().transport["sent"] == before


async def test_who_leaves_in_good_order_is_removed_at_once(no_leaks: None, network: MemoryNetwork):
    async with listed_node(network, Listed(), "a") as a:
        async with listed_node(network, Listed(Member("a")), "b"):
            await until(lambda: known(a) == ["b"])
        await until(lambda: known(a) == [])


@in_virtual_time
async def test_a_goodbye_of_a_membership_that_may_err_starts_a_probe_and_removes_nobody():
    network = MemoryNetwork()
    listed = Listed(Member("b"))
    async with (
        listed_node(network, listed, "a") as a,
        listed_node(network, Listed(Member("a")), "b"),
    ):
        listed.show()
        await asyncio.sleep(10)
        assert known(a) == ["b"]
        network.crash("b")
        listed.show(Member("b"))
        await asyncio.sleep(1)
        listed.show()
        await asyncio.sleep(10)
        assert known(a) == []


async def test_whom_a_complete_membership_no_longer_shows_is_gone_at_once(no_leaks: None, network: MemoryNetwork):
    listed = Listed(Member("b", 77, "b"), Member("c", 78, "c"), complete=True)
    async with listed_node(network, listed, "a") as a:
        assert known(a) == ["b", "c"]  # and believed without a greeting
        assert a.statistics().transport["sent"] == 0
        listed.show(Member("c", 78, "c"))
        await until(lambda: known(a) == ["c"])


async def test_an_id_that_a_membership_only_claims_is_greeted_first(no_leaks: None, network: MemoryNetwork):
    async with listed_node(network, Listed(Member("b", 77, "b")), "a") as a:
        assert a.peers() == ()


@in_virtual_time
async def test_after_a_restart_at_the_same_address_only_the_new_life_remains():
    network = MemoryNetwork()
    async with listed_node(network, Listed(Member("b")), "a") as a:
        first = listed_node(network, Listed(Member("a")), "b")
        await first.open()
        await asyncio.sleep(1)
        old = first.id
        network.crash("b")
        async with listed_node(network, Listed(Member("a")), "b") as second:
            await asyncio.sleep(5)
            assert [peer.id for peer in a.peers()] == [second.id]
        assert old not in a.life().members
        first.life().settings._values["leave_timeout"] = 0.0
        await first.close()


# --- strangers ------------------------------------------------------------------------------------------------------


async def test_who_addresses_this_very_life_becomes_a_member_and_its_address_follows(
    network: MemoryNetwork, stranger: Stranger
):
    async with listed_node(network, Listed(), "a") as a:
        stranger.say(a, Ping(5))
        assert (await stranger.hear(Pong)).message == Pong(5)
        assert a.life().members == sorted([a.id, stranger.id])
        moved = Stranger(network.transport("moved"), stranger.id)
        await moved.open()
        moved.say(a, Ping(6))
        await moved.hear(Pong)
        assert a.peers()[0].address == "moved"
        moved.say(a, Bye())
        await until(lambda: a.peers() == ())
        await moved.close()


async def test_who_addresses_nobody_in_particular_gets_nothing_but_a_challenge(
    network: MemoryNetwork, stranger: Stranger
):
    async with listed_node(network, Listed(), "a") as a:
        for message in (Ping(1), Pong(1), Bye(), Welcome(1, GROUP, "s"), Challenge(1, 1)):
            stranger.say(a, message, receiver=0)
        await until(lambda: a.statistics().dropped.get("not addressed") == 5)
        assert (a.peers(), stranger.heard) == ((), [])


@in_virtual_time
async def test_newcomers_beyond_a_bound_a_second_are_dropped_and_counted():
    network = MemoryNetwork()
    crowd = network.transport("crowd")
    await crowd.open()
    async with listed_node(network, Listed(), "a") as a:
        for id in range(1, NEWCOMERS_A_SECOND + 501):
            crowd.send("a", encode(Frame(id, a.id, "", Pong(1))))
            if id % 1000 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(a.peers()) <= NEWCOMERS_A_SECOND
        assert a.statistics().dropped["newcomers"] >= 1
        await asyncio.sleep(1)
        crowd.send("a", encode(Frame(999_999, a.id, "", Pong(1))))
        await asyncio.sleep(0.01)
        assert 999_999 in a.life().members
        a.life().peers.table.clear()  # nobody to say goodbye to
        del a.life().members[:]
    await crowd.aclose()


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
