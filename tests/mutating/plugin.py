"""For pytest, loaded by `.ci/mutants` before anything of the package is: `-p tests.mutating.plugin`.

    SOFTMUTEX_MUTANTS=FILE     the tests are collected once; each mutant of the list is put in place in a fork of that
                               process: the new code into the functions that are there. Whoever has none (a constant of
                               a module, a default) is told as one that must be loaded
    SOFTMUTEX_MUTANT=FILE      runs the tests listed there, in that order, on the package loaded with the change there

No file changes, so that others may work here meanwhile.
Golden traces do not count: whoever writes them anew (`--rewrite`) would lose what only they hold.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutating import operators
from tests.mutating.marks import marks, with_marks
from tests.mutating.reach import Reach

ROOT = Path(__file__).parent.parent.parent
LONGEST_S = 3.0  # of a processor: what takes longer is too dear to be asked of every mutant
HANGS_S = 20.0  # of a processor, and ten times what the tests take; a quarter of it where it is one
MOST_BYTES = 4 << 30  # a change may make a list grow for ever

# Whoever asks another process what it makes of the same run compares this package with one that is not changed.
ASKS_ANOTHER_PROCESS = ("tests/sim/test_trace.py::test_the_digest_is_the_same_under_every_hash_seed_",)

Changed = Callable[[str], ast.Module]


class Loader(SourceFileLoader):
    changed: Changed

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.changed(self.get_data(self.path).decode()), self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Compiles some modules otherwise."""

    def __init__(self, changed: dict[str, Changed]) -> None:
        """By their files."""
        self.changed = {
            file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): how for file, how in changed.items()
        }

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.changed:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        loader = spec.loader = Loader(fullname, spec.origin)
        loader.changed = self.changed[fullname]
        return spec


def without_traces() -> None:
    from tests.tracing import Trace

    Trace.check = lambda self, rewrite: None  # type: ignore[method-assign]


