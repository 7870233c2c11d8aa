"""How a node comes by its machine, and who makes the first token."""

import asyncio
import logging
from pathlib import Path

import pytest

from softmutex import ConfigError, Node, SoftMutex, Timing
from softmutex.core.events import Token
from softmutex.core.messages import Accept, Commit, Describe, Description, Offer, Standing
from softmutex.core.wire import Frame, encode
from softmutex.ports import Member
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import limit
from tests.runtime.group import Puppet, Stranger, mutex_shown, node_on, opened, until
from tests.runtime.test_peers import Listed, listed_node

TOKEN = Token(epoch=1, stamp=1, id=1, hop=1)


def generated(*nodes: Node, name: str = "x") -> int:
    return sum(node.mutex(name).statistics().facts.get("generated", 0) for node in nodes)


async def test_who_is_alone_founds_at_once_without_a_message(node: Node):
    async with node.mutex("x").hold(timeout=0):
        assert generated(node) == 1
        assert node.statistics().transport["sent"] == 0


async def test_a_newcomer_makes_no_second_token(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as first, node_on(network) as second:
        async with first.mutex("x"):
            waiting = asyncio.create_task(_enter(second.mutex("x")))
            await until(lambda: second.mutex("x").statistics().waiting)
        await waiting
        assert generated(first, second) == 1


async def test_a_mutex_that_nobody_has_heard_of_is_founded_at_once_in_a_group_that_is_all_there(
    no_leaks: None, network: MemoryNetwork
):
    async with node_on(network) as a, node_on(network) as b, node_on(network) as c:
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, c)))
        async with a.mutex("busy"), b.mutex("new").hold(timeout=0):
            assert generated(a, b, c, name="new") == 1


