"""The registry's page in a real Chromium: what people see, what screen readers are told, and what it must not do."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry.tokens import Tokens

from softmutex import Node
from softmutex.ports import Member, Observation
from tests.browser.chromium import Tab, browser, tab_of
from tests.ports import kept_port
from tests.registry.inside import Inside, inside, unhurried
from tests.registry.telling import Written

pytestmark = pytest.mark.needs("chromium")

TOKEN = "a-token-for-the-lab-alone"
NASTY = '<img src=x onerror="alert(1)">'
MEMBER = """
import asyncio, sys
from softmutex_adapters.registry import client
from softmutex import Node

client.LEAVE_S = 60.0

async def main():
    async with Node(transport="udp://127.0.0.1:0", membership=sys.argv[1], name=sys.argv[2], insecure=True) as node:
        async with node.mutex(sys.argv[2]):
            print("joined", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    unhurried(monkeypatch)
    async with inside(tmp_path, rate_address=10_000) as registry:
        yield registry


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of one browser for all tests: to start one is most of what a test computes."""
    with browser(tmp_path_factory.mktemp("browser")) as port:
        yield port


@pytest.fixture
async def tab(port: int) -> AsyncIterator[Tab]:
    async with tab_of(port) as tab:
        await tab.size(1200, 900)
        yield tab


def member(registry: Inside, name: str, group: str = "lab", **options: Any) -> Node:
    options.setdefault("membership", f"registry+http://127.0.0.1:{registry.port}/{group}")
    return Node(transport="udp://127.0.0.1:0", name=name, insecure=True, **options)


def member_item(name: str) -> str:
    return f"[...document.querySelectorAll('#members li')].find((one) => one.innerText.includes('{name}'))"


async def test_a_hold_a_waiter_and_the_token_appear_without_a_reload(registry: Inside, tab: Tab):
    async with member(registry, "anna") as anna, member(registry, "bert") as bert:
        await tab.open(f"{registry.base}/")
        await tab.until(member_item("bert"), "members are listed")
        assert await tab.ask("document.querySelector('#parted').hidden"), "nobody has left"
        await tab.ask("window.loadedOnce = true")
        async with anna.mutex("tapes"):
            await tab.until("document.querySelector('.now .holds')?.innerText.startsWith('anna for')", "the hold")
            waiting = asyncio.ensure_future(hold_once(bert, "tapes"))
            await tab.until("document.querySelector('.now .waits')?.innerText.startsWith('bert for')", "the waiter")
            await tab.until(f"{member_item('anna')}.className == 'holding'", "the member that holds it is marked")
            assert "anna" in await tab.text(".now > div:nth-child(3)"), "the token is where it is held"
        await waiting
        await tab.until("!document.querySelector('.now .holds')", "the holds end")
        await tab.until("document.querySelectorAll('svg .span').length == 2", "both are in the timeline")
        assert "2 acquisitions" in await tab.text("article .facts")
        assert await tab.ask("window.loadedOnce === true"), "the page was not loaded anew"
    assert all(address.startswith(registry.base) for address in tab.asked), "nothing comes from elsewhere"
    assert tab.errors == []


async def test_it_tells_who_takes_several_slots_and_who_is_urgent(registry: Inside, tab: Tab):
    shared = {"slots": 4, "ageing": 60.0}
    async with member(registry, "anna") as anna, member(registry, "bert") as bert:
        await tab.open(f"{registry.base}/")
        async with anna.mutex("link", weight=3, **shared):
            await tab.until("document.querySelector('.now .holds')?.innerText.endsWith(', takes 3 slots')", "the hold")
            waiting = asyncio.ensure_future(hold_once(bert, "link", weight=2, priority=5, **shared))
            says = "document.querySelector('.now .waits')?.innerText.endsWith(', wants 2 slots, priority 5')"
            await tab.until(says, "the waiter")
        await waiting
    assert tab.errors == []


async def test_of_an_algorithm_without_a_token_it_shows_none_and_no_hand_overs(registry: Inside, tab: Tab):
    """It said "not seen yet", and "0 hand-overs", for ever."""
    async with member(registry, "anna") as anna, member(registry, "bert") as bert:
        await tab.open(f"{registry.base}/")
        async with anna.mutex("tapes", algorithm="central"):
            await tab.until("document.querySelector('.now .holds')?.innerText.startsWith('anna for')", "the hold")
        await hold_once(bert, "tapes", algorithm="central")
        await tab.until("document.querySelectorAll('svg .span').length == 2", "both are in the timeline")
        assert await tab.ask("[...document.querySelectorAll('.now dt')].map((one) => one.innerText)") == [
            "held by",
            "waiting",
        ]
        assert await tab.text("article .facts") == "central · 2 acquisitions"
    assert tab.errors == []


async def hold_once(node: Node, name: str, **options: Any) -> None:
    async with node.mutex(name, **options):
        pass


async def test_a_killed_member_is_shown_as_gone_and_a_leaver_as_having_left(registry: Inside, tab: Tab):
    membership = f"registry+http://127.0.0.1:{registry.port}/lab"
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    members = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", MEMBER, membership, name, **pipes)
        for name in ("carl", "dora", "emil")
    ]
    try:
        for one in members:
            assert one.stdout is not None
            assert await one.stdout.readline() == b"joined\n"
        await tab.open(f"{registry.base}/#lab")
        await tab.until("document.querySelectorAll('#members li').length == 3", "three are there")
        await tab.until("document.querySelectorAll('.now .holds').length == 3", "each holds something")
        members[0].kill()
        assert members[1].stdin is not None
        members[1].stdin.write(b"\n")
        await tab.until(f"{member_item('carl')}.innerText.includes('fell silent')", "the killed one is gone")
        await tab.until("document.querySelector('#parted').innerText == '1 member left lately'", "the leaver is folded")
        await tab.ask("document.querySelector('#parted').open = true")
        assert (await tab.text("#parted li")).startswith("dora left")
        assert "holds emil" in await tab.ask(f"{member_item('emil')}.innerText")
        its = "document.querySelector('[aria-label=\"Mutex carl\"]')"
        assert await tab.ask(f"{its}.querySelectorAll('svg .mark.silent').length") == 1, "it fell silent as a holder"
        assert await tab.ask(f"{its}.querySelectorAll('svg .span').length") == 1, "whose hold is in the timeline"
        assert (await tab.text("#members-count")).startswith("1,")
    finally:
        for one in members:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            await one.communicate()


@pytest.mark.parametrize("width", [1180, 390])
async def test_short_lives_of_one_host_are_one_lane_and_those_that_left_are_folded(
    registry: Inside, tab: Tab, width: int
):
    await tab.size(width, 900)
    for number in range(30):
        one = RegistryMembership.from_url(f"registry+http://127.0.0.1:{registry.port}/lab")
        await one.join(Member(f"10.0.0.1:{number + 1}", number + 1, f"web-1-{number + 4000}-{number:08x}"))
        diary = Written("tapes", number + 1)
        one.observer.read(diary, diary.lately(holds=[(99.9, 100.0)]))
        await one.aclose()
    async with member(registry, "anna") as anna, anna.mutex("tapes"):
        await tab.open(f"{registry.base}/#lab")
        await tab.until("document.querySelectorAll('svg .span').length >= 10", "their holds are drawn")
        assert await tab.ask("document.querySelectorAll('svg .lane').length") == 2
        assert "web-1" in await tab.text("figure")
        assert await tab.text("#parted") == "30 members left lately"
        assert await tab.ask("document.querySelectorAll('#members li').length") == 1
        assert await tab.ask("document.documentElement.scrollHeight") < 2 * 900
        await tab.ask("document.querySelector('#parted').open = true")
        assert "web-1: 30 lives, the last left" in await tab.text("#parted")
        await tab.ask("draw()")
        assert await tab.ask("document.querySelector('#parted').open"), "what was opened stays open"
    assert tab.errors == []


async def test_tokens_that_were_made_and_overlaps_are_marked_in_the_timeline(registry: Inside, tab: Tab):
    membership = RegistryMembership.from_url(f"registry+http://127.0.0.1:{registry.port}/lab")
    async with member(registry, "anna", membership=membership) as anna, anna.mutex("tapes"):
        await tab.open(f"{registry.base}/#lab")
        await tab.until("document.querySelector('svg .mark.generated')", "the token was made")
        loss = Observation("tapes", 1, "hold_lost", {"request": 1, "reason": "overlap"})
        membership.observer.notice(loss)
        await tab.until("document.querySelector('svg .mark.lost')", "what went wrong is marked")
        await tab.until("document.querySelector('.facts .bad')?.innerText == '1 warned hold'", "and counted")
        await tab.ask("document.querySelector('details').open = true")
        said = await tab.text("details")
        assert "a token was made (anna" in said and "may not be alone (anna, overlap)" in said


async def test_what_members_call_themselves_is_text_and_nothing_else(registry: Inside, tab: Tab):
    async with member(registry, NASTY) as node, member(registry, "'\"><script>alert(2)</script>"):
        async with (
            node.mutex("<svg onload=alert(3)>"),
            node.mutex("</title><iframe srcdoc='<script>alert(4)</script>'>"),
        ):
            await tab.open(f"{registry.base}/#lab")
            await tab.until("document.querySelectorAll('.now .holds').length == 2", "they are shown")
            seen = await tab.text()
            assert NASTY in seen and "<svg onload=alert(3)>" in seen and "<iframe" in seen
            made = await tab.ask(
                "document.querySelectorAll('#picture img, iframe, #picture script, [onerror], [onload]').length"
            )
            assert (made, tab.dialogs, tab.errors) == (0, [], [])
        with pytest.raises(AssertionError, match="TrustedHTML"):
            await tab.ask("document.body.innerHTML = '<b>markup from text</b>'")


async def test_everything_has_a_name_for_those_who_do_not_see_it(registry: Inside, tab: Tab):
    async with member(registry, "anna") as anna, anna.mutex("tapes"):
        await tab.open(f"{registry.base}/#lab")
        await tab.until("document.querySelector('.now .holds')", "it is held")
        names = await tab.names()
    for role in ("image", "heading", "region", "listitem", "article", "list", "graphics-symbol", "DisclosureTriangle"):
        found = [name for kind, name in names if kind == role]
        assert found and all(name.strip() for name in found), f"{role}: {found}"
    assert ("listitem", "anna: holds tapes") in names
    assert any(name.startswith("Timeline of tapes: ") and "1 hold by 1 member" in name for _, name in names)
    assert any(name.startswith("Wait times: 1 time, half under") for _, name in names)
    assert await tab.ask("document.documentElement.lang") == "en"


async def test_a_token_is_asked_for_and_goes_into_no_address(tmp_path: Path, tab: Tab):
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN)
    async with inside(tmp_path, tokens=Tokens([f"lab {TOKEN}"])) as registry:
        membership = f"registry+http://127.0.0.1:{registry.port}/lab?token_file={tmp_path / 'token'}"
        async with Node(transport="udp://127.0.0.1:0", membership=membership, name="anna", insecure=True):
            await tab.open(f"{registry.base}/")
            await tab.until("!document.querySelector('#login').hidden", "it asks for the token")
            names = await tab.names()
            assert {("textbox", "Group"), ("textbox", "Access token"), ("button", "Look")} <= set(names)
            await log_in(tab, "lab", "a-wrong-one-of-somebody")
            await tab.until("document.querySelector('#login-why').innerText.includes('refuses')", "not with this one")
            assert "anna" not in await tab.text()
            await log_in(tab, "lab", TOKEN)
            await tab.until(member_item("anna"), "and shows the group")
    assert not [address for address in tab.asked if TOKEN in address or "wrong" in address]


async def log_in(tab: Tab, group: str, token: str) -> None:
    for field, text in (("group", group), ("token", token)):
        await tab.ask(f"document.querySelector('#login-{field}').value = '{text}'")
    await tab.ask("document.querySelector('#login').requestSubmit()")


@pytest.mark.parametrize("dark", [False, True])
async def test_it_can_be_read_on_a_phone_by_day_and_night(registry: Inside, tab: Tab, dark: bool):
    await tab.size(360, 740, dark=dark)
    long = "a-long-name-without-any-place-to-break-it-" * 2
    async with member(registry, long) as one, one.mutex("nightly" * 9):
        await tab.open(f"{registry.base}/#lab")
        await tab.until("document.querySelector('.now .holds')", "it is shown")
        assert await tab.ask("document.documentElement.scrollWidth") <= 360, "nobody has to scroll sideways"
        shades = await tab.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(shades) < 80) is dark
        letters = "[...document.querySelectorAll('svg text')].map((one) => one.getBoundingClientRect().height)"
        assert await tab.ask(f"Math.min(...{letters})") > 9, "small print would be too small"


async def test_a_registry_that_is_gone_is_said_and_found_again(tmp_path: Path, tab: Tab):
    with kept_port() as port:
        async with inside(tmp_path, port=port) as registry:
            await tab.open(f"{registry.base}/#lab")
            await tab.until("document.querySelector('#pulse').className == 'live'", "it is there")
        await tab.until("document.querySelector('#pulse').className == 'lost'", "it is gone")
        assert "tries again" in await tab.text("#trouble")
        async with inside(tmp_path, port=port):
            await tab.until("document.querySelector('#pulse').className == 'live'", "it is back")
            await tab.until("document.querySelector('#trouble').hidden", "and nothing is wrong")
