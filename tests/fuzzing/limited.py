"""`--cpu SECONDS`: a fuzzer ends after so much work of its own. By the wall a busy machine would fuzz less."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

FLAG = "--cpu"


def end_after_cpu_s(arguments: Sequence[str]) -> tuple[list[str], Callable[[], None]]:
    """The other arguments, and what to call in the process that fuzzes."""
    if FLAG not in arguments:
        return list(arguments), lambda: None
    place = arguments.index(FLAG)
    seconds = float(arguments[place + 1])

    def begin() -> None:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGUSR1))  # libFuzzer ends well by it
        signal.setitimer(signal.ITIMER_PROF, seconds)

    return [*arguments[:place], *arguments[place + 2 :]], begin
