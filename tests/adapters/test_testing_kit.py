"""The testing kit for users: virtual time, the network in memory, and contracts that catch what is broken."""

import asyncio
import contextlib
import doctest
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import softmutex_adapters.transports.udp

import softmutex.testing.clock
import softmutex.testing.memory
from softmutex.core.errors import ConfigError
from softmutex.mailbox import Mailbox
from softmutex.ports import CannotOpen, Closed, Datagram, Member, Membership, NodeSeen, Observation, Observer, Transport
from softmutex.testing import (
    MembershipContract,
    MemoryMembership,
    MemoryNetwork,
    MemoryTransport,
    ObserverContract,
    TransportContract,
    in_virtual_time,
    virtual_time,
)


@pytest.mark.parametrize(
    "module", [softmutex.testing, softmutex.testing.clock, softmutex.testing.memory, softmutex_adapters.transports.udp]
)
def test_the_examples_in_the_documentation_do_what_they_say(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


# --- virtual time ----------------------------------------------------------------------------------------------------


def test_a_year_passes_in_no_time() -> None:
    async def main() -> list[str]:
        order: list[str] = []

        async def after(days: int, name: str) -> None:
            await asyncio.sleep(days * 86_400)
            order.append(name)

        await asyncio.gather(after(365, "last"), after(1, "first"), after(30, "second"))
        return order

    start = time.monotonic()
    with virtual_time() as runner:
        assert runner.run(main()) == ["first", "second", "last"]
    assert time.monotonic() - start < 20


@in_virtual_time
async def test_the_clock_waits_for_a_thread_that_works() -> None:
    loop = asyncio.get_running_loop()
    release = threading.Event()
    work = loop.run_in_executor(None, release.wait)
    loop.call_later(0, release.set)
    started = loop.time()
    async with asyncio.timeout(3600):
        await work
    assert loop.time() == started


def test_waiting_for_what_can_never_come_is_an_error_instead_of_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmutex.testing.clock.PATIENCE_S", 0.01)
    with virtual_time() as runner, pytest.raises(RuntimeError, match="never going to be done"):
        runner.run(asyncio.Event().wait())


# --- the network in memory -------------------------------------------------------------------------------------------


async def opened(network: MemoryNetwork, *addresses: str) -> list[MemoryTransport]:
    transports = [network.transport(address) for address in addresses]
    for transport in transports:
        await transport.open()
    return transports


async def arrived(transport: MemoryTransport) -> list[bytes]:
    """What arrives until nothing can arrive any more: in virtual time a second is for ever."""
    payloads: list[bytes] = []
    try:
        async with asyncio.timeout(1):
            while True:
                payloads += [datagram.payload for datagram in await transport.receive()]
    except TimeoutError:
        return payloads


def history(seed: int) -> list[bytes]:
    async def main() -> list[bytes]:
        a, b = await opened(MemoryNetwork(seed=seed, loss=0.3, delay=0.01, jitter=0.01, duplicate=0.3), "a", "b")
        for number in range(50):
            a.send("b", b"%d" % number)
        return await arrived(b)

    with virtual_time() as runner:
        return runner.run(main())


def test_one_seed_is_one_history_with_losses_duplicates_and_another_order() -> None:
    first = history(1)
    assert first == history(1) != history(2)
    assert len(set(first)) < 50 and len(set(first)) < len(first)
    assert first != sorted(first, key=int)


@in_virtual_time
async def test_a_partition_stops_both_ways_a_cut_one_and_healing_ends_both() -> None:
    network = MemoryNetwork()
    a, b, c = await opened(network, "a", "b", "c")

    async def who_hears() -> list[str]:
        for sender in (a, b, c):
            for receiver in "abc":
                if receiver != sender.address:
                    sender.send(receiver, sender.address.encode())
        return [b"".join(sorted(await arrived(receiver))).decode() for receiver in (a, b, c)]

    network.partition("a", {"b", "c"})
    assert await who_hears() == ["", "c", "b"]
    network.heal()
    network.cut("a", ["b"])
    assert await who_hears() == ["bc", "c", "ab"]
    network.heal()
    assert await who_hears() == ["bc", "ac", "ab"]


@in_virtual_time
async def test_from_a_host_without_power_comes_not_even_a_refusal() -> None:
    network = MemoryNetwork()
    a, b = await opened(network, "a", "b")
    network.switch_off("a")
    b.send("a", b"anybody there?")
    assert [await arrived(a), await arrived(b)] == [[], []]
    await a.aclose()
    again, *_ = await opened(network, "a")
    b.send("a", b"anybody there?")
    assert await arrived(again) == [b"anybody there?"]


@in_virtual_time
async def test_who_crashes_is_silent_deaf_and_off_the_list() -> None:
    network = MemoryNetwork(delay=0.01)
    a, b = await opened(network, "a", "b")
    list_of_b, list_of_a = network.membership(), network.membership()
    await list_of_a.join(Member("a"))
    await list_of_b.join(Member("b"))
    assert [member.address for member in await list_of_b.watch()] == ["a"]
    b.send("a", b"on the way when a dies")
    network.crash("a")
    a.send("b", b"from beyond")
    b.send("a", b"anybody there?")
    assert list(await list_of_b.watch()) == []
    assert [await arrived(a), await arrived(b)] == [[], [b""]]  # its host says that nobody listens (transport.T7)


@in_virtual_time
async def test_loss_can_be_changed_while_it_runs() -> None:
    network = MemoryNetwork()
    a, b = await opened(network, "a", "b")
    network.loss = 1.0
    a.send("b", b"lost")
    network.loss = 0.0
    a.send("b", b"found")
    assert await arrived(b) == [b"found"]
    assert a.statistics()["lost"] == 1


@in_virtual_time
async def test_two_cannot_have_one_address() -> None:
    network = MemoryNetwork()
    await opened(network, "a")
    with pytest.raises(CannotOpen, match="'a' is taken"):
        await opened(network, "a")


def test_nodes_in_several_threads_with_a_loop_each_reach_one_another() -> None:
    network = MemoryNetwork()
    ready, answers = threading.Barrier(2), []

    async def echo() -> None:
        [there] = await opened(network, "there")
        await asyncio.to_thread(ready.wait)
        [question] = await there.receive()
        there.send(question.source, question.payload.upper())
        await there.aclose()

    async def ask() -> None:
        [here] = await opened(network, "here")
        await asyncio.to_thread(ready.wait)
        here.send("there", b"hello")
        answers.extend(await here.receive())
        await here.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(echo()))
    thread.start()
    asyncio.run(ask())
    thread.join()
    assert answers == [Datagram("there", b"HELLO")]


