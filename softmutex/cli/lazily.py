"""Modules that asyncio imports for others, and a private agent hardly ever needs: loaded where they are first used.

What it decides: `import asyncio` brings along all of TLS, and what reads source files for stack traces: half of what it
costs, and a tenth of what `softmutex run` adds to a command. Each of them is put into `sys.modules` unloaded, and loads
itself when something of it is asked for. So who has TLS to speak, or an error to tell, notices nothing.
The naive way, to leave them out (`sys.modules["ssl"] = None`), takes TLS from those that want it later.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final

OF_ASYNCIO: Final = ("inspect", "tokenize", "textwrap", "ssl", "asyncio.sslproto")


_LOADING = RLock()


class LoadedOnUse(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet. Other threads that want something of it wait until all is there."""
        with _LOADING:
            spec = self.__spec__
            if spec is not None and spec.loader_state is None and spec.loader is not None:
                spec.loader_state = "begun"
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def load_on_use(names: Sequence[str] = OF_ASYNCIO) -> None:
    """Where one is imported already, or is not found as a file, all stays as it is."""
    for name in names:
        spec = None if name in sys.modules else spec_of(name)
        if spec is not None and spec.loader is not None:
            module = sys.modules[name] = module_from_spec(spec)
            module.__class__ = LoadedOnUse
    for name in names:  # who imports a module that is there does not give it to its package
        package, _, attribute = name.rpartition(".")
        if package and name in sys.modules:
            setattr(import_module(package), attribute, sys.modules[name])


def spec_of(name: str) -> ModuleSpec | None:
    """Without an import of the package that it is in."""
    package = name.rpartition(".")[0]
    if name == "ssl" and find_spec("_ssl") is None:  # a Python without TLS says so when it is imported
        return None
    within = find_spec(package) if package else None
    return PathFinder.find_spec(name, within.submodule_search_locations if within else None)
