"""What members tell for the page: told in little room, taken only where it fits the form, and wrong in no total."""

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import report, wire
from softmutex_adapters.registry.report import read
from softmutex_adapters.registry.reporter import GAP_S, KEPT_MUTEXES_MAX
from softmutex_adapters.registry.scene import GONE_S, REPORTERS_MAX, Scene
from softmutex_adapters.registry.store import Entry

from softmutex.core.events import FactKind, Note, Token
from softmutex.ports import Member, Observation
from tests.ports import kept_port
from tests.registry.inside import Inside, body, inside, lease, unhurried, until
from tests.registry.telling import Teller

# --- what a member tells ---------------------------------------------------------------------------------------------


def test_who_waits_and_holds_is_told_with_its_age():
    teller = Teller()
    first, _ = teller.wait(), teller.wait()
    teller.get(first, 2.5, hop=7)
    teller.now += 3.0
    (mutex,) = teller.draw()["mutexes"]
    assert mutex["holding"] == [{"for_s": 3.0, "waited_s": 2.5, "epoch": 1, "hop": 7}]
    assert (mutex["waiting"], mutex["waiting_for_s"], mutex["acquisitions"]) == (1, [3.0], 1)
    assert teller.draw() is None, "nothing happened since"


def test_who_takes_several_slots_or_is_urgent_tells_so_and_nobody_else_does():
    teller = Teller()
    heavy = teller.wait(slots=3, priority=5)
    teller.wait()
    (mutex,) = teller.draw()["mutexes"]
    assert mutex["wishes"] == [{"slots": 3, "priority": 5}, {"slots": 1, "priority": 0}]
    teller.get(heavy, slots=3)
    (mutex,) = teller.draw()["mutexes"]
    assert mutex["holding"][0]["slots"] == 3
    assert "wishes" not in mutex, "a registry that knows none of it takes the report"


def test_the_picture_says_of_everybody_how_many_slots_and_how_urgent():
    urgent, plain = Teller(1), Teller(2)
    scene = scene_of(urgent, plain)
    urgent.wait(slots=3, priority=5)
    plain.now += 1.0
    plain.wait()
    plain.get(plain.wait())
    for teller in (urgent, plain):
        take(scene, teller, 1.0)
    mutex = only(scene)
    assert {(one["slots"], one["priority"]) for one in mutex["waiting"]} == {(3, 5), (1, 0)}
    assert [hold["slots"] for hold in mutex["holding"]] == [1]


def test_wishes_that_nobody_waits_for_are_not_shown():
    teller = Teller()
    scene = scene_of(teller)
    teller.wait()
    told = teller.draw()
    told["mutexes"][0]["wishes"] = [{"slots": 2, "priority": 1}] * 3
    scene.take(lease(1), read(json.dumps(told).encode()), 1.0)
    assert [one["slots"] for one in only(scene)["waiting"]] == [2]
    for wrong in ({"slots": 0, "priority": 1}, {"slots": 1, "priority": 10}, {"slots": 1}):
        told["mutexes"][0]["wishes"] = [wrong]
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            read(json.dumps(told).encode())


def test_waits_that_end_without_a_grant_are_counted_apart():
    teller = Teller()
    for outcome in ("timeout", "cancelled", "closed"):
        teller.give_up(teller.wait(), outcome)
    (mutex,) = teller.draw()["mutexes"]
    assert (mutex["timeouts"], mutex["cancelled"], mutex["acquisitions"], mutex["waiting"]) == (1, 1, 0, 0)
    assert sum(mutex["waits"]) == 0


def test_holds_that_follow_each_other_closely_are_one_span():
    teller = Teller()
    for _ in range(50):
        teller.hold(0.01)
        teller.now += GAP_S / 2
    teller.now += 2 * GAP_S
    teller.hold(0.02)
    one, other = teller.draw()["spans"]
    assert (one["count"], other["count"]) == (50, 1)
    assert one["held_s"] == pytest.approx(0.5)
    assert one["span_s"] == pytest.approx(50 * 0.01 + 49 * GAP_S / 2)
    assert (other["ago_s"], other["held_s"]) == (0.0, 0.02)


def test_what_was_not_answered_is_told_again_and_what_was_is_not():
    teller = Teller()
    teller.hold(1.0)
    teller.see("overlap", note=Note(FactKind.OVERLAP))
    lost = teller.draw(answered=False)
    again = teller.draw()
    assert again == lost
    teller.hold(1.0)
    last = teller.draw()
    assert (len(last["spans"]), last["marks"], last["mutexes"][0]["acquisitions"]) == (1, [], 2)


