"""`softmutex sim compare --faults`: the table of the page *Which algorithm*, at a size that is cheap."""

from __future__ import annotations

import json

from softmutex.sim.compare_faults import FAULTS, FaultCell, as_json, as_text, one_cell


def test_a_strict_one_waits_for_a_silent_member_and_the_default_goes_on():
    strict, soft = one_cell("central", "power cut"), one_cell("wandering", "power cut")
    assert strict.stops and strict.overlap == 0
    assert not soft.stops and soft.use > 0.8


def test_a_coordinator_that_dies_is_followed_by_another_one():
    cell = one_cell("central", "coordinator dies")
    assert not cell.stops and cell.overlap == 0 and 1 < cell.standstill_s < 10


def test_the_table_has_a_row_for_each_algorithm_and_says_what_matters_most():
    cells = [
        FaultCell("central", "loss", 0.9, 2.06, 0.0, 0, False),
        FaultCell("central", "cut", 0.5, 99.0, 0.0, 0, True),
        FaultCell("voting", "loss", 0.9, 2.0, 0.003, 1, False),
        FaultCell("voting", "cut", 0.9, 2.0, 0.0, 1, False),
    ]
    assert as_text(cells) == (
        "| algorithm | loss | cut |\n| --- | --: | --: |\n"
        "| `central` | 90% 2.1s | 50% stops |\n| `voting` | 90% 2.0s 0.3%! | 90% 2.0s told |\n"
    )
    assert len(json.loads(as_json(cells))["cells"]) == 4


def test_each_kind_of_fault_is_there():
    assert {"loss", "duplication", "holder dies", "waiter dies", "coordinator dies", "pause", "cut", "churn"} < set(
        FAULTS
    )
