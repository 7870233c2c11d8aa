"""mDNS: what is believed of a record, how little a flood can do, and members that find each other on the loopback."""

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from softmutex_adapters.memberships import mdns, mdns_air, mdns_roll, mdns_text
from softmutex_adapters.memberships.mdns import MdnsMembership
from softmutex_adapters.memberships.mdns_air import SERVICE, address_of, id_of
from softmutex_adapters.memberships.mdns_places import Places, look, reachable
from softmutex_adapters.memberships.mdns_roll import HOST_MAX, MEMBERS_MAX, NEW_A_SECOND, Roll
from zeroconf import DNSAddress, DNSOutgoing, DNSPointer, DNSText  # type: ignore[attr-defined]

from softmutex import Node
from softmutex.core.errors import ConfigError
from softmutex.ports import CannotOpen, Closed, Member
from softmutex.testing.contracts.checks import eventually, repeating
from tests.network import own_loopback

GROUP = mdns_text.fingerprint("lab")


def txt(id: int, address: str, *, name: str = "", group: str = GROUP, v: str = "1", label: str = "") -> bytes:
    said = {"v": v, "group": group, "id": label or mdns_text.label_of(id), "name": name, "address": address}
    return packed(*(f"{key}={value}".encode() for key, value in said.items()))


def packed(*strings: bytes) -> bytes:
    return b"".join(bytes([len(one)]) + one for one in strings)


# --- what is believed of a record ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.1:9431", "ftp1"),
        ("[fd00::1]:9431", ""),
        ("ftp1.example:9431", "Jörg's node"),
        ("https://10.0.0.1:8443/pool", "x" * 64),
    ],
)
def test_what_a_member_writes_is_read(address: str, name: str) -> None:
    said = mdns_text.write(Member(address, 7, name), GROUP)
    text = packed(*(f"{key}={value}".encode() for key, value in said.items()))
    assert mdns_text.read(text, 7, GROUP) == (address, name)


def test_a_long_name_is_cut_and_control_characters_are_left_out() -> None:
    assert mdns_text.write(Member("h:1", 7, "a\x1b[31m\n" + "ä" * 300), GROUP)["name"] == "a[31m" + "ä" * 59


@pytest.mark.parametrize("address", ["", "here", "10.0.0.1:0", "224.0.0.251:5353", "h:1" + "0" * 300])
def test_an_address_that_nobody_can_send_to_is_not_announced(address: str) -> None:
    with pytest.raises(CannotOpen, match="advertise=host:port"):
        mdns_text.write(Member(address, 7), GROUP)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "garbage"),
        (b"\xff", "garbage"),
        (packed(b"v=1") + b"\x40short", "garbage"),
        (packed(b"v=\xff\xfe"), "garbage"),
        (txt(7, "10.0.0.1:9431") + packed(*[b"x" * 250] * 3), "garbage"),
        (txt(7, "10.0.0.1:9431", v="2"), "other_versions"),
        (txt(7, "10.0.0.1:9431", group=mdns_text.fingerprint("other")), "other_groups"),
        (txt(7, "10.0.0.1:9431", label="00000000000000ff"), "garbage"),
        (txt(7, "10.0.0.1:9431", name="\x1b[2J"), "garbage"),
        (txt(7, "10.0.0.1:9431", name="x" * 65), "garbage"),
        (txt(7, "10.0.0.1:0"), "garbage"),
        (txt(7, "10.0.0.1"), "garbage"),
        (txt(7, "224.0.0.251:5353"), "garbage"),
        (txt(7, "[ff02::fb]:5353"), "garbage"),
        (txt(7, "255.255.255.255:9"), "garbage"),
        (txt(7, "999.0.0.1:9431"), "garbage"),
        (txt(7, "a b:9431"), "garbage"),
        (txt(7, "-x:9431"), "garbage"),
    ],
)
def test_what_is_not_fit_is_counted_by_its_reason_and_not_shown(text: bytes, reason: str) -> None:
    roll = Roll(GROUP)
    roll.hear(7, text, 120, 0.0)
    assert roll.counts[reason] == 1
    assert roll.others("") == ()


