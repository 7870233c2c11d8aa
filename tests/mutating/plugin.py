"""For pytest, loaded by `.ci/mutants` before anything of the package is: `-p tests.mutating.plugin`.

    SOFTMUTEX_REACHED=FILE     writes which test reaches which line, and how long it takes
    SOFTMUTEX_MUTANT=FILE      runs the tests listed there, in that order, on the package with the change named there

The changed module is compiled as it is loaded; no file changes, so that others may work here meanwhile.
Golden traces do not count: whoever writes them anew (`--rewrite`) would lose what only they hold.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Generator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutating import operators

ROOT = Path(__file__).parent.parent.parent
LONGEST_S = 5.0  # of a processor, under a tracer: what takes longer is too dear to be asked of every mutant
MOST_BYTES = 4 << 30  # a change may make a list grow for ever


class Loader(SourceFileLoader):
    number = 0

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        return compile(operators.mutated(source, self.number), self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    def __init__(self, file: str, number: int) -> None:
        self.name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.number = number

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = Loader(fullname, spec.origin)
        spec.loader.number = self.number
        return spec


class Mutated:
    """The chosen tests, in the order given, on the changed package."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.order = {nodeid: place for place, nodeid in enumerate(job["tests"])}
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        sys.meta_path.insert(0, Finder(job["file"], job["number"]))

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from tests.tracing import Trace

        Trace.check = lambda self, rewrite: None  # type: ignore[method-assign]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])


class Reached:
    """Which test reaches which line."""

    def __init__(self, file: str) -> None:
        import coverage

        self.file = Path(file)
        self.measured = coverage.Coverage(data_file=None, include=[f"{ROOT}/softmutex/*"], config_file=False)
        self.measured.start()
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        signal.signal(signal.SIGPROF, lambda *_: pytest.fail(f"takes more than {LONGEST_S:g} s", pytrace=False))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.measured.switch_context(item.nodeid)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.seconds[item.nodeid] = time.process_time() - began
            self.measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # under a tracer some do not
            self.failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.measured.stop()
        data = self.measured.get_data()
        tests = sorted(self.seconds.keys() - self.failed)
        numbers = {nodeid: place for place, nodeid in enumerate(tests)}
        lines = {}
        for file in data.measured_files():
            reached = data.contexts_by_lineno(file)
            lines[str(Path(file).relative_to(ROOT))] = {
                line: sorted(numbers[each] for each in contexts if each in numbers)
                for line, contexts in reached.items()
            }
        self.file.write_text(
            json.dumps({"tests": tests, "seconds": [self.seconds[each] for each in tests], "lines": lines})
        )


def pytest_configure(config: pytest.Config) -> None:
    """Where this is loaded by its name, one of the two is there already."""


if job := os.environ.get("SOFTMUTEX_MUTANT"):
    PART: object = Mutated(json.loads(Path(job).read_text()))
elif reached := os.environ.get("SOFTMUTEX_REACHED"):
    PART = Reached(reached)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(PART, "what-mutants-need")
