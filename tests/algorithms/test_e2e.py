"""`e2e` and `non-e2e`: machines on a bench, machines without one rule, and many mutexes in one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.e2e import E2E, Enqueue, Enqueued, IAmWinner, NotHere, PassToken, TokenTaken, Uncrown
from softmutex.core.algorithms.non_e2e import QUEUE_MOST, NonE2E
from softmutex.core.algorithms.quorum.messages import Bid, Heir, ReleaseVote, RenewVote, RequestVote, Response
from softmutex.core.events import (
    SECOND,
    Effect,
    Event,
    Instant,
    MembersChanged,
    Received,
    Released,
    Send,
    Suspect,
    Withdrawn,
)
from softmutex.core.machine import Algorithm
from softmutex.core.routing import PrefixRing, key_of
from softmutex.sim import nemesis, simulate
from softmutex.sim.many import Rounds, count
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.core.bench import START, Bench

MEMBERS = tuple(range(1, 200))
RING = PrefixRing(MEMBERS)
KEYS = tuple(key_of(0, number) for number in range(5))
HOMES = [RING.owner(key) for key in KEYS]
# A replica, and who asks it by way of whom: two that meet before they are there.
NUMBER = next(n for n in range(5) if len(RING.path(next(node for node in MEMBERS if node not in HOMES), KEYS[n])) > 1)
WAYS = {node: RING.path(node, KEYS[NUMBER]) for node in MEMBERS if node not in HOMES}
BETWEEN, FIRST, SECOND_ONE = next(
    (way[0], one, other)
    for one, way in WAYS.items()
    for other, another in WAYS.items()
    if one != other and len(way) > 1 and way[0] == another[0] and way[0] not in HOMES
)


def bench(machine: type[Algorithm], me: int) -> Bench:
    return Bench(machine, me=me, members=MEMBERS)


def sent(b: Bench, kind: type[Any]) -> list[tuple[int, Any]]:
    return [(each.to, each.message) for each in b.effects if isinstance(each, Send) and isinstance(each.message, kind)]


def winner() -> tuple[Bench, Bid]:
    b = bench(E2E, FIRST)
    b.request(1)
    bid = sent(b, RequestVote)[0][1].bid
    for number in range(3):
        b.receive(Response(number, bid, bid), HOMES[number])
    assert b.granted == [1]
    return b, bid


# --- e2e: the queue is where A runs -----------------------------------------------------------------------------------


def test_who_wins_says_so_on_its_way_to_each_replica():
    b, bid = winner()
    assert [message for _, message in sent(b, IAmWinner)] == [IAmWinner(n, bid, 1, FIRST) for n in range(5)]


def test_on_the_winners_way_whoever_wants_a_vote_is_sent_to_the_winner():
    b = bench(E2E, BETWEEN)
    b.receive(IAmWinner(NUMBER, Bid(1, FIRST), 1, FIRST), FIRST)
    b.receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1), SECOND_ONE)
    assert sent(b, Enqueue) == [(FIRST, Enqueue((Bid(2, SECOND_ONE),)))] and not sent(b, RequestVote)
    b.receive(
        RequestVote(NUMBER, Bid(2, SECOND_ONE), 1, again=True), SECOND_ONE
    )  # it had no answer: to the replica itself
    assert not sent(b, Enqueue) and sent(b, RequestVote)
    b.receive(ReleaseVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    b.receive(RequestVote(NUMBER, Bid(3, SECOND_ONE), 1), SECOND_ONE)
    assert not sent(b, Enqueue) and sent(b, RequestVote)


def test_who_asks_again_for_a_vote_is_not_sent_to_itself_again():
    """A late copy named it the winner, also at replicas that would have voted for it: nobody ran for ten seconds."""
    b = bench(E2E, HOMES[NUMBER])
    b.start(founder=True)
    b.receive(IAmWinner(NUMBER, Bid(1, FIRST), 1, FIRST), FIRST)
    b.receive(RequestVote(NUMBER, Bid(2, FIRST), 1), FIRST)
    assert sent(b, Enqueue) == [(FIRST, Enqueue((Bid(2, FIRST),)))]  # who won knows where the token went
    b.receive(RequestVote(NUMBER, Bid(2, FIRST), 1, again=True), FIRST)
    assert not sent(b, Enqueue) and [to for to, _ in sent(b, Response)] == [FIRST]


def test_the_right_goes_to_the_first_of_the_queue_with_the_rest_of_it():
    b, bid = winner()
    b.receive(Enqueue((Bid(4, 8), Bid(3, 7))), BETWEEN)
    assert sent(b, Enqueued) == [(8, Enqueued(Bid(4, 8), 0)), (7, Enqueued(Bid(3, 7), 0))]
    b.receive(Enqueue((Bid(3, 7),)), BETWEEN)  # by another way
    assert not sent(b, Enqueued)
    b.release(1)
    [(to, token)] = sent(b, PassToken)
    assert to == 7 and token.reign == bid and token.queue == (Bid(4, 8),) and not sent(b, ReleaseVote)
    b.fire("pass")
    assert sent(b, PassToken)
    b.receive(TokenTaken(bid, 1), 7)
    assert "pass" not in b.timers


def test_who_waits_runs_with_the_token_and_ends_the_reign_where_it_began():
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    token = PassToken(Bid(1, FIRST), 3, mine, FIRST, 4 * SECOND, 0b111)
    b.receive(token, FIRST)
    assert b.granted == [1] and sent(b, TokenTaken) == [(FIRST, TokenTaken(Bid(1, FIRST), 3))]
    b.receive(token, FIRST)  # once more
    assert b.granted == [] and sent(b, TokenTaken)
    b.release(1)
    assert sent(b, Uncrown) == [(FIRST, Uncrown(Bid(1, FIRST)))]


def test_who_gets_the_token_gives_back_the_votes_that_it_has_of_its_own():
    """The reign has its own: with both, nobody else would get one until this turn is over."""
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    b.receive(Response(0, mine, mine), HOMES[0])
    b.receive(PassToken(Bid(1, FIRST), 3, mine, FIRST, SECOND, 0b111), FIRST)
    assert [vote.replica for _, vote in sent(b, ReleaseVote) if vote.bid == mine] == [0]


def test_a_token_with_little_lease_left_is_renewed_before_a_runs():
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    reign = Bid(1, FIRST)
    b.receive(PassToken(reign, 3, mine, FIRST, SECOND // 2, 0b111), FIRST)
    assert b.granted == [] and [message.turn for _, message in sent(b, RenewVote)] == [3] * 5
    for number in range(3):
        assert b.granted == []
        b.receive(Response(number, reign, reign), HOMES[number])
    assert b.granted == [1]


def test_a_token_whose_votes_are_not_renewed_is_given_up():
    """As was seen where a fifth of the messages were lost: it waited for ever for votes that it had, of long ago."""
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    reign = Bid(1, FIRST)
    b.receive(PassToken(reign, 3, mine, FIRST, SECOND // 2, 0b111), FIRST)
    for number in range(2):
        b.receive(Response(number, reign, reign), HOMES[number])
    asked: list[Bid] = []
    while not asked and b.now_s < START + 60:
        b.fire("again")
        asked += [message.bid for _, message in sent(b, RequestVote)]
    assert asked == [mine] * 5


def test_who_wants_it_no_more_gives_the_token_back_and_the_next_one_gets_it():
    b = bench(E2E, SECOND_ONE)
    b.receive(PassToken(Bid(1, FIRST), 3, Bid(2, SECOND_ONE), FIRST, SECOND, 0b111), FIRST)
    assert sent(b, NotHere) == [(FIRST, NotHere(Bid(2, SECOND_ONE)))]
    b, _ = winner()
    b.receive(Enqueue((Bid(4, 8), Bid(3, 7))), BETWEEN)
    b.release(1)
    b.receive(NotHere(Bid(3, 7)), 7)
    assert [(to, token.turn) for to, token in sent(b, PassToken)] == [(8, 2)]


def test_to_another_one_it_goes_only_when_the_first_is_known_to_be_gone():
    b, _ = winner()
    b.receive(Enqueue((Bid(4, 8), Bid(3, 7))), BETWEEN)
    b.release(1)
    b.members.remove(7)
    b.handle(MembersChanged((), (7,)))
    assert [to for to, _ in sent(b, PassToken)] == [8]


def test_the_next_one_is_suspected_where_it_does_not_say_again_and_again_that_it_has_the_token():
    b, _ = winner()
    b.receive(Enqueue((Bid(3, 7),)), BETWEEN)
    b.release(1)
    suspected = []
    for _ in range(6):
        b.fire("pass")
        assert [to for to, _ in sent(b, PassToken)] == [7]
        suspected.append([each.node for each in b.all_of(Suspect)])
    assert suspected == [[], [], [7]] * 2


def test_who_waits_in_a_queue_asks_there_for_its_place_and_then_the_replicas():
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    b.receive(Enqueued(mine, 1), FIRST)
    assert b.due_in("again") == 4.0 * 1.5
    b.fire("again")
    assert sent(b, Enqueue) == [(FIRST, Enqueue((mine,), 0, True))] and not sent(b, RequestVote)
    b.fire("again")
    assert len(sent(b, RequestVote)) == 5


def test_a_replica_renews_no_turn_after_a_later_one():
    b = bench(E2E, HOMES[NUMBER])
    b.receive(RenewVote(NUMBER, Bid(1, FIRST), 1, True, 5, 7), 7)
    assert sent(b, Response)
    b.receive(RenewVote(NUMBER, Bid(1, FIRST), 1, True, 4, 8), 8)
    assert not sent(b, Response)


def test_the_vote_for_a_reign_stays_when_the_node_that_began_it_has_gone():
    """Who came when it had passed the token on, and got its replica, had not heard of the reign: two ran at once."""
    b = bench(E2E, HOMES[NUMBER])
    b.receive(Heir(NUMBER, Bid(1, FIRST), 4 * SECOND), BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1), SECOND_ONE)
    b.members.remove(FIRST)
    b.handle(MembersChanged((), (FIRST,)))
    assert SECOND_ONE not in {message.owner.node for _, message in sent(b, Response)}


# --- non-e2e: partial queues on the way -------------------------------------------------------------------------------


def test_a_later_request_waits_where_it_meets_the_way_of_an_earlier_one():
    b = bench(NonE2E, BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    assert sent(b, RequestVote)
    b.receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1), SECOND_ONE)
    assert not sent(b, RequestVote)
    assert sent(b, Response) == [(SECOND_ONE, Response(NUMBER, Bid(2, SECOND_ONE), Bid(1, FIRST), 1, 2))]
    b.receive(ReleaseVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    [(_, release)] = sent(b, ReleaseVote)
    assert release.queue == (Bid(2, SECOND_ONE),)


def test_where_too_many_wait_the_next_one_goes_on_and_the_others_are_told_nothing():
    """All were sent on, and told where they waited now, with each request that came: 16,506 messages for a turn of a
    thousand members that all wanted it."""
    b = bench(NonE2E, BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    *others, last = [Bid(stamp, 1000 + stamp) for stamp in range(2, QUEUE_MOST + 3)]
    for bid in others:
        b.receive(RequestVote(NUMBER, bid, 1), SECOND_ONE)
        assert not sent(b, RequestVote)
    b.receive(RequestVote(NUMBER, last, 1), SECOND_ONE)
    assert [message.bid for _, message in sent(b, RequestVote)] == [last] and not sent(b, Response)
    b.receive(ReleaseVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    [(_, release)] = sent(b, ReleaseVote)
    assert len(release.queue) == QUEUE_MOST


def test_an_earlier_request_is_not_hidden_behind_a_later_one():
    b = bench(NonE2E, BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(5, FIRST), 1), FIRST)
    b.receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1), SECOND_ONE)
    assert sent(b, RequestVote)


def test_who_waits_goes_on_when_the_one_before_it_has_not_passed_by_for_a_lease():
    b = bench(NonE2E, BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    b.receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1), SECOND_ONE)
    b.at(6.0).receive(RequestVote(NUMBER, Bid(2, SECOND_ONE), 1, again=True), SECOND_ONE)
    assert [message.bid for _, message in sent(b, RequestVote)] == [Bid(2, SECOND_ONE)]


def test_what_the_releases_bring_is_the_replicas_queue():
    b = bench(NonE2E, HOMES[NUMBER])
    b.receive(RenewVote(NUMBER, Bid(1, FIRST), 1, True), FIRST)
    b.receive(ReleaseVote(NUMBER, Bid(1, FIRST), 1, (Bid(3, 7), Bid(2, 8))), BETWEEN)
    assert [(to, message.owner) for to, message in sent(b, Response)] == [(8, Bid(2, 8))]


# --- in the simulator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["e2e", "non-e2e"])
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 6])
def test_they_keep_what_they_claim_in_any_weather(algorithm: str, seed: int):
    result = simulate(nemesis.draw(seed, (2, 10), algorithm))
    assert not result.violations, result.violations


class BelievesEachVote(NonE2E):
    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(sender, Response() as response):
                event = Received(sender, response._replace(owner=response.bid))
        return super().handle(event, now)


class KeepsTheToken(E2E):
    """T2 broken: who sent it to one sends it to the next as well."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = list(super().handle(event, now))
        for token in [each.message for each in effects if isinstance(each, Send)]:
            if isinstance(token, PassToken) and token.queue and isinstance(event, Released):
                other = token.queue[0]
                effects.append(Send(other.node, token._replace(bid=other, queue=token.queue[1:])))
        return effects


