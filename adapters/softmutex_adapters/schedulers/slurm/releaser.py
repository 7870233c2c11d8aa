"""Lets waiting jobs go, one turn after the other: no node of the cluster idles while a job waits for its turn.

    squeue: waits, could start --> Line --> Seat: [wait for the mutex] -- let go --> pending --> running --> over
                                     | timeout: scancel                     | cannot start: put off, others first |
                                     '- gone meanwhile: forgotten           '- - - - - - - - the next one - - - - '

What it decides: the turn belongs to the *job*, from when it is let go to its end. The naive ways: to wait in Prolog
blocks `scancel`, counts as run time and drains the node when it fails; to wait in the job's script keeps a node (and
the whole allocation) idle. And the hold is kept from one job to the next for a while: the next one is let go as soon as
one runs, with a dependency on its end, so that Slurm starts it in the moment in which it would give a licence to it. To
look for the end first, and let go then, misses Slurm's next round, which comes once a second.

S1  A job is let go only with its mutex in hand, and the mutex is held until the job has left the queue or completes.
S2  A job that runs and for which no live releaser holds the mutex (it was killed; an administrator started the job by
    hand) gets it before any other is let go.
S3  Only what waits for its turn is let go: no hold of a user's or an administrator's is ever released.
S4  Jobs that take several slots (`weight`) come in in the order of all: none is let go before one that came earlier and
    takes another number, as long as that one could start.
S5  Where the mutex has `ageing` each step of priority counts as having been submitted so much earlier: a job is
    overtaken only by those submitted within (their priority - its own) * ageing after it. One that is let go stays so.
L1  A job that could not start if it was let go is passed over. One that was let go and does not start, at once for a
    reason that will not pass by itself, else in `start_within_s`, waits again and others come first; so does one that
    was requeued. It is tried again after LATER_S, twice as long each time, up to LATER_MOST_S.
L2  That its end is noticed costs a job of length t at most t / LOOKS, at least LOOK_LEAST_S, at most LOOK_MOST_S.
L3  Others of the group wait at most `bridge_s` and one job longer than if each job took the mutex anew.

One releaser works in a cluster; others wait, by a soft mutex of their own, and take over. One that is told to end lets
them at once, and stays until the jobs that it let go are over (service.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Final

from softmutex import Node
from softmutex.saying import logger
from softmutex_adapters.schedulers.slurm import jobs
from softmutex_adapters.schedulers.slurm.jobs import Job, Queue, SlurmFailed, clean
from softmutex_adapters.schedulers.slurm.places import Places
from softmutex_adapters.schedulers.slurm.seat import Ask, Seat

QUEUE_LEAST_S: Final = 0.5  # between two looks at the whole queue
QUEUE_SHARE: Final = 20  # and so many times as long as such a look takes: one of 50,000 jobs takes a second
QUEUE_MOST_S: Final = 30.0  # a controller that is stuck for a minute keeps nobody waiting for twenty
LATER_S, LATER_MOST_S = 3.0, 60.0
SAID_MOST: Final = 10_000
log = logger("slurm")


class Line:
    """The jobs of this cluster that want one mutex."""

    def __init__(self, mutex: str, slots: int, ageing_s: float | None = None) -> None:
        self.mutex = mutex
        self.slots = slots
        self.ageing_s = ageing_s  # what a step of priority is worth; None: nothing
        self.loose: list[Job] = []  # they run, and nobody holds the mutex for them
        self.waiting: list[Job] = []  # could start, in order
        self.seats: dict[Seat, asyncio.Task[None]] = {}
        self._is_weighted = False  # some take several slots: then all say how many, and come in by turn

    def wants(self, ask: Ask) -> bool:
        return any(self.ask_of(job) == ask for job in (*self.loose, *self.waiting))

    def take(self, weight: int | None) -> Job | None:
        """Whoever comes next, where that one takes so many slots. S2, S4"""
        those = self.loose or self.waiting
        return those.pop(0) if those and self.weight_of(those[0]) == weight else None

    def weight_of(self, job: Job) -> int | None:
        return min(job.wish.weight or 1, self.slots) if self._is_weighted else None

    def ask_of(self, job: Job) -> Ask:
        return Ask(self.weight_of(job), job.wish.priority if self.ageing_s else 0)

    def order(self) -> None:
        """By whoever is due first. S5"""
        if (step_s := self.ageing_s) is not None:
            self.waiting.sort(key=lambda job: job.submitted_s - job.wish.priority * step_s)

    def takes_back(self, job: Job) -> None:
        """It was to be next, and others came first. The next look at the queue may come too late for it."""
        self.waiting.insert(0, job.let_go_by(""))
        self.order()

    def fill(self, releaser: Releaser) -> None:
        """As many seats as there are jobs that could use them, each for as many slots as its job takes, and as urgent.
        They ask in the order of the jobs. One that asks already for a less urgent job goes on, and takes the first."""
        those = [*self.loose, *self.waiting]
        self._is_weighted = self._is_weighted or any(job.wish.weight is not None for job in those)
        idle = [seat for seat in self.seats if seat.job is None]
        wanted = [self.ask_of(job) for job in those[: max(0, self.slots - len(self.seats) + len(idle))]]
        weights = {ask.weight for ask in wanted}
        for seat in idle:
            if seat.ask in wanted:
                wanted.remove(seat.ask)
            elif seat.ask.weight not in weights or not self.wants(seat.ask):
                self.seats.pop(seat).cancel()
        for ask in wanted:
            seat = Seat(releaser, self, ask)
            self.seats[seat] = asyncio.create_task(self._run(seat), name=f"a seat of {self.mutex}")

    async def _run(self, seat: Seat) -> None:
        try:
            await seat.run()
        finally:
            self.seats.pop(seat, None)


class Releaser:
    def __init__(self, node: Node, slots: Mapping[str, int], start_within_s: float, bridge_s: float) -> None:
        self.node = node
        self.start_within_s = start_within_s
        self.bridge_s = bridge_s  # for so long a hold goes on from one job to the next
        self.is_ending = asyncio.Event()
        self._slots = slots
        self._lines: dict[str, Line] = {}
        self._since_s: dict[str, float] = {}  # since when a job could start if it was its turn
        self._again_s: dict[str, tuple[float, float]] = {}  # when it is tried again, and how long that pause was
        self._said: set[str] = set()  # what was logged, once
        self._places = Places()

    async def run(self, cluster: str) -> None:
        """Waits to be the one that works, and works, until `is_ending` is set."""
        leading, ending = asyncio.create_task(self._lead(cluster)), asyncio.create_task(self.is_ending.wait())
        try:
            await asyncio.wait((leading, ending), return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
        finally:
            self.is_ending.set()
            leading.cancel()
            await asyncio.gather(leading, ending, return_exceptions=True)

    async def finish(self) -> None:
        """Another releaser works now; the jobs that this one let go are seen through."""
        seats = {seat: task for line in self._lines.values() for seat, task in line.seats.items()}
        for seat, task in seats.items():
            if seat.job is None:
                task.cancel()
            else:
                log.info("ending when job %s is over", seat.job.id)
        await asyncio.gather(*seats.values(), return_exceptions=True)

    async def _lead(self, cluster: str) -> None:
        async with self.node.mutex(f"slurm-releaser {cluster}"[:64]):
            log.info("%s is the releaser of the cluster %s", self.node.name, cluster)
            took_s = 0.0
            while True:
                began_s, before_s = time.monotonic(), took_s
                try:
                    await self._take_in(await jobs.queue())
                    await self._places.tell()
                except SlurmFailed as trouble:
                    log.warning("%s Looking again; no turn is given up.", clean(str(trouble)))
                except Exception:
                    log.exception("a look at the queue failed; looking again")
                took_s = time.monotonic() - began_s
                usual_s = min(took_s, before_s)  # one that was slow once costs no pause
                await asyncio.sleep(min(max(QUEUE_LEAST_S, QUEUE_SHARE * usual_s), QUEUE_MOST_S))

    # --- the queue ----------------------------------------------------------------------------------------------------

    async def _take_in(self, queue: Queue) -> None:
        for id, trouble in queue.troubles.items():
            self._say_once(f"job {clean(id)} is passed over: {clean(trouble)}")
        others = {peer.name for peer in self.node.peers()}
        self._places.begin()
        for line in self._lines.values():
            line.loose, line.waiting = [], []
        to_do: list[tuple[Job, Awaitable[object]]] = []
        loose: list[Job] = []
        for job in queue.jobs.values():
            line = self._line(job.wish.mutex)
            if self._is_seated(job, line, queue) or (job.wish.by in others and not job.waits):
                continue
            if job.runs:
                line.loose.append(job)
                loose.append(job)
            elif job.waits:
                self._line_up(job, line, to_do)
            elif job.is_pending and job.wish.by:  # let go by one that is gone, or requeued when it was over
                to_do.append((job, jobs.put_off(job, "waits again")))
        self._forget(queue.jobs)
        for line in self._lines.values():
            line.order()
            self._places.sees_line(
                line.waiting, "" if line.ageing_s else f", without priority: {line.mutex} has no ageing"
            )
            line.fill(self)
        for job, command in to_do:
            await self.tell(job, command)
        for seat in [seat for line in self._lines.values() if line.loose for seat in line.seats]:
            await seat.put_off_next()
        for job in loose:
            self._say_of_loose(job)

    def _line(self, mutex: str) -> Line:
        if mutex not in self._lines:
            ageing_s = self.node.settings().for_mutex(mutex, {})["ageing"]
            self._lines[mutex] = Line(mutex, self._slots.get(mutex, 1), ageing_s or None)
        return self._lines[mutex]

    def _is_seated(self, job: Job, line: Line, queue: Queue) -> bool:
        for seat in line.seats:
            if seat.job is not None and seat.job.id == job.id:
                self._places.sees(job, jobs.turn())
                return True
            if seat.next is not None and seat.next.id == job.id:
                first = queue.jobs.get(seat.job.id) if seat.job else None
                if not (job.runs and first is not None and first.runs):
                    if job.wish.by:  # a look that began before it was let go may have told it its old place since
                        self._places.sees(job, jobs.turn(seat.job and seat.job.id))
                    return True
                seat.next = None  # somebody started it beside the one whose end it was to wait for
        return False

    def _line_up(self, job: Job, line: Line, to_do: list[tuple[Job, Awaitable[object]]]) -> None:
        now_s = time.time()
        if why := job.why_not_yet(now_s):
            self._places.sees(job, why)
            return
        array = job.id.partition("_")[0]
        since_s = self._since_s.setdefault(job.id, self._since_s.get(array, now_s))
        if job.tasks > 1:
            self._since_s.setdefault(array, since_s)
        if self.is_late(job):
            to_do.append((job, self.cancel(job)))
        elif (job.wish.weight or 1) > line.slots:
            self._places.sees(job, f"weight {job.wish.weight} never fits into {line.slots}")
            self._say_once(
                f"job {job.id} is passed over: weight {job.wish.weight}, and {line.mutex} has {line.slots} slots"
            )
        elif self._again_s.get(job.id, (0.0, 0.0))[0] > now_s:
            self._places.sees(job, "could not start, is tried again")
        else:
            line.waiting.append(job)
        if job.wish.priority and not line.ageing_s:
            self._say_once(
                f"job {job.id} asks for priority {job.wish.priority} and waits without: the settings of this service "
                f"do not say what that is worth for {line.mutex}. Write ageing = 60, as the others of the group do"
            )

    def _forget(self, there: Mapping[str, Job]) -> None:
        arrays = {id.partition("_")[0] for id in there}
        self._since_s = {id: at for id, at in self._since_s.items() if id in there or id in arrays}
        self._again_s = {id: at for id, at in self._again_s.items() if id in there}
        mutexes = {job.wish.mutex for job in there.values()}
        self._lines = {name: line for name, line in self._lines.items() if name in mutexes or line.seats}
        if len(self._said) > SAID_MOST:
            self._said.clear()

    # --- for seats ----------------------------------------------------------------------------------------------------

    def is_late(self, job: Job) -> bool:
        """It could start for longer than it wants to wait."""
        timeout_s, since_s = job.wish.timeout_s, self._since_s.get(job.id)
        return timeout_s is not None and since_s is not None and time.time() - since_s > timeout_s

    async def cancel(self, job: Job) -> None:
        log.warning("job %s did not get its turn in %g s: cancelled", job.row or job.id, job.wish.timeout_s)
        await jobs.cancel(job)

    async def give_back(self, job: Job, why: str) -> bool:
        """It waits again, others come before it. False where it cannot be put off, for it started."""
        if not await self.tell(job, jobs.put_off(job, why)):
            await self.tell(job, jobs.keep_by(job, self.node.name))
            return False
        log.info("job %s %s: it waits again, others come first", job.id, clean(why))
        self.defer(job)
        return True

    def defer(self, job: Job) -> None:
        pause_s = min(2 * self._again_s.get(job.id, (0.0, LATER_S / 2))[1], LATER_MOST_S)
        self._again_s[job.id] = (time.time() + pause_s, pause_s)

    def started(self, job: Job) -> None:
        self._again_s.pop(job.id, None)

    async def tell(self, job: Job, command: Awaitable[object]) -> bool:
        try:
            await command
        except SlurmFailed as trouble:
            log.warning("job %s: %s", job.id, clean(str(trouble)))
            return False
        return True

    def _say_of_loose(self, job: Job) -> None:
        if not job.is_marked:
            how = "it was submitted past job_submit.lua"
        elif job.wish.by:
            how = f"{clean(job.wish.by)}, which let it go, is gone"
        else:
            how = "somebody started it by hand"
        self._say_once(f"job {job.id} of {clean(job.user)} runs without a turn of {job.wish.mutex}: {how}")

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            log.warning("%s", words)
