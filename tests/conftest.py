"""What a test needs from the machine, and what happens when the machine lacks it; what is left out, and says so.

A test says so once:  @pytest.mark.needs("redis-server")   @pytest.mark.needs("netns", "nft")

The naive way, skip decorators here and there, ends in a green run that tested half of the project and says so nowhere.
So on a developer's machine a test whose need is missing is left out, and the run closes with what was left out, why,
and the command that brings it in. With CI=true nothing may be left out: a test whose need is missing fails, and so does
one that skips itself.

What is marked `slow` is left out, and named at the end, unless it is asked for: `--all`, `-m slow`, a test by its name,
or CI=true. Whole runs and whole rooms have several workers: `tests/scheduling.py`.
"""

import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from tests import scheduling
from tests.leaks import Census

IN_CI = os.environ.get("CI", "").lower() in {"true", "1", "yes"}
INSTALL = "sudo .ci/install-system"

# No deadline: on a shared machine a slow example is no finding. Ten examples by default, as many tests draw them for
# each of a hundred messages; a hundred with --all and in CI, where they are the same in every run.
settings.register_profile("here", deadline=None, max_examples=10)
settings.register_profile("all", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)


# --- side by side ----------------------------------------------------------------------------------------------------

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process of a test would compile the whole package again
sys.dont_write_bytecode = False  # and so would each worker all tests
QUIET = os.nice(0)
OFTEN = gc.get_threshold()
SELDOM = (100_000, 50, 100)  # a search makes millions of states, and hardly any garbage: a tenth of its time
MOST_S = 300.0  # a test takes; as in pyproject.toml
BELOW_ALL_OTHERS_S = 1800.0
PLAN_FILE = pytest.StashKey[Path]()
LONGEST_TMPDIR = 40  # the path of a socket has 107 bytes, and tests put theirs into `tmp_path`
PLAN = "softmutex_plan"  # the file in which the workers write what kind of test each is


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Whole runs and whole rooms have several workers, where nobody says otherwise: `-n 0`, `-p no:xdist`."""
    option = config.option
    if len(tempfile.gettempdir()) > LONGEST_TMPDIR and not option.basetemp:
        option.basetemp = tempfile.mkdtemp(prefix="softmutex-", dir="/tmp")
        config.add_cleanup(lambda: shutil.rmtree(option.basetemp, ignore_errors=True))
    chosen = getattr(option, "numprocesses", 0) is not None or option.collectonly or option.usepdb
    if is_worker(config) or chosen or option.capture == "no" or option.keyword:
        return
    if all((config.invocation_params.dir / arg).is_dir() for arg in config.args):
        option.numprocesses = scheduling.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[PLAN] = str(plan_of(node.config))


def plan_of(config: pytest.Config) -> Path:
    if PLAN_FILE not in config.stash:
        folder = tempfile.mkdtemp(prefix="softmutex-plan-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.stash[PLAN_FILE] = Path(folder, "plan.json")
    return config.stash[PLAN_FILE]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.Scheduling:
    return scheduling.Scheduling(len(config.option.tx), plan_of(config))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # nothing of it is garbage, and each worker would look through it again and again
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # whoever hands them out is told in another one
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()  # 5,000 tests and what they import stay: to look through it takes 0.2 s, and a census looks each time
    if is_worker(session.config):
        scheduling.write_plan(Path(session.config.workerinput[PLAN]), session.items)  # type: ignore[attr-defined]


def a_place_of_its_own(config: pytest.Config) -> None:
    """What programs put beside others' things (TMPDIR) no other worker finds; the name is short, for sockets."""
    folder = tempfile.mkdtemp(prefix=f"sm-{config.workerinput['workerid']}-")  # type: ignore[attr-defined]
    os.chmod(folder, 0o755)  # some tests have other users look in, as /tmp itself would let them
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def give_way(item: pytest.Item) -> None:
    """What only computes fills the cores while others wait. Without root there is no way back, and none is needed."""
    if is_worker(item.config):
        with contextlib.suppress(PermissionError):
            below = scheduling.GIVES_WAY if scheduling.is_pure(item.nodeid) else 0
            os.setpriority(os.PRIO_PROCESS, 0, min(QUIET + below, 19))


# --- nothing hangs for ever ------------------------------------------------------------------------------------------
#
# A test's time limit (pytest-timeout) is an exception in the main thread. What waits again in a `finally` (a pool of
# processes for its children), or outside of Python, or when the interpreter ends, would wait for ever. The process ends
# then, and says where each of its threads stands.

