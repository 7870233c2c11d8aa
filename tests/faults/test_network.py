"""Bad networks between real processes, by a relay: who is cut off is replaced, and after healing one token is left."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.harness import Worker, assert_alone, group, overlaps, settles, stays, take_turns, turns_of
from tests.faults.relay import Relay, Weather

REPLACED_S = 60.0
NEWS_S = 60.0


@contextmanager
def relayed(here: Path, nodes: int, weather: Weather | None = None) -> Iterator[tuple[Relay, list[Worker]]]:
    with (
        Relay(nodes, weather or Weather()) as relay,
        group(here, [{"transport": relay.transport(number)} for number in range(nodes)]) as workers,
    ):
        yield relay, workers


def all_end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.ends()


# --- cuts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["both", "out"])
def test_a_holder_that_is_cut_off_is_replaced_and_told_and_after_healing_one_token_is_left(tmp_path: Path, way: str):
    with relayed(tmp_path, 4) as (relay, workers):
        holder, *others = workers
        take_turns(workers, 2)
        holder.enters("a")
        others[0].order("enter b")
        holder.queues(others[0])
        holder.is_watched()
        if way == "both":
            relay.cut_off(0)
        else:
            relay.cut((0, 1), (0, 2), (0, 3))
        others[0].hears("in", key="b", patience_s=REPLACED_S)
        holder.is_told_of_loss("a", NEWS_S)
        relay.heal()
        others[0].leaves("b")
        holder.leaves("a")
        assert len(overlaps(stays(tmp_path))) == 1
        settles(tmp_path, workers)
        all_end(workers)


def test_a_deaf_holder_is_not_replaced_while_it_speaks_and_not_waited_for_when_it_is_done(tmp_path: Path):
    with relayed(tmp_path, 4) as (relay, workers):
        holder, *others = workers
        take_turns(workers, 2)
        holder.enters("a")
        others[0].order("enter b")
        holder.queues(others[0])
        relay.cut((1, 0), (2, 0), (3, 0))
        holder.is_told_of_loss("a", NEWS_S)  # it hears nobody; a silent one would have been replaced by now
        assert not others[0].has_said("in", key="b")
        holder.leaves("a")
        others[0].hears("in", key="b", patience_s=REPLACED_S)
        others[0].leaves("b")
        assert not overlaps(stays(tmp_path))
        relay.heal()
        settles(tmp_path, workers)
        all_end(workers)


def test_a_link_between_two_waiters_that_is_cut_holds_up_these_two_at_most_until_it_is_healed(tmp_path: Path):
    with relayed(tmp_path, 3) as (relay, workers):
        take_turns(workers, 2)
        relay.cut((1, 2), (2, 1))
        for worker in workers:
            worker.order("turns 2 20")
        told = workers[0].hears("turned")["lost"]  # it reaches both
        relay.heal()
        told += sum(worker.hears("turned")["lost"] for worker in workers[1:])
        assert len(overlaps(stays(tmp_path))) <= told, "overlaps of which nobody was told"
        settles(tmp_path, workers)
        all_end(workers)


def test_the_larger_part_of_a_divided_group_goes_on_and_after_healing_all_do(tmp_path: Path):
    with relayed(tmp_path, 5) as (relay, workers):
        take_turns(workers, 2)
        relay.cut_off(0, 1)
        take_turns(workers[2:])
        for worker in workers[:2]:
            worker.order("turns 1 10")
        relay.heal()
        for worker in workers[:2]:
            worker.hears("turned")
        settles(tmp_path, workers)
        all_end(workers)


@pytest.mark.slow
def test_a_link_that_flaps_once_a_second_only_delays(tmp_path: Path):
    with relayed(tmp_path, 3) as (relay, workers):
        take_turns(workers, 2)
        for worker in workers:
            worker.order("turns 2 100")
        for _ in range(8):
            relay.cut_off(0)
            time.sleep(0.5)
            relay.heal()
            time.sleep(0.5)
        for worker in workers:
            worker.hears("turned")
        settles(tmp_path, workers)
        all_end(workers)


# --- weather ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weather",
    [
        Weather(duplication=0.5),
        Weather(reordering=0.3, late=0.02),
        Weather(delay=0.03, jitter=0.005),
        Weather(loss=0.05, delay=0.005, jitter=0.004, duplication=0.1, reordering=0.1),
    ],
    ids=["duplicated", "reordered", "delayed", "all of it"],
)
def test_bad_weather_makes_no_second_token(tmp_path: Path, weather: Weather):
    with relayed(tmp_path, 4, weather) as (relay, workers):
        assert take_turns(workers, 30) == 0
        all_end(workers)
        assert relay.counts["delivered"] > 40  # a hand-over takes two, and several turns of a process are one
    seen = stays(tmp_path)
    assert set(turns_of(seen).values()) == {60}
    assert_alone(seen)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_acquisitions_over_8_processes_under_5_percent_loss(tmp_path: Path):
    with relayed(tmp_path, 8, Weather(loss=0.05)) as (relay, workers):
        for worker in workers:
            worker.order("turns 25 50")
        for worker in workers:
            worker.hears("turned", patience_s=240)
        all_end(workers)
        assert relay.counts["lost"] > 50
    seen = stays(tmp_path)
    assert len(seen) == 10_000
    assert set(turns_of(seen).values()) == {1250}
    assert_alone(seen)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hand_over_for_each_of_a_thousand_acquisitions_under_5_percent_loss(tmp_path: Path):
    """One task a process: no two holds in a row, each needs all its messages."""
    with relayed(tmp_path, 8, Weather(loss=0.05)) as (_, workers):
        for worker in workers:
            worker.order("turns 1 125")
        lost = sum(worker.hears("turned", patience_s=240)["lost"] for worker in workers)
        all_end(workers)
    seen = stays(tmp_path)
    assert set(turns_of(seen).values()) == {125}
    assert len(overlaps(seen)) <= lost, "overlaps of which nobody was told"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_forty_percent_loss_everybody_still_gets_in(tmp_path: Path):
    with relayed(tmp_path, 4, Weather(loss=0.4)) as (relay, workers):
        lost = take_turns(workers, 10)
        seen = stays(tmp_path)
        assert set(turns_of(seen).values()) == {20}
        assert len(overlaps(seen)) <= lost, "overlaps of which nobody was told"
        relay.weather = Weather()
        take_turns(workers, 5)
        all_end(workers)
