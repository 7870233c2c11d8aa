"""The examples in the docstrings do what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["runtime.mutex", "runtime.public", "runtime.sync", "testing.null"])
def test_the_examples_of_a_docstring_do_what_they_show(name: str):
    result = doctest.testmod(importlib.import_module(f"softmutex.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
