"""`ring-search`, `binary-search`: one machine on a bench, every interleaving of a few, what is broken on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.algorithms.binary_search import BinarySearch
from softmutex.core.algorithms.remake import NEVER_SEEN, Clear, Denied, Here, Inquire, Label, Phase, Sighting
from softmutex.core.algorithms.ring_search import RingSearch
from softmutex.core.algorithms.ring_words import Anybody, Gimme, Missed, Trapped
from softmutex.core.at_once import STANDING
from softmutex.core.errors import ConfigError
from softmutex.core.events import (
    NOBODY,
    Effect,
    Event,
    FactKind,
    Fired,
    Grant,
    Instant,
    Leaving,
    MembersChanged,
    Received,
    Send,
    SetTimer,
    Ticket,
    Withdrawn,
)
from softmutex.core.messages import Accept, Commit, Offer, Refuse, Void
from softmutex.sim import nemesis, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import scenario
from tests.algorithms.explorer import Found, explore
from tests.core.bench import START, Bench, token

EIGHT = tuple(range(1, 9))


def bench(machine: type[RingSearch] = RingSearch, me: int = 5, **options: Any) -> Bench:
    return Bench(machine, me=me, members=EIGHT, **options)


def sent(b: Bench, kind: type) -> list[tuple[int, Any]]:
    return [(each.to, each.message) for each in b.effects if isinstance(each, Send) and isinstance(each.message, kind)]


def gimme(node: int, request: int = 1, seen: int = 0, **more: Any) -> Gimme:
    return Gimme(node, request, more.pop("low", NOBODY), more.pop("high", NOBODY), Sighting(1, seen), **more)


def asked(*nodes: int) -> tuple[Ticket, ...]:
    return tuple(Ticket(node, 1) for node in nodes)


# --- looking for it ---------------------------------------------------------------------------------------------------


def test_ring_search_goes_from_neighbour_to_neighbour_up_to_the_searcher():
    b = bench()
    b.request(1)
    assert [to for to, _ in sent(b, Gimme)] == [6]
    b = bench()
    b.receive(gimme(1), 4)
    assert [(to, message.steps) for to, message in sent(b, Gimme)] == [(6, 1)]
    b.receive(gimme(6), 4)
    assert sent(b, Gimme) == []


@pytest.mark.parametrize(("seen", "to"), [(3, 7), (99, 3)])
def test_binary_search_jumps_half_as_far_to_where_the_token_must_be(seen: int, to: int):
    b = bench(BinarySearch)
    b.visit(token(0, hop=9))
    b.fire("rest")  # and on it goes
    b.receive(gimme(1, seen=seen, low=1, high=1), 1)
    assert [to for to, _ in sent(b, Gimme)] == [to]


def test_binary_search_begins_half_way_round_and_ends_where_nothing_is_left_to_halve():
    b = bench(BinarySearch)
    b.visit(token(0, hop=9))
    b.fire("rest")
    b.request(1)
    assert [to for to, _ in sent(b, Gimme)] == [1]
    b.receive(gimme(1, low=4, high=6, seen=3), 4)
    assert sent(b, Gimme) == []


def test_a_directed_search_is_answered_and_the_searcher_asks_the_next():
    b = bench(search="directed")
    b.receive(gimme(1), 1)
    assert sent(b, Missed) == [(1, Missed(1, NEVER_SEEN))]
    b.request(1)
    b.receive(Missed(1, NEVER_SEEN), 6)
    assert [(to, message.node) for to, message in sent(b, Gimme)] == [(7, 5)]


def test_a_node_with_a_search_of_its_own_keeps_others_back_until_it_was_served():
    b = bench()
    b.request(1)
    b.receive(gimme(1), 4)
    assert sent(b, Gimme) == []
    b.visit(token(0)._replace(queue=(Ticket(5, 1), Ticket(3, 0))), 3)
    assert b.granted == [1]
    b.release(1)
    assert [(to, message.node) for to, message in sent(b, Gimme)] == [(3, 1)]
    b = bench(throttle=False)
    b.request(1)
    b.receive(gimme(1), 4)
    assert [to for to, _ in sent(b, Gimme)] == [6]


def test_who_withdraws_sends_on_what_it_kept_back():
    b = bench()
    b.request(1)
    b.receive(gimme(1), 4)
    b.handle(Withdrawn(1))
    assert [(to, message.node) for to, message in sent(b, Gimme)] == [(6, 1)]


def test_pushing_the_holder_asks_round_and_who_wants_the_token_answers():
    b = bench(initiative="push")
    b.visit(token(0))
    assert sent(b, Anybody) == [(6, Anybody(5, 8))]
    b = bench(initiative="push")
    b.receive(Anybody(2, 8), 4)
    assert sent(b, Anybody) == [(6, Anybody(2, 8))]
    b.request(1)
    assert sent(b, Gimme) == []
    b.receive(Anybody(2, 8), 4)
    assert [to for to, _ in sent(b, Gimme)] == [2]
    half = bench(BinarySearch, initiative="both")
    half.receive(Anybody(2, 8), 4)
    assert sent(half, Anybody) == [(1, Anybody(2, 4))]


# --- lending it -------------------------------------------------------------------------------------------------------


def test_the_token_goes_to_whoever_set_a_trap_is_used_there_and_returns():
    lender = bench(me=5)
    lender.receive(gimme(1), 4)
    lender.visit(token(0))
    ((to, lent),) = lender.passed
    assert to == 1 and lent.queue == (Ticket(1, 1), Ticket(5, 0))
    borrower = bench(me=1)
    borrower.request(1)
    borrower.visit(lent, 5)
    assert borrower.granted == [1]
    borrower.release(1)
    ((to, back),) = borrower.passed
    assert to == 5 and back.queue == (Ticket(5, 0), Ticket(1, 1))  # and it tells that 1 was served


@pytest.mark.parametrize(("discipline", "borrowers"), [("fair", (3,)), ("fast", (3, 1, 8))])
def test_it_is_lent_in_the_order_of_the_traps(discipline: str, borrowers: tuple[int, ...]):
    b = bench(discipline=discipline)
    for node in (3, 1, 8):
        b.receive(gimme(node), 4)
    b.visit(token(0))
    ((to, lent),) = b.passed
    assert to == 3 and lent.queue == (*asked(*borrowers), Ticket(5, 0))


def test_a_token_that_is_lent_is_asked_for_at_its_lender():
    b = bench(me=1)
    b.request(1)
    b.visit(token(0)._replace(queue=(Ticket(1, 1), Ticket(5, 0))), 5)
    b.receive(gimme(3), 8)
    assert [to for to, _ in sent(b, Gimme)] == [5]


def test_who_lends_it_says_so_to_whoever_asks_again():
    b = bench()
    b.receive(gimme(1), 4)
    b.visit(token(0))
    b.receive(gimme(3, again=True), 4)
    assert sent(b, Trapped) == [(3, Trapped(1))] and sent(b, Gimme) == []


def test_the_token_tells_who_was_served_and_stale_traps_go():
    b = bench()
    b.receive(gimme(1), 4)
    b.visit(token(0)._replace(queue=asked(1)))
    assert b.passed == []


def test_inverse_clean_up_takes_the_way_of_the_search_back():
    b = bench(cleanup="inverse")
    b.receive(gimme(1), 4)
    b.visit(token(0)._replace(queue=(Ticket(1, 1), Ticket(7, 0))), 6)
    assert [to for to, _ in b.passed] == [4]


def test_where_the_lender_is_gone_the_token_goes_round_from_the_borrower():
    b = bench(me=1)
    b.request(1)
    b.visit(token(0)._replace(queue=(Ticket(1, 1), Ticket(5, 0))), 5)
    b.members.remove(5)
    b.handle(MembersChanged((), (5,)))
    b.release(1)
    b.fire("rest")
    assert [to for to, _ in b.passed] == [2]


def test_who_takes_the_place_of_a_lender_that_is_gone_waits_for_nothing_by_it():
    b = bench(me=1)
    b.members.remove(5)
    b.visit(token(0)._replace(queue=(Ticket(1, 1), Ticket(3, 1), Ticket(5, 0))), 2)
    ((to, lent),) = b.passed
    assert to == 3 and lent.queue == (Ticket(3, 1), Ticket(1, 0))


def test_a_token_that_came_home_is_lent_no_more():
    """Searches went no further than where it was once."""
    b = bench()
    b.receive(gimme(1), 4)
    b.visit(token(0))
    b.visit(token(0, hop=9)._replace(queue=(Ticket(5, 0), Ticket(1, 1))), 1)
    b.fire("rest")
    b.receive(gimme(3), 4)
    assert [to for to, _ in sent(b, Gimme)] == [6]


# --- going round ------------------------------------------------------------------------------------------------------


def test_it_goes_round_ever_more_slowly_while_nobody_wants_it():
    b = bench(rest=1.0, slowest=5.0)
    rests = []
    for hop in range(0, 40, 8):
        b.visit(token(0, hop=hop), 4)
        rests.append(b.due_in("rest"))
        b.fire("rest")
        assert [to for to, _ in b.passed] == [6]
    assert rests == [1.0, 2.0, 4.0, 5.0, 5.0]
    b.receive(gimme(1, again=True), 4)
    b.visit(token(0, hop=90)._replace(queue=asked(1)), 4)
    assert b.due_in("rest") == 1.0


def test_where_nobody_can_say_that_it_wants_the_token_it_does_not_slow_down():
    b = bench(rest=1.0, initiative="none")
    for hop in (0, 8, 16):
        b.visit(token(0, hop=hop), 4)
        assert b.due_in("rest") == 1.0
        b.fire("rest")


def test_who_is_alone_keeps_it_and_takes_it_along_when_it_leaves():
    b = Bench(RingSearch, me=1, members=(1,))
    b.start(founder=True)
    b.request(1)
    assert b.granted == [1]
    b.release(1)
    b.handle(Leaving())
    assert b.departs and b.noted(FactKind.DISCARDED)


def test_a_leaver_passes_it_on_first():
    b = bench()
    b.visit(token(0))
    b.handle(Leaving())
    assert [to for to, _ in b.passed] == [6] and b.departs


# --- a token is lost --------------------------------------------------------------------------------------------------


def test_the_neighbours_of_a_dead_node_find_out_whether_it_had_the_token():
    b = bench()
    b.visit(token(0, hop=1))
    b.fire("rest")  # to 6
    b.members.remove(6)
    b.handle(MembersChanged((), (6,)))
    ((to, question),) = sent(b, Inquire)
    assert to == 7 and question.phase is Phase.NEIGHBOUR
    b.receive(Clear(question.label, Sighting(1, 9), Label(1, 1)), 7)  # it went on
    assert sent(b, Inquire) == []


def test_only_when_all_are_barred_a_token_is_made():
    b = bench()
    b.visit(token(0, hop=1))
    b.fire("rest")
    b.members.remove(6)
    b.handle(MembersChanged((), (6,)))
    ((_, question),) = sent(b, Inquire)
    b.receive(Clear(question.label, NEVER_SEEN, Label(1, 1)), 7)
    for phase in (Phase.ALL, Phase.BARRED):
        questions = sent(b, Inquire)
        assert [to for to, _ in questions] == [1, 2, 3, 4, 7, 8]
        for to, question in questions:
            assert question.phase is phase and not b.noted(FactKind.GENERATED)
            b.receive(Clear(question.label, NEVER_SEEN, Label(1, 1)), to)
    made = b.noted(FactKind.GENERATED)[0].token
    assert made is not None and made.epoch > 1


def test_whoever_has_it_says_so_and_is_not_barred():
    b = bench()
    b.visit(token(0, token_id=7))
    b.receive(Inquire(Label(9, 9), Phase.BARRED, Label(0, 0)), 2)
    assert sent(b, Here) == [(2, Here(Label(9, 9), Label(1, 7), Sighting(1, 1)))]


def test_whoever_is_barred_takes_no_older_token():
    b = Bench(RingSearch, me=5, members=EIGHT, passing="4-way")
    b.receive(Inquire(Label(9, 9), Phase.BARRED, Label(0, 0)), 2)
    assert [to for to, _ in sent(b, Clear)] == [2]
    b.receive(Offer(1, token(0)), 3)
    assert sent(b, Denied) == [(3, Denied(Label(9, 9)))]


def test_who_is_asked_twice_to_be_barred_says_twice_that_it_is():
    """Its first answer was lost, and the inquiry would never end."""
    b = bench()
    for _ in range(2):
        b.receive(Inquire(Label(9, 9), Phase.BARRED, Label(0, 0)), 2)
        assert [to for to, _ in sent(b, Clear)] == [2]
    b.receive(Inquire(Label(9, 8), Phase.BARRED, Label(0, 0)), 3)
    assert sent(b, Clear) == [] and sent(b, Denied) == [(3, Denied(Label(9, 9)))]


def test_a_question_that_bars_nothing_is_answered_by_who_is_barred():
    b = bench()
    b.receive(Inquire(Label(9, 9), Phase.BARRED, Label(0, 0)), 2)
    for phase in (Phase.NEIGHBOUR, Phase.ALL):
        b.receive(Inquire(Label(8, 8), phase, Label(0, 0)), 3)
        assert sent(b, Clear) == [(3, Clear(Label(8, 8), NEVER_SEEN, Label(9, 9)))]


def test_a_token_that_is_refused_waits_for_a_new_label():
    b = bench()
    b.visit(token(0, token_id=7))
    b.receive(Denied(Label(9, 9)), 2)
    questions = sent(b, Inquire)
    assert [to for to, _ in questions] == [1, 2, 3, 4, 6, 7, 8]
    for to, question in questions:
        assert question.phase is Phase.BARRED and question.label.epoch > 9 and b.passed == []
        b.receive(Clear(question.label, NEVER_SEEN, Label(9, 9)), to)
    assert b.machine.view().tokens[0].epoch == questions[0][1].label.epoch


def test_of_two_tokens_the_older_label_goes():
    b = bench()
    b.visit(token(0, token_id=7))
    b.receive(Inquire(Label(9, 9), Phase.BARRED, Label(2, 2)), 2)
    assert [note.token.id for note in b.noted(FactKind.DISCARDED) if note.token] == [7]


def lose_it() -> Bench:
    """It went from 5 to 6, and 6 is dead."""
    b = bench()
    b.visit(token(0, hop=1))
    b.fire("rest")
    b.members.remove(6)
    b.handle(MembersChanged((), (6,)))
    return b


def test_who_says_here_and_had_it_before_the_inquirer_only_does_not_know_yet_that_it_arrived():
    b = lose_it()
    ((_, question),) = sent(b, Inquire)
    b.receive(Here(question.label, Label(1, 1), Sighting(1, 0)), 7)
    b.fire("inquiry")
    assert [to for to, _ in sent(b, Inquire)] == [7]
    b.receive(Here(question.label, Label(1, 1), Sighting(1, 9)), 7)
    assert "inquiry" not in b.timers


def test_an_inquiry_of_everybody_goes_before_one_of_a_neighbour_and_the_lower_nodes_before_a_higher_ones():
    b = lose_it()
    b.receive(Inquire(Label(2, 2), Phase.NEIGHBOUR, Label(0, 0)), 2)
    assert "inquiry" in b.timers
    b.receive(Inquire(Label(2, 2), Phase.ALL, Label(0, 0)), 7)
    assert b.machine.view().state == "inquiring"
    b.receive(Inquire(Label(2, 2), Phase.ALL, Label(0, 0)), 2)
    assert b.machine.view().state == "idle"
    b.members.remove(2)
    b.handle(MembersChanged((), (2,)))  # and it may not have ended
    assert [to for to, _ in sent(b, Inquire)] == [1, 3, 4, 7, 8]


def test_a_token_that_was_lent_to_those_who_are_gone_is_searched_for_again():
    b = bench()
    b.receive(gimme(1), 4)
    b.visit(token(0))
    b.members.remove(1)
    b.handle(MembersChanged((), (1,)))
    b.receive(gimme(3, again=True), 4)
    assert sent(b, Trapped) == [] and [to for to, _ in sent(b, Gimme)] == [6]


def test_a_token_that_comes_back_was_passed_even_if_it_comes_for_a_request_of_long_ago():
    b = Bench(RingSearch, me=5, members=EIGHT, passing="4-way")
    b.receive(Offer(1, token(0)), 4)
    ((_, accept),) = sent(b, Accept)
    b.receive(Commit(1, accept.reply, token(0)), 4)
    b.fire("rest")
    ((to, offer),) = sent(b, Offer)
    b.receive(Accept(offer.nonce, 7), to)
    b.receive(Commit(3, STANDING + 9, token(0, hop=9)), to)  # nothing here stands for 9
    assert sent(b, Void)
    b.receive(Inquire(Label(9, 9), Phase.ALL, Label(0, 0)), 2)
    assert sent(b, Here) == [] and sent(b, Clear)


def test_options_are_checked():
    with pytest.raises(ConfigError, match="discipline is 'unfair', give one of fair, fast"):
        bench(discipline="unfair")


# --- every interleaving -----------------------------------------------------------------------------------------------

MACHINES = (RingSearch, BinarySearch)
VARIANTS = (("search", "directed"), ("cleanup", "inverse"), ("discipline", "fair"), ("initiative", "both"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "bounds",
    [
        {"nodes": 2, "requests": 2},
        {"nodes": 2, "timers": 1, "withdrawn": 1},
        {"nodes": 2, "leaves": 1},
        {"nodes": 2, "joins": 1},
        {"nodes": 2, "leaves": 1, "joins": 1, "askers": (2, 3)},
        {"nodes": 3, "withdrawn": 1},
        *({"nodes": 3, "askers": (2, 3), "options": (variant,)} for variant in VARIANTS),
        {"nodes": 3, "joins": 1, "askers": (2, 3)},
        pytest.param({"nodes": 3, "leaves": 1, "withdrawn": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "timers": 1, "losses": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "timers": 1, "repeats": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "kills": 1, "timers": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "timers": 1, "leaves": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "leaves": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "kills": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 3, "timers": 1}, marks=pytest.mark.slow),
        pytest.param({"nodes": 2, "timers": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_two_run_at_once_and_everybody_is_granted_whatever_overtakes_what(
    machine: type[RingSearch], bounds: dict[str, Any]
):
    assert explore(machine, **bounds) > 30


class UsesAnOffer(BinarySearch):
    """S1 without its half about passing: it runs A as soon as the token is offered."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        waits = self.view().queue
        effects = list(super().handle(event, now))
        match event:
            case Received(_, Offer()) if waits and self.view().waiting:
                effects.append(Grant(self.view().waiting))
        return effects


