"""Lets held jobs go, one turn after the other: no node of the cluster idles while a job waits for its turn.

    squeue --held, wants a turn--> Turn: [wait for the mutex] -- scontrol release --> pending --> running --> gone
                                     | timeout: scancel            | not started in time: scontrol hold, again
                                     '- gone meanwhile: withdrawn  '- gone: the mutex goes on

What it decides: the turn belongs to the *job*, from its release to its end. The naive ways: to wait in Prolog blocks
`scancel`, counts as run time and drains the node when it fails; to wait in the job's script keeps a node (and the whole
allocation) idle.

S1  A job is released only with its mutex in hand, and the mutex is held until the job has left the queue or completes.
S2  A job that runs when the releaser starts (it was restarted) has its mutex taken for it before any other is released.
L1  A job that was released and does not start in `start_within_s` (the cluster is full), may not start yet, or was
    requeued (Slurm lets it rest for two minutes then) is held again and gives its turn to others.
L2  That its end is noticed costs a job of length t at most t / LOOKS, or LOOK_LEAST_S if that is more.

One releaser works in a cluster; others wait, by a soft mutex of their own, and take over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from softmutex import AcquireTimeout, Hold, Node
from softmutex_adapters.schedulers.slurm import jobs
from softmutex_adapters.schedulers.slurm.jobs import Job, SlurmFailed, Wish

LOOK_LEAST_S: Final = 0.1
LOOK_MOST_S: Final = 5.0
LOOKS: Final = 20
IDLE_S: Final = 1.0  # how often a queue without turns is looked at
START_WITHIN_S: Final = 120.0
LATER_S: Final = 3.0  # a job that may not begin yet (--begin, or Slurm's pause after a requeue) asks again after that
log = logging.getLogger("softmutex.slurm")


class Turn:
    """One job that wants its mutex, from when it is seen until it has left the queue."""

    def __init__(self, number: str, wish: Wish) -> None:
        self.number = number
        self.wish = wish
        self.task: asyncio.Task[None] | None = None
        self.has_mutex = False
        self.runs_since_s: float | None = None


class Releaser:
    def __init__(self, node: Node, slots: Mapping[str, int], start_within_s: float = START_WITHIN_S) -> None:
        self._node = node
        self._slots = slots
        self._start_within_s = start_within_s
        self._queue: Mapping[str, Job] = {}
        self._looked = asyncio.Condition()
        self._turns: dict[str, Turn] = {}
        self._complained: set[str] = set()
        self._not_before_s: dict[str, float] = {}

    async def run(self, cluster: str) -> None:
        async with self._node.mutex(f"slurm-releaser {cluster}"[:64]):
            log.info("this is the releaser of the cluster %s", cluster)
            try:
                while True:
                    await self._look()
                    await asyncio.sleep(self._pause_s())
            finally:
                await self._stop()

    async def _look(self) -> None:
        try:
            self._queue = await jobs.queue()
        except SlurmFailed as trouble:
            log.warning("%s Looking again; no turn is given up.", trouble)
            return
        for number, turn in list(self._turns.items()):
            if turn.task is not None and turn.task.done():
                del self._turns[number]
            elif turn.task is not None and number not in self._queue and not turn.has_mutex:
                log.info("job %s left the queue while it waited", number)
                turn.task.cancel()
        running_first = sorted(self._queue.values(), key=lambda job: not job.runs)
        for job in running_first:
            if job.wish is None:
                self._complain(job)
            elif job.id not in self._turns and (job.is_held or job.runs) and not self._is_early(job):
                turn = self._turns[job.id] = Turn(job.id, job.wish)
                turn.task = asyncio.create_task(self._take(turn), name=f"job {job.id}")
        self._complained &= self._queue.keys()
        self._not_before_s = {number: at for number, at in self._not_before_s.items() if number in self._queue}
        async with self._looked:
            self._looked.notify_all()

    def _is_early(self, job: Job) -> bool:
        return asyncio.get_running_loop().time() < self._not_before_s.get(job.id, 0.0)

    def _complain(self, job: Job) -> None:
        if job.id not in self._complained:
            self._complained.add(job.id)
            log.warning("job %s stays held: %s (scontrol update jobid=%s comment=...)", job.id, job.trouble, job.id)

    def _pause_s(self) -> float:
        if not self._turns:
            return IDLE_S
        now_s = asyncio.get_running_loop().time()
        least_s = min(
            (LOOK_LEAST_S if turn.runs_since_s is None else (now_s - turn.runs_since_s) / LOOKS)
            for turn in self._turns.values()
            if turn.has_mutex or turn.runs_since_s is None
        )
        return min(max(LOOK_LEAST_S, least_s), LOOK_MOST_S)

    async def _stop(self) -> None:
        """The jobs that run go on; their mutexes are handed on, and S2 takes them again."""
        tasks = [turn.task for turn in self._turns.values() if turn.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one job -----------------------------------------------------------------------------------------------------

    async def _take(self, turn: Turn) -> None:
        mutex = self._node.mutex(turn.wish.mutex, slots=self._slots.get(turn.wish.mutex, 1))
        try:
            async with mutex.hold(timeout=turn.wish.timeout_s) as hold:
                turn.has_mutex = True
                await self._see_through(turn, hold)
        except AcquireTimeout:
            log.warning("job %s did not get its turn in %g s: cancelled", turn.number, turn.wish.timeout_s)
            await self._tell(jobs.cancel, turn.number)

    async def _see_through(self, turn: Turn, hold: Hold) -> None:
        """From the release of the job until it is over."""
        loop = asyncio.get_running_loop()
        job = self._queue.get(turn.number)
        if job is None or (job.is_held and not await self._tell(jobs.release, turn.number)):
            return
        log.info("job %s: its turn, after %.1f s", turn.number, hold.waited)
        start_by_s = loop.time() + self._start_within_s
        told = False
        while True:
            async with self._looked:
                await self._looked.wait()
            job = self._queue.get(turn.number)
            if job is None or (not job.runs and job.state != "PENDING"):
                return
            if job.runs and turn.runs_since_s is None:
                turn.runs_since_s = loop.time()
            if job.state == "PENDING" and (why := self._why_not(job, turn, start_by_s)):
                log.info("job %s %s: held again, others come first", turn.number, why)
                self._not_before_s[turn.number] = loop.time() + LATER_S
                await self._tell(jobs.hold, turn.number)
                return
            if hold.lost.is_set() and not told:
                told = True
                log.warning("job %s may not be the only one any more (%s); it goes on", turn.number, hold.lost_reason)

    def _why_not(self, job: Job, turn: Turn, start_by_s: float) -> str:
        if turn.runs_since_s is not None:
            return "was requeued"
        if job.reason == "BeginTime":
            return "may not begin yet"
        return f"did not start ({job.reason})" if asyncio.get_running_loop().time() > start_by_s else ""

    async def _tell(self, command: Callable[[str], Awaitable[None]], number: str) -> bool:
        try:
            await command(number)
        except SlurmFailed as trouble:
            log.warning("job %s: %s", number, trouble)
            return False
        return True
