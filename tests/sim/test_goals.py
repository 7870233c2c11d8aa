"""`softmutex sim reproduce` of what is ours: the table of goals, the queue beside M/D/1, seed 001's case at scale."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softmutex.cli import main
from softmutex.core.events import SECOND, FactKind
from softmutex.sim import Result, Scenario, goals, goals_queue, goals_table, papers, simulate, steady, subscribers
from softmutex.sim.goals import AS_IT_IS, ROWS, VARIANTS, Trial, measure
from softmutex.sim.goals_queue import SERVICE_S, mean_wait_s, wait_at_s, waited_at_most
from softmutex.sim.papers_cells import FULL, QUICK, Effort, Verdict


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest runs that still go all the way."""
    lengths = {"recovery": 50.0, "both": 70.0, "load": 10.0, "loss": 10.0, "rare": 100.0, "idle": 20.0}
    monkeypatch.setattr(goals_table, "length", lambda row, nodes, variant, effort: lengths[row])
    monkeypatch.setattr(goals_queue, "QUICK_LENGTH_S", 300.0)
    monkeypatch.setattr(subscribers, "DURATION_S", 4000.0)
    monkeypatch.setattr(subscribers, "WINDOW_S", (1000.0, 2000.0))
    monkeypatch.setattr(papers, "QUICK", Effort(seeds=1, share=0.1, transients=1))


# --- the table of goals ----------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What was run, as it came out."""
    results: list[Result] = []

    def watched(*arguments: Any, **named: Any) -> Result:
        results.append(simulate(*arguments, **named))
        return results[-1]

    for module in (goals, steady):
        monkeypatch.setattr(module, "simulate", watched)
    return results