class UsesAnOfferOnTheRing(UsesAnOffer, RingSearch):
    pass


class DeniesThatItHasIt(BinarySearch):
    """It says CLEAR where it should say HERE."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        return [self.lied(effect) for effect in super().handle(event, now)]

    def lied(self, effect: Effect) -> Effect:
        match effect:
            case Send(to, Here(label, mine, _)):
                return Send(to, Clear(label, NEVER_SEEN, mine))
        return effect


class IsNotBarred(BinarySearch):
    """remake.S2: it is clear of a label, and takes older tokens all the same."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Received(sender, Inquire(label, Phase.BARRED, _)) if not self.view().tokens:
                return [Send(sender, Clear(label, NEVER_SEEN, label))]
        return super().handle(event, now)


class NeverMovesOn(RingSearch):
    """S2: it neither sends the token round nor says what it wants."""

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        def is_left_out(effect: Effect) -> bool:
            is_search = isinstance(effect, Send) and isinstance(effect.message, Gimme | Inquire)
            return is_search or (isinstance(effect, SetTimer) and effect.timer == "rest")

        return [effect for effect in super().handle(event, now) if not is_left_out(effect)]


@pytest.mark.parametrize(
    ("broken", "bounds", "said"),
    [
        (UsesAnOffer, {"nodes": 2}, "run A at once|breach"),
        (UsesAnOfferOnTheRing, {"nodes": 2}, "run A at once|breach"),
        (NeverMovesOn, {"nodes": 2}, "these wait for ever"),
    ],
)
def test_a_machine_without_one_rule_is_found(broken: type[RingSearch], bounds: dict[str, int], said: str):
    with pytest.raises(Found, match=said):
        explore(broken, **bounds)