@given(some.binary(max_size=700) | some.lists(some.binary(max_size=255), max_size=4).map(lambda all: packed(*all)))
def test_any_bytes_are_an_announcement_or_unfit(text: bytes) -> None:
    roll = Roll(GROUP)
    roll.hear(7, text, 120, 0.0)
    assert sum(roll.counts.values()) == 1
    assert set(roll.counts) == set(mdns_roll.REASONS)


@given(some.text(max_size=300))
def test_any_text_is_an_address_to_dial_or_none(address: str) -> None:
    dialled = mdns_text.dial(address)
    assert dialled is None or mdns_text.dial(dialled) == dialled


# --- under which address a member is reached -------------------------------------------------------------------------

HERE = Places(
    own=frozenset({"127.0.0.1", "10.0.0.1", "fe80::1"}),
    networks=tuple(map(ipaddress.ip_network, ["127.0.0.0/8", "10.0.0.0/24", "fe80::/64", "fd77::/64"])),
)


@pytest.mark.parametrize(
    ("announced", "of_record", "reached"),
    [
        ("192.0.2.7:9431", ["10.0.0.7"], "192.0.2.7:9431"),
        ("ftp1.example:9431", ["10.0.0.7"], "ftp1.example:9431"),
        ("127.0.0.1:9431", ["127.0.0.1"], "127.0.0.1:9431"),
        ("127.0.0.1:9431", ["10.0.0.1"], "127.0.0.1:9431"),
        ("127.0.0.1:9431", ["192.168.7.7", "10.0.0.7"], "10.0.0.7:9431"),
        ("0.0.0.0:9431", ["10.0.0.7"], "10.0.0.7:9431"),
        ("0.0.0.0:9431", ["10.0.0.1"], "127.0.0.1:9431"),
        ("[::]:9431", ["10.0.0.7", "fe80::7%4", "fd00::7"], "[fe80::7%4]:9431"),
        ("[::]:9431", ["10.0.0.7", "fe80::7", "fd77::7"], "[fd77::7]:9431"),
        ("[::]:9431", ["fe80::7"], None),
        ("[::1]:9431", ["10.0.0.7"], "10.0.0.7:9431"),
        ("[fe80::7]:9431", ["10.0.0.7", "fe80::7%4"], "[fe80::7%4]:9431"),
        ("[fe80::7]:9431", ["10.0.0.7"], None),
        ("http://127.0.0.1:9431/pool", ["10.0.0.7"], "http://10.0.0.7:9431/pool"),
        ("http://0.0.0.0:9431", [], "http://127.0.0.1:9431"),
    ],
)
def test_a_member_is_reached_where_this_host_can_send_to(announced: str, of_record: list[str], reached: str) -> None:
    assert reachable(announced, of_record, HERE) == reached


def test_an_address_of_the_record_is_worth_more_with_its_scope() -> None:
    roll = Roll(GROUP)
    roll.moved(HERE)
    roll.hear(7, txt(7, "[fe80::7]:9431"), 120, 0.0)
    roll.hear_addresses(7, ["10.0.0.7", "fe80::7"])
    assert roll.others("") == ()
    roll.hear_addresses(7, ["10.0.0.7", "fe80::7%4"])
    roll.hear_addresses(7, ["10.0.0.7", "fe80::7"])
    assert roll.others("") == (Member("[fe80::7%4]:9431", 7),)


def test_an_address_that_a_member_does_not_have_any_more_is_not_used() -> None:
    roll = Roll(GROUP)
    roll.moved(HERE)
    roll.hear(7, txt(7, "0.0.0.0:9431"), 120, 0.0)
    roll.hear_addresses(7, ["10.0.0.7"])
    roll.hear_addresses(7, ["10.0.0.77"])
    assert roll.others("") == (Member("10.0.0.77:9431", 7),)