# row -> what must have happened in its run, or its figures say nothing
HAPPENS: dict[str, Callable[[Result], bool]] = {
    "recovery": lambda run: len(run.recoveries_ns) > 2,
    "both": lambda run: len(run.recoveries_ns) > 1 and run.facts[FactKind.GENERATED] > 2,
    "load": lambda run: run.acquisitions > 100 and run.busy > 0.5,
    "loss": lambda run: run.acquisitions > 100 and run.scenario.loss == 0.01,
    "rare": lambda run: 5 < run.acquisitions < 100,
    "idle": lambda run: run.acquisitions == 0 and run.messages > 10,
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_measures_what_it_names_in_a_run_in_which_it_happens(row: str, runs: list[Result]):
    length = {"load": 80.0, "idle": 300.0}.get(row, 200.0)
    values = measure(Trial(row, 5, AS_IT_IS, length))
    for figure, value in zip(ROWS[row].figures, values, strict=True):
        if "two hold" in figure.what:
            assert 0 <= value < 50, figure
        else:
            assert 0 < value <= (100 if figure.unit == "%" else 99), figure
    assert [HAPPENS[row](run) for run in runs] == [True]


@pytest.mark.parametrize(("open_s", "counted"), [(0, [3]), (5, [3]), (50, [3, 50])])
def test_what_nobody_recovered_from_is_not_left_out(open_s: int, counted: list[int]):
    """Unless it had just begun when the run ended."""
    run = simulate(Scenario(nodes=3, duration_s=1.0))
    lost = dataclasses.replace(run, recoveries_ns=(3 * SECOND,), bereft_ns=open_s * SECOND)
    assert goals.outages_ns(lost) == [each * SECOND for each in counted]


def test_without_hints_a_rare_request_costs_a_walk():
    with_hints, without = (measure(Trial("rare", 10, variant, 200.0)) for variant in (AS_IT_IS, "no hints"))
    assert without[0] > 20 * with_hints[0]
    assert without[1] > 4 * with_hints[1]


def test_only_the_algorithm_as_it_is_is_judged():
    each = Trial("idle", 10, "no hints", 1.0)
    assert [cell.verdict for cell in goals_table.cells_of(each, (99.0,))] == [Verdict.SHOWN]
    assert [cell.verdict for cell in goals_table.cells_of(each._replace(variant=AS_IT_IS), (99.0,))] == [Verdict.FAIL]


def test_a_goal_is_that_of_the_next_size_that_the_design_names():
    messages = ROWS["rare"].figures[0].goal
    assert [messages(nodes) for nodes in (3, 10, 11, 300, 301, 10_000, 100_000)] == [9, 9, 12, 12, 16, 16, 16]


def test_the_algorithm_as_it_is_is_run_longest_and_a_quick_run_never_longer():
    for row in ROWS:
        for nodes in (10, 300, 10_000, 100_000):
            full, quick = (goals_table.length(row, nodes, AS_IT_IS, effort) for effort in (FULL, QUICK))
            assert quick <= full
            assert all(goals_table.length(row, nodes, variant, FULL) <= full for variant in VARIANTS)


@pytest.mark.usefixtures("tiny")
def test_the_table_has_a_line_a_figure_and_a_column_a_variant(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    main(["sim", "reproduce", "wandering", "--nodes", "5", "4", "--plot", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.index("N = 4") < said.index("N = 5")
    for variant in VARIANTS:
        assert said.count(f"  {variant}") == 2
    for row in ROWS.values():
        for figure in row.figures:
            assert said.count(f"  {figure.what}") == 2
    assert (tmp_path / "wandering.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_growth_is_drawn_and_can_be_kept_with_the_command_that_makes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    flags = ["--nodes", "4", "8", "--quick"]
    main(["sim", "reproduce", "wandering-growth", *flags, "--plot", str(tmp_path), "--markdown"])
    said = capsys.readouterr().out
    assert "`softmutex sim reproduce wandering-growth --nodes 4 8 --quick`" in said
    assert "![The wandering token from ten members to a hundred thousand](wandering-growth.png)" in said
    assert "\n| 8 | " in said
    assert (tmp_path / "wandering-growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "10"], "--nodes does not fit 000-table1"),
        (["001-subscribers", "--nodes", "10"], "--nodes does not fit 001-subscribers"),
        (["wandering", "--nodes", "2"], "--nodes 2: give sizes of 3 or more"),
    ],
)
def test_sizes_are_given_to_what_has_them(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["sim", "reproduce", *arguments]) == 64
    assert said in capsys.readouterr().err


def test_ours_is_what_no_paper_prints():
    assert [exhibit.name for exhibit in papers.choose(["ours"])] == [
        "wandering",
        "wandering-growth",
        "wandering-queue",
        "001-subscribers",
    ]


# --- beside M/D/1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", goals_queue.LOADS)
def test_the_distribution_on_paper_has_the_mean_on_paper(load: float):
    """Erlang's formula and Pollaczek's and Khinchine's, which know nothing of each other."""
    step_s = 0.01
    mean_s = sum(1 - waited_at_most(load, at * step_s) for at in range(1500)) * step_s - step_s * load / 2
    assert mean_s == pytest.approx(mean_wait_s(load), rel=0.01)


@pytest.mark.parametrize("load", goals_queue.LOADS)
def test_a_quantile_on_paper_is_where_so_many_are_served(load: float):
    assert waited_at_most(load, 0) == pytest.approx(1 - load)
    for share in (0.5, 0.9, 0.99):
        wait_s = wait_at_s(load, share)
        assert waited_at_most(load, wait_s) >= share - 1e-6
        assert wait_s == 0 or waited_at_most(load, wait_s - 0.01) < share


def test_the_measured_queue_is_no_shorter_than_the_limit_and_within_what_is_allowed():
    waits = goals_queue.measure(goals_queue.Load(20, 0.6, 4000.0))
    best_s = mean_wait_s(0.6)
    assert 0.85 * best_s < waits.mean_s < 1.3 * best_s + goals_queue.HAND_OVER_S
    assert waits.served_by[-1] == 1.0
    assert list(waits.served_by) == sorted(waits.served_by)
    assert waits.at_s[0] < waits.at_s[1] < waits.at_s[2]
    assert math.isclose(SERVICE_S, goals.A_S + goals.D_S)


@pytest.mark.usefixtures("tiny")
def test_a_quick_queue_is_shown_and_not_judged(capsys: pytest.CaptureFixture[str]):
    assert main(["sim", "reproduce", "wandering-queue", "--quick", "--nodes", "5", "--json"]) == 0
    (exhibit,) = json.loads(capsys.readouterr().out)["exhibits"]
    assert [cell["verdict"] for cell in exhibit["cells"]] == ["shown"] * 3


# --- seed 001's case -------------------------------------------------------------------------------------------------


def test_unread_data_piles_up_between_downloads_and_a_download_takes_no_more_than_the_link_carries(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(subscribers, "DURATION_S", 4000.0)
    assert subscribers.most_unread_mb([0.0, 1000.0, 2000.0, 3000.0]) == pytest.approx(650)
    # 1300 MB after 2000 s, of which 800 are fetched; 500 and 650 more after another 1000 s, 350 and 650 at the end
    assert subscribers.most_unread_mb([0.0, 2000.0, 3000.0]) == pytest.approx(1300)
    assert subscribers.most_unread_mb([0.0, 1900.0, 3000.0]) == pytest.approx(1235)
    assert subscribers.most_unread_mb([0.0]) == pytest.approx(2600)


@pytest.mark.usefixtures("tiny")
def test_the_three_ways_are_run_printed_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code = main(["sim", "reproduce", "001-subscribers", "--quick", "--plot", str(tmp_path)])
    said = capsys.readouterr().out
    assert code == 0, said
    assert all(way in said for way in subscribers.WAYS)
    assert "buffer of the server" in said
    assert (tmp_path / "001-subscribers.png").read_bytes().startswith(b"\x89PNG")
