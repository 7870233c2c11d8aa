"""The suite's own mechanism: needs, CI, leaks. Each test runs a small suite of its own in another process."""

import ast
import asyncio
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tests import prepared, scheduling
from tests.leaks import Census

HERE = Path(__file__).parent
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds to import
ONE_NEEDY_TEST = """
import pytest
@pytest.mark.needs("no-such-program")
def test_needy(): raise AssertionError("it ran")
def test_modest(): pass
"""
ONE_SLOW_TEST = """
import pytest
@pytest.mark.slow
def test_slow(): pass
def test_quick(): pass
"""
WHERE_AND_WHEN = """
import os, pytest, time
@pytest.mark.parametrize("number", range(4))
def test_where(number, record_property):
    began = time.monotonic()
    time.sleep(0.05)
    worker, nice = os.environ["PYTEST_XDIST_WORKER"], os.getpriority(os.PRIO_PROCESS, 0)
    record_property("ran", f"{began} {time.monotonic()} {worker} {nice}")
"""
HANGS_IN_ONE_TEST = """
import pytest, time
@pytest.mark.timeout(-59)  # that is a second, with the minute that the process has beyond a test's time
def test_hangs():
    while True:
        try: time.sleep(99)
        except BaseException: pass
def test_next(): pass
"""
DIES_IN_ONE_TEST = """
import os, pytest
@pytest.mark.parametrize("number", range(8))
def test_deadly(number):
    if number == 3: os._exit(1)
"""
ONE_SHY_TEST = """
import pytest
def test_shy(): pytest.skip("not today")
def test_bold(): pass
"""