def test_names_and_addresses_of_strangers_are_not_ours() -> None:
    assert id_of(f"00000000000000ff.{SERVICE}", SERVICE) == 255
    for name in [
        "",
        SERVICE,
        f"printer.{SERVICE}",
        f"0x000000000000ff.{SERVICE}",
        "00000000000000ff._http._tcp.local.",
    ]:
        assert id_of(name, SERVICE) == 0
    assert address_of(DNSAddress("x.local.", 1, 1, 120, b"\x0a\0\0\x07")) == "10.0.0.7"
    assert address_of(DNSAddress("x.local.", 1, 1, 120, b"\x0a")) is None


# --- how little a flood can do ---------------------------------------------------------------------------------------


def fakes(roll: Roll, count: int, now: float, *, first: int = 1_000_000, hosts: int = 250) -> None:
    for id in range(first, first + count):
        address = f"10.{id % hosts}.{id // 60_000 % 250}.{id % 7}:{1024 + id % 60_000}"
        roll.hear(id, txt(id, address), 4500, now)


def test_ten_thousand_invented_members_come_in_at_a_bounded_rate_and_to_a_bounded_number() -> None:
    roll = Roll(GROUP)
    for second in range(12):
        before = len(roll)
        fakes(roll, 2_000, float(second), first=1_000_000 + 2_000 * second)
        assert len(roll) <= min(before + NEW_A_SECOND, MEMBERS_MAX)
    assert len(roll) == MEMBERS_MAX
    assert roll.counts["displaced"] + roll.counts["refused"] == 24_000 - MEMBERS_MAX


def test_who_was_heard_again_keeps_his_seat_in_a_flood_and_a_newcomer_finds_one() -> None:
    roll = Roll(GROUP)
    real = txt(7, "192.0.2.7:9431", name="real")
    roll.hear(7, real, 120, 0.0)
    roll.hear(7, real, 120, 1.5)
    for second in range(2, 22):
        fakes(roll, 1_000, float(second), first=1_000_000 + 1_000 * second)
    assert Member("192.0.2.7:9431", 7, "real") in roll.others("")
    roll.hear(8, txt(8, "192.0.2.8:9431", name="new"), 120, 22.0)
    assert Member("192.0.2.8:9431", 8, "new") in roll.others("")


def test_invented_members_at_one_host_take_no_seats_of_others() -> None:
    """And nobody is made to greet one victim under thousands of ports."""
    roll = Roll(GROUP)
    for second in range(10):
        for id in range(1_000 + 200 * second, 1_200 + 200 * second):
            roll.hear(id, txt(id, f"192.0.2.99:{id}"), 4500, float(second))
    assert len(roll) == HOST_MAX


def test_a_table_of_confirmed_members_refuses_and_this_node_has_its_seat_all_the_same() -> None:
    roll = Roll(GROUP)
    roll.me = 7
    for second in range(20):
        fakes(roll, 250, float(second), first=1_000_000 + 250 * second)
        fakes(roll, 250, second + 1.5, first=1_000_000 + 250 * second)
    roll.hear(8, txt(8, "192.0.2.8:9431"), 120, 30.0)
    assert (len(roll), roll.counts["refused"] > 0) == (MEMBERS_MAX, True)
    roll.hear(7, txt(7, "192.0.2.7:9431"), 120, 30.0)
    assert roll.hears_itself()


def test_two_who_claim_one_address_are_shown_without_an_id() -> None:
    roll = Roll(GROUP)
    for id in (7, 8):
        roll.hear(id, txt(id, "10.0.0.7:9431", name="ftp1"), 120, 0.0)
    assert roll.others("") == (Member("10.0.0.7:9431"),)
    assert roll.others("10.0.0.7:9431") == ()


# --- how long it is believed -----------------------------------------------------------------------------------------


