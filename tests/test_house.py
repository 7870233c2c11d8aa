"""The suite's own mechanism: needs, CI, leaks. Each test runs a small suite of its own in another process."""

import ast
import asyncio
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.leaks import Census

HERE = Path(__file__).parent
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take seconds to import
ONE_NEEDY_TEST = """
import pytest
@pytest.mark.needs("no-such-program")
def test_needy(): raise AssertionError("it ran")
def test_modest(): pass
"""
ONE_TEST_OF_BAD_LUCK = """
from pathlib import Path
def test_unlucky():
    tried = Path("tried")
    was_here = tried.exists()
    tried.touch()
    assert was_here
def test_lucky(): pass
"""
WHERE_IT_RUNS = """
import os, pytest
@pytest.mark.parametrize("number", range(8))
def test_where(number, record_property):
    record_property("ran", f"{os.environ['PYTEST_XDIST_WORKER']} {os.getpriority(os.PRIO_PROCESS, 0)}")
"""
ONE_SHY_TEST = """
import pytest
def test_shy(): pytest.skip("not today")
def test_bold(): pass
"""


def run_suite(where: Path, source: str, *, ci: bool) -> tuple[int, str]:
    lay_out(where, {"test_it.py": source})
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=where,
        env={**os.environ, **NO_OTHER_PLUGINS, "CI": "true" if ci else ""},
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout + run.stderr


def lay_out(where: Path, tests: dict[str, str]) -> None:
    (where / "tests").mkdir()
    for name in ("conftest.py", "leaks.py"):
        shutil.copy(HERE / name, where / "tests")
    for name, source in tests.items():
        (where / "tests" / name).parent.mkdir(exist_ok=True)
        (where / "tests" / name).write_text(source)
    (where / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\nmarkers = needs\n")


def run_as_in_ci(where: Path, tests: dict[str, str], *options: str) -> tuple[int, list[str]]:
    """The exit code, and the lines that it ends with."""
    lay_out(where, tests)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        [HERE.parent / ".ci" / "pytest", "-p", "xdist", *options],
        cwd=where,
        env={**os.environ, **NO_OTHER_PLUGINS, "CI": "true", "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout.splitlines()


def test_a_test_whose_need_is_missing_is_left_out_and_named_with_the_remedy(tmp_path: Path):
    code, said = run_suite(tmp_path, ONE_NEEDY_TEST, ci=False)
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
    code, said = run_suite(tmp_path, ONE_SHY_TEST, ci=False)
    assert code == 0, said
    assert "1 passed, 1 skipped" in said


@pytest.mark.house
def test_in_ci_a_test_of_real_processes_has_a_second_try_and_is_named(tmp_path: Path):
    code, said = run_as_in_ci(tmp_path, {"faults/test_it.py": ONE_TEST_OF_BAD_LUCK})
    assert code == 0, said
    assert any("1 failed, 1 passed" in line for line in said)
    assert "passed only at the second try: tests/faults/test_it.py::test_unlucky" in said
    assert "1 passed" in said[-1]


@pytest.mark.house
def test_in_ci_what_fails_twice_is_red(tmp_path: Path):
    code, said = run_as_in_ci(tmp_path, {"faults/test_it.py": "def test_wrong(): assert not 'luck'"})
    assert code == 1, said
    assert "failed at both tries: tests/faults/test_it.py::test_wrong" in said
    assert "1 failed" in said[-1]


@pytest.mark.house
@pytest.mark.parametrize(
    "tests",
    [
        {"faults/test_it.py": ONE_TEST_OF_BAD_LUCK, "core/test_it.py": "def test_wrong(): assert not 'luck'"},
        {f"faults/test_{n}.py": ONE_TEST_OF_BAD_LUCK.replace('"tried"', f'"tried {n}"') for n in range(6)},
        {"faults/test_it.py": "import nothing_of_that_name"},
    ],
    ids=["not of processes", "too many", "not run"],
)
def test_in_ci_there_is_no_second_try_where_it_was_more_than_bad_luck(tmp_path: Path, tests: dict[str, str]):
    code, said = run_as_in_ci(tmp_path, tests)
    assert code == 1, said
    assert not any("second try" in line for line in said)
    assert " in " in said[-1] and ("failed" in said[-1] or "error" in said[-1])


@pytest.mark.house
def test_in_ci_tests_of_processes_run_one_by_one_beside_what_only_computes(tmp_path: Path):
    tests = {f"{room}/test_it.py": WHERE_IT_RUNS for room in ("adapters", "core", "faults", "wire")}
    code, said = run_as_in_ci(tmp_path, tests, "--junitxml=results.xml")
    assert code == 0, said
    ran: dict[str, set[str]] = {}
    for case in ElementTree.parse(tmp_path / "results.xml").iter("testcase"):
        [seen] = [each.attrib["value"] for each in case.iter("property")]
        ran.setdefault(case.attrib["classname"].split(".")[1], set()).add(seen)
    assert len(ran["adapters"] | ran["faults"]) == 1
    assert all(seen.endswith(" 19") for seen in ran["core"] | ran["wire"])
    assert not any(seen.endswith(" 19") for seen in ran["faults"])


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
OF_OTHERS = {"os._exit", "getattr(asyncio.get_running_loop(), '_scheduled', ())"}
NOT_YET = {
    "handover/broken.py",
    "handover/explorer.py",
    "handover/test_at_once.py",
    "handover/test_bounds.py",
    "wandering/broken.py",
    "wandering/test_sentences.py",
}


@pytest.mark.house
def test_no_test_knows_the_inside_of_what_it_tests():
    """Then the rooms can be rebuilt while their tests stand: what a test needs is public, or in `softmutex.testing`."""
    files = sorted(file for file in HERE.rglob("*.py") if str(file.relative_to(HERE)) not in NOT_YET | MAY_SAY_THEM)
    found = [f"{file.relative_to(HERE)}, {glimpse}" for file in files for glimpse in glimpses_inside(file.read_text())]
    assert not found, "\n".join(found)


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


@pytest.mark.house
@pytest.mark.parametrize(
    "source",
    [
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
    ],
)
def test_a_glimpse_inside_is_noticed(source: str):
    assert list(glimpses_inside(source))


@pytest.mark.house
@pytest.mark.parametrize(
    "source",
    [
        "token._replace(hop=1)",
        "import os\nos._exit(1)",
        "class Mine:\n    def __init__(self): self._others = self._make()\n    def _make(self): return self.__class__",
        "from softmutex import Node\nclass Mine(Node):\n    def _of_my_own(self): pass",
    ],
)
def test_what_is_a_files_own_is_no_glimpse_inside(source: str):
    assert not list(glimpses_inside(source))