@pytest.mark.parametrize(
    ("broken", "fault", "seed"), [(DeniesThatItHasIt, "kill-anybody", 3), (IsNotBarred, "kill-holder-and-passer", 6)]
)
def test_the_laws_see_it_under_load(broken: type[RingSearch], fault: str, seed: int):
    broken_laws = {violation.law for violation in simulate(scenario(fault, broken, seed)).violations}
    assert broken_laws & {"exclusion", "order"}
    assert not simulate(scenario(fault, BinarySearch, seed)).violation_count


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_binary_search_sends_a_request_on_at_most_as_often_as_the_ring_can_be_halved():
    rare = Scenario("binary-search", 64, 400.0, demand="poisson:0.2", op_s=0.1, delay_s=0.01)
    result = simulate(rare)
    assert result.acquisitions > 50
    assert result.sent["GIMME"] <= 8 * result.acquisitions  # log2 64 + 2
    assert result.wait_s(0.99) < 0.2  # and not half a round of 64 rests


def test_nobody_waits_for_a_round_where_a_few_want_it_and_everybody_is_served_alike_where_all_do():
    busy = simulate(Scenario("binary-search", 10, 1000.0, op_s=1.0, delay_s=0.01))
    assert busy.busy > 0.97 and busy.fairness > 0.99