def test_who_is_silent_is_asked_twice_and_gone_when_his_time_is_over() -> None:
    roll = Roll(GROUP)
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 0.0)
    asked = []
    for now in range(100):
        roll.expire(float(now))
        asked += [now for _ in roll.due(float(now))]
        assert len(roll) == 1
    roll.expire(100.0)
    assert (len(roll), roll.counts["expired"]) == (0, 1)
    assert len(asked) == 2
    assert 50 <= asked[0] <= 71 <= asked[1] + 6 <= 92


def test_an_answer_is_known_while_it_is_fresh_and_confirmed() -> None:
    roll = Roll(GROUP)
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 0.0)
    assert roll.known(1.0, 10) == []
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 2.0)
    assert roll.known(12.0, 10) == [(mdns_text.label_of(7), 90)]
    assert roll.known(12.0, 0) == roll.known(50.0, 10) == []


def test_an_answer_on_its_way_does_not_bring_a_leaver_back() -> None:
    roll = Roll(GROUP)
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 0.0)
    roll.goodbye(7, 10.0)
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 10.2)
    assert roll.others("") == ()
    roll.hear(7, txt(7, "10.0.0.7:9431"), 100, 11.0)
    assert len(roll.others("")) == 1


# --- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mdns://-lab", "up to 64 letters"),
        ("mdns://" + "x" * 65, "up to 64 letters"),
        ("mdns://lab?ip=5", "none of 4, 6, both"),
        ("mdns://lab?ttl=1", "between 4 and 3600"),
        ("mdns://lab?interface=eth0", "Did you mean 'interfaces'"),
    ],
)
def test_a_mistake_in_the_url_is_named(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        MdnsMembership.from_url(url)


# --- on the loopback -------------------------------------------------------------------------------------------------

Make = Callable[..., MdnsMembership]


@pytest.fixture
def url() -> Iterator[str]:
    with own_loopback():
        yield f"mdns://test-{secrets.token_hex(8)}?interfaces=127.0.0.1"


@pytest.fixture
async def make(url: str, no_leaks: None) -> AsyncIterator[Make]:
    made: list[MdnsMembership] = []

    def make_one(other_url: str = url) -> MdnsMembership:
        made.append(MdnsMembership.from_url(other_url))
        return made[-1]

    yield make_one
    await asyncio.gather(*(membership.aclose() for membership in made))


def member(number: int) -> Member:
    return Member(f"127.0.0.1:{9000 + number}", id=1000 + number, name=f"node-{number}")


async def until_shown(membership: MdnsMembership, wanted: Callable[[set[int]], bool], within_s: float = 100.0) -> float:
    """When it was, on the loop's clock."""
    async with asyncio.timeout(within_s):
        while not wanted({one.id for one in await membership.watch()}):
            pass
    return asyncio.get_running_loop().time()


@contextlib.contextmanager
def shouting() -> Iterator[Callable[[DNSOutgoing], None]]:
    """Anybody on the network: no zeroconf, no group, just packets to the multicast address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))

        def shout(out: DNSOutgoing) -> None:
            for packet in out.packets():
                with contextlib.suppress(OSError):  # it is lost, as datagrams are
                    sock.sendto(packet, ("224.0.0.251", 5353))

        yield shout


def answer(*records: Any) -> DNSOutgoing:
    out = DNSOutgoing(0x8400)
    for record in records:
        out.add_answer_at_time(record, 0)
    return out


def announcement(id: int, text: bytes, ttl: int = 4500) -> list[Any]:
    name = f"{mdns_text.label_of(id)}.{SERVICE}"
    return [DNSPointer(SERVICE, 12, 1, ttl, name), DNSText(name, 16, 1 | 0x8000, ttl, text)]


@pytest.mark.alone
async def test_a_newcomer_is_known_to_all_within_a_second_and_a_half_and_a_leaver_gone_within_one(make: Make) -> None:
    now = asyncio.get_running_loop().time
    crowd = [make() for _ in range(4)]
    for number, one in enumerate(crowd):
        await one.join(member(number))
    for one in crowd:
        await until_shown(one, lambda ids: len(ids) == 3)
    known, gone = [], []
    for id in range(1009, 1014):
        newcomer, start = make(), now()
        waits = [asyncio.ensure_future(until_shown(one, lambda ids, id=id: id in ids)) for one in crowd]
        await newcomer.join(Member("127.0.0.1:9009", id))
        waits.append(asyncio.ensure_future(until_shown(newcomer, lambda ids: len(ids) == 4)))
        known.append(max(await asyncio.gather(*waits)) - start)
        start = now()
        waits = [asyncio.ensure_future(until_shown(one, lambda ids, id=id: id not in ids)) for one in crowd]
        await newcomer.aclose()
        gone.append(max(await asyncio.gather(*waits)) - start)
    assert median(known) <= 1.5, known  # a machine has its moments, also where nothing else runs
    assert median(gone) <= 1.0, gone


async def test_members_of_another_name_are_not_shown_and_counted(make: Make, url: str) -> None:
    one, other = make(), make(url.replace("test", "other"))
    await one.join(member(1))
    await other.join(member(2))
    await eventually(lambda: one.statistics()["other_groups"] > 0, "the other group is not heard")
    assert await one.watch() == ()


async def test_a_member_that_somebody_says_goodbye_for_says_that_it_is_there(make: Make) -> None:
    one, two = make(), make()
    await one.join(member(1))
    await two.join(member(2))
    await until_shown(one, lambda ids: ids == {1002})
    with shouting() as shout:
        shout(answer(*announcement(1002, b"", ttl=0)))
        await until_shown(one, lambda ids: ids == set())
        await until_shown(one, lambda ids: ids == {1002})
    await eventually(lambda: two.statistics()["rescues"] == 1, "it does not say that it is there")


async def test_hostile_records_are_counted_and_change_nothing(make: Make, url: str) -> None:
    group = mdns_text.fingerprint(url.partition("?")[0].removeprefix("mdns://"))
    one = make()
    await one.join(member(1))
    assert await one.watch() == ()
    hostile = [
        b"",
        secrets.token_bytes(200),
        packed(*[b"y" * 250] * 4),
        txt(2, "10.0.0.1:0", group=group),
        txt(3, "10.0.0.1:9431", group=group, v="9"),
        txt(4, "10.0.0.1:9431", group=group, name="\x1b]0;owned\x07"),
    ]
    with shouting() as shout:
        for id, text in enumerate(hostile, 1):
            shout(answer(*announcement(id, text)))
    await eventually(lambda: one.statistics()["garbage"] >= 5, f"not counted: {one.statistics()}")
    assert one.statistics()["other_versions"] == 1
    two = make()
    await two.join(member(2))
    await until_shown(one, lambda ids: ids == {1002})


async def test_among_ten_thousand_invented_members_real_ones_are_found(make: Make, url: str) -> None:
    group = mdns_text.fingerprint(url.partition("?")[0].removeprefix("mdns://"))
    one, two = make(), make()
    await one.join(member(1))
    await two.join(member(2))
    await until_shown(one, lambda ids: ids == {1002})
    with shouting() as shout:
        for first in range(1_000_000, 1_010_000, 10):
            fake = range(first, first + 10)
            texts = {id: txt(id, f"10.9.{id % 250}.1:{id % 60_000 + 1}", group=group) for id in fake}
            shout(answer(*(record for id, text in texts.items() for record in announcement(id, text))))
            await asyncio.sleep(0.001)
    real = make()
    await real.join(member(3))
    await until_shown(real, lambda ids: {1001, 1002} <= ids)
    await until_shown(one, lambda ids: {1002, 1003} <= ids)
    told = one.statistics()
    assert told["members"] <= MEMBERS_MAX
    assert told["refused"] > 0


async def test_a_flood_of_news_is_few_lists(make: Make, url: str) -> None:
    group = mdns_text.fingerprint(url.partition("?")[0].removeprefix("mdns://"))

    async def hear_news(shout: Callable[[DNSOutgoing], None]) -> None:
        for id in range(2, 102):
            shout(answer(*announcement(id, txt(id, f"10.0.0.{id}:9431", group=group))))
            await asyncio.sleep(0.005)

    one = make()
    await one.join(member(1))
    await one.watch()

    start, lists = asyncio.get_running_loop().time(), 0
    with shouting() as shout:
        news = asyncio.ensure_future(hear_news(shout))
        while len(await one.watch()) < 100:
            lists += 1
        await news
    assert lists <= (asyncio.get_running_loop().time() - start) / mdns.GAP_S + 2


async def test_who_left_watches_on_and_may_join_again(make: Make) -> None:
    one, two = make(), make()
    await one.join(member(1))
    await one.leave()
    await two.join(member(2))
    await until_shown(one, lambda ids: ids == {1002})
    assert await two.watch() == ()
    await one.join(member(1))
    await until_shown(two, lambda ids: ids == {1001})


async def test_it_is_joined_once_by_somebody_with_an_id_and_not_after_its_end(make: Make) -> None:
    one = make()
    with pytest.raises(ValueError, match="by their id"):
        await one.join(Member("127.0.0.1:9001"))
    await one.join(member(1))
    with pytest.raises(RuntimeError, match="joined before"):
        await one.join(member(1))
    await one.aclose()
    with pytest.raises(Closed):
        await one.join(member(1))


async def test_where_multicast_cannot_be_had_join_says_so_and_watch_waits_for_better_times(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(mdns, "RETRY_S", 0.05)
    one, two = make(), make()
    await two.join(member(2))
    with monkeypatch.context() as patch:
        patch.setattr(mdns_air, "AsyncZeroconf", taken)
        assert await one.watch() == ()
        with pytest.raises(CannotOpen, match=r"Address already in use.*UDP port 5353.*interfaces=eth0"):
            await one.join(member(1))
        await eventually(lambda: one.statistics()["failures"] > 2, "the failures are not counted")
    await until_shown(one, lambda ids: ids == {1002})
    assert caplog.text.count("It is tried again") == 1
    await one.join(member(1))
    await until_shown(two, lambda ids: ids == {1001})


# --- with a node -----------------------------------------------------------------------------------------------------


def heard_at(node: Node) -> float:
    """When something came from the only peer for the last time. It never goes back: no test can miss that it moved."""
    [peer] = node.peers()
    return asyncio.get_running_loop().time() - (peer.heard_ago or 0.0)


@pytest.mark.alone  # without root the groups of all tests share one loopback, where a datagram may be lost
async def test_a_goodbye_that_somebody_else_says_makes_the_node_ask_and_not_believe(url: str, no_leaks: None) -> None:
    here: Any = {"transport": "udp://127.0.0.1:0", "membership": url}
    async with Node(**here, name="one") as one, Node(**here, name="two") as two:
        await eventually(lambda: [peer.name for peer in one.peers()] == ["two"], "they do not meet")
        loop = asyncio.get_running_loop()
        await eventually(lambda: loop.time() - heard_at(one) > 0.5, "they talk without need")
        begun = loop.time()
        with shouting() as shout:
            async with repeating(lambda: shout(answer(*announcement(two.id, b"", ttl=0)))):
                heard = one.statistics
                await eventually(lambda: heard().membership["goodbyes"] >= 1, lambda: f"no goodbye is heard: {heard()}")
            await eventually(lambda: heard_at(one) > begun, "the node does not ask")
        assert [peer.name for peer in one.peers()] == ["two"]


async def test_who_leaves_while_its_first_question_is_closed_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(mdns_air.AsyncZeroconf):
        async def async_close(self) -> None:
            closing.set()
            await go_on.wait()
            await super().async_close()
            closed.set()

    air = mdns_air.Air(Roll("group"), look(["127.0.0.1"], ""), lambda: None)
    await air.start()
    monkeypatch.setattr(mdns_air, "AsyncZeroconf", Slow)
    asking = asyncio.ensure_future(air.look_around())
    await asyncio.wait_for(closing.wait(), 100)
    asking.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([asking], timeout=100)
    assert asking.cancelled() and closed.is_set()
    await air.close()
