"""Seed 002's tables come out: what an entry and an election cost, to the message."""

import pytest

from softmutex.cli import main


def test_the_formulas_of_seed_002_are_what_is_counted(capsys: pytest.CaptureFixture[str]):
    assert main(["sim", "reproduce", "002-exclusion", "002-election"]) == 0
    out = capsys.readouterr().out
    assert "27 of 27 judged cells hold" in out
    assert "bully, n=50, best" in out and "Ricart-Agrawala, n=50: messages" in out
