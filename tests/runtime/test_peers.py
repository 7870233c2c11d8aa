"""Who is a member: greetings, suspicion, farewells, and what strangers can and cannot do."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from softmutex import Node
from softmutex.core.events import MembersChanged, Returned, Silenced
from softmutex.core.messages import Bye, Challenge, Hello, Ping, Pong, Welcome
from softmutex.core.wire import Frame, encode
from softmutex.ports import Closed, Member
from softmutex.testing import MemoryNetwork, MemoryTransport, in_virtual_time
from tests.limits import limit
from tests.runtime.group import GROUP, Overheard, Stranger, opened, puppet_mutex, puppet_of, until


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


class Mirror:
    """At `address` of a network: what arrives there goes on to `leads_to`, as if it came from there."""

    def __init__(self, network: MemoryNetwork, address: str, leads_to: str) -> None:
        self.transport: MemoryTransport = network.transport(address)
        self._leads_to = leads_to

    async def __aenter__(self) -> "Mirror":
        await self.transport.open()
        self._task = asyncio.create_task(self._reflect())
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.transport.aclose()
        await self._task

    async def _reflect(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                for datagram in await self.transport.receive():
                    if datagram.payload:
                        self.transport.send(self._leads_to, datagram.payload)


@pytest.fixture
async def stranger(no_leaks: None, network: MemoryNetwork) -> AsyncIterator[Stranger]:
    async with Stranger(network.transport("stranger"), 4711) as stranger:
        yield stranger


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
        assert a.statistics().peers == 2
        assert {peer.id for peer in a.peers()} == {b.id, c.id}
        assert all(peer.heard_ago is not None and not peer.suspected for peer in a.peers())


@in_virtual_time
async def test_a_node_recognises_itself_under_whatever_address_it_is_listed():
    network = MemoryNetwork()
    async with Mirror(network, "alias", "a"), listed_node(network, Listed(Member("a"), Member("alias")), "a") as a:
        assert a.peers() == ()
        greeted = a.statistics().transport["sent"]
        await asyncio.sleep(600)
        assert a.statistics().transport["sent"] - greeted <= 130  # that it is its own is proved anew each ten seconds
        async with a.mutex("x").hold(timeout=60) as hold:
            assert hold.epoch == 1
        assert "missing" not in a.statistics().told and "alone" not in a.statistics().told


@in_virtual_time
@pytest.mark.parametrize("sealed", [True, False])
async def test_two_datagrams_that_are_reflected_part_nobody(sealed: bool):
    """Whoever reflects the first HELLO of each of two nodes needs no key for that."""
    network = MemoryNetwork(delay=0.001)
    attacker = network.transport("attacker")
    await attacker.open()
    hellos: dict[str, bytes] = {}
    network.tap = lambda source, _to, payload: hellos.setdefault(source, payload) and None
    network.partition("a", "b")
    options = {"key": bytes(range(32))} if sealed else {}
    async with (
        listed_node(network, Listed(Member("b")), "a", **options) as a,
        listed_node(network, Listed(Member("a")), "b", **options) as b,
    ):
        for node in (a, b):
            attacker.send(node.address, hellos[node.address])
        await asyncio.sleep(0.1)
        network.heal()
        await asyncio.sleep(3)
        assert (known(a), known(b)) == (["b"], ["a"])
        assert a.statistics().dropped["own greetings"] == b.statistics().dropped["own greetings"] == 1
        assert a.statistics().told["reflected"] == b.statistics().told["reflected"] == 1
    await attacker.aclose()


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
        stranger.say(a, Hello(7, challenge.cookie ^ 2, GROUP, False, "s"))
        await until(lambda: len(stranger.heard) == 2)
        assert a.peers() == ()
        stranger.say(a, Hello(7, challenge.cookie, GROUP, False, "s"))
        welcome = (await stranger.hear(Welcome)).message
        assert welcome == Welcome(7, GROUP, "a")
        assert known(a) == ["s"]


@in_virtual_time
async def test_a_hello_without_a_cookie_leaves_no_state_behind():
    """Whoever is being greeted is greeted again and again; who only said hello never is."""
    network = MemoryNetwork()
    async with listed_node(network, Listed(), "a") as a, Stranger(network.transport("stranger"), 4711) as stranger:
        for nonce in range(2 * limit("addresses that are greeted and have not answered")):
            network.transport(f"stranger-{nonce}")
            stranger.say(a, Hello(nonce, 0, GROUP, False, ""), receiver=0)
            if nonce % 1000 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(600)
        assert {type(frame.message) for frame in stranger.heard} == {Challenge}
        assert "candidates" not in a.statistics().dropped
        assert (a.peers(), a.statistics().peers) == ((), 0)


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
            await stranger.introduce(a, "a")
        await until(lambda: known(a) == ["a"])
    assert caplog.text.count("two live nodes are named 'a'") == 1


@in_virtual_time
async def test_of_those_that_do_not_answer_one_a_second_is_looked_for_however_many_they_are():
    network = MemoryNetwork()
    async with listed_node(network, Listed(*(Member(f"nobody-{number}") for number in range(20))), "a") as a:
        await asyncio.sleep(60)
        after_a_minute = a.statistics().transport["sent"]
        await asyncio.sleep(3600)
        assert (a.statistics().transport["sent"] - after_a_minute) / 3600 == pytest.approx(1.0, abs=0.02)


@in_virtual_time
async def test_an_address_that_answers_late_is_met_all_the_same():
    network = MemoryNetwork()
    async with listed_node(network, Listed(Member("b")), "a") as a:
        await asyncio.sleep(1000)
        async with listed_node(network, Listed(), "b") as b:
            await asyncio.sleep(2)
            assert (known(a), known(b)) == (["b"], ["a"])


# --- suspicion ------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_peer_that_is_suspected_and_whose_host_refuses_is_removed_at_once_and_the_machines_are_told():
    network = MemoryNetwork()
    listed = Listed(Member("b"))
    async with (
        listed_node(network, listed, "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
        puppet_mutex(a),
    ):
        assert known(a) == ["b"]
        gone = b.id
        overheard = Overheard(network)
        network.crash("b")
        listed.show()
        await until(lambda: a.peers()[0].suspected)
        await asyncio.sleep(0.5)
        assert a.peers() == ()
        assert len(overheard.of(Ping, a.id)) < limit("pings to one member that is silent")
        assert puppet_of(a).setup.members == [a.id]
        assert MembersChanged((), (gone,)) in puppet_of(a).told


@in_virtual_time
async def test_a_peer_that_is_suspected_and_silent_still_counts_and_the_machines_are_told():
    network = MemoryNetwork()
    listed = Listed(Member("b"))
    async with (
        listed_node(network, listed, "a") as a,
        listed_node(network, Listed(Member("a")), "b") as b,
        puppet_mutex(a, isolated_timeout=60),
    ):
        silent = b.id
        overheard = Overheard(network)
        network.switch_off("b")
        listed.show()
        await asyncio.sleep(2)
        assert [(peer.id, peer.silent) for peer in a.peers()] == [(silent, True)]
        assert len(overheard.of(Ping, a.id)) >= limit("pings to one member that is silent")
        assert Silenced(silent) in puppet_of(a).told
        assert puppet_of(a).setup.members == sorted([a.id, silent])
        async with puppet_mutex(
            a, "y", isolated_timeout=1, when_isolated="proceed"
        ):  # a machine that begins later is told as well
            assert Silenced(silent) in puppet_of(a).told
        await asyncio.sleep(50)
        assert a.peers() != ()  # the most patient mutex counts
        await asyncio.sleep(10)
        assert a.peers() == ()
        assert MembersChanged((), (silent,)) in puppet_of(a).told
        assert a.statistics().told["given up"] == 1


@in_virtual_time
async def test_a_peer_that_answers_stays_a_member():
    network = MemoryNetwork(delay=0.5)
    listed = Listed(Member("b"))
    async with (
        listed_node(network, listed, "a") as a,
        listed_node(network, Listed(Member("a")), "b"),
    ):
        await asyncio.sleep(3)
        listed.show()
        await until(lambda: a.peers()[0].suspected)
        await asyncio.sleep(3)
        assert [peer.suspected for peer in a.peers()] == [False]


@in_virtual_time
async def test_a_node_that_was_silent_for_a_while_is_heard_again_soon():
    network = MemoryNetwork()
    lists = (Listed(Member("b")), Listed(Member("a")))
    async with (
        listed_node(network, lists[0], "a") as a,
        listed_node(network, lists[1], "b") as b,
        puppet_mutex(a),
    ):
        network.partition("a", "b")
        for listed, other in zip(lists, "ba", strict=True):
            listed.show()
            await asyncio.sleep(0.1)  # suspected, and still there
            listed.show(Member(other))
        await asyncio.sleep(60)
        assert [peer.silent for node in (a, b) for peer in node.peers()] == [True, True]
        network.heal()
        await asyncio.sleep(3)
        assert [peer.silent for node in (a, b) for peer in node.peers()] == [False, False]
        assert Returned(b.id) in puppet_of(a).told


@in_virtual_time
async def test_a_crowd_that_is_suspected_at_once_is_probed_in_portions_and_nobody_is_forgotten():
    network = MemoryNetwork()
    at_once = limit("members that are probed at once")
    crowd = [await opened(network, f"dead-{id}", id) for id in range(1, 2 * at_once + 101)]
    listed = Listed()
    async with listed_node(network, listed, "a") as a:
        for one in crowd:
            one.say(a, Pong(1))
        await until(lambda: a.statistics().peers == len(crowd))
        members = [Member(one.transport.address, one.id) for one in crowd]
        listed.show(*members)
        await asyncio.sleep(0)
        for one in crowd:
            network.crash(one.transport.address)
        overheard = Overheard(network)

        def pinged() -> set[int]:
            return {ping.receiver for ping in overheard.of(Ping, a.id)}

        for _ in range(2):  # once is enough
            listed.show(*members)
            await asyncio.sleep(0.01)
            listed.show()
            await asyncio.sleep(0.01)
        assert len(pinged()) == at_once
        assert sum(peer.suspected for peer in a.peers()) == len(crowd)
        survivor = await opened(network, "survivor", crowd[-1].id)
        survivor.say(a, Pong(1))  # speaks before its turn came
        await asyncio.sleep(3 * 2)
        assert [peer.id for peer in a.peers()] == [survivor.id]
        assert pinged() == {one.id for one in crowd[:-1]}
        assert not a.peers()[0].suspected
        overheard.frames.clear()
        listed.show(Member("survivor", survivor.id))
        await asyncio.sleep(0.01)
        listed.show()
        await asyncio.sleep(0.01)
        assert pinged() == {survivor.id}  # and the count of probes is right again
    for one in (*crowd, survivor):
        await one.close()


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
            assert [peer.id for peer in a.peers()] == [second.id] != [old]
            assert a.statistics().peers == 1
        await first.close()


@in_virtual_time
async def test_whom_a_list_dropped_though_it_lives_is_back_as_soon_as_it_speaks():
    """Issue 14.3: it stayed refused, where no later list showed it again."""
    network = MemoryNetwork(delay=0.001)
    async with listed_node(network, Listed(Member("a")), "b") as b:
        listed = Listed(Member("b", b.id, "b"), complete=True)
        async with listed_node(network, listed, "a") as a:
            assert known(a) == ["b"]
            listed.show()
            await until(lambda: not known(a))
            async with b.mutex("x").hold(timeout=20):
                assert [peer.id for peer in a.peers()] == [b.id]


# --- strangers ------------------------------------------------------------------------------------------------------


async def test_who_addresses_this_very_life_becomes_a_member_and_its_address_follows(
    network: MemoryNetwork, stranger: Stranger
):
    async with listed_node(network, Listed(), "a") as a:
        stranger.say(a, Ping(5))
        assert (await stranger.hear(Pong)).message == Pong(5)
        assert [peer.id for peer in a.peers()] == [stranger.id]
        moved = await opened(network, "moved", stranger.id)
        moved.say(a, Ping(6))
        await moved.hear(Pong)
        assert a.peers()[0].address == "moved"
        moved.say(a, Bye())
        await until(lambda: a.peers() == ())
        await moved.close()


@in_virtual_time
async def test_a_process_that_lives_under_the_id_of_a_node_and_proves_it_makes_that_node_take_a_new_life(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    """A cloned machine: the two would be taken for one, and each for the holder."""
    async with listed_node(network, Listed(), "a", leave_timeout=0.1) as a, puppet_mutex(a) as hold:
        async with Stranger(network.transport("twin"), a.id) as twin:
            twin.say(a, Hello(7, 0, GROUP, False, ""), receiver=0)
            twin.say(a, Hello(7, await twin.cookie(), GROUP, False, "twin"))
            await until(hold.lost.is_set)
            assert hold.lost_reason == "closed"
            assert "at twin, lives under the id of this node" in hold.lost_detail
            assert a.id != twin.id
        await (await puppet_mutex(a, "y").acquire()).release()
    assert "was this machine cloned, or set back?" in caplog.text


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
    a_second = limit("new members a second")
    crowd = network.transport("crowd")
    await crowd.open()
    async with listed_node(network, Listed(), "a", leave_timeout=0.1) as a:
        for id in range(1, a_second + 501):
            crowd.send("a", encode(Frame(id, a.id, "", Pong(1))))
            if id % 1000 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(a.peers()) <= a_second
        assert a.statistics().dropped["newcomers"] >= 1
        await asyncio.sleep(1)
        crowd.send("a", encode(Frame(999_999, a.id, "", Pong(1))))
        await asyncio.sleep(0.01)
        assert 999_999 in {peer.id for peer in a.peers()}
    await crowd.aclose()


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