def test_an_inquiry_that_gave_way_to_a_late_copy_of_another_one_begins_again():
    """Each of three waited for an inquiry that was over: nemesis seed 353, where copies come half a minute late."""
    b = bench(me=5)
    b.request(1)
    for _ in range(3):
        b.fire("again")
    assert sent(b, Inquire)
    b.receive(Inquire(Label(9, 1), Phase.ALL, Label(0, 0)), 1)
    assert [to for to, _ in sent(b, Clear)] == [1] and not sent(b, Inquire), "the lower node first"
    b.fire("inquiry")
    assert len(sent(b, Inquire)) == len(EIGHT) - 1


@pytest.mark.parametrize("seed", [345, 353])
def test_groups_in_which_nobody_was_granted_for_too_long(seed: int):
    assert not simulate(nemesis.draw(seed, (2, 16), "ring-search")).violations


@pytest.mark.parametrize(("algorithm", "seed"), [("ring-search", 107), ("binary-search", 107), ("ring-search", 245)])
def test_a_hand_over_that_nobody_confirms_is_soon_inquired_about(algorithm: str, seed: int):
    """Ten questions of a second each, and then the inquiry that finds the token or that it is lost: served too late."""
    assert not simulate(nemesis.draw(seed, (2, 16), algorithm)).violations