def run_suite(where: Path, tests: str | dict[str, str], *options: str, ci: bool = False) -> tuple[int, str]:
    lay_out(where, tests if isinstance(tests, dict) else {"test_it.py": tests})
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=where,
        env={**os.environ, **NO_OTHER_PLUGINS, "CI": "true" if ci else ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return run.returncode, run.stdout + run.stderr


def lay_out(where: Path, tests: dict[str, str]) -> None:
    (where / "tests").mkdir()
    for name in ("conftest.py", "leaks.py", "scheduling.py"):
        shutil.copy(HERE / name, where / "tests")
    for name, source in tests.items():
        (where / "tests" / name).parent.mkdir(exist_ok=True)
        (where / "tests" / name).write_text(source)
    settings = (
        "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers =\n  needs\n  slow\n  alone\n  timeout\n"
    )
    (where / "pytest.ini").write_text(settings)


def test_a_test_whose_need_is_missing_is_left_out_and_named_with_the_remedy(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_NEEDY_TEST)
    assert code == 0, said
    assert "1 passed, 1 deselected" in said
    assert "1 test: no 'no-such-program' here (sudo .ci/install-system): test_needy" in said


def test_in_ci_a_test_whose_need_is_missing_fails(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_NEEDY_TEST, ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "no no-such-program here, and in CI no test may be left out" in said
    assert "1 passed, 1 error" in said


def test_in_ci_a_test_that_skips_itself_fails(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_SHY_TEST, ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 1 passed" in said
    assert "not today" in said


def test_elsewhere_a_test_may_skip_itself(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_SHY_TEST)
    assert code == 0, said
    assert "1 passed, 1 skipped" in said


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "with workers"])
def test_what_is_slow_is_left_out_and_named_with_the_way_to_run_it(tmp_path: Path, workers: list[str]):
    code, said = run_suite(tmp_path, {"test_it.py": ONE_SLOW_TEST + ONE_NEEDY_TEST}, *workers)
    assert code == 0, said
    assert "2 passed" in said
    assert "1 slow tests (pytest -m slow; with all others: pytest --all): 1 in tests" in said
    assert "1 test: no 'no-such-program' here" in said


@pytest.mark.parametrize("asked", [["--all"], ["-m", "slow"], ["tests/test_it.py::test_slow"], "CI"], ids=str)
def test_what_is_slow_runs_where_it_is_asked_for(tmp_path: Path, asked: list[str] | str):
    code, said = run_suite(tmp_path, ONE_SLOW_TEST, *(() if asked == "CI" else asked), "-v", ci=asked == "CI")
    assert code == 0, said
    assert "test_slow PASSED" in said


class Ran(NamedTuple):
    began: float
    ended: float
    worker: str
    nice: int


def ran(results: Path) -> dict[str, list[Ran]]:
    """What the tests of WHERE_AND_WHEN told, by room."""
    told: dict[str, list[Ran]] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        [words] = [each.attrib["value"].split() for each in case.iter("property")]
        room = case.attrib["classname"].split(".")[1]
        told.setdefault(room, []).append(Ran(float(words[0]), float(words[1]), words[2], int(words[3])))
    return told


def test_with_workers_what_computes_gives_way_to_what_waits_and_what_needs_quiet_comes_last(tmp_path: Path):
    tests = {f"{room}/test_it.py": WHERE_AND_WHEN for room in ("adapters", "core", "faults", "wire")}
    tests["quiet/test_it.py"] = WHERE_AND_WHEN.replace("@pytest", "@pytest.mark.alone\n@pytest", 1)
    results = tmp_path / "results.xml"
    code, said = run_suite(tmp_path, tests, "-p", "xdist", "-n", "6", f"--junitxml={results}")
    assert code == 0, said
    told = ran(results)
    given_way = min(os.nice(0) + scheduling.GIVES_WAY, 19)
    assert {room: len(each) for room, each in told.items()} == dict.fromkeys([*(t.split("/")[0] for t in tests)], 4)
    assert all(each.nice == given_way for each in told["core"] + told["wire"])
    quiet = sorted(told.pop("quiet"))
    waited = told["adapters"] + told["faults"]
    assert len({each.worker for each in waited}) > 1
    may_go_back = os.geteuid() == 0 and given_way > os.nice(0)  # only root is given its priority back
    assert not (may_go_back and any(each.nice == given_way for each in waited))
    assert max(each.ended for others in told.values() for each in others) <= quiet[0].began
    assert all(one.ended <= other.began for one, other in pairwise(quiet))
    assert len({each.worker for each in quiet}) == 1


def test_who_has_computed_all_helps_those_who_wait(tmp_path: Path):
    until_all_is_computed = "while len(os.listdir('computed')) < 4: time.sleep(0.01)"
    waits = WHERE_AND_WHEN.replace("time.sleep(0.05)", until_all_is_computed)
    tests = {f"{room}/test_it.py": waits for room in ("adapters", "agent", "cli", "faults", "registry")}
    tests["core/test_it.py"] = WHERE_AND_WHEN.replace("time.sleep(0.05)", "open(f'computed/{number}', 'x').close()")
    (tmp_path / "computed").mkdir()
    results = tmp_path / "results.xml"
    code, said = run_suite(tmp_path, tests, "-p", "xdist", "-n", "2", f"--junitxml={results}")
    assert code == 0, said
    told = ran(results)
    [computed] = {each.worker for each in told.pop("core")}
    assert computed in {each.worker for room in told.values() for each in room}


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "with workers"])
def test_what_each_room_costs_is_told_where_it_is_asked_for(tmp_path: Path, workers: list[str]):
    computes = "def test_it(): sum(range(10_000_000))"
    tests = {"core/test_it.py": computes, "faults/test_it.py": "def test_it(): pass"}
    (tmp_path / "costs.py").write_text((HERE / "costs.py").read_text())
    code, said = run_suite(tmp_path, tests, "-p", "costs", *workers)
    assert code == 0, said
    lines = said.partition("what it costs")[2].splitlines()
    costs = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("tests/")}
    assert [room[0] for room in costs.values()] == ["1", "1"]
    assert float(costs["tests/core"][2]) > float(costs["tests/faults"][2])


