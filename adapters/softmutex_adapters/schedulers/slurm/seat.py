"""A seat holds the mutex for one job after the other, each from when it is let go to its end.

    take the mutex --> job: let go --> pending --> runs --> over --> its successor: runs already, or starts now --> ...
                                |                   '- the next in line is chained to its end (let go, `afterany`)
                                '- cannot start: put off, the next in line

The successor is chained while the hold is younger than `bridge_s`, and put off again where the job that runs outlives
that: then others of the group come first.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from softmutex import Hold, SoftMutexError
from softmutex.saying import logger
from softmutex_adapters.schedulers.slurm import jobs
from softmutex_adapters.schedulers.slurm.jobs import GONE, Job, Sight, SlurmFailed, clean

if TYPE_CHECKING:
    from softmutex_adapters.schedulers.slurm.releaser import Line, Releaser

LOOK_LEAST_S: Final = 0.1
LOOK_MOST_S: Final = 0.5
LOOKS: Final = 20
SLURM_GONE_S: Final = 600.0  # a releaser that ends waits no longer for a controller that is down
PASSING: Final = frozenset({"None", "Resources", "Priority", "Prolog", "Cleaning", "Licenses"})
STALE: Final = frozenset({"BeginTime", "Dependency"})  # as it was before, until Slurm looks at the job again
STALE_S: Final = 5.0
log = logger("slurm")


class Ask(NamedTuple):
    """How a seat asks for the mutex."""

    weight: int | None = None  # how many slots it holds for a job; None: one, without a word about it
    priority: int = 0


class Seat:
    def __init__(self, releaser: Releaser, line: Line, ask: Ask) -> None:
        self._releaser = releaser
        self._line = line
        self.ask = ask
        self.job: Job | None = None
        self.next: Job | None = None  # let go, and chained to the end of `job`
        self._held_since_s = 0.0

    async def run(self) -> None:
        """As long as there is work."""
        line = self._line
        weight, priority = self.ask
        mutex = self._releaser.node.mutex(line.mutex, slots=line.slots, weight=weight, priority=priority)
        try:
            while line.wants(self.ask) and not self._releaser.is_ending.is_set():
                async with mutex as hold:
                    self._held_since_s = time.monotonic()
                    self.job = line.take(weight)
                    if self.job is None:  # somebody else is next by now, and is given a seat at the next look
                        return
                    while self.job is not None:
                        await self._serve(self.job, hold)
                        self.job, self.next = (
                            self.next or (line.take(weight) if self._may_go_on(hold) else None),
                            None,
                        )
        except SoftMutexError as trouble:
            log.warning("a turn of %s failed: %s", line.mutex, trouble)
        except Exception:
            log.exception("a turn of %s failed", line.mutex)

    def _may_go_on(self, hold: Hold) -> bool:
        """With the next job, without asking anew. L3"""
        is_young = time.monotonic() - self._held_since_s < self._releaser.bridge_s
        return is_young and not self._releaser.is_ending.is_set() and not hold.lost.is_set()

    async def _serve(self, job: Job, hold: Hold) -> None:
        """From when it is let go until it is over, or cannot start."""
        releaser = self._releaser
        was_chained = job.wish.by == releaser.node.name
        if not was_chained and not await self._begin(job, hold):
            return
        began_s, started_s, told = time.monotonic(), None, False
        while True:
            sight = await self._look(job)
            now_s = time.monotonic()
            if sight.is_over:
                break
            if sight.is_pending:
                if (why := self._why_not(sight, now_s - began_s, started_s)) and await releaser.give_back(job, why):
                    break
            else:
                if started_s is None:
                    started_s = now_s
                    releaser.started(job)
                await self._chain(job, hold)
            if hold.lost.is_set() and not told:
                told = True
                log.warning("job %s may not be the only one any more (%s); it goes on", job.id, hold.lost_reason)
            since_s = began_s if started_s is None else started_s
            await asyncio.sleep(min(max(LOOK_LEAST_S, (now_s - since_s) / LOOKS), LOOK_MOST_S))
        if self.next is not None and sight.state not in ("GONE", "COMPLETED"):
            await releaser.tell(self.next, jobs.unchain(self.next))  # it need not wait for an epilog

    async def _begin(self, job: Job, hold: Hold) -> bool:
        me = self._releaser.node.name
        if job.runs:
            log.info("job %s runs: it has its turn from now on", job.id)
            await self._releaser.tell(job, jobs.keep_by(job, me))
            return True
        if await self._releaser.tell(job, jobs.let_go(job, me)):
            log.info("job %s of %s: its turn, after %.1f s", job.id, clean(job.user), hold.waited)
            return True
        self._releaser.defer(job)
        return False

    async def _look(self, job: Job) -> Sight:
        """However long Slurm takes to answer: no turn is given up because nobody can tell whether it is over."""
        began_s, pause_s = time.monotonic(), LOOK_LEAST_S
        while True:
            try:
                return await jobs.look_at(job.id)
            except SlurmFailed as trouble:
                if self._releaser.is_ending.is_set() and time.monotonic() - began_s > SLURM_GONE_S:
                    log.warning(
                        "job %s may run still: %s Its turn ends with this releaser.", job.id, clean(str(trouble))
                    )
                    return GONE
                log.warning("%s Looking again; no turn is given up.", clean(str(trouble)))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 10.0)

    def _why_not(self, sight: Sight, since_s: float, started_s: float | None) -> str:
        """Why others should come before this job, which does not run."""
        if started_s is not None:
            return "was requeued"
        reason = sight.reason.partition(",")[0]
        if reason in PASSING or (reason in STALE and since_s < STALE_S):
            return f"did not start ({reason})" if since_s > self._releaser.start_within_s else ""
        return f"cannot start ({reason})"

    async def _chain(self, job: Job, hold: Hold) -> None:
        releaser, me = self._releaser, self._releaser.node.name
        if self._may_go_on(hold) and not self._line.loose:
            if self.next is None and (successor := self._line.take(self.ask.weight)) is not None:
                self.next = successor.let_go_by(me)  # before the next look at the queue
                if not await releaser.tell(self.next, jobs.let_go(self.next, me, after=job.id)):
                    releaser.defer(self.next)
                    self.next = None
            elif self.next is not None and releaser.is_late(self.next):
                await releaser.tell(self.next, releaser.cancel(self.next))
                self.next = None
        else:
            await self.put_off_next()

    async def put_off_next(self) -> None:
        """The next one waits again: what runs already without a turn comes first, or others of the group do."""
        job = self.next
        if job is None or not await self._releaser.tell(job, jobs.put_off(job, "others come first")):
            return
        if self.next is job:
            self.next = None
            self._line.takes_back(job)
