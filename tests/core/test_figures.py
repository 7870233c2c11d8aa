"""Times, bounds, switches: what was chosen is what is written down (`figures.py`). A machine begins with nothing."""

from __future__ import annotations

import importlib
import random

import pytest

from softmutex import plugins
from softmutex.core.group import Ego, Group
from softmutex.core.machine import Setup, View
from tests.core import figures
from tests.sim.days import algorithms


def test_what_was_chosen_is_what_is_written_down():
    """By machines and a group that can be made with it."""
    for name in algorithms():
        plugins.algorithm(name)(Setup(1, [1, 2, 3], random.Random(1)))
    Group(Ego(1, "here", "one", 1, b"secret", random.Random(1)))
    now = []
    for line in (written := figures.FIGURES.read_text().splitlines()):
        module, *its = line.split("; ")
        if module.startswith("softmutex."):
            now.append(figures.of_module(importlib.import_module(module), [each.partition(" ")[0] for each in its]))
    assert [*now, *figures.of_algorithms()] == written


@pytest.mark.house
def test_no_figure_is_left_out():
    assert list(figures.everything()) == figures.FIGURES.read_text().splitlines()


@pytest.mark.parametrize("name", algorithms())
def test_a_machine_begins_without_a_token_and_waits_for_nothing(name: str):
    view = plugins.algorithm(name)(Setup(1, [1, 2, 3], random.Random(1))).view()
    assert view == View((), (), 0, state=view.state)