class Mutated:
    """The chosen tests, in the order given, on the package that was loaded with the change."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.order = {nodeid: place for place, nodeid in enumerate(job["tests"])}
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        # Not by a clock on the wall: on a busy machine what took long once was taken for caught.
        resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"], job["seconds"] + 5))
        number = job["number"]
        sys.meta_path.insert(0, Finder({job["file"]: lambda source: operators.mutated(source, number)}))

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        without_traces()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])


def marked(first: int) -> Changed:
    return lambda source: with_marks(source, first)[0]


# --- many, put in place one after the other --------------------------------------------------------------------------


class InPlace:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.maps = Path(job["maps"])
        self.lines: dict[str, dict[int, int]] = {}  # file -> line -> mark
        self.failed: set[str] = set()
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[str, list[FunctionType]] = {}  # of which file
        self.caught_by: dict[str, Counter[str]] = {}  # of which file, which test, how many
        self.at_load: dict[str, set[int]] = {}  # of which file, lines that ran before any test: here it is too late
        first = {}
        for file in job["files"]:
            first[file] = 1 + max((max(lines.values(), default=0) for lines in self.lines.values()), default=0)
            _, self.lines[file] = with_marks((ROOT / file).read_text(), first[file])
        marks()
        sys.meta_path.insert(0, Finder({file: marked(number) for file, number in first.items()}))

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        without_traces()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # or they would not be found
        by_path = {str(ROOT / file): file for file in self.job["files"]}
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and each.__code__.co_filename in by_path:
                self.functions.setdefault(by_path[each.__code__.co_filename], []).append(each)
        at_load = marks()
        self.at_load = {file: {line for line, mark in its.items() if at_load[mark]} for file, its in self.lines.items()}
        items = [item for item in session.items if not item.nodeid.startswith(ASKS_ANOTHER_PROCESS)]
        self.items = {item.nodeid: item for item in items}
        for room in self.job["rooms"]:
            if not (file := self.maps / (room.replace("/", "-") + ".json")).exists():
                self._forked(partial(self._map, room, file), 3600)
        self.reach = Reach(self.maps, self.job["rooms"])
        with Path(self.job["found"]).open("a") as found:
            for number, mutant in enumerate(self.job["mutants"]):
                found.write(json.dumps({"number": number, **self._judge(operators.Mutant(*mutant))}) + "\n")
                found.flush()
        return True

    # --- which test reaches which line -------------------------------------------------------------------------------

    def _map(self, room: str, file: Path) -> str:
        mine = [item for nodeid, item in self.items.items() if nodeid.startswith((f"{room}/", f"{room}::"))]
        signal.signal(signal.SIGPROF, lambda *_: pytest.fail(f"takes more than {LONGEST_S:g} s", pytrace=False))
        seen, reached, seconds = marks(), dict[str, list[int]](), dict[str, float]()
        nothing = bytes(len(seen))
        for item, following in zip_longest(mine, mine[1:]):
            seen[:] = nothing
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if item.nodeid not in self.failed:
                seconds[item.nodeid] = time.process_time() - began
                reached[item.nodeid] = [number for number in range(len(seen)) if seen[number]] if any(seen) else []
        tests = sorted(seconds)
        of_mark: dict[int, list[int]] = {}
        for place, test in enumerate(tests):
            for mark in reached[test]:
                of_mark.setdefault(mark, []).append(place)
        lines = {file: {line: of_mark.get(mark, []) for line, mark in its.items()} for file, its in self.lines.items()}
        file.write_text(json.dumps({"tests": tests, "seconds": [seconds[each] for each in tests], "lines": lines}))
        return ""

    # --- one mutant --------------------------------------------------------------------------------------------------

    def _judge(self, mutant: operators.Mutant) -> dict[str, Any]:
        reach = self.reach
        codes = changed_code((ROOT / mutant.file).read_text(), str(ROOT / mutant.file), mutant.number)
        functions = [each for each in self.functions.get(mutant.file, ()) if place_of(each.__code__) in codes]
        tests = [test for test in reach.of(mutant) if test in self.items]  # a map may be older than the tests
        ran = not self.at_load[mutant.file].isdisjoint(range(mutant.first, mutant.last + 1))
        if ran or not functions or not all(fits(each.__code__, codes) for each in functions):
            return {"tests": len(tests), "ran": 0, "caught_by": "", "must_be_loaded": True}
        caught_others = self.caught_by.setdefault(mutant.file, Counter())
        tests.sort(key=lambda test: -caught_others[test])
        chosen = reach.within(tests, self.job["budget"])
        caught_by = ""
        while chosen:
            cost = sum(reach.tests[test] for test in chosen)
            caught_by = self._forked(lambda: self._run(chosen, functions, codes), HANGS_S + 10 * cost)
            if caught_by not in chosen or not self._fails_anyhow(caught_by):
                break
            chosen.remove(caught_by)  # it fails here and now, whatever the code
        caught_others[caught_by] += caught_by in chosen
        return {"tests": len(tests), "ran": len(chosen), "caught_by": caught_by, "must_be_loaded": False}

    def _fails_anyhow(self, test: str) -> bool:
        return bool(self._forked(lambda: self._run([test], (), {}), HANGS_S))

    def _run(self, tests: Sequence[str], functions: Iterable[FunctionType], codes: dict[Place, CodeType]) -> str:
        for each in functions:
            each.__code__ = codes[place_of(each.__code__)]
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        for test in tests:
            item = self.items[test]
            soon = time.process_time() + HANGS_S / 4 + 10 * self.reach.tests[test]
            resource.setrlimit(resource.RLIMIT_CPU, (min(int(soon) + 1, most), most))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if test in self.failed:
                return test
        return ""

    def _forked(self, work: Callable[[], str], seconds: float) -> str:
        """What it returns in a process of its own, of so much computing."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = "it ends the tests"
            try:
                if forks := sys.modules.get("softmutex.runtime.forks"):
                    forks.here.generation -= 1  # or no test could use a seal that its module made
                resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
                said = work()
            finally:
                os.write(write, said.encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode()
        _, status = os.waitpid(child, 0)
        return said if os.waitstatus_to_exitcode(status) == 0 else "it does not end"


Place = tuple[str, int]


def place_of(code: CodeType) -> Place:
    return code.co_qualname, code.co_firstlineno


def codes_of(code: CodeType) -> Iterable[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from codes_of(each)


def changed_code(source: str, path: str, number: int) -> dict[Place, CodeType]:
    """The code objects that the change changes."""
    old = {place_of(each): each for each in codes_of(compile(ast.parse(source), path, "exec", dont_inherit=True))}
    new = codes_of(compile(operators.mutated(source, number), path, "exec", dont_inherit=True))
    return {place_of(each): each for each in new if old.get(place_of(each)) != each}


def fits(old: CodeType, codes: dict[Place, CodeType]) -> bool:
    """With as large a closure as it has."""
    return len(codes[place_of(old)].co_freevars) == len(old.co_freevars)


# --- which of the two ------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Where this is loaded by its name, one of the two is there already."""


# Taken away: the package refuses a variable of such a name that it does not know, and each test of a node would fail.
if job := os.environ.pop("SOFTMUTEX_MUTANT", ""):
    PART: object = Mutated(json.loads(Path(job).read_text()))
elif jobs := os.environ.pop("SOFTMUTEX_MUTANTS", ""):
    PART = InPlace(json.loads(Path(jobs).read_text()))


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(PART, "what-mutants-need")