async def test_a_url_names_a_network_that_the_process_shares() -> None:
    one = MemoryTransport.from_url("memory://lab?seed=3&loss=0.5&address=one")
    membership = MemoryMembership.from_url("memory://lab")
    assert one.address == "one"
    await one.open()
    with pytest.raises(CannotOpen):
        await MemoryTransport.from_url("memory://lab?address=one").open()
    with pytest.raises(ConfigError, match="exists with other settings"):
        MemoryTransport.from_url("memory://lab?loss=0.1")
    await MemoryTransport.from_url("memory://elsewhere?address=one").open()
    await membership.aclose()
    await one.aclose()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"loss": 1.5}, "probability"), ({"duplicate": -1}, "probability"), ({"delay": -1}, "not negative")],
)
def test_an_impossible_network_is_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        MemoryNetwork(**settings)  # type: ignore[arg-type]


# --- contracts -------------------------------------------------------------------------------------------------------


def broken_promises(contract: type[TransportContract | MembershipContract | ObserverContract]) -> set[str]:
    """The promises of which a test fails. In virtual time what is in memory is never late."""

    async def test(name: str) -> None:
        await getattr(contract(), name)()

    def fails(name: str) -> bool:
        try:
            in_virtual_time(test)(name)
        except Exception:
            return True
        return False

    return {name.split("_")[1] for name in dir(contract) if name.startswith("test_") and fails(name)}


