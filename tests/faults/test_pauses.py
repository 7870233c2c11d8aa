"""Processes that stop for longer than their lease and go on as if nothing had been: they learn what they missed."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import PATIENCE_S, Worker, assert_alone, group, overlaps, settles, stays, take_turns

REPLACED_S = 60.0  # a silent holder is replaced; about 3 s on a quiet machine
NEWS_S = 60.0  # the one that comes back learns of it


def until_counted(workers: Sequence[Worker], overlaps_of_each: list[int]) -> list[dict[str, Any]]:
    """What each tells of the mutex, as soon as the overlaps are counted: a moment after they were told of."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = [worker.statistics()["mutex"] for worker in workers]
        counted = [each["facts"].get("overlap", 0) for each in told]
        if counted == overlaps_of_each:
            return told
        assert time.monotonic() < deadline, f"{counted} overlaps were counted, and not {overlaps_of_each}"


def test_a_holder_that_sleeps_past_its_lease_is_replaced_and_told_so(tmp_path: Path):
    with group(tmp_path, [{}, {}, {}]) as workers:
        holder, other, _ = workers
        holder.enters("a")
        other.order("enter b")
        holder.queues(other)
        holder.is_watched()
        holder.send(signal.SIGSTOP)
        replaced = other.hears("in", key="b", patience_s=REPLACED_S)
        assert replaced["epoch"] > 1
        holder.send(signal.SIGCONT)
        holder.is_told_of_loss("a", NEWS_S)
        other.is_told_of_loss("b", NEWS_S)
        other.leaves("b")
        holder.leaves("a")
        assert len(overlaps(stays(tmp_path))) == 1
        counted = until_counted(workers, [1, 1, 0])  # each counts its own hold
        assert [each["lost"] for each in counted] == [1, 1, 0]
        settles(tmp_path, workers)
        for worker in workers:
            worker.ends()


def test_a_short_pause_costs_nothing(tmp_path: Path):
    with group(tmp_path, [{}, {}]) as workers:
        holder, other = workers
        holder.enters("a")
        other.order("enter b")
        holder.queues(other)
        holder.send(signal.SIGSTOP)
        time.sleep(0.5)
        holder.send(signal.SIGCONT)
        holder.leaves("a")
        assert other.hears("in", key="b")["epoch"] == 1
        assert not holder.has_said("lost")
        other.leaves("b")
    assert_alone(stays(tmp_path))


def test_a_node_that_slept_with_the_token_asks_before_it_uses_it_again(tmp_path: Path):
    with group(tmp_path, [{}, {}, {}]) as workers:
        sleeper, *others = workers
        for worker in [*others, sleeper]:
            worker.enters("a")
            worker.leaves("a")
        for _ in range(20):
            sleeper.send(signal.SIGSTOP)
            replaced = others[0].enters("b", patience_s=REPLACED_S)
            if replaced["epoch"] > 1:
                break
            others[0].leaves("b")  # the token had gone on before the other one fell asleep
            sleeper.send(signal.SIGCONT)
            sleeper.enters("a")
            sleeper.leaves("a")
        sleeper.order("enter b")  # the first thing that it does when it wakes up
        sleeper.send(signal.SIGCONT)
        others[0].queues(sleeper)  # so it knows of the other one's token, and waits for it
        assert not sleeper.has_said("in", key="b")
        others[0].leaves("b")
        assert sleeper.hears("in", key="b")["epoch"] == replaced["epoch"] > 1
        sleeper.leaves("b")
        assert not overlaps(stays(tmp_path))
        settles(tmp_path, workers)
        for worker in workers:
            worker.ends()


def test_a_waiter_that_slept_gets_its_turn_when_it_is_back(tmp_path: Path):
    with group(tmp_path, [{}, {}, {}]) as workers:
        holder, sleeper, other = workers
        holder.enters("a")
        sleeper.order("enter b")
        holder.queues(sleeper)
        sleeper.send(signal.SIGSTOP)
        other.order("enter c")
        holder.leaves("a")
        other.hears("in", key="c", patience_s=REPLACED_S)
        other.leaves("c")
        sleeper.send(signal.SIGCONT)
        sleeper.hears("in", key="b")
        sleeper.leaves("b")
        before = stays(tmp_path)
        assert not overlaps(before)
        settles(tmp_path, workers)


# --- a blocked event loop --------------------------------------------------------------------------------------------


def test_a_blocked_loop_is_counted_and_told_when_it_cost_the_mutex(tmp_path: Path):
    with group(tmp_path, [{}, {}, {}]) as workers:  # of two the other one would wait: it may be cut off itself
        holder, other, _ = workers
        holder.enters("a")
        other.order("enter b")
        holder.queues(other)
        holder.is_watched()
        holder.order("block 12")
        other.hears("in", key="b", patience_s=REPLACED_S)
        holder.is_told_of_loss("a", NEWS_S + 12)
        counted = holder.statistics()["node"]
        assert counted["loop_lags"] >= 1
        assert counted["loop_lag_max"] > 11
        other.leaves("b")
        holder.leaves("a")
        for worker in workers:
            worker.ends()


def test_a_node_on_a_thread_of_its_own_does_not_mind_a_blocked_loop(tmp_path: Path):
    with group(tmp_path, [{"thread": True}, {}]) as workers:
        holder, other = workers
        holder.enters("a")
        other.order("enter b")
        other.statistics()
        holder.order("block 6")
        holder.leaves("a")
        assert other.hears("in", key="b")["epoch"] == 1
        assert not holder.has_said("lost")
        other.leaves("b")
    assert_alone(stays(tmp_path))


@pytest.mark.slow
def test_three_seconds_of_a_busy_group_in_the_socket_of_a_sleeper_do_no_harm(tmp_path: Path):
    with group(tmp_path, [{}, {}, {}]) as workers:
        sleeper, *others = workers
        take_turns(workers, 5)
        sleeper.send(signal.SIGSTOP)
        began = time.monotonic()
        while time.monotonic() - began < 3:
            take_turns(others, 50)
        sleeper.send(signal.SIGCONT)
        take_turns(workers)
        for worker in workers:
            worker.ends()
    assert_alone(stays(tmp_path))