@pytest.mark.parametrize("broken", [BelievesEachVote, KeepsTheToken])
def test_a_machine_without_one_rule_is_found(broken: type[Algorithm]):
    busy = Scenario(broken, 9, 60.0, op_s=1.0, delay_s=0.05, bound_s=10.0)
    assert "overlap" in {violation.law for violation in simulate(busy).violations}


def test_under_load_a_hand_over_costs_e2e_less_than_votes_do():
    busy = Scenario("sigma", 20, 200.0, op_s=2.0, delay_s=0.02)
    each = {name: simulate(busy.but(algorithm=name)).messages_per_acquisition for name in ("sigma", "e2e")}
    assert each["e2e"] < each["sigma"] / 1.3


@pytest.mark.parametrize("algorithm", ["sigma", "e2e", "non-e2e"])
def test_many_mutexes_in_one_group_exclude_each_for_itself(algorithm: str):
    counted = count(Rounds(algorithm, nodes=100, mutexes=10, rounds=10))
    assert counted.asked == 200 and counted.granted > 20
    assert counted.overlaps == 0
    again = count(Rounds(algorithm, nodes=100, mutexes=10, rounds=10))
    assert counted.sent == again.sent and counted.load == again.load


def test_a_few_that_make_all_requests_release_one_of_what_they_hold_a_round():
    def granted(requesters: int) -> int:
        return count(Rounds("sigma", nodes=60, mutexes=5, rounds=10, requests=10, requesters=requesters)).granted

    assert 5 < granted(1) <= 5 + 10 < granted(0)


