"""Whom a node still expects, asks, and speaks of: each sentence is one that a mutant once broke."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from softmutex.core.events import NOBODY, SECOND, Instant, NodeId, Send
from softmutex.core.group import Listed
from softmutex.core.group import founding as founding_module
from softmutex.core.group import group as group_module
from softmutex.core.group.company import Company
from softmutex.core.group.door import BANNED
from softmutex.core.group.effects import Stalled
from softmutex.core.group.founding import KEPT_MAX
from softmutex.core.group.group import BYES_MAX
from softmutex.core.group.inquiry import Inquiry
from softmutex.core.group.rosters import Rosters
from softmutex.core.messages import (
    ROSTER_PAGE,
    Describe,
    Description,
    Entry,
    Forgetting,
    Hello,
    Message,
    Offer,
    Ping,
    Roster,
    RosterPage,
    Standing,
)
from softmutex.core.patience import Patience
from tests.core.bench import token
from tests.group.village import START, TERMS, House, Village

Frame = tuple[NodeId, NodeId, str, Message]

# --- addresses of a list ----------------------------------------------------------------------------------------------


def test_who_has_spoken_is_not_waited_for_any_more():
    village = Village()
    village.silent_hosts = {"h2"}
    a = village.house(1)
    a.listed(Listed("h2"), may_be_late=False)
    village.run(1)
    assert not a.group.is_settled
    a.do(a.group.heard, 2, "h2", village.now)
    assert a.group.is_settled and a.group.members == [1, 2]


def test_who_is_listed_no_more_is_looked_for_no_more_and_the_others_are():
    village = Village()
    village.silent_hosts = {"here", "gone"}
    a = village.house(1)
    a.listed(Listed("here"), Listed("gone"))
    village.run(10)
    a.listed(Listed("here"))
    looked: list[str] = []
    village.tap = lambda _, to, frame: looked.append(to)
    village.run(30)
    assert set(looked) == {"here"} and len(looked) > 20


def hellos(village: Village, address: str) -> list[Instant]:
    """When that address was greeted, from now on."""
    found: list[Instant] = []

    def note(_: str, to: str, frame: Frame) -> None:
        if to == address and isinstance(frame[3], Hello):
            found.append(village.now)

    village.tap = note
    return found


def who_greets_a_silent_one() -> tuple[Village, House, list[Instant]]:
    """It is listed as `h2`; when it is greeted."""
    village = Village()
    village.silent_hosts = {"h2"}
    a = village.house(1)
    greeted = hellos(village, "h2")
    a.listed(Listed("h2"), may_be_late=False)
    return village, a, greeted


def test_a_new_address_is_greeted_ever_more_rarely_but_about_once_a_second_until_enough_was_tried():
    village, a, greeted = who_greets_a_silent_one()
    village.until(lambda: a.group.is_settled, within_s=5.001)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(greeted)]
    assert village.now >= START + 5 * SECOND
    assert len(gaps) >= 6
    for gap, usual in zip(gaps, [0.1, 0.2, 0.4, 0.8, *[1] * 9], strict=False):
        assert 0.75 * usual <= gap <= 1.25 * usual


def test_nobody_is_there_where_two_greetings_were_refused_and_not_one_that_was_twice():
    village, a, greeted = who_greets_a_silent_one()
    for _ in range(3):  # late, or forged
        a.do(a.group.refused, "h2", village.now)
    assert len(greeted) == 1 and not a.group.is_settled
    village.until(lambda: len(greeted) == 2, within_s=1)
    assert not a.group.is_settled
    a.do(a.group.refused, "h2", village.now)
    assert a.group.is_settled and a.group.reachability() == (("h2", "refused"),)


def test_of_two_refusals_with_silence_between_them_the_first_one_counts_no_more():
    village, a, greeted = who_greets_a_silent_one()
    for number in (1, 2, 3, 4):
        if number % 2:
            a.do(a.group.refused, "h2", village.now)
        village.until(lambda number=number: len(greeted) > number, within_s=2)  # type: ignore[misc]
    assert not a.group.is_settled


def test_a_death_leaves_nobody_to_be_waited_for():
    village = Village()
    a, b, c = village.neighbours(3)
    village.run(1)
    village.kill(b)
    a.suspect(b)
    village.until(lambda: b.id not in a.group.members, within_s=3)
    assert a.group.is_settled
    assert a.said == [f"a node at {b.address} is gone (refused)."] and not a.warned
    a.open()
    assert village.until(a.founded, within_s=5) < 0.1
    assert c.group.members == sorted([a.id, b.id, c.id])


def test_a_silent_one_that_no_list_shows_is_looked_for_as_well():
    village = Village()
    a, b = village.house(1), village.house(2)
    a.listed(complete=True)
    a.do(a.group.heard, b.id, b.address, village.now)
    village.cut([a], [b])
    a.suspect(b)
    village.run(5)
    assert a.group.is_silent(b.id)
    village.heal()
    b.do(b.group.heard, a.id, a.address, village.now)
    village.until(lambda: not a.group.is_silent(b.id), within_s=2)


def moved(a: House, b: House) -> None:
    """b is at another address from now on, and a has heard it there."""
    village = b.village
    del village.houses[b.address]
    b.address = "elsewhere"
    village.houses[b.address] = b
    b.send(a.id, "", Ping(1))
    village.run(0.1)


def test_where_a_member_has_moved_away_another_one_may_live_and_is_met():
    village = Village()
    a, b = village.house(1), village.house(2)
    a.listed(Listed("h2"))
    village.run(1)
    moved(a, b)
    village.house(3, "h2")
    village.until(lambda: a.group.members == [1, 2, 3], within_s=3)


def test_whoever_is_listed_by_its_id_is_not_looked_for_where_it_was():
    village = Village()
    a, b = village.neighbours(2)
    village.run(1)
    moved(a, b)
    village.run(10)
    assert not village.sent[Hello] and village.sent.total() <= 2  # its PING, and the answer


def test_a_member_that_has_moved_is_still_the_one_that_is_listed():
    village = Village()
    a, b = village.house(1), village.house(2)
    a.listed(Listed("h2"), complete=True)
    village.run(1)
    moved(a, b)
    a.listed(Listed("h2"), complete=True)
    village.run(10)
    assert a.group.members == [1, 2]


def test_when_an_own_address_is_listed_no_more_nobody_is_blamed():
    village = Village()
    a = village.house(1)
    village.houses["another name of it"] = a
    a.listed(Listed("another name of it"))
    village.run(3)
    assert a.group.reachability() == ()
    a.listed()
    assert not a.said


# --- who is banned, who is too many -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "told"), [("charlie", "charlie"), ("", "h3")])
def test_who_is_listed_and_banned_is_ignored_and_people_are_told_by_its_name(name: str, told: str):
    village = Village()
    a = village.house(1, door=SimpleNamespace(objection=lambda node: BANNED if node == 3 else ""))
    a.listed(Listed("h2", 2), Listed("h3", 3, name), complete=True)
    assert a.group.members == [1, 2] and a.dropped[BANNED] == 1
    assert a.said == [f"{told} is banned by the registry: this node ignores it."]
    village.run(5)
    assert a.group.members == [1, 2]


def test_members_beyond_the_limit_are_dropped_and_people_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_module, "MEMBERS_MAX", 5)
    a = Village().house(1)
    a.listed(*(Listed(f"h{id}", id) for id in range(2, 10)), complete=True)
    assert a.group.members == [1, 2, 3, 4, 5] and a.dropped["members"] == 4
    assert a.said == ["4 more are not taken in: 5 is the limit."]


def test_as_many_members_as_the_limit_allows_are_taken_in_without_a_word(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_module, "MEMBERS_MAX", 5)
    a = Village().house(1)
    a.listed(*(Listed(f"h{id}", id) for id in range(2, 6)), complete=True)
    assert a.group.members == [1, 2, 3, 4, 5] and not a.said and not a.dropped


def test_farewell_is_said_once_to_those_who_were_heard_last():
    village = Village()
    a = village.house(1)
    a.listed(*(Listed(f"h{id}", id) for id in range(2, 12 + BYES_MAX)), complete=True)
    for id in range(2, 12 + BYES_MAX):
        a.do(a.group.heard, id, f"h{id}", village.now + id)
    told: list[str] = []
    village.tap = lambda _, to, frame: told.append(to)
    for _ in range(2):
        a.do(a.group.say_bye)
    assert told == [f"h{id}" for id in range(11 + BYES_MAX, 11, -1)]


def test_who_is_heard_by_way_of_another_is_alive_and_no_operator_can_say_that_it_is_gone():
    village = Village()
    a, b, c = village.neighbours(3)
    assert a.group.relayed(b.id, c.id, village.now)
    village.run(9)
    assert a.group.forget(b.id, village.now) is Forgetting.ALIVE
    village.run(1)
    assert a.group.forget(b.id, village.now) is Forgetting.FORGOTTEN


# --- rosters ----------------------------------------------------------------------------------------------------------


class Told:
    """Owns rosters, and notes who is said to be where."""

    def __init__(self, *members: NodeId) -> None:
        company = Company(1)
        company.add([Listed(f"h{node}", node) for node in members])
        self.rosters = Rosters(self, company, Patience(SECOND))
        self.asked: list[Send] = []
        self.hints: list[Listed] = []
        self.ended: list[NodeId] = []

    def put(self, effect: object) -> None:
        self.asked += [effect] if isinstance(effect, Send) else []

    def hinted(self, place: Listed, now: Instant) -> None:
        self.hints.append(place)

    def roster_ended(self, node: NodeId, now: Instant) -> None:
        self.ended.append(node)


def test_of_those_whom_another_one_names_only_strangers_with_an_address_are_looked_for():
    told = Told(2, 3)
    told.rosters.ask(2, START)
    entries = (Entry(1, "h1"), Entry(3, "h3 of old"), Entry(4, ""), Entry(5, "h5"))
    told.rosters.told(2, RosterPage(NOBODY, entries), START)
    assert told.hints == [Listed("h5", 5)] and told.ended == [2]


def test_who_does_not_answer_is_asked_three_times_for_its_roster_and_told_of_then():
    told = Told(2)
    told.rosters.ask(2, START)
    for _ in range(3):
        assert not told.ended
        told.rosters.fired(2, START)
    assert len(told.asked) == 3 and told.ended == [2]


def test_who_is_a_member_no_longer_is_not_waited_for_to_tell_whom_it_knows():
    village = Village()
    a, b, c = village.neighbours(3)
    village.cut([a], [b])
    a.do(a.group.rosters.ask, b.id, village.now)
    assert b.id in a.group.rosters and c.id not in a.group.rosters
    a.do(a.group.expel, b.id, village.now)
    assert b.id not in a.group.rosters


def test_a_page_that_does_not_go_on_is_the_last_one():
    """Or a member that tells the same again and again keeps this node asking for ever."""
    told = Told(2)
    told.rosters.ask(2, START)
    ids = range(10, 10 + ROSTER_PAGE)
    told.rosters.told(2, RosterPage(NOBODY, tuple(Entry(id, f"h{id}") for id in ids)), START)
    assert [each.message for each in told.asked] == [Roster(NOBODY), Roster(ids[-1])] and not told.ended
    told.rosters.told(2, RosterPage(ids[-1], tuple(Entry(id, f"h{id}") for id in ids)), START)
    assert len(told.asked) == 2 and told.ended == [2]


def test_a_page_that_goes_on_and_back_again_is_the_last_one():
    told = Told(2)
    told.rosters.ask(2, START)
    ids = (*range(10, 9 + ROSTER_PAGE), NOBODY)
    told.rosters.told(2, RosterPage(NOBODY, tuple(Entry(id, f"h{id}") for id in ids)), START)
    assert len(told.asked) == 1 and told.ended == [2]


def test_who_finds_it_in_use_learns_whom_the_user_knows():
    """A node cannot reach whom it does not know (F3)."""
    village = Village()
    a, b, c, newcomer = (village.house(id) for id in (1, 2, 3, 4))
    for house in (a, b, c):
        house.listed(*(other for other in (a, b, c) if other is not house))
    a.open()
    village.run(10)
    assert a.founded()
    newcomer.listed(a)
    village.run(10)
    assert newcomer.group.members == [1, 4]
    newcomer.open()
    village.until(lambda: newcomer.group.members == [1, 2, 3, 4], within_s=2)


# --- questions --------------------------------------------------------------------------------------------------------


def inquiry(*others: NodeId) -> Inquiry:
    asks = Inquiry("x", TERMS, "wait", 1, number=1, stage=1, now=START)
    asks.whom_to_ask(8, 8, SECOND, START)
    return asks


def test_a_rival_who_is_no_member_yet_is_waited_for_until_it_is_met_or_so_long():
    asks, until = inquiry(2), START + 5 * SECOND
    asks.rivalled(9, until, [2])
    assert asks.is_open_ended([2], until - 1)
    assert not asks.is_open_ended([2], until)
    asks.rivalled(9, until, [2])
    assert not asks.is_open_ended([2, 9], START)
    assert asks.whom_to_tell(founder=False) == [9]


def test_a_rival_who_is_a_member_is_waited_for_as_a_member_is():
    asks = inquiry(2)
    asks.rivalled(2, START + 5 * SECOND, [2])
    assert not asks.is_open_ended([], START)


def test_who_heard_that_it_is_used_asks_the_user_first():
    village = Village(1, delay_s=0.01, jitter=0)
    user, newcomer, *_ = village.neighbours(30)
    user.open()
    village.run(2)
    newcomer.open()
    assert village.until(lambda: "x" in newcomer.started, within_s=1) == 0.02  # there and back
    assert newcomer.started["x"].hint == user.id


def test_what_machines_say_while_a_mutex_is_opened_is_kept_in_part_and_the_rest_is_counted():
    village = Village()
    a, b = village.neighbours(2)
    village.cut([a], [b], both=False)
    a.open()
    for number in range(KEPT_MAX + 3):
        b.send(a.id, "x", Offer(number, token(0, 5)))
    village.run(0.1)
    assert a.dropped["undescribed"] == 3
    village.heal()
    b.group.founding.joined("x", TERMS)
    village.until(lambda: "x" in a.started, within_s=10)
    assert len(a.started["x"].kept) == KEPT_MAX


def test_of_the_names_that_were_heard_of_the_one_that_was_not_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(founding_module, "NOTES_MAX", 9)
    village = Village()
    a, b, c = village.neighbours(3)
    founding = a.group.founding

    def ask(mutex: str) -> None:
        founding.received(b.id, mutex, Describe(True, 1), village.now)
        a.group.out.clear()

    def standing(mutex: str) -> Standing:
        founding.received(c.id, mutex, Describe(False), village.now)
        said = a.group.out.pop().message  # type: ignore[union-attr]
        assert isinstance(said, Description)
        return said.standing

    for mutex in ("again", "once", *(f"x{number}" for number in range(7)), "again"):
        ask(mutex)
    assert founding.notes == 9
    ask("one more")
    assert founding.notes == 9
    assert (standing("again"), standing("once")) == (Standing.ASKING, Standing.UNKNOWN)


def test_who_is_told_of_a_rival_waits_a_second_for_its_word_and_then_asks_anew():
    """It may have died since then."""
    village = Village(delay_s=0.001)
    a, b, c = village.neighbours(3)
    low, high = sorted([a, b], key=lambda house: house.id)
    village.cut([low], [high, c])
    high.do(high.group.founding.open, "x", TERMS, village.now)
    asked: list[Instant] = []

    def note(source: str, _: str, frame: Frame) -> None:
        if source == high.address and isinstance(frame[3], Describe) and frame[3].founding:
            asked.append(village.now)

    village.tap = note
    high.do(high.group.received, low.id, "x", Describe(True, 1), low.address, True, village.now)
    stood_back_at = village.now
    village.until(lambda: asked, within_s=2)
    assert asked[0] == stood_back_at + SECOND


def test_who_waits_for_members_says_how_many_are_there():
    village = Village()
    a, _ = village.neighbours(2)
    a.open(min_members=3)
    village.run(5)
    assert a.did == [Stalled("x", "2 of at least 3 members are there (min_members)")]


@pytest.mark.parametrize(("silent", "is_alarming"), [(False, False), (True, True)], ids=["refused", "silent"])
def test_where_all_that_are_missing_refuse_nothing_is_wrong(silent: bool, is_alarming: bool):
    """As where a group is begun: people are told, and not warned."""
    village = Village()
    village.silent_hosts = {"h3"} if silent else set()
    a = village.house(1)
    a.listed(Listed("h2"), Listed("h3"), complete=True)
    a.open()
    village.until(a.founded, within_s=10)
    assert [*a.warned] == a.said[:is_alarming] and len(a.said) == 1


@pytest.mark.parametrize(("standing", "for_s"), [(Standing.ASKING, 3), (Standing.KNOWN, 60)])
def test_what_was_heard_of_a_mutex_is_passed_on_for_so_long(standing: Standing, for_s: int):
    """Who asks may be done with it by then, or dead; who uses it says so again when it is asked."""
    village = Village()
    a, b, c = village.neighbours(3)
    founding = a.group.founding
    if standing is Standing.ASKING:
        founding.received(b.id, "x", Describe(True, 1), village.now)
    else:
        founding.received(b.id, "x", TERMS._replace(by=b.id), village.now)

    def said(after: int) -> Standing:
        a.group.out.clear()
        founding.received(c.id, "x", Describe(False), village.now + after)
        message = a.group.out.pop().message  # type: ignore[union-attr]
        assert isinstance(message, Description)
        return message.standing

    assert said(for_s * SECOND - 1) is standing
    assert said(for_s * SECOND) is Standing.UNKNOWN
