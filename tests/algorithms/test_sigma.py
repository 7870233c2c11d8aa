"""`sigma`: one machine on a bench, machines without one rule, and what an entry costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.quorum.messages import (
    NO_BID,
    Bid,
    Heir,
    ReleaseVote,
    RenewVote,
    RequestVote,
    Response,
    Untouched,
    Yield,
)
from softmutex.core.algorithms.sigma import Sigma
from softmutex.core.errors import ConfigError
from softmutex.core.events import (
    Effect,
    Event,
    FactKind,
    Instant,
    Leaving,
    MembersChanged,
    Received,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Withdrawn,
)
from softmutex.core.routing import PrefixRing, key_of
from softmutex.sim import nemesis, simulate
from softmutex.sim.faults import Churn, Fault
from softmutex.sim.scenario import Scenario
from tests.core.bench import Bench

KEYS = tuple(key_of(0, number) for number in range(5))
MEMBERS = tuple(range(1, 9))
HOMES = [PrefixRing(MEMBERS).owner(key) for key in KEYS]
HOME = HOMES[0]  # has the first replica
CLIENT = next(node for node in MEMBERS if node not in HOMES)  # has none
NEWCOMER = next(node for node in range(100, 10_000) if PrefixRing([*MEMBERS, node]).owner(KEYS[0]) == node)


def bench(me: int, members: tuple[int, ...] = MEMBERS, **options: Any) -> Bench:
    return Bench(Sigma, me=me, members=members, **options)


def sent(b: Bench, kind: type[Any]) -> list[Any]:
    return [effect.message for effect in b.effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def told(b: Bench) -> list[tuple[int, Bid]]:
    """(to whom, who has the vote)"""
    found = [effect for effect in b.effects if isinstance(effect, Send) and isinstance(effect.message, Response)]
    return [(each.to, each.message.owner) for each in found]


def replica() -> Bench:
    """A node with the first replica, which knows that there is nothing to know."""
    b = bench(HOME)
    b.start()
    b.receive(Heir(0, NO_BID, 0))
    return b


# --- who wants it -----------------------------------------------------------------------------------------------------


def test_it_asks_each_replica_and_runs_with_the_votes_of_most():
    b = bench(CLIENT)
    b.request(1)
    assert [each.replica for each in sent(b, RequestVote)] == [0, 1, 2, 3, 4]
    bid = sent(b, RequestVote)[0].bid
    b.receive(Response(0, bid, bid), HOMES[0])
    b.receive(Response(1, bid, bid), HOMES[1])
    assert b.granted == []
    b.receive(Response(2, bid, bid), HOMES[2])
    assert b.granted == [1]
    b.release(1)
    assert [each.replica for each in sent(b, ReleaseVote)] == [0, 1, 2, 3, 4]


def test_where_nobody_can_win_it_yields_what_it_has_and_old_votes_count_no_more():
    b = bench(CLIENT)
    b.request(1)
    bid = sent(b, RequestVote)[0].bid
    for number, owner in enumerate((bid, bid, Bid(1, 98), Bid(1, 98), Bid(1, 99))):
        b.receive(Response(number, bid, owner), HOMES[number])
    assert [each.replica for each in sent(b, Yield)] == [0, 1]
    later = sent(b, Yield)[0].bid
    for number in (0, 1):
        b.receive(Response(number, bid, bid), HOMES[number])  # said before the yield came
    b.receive(Response(2, bid, bid), HOMES[2])  # this one was not yielded
    assert b.granted == []
    for number in (0, 1):
        b.receive(Response(number, later, later), HOMES[number])
    assert b.granted == [1]


def test_where_another_has_won_it_comes_again_when_its_turn_should_be():
    b = bench(CLIENT)
    b.request(1)
    bid = sent(b, RequestVote)[0].bid
    for number in range(3):
        b.receive(Response(number, bid, Bid(1, 99), ahead=2), HOMES[number])
    assert b.due_in("again") == 4.0 * 2.5
    b.fire("again")
    assert [each.replica for each in sent(b, RequestVote)] == [0, 1, 2, 3, 4]


def test_a_vote_for_what_is_over_is_given_back():
    b = bench(CLIENT)
    b.request(1)
    bid = sent(b, RequestVote)[0].bid
    b.handle(Withdrawn(1))
    b.receive(Response(0, bid, bid), HOMES[0])
    assert sent(b, ReleaseVote) == [ReleaseVote(0, bid, 0)]


def test_a_holder_whose_votes_are_not_renewed_is_told_before_they_are_others():
    b = bench(CLIENT)
    b.request(1)
    bid = sent(b, RequestVote)[0].bid
    for number in range(3):
        b.receive(Response(number, bid, bid), HOMES[number])
    assert b.due_in("lapse") == 4.5
    b.fire("lapse")
    assert b.lost == [1]


def test_who_hears_nothing_of_one_replica_yields_where_the_others_differ():
    """Nobody did: two votes and the silent one might have been a majority. Five processes stood still."""
    b = bench(CLIENT)
    b.request(1)
    mine, other, third = sent(b, RequestVote)[0].bid, Bid(1, 98), Bid(1, 99)
    for _ in range(4):
        for number, owner in enumerate((mine, mine, other, third)):
            b.receive(Response(number, mine, owner), HOMES[number])
        yielded = [message.replica for message in sent(b, Yield)]
        if yielded:
            break
        b.fire("again")
    assert yielded == [0, 1]


def test_who_begins_later_than_it_was_made_knows_who_came_and_went_meanwhile():
    """Nobody tells a machine that has not begun: it asked a replica at a node that had gone, for ever."""
    b = bench(CLIENT)
    b.members.remove(HOME)
    b.start()
    b.request(1)
    heir = PrefixRing(b.members).owner(KEYS[0])
    b.fire("again")
    b.fire("again")
    asked = {each.to for each in b.everything if isinstance(each, Send)}
    assert HOME not in asked and heir in {*asked, CLIENT}


def test_votes_that_two_could_have_are_refused():
    with pytest.raises(ConfigError, match="give 3 to 5"):
        bench(1, votes=2)


# --- who votes --------------------------------------------------------------------------------------------------------


def test_a_replica_votes_once_and_queues_the_others_by_their_stamps():
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    assert told(b) == [(2, Bid(5, 2))]
    b.receive(RequestVote(0, Bid(7, 3), 1), 3)
    b.receive(RequestVote(0, Bid(6, 4), 1), 4)
    assert told(b) == [(4, Bid(5, 2))]
    b.receive(ReleaseVote(0, Bid(5, 2), 1), 2)
    assert told(b) == [(4, Bid(6, 4))]


def test_who_gives_back_a_vote_that_it_has_not_waits_for_it_as_if_it_had_asked():
    """Its question got lost, or the replica has forgotten it."""
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    b.receive(Yield(0, Bid(6, 3), 1), 3)
    assert told(b) == [(3, Bid(5, 2))]
    b.receive(ReleaseVote(0, Bid(5, 2), 1), 2)
    assert told(b) == [(3, Bid(6, 3))]


def test_who_gets_a_key_is_quiet_for_a_lease_and_then_votes_for_the_first():
    b = bench(HOME)
    b.start()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    assert told(b) == []
    b.fire(("lease", 0))
    assert told(b) == [(2, Bid(5, 2))] and b.now_s - b.at(5.0).now_s == 0


def test_who_gets_a_key_is_told_what_was_before():
    b = bench(HOME)
    b.start()
    b.receive(Heir(0, Bid(4, 3), 2_000_000_000))
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    assert told(b) == [(2, Bid(4, 3))]
    assert b.due_in(("lease", 0)) == 2.0


def test_a_holder_tells_who_got_a_key_of_its_vote_but_only_if_it_had_it():
    """Another may count on it: as was seen where many came and went at once."""
    b = bench(HOME)
    b.start()
    b.receive(RenewVote(0, Bid(4, 3), 1, known=False), 3)
    assert told(b) == []
    b.receive(RenewVote(0, Bid(5, 2), 1, known=True), 2)
    assert told(b) == [(2, Bid(5, 2))]


def test_who_loses_a_key_tells_its_heir():
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    b.members.append(NEWCOMER)
    b.handle(MembersChanged((NEWCOMER,), ()))
    assert [(send.to, send.message.owner) for send in b.all_of(Send)] == [(NEWCOMER, Bid(5, 2))]


def test_who_is_quiet_yet_and_loses_the_key_tells_its_heir_for_how_long():
    """Each began a lease of its own, and where keys moved more often than that nobody ever voted."""
    b = bench(HOME)
    b.start()
    b.at(3.0)
    b.members.append(NEWCOMER)
    b.handle(MembersChanged((NEWCOMER,), ()))
    (heir,) = [each for each in sent(b, Untouched) if each.replica == 0]
    assert heir.left == 2_000_000_000
    c = bench(NEWCOMER, (*MEMBERS, NEWCOMER))
    c.start()
    c.receive(heir, HOME)
    assert c.due_in(("lease", 0)) == 2.0


def comes_and_goes(b: Bench, node: int = NEWCOMER) -> None:
    for joined, left in (((node,), ()), ((), (node,))):
        b.members[:] = sorted({*b.members, *joined} - {*left})
        b.handle(MembersChanged(joined, left))


def test_a_key_that_comes_back_from_a_newcomer_that_was_quiet_stands_as_it_did():
    """Newcomers left before a message took its way, and each time the key was quiet for a lease more."""
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    comes_and_goes(b)
    b.receive(RequestVote(0, Bid(6, 3), 1), 3)
    assert told(b) == []
    b.receive(Untouched(0, 4_000_000_000), NEWCOMER)
    b.receive(RequestVote(0, Bid(7, 4), 1), 4)
    assert told(b) == [(4, Bid(5, 2))]
    b.receive(ReleaseVote(0, Bid(5, 2), 1), 2)
    assert told(b) == [(3, Bid(6, 3))]


def test_that_another_one_was_quiet_says_nothing_of_the_one_that_had_the_key():
    b = replica()
    comes_and_goes(b)
    b.receive(Untouched(0, 3_000_000_000), 3)
    b.receive(RequestVote(0, Bid(6, 3), 1), 3)
    assert told(b) == []
    assert b.due_in(("lease", 0)) == 3.0


def test_only_who_has_a_key_for_the_first_time_can_say_that_nobody_voted_there():
    b = bench(NEWCOMER, (*MEMBERS, NEWCOMER))
    b.start()
    b.handle(Leaving())
    assert [message.replica for message in sent(b, Untouched)] == [0]
    among = [*MEMBERS, NEWCOMER]
    nearer = next(n for n in range(NEWCOMER + 1, 999_999) if PrefixRing([*among, n]).owner(KEYS[0]) == n)
    b = bench(NEWCOMER, (*MEMBERS, NEWCOMER))
    b.start()
    comes_and_goes(b, nearer)
    b.handle(Leaving())
    assert not sent(b, Untouched) and [message.quiet for message in sent(b, Heir)] == [True]


def test_what_an_heir_should_know_is_passed_on_to_whoever_has_come_since():
    leaver = next(node for node in MEMBERS if node not in (HOME, NEWCOMER))
    b = bench(HOME, (*MEMBERS, NEWCOMER))
    b.start()
    b.receive(Heir(0, Bid(4, 3), 2_000_000_000), leaver)
    assert [(each.to, each.message.owner) for each in b.all_of(Send)] == [(NEWCOMER, Bid(4, 3))]
    b.receive(Heir(0, Bid(4, 3), 2_000_000_000), NEWCOMER)
    assert not b.all_of(Send), "it leaves, and knows that better"


def test_the_vote_of_one_who_is_gone_is_the_next_ones():
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    b.receive(RequestVote(0, Bid(6, 4), 1), 4)
    b.members.remove(2)
    b.handle(MembersChanged((), (2,)))
    assert told(b) == [(4, Bid(6, 4))]


def test_what_comes_late_is_over():
    b = replica()
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    b.receive(ReleaseVote(0, Bid(5, 2), 1), 2)
    b.receive(RequestVote(0, Bid(5, 2), 1), 2)
    assert told(b) == []


# --- in the simulator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 6])
def test_it_keeps_what_it_claims_in_any_weather(seed: int):
    result = simulate(nemesis.draw(seed, (2, 12), "sigma"))
    assert not result.violations, result.violations


class IsNeverQuiet(Sigma):
    """S2 without its half about keys: whoever gets one votes at once."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = list(super().handle(event, now))
        for name in [each.timer for each in effects if isinstance(each, SetTimer) and isinstance(each.timer, tuple)]:
            effects += super().handle(Received(1, Heir(name[1], NO_BID, 0)), now)
        return effects


