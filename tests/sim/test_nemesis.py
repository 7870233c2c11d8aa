"""The nemesis draws what the issue of the wandering token names, each seed once and for all; failures become small."""

import functools
import json
import shlex
from collections import Counter

import pytest

from softmutex import plugins
from softmutex.cli import main
from softmutex.core.events import FactKind, LostReason
from softmutex.core.messages import HANDOVER, OF_NODE, name_of
from softmutex.sim import Batch, Churn, DeadLink, Kill, Partition, Scenario, rules, simulate
from softmutex.sim.campaign import Campaign, CampaignPlan, outcomes, run, smallest
from softmutex.sim.engine import InThisProcess, Processes
from softmutex.sim.nemesis import TROUBLES, draw, is_sound, weather_of
from softmutex.sim.report import command
from softmutex.sim.scenarios import scenario as named
from softmutex.sim.shrink import shrink
from tests.sim.machines import MakesAnotherToken
from tests.sim.offenders import Dozes


@functools.cache
def drawn() -> list[Scenario]:
    return [draw(seed) for seed in range(1, 1501)]


def test_a_seed_is_a_scenario():
    assert draw(7) == draw(7) != draw(8)


def test_sizes_reach_from_two_to_two_hundred_and_most_are_small():
    sizes = [scenario.nodes for scenario in drawn()]
    assert min(sizes) == 2 and max(sizes) >= 190
    assert sorted(sizes)[len(sizes) // 2] <= 12
    assert {draw(seed, nodes=(60, 60)).nodes for seed in range(9)} == {60}


def test_every_range_is_drawn_to_its_ends():
    assert (
        min(scenario.delay_s for scenario in drawn()) < 0.00011 and max(scenario.delay_s for scenario in drawn()) > 0.55
    )
    holds = [scenario.op_s for scenario in drawn()]
    assert max(holds) > 55 and sum(scenario.hold == "fixed:0" for scenario in drawn()) > 100
    assert {scenario.slots for scenario in drawn()} == set(range(1, 9))
    assert {scenario.when_isolated for scenario in drawn()} == {"wait", "proceed", "raise"}
    assert {scenario.on_lost for scenario in drawn()} == {"continue", "cancel"}
    assert {scenario.demand.partition(":")[0] for scenario in drawn()} == {"saturated", "bursts", "poisson", "periodic"}
    assert (
        max(scenario.loss for scenario in drawn()) == 0.4 and max(scenario.duplication for scenario in drawn()) > 0.45
    )
    batches = [fault for scenario in drawn() for fault in scenario.faults if isinstance(fault, Batch)]
    assert max(batch.count for batch in batches) >= 45
    cuts = [fault for scenario in drawn() for fault in scenario.faults if isinstance(fault, Partition)]
    assert {(cut.one_way, cut.mute) for cut in cuts} == {(False, False), (True, False), (True, True)}
    kills = [fault for scenario in drawn() for fault in scenario.faults if isinstance(fault, Kill)]
    assert {kill.silent for kill in kills} == {True, False}


def test_a_power_cut_leaves_more_than_half():
    """Of four the holder and the first one went at once, and the law waited for the others, which may not go on."""
    cuts = [
        (scenario.nodes, fault)
        for scenario in (draw(seed, (3, 4)) for seed in range(1, 400))
        for fault in scenario.faults
        if isinstance(fault, Kill) and fault.silent
    ]
    assert len(cuts) > 5
    for nodes, cut in cuts:
        assert cut.times is not None and 2 * cut.times * (2 if cut.target in ("both", "first") else 1) < nodes


def test_every_trouble_is_drawn_alone_and_with_others():
    found = Counter(name for scenario in drawn() for name in weather_of(scenario))
    assert found["nothing"] > 50
    assert len(found) >= len(TROUBLES) and min(found.values()) >= 20
    assert all(is_sound(scenario) for scenario in drawn())
    assert (
        min(scenario.nodes for scenario in drawn() if any(isinstance(each, DeadLink) for each in scenario.faults)) >= 4
    )


def test_every_run_is_five_minutes_long_and_its_command_is_the_same_run():
    for scenario in drawn()[:40]:
        assert scenario.duration_s >= 240 and scenario.settle_s >= 120
        words = shlex.split(command(scenario))
        assert words[:3] == ["softmutex", "sim", "run"]
    assert run(CampaignPlan(13, (2, 200), "wandering")).virtual_s >= 270


def test_the_command_of_a_drawn_run_replays_it(capsys: pytest.CaptureFixture[str]):
    scenario = draw(13)
    assert main([*shlex.split(command(scenario))[1:], "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["digest"] == simulate(scenario).digest


@pytest.mark.parametrize(("machine", "law"), [(MakesAnotherToken, "tokens"), (Dozes, "requests")])
def test_a_failure_is_made_as_small_as_it_gets(machine: type, law: str):
    large = Scenario(
        algorithm=machine, nodes=12, duration_s=200.0, settle_s=120.0, op_s=1.234, delay_s=0.0123, slots=1, place=77,
        ids="ascending", duplication=0.0, patience_s=60.0, hold="exponential", bound_s=10.0, seed=5,
        faults=(Churn(0.1), Batch(20.0, 7)),
    )  # fmt: skip
    assert law in {violation.law for violation in simulate(large).violations}
    small = shrink(large, law, patience_s=60.0)
    assert law in {violation.law for violation in simulate(small).violations}
    assert small.faults == () and small.nodes <= 4 and small.patience_s is None and small.hold == "fixed"
    assert small.duration_s < 100 and small.place == 0


@pytest.mark.parametrize("runs", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_a_campaign_adds_up_and_is_the_same_with_any_number_of_processes(runs: int):
    plans = [CampaignPlan(seed, (2, 12), "wandering") for seed in range(1, runs + 1)]
    alone, together = Campaign("wandering"), Campaign("wandering")
    for outcome in outcomes(plans, InThisProcess()):
        alone.add(outcome)
    for outcome in outcomes(plans, Processes(2)):
        together.add(outcome)
    one, other = alone.to_json(1.0), together.to_json(1.0)
    assert one == other
    assert one["runs"] == runs and sum(each["seeds"] for each in one["weather"].values()) >= runs
    assert one["virtual_seconds"] >= runs * 270
    text = alone.as_text(60.0)
    assert f"{60 * runs} seeds an hour" in text and "fairness" in text
    assert "how often each rule fired" in text and "lease" in text
    assert "COMMIT" in one["did"][next(iter(one["did"]))]


def test_what_was_found_is_told_with_a_command_that_shows_it_again():
    plan = CampaignPlan(1, (2, 2), "wandering")
    (found,) = smallest([(plan, "tokens")], InThisProcess(), patience_s=0.0)
    assert found.command.startswith("softmutex sim run --algorithm wandering --nodes 2") and found.seed == 1


def test_check_runs_seeds_and_says_what_it_watched(capsys: pytest.CaptureFixture[str]):
    words = ["sim", "check", "--seeds", "3", "--nodes", "2:5", "--shrink-for", "1"]
    assert main(words) in (0, 1)
    assert "of 3 seeds broken" in capsys.readouterr().out
    assert main([*words, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["runs"] == 3
    assert main(["sim", "check", "--nodes", "1:5"]) == 64
    assert "two numbers of nodes" in capsys.readouterr().err


def test_a_campaign_ends_when_its_time_is_over(capsys: pytest.CaptureFixture[str]):
    assert main(["sim", "check", "--for", "1s", "--nodes", "2:3", "--shrink-for", "0"]) in (0, 1)
    assert "seeds an hour" in capsys.readouterr().out


def test_a_rule_that_never_fired_under_a_weather_that_it_is_for_is_a_finding():
    seeds, nothing = {"cut": rules.ENOUGH, "churn": rules.ENOUGH - 1}, {"cut": {"COMMIT": 7}, "churn": {}}
    found = rules.silent("wandering", nothing, seeds)
    assert ("lease", "cut") in found and ("isolation", "cut") in found
    assert not any(weather == "churn" for _, weather in found)  # too little of it
    assert ("lease", "cut") not in rules.silent("wandering", {"cut": {"lost: lease": 1}}, seeds)
    assert rules.fired("wandering", {"COMMIT": 7, "NEW": 2})["hand-over"] == 7
    assert rules.fired("wandering", {"COMMIT": 7, "NEW": 2})["NEW"] == 2


def test_a_holder_that_slept_asks_whether_its_token_is_still_the_one_and_is_told_of_the_overlap():
    """Of `wandering` no lease runs out: who wakes looks first (`timer beat`, PROBE), and knows after a round trip."""
    did: Counter[str] = Counter()
    for seed in range(1, 4):
        result = simulate(named("pause-past-lease", "wandering", seed))
        did.update({**result.sent, **result.seen})
    assert did["lost: overlap"] and did["PROBE"] and not did["lost: lease"]
    assert ("lease", "pause") not in rules.silent("wandering", {"pause": did}, {"pause": rules.ENOUGH})


def test_the_signs_of_a_rule_are_there_to_be_seen():
    kinds = {f"fact {kind}" for kind in FactKind} | {f"lost: {reason}" for reason in LostReason} | {"overlap reported"}
    for algorithm, table in rules.RULES.items():
        messages = [HANDOVER, OF_NODE, plugins.algorithm(algorithm).messages]
        known = kinds | {name_of(kind) for each in messages for kind in each.values()}
        signs = {sign for rule in table for sign in rule.signs if not sign.startswith("timer ")}
        assert signs <= known and len({rule.name for rule in table}) == len(table)
