"""What a module keeps, told from outside: the bytes that are alive of all that was allocated in its lines."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from types import ModuleType


@contextlib.contextmanager
def kept_by(*modules: ModuleType) -> Iterator[Callable[[], int]]:
    """A function that tells the bytes which these modules have allocated from now on, and somebody still keeps."""
    filters = [tracemalloc.Filter(True, str(module.__file__)) for module in modules]
    tracemalloc.start()

    def kept() -> int:
        gc.collect()
        return sum(each.size for each in tracemalloc.take_snapshot().filter_traces(filters).statistics("filename"))

    try:
        yield kept
    finally:
        tracemalloc.stop()
