"""What a test needs from the machine, and what happens when the machine lacks it; which tests may run side by side.

A test says so once:  @pytest.mark.needs("redis-server")   @pytest.mark.needs("netns", "nft")

The naive way, skip decorators here and there, ends in a green run that tested half of the project and says so nowhere.
So on a developer's machine a test whose need is missing is left out, and the run closes with what was left out, why,
and the command that brings it in. With CI=true nothing may be left out: a test whose need is missing fails, and so does
one that skips itself.

With several workers (`pytest -n 2`) the rooms below PURE, which compute and wait for nothing, are run
by all of them, at the lowest priority. All other rooms start processes, listen on sockets or watch the clock: one
worker runs these, one after the other, as if it was alone.
"""

import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from tests.leaks import Census

IN_CI = os.environ.get("CI", "").lower() in {"true", "1", "yes"}
INSTALL = "sudo .ci/install-system"
PURE = ("algorithms", "core", "group", "handover", "sim", "wandering", "wire")

# No deadline: on a shared machine a slow example is no finding. In CI the examples are the same in every run.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "here")


# --- side by side ----------------------------------------------------------------------------------------------------


def is_pure(nodeid: str) -> bool:
    return nodeid.startswith(tuple(f"tests/{room}/" for room in PURE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Its own grouping by marks needs another pytest than the one of today."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:  # the largest group is given away first
            return nodeid if is_pure(nodeid) else "one by one"

    return Scheduling(config, log)


# --- needs -----------------------------------------------------------------------------------------------------------


def is_root() -> bool:
    return os.geteuid() == 0


def works(*command: str) -> bool:
    """Whether the command can be run and ends well."""
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def has_program(name: str) -> bool:
    """On PATH, or where Debian keeps PostgreSQL's server."""
    return bool(shutil.which(name) or list(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))


APSCHEDULER4 = "pip install --pre --target DIR 'apscheduler>=4.0.0a5', and give DIR in APSCHEDULER4_DIR"  # not beside 3

RECIPES = (  # they want an old redis
    "pip install --target DIR arq rq 'dramatiq[redis]' luigi snakemake kubernetes-validate python-hcl2, "
    "and give DIR in RECIPES_DIR"
)

# A need that is not in this table is a program.
CAPABILITIES: dict[str, tuple[Callable[[], bool], str]] = {
    "apscheduler4": (lambda: "APSCHEDULER4_DIR" in os.environ, APSCHEDULER4),
    "recipes": (lambda: "RECIPES_DIR" in os.environ, RECIPES),
    "root": (is_root, "run pytest as root"),
    "netns": (lambda: works("unshare", "--net", "ip", "link", "set", "lo", "up"), f"as root: {INSTALL}"),
    "nft": (lambda: works("unshare", "--net", "nft", "add", "table", "inet", "probe"), f"as root: {INSTALL}"),
}


class Needs:
    """Answers each need once a run, and remembers whom it sent home."""

    def __init__(self) -> None:
        self._met: dict[str, bool] = {}
        self.left_out: dict[str, list[str]] = defaultdict(list)

    def missing(self, item: pytest.Item) -> list[str]:
        wanted = [str(need) for marker in item.iter_markers("needs") for need in marker.args]
        return [need for need in wanted if not self._is_met(need)]

    def _is_met(self, need: str) -> bool:
        if need not in self._met:
            probe = CAPABILITIES[need][0] if need in CAPABILITIES else lambda: has_program(need)
            self._met[need] = probe()
        return self._met[need]

    def lines(self) -> list[str]:
        return [
            f"{len(tests)} test{'s' * (len(tests) != 1)}: no {need!r} here ({self.remedy(need)}): {', '.join(tests)}"
            for need, tests in self.left_out.items()
        ]

    @staticmethod
    def remedy(need: str) -> str:
        return CAPABILITIES[need][1] if need in CAPABILITIES else INSTALL


NEEDS = pytest.StashKey[Needs]()
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-try", action="store_true", help="what passes is named: it has failed before")
    parser.addoption("--rewrite", action="store_true", help="write trace files anew from what the machines do now")


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell's background job ignores them, and so would all we start
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    config.stash[NEEDS] = Needs()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs, kept, out = config.stash[NEEDS], [], []
    for item in items:
        missing = needs.missing(item)
        for need in missing:
            needs.left_out[need].append(item.name)
        (out if missing else kept).append(item)
    if out and not IN_CI:
        items[:] = kept
        config.hook.pytest_deselected(items=out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput") and is_pure(item.nodeid):  # what is not pure is over, or another worker's
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    if missing := item.config.stash[NEEDS].missing(item):
        pytest.fail(f"no {', '.join(missing)} here, and in CI no test may be left out", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--second-try"):
        names = {
            outcome: {report.nodeid for report in terminalreporter.stats.get(outcome, [])}
            for outcome in ("passed", "failed", "error")
        }
        failed = names["failed"] | names["error"]
        for name in sorted(names["passed"] - failed):
            terminalreporter.line(f"passed only at the second try: {name}", yellow=True)
        for name in sorted(failed):
            terminalreporter.line(f"failed at both tries: {name}", red=True)
    lines = config.stash[NEEDS].lines()
    if lines:
        terminalreporter.section("missing here" if IN_CI else "left out", yellow=True)
        for line in lines:
            terminalreporter.line(line)


def fail_if_skipped_in_ci(report: Report) -> Report:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and in CI no test may be left out: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return fail_if_skipped_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return fail_if_skipped_in_ci((yield))


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True under `pytest --rewrite`: a trace test writes its file instead of comparing with it."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Tasks, timers, file descriptors, threads and child processes are back to where they were when the test ends.

    Name it first among the fixtures, so that the others are torn down before it looks.
    """
    before = Census.take()
    yield
    await before.must_return()
