"""A progress bar on standard error: drawn in place on a terminal, one line when a file is there in a log."""

import sys
import time
from types import TracebackType
from typing import Self

WIDTH, EVERY_S = 30, 0.1


class Bar:
    def __init__(self, name: str, size: int, done: int = 0) -> None:
        self.name, self.size, self.done, self.resumed = name, size, done, done
        self.began = time.monotonic()
        self.drawn = 0.0
        self.live = sys.stderr.isatty()

    def add(self, count: int) -> None:
        self.done += count
        if self.live and time.monotonic() - self.drawn >= EVERY_S:
            self.drawn = time.monotonic()
            print(f"\r{self.line()}", end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        share = self.done / self.size if self.size else 1.0
        full = round(WIDTH * share)
        came = self.done - self.resumed
        mbit_s = came * 8e-6 / max(1e-3, time.monotonic() - self.began)
        resumed = f", went on at {self.resumed / self.size:.0%}" if self.resumed else ""
        return f"{self.name} [{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%} {mbit_s:6.1f} Mbit/s{resumed}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        print(f"\r{self.line()}" if self.live else self.line(), file=sys.stderr, flush=True)