def test_who_waits_asks_everybody_soon_although_others_come_and_go():
    """Each that left put off the inquiry: with one every two seconds nobody ever began one."""
    b = bench()
    b.request(1)
    asked_at = 0.0
    while not sent(b, Inquire):
        assert asked_at < 15
        due = b.due_in("again") or 0
        if due > 1.5:
            asked_at += 1
            b.at(asked_at)
            b.members.remove(8)
            b.handle(MembersChanged((), (8,)))
            b.members.append(8)
            b.handle(MembersChanged((8,), ()))
        else:
            b.fire("again")
            asked_at = b.now_s - START
    assert {to for to, _ in sent(b, Inquire)} == set(EIGHT) - {5}


def test_a_search_that_is_answered_is_not_repeated_soon():
    b = bench()
    b.request(1)
    b.at(5)
    b.receive(Trapped(1), 7)
    assert (b.due_in("again") or 0) >= 15


def test_newcomers_are_told_of_the_tokens_label():
    """All that knew it died, and newcomers made one with a lower epoch."""
    b = bench()
    b.visit(token(0, token_id=9, hop=9, epoch=91))
    b.members.append(9)
    b.handle(MembersChanged((9,), ()))
    assert sent(b, Denied) == [(9, Denied(Label(91, 9)))]
    newcomer = bench(me=1)
    newcomer.receive(Denied(Label(91, 9)), 5)
    newcomer.start(founder=True)
    assert [note.token.epoch for note in newcomer.noted(FactKind.GENERATED) if note.token] == [92]


