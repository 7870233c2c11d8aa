"""What Slurm knows of the jobs that want a turn, and how one of them is told what to do. By Slurm's own commands.

What it decides: nothing that a user of the cluster wrote becomes a row, a column or an argument. The naive way, columns
of `squeue --format` that end with the comment, lets a comment with a line end forge rows of other jobs, for a service
that may cancel and release anybody's. So `squeue --json`, whose strings cannot end early; a job is named by
`Job.id`, which is digits; and the mark of a job that takes turns is in its *admin* comment, which only
`job_submit.lua` and administrators write.

    comment          softmutex=NAME[:timeout=2h][:weight=3][:priority=5] [words]      what the user asked for; its place
    admin comment    the same, then [:begin=EPOCH][:by=NODE]     the mark; `by`: the node that let the job go

The hold is not Slurm's (`priority=0`), which is the user's and the administrators' own and hides from Slurm whether a
dependency is met. It is a time of beginning that never comes, `TURN_S`: whoever has the turn moves it to now, and no
release of any hold does.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.values import count, duration_s, priority

MARK: Final = "softmutex="
TURN_S: Final = 4_102_444_800  # 2100-01-01: begins when it is its turn. job_submit.lua has the same number
NEVER: Final = f"starttime=uts{TURN_S}"
ID: Final = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
ROW: Final = re.compile(r"[0-9]{1,10}(_([0-9]{1,10}|\[[0-9,:-]+\]))?")
WANTS: Final = re.compile(
    r"softmutex=([A-Za-z0-9][A-Za-z0-9._@+-]{0,63})((?::[a-z]+=[A-Za-z0-9._@+-]+)*)(?: (.*))?", re.S
)
USERS_KEYS: Final = ("timeout", "weight", "priority")
KEYS: Final = (*USERS_KEYS, "begin", "by")  # of a mark
PLACE: Final = re.compile(r" \[[^\]]*\]$")  # what this service adds to a comment
RUNS: Final = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})
COMMAND_LIMIT_S: Final = 30.0
COMMENT_MOST: Final = 200  # of the user's own words, when a place is written behind them


class SlurmFailed(SoftMutexError):
    """A command of Slurm's did not do what it was asked for."""


class Wish(NamedTuple):
    """What a job asks for."""

    mutex: str
    timeout_s: float | None = None
    begin_s: float = 0.0  # the user's own --begin
    by: str = ""  # the node that let it go
    weight: int | None = None  # how many slots it takes at once
    priority: int = 0

    def mark(self, by: str = "") -> str:
        """As it is written into the admin comment."""
        words = [f"{MARK}{self.mutex}"]
        words += [] if self.timeout_s is None else [f"timeout={self.timeout_s:.15g}"]
        words += [] if self.weight is None else [f"weight={self.weight}"]
        words += [f"priority={self.priority}"] if self.priority else []
        words += [f"begin={self.begin_s:.0f}"] if self.begin_s else []
        return ":".join([*words, *([f"by={by}"] if by else [])])


class Job(NamedTuple):
    """One job, or the first task of those of an array that still wait in one row."""

    id: str
    states: frozenset[str]
    reason: str
    wish: Wish
    is_marked: bool = True  # False: only its own comment says so; it was submitted past job_submit.lua
    user: str = ""
    name: str = ""
    comment: str = ""
    submitted_s: float = 0.0
    begins_s: float = 0.0
    started_s: float = 0.0
    dependency: str = ""
    is_held: bool = False  # by its user or an administrator
    row: str = ""  # how all tasks of that row are named together
    tasks: int = 1

    @property
    def runs(self) -> bool:
        return bool(self.states & RUNS) and "COMPLETING" not in self.states

    @property
    def is_pending(self) -> bool:
        return "PENDING" in self.states and "COMPLETING" not in self.states

    @property
    def waits(self) -> bool:
        """For its turn: what this service, or job_submit.lua, put off."""
        return self.is_pending and self.is_marked and self.begins_s >= TURN_S

    def let_go_by(self, node: str) -> Job:
        return self._replace(wish=self.wish._replace(by=node))

    def why_not_yet(self, now_s: float) -> str:
        """Why it could not start if it was its turn; "" where it could, as far as Slurm says."""
        if self.is_held:
            return f"held ({self.reason})"
        if self.dependency:
            return f"waits for {self.dependency}"
        return "may not begin yet" if self.wish.begin_s > now_s else ""


