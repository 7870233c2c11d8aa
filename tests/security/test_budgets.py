"""Warnings: a budget for each reason, renewed with time, and none of them spent by strangers."""

import asyncio
import logging
import os

import pytest

from softmutex.core.wire import MAGIC, VERSION
from softmutex.runtime.budgets import HOUR, Budgets
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.limits import limit
from tests.runtime.group import node_on, until

KEY = bytes(range(32))


def test_each_reason_has_a_budget_of_its_own_that_is_renewed():
    budgets, most = Budgets(), limit("warnings for one reason in an hour")
    assert [budgets.take("cheap", str(number), 0) for number in range(most + 5)] == [True] * most + [False] * 5
    assert budgets.take("dear", "x", 0)
    assert not budgets.take("cheap", "one more", HOUR - 1)
    assert budgets.take("cheap", "one more", HOUR)


def test_what_was_said_is_remembered_for_a_thousand_others():
    budgets, most = Budgets(), limit("things said for one reason that are not said again")
    for number in range(most):
        assert budgets.take("cheap", str(number), number * HOUR)
    assert not budgets.take("cheap", "0", most * HOUR)
    assert budgets.take("cheap", "one more", most * HOUR)
    assert budgets.take("cheap", "0", most * HOUR)


@in_virtual_time
async def test_strangers_without_a_key_spend_no_warning(caplog: pytest.LogCaptureFixture):
    """1,001 datagrams of three bytes used up all warnings for life."""
    caplog.set_level(logging.WARNING, "softmutex")
    network = MemoryNetwork(seed=1)
    async with node_on(network, key=KEY, name="one") as one:
        for number in range(1001):
            stranger = network.transport(f"stranger {number}")
            await stranger.open()
            for data in (MAGIC + bytes([VERSION + 1]), MAGIC + bytes([VERSION]), b"\0" + os.urandom(59)):
                stranger.send(one.address, data)
            await stranger.aclose()
            await asyncio.sleep(0.001)
        await until(lambda: one.statistics().dropped.get("version") == 1001)
        assert (caplog.text, one.statistics().told) == ("", {})
