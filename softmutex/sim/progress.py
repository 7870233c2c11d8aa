"""A progress bar on stderr, on a terminal only: in a log file it would be noise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WIDTH = 40


@contextmanager
def bar(label: str, quiet: bool = False) -> Iterator[Callable[[float], None] | None]:
    """Call what it yields with 0 to 1; None where there is nobody to watch. Nothing of it stays on the screen."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()

    def show(share: float) -> None:
        filled = min(WIDTH, int(share * WIDTH))
        gone_s = time.monotonic() - begun
        left = f"{gone_s / share - gone_s:4.0f} s left" if share > 0.02 else ""
        sys.stderr.write(f"\r{label} [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%} {left}\x1b[K")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
