"""A fixed list of names, when the names move."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from softmutex_adapters.memberships.static import StaticMembership

from softmutex.core.errors import ConfigError
from softmutex.ports import Member
from softmutex.testing.contracts.checks import eventually


class Zone(dict[str, list[str]]):
    """What the name server says today."""

    slow: Callable[[str], object] = staticmethod(lambda host: None)

    def __call__(self, host: str, port: int, *_: Any, **options: Any) -> Any:
        self.slow(host)
        if host not in self:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, port)) for address in self[host]]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Zone:
    zone = Zone()
    monkeypatch.setattr(socket, "getaddrinfo", zone)
    return zone


@pytest.fixture
async def static(no_leaks: None) -> AsyncIterator[Callable[..., StaticMembership]]:
    made: list[StaticMembership] = []

    def make(*addresses: str, refresh: float = 0.01) -> StaticMembership:
        made.append(StaticMembership(addresses, refresh=refresh))
        return made[-1]

    yield make
    for membership in made:
        await membership.aclose()


async def shown(membership: StaticMembership) -> list[str]:
    members: Sequence[Member] = await asyncio.wait_for(membership.watch(), 60)
    return [member.address for member in members]


Static = Callable[..., StaticMembership]


async def test_literal_addresses_are_there_at_once_and_names_when_they_are_known(static: Static, zone: Zone) -> None:
    zone["ftp.test"] = ["192.0.2.10"]
    membership = static("ftp.test:9431", "192.0.2.1:9431", "[fd00:0::1]:9431")
    assert await shown(membership) == ["192.0.2.1:9431", "[fd00::1]:9431"]
    assert await shown(membership) == ["192.0.2.10:9431", "192.0.2.1:9431", "[fd00::1]:9431"]


async def test_a_name_with_several_addresses_is_several_members(static: Static, zone: Zone) -> None:
    zone["ftp.test"] = ["192.0.2.12", "192.0.2.11", "192.0.2.11"]
    membership = static("ftp.test:9431")
    assert await shown(membership) == []
    assert await shown(membership) == ["192.0.2.11:9431", "192.0.2.12:9431"]


async def test_a_name_that_moves_is_followed_and_one_that_vanishes_keeps_its_address(
    static: Static, zone: Zone
) -> None:
    zone["ftp.test"] = ["192.0.2.10"]
    membership = static("ftp.test:9431")
    assert [await shown(membership), await shown(membership)] == [[], ["192.0.2.10:9431"]]
    zone["ftp.test"] = ["192.0.2.20"]
    assert await shown(membership) == ["192.0.2.20:9431"]
    failed_before = membership.statistics()["lookups_failed"]
    del zone["ftp.test"]
    waiting = asyncio.ensure_future(membership.watch())
    await eventually(lambda: membership.statistics()["lookups_failed"] >= failed_before + 2, "nobody asks again")
    assert not waiting.done()
    zone["ftp.test"] = ["192.0.2.30"]
    assert [member.address for member in await asyncio.wait_for(waiting, 60)] == ["192.0.2.30:9431"]


async def test_the_own_address_is_left_out(static: Static) -> None:
    membership = static("192.0.2.1:9431", "192.0.2.2:9431")
    await membership.join(Member("192.0.2.2:9431"))
    assert await shown(membership) == ["192.0.2.1:9431"]


async def test_addresses_of_http_transports_are_passed_on_as_they_are(static: Static) -> None:
    assert await shown(static("https://ftp.test/prefix")) == ["https://ftp.test/prefix"]


async def test_where_the_own_address_is_a_url_all_are_and_names_are_left_to_the_transport(
    static: Static, zone: Zone
) -> None:
    membership = static("ftp.test:9431", "192.0.2.1:9431", "192.0.2.2:9431", "http://192.0.2.3")
    await membership.join(Member("https://192.0.2.2:9431"))
    assert await shown(membership) == ["https://ftp.test:9431", "https://192.0.2.1:9431", "http://192.0.2.3"]
    assert not membership.pending and membership.statistics()["lookups"] == 0


async def test_a_list_of_which_no_name_is_known_says_so_and_it_is_told_once(
    static: Static, zone: Zone, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()
    zone.slow = lambda host: asked.wait(100)
    membership = static("nohost.test:9431")
    assert await shown(membership) == []
    assert (membership.pending, membership.unresolved) == (("nohost.test:9431",), ())
    asked.set()
    assert await shown(membership) == []  # and nothing is pending any more
    assert (membership.pending, membership.unresolved) == ((), ("nohost.test:9431",))
    await eventually(lambda: membership.statistics()["lookups_failed"] >= 3, "nobody asks again")
    assert [record.getMessage() for record in caplog.records] == [
        "no name of static://nohost.test:9431 can be resolved; this node is alone until it can. "
        "Does `getent hosts` know the name?"
    ]
    zone["nohost.test"] = ["192.0.2.10"]
    assert await shown(membership) == ["192.0.2.10:9431"]
    await eventually(lambda: len(caplog.records) == 2, "nobody tells that all is well")
    assert not membership.unresolved
    assert "can be resolved now" in caplog.messages[1]


async def test_names_are_pending_until_each_was_looked_up_and_the_others_are_shown_meanwhile(
    static: Static, zone: Zone
) -> None:
    zone |= {"quick.test": ["192.0.2.10"], "slow.test": ["192.0.2.11"]}
    hurry = {"slow.test": threading.Event(), "quick.test": threading.Event()}
    zone.slow = lambda host: hurry[host].wait(100)
    membership = static("slow.test:9431", "quick.test:9431")
    assert await shown(membership) == []
    assert membership.pending == ("slow.test:9431", "quick.test:9431")
    hurry["quick.test"].set()
    assert await shown(membership) == ["192.0.2.10:9431"]
    assert membership.pending == ("slow.test:9431",)
    hurry["slow.test"].set()
    assert await shown(membership) == ["192.0.2.11:9431", "192.0.2.10:9431"]
    assert membership.pending == ()


async def test_people_are_told_of_an_entry_as_they_wrote_it(static: Static, zone: Zone) -> None:
    zone["ftp.test"] = ["192.0.2.10"]
    membership = static("ftp.test:9431")
    await membership.watch()
    assert [member.label for member in await membership.watch()] == ["ftp.test:9431"]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("static://", "names no address"),
        ("static://ftp1", "names no port"),
        ("static://ftp1:0", "port 0"),
        ("static://ftp1:99999", "between 0 and 65535"),
        ("static://fd00::1:9431", "goes into brackets"),
        ("static://ftp1:9431?refesh=3", "Did you mean 'refresh'"),
        ("static://ftp1:9431?refresh=soon", "not a number"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_with_the_remedy(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        StaticMembership.from_url(url)


async def test_a_url_is_a_list_of_addresses() -> None:
    membership = StaticMembership.from_url("static://192.0.2.1:9431, 192.0.2.2:9431,?refresh=5")
    assert await shown(membership) == ["192.0.2.1:9431", "192.0.2.2:9431"]
    await membership.aclose()