class BelievesEachVote(Sigma):
    """Whoever has the vote of a replica: it is ours."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(sender, Response() as response):
                event = Received(sender, response._replace(owner=response.bid))
        return super().handle(event, now)


@pytest.mark.parametrize(("broken", "faults"), [(IsNeverQuiet, (Churn(10.0),)), (BelievesEachVote, ())])
def test_a_machine_without_one_rule_is_found(broken: type[Sigma], faults: tuple[Fault, ...]):
    busy = Scenario(broken, 5, 200.0, op_s=8.0, delay_s=0.05, bound_s=10.0, faults=faults)
    assert "overlap" in {violation.law for violation in simulate(busy).violations}
    assert not simulate(busy.but(algorithm="sigma")).violations


def test_a_quiet_entry_costs_a_way_there_an_answer_and_a_way_to_release_for_each_replica():
    result = simulate(Scenario("sigma", 10, 2000.0, op_s=0.5, demand="poisson:0.02", delay_s=0.01))
    assert result.acquisitions > 20
    assert set(result.sent) == {"REQUEST_VOTE", "RESPONSE", "RELEASE_VOTE", "HEIR"}
    assert result.messages_per_acquisition < 5 * (2 * 2 + 1)


def test_who_stays_for_a_moment_hands_back_what_it_was_told():
    """As was seen where newcomers live for half a second: nobody had heard of them but those who told them."""
    lives = nemesis.draw(103, (2, 40), "sigma")
    assert not simulate(lives).violations


@pytest.mark.parametrize("algorithm", ["sigma", "e2e", "non-e2e"])
def test_newcomers_that_go_before_a_message_takes_its_way_keep_nobody_waiting(algorithm: str):
    """One each 1.2 s, for 0.16 s, and a message takes 0.5 s. Nobody ran for 17 s, again and again: each key that moved
    was quiet for a lease where it went, and for one where it came back to; and by `e2e` a vote for one that had gone,
    and had given back only those that it knew of, stood for a lease."""
    assert not simulate(nemesis.draw(9004, (2, 16), algorithm)).violations


def test_a_lost_answer_of_one_replica_stops_nobody():
    assert not simulate(nemesis.draw(222, (2, 40), "sigma")).violations


def test_a_node_is_isolated_where_fewer_replicas_can_be_heard_than_it_needs():
    """Three of five: two that are silent are none too many, and one of three that speaks again is enough."""
    members = tuple(range(1, 100))
    homes = list(dict.fromkeys(PrefixRing(members).owner(key) for key in KEYS))
    assert len(homes) == 5
    b = bench(next(node for node in members if node not in homes), members)
    b.start()
    told = []
    for event in (*map(Silenced, homes[:4]), *map(Returned, homes[:4])):
        b.handle(event)
        told.append((bool(b.noted(FactKind.ISOLATED)), bool(b.noted(FactKind.REJOINED))))
    no, isolated, rejoined = (False, False), (True, False), (False, True)
    assert told == [no, no, isolated, no, no, rejoined, no, no]