@pytest.mark.parametrize("algorithm", ["sigma", "e2e", "non-e2e"])
def test_they_go_on_while_a_tenth_of_the_group_dies_in_each_round(algorithm: str):
    counted = count(Rounds(algorithm, nodes=60, mutexes=5, rounds=10, requests=10, churn=12, lease_rounds=2))
    assert counted.granted > 10 and counted.overlaps == 0


def test_who_wants_it_no_more_gives_back_also_the_votes_that_are_on_their_way():
    """It may leave at once, and who has left gives nothing back: each such vote was nobody's for a lease."""
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    b.handle(Withdrawn(1))
    assert [message.replica for _, message in sent(b, ReleaseVote)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [3, 6])
def test_who_wants_it_no_more_ends_nobodys_turn(seed: int):
    """It had passed the token on, asked anew and gave up: by giving that bid back to replicas that had not voted for it
    it ended its older one, under which the next in turn ran, and replicas voted for a second holder."""
    assert not simulate(scenario("churn-30", "e2e", seed, nodes_max=9)).violation_count


def test_withdrawn_is_withdrawn():
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    b.handle(Withdrawn(1))
    b.receive(PassToken(Bid(1, FIRST), 3, mine, FIRST, 4 * SECOND, 0b111), FIRST)
    assert b.granted == [] and sent(b, NotHere)