@pytest.mark.parametrize(("said", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 16)])
def test_a_container_has_as_many_cores_as_its_quota_says(tmp_path: Path, said: str, most: int):
    (tmp_path / "cpu.max").write_text(f"{said}\n")
    assert 1 <= scheduling.cores(tmp_path / "cpu.max") <= most
    assert scheduling.cores(tmp_path / "nothing") >= 1


def test_a_worker_that_dies_costs_the_test_in_which_it_died_and_no_other(tmp_path: Path):
    code, said = run_suite(tmp_path, DIES_IN_ONE_TEST, "-p", "xdist", "-n", "3")
    assert code == 1, said
    assert "1 failed, 7 passed" in said
    assert "test_deadly[3]" in said


def test_what_hangs_whatever_is_raised_in_it_is_ended_and_says_where_it_stood(tmp_path: Path):
    code, said = run_suite(tmp_path, HANGS_IN_ONE_TEST, "-p", "xdist", "-n", "2")
    assert code == 1, said
    assert "in test_hangs" in said
    assert "1 failed, 1 passed" in said


def test_tests_that_share_a_fixture_run_in_one_worker(tmp_path: Path):
    shared = """
import os, pytest
@pytest.fixture(scope="module")
def worker(): return os.environ["PYTEST_XDIST_WORKER"]
@pytest.mark.parametrize("number", range(12))
def test_here(worker, number): assert worker == os.environ["PYTEST_XDIST_WORKER"]
"""
    code, said = run_suite(
        tmp_path, shared + DIES_IN_ONE_TEST.partition("    if")[0] + "    pass", *["-p", "xdist", "-n", "3"]
    )
    assert code == 0, said
    assert "20 passed" in said


def test_programs_that_several_threads_start_at_once_are_children_of_this_process(monkeypatch: pytest.MonkeyPatch):
    """The first ones made a process that waits each, and what came of them was nobody's child: no kill reached it."""
    monkeypatch.setattr(prepared, "PREPARATIONS", {})
    together = threading.Barrier(8)

    def start(_number: int) -> subprocess.Popen[bytes]:
        together.wait(100)
        return prepared.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(start, range(8)))
    for each in started:
        with each:
            each.kill()
    assert [each.returncode for each in started] == [-signal.SIGKILL] * 8
    assert len(prepared.PREPARATIONS) == 1


async def test_what_ends_in_its_own_time_is_no_leak(no_leaks: None):
    one, other = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=one)
    writer.close()
    other.close()
    asyncio.get_running_loop().call_later(0.05, lambda: None)
    asyncio.ensure_future(asyncio.sleep(0.02))  # noqa: RUF006 that nobody awaits it is the point


async def test_a_forgotten_task_is_a_leak_and_named():
    before = Census.take()
    forgotten = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    with pytest.raises(AssertionError, match="task forgotten"):
        await before.must_return(patience_s=0.0)
    forgotten.cancel()
    await before.must_return()


async def test_an_open_socket_a_timer_and_a_child_are_leaks_and_named():
    before = Census.take()
    timer = asyncio.get_running_loop().call_later(3600.0, lambda: None)
    child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    with socket.socket(), pytest.raises(AssertionError) as said:
        await before.must_return(patience_s=0.0)
    assert "socket:" in str(said.value)
    assert "timer <TimerHandle" in str(said.value)
    assert f"child process {child.pid}" in str(said.value)
    timer.cancel()
    await child.communicate(b"")
    await before.must_return()


# --- tests stand outside ---------------------------------------------------------------------------------------------

MAY_SAY_THEM = {"test_architecture.py", "test_house.py"}  # they are about the source
OF_NAMED_TUPLES = {"_replace", "_make", "_asdict", "_fields", "_field_defaults"}
OF_OTHERS = {
    "os._exit",
    "getattr(asyncio.get_running_loop(), '_scheduled', ())",
    "getattr(item, '_fixtureinfo')",
    "super()._execute_child",  # of `subprocess.Popen`, in `prepared.py`
    "self._close_pipe_fds",
}