def read_wish(comment: str, keys: tuple[str, ...] = KEYS) -> Wish:
    """`softmutex=NAME[:timeout=2h][:weight=3][:priority=5] [words]`, or `ConfigError` with what is wrong."""
    found = WANTS.fullmatch(comment)
    if found is None:
        raise ConfigError(f"{comment[:80]!r}: write softmutex=NAME or softmutex=NAME:timeout=2h, then a space if more")
    values = dict(each.split("=", 1) for each in found[2].split(":")[1:])
    if unknown := sorted(values.keys() - set(keys)):
        raise ConfigError(
            f"there is no {unknown[0]!r} in {comment[:80]!r}: write softmutex=NAME:timeout=2h:weight=3:priority=5"
        )
    try:
        timeout_s = duration_s(values["timeout"]) if "timeout" in values else None
        weight = count(values["weight"]) if "weight" in values else None
        urgent = priority(values.get("priority", "0"))
        begin_s = float(int(values.get("begin", "0")))
    except ValueError as error:
        raise ConfigError(f"{comment[:80]!r}: {error}") from None
    return Wish(found[1], timeout_s, begin_s, values.get("by", ""), weight, urgent)


# --- squeue --json ----------------------------------------------------------------------------------------------------


class Queue(NamedTuple):
    jobs: Mapping[str, Job]  # those that take turns, by id, first submitted first
    troubles: Mapping[str, str]  # what could not be read, by job


def read_queue(said: str) -> Queue:
    """Each job for itself: what cannot be read of one is a trouble of that one."""
    try:
        rows = json.loads(said, strict=False)["jobs"]
        assert isinstance(rows, list)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise SlurmFailed(f"squeue --json said {said[:80]!r}, which is not a list of jobs.") from None
    found: list[Job] = []
    troubles: dict[str, str] = {}
    for row in rows:
        try:
            if (job := read_job(row)) is not None:
                found.append(job)
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            troubles[id_of(row)] = f"{type(error).__name__}: {error}"
    found.sort(key=lambda job: (job.submitted_s, [int(part) for part in job.id.split("_")]))
    return Queue({job.id: job for job in found}, troubles)


def read_job(row: Mapping[str, Any]) -> Job | None:
    """None: it wants no turn, or is over."""
    admins, users = str(row.get("admin_comment") or ""), str(row.get("comment") or "")
    is_marked = admins.startswith(MARK)
    if not is_marked and not users.startswith(MARK):
        return None
    state = row["job_state"]  # a word until Slurm 23.02, a list of words since
    states = frozenset([state] if isinstance(state, str) else map(str, state))
    if not states & (RUNS | {"PENDING"}):
        return None
    id, row_id, tasks = name_of(row)
    begins_s = number(row.get("eligible_time")) or 0
    reason = str(row.get("state_reason") or "None")
    return Job(
        id,
        states,
        reason,
        read_wish(admins) if is_marked else read_wish(users, USERS_KEYS),
        is_marked,
        str(row.get("user_name") or row.get("user_id") or "?"),
        str(row.get("name") or ""),
        users,
        number(row.get("submit_time")) or 0,
        begins_s,
        number(row.get("start_time")) or 0,
        str(row.get("dependency") or ""),
        number(row.get("priority")) == 0 or reason.startswith("JobHeld"),
        row_id,
        tasks,
    )


def name_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """`12`, or `12_3` of an array; the name of all tasks in this row; how many they are."""
    array, task, tasks = number(row.get("array_job_id")), number(row.get("array_task_id")), row.get("array_task_string")
    if array and task is not None:
        id = f"{array}_{task}"
    elif array and tasks:
        which = str(tasks).partition("%")[0]
        first = re.match("[0-9]+", which)
        if first is None:
            raise ValueError(f"no task in {which[:80]!r}")
        is_whole = re.fullmatch("[0-9,:-]+", which) is not None  # a long list ends with an ellipsis
        id = checked(f"{array}_{first[0]}")
        return id, f"{array}_[{which}]" if is_whole else "", count_tasks(which)
    else:
        id = str(number(row["job_id"]))
    return checked(id), id, 1