def test_of_those_who_ask_where_a_runs_so_many_wait_there():
    b, _ = winner()
    for node in range(100, 100 + QUEUE_MOST + 5):
        b.receive(Enqueue((Bid(node, node),)), node)
    b.release(1)
    ((to, token),) = sent(b, PassToken)
    assert to == 100 and len(token.queue) == QUEUE_MOST - 1


def test_who_waits_on_the_way_and_asks_by_a_later_bid_waits_once():
    b = bench(NonE2E, BETWEEN)
    b.receive(RequestVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    for stamp in (2, 3):
        b.receive(RequestVote(NUMBER, Bid(stamp, 1000), 1), SECOND_ONE)
    b.receive(ReleaseVote(NUMBER, Bid(1, FIRST), 1), FIRST)
    [(_, release)] = sent(b, ReleaseVote)
    assert release.queue == (Bid(3, 1000),)


def test_a_token_is_renewed_by_as_many_as_a_reign_needs_though_the_others_voted_anew():
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    reign, other = Bid(1, FIRST), Bid(1, 3)
    b.receive(PassToken(reign, 3, mine, FIRST, SECOND // 2, 0b111), FIRST)
    for number, whose in ((3, other), (4, other), (0, reign), (1, reign), (2, reign)):
        assert b.granted == []
        b.receive(Response(number, reign, whose), HOMES[number])
    assert b.granted == [1]


@pytest.mark.parametrize(("crier", "cries"), [(FIRST, 0), (1000, 5)])
def test_who_gets_a_token_whose_crier_is_gone_says_to_all_replicas_where_it_is(crier: int, cries: int):
    b = bench(E2E, SECOND_ONE)
    b.request(1)
    mine = sent(b, RequestVote)[0][1].bid
    b.receive(PassToken(Bid(1, FIRST), 3, mine, crier, 4 * SECOND, 0b111), FIRST)
    assert [won.crier for _, won in sent(b, IAmWinner)] == [SECOND_ONE] * cries
