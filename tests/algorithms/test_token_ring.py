"""`token-ring`: one machine on a bench, every interleaving of a few, what an entry costs, and a token that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.token_ring import Looked, Pass, Seek, Sought, TokenRing, Took
from softmutex.core.events import (
    Depart,
    Effect,
    Event,
    FactKind,
    Fired,
    Instant,
    Leaving,
    MembersChanged,
    Received,
    Requested,
    Send,
    Token,
    Withdrawn,
)
from softmutex.sim import Kill, nemesis, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import START, Bench
from tests.depth import DEEP

TOKEN = Token(1, 5, 5, 7)


def sent(b: Bench) -> list[tuple[int, Any]]:
    return [(effect.to, effect.message) for effect in b.effects if isinstance(effect, Send)]


def bench(me: int = 2) -> Bench:
    return Bench(TokenRing, me=me, members=(1, 2, 3))


def test_those_who_never_heard_of_a_token_look_for_it_one_after_the_other():
    """A fiftieth of a second apart: who is asked meanwhile need not ask."""
    due = []
    for me in (1, 2, 3):
        b = bench(me)
        b.start()
        b.request(1)
        due.append(b.due_in("missed"))
    assert due == [pytest.approx(1.0), pytest.approx(1.02), pytest.approx(1.04)]


def test_the_token_goes_on_where_nobody_wants_it():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    assert sent(b) == [(1, Took(1, 7)), (3, Pass(TOKEN._replace(hop=8), 1))]


def test_who_wants_it_runs_and_then_passes_it_on():
    b = bench()
    b.request(1)
    b.receive(Pass(TOKEN, 0), 1)
    assert b.granted == [1] and sent(b) == [(1, Took(1, 7))]
    b.release(1, b"trace")
    assert sent(b) == [(3, Pass(TOKEN._replace(hop=9, baggage=b"trace"), 1))]


def test_a_copy_is_acknowledged_and_not_used():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.request(1)
    b.receive(Pass(TOKEN, 0), 1)
    assert b.granted == [] and sent(b) == [(1, Took(1, 7))]


def test_it_is_said_again_until_it_was_taken():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.fire("pass")
    assert sent(b) == [(3, Pass(TOKEN._replace(hop=8), 1))]
    b.receive(Took(1, 8), 3)
    assert "pass" not in b.timers


def test_a_token_that_rests_long_enough_moves_more_slowly():
    b = bench()
    b.receive(Pass(TOKEN, 30), 1)
    assert sent(b) == [(1, Took(1, 7))] and 0 < (b.due_in("rest") or 0) <= 0.5


def test_when_the_next_one_dies_its_predecessor_asks_all_and_makes_a_new_one_where_nobody_has_it():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.members.remove(3)
    b.handle(MembersChanged((), (3,)))
    assert sent(b) == [(1, Seek(1))]
    b.receive(Looked(1, False, 1), 1)
    (epoch,) = [note.token.epoch for note in b.noted(FactKind.GENERATED) if note.token]
    assert epoch >= START, "above what was forgotten with others that died"
    assert sent(b)[0] == (1, Sought(1, epoch)) and isinstance(sent(b)[1][1], Pass)


def test_nobody_makes_one_where_somebody_has_it():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.members.remove(3)
    b.handle(MembersChanged((), (3,)))
    b.receive(Looked(1, True, 1), 1)
    assert b.noted(FactKind.GENERATED) == [] and sent(b) == [(1, Sought(1, 1))]


def test_who_said_that_it_has_none_takes_none_until_the_search_is_over():
    b = bench()
    b.receive(Seek(1), 3)
    assert sent(b) == [(3, Looked(1, False, 0))]
    b.receive(Pass(TOKEN, 0), 1)
    assert sent(b) == [(3, Looked(1, True, 1))], "it is not lost: it waits to come here"
    b.receive(Sought(1, 1), 3)
    b.receive(Pass(TOKEN, 0), 1)
    assert sent(b)[0] == (1, Took(1, 7))


def test_who_leaves_without_the_token_says_so_and_its_predecessor_does_not_search():
    """Where members came and went for one turn each, somebody searched all the time: nobody might take it."""
    leaver = bench(2)
    leaver.handle(Leaving())
    assert sent(leaver) == [(1, Looked(0, False, 0)), (3, Looked(0, False, 0))] and leaver.all_of(Depart)
    before = bench(1)
    before.receive(Looked(0, False, 0), 2)
    before.members.remove(2)
    before.handle(MembersChanged((), (2,)))
    assert not sent(before)
    before.members.remove(3)
    before.handle(MembersChanged((), (3,)))
    assert not before.members[1:] and before.machine.view().tokens, "it died: nobody else can have it"


def test_nobody_waits_for_the_answer_of_one_that_said_goodbye():
    """The membership of nemesis seed 741 told seconds later that it had gone, and so each search took as long."""
    b = bench(1)
    b.request(1)
    b.fire("missed")
    b.receive(Looked(0, False, 0), 2)
    b.receive(Looked(1, False, 0), 3)
    assert b.granted == [1]
    b.release(1)
    assert [(to, type(message)) for to, message in sent(b)] == [(3, Pass)], "nor is the token sent there"


def test_the_search_of_one_that_leaves_goes_on_at_its_predecessor():
    leaver = bench(2)
    leaver.request(1)
    leaver.fire("missed")
    leaver.handle(Withdrawn(1))
    leaver.handle(Leaving())
    goodbye = Looked(0, True, 0)
    assert (1, goodbye) in sent(leaver) and leaver.all_of(Depart)
    before, other = bench(1), bench(3)
    for each in (before, other):
        each.receive(Seek(1), 2)
        each.receive(goodbye, 2)
    assert [(to, type(message)) for to, message in sent(before)][-1] == (3, Seek)
    assert Seek not in [type(message) for _, message in sent(other)]


def test_two_tokens_that_were_sent_towards_each_other_become_one():
    """Each of two halves had made one: as they met, each waited for the other one for ever (nemesis seed 803)."""
    older, newer = bench(1), bench(2)
    older.members.remove(3)
    newer.members.remove(3)
    older.receive(Pass(Token(2, 0, 7, 63), 0), 2)
    newer.receive(Pass(Token(2, 0, 5, 71), 0), 1)
    theirs, ours = Pass(Token(2, 0, 7, 64), 1), Pass(Token(2, 0, 5, 72), 1)
    assert sent(older)[-1] == (2, theirs) and sent(newer)[-1] == (1, ours)
    older.receive(ours, 2)
    assert sent(older) == [], "not yet: its own may be there already"
    newer.receive(theirs, 1)
    assert sent(newer) == [(1, Took(2, 64))], "it gives its own away"
    older.receive(Took(2, 64), 2)
    older.receive(ours, 2)
    assert sent(older)[0] == (2, Took(2, 72))


def test_who_left_a_search_to_one_that_goes_away_begins_again():
    b = bench(3)
    b.members.remove(2)
    b.handle(MembersChanged((), (2,)))
    b.handle(Requested(1))
    b.fire("missed")
    b.receive(Seek(1), 1)
    assert Looked(1, False, 0) in [message for _, message in sent(b)]
    b.members[:] = [3, 4]
    b.handle(MembersChanged((4,), (1,)))
    assert [type(message) for _, message in sent(b)] == [Seek]


def test_a_token_that_comes_back_was_taken():
    """Between two, the TOOK and the token's way back crossed, and the token stood still until the PASS was repeated."""
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.request(1)
    b.receive(Pass(TOKEN._replace(hop=9), 0), 3)
    assert sent(b) == [(3, Took(1, 9))] and b.granted == [1] and "pass" not in b.timers