def test_a_label_is_above_what_everybody_has_forgotten():
    """All died within a hand-over that knew of label 12, and those who came later made a token with 3."""
    b = bench()
    b.request(1)
    while not sent(b, Inquire):
        b.fire("again")
    for phase in (Phase.ALL, Phase.BARRED):
        for to, question in sent(b, Inquire):
            assert question.phase is phase
            b.receive(Clear(question.label, NEVER_SEEN, Label(2, 1)), to)
    assert b.granted == [1] and b.machine.view().tokens[0].epoch >= START


@pytest.mark.parametrize("machine", [RingSearch, BinarySearch])
def test_tokens_stay_in_order_though_all_die_that_knew_the_last_label(machine: type[RingSearch]):
    assert not simulate(nemesis.draw(9016, (2, 16), machine.name)).violations


def test_a_search_that_comes_twice_is_sent_on_once():
    """One message in three came twice: after thirty steps of a ring there were a thousand copies of each search."""
    b = bench()
    b.receive(gimme(1), 4)
    assert len(sent(b, Gimme)) == 1
    b.receive(gimme(1), 4)
    assert not sent(b, Gimme)
    b.at(1)
    b.receive(gimme(1, again=True), 4)
    assert len(sent(b, Gimme)) == 1


def test_who_waits_with_a_spent_promise_is_offered_the_token():
    """It had refused an older token by that promise, was taken for one that waits no more, and waited for the ring."""
    b = bench(passing="4-way")
    b.start(founder=True)
    b.receive(gimme(7), 6)
    ((_, commit),) = sent(b, Commit)
    b.receive(Void(commit.nonce, commit.reply), 7)
    ((to, offer),) = sent(b, Offer)
    assert to == 7 and offer.token.queue[0] == Ticket(7, 1)
    b.receive(Refuse(offer.nonce), 7)  # no: it does not wait
    assert Ticket(7, 1) in b.machine.view().tokens[0].queue and sent(b, Offer) == []


