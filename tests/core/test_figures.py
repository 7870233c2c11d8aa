"""What was chosen is what is written down (`figures.py`). A machine begins with nothing, and has all its fields."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import pytest

from softmutex import plugins
from softmutex.core.machine import View
from tests.core.figures import (
    FIGURES,
    MISSING,
    begins,
    everything,
    fields_of,
    first,
    group,
    machine,
    of_algorithm,
    of_module,
    part,
    parts,
)
from tests.core.within import within
from tests.sim.days import algorithms

ANEW = "on purpose? python -m tests.core.figures > tests/core/figures.txt"
WRITTEN = FIGURES.read_text().splitlines()
OF_MODULES = {line.partition("; ")[0]: line for line in WRITTEN if line.startswith("softmutex.")}


def of_modules(names: Iterable[str]) -> list[str]:
    """What they have now, of what is written down."""
    lines = [OF_MODULES[name].split("; ") for name in names]
    return [of_module(importlib.import_module(name), [each.partition(" ")[0] for each in its]) for name, *its in lines]


def at_home(things: Iterable[object]) -> list[str]:
    """In which modules, of those of which something is written down, they and their like are at home."""
    return sorted({kind.__module__ for thing in things for kind in type(thing).__mro__} & OF_MODULES.keys())


@pytest.mark.parametrize("name", algorithms())
def test_what_an_algorithm_was_given_is_what_is_written_down(name: str):
    whole = machine(name)
    homes = at_home(within(whole))
    assert of_modules(homes) == [OF_MODULES[home] for home in homes], ANEW
    declared = [*of_algorithm(plugins.algorithm(name)), begins(name, first(whole))]
    assert [line for line in declared if line not in WRITTEN] == [], ANEW


def test_what_a_group_was_given_is_what_is_written_down():
    whole = group()
    homes = at_home(within(whole))
    assert of_modules(homes) == [OF_MODULES[home] for home in homes], ANEW
    assert begins("group", first(whole)) in WRITTEN, ANEW


def test_what_all_modules_were_given_is_what_is_written_down():
    assert of_modules(OF_MODULES) == list(OF_MODULES.values()), ANEW


@pytest.mark.house
def test_no_figure_is_left_out():
    assert list(everything()) == WRITTEN, ANEW


@pytest.mark.parametrize("name", algorithms())
def test_a_machine_begins_without_a_token_and_waits_for_nothing(name: str):
    view = machine(name).view()
    assert view == View((), (), 0, state=view.state)


# So that nothing depends on what comes first.


@pytest.mark.parametrize("name", algorithms())
def test_a_machine_has_all_that_it_ever_has_from_the_beginning(name: str):
    assert [field for field, value in first(machine(name)) if value is MISSING] == []


def test_a_group_has_all_that_it_ever_has_from_the_beginning():
    assert [field for field, value in first(group()) if value is MISSING] == []


@pytest.mark.parametrize("kind", parts(), ids=lambda kind: kind.__name__)
def test_a_part_begins_with_what_is_written_down_and_has_all_that_it_ever_has(kind: type):
    found = list(fields_of(part(kind)))
    assert [field for field, value in found if value is MISSING] == []
    assert begins(kind.__name__, found) in WRITTEN, ANEW
