"""`random-access`: nobody coordinates anything; each node pauses for a random while between two runs of A."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from softmutex.core.algorithms.random_access import RandomAccess
from softmutex.core.errors import ConfigError, InvariantBreach
from softmutex.core.events import CancelTimer, Depart, Grant, Leaving, MembersChanged, Withdrawn
from softmutex.core.machine import Setup
from softmutex.core.messages import Refuse
from softmutex.core.timing import Timing
from tests.core.bench import START, Bench, muted


def starts(b: Bench, count: int) -> list[float]:
    """When A begins, with a request that always waits and A as long as op."""
    b.start()
    out = []
    for request in range(1, count + 1):
        b.request(request)
        if not b.granted:
            b.fire("gap")
        assert b.granted == [request]
        out.append(b.now_s)
        b.at(b.now_s - START + 4).release(request)
    return out


def gaps(b: Bench, count: int = 2000) -> list[float]:
    times = starts(b, count)
    return [after - before for before, after in pairwise(times)]


def test_the_period_is_min_and_up_to_half_of_it_more():
    periods = sorted(gaps(Bench(RandomAccess)))
    assert 600 <= periods[0] < 602
    assert 898 < periods[-1] <= 900
    assert periods[1000] == pytest.approx(750, abs=12)


def test_the_benchmark_of_seed_001_goes_up_to_a_stated_max():
    periods = sorted(gaps(Bench(RandomAccess, timing=Timing(max_interval=1800))))
    assert 600 <= periods[0] < 605
    assert 1795 < periods[-1] <= 1800
    assert periods[1000] == pytest.approx(1200, abs=40)


def test_min_interval_overrides_the_period():
    periods = gaps(Bench(RandomAccess, min_interval=100.0))
    assert min(periods) >= 100
    assert 149 < max(periods) <= 150


def test_who_starts_is_somewhere_within_a_period():
    firsts = sorted(starts(Bench(RandomAccess, seed=seed), 1)[0] - START for seed in range(500))
    assert firsts[0] < 10
    assert firsts[250] == pytest.approx(375, abs=50)
    assert firsts[-1] <= 900


def test_without_a_pause_a_request_is_granted_at_once():
    b = Bench(RandomAccess, min_interval=0)
    b.start()
    for request in (1, 2, 3):
        b.request(request)
        assert b.granted == [request]
        b.release(request)


def test_one_run_at_a_time_on_one_node():
    b = Bench(RandomAccess, min_interval=0)
    b.start()
    b.request(1)
    b.request(2)
    assert b.granted == []
    b.release(1)
    assert b.granted == [2]
    assert b.machine.view().holding == (2,)


def test_a_withdrawn_request_is_never_granted():
    b = Bench(RandomAccess)
    b.start()
    b.request(1)
    b.request(2)
    b.handle(Withdrawn(1))
    b.fire("gap")
    assert b.granted == [2]


def test_the_timer_of_withdrawn_requests_fires_for_nothing():
    b = Bench(RandomAccess)
    b.start()
    b.request(1)
    b.handle(Withdrawn(1))
    b.fire("gap")
    assert b.effects == []
    b.request(2)
    assert b.granted == [2]


def test_a_timer_that_is_no_longer_needed_is_taken_back():
    b = Bench(RandomAccess)
    b.start()
    b.request(1)
    b.handle(Withdrawn(1))
    b.at(1000).request(2)
    assert [type(effect) for effect in b.effects] == [CancelTimer, Grant]
    assert b.timers == {}


def test_each_grant_has_a_later_hop_and_rests_on_no_right():
    b = Bench(RandomAccess, min_interval=0)
    b.start()
    hops = []
    for request in (1, 2, 3):
        b.request(request)
        grant = b.one(Grant)
        hops.append(grant.hop)
        assert grant.rights == ()
        b.release(request)
    assert hops == [1, 2, 3]
    assert b.machine.view().tokens == ()


def test_leaving_waits_for_the_run_that_goes_on_and_grants_no_other():
    b = Bench(RandomAccess, min_interval=0)
    b.start()
    b.request(1)
    b.request(2)
    b.handle(Leaving())
    assert b.effects == []
    b.release(1)
    assert b.effects == [Depart()]


def test_who_does_nothing_leaves_at_once():
    b = Bench(RandomAccess)
    b.start()
    assert b.handle(Leaving()) == [Depart()]


def test_messages_and_members_mean_nothing():
    b = Bench(RandomAccess)
    b.start()
    assert b.receive(Refuse(1)) == []
    assert b.handle(MembersChanged((9,), ())) == []


def test_the_state_is_one_word():
    b = Bench(RandomAccess)
    b.start()
    words = [b.machine.view().state]
    b.request(1)
    words.append(b.machine.view().state)
    b.fire("gap")
    words.append(b.machine.view().state)
    assert words == ["idle", "waiting", "running"]
    assert b.machine.view().waiting == 0


def test_more_slots_and_unknown_options_are_refused():
    with pytest.raises(ConfigError, match="'random-access' has one slot, and slots is 2"):
        RandomAccess(Setup(1, [1], random.Random(1), slots=2))
    with pytest.raises(ConfigError, match="no option 'passing'"):
        RandomAccess(Setup(1, [1], random.Random(1), options={"passing": "direct"}))


def test_a_release_of_what_does_not_run_is_a_breach():
    b = Bench(RandomAccess)
    b.start()
    with pytest.raises(InvariantBreach, match="request 3 is released, and None runs"):
        b.release(3)


def test_a_request_that_waits_for_nothing_is_a_breach():
    """Whatever part of the machine is out of order: it says so itself, at once."""
    said = []
    for broken in muted(RandomAccess):
        b = Bench(broken)
        try:
            b.start()
            b.request(1)
        except (InvariantBreach, TypeError) as error:
            said.append(str(error))
    assert any("R2: node 1 lets (1,) wait for nothing" in one for one in said), said
