"""What machines hear of their group where all share one view: who is dead, silent, back, and how many are reached."""

from collections.abc import Sequence
from typing import Any

import pytest

from softmutex.core.events import (
    SECOND,
    CallRoll,
    Effect,
    Event,
    Fired,
    Instant,
    Level,
    MembersChanged,
    Reach,
    Received,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Started,
    Suspect,
)
from softmutex.core.messages import Refuse
from softmutex.sim import DeadLink, Kill, Partition, Pause, Scenario, simulate
from tests.sim.test_world import Scripted


class Suspicious(Scripted):
    """Node 1 suspects node 4 after 20 s, everybody calls the roll of all after 25 s, and 1 writes to 4 after 30 s."""

    name = "suspicious"

    def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
        match event:
            case Started():
                return [
                    SetTimer(name, now + at * SECOND) for name, at in (("suspect", 20), ("roll", 25), ("write", 30))
                ]
            case Fired("suspect") if self.me == 1:
                return [Suspect(4)]
            case Fired("roll"):
                return [CallRoll(True)]
            case Fired("write") if self.me == 1:
                return [Send(4, Refuse(1))]
        return ()


def heard(
    *faults: Any, nodes: int = 6, machine: type[Suspicious] = Suspicious, **changes: Any
) -> list[tuple[int, float, Event]]:
    machine.told = []
    settings = {"duration_s": 60.0, "demand": "none", "delay_s": 0.01, "detection_s": 55.0, "laws": ("effects",)}
    result = simulate(Scenario(algorithm=machine, nodes=nodes, faults=faults, **{**settings, **changes}))
    assert result.violations == []
    return machine.told


def of(kind: type, told: list[tuple[int, float, Event]], node: int) -> list[tuple[float, Any]]:
    return [(when, event) for who, when, event in told if who == node and isinstance(event, kind)]


def test_who_answers_is_no_news():
    told = heard()
    assert not of(Silenced, told, 1) and not of(MembersChanged, told, 1)
    assert [event.level for _, event in of(Reach, told, 1)] == [Level.MORE]


class Everybody(Suspicious):
    """Everybody suspects everybody after 20 s."""

    name = "everybody"

    def answer(self, event: Event, now: Instant) -> Sequence[Effect]:
        if event == Fired("suspect"):
            return [Suspect(other) for other in range(1, 5) if other != self.me]
        return [] if isinstance(event, Fired) else super().answer(event, now)


def test_a_paused_member_is_silent_and_then_back():
    told = heard(Pause(19.0, 12.0, "random", times=1), nodes=4, machine=Everybody)
    silent = [(node, when, event.node) for node in range(1, 5) for when, event in of(Silenced, told, node)]
    back = [(node, when, event.node) for node in range(1, 5) for when, event in of(Returned, told, node)]
    (paused,) = {who for _, _, who in silent}
    assert sorted(node for node, *_ in silent) == sorted(node for node, *_ in back) == sorted({1, 2, 3, 4} - {paused})
    assert all(21 < when < 22 for _, when, _ in silent) and all(31 <= when < 35 for _, when, _ in back)


@pytest.mark.parametrize("silent", [False, True])
def test_a_dead_process_on_a_living_host_is_known_to_be_dead_and_a_dead_host_is_silent(silent: bool):
    kill = Kill(19.5, "random", restart_s=None, times=1, silent=silent)
    told = heard(kill, nodes=4, machine=Everybody)
    living = [node for node in range(1, 5) if max(when for who, when, _ in told if who == node) >= 20]
    assert len(living) == 3
    for node in living:
        news = of(Silenced if silent else MembersChanged, told, node)
        assert len(news) == 1 and 20 < news[0][0] < 22
        assert not of(MembersChanged if silent else Silenced, told, node)


def test_who_is_silent_for_too_long_no_longer_counts():
    told = heard(
        Kill(19.5, "random", restart_s=None, times=1, silent=True),
        nodes=4,
        machine=Everybody,
        isolated_timeout_s=10.0,
        own_views=True,
    )
    gone = [when for node in range(1, 5) for when, event in of(MembersChanged, told, node) if event.left]
    assert len(gone) == len([node for node in range(1, 5) if of(Silenced, told, node)]) == 3
    assert all(29.9 < when < 31 for when in gone)


@pytest.mark.parametrize(("share", "levels"), [(0.4, {Level.LESS, Level.MORE}), (0.5, {Level.HALF})])
def test_a_roll_call_says_on_which_side_of_a_cut_it_was_called(share: float, levels: set[Level]):
    told = heard(Partition(5.0, 45.0, share), nodes=10)
    found = {event.level for node in range(1, 11) for _, event in of(Reach, told, node)}
    assert found == levels
    small = [node for node in range(1, 11) for _, event in of(Reach, told, node) if event.level is Level.LESS]
    assert len(small) in (0, 4)
    for node in [who for who, _, event in told if isinstance(event, Reach) and event.level is not Level.MORE]:
        lost, back = of(Silenced, told, node), of(Returned, told, node)
        assert {event.node for _, event in lost} == {event.node for _, event in back}, "suspected, and looked for"
        assert all(45 < when < 60 for when, _ in back)


def test_a_large_group_is_sampled_and_every_ping_is_counted():
    Suspicious.told = []
    result = simulate(
        Scenario(algorithm=Suspicious, nodes=300, duration_s=60.0, demand="none", delay_s=0.01, laws=("effects",))
    )
    assert result.sent["PING"] == result.sent["PONG"] == pytest.approx(300 * 32, rel=0.01)


def test_a_dead_link_is_gone_round_by_way_of_another():
    for seed in range(1, 30):
        told = heard(DeadLink(5.0, 59.0, "random"), seed=seed)
        assert not any(of(Silenced, told, node) for node in range(1, 7)), "it answers by way of others"
        assert len(of(Received, told, 4)) == 1, "and is written to by way of others"