def test_who_waits_for_a_took_does_not_say_that_it_has_the_token():
    """Its token had gone on long ago, to one that left with it, and nobody looked for it any more."""
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.receive(Seek(1), 3)
    assert sent(b) == [(3, Pass(TOKEN._replace(hop=8), 1))]
    b.receive(Took(1, 8), 3)
    b.receive(Seek(1), 3)
    assert sent(b) == [(3, Looked(1, False, 1))]


def test_a_search_ends_where_one_that_has_none_is_offered_it():
    b = bench()
    b.members.remove(3)
    b.members.append(4)
    b.handle(MembersChanged((4,), (3,)))
    assert sent(b) == [(1, Seek(1)), (4, Seek(1))]
    b.receive(Looked(1, False, 1), 1)
    b.receive(Looked(1, True, 1), 1)
    assert sent(b) == [(1, Sought(1, 1)), (4, Sought(1, 1))] and not b.machine.view().tokens


def test_a_newer_token_waits_for_the_end_of_a_hold_with_an_older_one():
    """It was taken for the older one's rival and discarded, and the older one was refused by all who knew of it."""
    b = bench()
    b.request(1)
    b.receive(Pass(TOKEN, 0), 1)
    newer = Pass(TOKEN._replace(epoch=2, id=6, hop=2), 0)
    b.receive(newer, 1)
    assert sent(b) == [] and b.noted(FactKind.DISCARDED) == []
    b.release(1)
    b.receive(Took(1, 9), 3)
    b.receive(newer, 1)
    assert sent(b)[0] == (1, Took(2, 2))


def test_who_wants_it_now_and_then_misses_it_as_soon_as_one_that_waits():
    b = bench()
    b.receive(Pass(TOKEN, 0), 1)
    b.request(1)
    first = b.due_in("missed") or 0
    for request in (1, 2, 3):
        b.at(first * request / 4)
        b.handle(Withdrawn(request))
        b.request(request + 1)
    assert b.due_in("missed") == pytest.approx(first / 4)


