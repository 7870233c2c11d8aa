"""`keeper`, the preview of the second generation: its sentences, and the seeds that taught it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from softmutex.core.algorithms.keeper import Keeper
from softmutex.core.algorithms.keeper.messages import (
    Beat,
    Claim,
    Keeps,
    Lease,
    Legacy,
    Name,
    Propose,
    Report,
    Told,
)
from softmutex.core.errors import ConfigError
from softmutex.core.events import (
    SECOND,
    CallRoll,
    FactKind,
    Leaving,
    Level,
    Lose,
    MembersChanged,
    Note,
    Overlapped,
    Reach,
    Received,
    Send,
    Slept,
    Started,
)
from softmutex.core.laws import Law
from softmutex.core.machine import Setup
from softmutex.core.messages import Accept, Commit, Done, Offer
from softmutex.core.routing import PrefixRing, key_of
from softmutex.sim import Kill, Partition, simulate
from softmutex.sim.faults import Batch, Churn, DeadLink
from softmutex.sim.nemesis import draw
from softmutex.sim.result import Result
from softmutex.sim.scenario import Scenario
from tests.core.bench import START, Bench

FEW = (2, 16)  # nodes
KEEPER_AND_HOLDER = (Kill(40.0, "holder", times=1), Kill(40.0, "first", times=1))
SEEDS: dict[int, str] = {  # what each of them taught
    **dict.fromkeys((1, 11, 20, 31, 34, 38, 43, 46, 127, 141, 142), "see the log of the package"),
    45: "the simulator answered by a way that was no more, where the group (`ways.py`) does not",
    93: "nobody waits long enough to find a keeper: the silence goes on, whoever asks",
    271: "a last lease is handed on with the role, as long as it is, not as long as it may be",
    302: "who did not promise the proposer may promise the keeper that it became",
    308: "a replayed message does not cross a cut",
    313: "a beat that was sent before FED arrived does not show that a ticket was served",
    340: "a token whose refusal is on its way is not lost",
    342: "a ticket that is on its way to one token is not fed to another",
    345: "members that only others know are asked",
    49: "an heir that leaves as well says so; a leaver does not wait for it",
    222: "who joins while a token is searched for is asked at once; a leaver takes its ticket back",
    403: "who did not answer the search gets no token for a claim of before it",
    410: "a ticket of somebody who wants nothing is taken back, not fed to its own node for ever",
    6006: "who slept knows the times of holds vaguely: told is what is certain",
    6047: "the ticket of a leaver, claimed while tokens were refused to a proposer, is taken back too",
    6074: "who promised a later term does not install itself in an earlier one",
    21006: "keeper and holder die at once: who waits asks again sooner where turns are short, and not all at one time",
    22057: "a keeper that does not answer is suspected at the first claim",
    22237: "what is asked again is not put off by whatever else comes",
    21021: "who others know to have left does not count",
}


def run(**changes: Any) -> Result:
    fields: dict[str, Any] = {"algorithm": "keeper", "nodes": 7, "duration_s": 120.0, "settle_s": 60.0, "op_s": 1.0}
    fields |= {"delay_s": 0.01, "bound_s": 10.0, "ids": "random"} | changes
    return simulate(Scenario(**fields))


def machine(me: int, options: dict[str, Any]) -> Keeper:
    return Keeper(Setup(me, [1, 2], random.Random(me), options=options))


def broken(result: Result) -> list[str]:
    return [str(violation) for violation in result.violations]


def test_everybody_gets_its_turn_at_eight_messages():
    result = run(op_s=0.5)
    assert broken(result) == []
    assert result.messages < 8 * result.acquisitions


@pytest.mark.parametrize("target", ["holder", "first", "both"])
def test_a_death_costs_one_token_and_seconds(target: str):
    result = run(faults=(Kill(40.0, target, times=2),))
    assert broken(result) == []
    assert all(length <= 10 * SECOND for length in result.recoveries_ns)


@pytest.mark.parametrize("seed", [3, 4])
def test_more_than_half_die_and_nobody_is_forgotten(seed: int):
    """Their hosts live. Proposers refused one another for ever; a new keeper forgot that it waited itself."""
    random = [Kill(40.0, "random", None, times=1)] * 4
    result = run(nodes=10, delay_s=0.02, seed=seed, place=7919 * seed, faults=(*KEEPER_AND_HOLDER, *random))
    assert broken(result) == []
    assert all(length <= 10 * SECOND for length in result.recoveries_ns)


def test_the_votes_are_split_and_somebody_keeps_at_last():
    result = run(
        nodes=10, delay_s=0.02, duration_s=150.0, seed=4, place=7919 * 4, faults=(Kill(40.0, "first", times=3),)
    )
    assert broken(result) == []
    assert all(length <= 10 * SECOND for length in result.recoveries_ns)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.45])
def test_the_smaller_side_of_a_cut_stops_and_nobody_overlaps_for_long(share: float):
    result = run(nodes=7, faults=(Partition(40.0, 90.0, share, target="holder"),), laws=tuple(Law))
    assert [each for each in result.violations if each.law is not Law.EXCLUSION] == []


def test_a_dead_link_is_no_dead_node():
    result = run(faults=(DeadLink(20.0, 80.0, "holder"),))
    assert broken(result) == []
    assert result.generated == 1


def test_fifty_newcomers_at_once_make_nothing():
    result = run(nodes=2, op_s=0.05, faults=(Batch(20.0, 50),), settle_s=120.0)
    assert broken(result) == []
    assert result.generated == 1


def test_copies_of_tickets_on_their_way_breed_no_copies():
    """Whoever passed FED on after the token passed each copy on: 90 messages an acquisition, and a storm (seed 327)."""
    faults = (Batch(5.0, 30), Churn(1.26))
    use: dict[str, Any] = {"op_s": 0.0132, "demand": "periodic:0.316", "delay_s": 0.00012, "jitter": 0.5}
    result = run(nodes=3, duration_s=40.0, settle_s=30.0, duplication=0.493, bound_s=20.0, faults=faults, **use)
    assert broken(result) == []
    assert result.messages < 10 * result.acquisitions


@pytest.mark.parametrize("seed", [1, 2])
def test_newcomers_that_know_hardly_anybody_make_nothing(seed: int):
    """Who only proposes a term was once followed as its keeper."""
    views: dict[str, Any] = {"own_views": True, "known": 0.02, "late_s": 5.0}
    result = run(nodes=2, op_s=5.0, delay_s=0.005, faults=(Batch(10.0, 50),), settle_s=400.0, seed=seed, **views)
    assert broken(result) == []
    assert result.generated == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_nemesis_found_once(seed: int):
    """Each of these seeds broke a law of an earlier version."""
    scenario = draw(seed, FEW, "keeper")
    assert Counter(violation.law for violation in simulate(scenario).violations) == Counter()


def test_tasks_of_one_node_are_served_in_a_row_and_nobody_starves():
    """Those that waited when its turn began: sixteen at most, and none is started after 20 ms."""
    use: dict[str, Any] = {"nodes": 6, "op_s": 0.0002, "delay_s": 0.002, "demand": "poisson:3000"}
    use |= {"duration_s": 2.0, "settle_s": 30.0}
    in_a_row, one_by_one = run(**use), run(**use, options={"row": 1})
    assert broken(in_a_row) == broken(one_by_one) == []
    assert in_a_row.acquisitions > 1.1 * one_by_one.acquisitions
    assert in_a_row.messages_per_acquisition < 0.75 * one_by_one.messages_per_acquisition


def test_who_had_its_turn_lately_lets_others_go_first():
    """Two nodes ask all the time, four now and then: these hardly wait for those."""
    quick, late = (
        run(nodes=6, op_s=0.5, demand="poisson:1.9", options={"min_interval": interval}) for interval in (0.0, 3.0)
    )
    assert broken(quick) == []
    assert late.acquisitions > 0.9 * quick.acquisitions


def test_a_token_with_other_settings_is_told_once():
    """Its fingerprint travels along: slots, slots of one node, and the least interval."""
    strict, plain = (machine(node, {"min_interval": least}) for node, least in ((1, 5.0), (2, 0.0)))
    effects = strict.handle(Started(True), SECOND)
    assert not [effect for effect in effects if isinstance(effect, Note) and effect.kind is FactKind.MISMATCH]
    token = strict.view().tokens[0]
    assert token.settings
    plain.handle(Started(False), SECOND)
    (answer,) = (e for e in plain.handle(Received(1, Offer(7, token)), 2 * SECOND) if isinstance(e, Send))
    assert isinstance(answer.message, Accept)
    effects = plain.handle(Received(1, Commit(7, answer.message.reply, token)), 3 * SECOND)
    assert [e.kind for e in effects if isinstance(e, Note) and e.kind is FactKind.MISMATCH] == [FactKind.MISMATCH]


# --- one machine on a bench: each sentence is one that a mutant once broke --------------------------------------------


def founder(*members: int) -> Bench:
    """It keeps, has the token, and reaches its group."""
    b = Bench(Keeper, me=1, members=members)
    b.start(founder=True)
    b.handle(Reach(Level.MORE))
    return b


def sent(b: Bench, kind: type) -> list[tuple[int, Any]]:
    return [(each.to, each.message) for each in b.effects if isinstance(each, Send) and isinstance(each.message, kind)]


def test_a_node_uses_one_slot_at_a_time():
    with pytest.raises(ConfigError, match="each"):
        machine(1, {"each": 2})


def test_who_claims_an_idle_token_gets_it_at_once():
    b = founder(1, 2, 3)
    b.receive(Claim(3, 1, 1, 0, 0, 2), 3)
    assert [to for to, _ in sent(b, Commit)] == [3]


@pytest.mark.parametrize("members", [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_a_keeper_that_leaves_asks_one_after_the_other_until_an_heir_answers(members: tuple[int, ...]):
    b = founder(*members)
    b.handle(Leaving())
    ((to, offer),) = sent(b, Offer)
    b.receive(Accept(offer.nonce, 5), to)
    b.receive(Done(offer.nonce, 5), to)
    asked = [node for node, _ in sent(b, Legacy)]
    for _ in members[2:]:
        b.fire("linger")
        asked += [node for node, _ in sent(b, Legacy)]
    assert sorted(asked) == list(members[1:]) and not b.departs
    b.receive(Keeps(2, asked[-1]), asked[-1])
    if not b.departs:
        b.fire("linger")
    assert b.departs


def test_a_keeper_that_hears_of_a_newer_token_in_a_round_gives_its_own_up():
    b = founder(1, 2, 3)
    b.handle(Slept(10 * SECOND))
    b.fire("round")
    questions = sent(b, Propose)
    assert [to for to, _ in questions] == [2, 3]
    newer = Name(0, 9, 1, 77, 5)
    b.receive(Report(questions[0][1].number, True, 1, 1, 0, 3, (), (), (newer,), (), (newer,)), 2)
    assert b.noted(FactKind.DISCARDED) and b.machine.view().tokens == ()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_claim_goes_on_to_the_keeper_as_long_as_it_has_steps_left(steps: int):
    b = Bench(Keeper, me=2, members=(1, 2, 3))
    b.start()
    b.receive(Keeps(1, 1), 1)
    b.receive(Claim(3, 1, 1, 0, 0, steps), 3)
    assert [(to, claim.steps) for to, claim in sent(b, Claim)] == ([(1, steps - 1)] if steps else [])


def test_an_overlap_is_told_anew_only_where_it_turned_out_longer():
    b = founder(1, 2, 3)
    b.request()
    told = []
    for length in (SECOND, SECOND, SECOND // 2, 3 * SECOND, 2 * SECOND):
        b.receive(Told(1, 3, 8, length), 2)
        told += [effect.length for effect in b.effects if isinstance(effect, Overlapped)]
    assert told == [SECOND, 3 * SECOND]
    assert len([effect for effect in b.everything if isinstance(effect, Lose)]) == 1
    assert [note.kind for note in b.everything if isinstance(note, Note)].count(FactKind.OVERLAP) == 1


def test_only_who_has_a_token_that_is_not_on_its_way_could_be_granted_once_more():
    b = founder(1, 2, 3)
    assert b.machine.may_take_again()
    b.receive(Claim(3, 1, 1, 0, 0, 2), 3)
    assert not b.machine.may_take_again()
    other = Bench(Keeper, me=2, members=(1, 2, 3))
    other.start()
    assert not other.machine.may_take_again()


def lent() -> tuple[Bench, Name]:
    """A keeper's token is in use at node 3."""
    b = founder(1, 2, 3)
    b.receive(Claim(3, 1, 1, 0, 0, 2), 3)
    ((_, commit),) = sent(b, Commit)
    b.receive(Done(commit.nonce, 5), 3)
    token = commit.token
    return b, Name(token.slot, token.epoch, token.stamp, token.id, token.hop + 1)


