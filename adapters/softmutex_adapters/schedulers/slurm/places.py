"""Tells users where their jobs stand: behind what they wrote into the comment, at a bounded rate.

What it decides: what is written already is read in the queue, so nothing is remembered but when a job was written to
last. The naive way, each place whenever it changes, is one update of the controller for each waiting job whenever one
of them starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from softmutex.saying import logger
from softmutex_adapters.schedulers.slurm import jobs
from softmutex_adapters.schedulers.slurm.jobs import Job, SlurmFailed, clean

AT_ONCE: Final = 5  # comments after each look at the queue
EACH_S: Final = 10.0  # between two of one job
log = logger("slurm")


class Places:
    def __init__(self) -> None:
        self._words: dict[str, tuple[Job, str]] = {}
        self._written_s: dict[str, float] = {}

    def begin(self) -> None:
        """Of a new look."""
        self._words = {}

    def sees(self, job: Job, words: str) -> None:
        self._words[job.id] = (job, words)

    def sees_line(self, waiting: Iterable[Job], to_urgent: str) -> None:
        place, waiting = 1, list(waiting)
        total = sum(job.tasks for job in waiting)
        for job in waiting:
            self.sees(job, f"place {place} of {total}{to_urgent if job.wish.priority else ''}")
            place += job.tasks

    async def tell(self) -> None:
        self._written_s = {id: at for id, at in self._written_s.items() if id in self._words}
        now_s = time.monotonic()
        due = [
            (self._written_s.get(id, 0.0), job, clean(words))
            for id, (job, words) in self._words.items()
            if job.row and not job.comment.endswith(f"[{clean(words)}]")
        ]
        due.sort(key=lambda each: each[0])
        for written_s, job, words in due[:AT_ONCE]:
            if written_s and now_s - written_s < EACH_S:
                return
            self._written_s[job.id] = now_s
            try:
                await jobs.say(job, words)
            except SlurmFailed as trouble:  # it ended meanwhile
                log.debug("job %s was not told its place: %s", job.id, trouble)