@pytest.mark.parametrize("seed", [83, 96, 175, 186, 188, 464, 668, 684, 741, 803])
def test_groups_in_which_it_was_missed_for_too_long(seed: int):
    assert not simulate(nemesis.draw(seed, (2, 16), "token-ring")).violations


@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "requests": 2},
        {"nodes": 2, "repeats": 1},
        {"nodes": 2, "withdrawn": 1},
        {"nodes": 2, "founders": 2},
        {"nodes": 2, "founders": 0, "timers": 1},
        {"nodes": 2, "joins": 1, "askers": (2, 3)},
        {"nodes": 2, "leaves": 1},
        {"nodes": 3, "kills": 1, "askers": (2,)},
        {"nodes": 3, "leaves": 1, "askers": (2,)},
        *DEEP * (pytest.param({"nodes": 2, "leaves": 1, "joins": 1, "askers": (2, 3)}, marks=pytest.mark.slow),),
        {"nodes": 3, "askers": (2, 3)},
        {"nodes": 3, "withdrawn": 1, "askers": (2, 3)},
        {"nodes": 3, "joins": 1, "askers": (2,)},
        pytest.param({"nodes": 3, "joins": 1, "askers": (2, 4)}, marks=pytest.mark.slow),
        {"nodes": 2, "kills": 1, "timers": 1, "askers": (2,)},
        {"nodes": 2, "losses": 1, "timers": 1, "askers": (2,)},
        pytest.param({"nodes": 2, "kills": 1, "timers": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "losses": 1, "timers": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_two_run_at_once_and_everybody_is_granted_whatever_overtakes_what(bounds: dict[str, Any]):
    assert explore(TokenRing, **bounds) > 50


class TakesItBack(TokenRing):
    """R1 is missing its second half: a PASS that is not answered in time is taken back."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        out = list(super().handle(event, now))
        for effect in list(out) if event == Fired("pass") else ():
            match effect:
                case Send(to, Pass(token, idle)):
                    out += super().handle(Received(to, Took(token.epoch, token.hop)), now)
                    out += super().handle(Received(to, Pass(token._replace(hop=token.hop + 1), idle)), now)
        return out


class BelievesTheFirst(TokenRing):
    """R2 is missing: it asks, and takes every answer for "not here"."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(sender, Looked(number, _, epoch)):
                event = Received(sender, Looked(number, False, epoch))
        return super().handle(event, now)


@pytest.mark.parametrize(
    ("broken", "bounds"),
    [
        (TakesItBack, {"nodes": 2, "requests": 2, "timers": 1}),
        (BelievesTheFirst, {"nodes": 3, "kills": 1, "timers": 1}),
    ],
)
def test_a_machine_without_one_rule_is_found(broken: type[TokenRing], bounds: dict[str, Any]):
    with pytest.raises(Found, match="run A at once"):
        explore(broken, finish=False, **bounds)


def test_the_laws_see_it_under_load():
    found = simulate(scenario("loss-20", TakesItBack, 3)).violations
    assert "exclusion" in {violation.law for violation in found}


@pytest.mark.parametrize("nodes", [2, 3, 10, 50])
def test_an_entry_costs_one_pass_where_everybody_wants_it(nodes: int):
    result = simulate(Scenario("token-ring", nodes, 500.0, op_s=1.0, delay_s=0.05))
    assert abs(result.sent["PASS"] - result.acquisitions) <= nodes
    assert result.sent["TOOK"] <= result.sent["PASS"]
    assert result.fairness > 0.98


@pytest.mark.parametrize("fault", ["kill-holder", "kill-anybody", "loss-20", "churn-30", "storm", "cold-start"])
def test_it_survives(fault: str):
    result = simulate(scenario(fault, "token-ring", 3, nodes_max=9))
    assert not result.violation_count and result.unserved == 0 and result.acquisitions > 30


def test_a_token_that_died_with_its_holder_is_made_anew():
    kills = (Kill(60.0, "holder", restart_s=None, times=5),)
    result = simulate(Scenario("token-ring", 9, 360.0, op_s=1.0, delay_s=0.05, faults=kills, settle_s=60.0))
    assert not result.violation_count and result.unserved == 0
    assert len(result.recoveries_ns) >= 3 and max(result.recoveries_ns) < 5e9  # of which the membership needs three


def test_members_that_live_for_a_moment_do_not_end_the_search_of_another_one():
    assert not simulate(nemesis.draw(154, (2, 16), "token-ring")).violations


def test_it_shows_whether_the_token_rests_here_is_searched_for_or_is_elsewhere():
    b = bench()
    assert b.machine.view().state == "idle"
    b.start(founder=True)
    assert b.machine.view().state == "searching"
    b.receive(Pass(TOKEN, 9), 1)
    assert b.machine.view().state == "resting" and b.machine.view().holder == 2
    b.fire("rest")
    assert b.machine.view().state == "idle" and b.machine.view().holder == 3
