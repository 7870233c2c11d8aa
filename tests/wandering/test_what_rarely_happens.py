"""What happens once in a thousand hand-overs, and then has to be right: one machine, what it does at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from softmutex.core.algorithms.wandering.messages import (
    Bequest,
    Feed,
    Heard,
    Place,
    Presence,
    Probe,
    Queued,
    Seen,
    Sight,
    Urge,
    Want,
)
from softmutex.core.algorithms.wandering.settings import PATIENCE, QUEUE
from softmutex.core.events import (
    SECOND,
    Effect,
    Escort,
    FactKind,
    Fired,
    Grant,
    Leaving,
    Lose,
    MembersChanged,
    NodeId,
    Released,
    Requested,
    Silenced,
    Slept,
    Suspect,
    Ticket,
    Token,
)
from softmutex.core.handover import TIMER
from softmutex.core.messages import Commit, Done, Offer, Void
from tests.wandering.node import HOME, ME, TOKEN, Node, sent
from tests.wandering.test_how_a_token_is_looked_for import NOTHING, answer, facts, made, nothing, probes

WATCHED = TOKEN._replace(escort=Escort((1, 2), 0, False))
PLACE = Place(0, 7, 5, 50, 10, 6)
IN_USE = Seen(PLACE, 2 * SECOND, ())
RETRY = ("retry", 0)


def home(*seen: Seen, **options: object) -> Node:
    """Node 4 is the first home of forty."""
    node = Node(members=tuple(range(ME, ME + 40)), **options)  # type: ignore[arg-type]
    for each in seen:
        node.hear(each.place.holder, each)
    return node


def using(node: Node, token: Token = WATCHED) -> Node:
    node.tell(Requested(1))
    node.takes(2, 1, token)
    assert node.machine.view().holding == (1,)
    return node


def committed() -> tuple[Node, Commit]:
    """To 5, at once, and 5 has not answered."""
    node = using(Node())
    node.tell(Released(1))
    node.now += SECOND
    node.hear(5, NOTHING)
    ((_, commit),) = sent(node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4)), Commit)
    return node, commit


def queue(node: Node) -> tuple[NodeId, ...]:
    return node.machine.view().queue


# --- on its way ------------------------------------------------------------------------------------------------------


def test_a_token_that_is_on_its_way_is_said_to_be_and_neither_doubted_nor_discarded():
    node, _ = committed()
    there = Place(0, 7, 5, 50, 5, 5)
    ((_, sight),) = sent(node.hear(2, Probe(77, 0, 0, None, False)), Sight)
    assert sight == Sight(77, 0, there, Presence.PASSING, True)
    assert not probes(node.tell(Slept(SECOND)))
    better = Place(0, 8, 9, 99, 6, 3)
    for presence in (Presence.ABSENT, Presence.DOUBTED):
        effects = node.hear(2, Sight(0, 0, better, presence, False))
        assert not probes(effects) and FactKind.DISCARDED not in facts(effects)


def test_what_was_confirmed_twice_is_over_there_once():
    node, commit = committed()
    for _ in range(2):
        node.hear(5, Done(commit.nonce, commit.reply))
        assert node.machine.view().holder == 5 and not node.machine.here.by_slot


def test_a_commit_that_was_not_taken_brings_it_back_two_hops_later():
    node, commit = committed()
    node.hear(5, Void(commit.nonce, commit.reply))
    (held,) = node.machine.here.by_slot.values()
    assert held.token.hop == commit.token.hop + 2


def test_a_word_for_a_token_that_has_gone_follows_it_where_somebody_waits():
    node, commit = committed()
    node.hear(5, Done(commit.nonce, commit.reply))
    assert sent(node.hear(1, Heard(0, 7, 4, (), True, node.now)), Feed) == []
    fed = sent(node.hear(1, Heard(0, 7, 4, (Ticket(3, 1),), True, node.now)), Feed)
    assert fed == [(5, Feed(0, (Ticket(3, 1),), True, 3))]


def test_where_it_has_been_gone_for_as_long_as_it_was_here_a_ticket_goes_to_the_last_of_its_queue():
    node = using(Node())
    node.hear(5, NOTHING)
    node.hear(HOME, Feed(0, (Ticket(5, 1), Ticket(3, 1), Ticket(2, 1)), False, 4))
    node.now += SECOND // 100
    ((_, commit),) = sent(node.tell(Released(1)), Commit)
    node.hear(5, Done(commit.nonce, commit.reply))
    for later, to, ahead in ((SECOND // 100 - 1, 5, 0), (1, 2, commit.token.hop)):
        node.now += later
        fed = sent(node.hear(HOME, Feed(0, (Ticket(1, 9),), False, 4)), Feed)
        assert [(whom, feed.ahead) for whom, feed in fed] == [(to, ahead)]


# --- ballots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [True, False])
def test_whose_ballot_the_first_home_wants_leaves_it_to_that_one_unless_both_are_newcomers(knows: bool):
    """Several that look for it would keep each other from it. Of two newcomers either may know nobody of the group."""
    node = Node()
    node.now += 100 * SECOND
    if knows:
        node.hear(2, Sight(0, 0, PLACE._replace(holder=77), Presence.ABSENT, False))
        node.now += SECOND
    node.tell(Requested(1))
    for _ in range(5):
        if asked := probes(node.fire("want")):
            break
    ((_, sight),) = sent(node.hear(HOME, Probe(9, 0, 1001, None, False)), Sight)
    assert sight.free is knows
    effects = answer(node, asked, nothing)
    assert bool(made(effects)) is not knows


def test_who_has_promised_its_ballot_to_another_makes_no_token_itself():
    node = Node(members=(1, ME, 5))
    node.now += 100 * SECOND
    assert sent(node.hear(1, Probe(9, 0, 1001, None, False)), Sight)[0][1].free
    node.tell(Requested(1))
    node.machine.context.begin(node.now)
    node.machine.search.census()
    asked = probes(node.machine.context.out)
    effects = answer(node, asked, nothing)
    assert asked.keys() == {1, 5} and made(effects) == []


# --- who leaves, and who proceeds ------------------------------------------------------------------------------------


def test_a_leaver_asks_its_heir_even_where_that_spoke_a_moment_ago():
    """It stands for no ticket of its own."""
    node = using(Node())
    node.tell(Released(1))
    node.now += SECOND
    node.hear(HOME, NOTHING)
    effects = node.tell(Leaving())
    assert [to for to, _ in sent(effects, Offer)] == [HOME] and sent(effects, Commit) == []


def test_a_stranger_that_fits_stays_in_the_queue():
    node = using(Node(members=tuple(range(1, 60))))
    node.hear(HOME, Feed(0, tuple(Ticket(each, 1) for each in (99, *range(10, 10 + QUEUE - 2))), False, 4))
    node.hear(HOME, Feed(0, (Ticket(50, 1),), False, 4))
    assert len(queue(node)) == QUEUE and 99 in queue(node)


def test_a_leaver_looks_for_no_token():
    for leaves in (True, False):
        node = home(IN_USE)
        if leaves:
            node.tell(Leaving())
        assert bool(probes(node.fire(("watch", 0)))) is not leaves


@pytest.mark.parametrize("holds", [True, False])
def test_who_was_told_to_proceed_uses_its_token_or_makes_one_though_nobody_answers(holds: bool):
    node = Node(members=(1, 2, 3, ME, 5))
    node.now += 100 * SECOND
    node.machine.when_isolated("proceed")  # type: ignore[arg-type]
    if holds:
        using(node)
        node.tell(Slept(SECOND))
    else:
        node.tell(Requested(1))
    seen: list[FactKind] = []
    for _ in range(40):
        effects = node.fire(("probe", 0) if ("probe", 0) in node.timers else "want")
        seen += facts(effects)
        if FactKind.ISOLATED in seen:
            break
    assert (FactKind.GENERATED in seen) is not holds
    assert node.machine.view().holding == (1,) and RETRY not in node.timers


# --- the home --------------------------------------------------------------------------------------------------------


def test_of_a_slot_that_there_is_not_nothing_is_heard():
    assert home().hear(6, Seen(PLACE._replace(slot=1), SECOND, ())) == []


def test_who_speaks_for_a_token_that_was_replaced_is_told_of_the_better_one_and_lent_nothing():
    node = home(Seen(PLACE._replace(epoch=8, id=9, holder=7), 2 * SECOND, ()))
    effects = node.hear(6, IN_USE)
    assert [(to, sight.place) for to, sight in sent(effects, Sight)] == [(6, PLACE._replace(epoch=8, id=9, holder=7))]
    assert sent(effects, Heard) == []


def test_who_waited_in_a_token_that_was_replaced_is_the_first_to_be_fed_to_the_better_one():
    node = home(Seen(PLACE, 2 * SECOND, (Ticket(10, 1), Ticket(7, 1))))
    for waiter in (12, 13, 14):
        node.hear(waiter, Want(waiter, 1, False, 3, 0))
    better = Seen(PLACE._replace(epoch=8, id=9, holder=7), 0, (Ticket(11, 1),))
    ((to, heard),) = sent(node.hear(7, better), Heard)
    assert to == 7 and heard.tickets[:1] == (Ticket(10, 1),)
    assert not {7, 11} & {ticket.node for ticket in heard.tickets}  # they have it, or stand in its queue


def test_a_request_of_who_is_not_known_to_the_end_is_not_registered():
    node = home(IN_USE)
    node.members.remove(10)
    node.tell(MembersChanged((), (10,)))
    assert node.hear(11, Want(10, 1, False, 3, 0)) == [] and not node.machine.home.somebody_waits


def test_a_home_that_takes_the_token_takes_all_along_who_fit_and_knows_of_the_others():
    node = home()
    for waiter in range(5, 44):
        node.hear(waiter, Want(waiter, 1, False, 3, 0))
    node.tell(Requested(1))
    node.takes(7, 1, TOKEN._replace(escort=Escort((4, 5), 0, False)))
    assert len(queue(node)) == QUEUE and node.machine.view().tokens[0].escort.more


def test_what_a_home_that_has_the_token_inherits_waits_in_its_queue():
    node = using(home(), TOKEN._replace(escort=Escort((4, 5), 0, False)))
    node.hear(5, Bequest(None, (Ticket(10, 1),)))
    assert queue(node) == (10,)
    node.hear(5, Bequest(None, (Ticket(11, 1),)))
    assert queue(node) == (10,)  # not to and fro at full speed
    node.fire("serve")
    assert queue(node) == (10, 11)


def test_where_there_are_priorities_a_holder_is_told_that_others_wait_as_soon_as_one_does():
    """As long as they wait here, a more urgent one comes before them."""
    node = home(IN_USE, ageing=2.0)
    said = []
    for waiter in (10, 11, 12):
        effects = node.hear(waiter, Urge(Want(waiter, 1, False, 3, 0), 0))
        said.append([(to, len(feed.tickets), feed.more) for to, feed in sent(effects, Feed)])
    assert said == [[(6, 1, False)], [(6, 0, True)], []]


def test_who_waits_behind_a_turn_of_the_home_itself_comes_to_a_token_that_rests_elsewhere():
    node = home(slots=2)
    node.hear(7, Seen(Place(1, 7, 5, 51, 20, 7), 2 * SECOND, ()))
    using(node, TOKEN._replace(escort=Escort((4, 5), 0, False), queue=(Ticket(10, 1),)))
    moved = [
        [(to, heard.tickets) for to, heard in sent(node.hear(7, Seen(Place(1, 7, 5, 51, hop, 7), 0, ())), Heard)]
        for hop in (21, 22)
    ]
    assert moved == [[(7, (Ticket(10, 1),))], [(7, ())]]


def test_a_waiter_that_was_told_to_wait_twice_for_one_request_is_patient_for_the_longer_story():
    node = home(IN_USE)
    reminders = node.machine.home.reminders
    node.machine.context.begin(node.now)
    for turns, request, expected in ((2, 1, 2), (1, 1, 2), (1, 2, 1)):
        reminders.patient(10, request, PATIENCE + 1, turns)
        assert reminders.told[10].turns == expected
    reminders.patient(10, 2, PATIENCE, 1)
    assert 10 not in reminders.told  # it asks again soon


def test_who_waits_behind_a_turn_of_another_token_is_not_reminded():
    node = home(Seen(Place(1, 7, 5, 51, 20, 7), 2 * SECOND, (Ticket(10, 1),)), IN_USE, slots=2)
    node.machine.context.begin(node.now)
    for waiter in (10, 11):
        node.machine.home.reminders.patient(waiter, 1, 10 * PATIENCE, 1)
    node.now += SECOND
    effects = node.hear(6, Seen(PLACE._replace(hop=11), 0, ()))
    reminded = [to for to, queued in sent(effects, Queued) if not queued.patience]
    assert 10 not in reminded


@pytest.mark.parametrize(("waiters", "more"), [(4, False), (5, True)])
def test_a_holder_that_is_given_more_than_four_at_once_is_told_that_there_may_be_others(waiters: int, more: bool):
    node = home(IN_USE)
    node.machine.home.ready.update(dict.fromkeys(range(10, 10 + waiters), 1))
    ((_, heard),) = sent(node.hear(6, IN_USE._replace(place=PLACE._replace(hop=12))), Heard)
    assert (len(heard.tickets), heard.more) == (waiters, more)
    assert node.machine.home.posts[0].lent == dict(heard.tickets)  # should the token be lost, they wait again
    node.hear(7, Seen(PLACE._replace(epoch=8, id=9, holder=7), 2 * SECOND, ()))
    assert node.machine.home.ready.keys() | dict(node.machine.home.posts[0].lent).keys() == dict(heard.tickets).keys()


def test_a_word_of_another_watcher_that_is_repeated_is_good_for_as_long_again():
    node = Node(members=(1, 4, 5, 6))
    for _ in range(2):
        node.now += SECOND
        node.hear(1, IN_USE)
        assert node.timers["watch", 0] == node.now + 2 * SECOND


# --- the holder ------------------------------------------------------------------------------------------------------


def test_who_left_the_queue_meanwhile_is_not_told_that_it_is_in_it():
    node = using(Node())
    for waiter in (5, 3):
        node.hear(waiter, Want(waiter, 1, False, 2, 0))
    node.members.remove(5)
    node.tell(MembersChanged((), (5,)))
    assert sent(node.fire(("queued", 0)), Queued) == [(3, Queued(1, PATIENCE))]
    assert sent(node.tell(Fired(("queued", 0))), Queued) == []


def test_a_hold_whose_token_was_discarded_counts_until_it_is_over_and_then_the_next_one_goes_on():
    node = using(Node(slots=2, each=1))
    better = Place(0, 8, 9, 99, 6, 3)
    asked = probes(node.tell(Slept(SECOND)))
    effects = node.hear(3, Sight(asked[3].number, 0, better, Presence.IN_USE, True))
    assert [each for each in effects if isinstance(each, Lose)]
    node.tell(Requested(2))
    assert node.machine.here.in_use == 1
    assert not [each for each in node.tell(Released(1)) if isinstance(each, Grant)]
    assert node.machine.here.in_use == 0


def test_where_there_are_priorities_who_uses_the_token_asks_the_home_for_its_next_turn():
    node = using(Node(ageing=2.0))
    asked = [[(to, urge.want.request) for to, urge in sent(node.tell(Requested(each)), Urge)] for each in (2, 3)]
    assert asked == [[(HOME, 2)], []] and queue(node) == ()


def test_who_left_stands_in_no_queue_wherever_it_stood():
    node = using(Node())
    node.hear(HOME, Feed(0, (Ticket(5, 1), Ticket(3, 1), Ticket(2, 1)), False, 4))
    node.members.remove(3)
    node.tell(MembersChanged((), (3,)))
    assert queue(node) == (5, 2)


def test_whose_own_ticket_comes_to_the_head_begins_another_row():
    node = using(Node(row=1))
    node.tell(Requested(2))
    node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4))
    assert queue(node) == (ME, 5)
    assert [each.request for each in node.tell(Released(1)) if isinstance(each, Grant)] == [2]


def test_whoever_has_tickets_for_it_is_heard_and_of_others_that_wait_only_its_first_watcher():
    node = using(Node())
    node.hear(2, Heard(0, 7, 4, (Ticket(5, 1),), False, 0))
    assert queue(node) == (5,)
    for sender, more in ((2, False), (1, True)):
        node.hear(sender, Heard(0, 7, 4, (), True, 0))
        assert node.machine.view().tokens[0].escort.more is more
    node.hear(1, Heard(0, 6, 4, (Ticket(3, 1),), False, 0))  # of a token that was replaced
    assert queue(node) == (5,)


# --- nobody answers --------------------------------------------------------------------------------------------------


def until_over(node: Node, effects: Sequence[Effect]) -> tuple[list[NodeId], list[Effect]]:
    """To whom it is offered while nobody answers, and what it does at last."""
    tried: list[NodeId] = []
    for _ in range(60):
        tried += [to for to, _ in sent(effects, Offer)]
        timers = [timer for timer in node.timers if isinstance(timer, tuple) and timer[0] == TIMER]
        if not timers:
            return tried, list(effects)
        effects = node.fire(timers[0])
    raise AssertionError("it goes on for ever")


def unwatched() -> Node:
    """The token rests here, and nobody expects to hear of it."""
    node = using(Node(watch=False))
    node.tell(Released(1))
    node.now += SECOND
    return node


def test_who_does_not_answer_that_its_turn_comes_is_tried_four_times_behind_the_others():
    """The group may find a way to it meanwhile."""
    node = unwatched()
    tried, effects = until_over(node, node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4)))
    assert tried == [5] * 4 * (1 + 3) and queue(node) == ()
    assert node.machine.view().state == "parked" and Suspect(5) in effects
    node = unwatched()
    tried, _ = until_over(node, node.hear(HOME, Feed(0, (Ticket(5, 1), Ticket(3, 1)), False, 4)))
    assert tried[::4] == [5, 3] * 4


def test_who_is_known_to_be_silent_is_tried_once():
    node = unwatched()
    node.tell(Silenced(5))
    tried, _ = until_over(node, node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4)))
    assert tried == [5] * 4


@pytest.mark.parametrize("watch", [True, False])
def test_a_token_that_was_committed_and_never_confirmed_is_looked_for_where_there_is_a_watch(watch: bool):
    node = using(Node(watch=watch))
    node.tell(Released(1))
    node.now += SECOND
    node.hear(5, NOTHING)
    effects = node.hear(HOME, Feed(0, (Ticket(5, 1),), False, 4))
    assert sent(effects, Commit)
    _, effects = until_over(node, effects)
    assert FactKind.TOKEN_LOST in facts(effects) and Suspect(5) in effects
    assert bool(probes(effects)) is watch
    assert node.machine.view().tokens == () and not node.machine.may_take_again()


def test_a_leaver_whose_heir_does_not_answer_looks_for_another_one_a_moment_later():
    node = unwatched()
    node.fire(("owed", 1))
    tried, _ = until_over(node, node.tell(Leaving()))
    assert tried == [HOME] * 4 and HOME in node.machine.context.suspects
    assert node.timers["walk", 0] == node.now + node.machine.context.rto
    assert [to for to, _ in sent(node.fire(("walk", 0)), Offer)] == [2]


def test_a_holder_that_is_its_own_home_doubts_its_token_when_another_one_has_a_copy_that_is_further_on():
    """As a liar makes one."""
    node = Node(members=tuple(range(ME, ME + 5)))
    node.tell(Requested(1))
    node.takes(5, 1, TOKEN)
    mine = node.machine.view().tokens[0]
    there = Place(0, mine.epoch, mine.stamp, mine.id, mine.hop + 9, 6)
    assert probes(node.hear(6, Seen(there, 2 * SECOND, ())))
    assert node.machine.view().holding == (1,)