def checked(id: str) -> str:
    if not ID.fullmatch(id):
        raise ValueError(f"{id[:80]!r} is no job")
    return id


def count_tasks(which: str) -> int:
    """`1,3-9,20-30:5`."""
    total = 0
    for low, high, step in re.findall(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", which):
        total += len(range(int(low), int(high or low) + 1, max(1, int(step or 1))))
    return max(1, total)


def number(value: Any) -> int | None:
    """A number, as such until Slurm 22.05, since then as {"set": true, "infinite": false, "number": 1}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") else None
    return None if value is None else int(value)


def id_of(row: Any) -> str:
    """For a complaint."""
    return str(row.get("job_id"))[:20] if isinstance(row, Mapping) else "?"


# --- commands ---------------------------------------------------------------------------------------------------------


async def ask(*command: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise SlurmFailed(f"{command[0]} cannot be run: {error.strerror}. Install Slurm's client commands.") from error
    try:
        async with asyncio.timeout(COMMAND_LIMIT_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise SlurmFailed(f"{' '.join(command)} did not answer in {COMMAND_LIMIT_S:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise SlurmFailed(f"{' '.join(command)}: {err.decode(errors='replace').strip() or process.returncode}")
    return out.decode(errors="replace")


async def queue() -> Queue:
    return read_queue(await ask("squeue", "--all", "--json"))


class Sight(NamedTuple):
    """One job, as a look at it alone shows it."""

    state: str  # "GONE" where Slurm knows it no more
    reason: str

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def is_over(self) -> bool:
        return not self.is_pending and self.state not in RUNS


GONE: Final = Sight("GONE", "None")


async def look_at(job: str) -> Sight:
    """Quick for us and for Slurm, whatever else is in the queue. Two words of Slurm's own, of a job that we named."""
    try:
        said = await ask("squeue", "--all", "--noheader", f"--jobs={job}", "--format=%T %r")
    except SlurmFailed as trouble:
        if "Invalid job id" in str(trouble):
            return GONE
        raise
    state, _, reason = said.strip().partition(" ")
    return Sight(state, reason) if state else GONE


async def update(job: str, *changes: str) -> None:
    if not ROW.fullmatch(job):
        raise SlurmFailed(f"{job[:80]!r} is no job.")
    await ask("scontrol", "update", f"jobid={job}", *changes)


async def let_go(job: Job, by: str, after: str | None = None) -> None:
    """It may start; `after`: as soon as that one has ended, which Slurm sees to."""
    chain = [f"dependency=afterany:{after}"] if after else []
    await update(job.id, "starttime=now", f"admincomment={job.wish.mark(by)}", comment(job, turn(after)), *chain)


def turn(after: str | None = None) -> str:
    return f"next, after job {after}" if after else "its turn"


async def put_off(job: Job, why: str) -> None:
    """It waits for its turn again. Fails where it started meanwhile."""
    await update(job.id, NEVER, "dependency=", f"admincomment={job.wish.mark()}", comment(job, why))


async def keep_by(job: Job, by: str) -> None:
    await update(job.id, f"admincomment={job.wish.mark(by)}")


async def unchain(job: Job) -> None:
    await update(job.id, "dependency=")


async def say(job: Job, words: str) -> None:
    """To all tasks of an array that wait in one row, where Slurm can name them in one word."""
    await update(job.row, comment(job, words))


def comment(job: Job, words: str) -> str:
    """Where the user looks: behind what the user wrote there."""
    asked = WANTS.fullmatch(PLACE.sub("", job.comment))
    own = asked[0] if asked and asked[0].isprintable() else f"{MARK}{job.wish.mutex}"
    return f"comment={own[:COMMENT_MOST]} [{words}]"


async def cancel(job: Job) -> None:
    if not ROW.fullmatch(job.row or job.id):
        raise SlurmFailed(f"{job.row[:80]!r} is no job.")
    await ask("scancel", job.row or job.id)


def clean(words: str) -> str:
    """One printable line of what others wrote."""
    return "".join(each if each.isprintable() else "?" for each in words)
