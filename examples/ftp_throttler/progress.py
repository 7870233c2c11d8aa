"""A progress bar on standard error: drawn in place on a terminal, one line when a file is there in a log."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import Self

WIDTH, EVERY_S = 30, 0.1
WINDOW_S, LEAST_S = 3.0, 0.5


class Link:
    """What the link did of late, over all files of a turn.

    Bytes that wait in a socket's buffer come all at once when somebody reads them: over a millisecond that looks like
    gigabits. So a rate is of some seconds, and where there was less than half a second there is none.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.came: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        now = time.monotonic()
        self.came.append((now, count))
        while self.came[0][0] < now - WINDOW_S:
            self.came.popleft()

    def rate(self) -> str:
        now = time.monotonic()
        span = min(WINDOW_S, now - self.began)
        if span < LEAST_S:
            return "   -.- Mbit/s"
        count = sum(count for at, count in self.came if at >= now - WINDOW_S)
        return f"{count * 8e-6 / span:6.1f} Mbit/s"


class Bar:
    def __init__(self, name: str, size: int, link: Link, done: int = 0) -> None:
        self.name, self.size, self.link, self.done, self.resumed = name, size, link, done, done
        self.drawn = 0.0
        self.live = sys.stderr.isatty()

    def add(self, count: int) -> None:
        self.done += count
        self.link.add(count)
        if self.live and time.monotonic() - self.drawn >= EVERY_S:
            self.drawn = time.monotonic()
            print(f"\r{self.line()}", end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        share = self.done / self.size if self.size else 1.0
        full = round(WIDTH * share)
        resumed = f", went on at {self.resumed / self.size:.0%}" if self.resumed else ""
        return f"{self.name} [{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%} {self.link.rate()}{resumed}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        print(f"\r{self.line()}" if self.live else self.line(), file=sys.stderr, flush=True)