class Truncating(MemoryTransport):
    def send(self, address: str, payload: bytes) -> None:
        super().send(address, payload[:1000])


class Complaining(MemoryTransport):
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        super().__init__(network, address)
        self.network = network

    def send(self, address: str, payload: bytes) -> None:
        if address not in self.network.addresses:
            raise ConnectionRefusedError(address)
        super().send(address, payload)


class Limitless(MemoryTransport):
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        super().__init__(network, address)
        self.limitless = Mailbox(10**9)

    def hand_in(self, datagram: Datagram, delay_s: float, sender: MemoryTransport) -> None:
        self.limitless.put(datagram)

    async def receive(self) -> Sequence[Datagram]:
        return await self.limitless.receive()

    async def aclose(self) -> None:
        await super().aclose()
        self.limitless.close()


class Lingering(MemoryTransport):
    async def open(self) -> None:
        await super().open()
        asyncio.get_running_loop().call_later(60, print)


class Anonymous(MemoryTransport):
    async def receive(self) -> Sequence[Datagram]:
        return [Datagram("somebody", datagram.payload) for datagram in await super().receive()]


class Deaf(MemoryTransport):
    async def receive(self) -> Sequence[Datagram]:
        try:
            return await super().receive()
        except Closed:
            await asyncio.Event().wait()
            raise


class Shy(MemoryTransport):
    on_this_host = False


class Hasty(MemoryTransport):
    """Hands over what comes where it comes from, and to whom it was told once."""

    def hand_to(self, take: Callable[[Datagram], None] | None) -> None:
        self.take = take or self.take

    def hand_in(self, datagram: Datagram, delay_s: float, sender: MemoryTransport) -> None:
        if hasattr(self, "take"):
            self.take(datagram)
        else:
            super().hand_in(datagram, delay_s, sender)


class Bound(MemoryTransport):
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        super().__init__(network, address)
        asyncio.get_running_loop()


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (MemoryTransport, set()),
        (Truncating, {"t2"}),
        (Complaining, {"t1", "t3", "t9"}),
        (Limitless, {"t4"}),
        (Lingering, {"t3"}),
        (Anonymous, {"t5"}),
        (Deaf, {"t3"}),
        (Bound, {"t6"}),
        (Shy, {"t8"}),
        (Hasty, {"t10"}),
    ],
)
def test_the_contract_of_transports_catches_what_is_broken(kind: type[MemoryTransport], broken: set[str]) -> None:
    class Contract(TransportContract):
        patience_s = 0.3

        def __init__(self) -> None:
            self.network = MemoryNetwork()

        def make(self) -> Transport:
            return kind(self.network, self.network.transport().address)

    assert broken_promises(Contract) == broken


class Leisurely(MemoryTransport):
    async def aclose(self) -> None:
        await asyncio.sleep(0.2)
        await super().aclose()


@in_virtual_time
async def test_what_was_sent_again_and_comes_while_a_transport_is_closed_breaks_no_promise() -> None:
    class Contract(TransportContract):
        def __init__(self) -> None:
            self.network = MemoryNetwork(delay=0.12)  # longer than the contract waits until it sends again

        def make(self) -> Transport:
            return Leisurely(self.network, self.network.transport().address)

    await Contract().test_t3_after_aclose_receive_raises_closed_and_nothing_is_left()


class Silent(MemoryMembership):
    async def join(self, me: Member) -> None:
        pass


class Vain(MemoryMembership):
    me: Member | None = None

    async def join(self, me: Member) -> None:
        self.me = me
        await super().join(me)

    async def watch(self) -> Sequence[Member]:
        others = await super().watch()
        return (*others, self.me) if self.me is not None else others


class Chatty(MemoryMembership):
    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__(network)
        self.shown: Sequence[Member] | None = None

    async def watch(self) -> Sequence[Member]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self.shown is None else 0.001):
                self.shown = await super().watch()
        assert self.shown is not None
        return self.shown


class Clinging(MemoryMembership):
    async def leave(self) -> None:
        pass


class Unkeyed(MemoryMembership):
    def group_key(self) -> bytes | None:
        return id(self).to_bytes(32, "big")


