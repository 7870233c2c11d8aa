"""Workers that are told their jobs on standard input, a line each, and print what became of them, a line each.

> job 3 0.1 -              < over 3 ok
> job 4 0.1 0.5            < over 4 AcquireTimeout: ...

Their last argument is the log of the visits; what their users would find in their logs is written beside it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.schedulers.contract import Outcome, wait_until

ROOT = Path(__file__).parent.parent.parent


class LineSite:
    """Two such workers."""

    def __init__(self, module: str, arguments: list[str], environ: Mapping[str, str], python: str) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._jobs = 0
        self._ready = 0
        self._said = Path(f"{arguments[-1]}.said")
        self._files = ExitStack()
        said = self._files.enter_context(self._said.open("ab"))
        self._processes = [
            subprocess.Popen(
                [python, "-m", module, *arguments],
                cwd=ROOT,
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                bufsize=1,
            )
            for _ in range(2)
        ]
        self._readers = [threading.Thread(target=self._read, args=(each,)) for each in self._processes]
        for reader in self._readers:
            reader.start()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self._ready == 2, "the workers are not ready")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "ready":
                self._ready += 1
            elif word == "over":
                number, _, says = rest.partition(" ")
                self._outcomes[int(number)] = Outcome(says == "ok", "" if says == "ok" else says)

    def submit(self, worker: int, seconds: float, timeout_s: float | None = None) -> int:
        self._jobs += 1
        pipe: Any = self._processes[worker].stdin
        pipe.write(f"job {self._jobs} {seconds} {'-' if timeout_s is None else timeout_s}\n")
        return self._jobs

    def outcome(self, job: int) -> Outcome | None:
        return self._outcomes.get(job)

    def kill(self, worker: int) -> None:
        self._processes[worker].kill()
        self._processes[worker].wait()

    @contextmanager
    def sleeps(self, worker: int, job: int) -> Iterator[None]:
        self._processes[worker].send_signal(signal.SIGSTOP)
        yield
        self._processes[worker].send_signal(signal.SIGCONT)

    def heard(self) -> str:
        return self._said.read_text()

    def close(self) -> None:
        self._files.close()
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def line_site(
    module: str, arguments: list[str], environ: Mapping[str, str], python: str = sys.executable
) -> Iterator[LineSite]:
    site = LineSite(module, arguments, environ, python)
    try:
        site.wait_until_ready()
        yield site
    finally:
        site.close()