async def test_an_algorithm_that_asks_everybody_is_told_of_where_somebody_may_be_unknown(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    class AsksAll(Puppet):
        needs_every_member = True

    async with node_on(network) as sure, listed_node(network, Listed(Member("absent")), "unsure") as unsure:
        async with sure.mutex("x", algorithm=AsksAll):
            assert "strangers" not in sure.statistics().told
        async with unsure.mutex("y", algorithm=Puppet):
            assert "strangers" not in unsure.statistics().told
        async with unsure.mutex("x", algorithm=AsksAll):
            assert unsure.statistics().told["strangers"] == 1
    assert "'x' is run by 'puppet', which has to ask every member" in caplog.text
    assert "that this node does not know (absent). Use a membership that shows everybody" in caplog.text


@in_virtual_time
async def test_of_many_that_start_at_once_one_founds():
    for seed in range(5):
        network = MemoryNetwork(seed=seed, delay=0.005, jitter=0.004)
        nodes = [node_on(network, name=f"n{number}") for number in range(20)]
        inside: list[int] = []

        async def use(node: Node, inside: list[int] = inside) -> None:
            async with node, node.mutex("x").hold(timeout=60):
                inside.append(1)
                assert len(inside) == 1, "two holders"
                await asyncio.sleep(0.1)
                inside.pop()

        await asyncio.gather(*map(use, nodes))


@in_virtual_time
async def test_of_many_that_know_each_other_and_open_at_once_one_founds_and_nothing_is_made_anew():
    network = MemoryNetwork(seed=3, delay=0.005, jitter=0.004)
    nodes = [node_on(network, name=f"n{number}") for number in range(20)]
    await asyncio.gather(*(node.open() for node in nodes))
    await asyncio.sleep(1)

    async def use(node: Node) -> int:
        async with node.mutex("x").hold(timeout=60) as hold:
            await asyncio.sleep(0.1)
            return hold.epoch

    assert set(await asyncio.gather(*map(use, nodes))) == {1}
    assert generated(*nodes) == 1
    await asyncio.gather(*(node.close() for node in nodes))


@in_virtual_time
async def test_who_sees_the_one_that_it_asked_die_waits_for_it_no_longer():
    """It has no token any more. Nobody else knows of one."""
    network = MemoryNetwork()
    stranger, directory = await opened(network, "stranger"), network.membership()
    await directory.join(Member("stranger", stranger.id, "s"))
    async with node_on(network, leave_timeout=0.1) as node:
        asking = asyncio.create_task(_epoch(node.mutex("x")))
        await stranger.hear(Describe)
        await stranger.close()
        await directory.leave()
        async with asyncio.timeout(1):
            assert await asking == 1
    await directory.aclose()


@in_virtual_time
async def test_nobody_founds_while_somebody_who_might_know_is_silent():
    network = MemoryNetwork()
    async with node_on(network) as a, node_on(network) as b:
        await asyncio.sleep(1)
        async with a.mutex("x"):
            network.partition(a.address, b.address)
            asking = asyncio.create_task(_enter(b.mutex("x")))
            await asyncio.sleep(0.5)
            assert generated(b) == 0
            network.heal()
            await asyncio.sleep(1)
            assert generated(b) == 0
        await asking


async def test_a_node_takes_part_in_a_mutex_that_only_others_use_by_their_terms(no_leaks: None, network: MemoryNetwork):
    terms = {"slots": 2, "timing": Timing(op=1.0, nodes_max=7)}
    async with node_on(network) as passive, node_on(network) as active:
        async with active.mutex("x", **terms):
            pass
        await active.close()
        seen = await until(lambda: mutex_shown(passive, network))
        assert (seen["slots"], seen["terms"]["op"], seen["terms"]["nodes_max"]) == (2, 1.0, 7)
        async with passive.mutex("x", **terms).hold(timeout=60) as hold:
            assert hold.epoch == 1  # the token of the one that left


async def test_a_node_configured_otherwise_is_refused_with_the_difference(no_leaks: None, network: MemoryNetwork):
    async with node_on(network) as two_slots, node_on(network) as one_slot:
        async with two_slots.mutex("x", slots=2):
            with pytest.raises(ConfigError, match="slots is 2 there and 1 here"):
                async with one_slot.mutex("x"):
                    raise AssertionError("entered")
        async with two_slots.mutex("x", slots=2).hold(timeout=60):
            pass
        with pytest.raises(ConfigError, match=r"with other settings: op is 4\.0 there and 5\.0 here"):
            async with two_slots.mutex("x", slots=2, timing=Timing(op=5.0)):
                raise AssertionError("entered")


@in_virtual_time
async def test_settings_are_changed_once_nobody_has_used_the_name_for_a_minute():
    """Though nodes live that took part, and one that has used it itself."""
    network = MemoryNetwork(seed=1)
    async with node_on(network) as once, node_on(network) as passive, node_on(network) as other:
        await _enter(once.mutex("x", slots=2))
        with pytest.raises(ConfigError, match="slots is 2 there and 1 here"):
            await _enter(other.mutex("x"))
        await asyncio.sleep(60)
        await _enter(passive.mutex("x"))
        await _enter(other.mutex("x"))
        await _enter(once.mutex("x"))
        with pytest.raises(ConfigError, match="slots is 1 there and 2 here"):
            await _enter(once.mutex("x", slots=2))
        assert generated(once, passive, other) == 1  # of those that are remembered
        assert not any("mismatch" in node.statistics().told for node in (once, passive, other))


@in_virtual_time
async def test_settings_that_nobody_uses_are_not_defended_since_members_come_and_go():
    """A newcomer takes part, and tells so whoever has the token."""
    network = MemoryNetwork(seed=1)
    async with node_on(network) as once:
        await _enter(once.mutex("x"))
        await asyncio.sleep(61)
        async with node_on(network) as passing:
            await until(lambda: mutex_shown(passing, network))
            await asyncio.sleep(1)
        async with node_on(network) as other:
            await _enter(other.mutex("x", slots=2))


@in_virtual_time
async def test_who_comes_back_while_another_opens_it_by_another_algorithm_is_served():
    """A machine that counts what each member has asked bears no member that forgets its count: it starved."""
    for number in range(16):
        network = MemoryNetwork(seed=number, delay=0.05, jitter=0.02)
        async with node_on(network) as one, node_on(network) as two, node_on(network) as other:
            for _ in range(3):
                await asyncio.gather(*(_enter(node.mutex("x", algorithm="raymond")) for node in (one, two)))
            await asyncio.sleep(61)
            new = asyncio.create_task(_enter(other.mutex("x")))
            await asyncio.sleep(0.02 * number)
            back = asyncio.create_task(_enter(one.mutex("x", algorithm="raymond")))
            await asyncio.sleep(0.5)
            last = asyncio.create_task(_enter(two.mutex("x", algorithm="raymond")))
            _, starved = await asyncio.wait([new, back, last], timeout=60)
            assert not starved, f"story {number}"
            await asyncio.gather(new, back, last, return_exceptions=True)


@in_virtual_time
async def test_settings_of_who_left_keep_nobody_out():
    network = MemoryNetwork(seed=1)
    async with node_on(network) as heir, node_on(network) as other:
        async with node_on(network) as gone:
            await _enter(gone.mutex("x", slots=2))
        if not await mutex_shown(heir, network):
            heir, other = other, heir
        seen = await until(lambda: mutex_shown(heir, network))
        assert seen["slots"] == 2
        await _enter(other.mutex("x"))
        await _enter(heir.mutex("x"))


async def test_two_groups_of_different_settings_that_meet_are_told_once_and_counted(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    async with node_on(network, leave_timeout=0.1) as node, node.mutex("x"):
        stranger = await opened(network, "stranger")
        stranger.say(node, Describe(founding=False), mutex="x")
        said = (await stranger.hear(Description)).message
        assert isinstance(said, Description)
        for _ in range(3):
            stranger.say(node, said._replace(slots=3), mutex="x")
        await until(lambda: node.statistics().told.get("mismatch"))
        assert caplog.text.count("slots is 3 there and 1 here") == 1
        await stranger.close()


async def test_an_algorithm_that_is_not_here_is_told_of_and_the_node_stays_out(
    no_leaks: None, network: MemoryNetwork, caplog: pytest.LogCaptureFixture
):
    stranger = Stranger(network.transport("stranger"), 4711)
    await stranger.open()
    async with node_on(network) as node:
        stranger.transport.send(node.address, encode(Frame(4711, node.id, "x", Commit(1, 2, TOKEN))))
        await stranger.hear(Describe)
        said = Description(Standing.KNOWN, "astrology", 1, 10**9, 10)
        stranger.transport.send(node.address, encode(Frame(4711, node.id, "x", said)))
        await until(lambda: node.statistics().told.get("terms"))
        assert "no algorithm named 'astrology'" in caplog.text
        assert node.statistics().mutexes == 0
    await stranger.close()


HUGE = "9" * 230


@pytest.mark.parametrize(
    "options",
    ["5", "[1]", '"text"', "null", "{", '{"watchers": "two"}', '{"watchers": []}', '{"watchers": null}', '{"each": {}}',
     '{"watchers": true}', '{"nothing": 1}', "[" * 250, HUGE,
     '{"min_interval": NaN}', '{"min_interval": 1e999}', '{"row_time": 1e999}'],
    ids=lambda options: options[:22],
)  # fmt: skip
async def test_whatever_a_peer_says_of_its_options_the_node_goes_on(
    no_leaks: None, network: MemoryNetwork, options: str, caplog: pytest.LogCaptureFixture
):
    """Wrong types, no JSON, too deep, too large: it stays out of that mutex, says so, and takes part in others."""
    stranger = Stranger(network.transport("stranger"), 4711)
    async with stranger, node_on(network, leave_timeout=0.1) as node:
        stranger.say(node, Commit(1, 2, TOKEN), mutex="x")
        await stranger.hear(Describe)
        stranger.say(node, Description(Standing.KNOWN, "wandering", 1, 10**9, 10, options=options), mutex="x")
        await until(lambda: node.statistics().told.get("terms"))
        assert node.statistics().mutexes == 0
        stranger.say(node, Commit(1, 2, TOKEN), mutex="y")
        await until(lambda: [frame for frame in stranger.heard if frame.mutex == "y"])
        assert "Traceback" not in caplog.text


async def test_who_was_asked_what_a_mutex_is_and_leaves_without_a_word_holds_nobody_up(
    no_leaks: None, network: MemoryNetwork
):
    first, second = Stranger(network.transport("first"), 11), Stranger(network.transport("second"), 12)
    await first.open()
    await second.open()
    async with node_on(network, leave_timeout=0.1) as node:
        for stranger in (first, second):
            frame = Frame(stranger.id, node.id, "x", Offer(stranger.id, TOKEN))
            stranger.transport.send(node.address, encode(frame))
            await stranger.hear(Describe)
        said = Description(Standing.KNOWN, "wandering", 1, 10**9, 10)
        second.transport.send(node.address, encode(Frame(second.id, node.id, "x", said)))
        await first.hear(Accept)  # what came before the description was kept, and is answered now
    await first.close()
    await second.close()


@in_virtual_time
async def test_a_mutex_that_is_opened_while_others_are_asked_what_it_is_goes_on(caplog: pytest.LogCaptureFixture):
    network = MemoryNetwork()
    stranger = network.transport("stranger")
    await stranger.open()
    async with node_on(network, leave_timeout=0.1) as node:
        stranger.send(node.address, encode(Frame(4711, node.id, "x", Offer(1, TOKEN))))
        await asyncio.sleep(0.1)
        asking = asyncio.create_task(_enter(node.mutex("x")))
        await asyncio.sleep(3)
        assert "went wrong" not in caplog.text
        assert (await mutex_shown(node, network))["state"]  # it runs, and has a view of its own
        asking.cancel()
    await stranger.aclose()


@in_virtual_time
async def test_what_is_kept_for_undescribed_mutexes_is_bounded_and_forgotten():
    network = MemoryNetwork()
    crowd = network.transport("crowd")
    await crowd.open()
    async with node_on(network) as node:
        for number in range(100):
            for _ in range(20):
                crowd.send(node.address, encode(Frame(5, node.id, f"m{number}", Offer(number, TOKEN))))
        await asyncio.sleep(0.1)
        mutexes, messages = (
            limit("mutexes that others speak of and none described"),
            limit("messages kept for each of them"),
        )
        assert node.statistics().dropped["undescribed"] == 2000 - mutexes * messages
        await asyncio.sleep(3)
        assert node.statistics().dropped["undescribed"] == 2000
        assert node.statistics().mutexes == 0
    await crowd.aclose()


async def test_a_description_that_nobody_asked_for_opens_nothing(no_leaks: None, network: MemoryNetwork, node: Node):
    stranger = Stranger(network.transport("stranger"), 4711)
    await stranger.open()
    said = Description(Standing.KNOWN, "wandering", 1, 10**9, 10)
    stranger.transport.send(node.address, encode(Frame(4711, node.id, "x", said)))
    await until(node.peers)
    assert node.statistics().mutexes == 0
    await stranger.close()


async def test_processes_of_one_directory_meet_over_udp(no_leaks: None, tmp_path: Path):
    where = {"membership": f"local://?directory={tmp_path}"}
    async with Node(**where) as here, Node(**where) as there:
        await until(lambda: here.peers() and there.peers())
        for node in (here, there, here):
            async with node.mutex("x").hold(timeout=60) as hold:
                assert (hold.epoch, hold.peers) == (1, 1)
        assert generated(here, there) == 1
        assert here.statistics().dropped == {}


async def _enter(mutex: SoftMutex) -> None:
    async with mutex:
        pass


async def _epoch(mutex: SoftMutex) -> int:
    async with mutex as hold:
        return hold.epoch


@pytest.fixture(autouse=True)
def hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "softmutex")
