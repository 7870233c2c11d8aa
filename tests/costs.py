"""What each room costs: `pytest -p tests.costs`, of all tests or of some, ends with a line for each.

Computing is that of the tests and of the processes that they have waited for, without what pytest itself does. Where a
room has more seconds than computing it waits, which costs nobody anything while others run beside it.
"""

import resource
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

STARTED = pytest.StashKey[float]()
COSTS: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])  # tests, seconds, of computing


def computed() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[STARTED] = computed()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "teardown":
        report.computed_s = computed() - item.stash[STARTED]
    return report


def pytest_runtest_logreport(report: Any) -> None:
    room = COSTS["/".join(report.nodeid.partition("::")[0].split("/")[:2])]
    room[0] += report.when == "teardown"
    room[1] += report.duration
    room[2] += getattr(report, "computed_s", 0.0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("what it costs")
    terminalreporter.line(f"{'room':<30} {'tests':>6} {'seconds':>8} {'computing':>10}")
    for room, (tests, seconds, computing) in sorted(COSTS.items(), key=lambda each: -each[1][2]):
        terminalreporter.line(f"{room:<30} {tests:>6.0f} {seconds:>8.1f} {computing:>10.1f}")
