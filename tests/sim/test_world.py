"""The world is a driver as `machine.D1` to `machine.D7` promise one: timers, messages, clocks, pauses, demand."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from softmutex.core.events import (
    SECOND,
    CancelTimer,
    Effect,
    Event,
    Fired,
    Instant,
    Received,
    Requested,
    Send,
    SetTimer,
    Slept,
    Started,
)
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.core.messages import Refuse
from softmutex.sim import Clocks, Pause, Scenario, simulate
from softmutex.sim.tally import EPOCH
from tests.sim.machines import Walk


class Scripted(Algorithm):
    """Answers from a script, writes down what it was told."""

    name = "scripted"
    told: list[tuple[int, float, Event]]

    def __init__(self, setup: Setup) -> None:
        self.me = setup.me

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        self.told.append((self.me, (now - EPOCH) / SECOND, event))
        return self.answer(event, now)

    def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
        return ()

    def view(self) -> View:
        return View((), (), 0)


def told(script: type[Scripted], **changes: object) -> list[tuple[int, float, Event]]:
    script.told = []
    settings = {"nodes": 2, "duration_s": 100.0, "demand": "none", "laws": ("effects",), **changes}
    result = simulate(Scenario(algorithm=script, **settings))  # type: ignore[arg-type]
    assert result.violations == []
    return script.told


def fired(script: type[Scripted], **changes: object) -> list[tuple[int, float]]:
    return [(node, when) for node, when, event in told(script, **changes) if isinstance(event, Fired)]


def test_a_timer_fires_once_when_it_is_due():
    class Once(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [SetTimer("a", now + 3 * SECOND)] if isinstance(event, Started) else ()

    assert fired(Once) == [(1, 3.0), (2, 3.0)]


@pytest.mark.parametrize(("first", "then", "due"), [(3, 7, 7.0), (7, 3, 3.0), (5, 5, 5.0)])
def test_setting_a_timer_again_replaces_it(first: int, then: int, due: float):
    class Again(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            if not isinstance(event, Started):
                return ()
            return [SetTimer("a", now + first * SECOND), SetTimer("a", now + then * SECOND)]

    assert fired(Again) == [(1, due), (2, due)]


def test_a_timer_that_is_moved_to_and_fro_fires_once_at_the_last_of_its_moments():
    class Fidgets(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            match event:
                case Started():
                    return [
                        SetTimer("tick", now + SECOND),
                        *(SetTimer("a", now + n * SECOND) for n in (10, 4, 10, 20, 8)),
                    ]
                case Fired("tick") if now < EPOCH + 5 * SECOND:
                    return [SetTimer("tick", now + SECOND), SetTimer("a", now + 8 * SECOND)]
            return ()

    assert [(node, when) for node, when, event in told(Fidgets) if event == Fired("a")] == [(1, 12.0), (2, 12.0)]


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again():
    class Cancels(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            if not isinstance(event, Started):
                return ()
            gone = [SetTimer(("a", 1), now + SECOND), CancelTimer(("a", 1)), CancelTimer("never set")]
            return [*gone, SetTimer("b", now + SECOND), CancelTimer("b"), SetTimer("b", now + 2 * SECOND)]

    assert fired(Cancels) == [(1, 2.0), (2, 2.0)]


def test_messages_without_delay_arrive_at_once_and_in_order():
    class Sends(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [Send(2, Refuse(n)) for n in range(5)] if isinstance(event, Started) and self.me == 1 else ()

    got = [(node, when, event.message) for node, when, event in told(Sends) if isinstance(event, Received)]
    assert got == [(2, 0.0, Refuse(n)) for n in range(5)]


def test_messages_take_the_delay_and_vary_by_the_jitter():
    class Sends(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [Send(2, Refuse(n)) for n in range(2000)] if isinstance(event, Started) and self.me == 1 else ()

    times = [when for _, when, event in told(Sends, delay_s=2.0, jitter=0.25) if isinstance(event, Received)]
    assert len(times) == 2000
    assert min(times) == pytest.approx(1.5, abs=0.01) and max(times) == pytest.approx(2.5, abs=0.01)
    assert sum(times) / 2000 == pytest.approx(2.0, abs=0.03)


@pytest.mark.parametrize(
    ("setting", "low", "high"), [("loss", 1300, 1500), ("duplication", 2500, 2700), ("corruption", 1300, 1500)]
)
def test_loss_and_duplication_hit_the_share_that_was_asked_for(setting: str, low: int, high: int):
    class Sends(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [Send(2, Refuse(n)) for n in range(2000)] if isinstance(event, Started) and self.me == 1 else ()

    arrived = sum(isinstance(event, Received) for _, _, event in told(Sends, delay_s=0.1, **{setting: 0.3}))
    assert low < arrived < high


def test_a_message_to_nobody_is_silence():
    class Sends(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [Send(77, Refuse(1))]

    assert not any(isinstance(event, Received) for _, _, event in told(Sends))


def test_a_clock_that_runs_fast_fires_early_and_one_that_is_off_shows_it():
    class Once(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [SetTimer("a", now + 30 * SECOND)] if isinstance(event, Started) else ()

    fast = told(Once, faults=(Clocks(1.0, rate=2.0),))
    assert [when for _, when, event in fast if isinstance(event, Fired)] == [30.0, 30.0], "by its own clock"
    off = told(Once, faults=(Clocks(1.0, offset_s=50.0),))
    starts = {node: when for node, when, event in off if isinstance(event, Started)}
    assert all(-50 < when < 50 and when != 0 for when in starts.values())
    assert {node: when for node, when, event in off if isinstance(event, Fired)} == pytest.approx(
        {node: when + 30 for node, when in starts.items()}
    )


def test_a_clock_that_jumps_makes_timers_come_early_and_never_goes_back():
    class Ticks(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            return [SetTimer("a", now + SECOND)]

    ticks = [when for node, when in fired(Ticks, faults=(Clocks(1.0, jump_s=1000.0, at_s=50.5),)) if node == 1]
    assert ticks == sorted(ticks)
    assert ticks[49] == 50.0 and ticks[50] == pytest.approx(1050.5)


def test_a_paused_node_hears_everything_late():
    class Ticks(Scripted):
        def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
            if isinstance(event, Received | Slept):
                return ()
            return [SetTimer("a", now + SECOND), Send(3 - self.me, Refuse(1))]

    events = told(Ticks, faults=(Pause(20.0, 10.0, "random", times=1),), delay_s=0.1)
    gaps = {}
    for me in (1, 2):
        times = [when for node, when, _ in events if node == me]
        gaps[me] = max(later - earlier for earlier, later in pairwise(times))
    late = max(gaps, key=lambda me: gaps[me])
    assert gaps[late] > 9.0 and gaps[3 - late] < 1.5
    resumed = [event for node, when, event in events if node == late and when == 30.0]
    assert sum(isinstance(event, Received) for event in resumed) >= 9, "what the kernel kept"
    assert sum(isinstance(event, Fired) for event in resumed) == 1


def test_demand_asks_as_often_as_it_says():
    def asked(demand: str) -> int:
        script = type("Asked", (Scripted,), {})
        return sum(
            isinstance(event, Requested) for _, _, event in told(script, nodes=20, duration_s=10_000.0, demand=demand)
        )

    assert asked("none") == 0
    assert asked("saturated") == 20, "the next one only after a release"
    assert asked("poisson:0.5") == pytest.approx(5000, rel=0.05)
    assert asked("periodic:100") == 20, "the next one only when the last was served"


def test_periodic_demand_comes_once_a_period():
    result = simulate(Scenario(algorithm=Walk, nodes=20, duration_s=10_000.0, demand="periodic:500", op_s=1.0))
    assert result.acquisitions == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize(("hold", "mean"), [("fixed", 4.0), ("exponential", 4.0), ("uniform:1:3", 2.0)])
def test_a_takes_as_long_as_was_said(hold: str, mean: float):
    result = simulate(Scenario(algorithm=Walk, nodes=5, duration_s=20_000.0, hold=hold, keep_holds=True))
    assert result.holds is not None
    lengths = [(each.end - each.start) / SECOND for each in result.holds]
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.04)


def test_the_books_balance():
    result = simulate(
        Scenario(algorithm=Walk, nodes=7, duration_s=3_000.0, op_s=2.0, demand="poisson:0.2", delay_s=0.1)
    )
    assert sum(result.concurrency_ns.values()) == 3_000 * SECOND
    assert sum(result.tokens_ns.values()) == 3_000 * SECOND
    assert sum(result.acquired.values()) == result.acquisitions == len(result.waits)
    assert result.asked - result.acquisitions in range(10)
    assert result.concurrency_ns[1] == pytest.approx(2 * SECOND * result.acquisitions, abs=2 * SECOND)