def test_a_registry_that_knew_nothing_is_told_everything():
    teller = Teller()
    teller.hold(1.0, "a")
    teller.draw()
    teller.hold(1.0, "b")
    assert [one["name"] for one in teller.draw(known=False)["mutexes"]] == ["b"]
    assert [one["name"] for one in teller.draw()["mutexes"]] == ["a"]


def test_a_token_is_where_its_last_hop_went():
    teller = Teller(node=5)
    token = Token(3, 0, 0, 8)
    teller.see("generated", note=Note(FactKind.GENERATED, token))
    teller.hand_over(token._replace(hop=9), 6)
    (mutex,) = teller.draw()["mutexes"]
    assert mutex["tokens"] == [{"slot": 0, "epoch": 3, "hop": 9, "at": f"{6:016x}"}]


def test_what_is_kept_is_bounded_and_what_did_not_fit_is_counted():
    teller = Teller()
    for number in range(KEPT_MUTEXES_MAX + 5):
        teller.hold(1.0, f"m{number}")
    for _ in range(report.MARKS_MAX + 5):
        teller.see("overrun", "m0", request=1)
    told = [teller.draw() for _ in range(KEPT_MUTEXES_MAX // report.MUTEXES_MAX)]
    assert teller.draw() is None
    assert sum(len(one["mutexes"]) for one in told) == KEPT_MUTEXES_MAX
    assert max(len(json.dumps(one)) for one in told) < report.REPORT_MAX
    spans_lost = KEPT_MUTEXES_MAX - report.SPANS_MAX
    assert told[-1]["skipped"] == 5 * len(("a wait", "a hold")) + spans_lost + 5


def test_spans_that_overflow_between_a_report_and_its_answer_lose_nothing_newer():
    teller = Teller()
    for _ in range(report.SPANS_MAX):
        teller.hold(0.01)
        teller.now += 1.0
    told = teller.reporter.draw()
    assert told is not None
    for _ in range(10):
        teller.hold(0.02)
        teller.now += 1.0
    teller.reporter.settle(answered=True)
    assert [one["held_s"] for one in teller.draw()["spans"]] == [0.02] * 10


def test_it_wakes_once_for_much_and_hears_every_thread():
    teller = Teller()

    def work(number: int) -> None:
        for _ in range(200):
            teller.see("overrun", f"m{number}", request=1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert teller.woken == 1
    assert [one["overruns"] for one in teller.draw()["mutexes"]] == [200] * 4
    assert teller.draw() is None
    teller.see("overrun", request=1)
    assert teller.woken == 2


@given(st.floats(0, 1e8))
def test_a_bucket_holds_what_its_edges_say(seconds):
    place = report.bucket(seconds)
    assert place == report.BUCKETS - 1 or seconds < 2**place / 1000
    assert place == 0 or seconds >= 2 ** (place - 1) / 1000


# --- what the registry takes -----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
)


@given(json_values | st.fixed_dictionaries(dict.fromkeys(report.SCHEMA["properties"], json_values)), st.binary())
def test_any_bytes_are_a_report_or_a_value_error(value, junk):
    for raw in (json.dumps(value).encode(), junk, b"[" * 100_000):
        with contextlib.suppress(ValueError):
            assert set(read(raw)) == set(report.SCHEMA["properties"])


@pytest.mark.parametrize(
    "change",
    [
        {"skipped": -1},
        {"skipped": 1.5},
        {"skipped": True},
        {"skipped": float("nan")},
        {"more": 1},
        {"mutexes": {}},
        {"spans": [{}]},
        {"marks": [{"mutex": "m", "ago_s": 1, "kind": "else", "detail": ""}]},
        {"marks": [{"mutex": "m" * 300, "ago_s": 1, "kind": "overrun", "detail": ""}]},
        {"marks": [{"mutex": "m", "ago_s": 1, "kind": "overrun", "detail": ""}] * (report.MARKS_MAX + 1)},
    ],
)
def test_what_does_not_fit_the_form_is_refused_in_words(change):
    whole = {"mutexes": [], "spans": [], "marks": [], "skipped": 0}
    assert read(json.dumps(whole).encode()) == whole
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        read(json.dumps(whole | change).encode())


# --- what the page is shown ------------------------------------------------------------------------------------------


def entries(*numbers: int) -> dict[str, Entry]:
    return {lease(n): Entry(Member(f"10.0.0.1:{n}", n, f"node-{n}"), "") for n in numbers}


def scene_of(*tellers: Teller) -> Scene:
    scene = Scene("g")
    scene.look(entries(*(teller.node for teller in tellers)), {}, 0.0)
    return scene


def take(scene: Scene, teller: Teller, now: float) -> None:
    scene.take(lease(teller.node), teller.draw(), now)


def only(scene: Scene, now: float = 1.0) -> Any:
    (mutex,) = scene.picture(now)["mutexes"]
    return mutex


def test_totals_are_those_of_all_members_however_often_they_are_told():
    one, two = Teller(1), Teller(2)
    scene = scene_of(one, two)
    for teller in (one, two, one):
        teller.hold(0.5)
        take(scene, teller, 1.0)
    one.hold(0.5)
    told = one.reporter.draw()
    assert told is not None
    for _ in range(3):  # its answers were lost
        scene.take(lease(1), told, 1.0)
    mutex = only(scene)
    assert (mutex["acquisitions"], sum(mutex["holds"])) == (4, 4)


def test_v4_who_told_before_the_token_went_on_is_no_second_holder():
    one, two = Teller(1), Teller(2)
    scene = scene_of(one, two)
    one.get(one.wait(), hop=4)
    take(scene, one, 1.0)
    two.get(two.wait(), hop=5)
    take(scene, two, 2.0)
    assert [hold["member"] for hold in only(scene)["holding"]] == [wire.key_of(lease(2))]
    one.see("hold_lost", request=1, reason="overlap")  # it holds it still: there are two
    take(scene, one, 3.0)
    mutex = only(scene)
    assert (len(mutex["holding"]), mutex["lost"]) == (2, 1)


def test_the_silent_and_the_leavers_are_told_apart_and_forgotten_later():
    scene = scene_of(Teller(1), Teller(2), Teller(3))
    scene.look(entries(3), {lease(2): None}, 10.0)
    states = {one["name"]: one["state"] for one in scene.picture(11.0)["members"]["shown"]}
    assert states == {"node-1": "gone", "node-2": "left", "node-3": "here"}
    scene.look(entries(1, 3), {}, 12.0)
    assert scene.picture(12.0)["members"]["count"] == 2, "who comes back is here"
    scene.look(entries(1), {}, 11.0 + GONE_S)
    assert [one["name"] for one in scene.picture(0)["members"]["shown"]] == ["node-1", "node-3"]


def test_v4_a_token_that_was_made_anew_does_not_end_the_hold_of_who_is_still_there():
    one, two = Teller(1), Teller(2)
    scene = scene_of(one, two)
    one.get(one.wait(), epoch=1, hop=4)
    take(scene, one, 1.0)
    two.get(two.wait(), epoch=2, hop=0)
    take(scene, two, 2.0)
    assert len(only(scene)["holding"]) == 2


def test_a_holder_that_falls_silent_is_in_the_timeline_until_it_was_missed():
    dead, leaver = Teller(1), Teller(2)
    scene = scene_of(dead, leaver)
    leaver.hold(1.0)
    dead.get(dead.wait(), hop=1)
    take(scene, dead, 5.0)
    leaver.see("generated", note=Note(FactKind.GENERATED, Token(2, 0, 0, 0)))  # since nobody answers any more
    take(scene, leaver, 7.0)
    scene.look({}, {lease(2): None}, 8.0)
    picture = scene.picture(10.0)
    spans = [(one["member"], one["from_s"], one["to_s"]) for one in picture["spans"]]
    assert (wire.key_of(lease(1)), 5.0, 2.0) in spans
    assert ("silent", wire.key_of(lease(1))) in [(one["kind"], one["member"]) for one in picture["marks"]]
    assert picture["mutexes"][0]["holding"] == []


def test_with_many_members_each_one_tells_less_often_and_beyond_a_limit_none():
    scene = Scene("g")
    numbers = range(1, REPORTERS_MAX + 2)
    scene.look(entries(*numbers), {}, 0.0)
    empty = {"mutexes": [], "spans": [], "marks": [], "skipped": 0}
    paces = [scene.take(lease(number), empty, 1.0)[1] for number in numbers]
    assert paces[0] < 1.0 < paces[-2] <= 10.0 < paces[-1]
    members = scene.picture(2.0)["members"]
    assert (members["count"], members["reporting"], len(members["shown"])) == (REPORTERS_MAX + 1, REPORTERS_MAX, 200)


# --- between them ----------------------------------------------------------------------------------------------------


async def picture(registry: Inside, after: int = 0, wait: float = 0) -> Any:
    status, told, _ = await registry.call("GET", f"/v1/groups/g/picture?after={after}&wait={wait}")
    assert status in (200, 204)
    return told or None


async def test_a_picture_waits_for_what_is_new(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        first = await picture(registry)
        assert await picture(registry, first["version"]) is None
        waiting = asyncio.ensure_future(picture(registry, first["version"], 20))
        teller = Teller()
        teller.hold(1.0)
        path = f"{registry.path('g', 1)}/report"
        status, told, _ = await registry.call("POST", path, json=teller.draw())
        assert (status, told["known"]) == (200, False)
        second = await waiting
        assert second["version"] > first["version"] and second["mutexes"][0]["acquisitions"] == 1
        waiting = asyncio.ensure_future(picture(registry, second["version"], 20))
        await registry.join("g", 2)
        assert (await waiting)["members"]["count"] == 2


async def test_only_who_is_listed_can_report(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        await registry.join("g", 1)
        empty = {"mutexes": [], "spans": [], "marks": [], "skipped": 0}
        for group, number in (("g", 2), ("other", 1)):
            _, told, _ = await registry.call("POST", f"{registry.path(group, number)}/report", json=empty)
            assert told["known"] is False
        assert (await picture(registry))["members"]["reporting"] == 0
        status, _, _ = await registry.call(
            "POST", f"{registry.path('g', 1)}/report", data=b"x" * (report.REPORT_MAX + 1)
        )
        assert status == 413


async def test_the_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(no_leaks: None, tmp_path: Path):
    async with inside(tmp_path) as registry:
        for path in ("/", "/ui/page.css", "/ui/page.js", "/ui/icon.svg"):
            status, text, headers = await registry.call("GET", path)
            policy = headers["Content-Security-Policy"]
            assert status == 200 and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "http" not in policy
            assert "https://" not in text.replace("http://www.w3.org", "")
            assert headers["X-Content-Type-Options"] == "nosniff"


async def test_a_member_reports_by_itself_and_again_to_a_registry_that_was_restarted(no_leaks: None, tmp_path: Path):
    with kept_port() as port:
        async with inside(tmp_path, port=port) as registry:
            membership = RegistryMembership([registry.base], "g")
            await membership.join(Member("10.0.0.1:1", 1, "one"))
            assert membership.observer is not None
            membership.observer.notice(Observation("m", 1, "overrun", {"request": 1}))

            async def shows(of: Inside) -> bool:
                mutexes = (await picture(of))["mutexes"]
                return bool(mutexes) and mutexes[0]["overruns"] == 1

            await until(lambda: shows(registry), "it is told")
        async with inside(tmp_path, port=port) as registry:
            membership.observer.notice(Observation("n", 1, "overrun", {"request": 1}))
            await until(lambda: shows(registry), "all is told again")
            await membership.aclose()


async def test_a_one_shot_run_is_told_before_it_leaves(no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unhurried(monkeypatch)
    async with inside(tmp_path) as registry:
        membership = RegistryMembership([registry.base], "g")
        await membership.join(Member("10.0.0.1:1", 1, "one"))
        assert membership.observer is not None
        membership.observer.notice(Observation("m", 1, "overrun", {"request": 1}))
        await membership.aclose()
        shown = await picture(registry)
        assert shown["mutexes"][0]["overruns"] == 1
        assert [one["state"] for one in shown["members"]["shown"]] == ["left"]


async def test_who_does_not_want_to_tell_tells_nothing(no_leaks: None, tmp_path: Path):
    membership = RegistryMembership.from_url("registry+http://127.0.0.1:1/g?report=no")
    assert membership.observer is None


async def test_a_lease_of_one_group_opens_no_picture_of_another(no_leaks: None, tmp_path: Path):
    from softmutex_adapters.registry.tokens import Tokens

    token, other = "t" * 20, "o" * 20
    async with inside(tmp_path, tokens=Tokens([f"g {token}", f"h {other}"])) as registry:
        wanted = {"g": 200, "h": 401}
        for group, status in wanted.items():
            headers = {"Authorization": f"Bearer {token}"}
            found, _, _ = await registry.call("GET", f"/v1/groups/{group}/picture", headers=headers)
            assert found == status
            found, _, _ = await registry.call(
                "POST", f"{registry.path(group, 1)}/report", json=body(1), headers=headers
            )
            assert found == (400 if status == 200 else 401)