class Vague(MemoryMembership):
    on_this_host = "mostly"  # type: ignore[assignment]


class Prejudiced(MemoryMembership):
    banned: frozenset[int | bytes] = frozenset({7})


class Bringing(MemoryMembership):
    observer = "the log"


class Generous(MemoryMembership):
    group = "contract"
    public_key = bytes(32)

    async def certify(self, name: str, public: bytes, proof: bytes) -> bytes:
        return b"certified: " + name.encode()


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (MemoryMembership, set()),
        (Silent, {"m1", "m2", "m3", "m5", "m6", "m7"}),
        (Vain, {"m1", "m2", "m3"}),
        (Chatty, {"m2"}),
        (Clinging, {"m3", "m5"}),
        (Unkeyed, {"group"}),
        (Vague, {"m9"}),
        (Prejudiced, {"m10"}),
        (Bringing, {"m11"}),
        (Generous, {"m12"}),
    ],
)
def test_the_contract_of_memberships_catches_what_is_broken(kind: type[MemoryMembership], broken: set[str]) -> None:
    class Contract(MembershipContract):
        patience_s = 0.3
        quiet_s = 0.05

        def __init__(self) -> None:
            self.network = MemoryNetwork()

        def make(self) -> Membership:
            return kind(self.network)

    assert broken_promises(Contract) == broken


class Noting:
    """An observer, courier and guest that keeps its word."""

    messages: bool | tuple[str, ...] = ("COMMIT",)

    def __init__(self) -> None:
        self.nodes = 0

    def asleep(self) -> bool:
        return False

    def notice(self, observation: Observation) -> None:
        assert self.nodes

    def baggage(self, observation: Observation) -> bytes:
        return b"from here"

    def opened(self, node: NodeSeen) -> None:
        self.nodes += 1

    def closed(self, node: NodeSeen) -> None:
        self.nodes -= 1


class Slow(Noting):
    def notice(self, observation: Observation) -> None:
        if observation.what == "overrun":
            time.sleep(0.1)


class OfOneThread(Noting):
    def notice(self, observation: Observation) -> None:
        asyncio.get_running_loop()


class Dozing(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.noticed = 0

    def asleep(self) -> bool:
        return self.noticed > 5

    def notice(self, observation: Observation) -> None:
        self.noticed += 1


class Laden(Noting):
    def baggage(self, observation: Observation) -> bytes:
        return bytes(65)


class Fickle(Noting):
    @property
    def messages(self) -> bool | tuple[str, ...]:  # type: ignore[override]
        return self.nodes > 0


class Monogamous(Noting):
    def opened(self, node: NodeSeen) -> None:
        if self.nodes:
            raise RuntimeError("one node is enough")
        super().opened(node)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Noting, set()),
        (Slow, {"o1"}),
        (OfOneThread, {"o1"}),
        (Dozing, {"o3"}),
        (Laden, {"o4"}),
        (Fickle, {"o5"}),
        (Monogamous, {"o6"}),
    ],
)
def test_the_contract_of_observers_catches_what_is_broken(kind: type[Noting], broken: set[str]) -> None:
    class Contract(ObserverContract):
        at_once_s = 0.05

        def make(self) -> Observer:
            return kind()

    assert broken_promises(Contract) == broken


UNITTEST_ALONE = """
import sys, unittest
from softmutex.testing import MembershipContract, MemoryNetwork, TransportContract

class NetworkTest(TransportContract, unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.network = MemoryNetwork()
    def make(self):
        return self.network.transport()

class ListTest(MembershipContract, unittest.IsolatedAsyncioTestCase):
    quiet_s = 0.05
    def setUp(self):
        self.network = MemoryNetwork()
    def make(self):
        return self.network.membership()

program = unittest.main(exit=False)
assert program.result.wasSuccessful() and program.result.testsRun > 20
assert "pytest" not in sys.modules
"""


def test_the_contracts_run_without_pytest() -> None:
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    done = run([sys.executable, "-W", "error", "-c", UNITTEST_ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