STDERR = pytest.StashKey[int]()
GRACE_S = 60.0


def end_it_if_it_hangs(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0]) if marker and marker.args else MOST_S
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    end_it_if_it_hangs(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    end_it_if_it_hangs(item)  # pytest's own plugin forgets it where a test fails


def pytest_unconfigure(config: pytest.Config) -> None:
    if not is_worker(config):  # which is ended by whoever began it
        faulthandler.dump_traceback_later(GRACE_S, exit=True, file=config.stash[STDERR])


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
    "pip install --target DIR ansible-core arq rq 'dramatiq[redis]' luigi snakemake kubernetes-validate python-hcl2, "
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
    """Answers each need once a run, and remembers whom it sent home. All workers send home the same."""

    def __init__(self) -> None:
        self._met: dict[str, bool] = {}
        self.left_out: dict[str, list[str]] = defaultdict(list)
        self.slow: list[str] = []

    def missing(self, item: pytest.Item) -> list[str]:
        wanted = [str(need) for marker in item.iter_markers("needs") for need in marker.args]
        return [need for need in wanted if not self._is_met(need)]

    def _is_met(self, need: str) -> bool:
        if need not in self._met:
            probe = CAPABILITIES[need][0] if need in CAPABILITIES else lambda: has_program(need)
            self._met[need] = probe()
        return self._met[need]

    def lines(self) -> list[str]:
        lines = [
            f"{len(tests)} test{'s' * (len(tests) != 1)}: no {need!r} here ({self.remedy(need)}): {', '.join(tests)}"
            for need, tests in self.left_out.items()
        ]
        if self.slow:
            rooms = Counter(nodeid.partition("::")[0].rpartition("/")[0] or "tests" for nodeid in self.slow)
            where = ", ".join(f"{count} in {room}" for room, count in sorted(rooms.items()))
            lines.append(f"{len(self.slow)} slow tests (pytest -m slow; with all others: pytest --all): {where}")
        return lines

    @staticmethod
    def remedy(need: str) -> str:
        return CAPABILITIES[need][1] if need in CAPABILITIES else INSTALL


NEEDS = pytest.StashKey[Needs]()
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="what is slow, too; in CI it always is")
    parser.addoption("--rewrite", action="store_true", help="write trace files anew from what the machines do now")


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell's background job ignores them, and so would all we start
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # after `nohup` we still do, but what we start does not
        signal.signal(signal.SIGHUP, lambda *_: None)
    config.stash[STDERR] = os.dup(2)  # as it is outside of any test
    settings.load_profile("ci" if IN_CI else "all" if config.getoption("--all") else "here")
    config.stash[NEEDS] = Needs()
    if is_worker(config):
        a_place_of_its_own(config)


def is_left_out_for_slowness(config: pytest.Config, item: pytest.Item) -> bool:
    asked = IN_CI or config.getoption("--all") or "slow" in config.option.markexpr
    return not asked and item.get_closest_marker("slow") is not None and not any("::" in arg for arg in config.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs, kept, out = config.stash[NEEDS], [], []
    for item in items:
        if scheduling.is_pure(item.nodeid):  # it gets what others leave
            item.add_marker(pytest.mark.timeout(BELOW_ALL_OTHERS_S), append=False)
        if is_left_out_for_slowness(config, item):
            needs.slow.append(item.nodeid)
            out.append(item)
            continue
        missing = needs.missing(item)
        if missing and not IN_CI:
            for need in missing:
                needs.left_out[need].append(item.name)
            out.append(item)
        else:
            kept.append(item)
    if out:
        items[:] = kept
        config.hook.pytest_deselected(items=out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        needs = session.config.stash[NEEDS]
        session.config.workeroutput["left_out"] = dict(needs.left_out), needs.slow  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    needs = node.config.stash[NEEDS]
    left_out, slow = getattr(node, "workeroutput", {}).get("left_out", ({}, []))
    needs.left_out.update(left_out)
    needs.slow = needs.slow or slow


def pytest_runtest_setup(item: pytest.Item) -> None:
    give_way(item)
    gc.set_threshold(*(SELDOM if scheduling.is_pure(item.nodeid) else OFTEN))
    if missing := item.config.stash[NEEDS].missing(item):
        pytest.fail(f"no {', '.join(missing)} here, and in CI no test may be left out", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash[NEEDS].lines()
    if lines:
        terminalreporter.section("left out", yellow=True)
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