def test_a_loan_that_is_offered_is_taken_by_who_waits_alone():
    loan = token(0, hop=9)._replace(queue=(Ticket(5, 1), Ticket(4, 0)))
    b = bench(passing="4-way")
    b.receive(Offer(3, loan), 4)
    assert sent(b, Refuse) == [(4, Refuse(3))]
    b.request(1)
    b.receive(Offer(5, loan), 4)
    assert len(sent(b, Accept)) == 1


def test_who_runs_when_a_newer_token_comes_is_told_that_it_may_not_be_alone():
    b = Bench(RingSearch, me=5, members=EIGHT, passing="4-way")
    b.start(founder=True)
    b.request(1)
    assert b.granted == [1]
    newer = token(9, 77, hop=4, epoch=1 << 40)
    b.receive(Offer(7, newer), 2)
    ((to, accept),) = sent(b, Accept)
    b.receive(Commit(7, accept.reply, newer), to)
    assert b.lost == [1] and b.noted(FactKind.OVERLAP) and b.noted(FactKind.DISCARDED)
    assert [each.id for each in b.machine.view().tokens] == [77]


def test_a_search_is_repeated_for_who_waits_alone():
    b = bench()
    b.handle(Fired("again"))
    assert b.effects == []
    b.request(1)
    b.handle(Fired("again"))
    assert sent(b, Gimme)