@pytest.mark.house
def test_no_test_knows_the_inside_of_what_it_tests():
    """Then the rooms can be rebuilt while their tests stand: what a test needs is public, or in `softmutex.testing`."""
    files = sorted(file for file in HERE.rglob("*.py") if str(file.relative_to(HERE)) not in MAY_SAY_THEM)
    found = [f"{file.relative_to(HERE)}, {glimpse}" for file in files for glimpse in glimpses_inside(file.read_text())]
    assert not found, "look at it from outside, or give it a public name:\n" + "\n".join(found)


def glimpses_inside(source: str) -> Iterator[str]:
    """Where a test reaches for what the product keeps to itself: a `_x` that is not of this file, a `.running()`."""
    tree = ast.parse(source)
    own = names_given(tree)
    of_product = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("softmutex")
        for name in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in own:
                continue
            case ast.Attribute(attr=name) if is_private(name) and name not in OF_NAMED_TUPLES:
                if ast.unparse(node) not in OF_OTHERS:
                    yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr="running")):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr") | ast.Attribute(attr="setattr")):
                texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                of_others = ast.unparse(node) in OF_OTHERS
                if any(isinstance(text, str) and is_private(text.rpartition(".")[2]) for text in texts) > of_others:
                    yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.Constant(value=str(text)) if text in private_names():
                yield f"line {node.lineno}: {text!r}"
            case ast.ImportFrom(module=str(module)) if module.startswith("softmutex"):
                yield from (f"line {node.lineno}: {each.name}" for each in node.names if is_private(each.name))
            case ast.ClassDef() if of_product & {ast.unparse(base) for base in node.bases}:
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                yield from (f"line {one.lineno}: def {one.name}" for one in methods if one.name in private_names())
            case _:
                pass


def names_given(tree: ast.AST) -> set[str]:
    """What is defined or assigned anywhere in it."""
    given = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                given.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                given.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                given.add(name)
            case _:
                pass
    return given


@functools.cache
def private_names() -> set[str]:
    """Of the whole product."""
    files = [file for folder in ("softmutex", "adapters") for file in (HERE.parent / folder).rglob("*.py")]
    return {name for file in files for name in names_given(ast.parse(file.read_text("utf-8"))) if is_private(name)}


def is_private(name: str) -> bool:
    return len(name) > 2 and name[0] == "_" != name[1]


GLIMPSES = [
    "node.running()",
    "assert node._timers",
    "one.two(three)._four = 5",
    "from softmutex.core.wire import _kinds",
    "monkeypatch.setattr(module, '_kinds', 1)",
    "monkeypatch.setattr('softmutex.core.wire._kinds', 1)",
    "getattr(node, '_timers', ())",
    "for name in ('_settings', 'peers'): show(node, name)",
    "class Mine:\n    def show(self): return self._others",
    "class Mine:\n    def _give(self): return super()._give()",
    "from softmutex.testing import MemoryMembership\nclass Mine(MemoryMembership):\n    def _others(self): pass",
]
ITS_OWN = [
    "token._replace(hop=1)",
    "import os\nos._exit(1)",
    "class Mine:\n    def __init__(self): self._others = self._make()\n    def _make(self): return self.__class__",
    "from softmutex import Node\nclass Mine(Node):\n    def _of_my_own(self): pass",
]


@pytest.mark.house
def test_a_glimpse_inside_is_noticed_and_what_is_a_files_own_is_none():
    """One test: the names of the whole product are read once for it."""
    assert [source for source in GLIMPSES if not list(glimpses_inside(source))] == []
    assert [source for source in ITS_OWN if list(glimpses_inside(source))] == []