@pytest.mark.parametrize(
    ("lease_s", "age_s", "at_once"),
    [(1, 2.4, True), (1, 2.6, False), (6, 1.4, True), (6, 1.6, False), (7, 0.4, True), (7, 0.6, False)],
)
def test_what_is_lent_on_one_roll_call_is_over_at_one_time(lease_s: int, age_s: float, at_once: bool):
    b, name = lent()
    b.handle(Reach(Level.MORE))
    b.at(age_s)
    b.receive(Beat(1, name, lease_s * SECOND, False, (), b.now), 3)
    assert [lease.renewed for _, lease in sent(b, Lease)] == [True] * at_once
    assert any(isinstance(effect, CallRoll) for effect in b.effects) is not at_once
    if not at_once:
        b.handle(Reach(Level.MORE))
        assert [lease.renewed for _, lease in sent(b, Lease)] == [True]


def test_who_slept_has_no_lease_any_more():
    """However short it was: meanwhile the keeper may have had another token made."""
    b = founder(1, 2, 3)
    b.request()
    b.handle(Reach(Level.MORE))
    b.at(0.2)
    b.handle(Slept(SECOND // 10))
    assert b.lost == [1]


def test_who_keeps_no_more_watches_no_more_and_says_so():
    b, name = lent()
    b.receive(Beat(1, name, SECOND, False, (), b.now), 3)
    assert ("watch", 0) in b.timers
    b.receive(Keeps(5, 2), 2)
    assert ("watch", 0) not in b.timers
    assert (3, 2) in [(to, keeps.keeper) for to, keeps in sent(b, Keeps)]


def test_who_keeps_no_more_tells_whoever_waits_and_has_forgotten_them_when_it_keeps_again():
    b = founder(1, 2, 3, 4, 5)
    b.receive(Claim(3, 1, 1, 0, 0, 2), 3)
    ((_, commit),) = sent(b, Commit)
    b.receive(Done(commit.nonce, 5), 3)
    for node in (4, 5):  # the one is fed to the token, the other waits
        b.receive(Claim(node, 1, 1, 0, 0, 2), node)
    b.receive(Keeps(5, 2), 2)
    assert {3, 4, 5} <= {to for to, keeps in sent(b, Keeps) if keeps == Keeps(5, 2)}
    name = Name(commit.token.slot, commit.token.epoch, commit.token.stamp, commit.token.id, commit.token.hop + 1)
    b.receive(Legacy(6, (), (name,), (3,), 0), 2)
    assert b.machine.view().queue == ()


def test_who_kept_once_and_proposes_believes_in_no_token_of_then():
    """Who passes that token on just now is asked again, as by any other proposer."""
    b, name = lent()
    b.receive(Beat(1, name, SECOND, False, (), b.now), 3)
    b.receive(Keeps(5, 2), 2)
    b.request()
    b.members.remove(2)
    b.handle(MembersChanged((), (2,)))
    b.fire("round")
    ((to, question),) = sent(b, Propose)
    passing = Report(question.number, True, 5, 2, SECOND, 3, (), (), (), (name,), (name,))
    b.receive(passing, to)
    b.fire("round")
    assert [to for to, _ in sent(b, Propose)] == [3]


def proposer(me: int, *members: int) -> tuple[Bench, Propose]:
    """The keeper, node 1, is gone, and it asks the others."""
    b = Bench(Keeper, me=me, members=(1, *members))
    b.start()
    b.receive(Keeps(1, 1), 1)
    b.request()
    b.members.remove(1)
    b.handle(MembersChanged((), (1,)))
    b.fire("round")
    question = sent(b, Propose)[0][1]
    return b, question


@pytest.mark.parametrize(("answering", "least_s", "most_s"), [((2, 3), 2, 10), ((2,), 20, 40)])
def test_where_nobody_ever_heard_of_a_keeper_who_does_not_answer_is_waited_for_for_long(
    answering: tuple[int, ...], least_s: float, most_s: float
):
    """It may know of one."""
    b = Bench(Keeper, me=1, members=(1, 2, 3))
    b.start()
    b.request()
    while not b.machine.view().tokens:
        b.fire(min(b.timers, key=lambda timer: b.timers[timer]))
        for to, question in sent(b, Propose):
            if to in answering:
                b.receive(Report(question.number, True, 0, 0, 0, 3, (), (), (), (), ()), to)
    assert least_s < b.now_s - START < most_s


@pytest.mark.parametrize("sender", [2, 4])
def test_of_two_that_propose_one_term_the_higher_waits_for_nobody(sender: int):
    b, mine = proposer(3, 2, 3, 4)
    b.receive(Propose(99 << 16, mine.term, ()), sender)
    ((to, report),) = sent(b, Report)
    assert to == sender
    assert report.promised is (sender > 3)


def test_who_another_knows_to_have_left_is_not_asked_as_a_newcomer():
    for left, asked in (((), [77]), ((77,), [])):
        b, mine = proposer(3, 2, 3, 4, 5)
        b.receive(Report(mine.number, False, 1, 1, 1 << 50, 4, (), left, (), (), ()), 2)
        b.receive(Report(mine.number, False, 1, 1, 1 << 50, 4, (77,), (), (), (), ()), 4)
        assert [to for to, _ in sent(b, Propose)] == asked


def test_a_newcomer_that_is_first_home_is_told_at_once_who_keeps():
    b, first_homes = founder(1, 2, 3), []
    for newcomer in range(4, 40):
        b.members.append(newcomer)
        b.handle(MembersChanged((newcomer,), ()))
        told = [to for to, _ in sent(b, Keeps)]
        if newcomer == PrefixRing(b.members).owner(key_of(0, 0)):
            first_homes.append(newcomer)
            assert newcomer in told
    assert first_homes


def test_only_its_own_keeper_bequeaths_to_a_node_that_has_one():
    b = Bench(Keeper, me=1, members=(1, 2, 3))
    b.start()
    b.receive(Keeps(5, 2), 2)
    b.receive(Legacy(6, (), (), (), 0), 3)
    assert sent(b, Keeps) == [(3, Keeps(5, 2))]
    b.receive(Legacy(6, (), (), (), 0), 2)
    assert (2, Keeps(6, 1)) in sent(b, Keeps)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_claim_without_steps_is_answered_where_nobody_keeps(steps: int):
    b = Bench(Keeper, me=3, members=(1, 2, 3, 4))
    b.start()
    b.receive(Claim(4, 1, 0, 0, 0, steps), 4)
    assert [claim.steps for _, claim in sent(b, Claim)] == [0] * steps
    assert [to for to, _ in sent(b, Keeps)] == [4] * (1 - steps)
