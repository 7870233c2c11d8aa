"""What Slurm knows of the jobs that want a turn, by its own commands.

What it decides: `squeue` and `scontrol`, no library. They are there wherever Slurm is, of the right version, with the
right keys; a binding would have to be built for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.runtime.config import duration_s

MARK: Final = "softmutex="  # how a comment begins that asks for a turn
FIELDS: Final = "%i|%T|%r|%k"
RUNS: Final = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})
COMMAND_LIMIT_S: Final = 30.0


class SlurmFailed(SoftMutexError):
    """A command of Slurm's did not do what it was asked for."""


class Wish(NamedTuple):
    """What the comment of a job asks for."""

    mutex: str
    timeout_s: float | None


class Job(NamedTuple):
    id: str
    state: str
    reason: str
    wish: Wish | None  # None: its comment cannot be read; `trouble` says why
    trouble: str = ""

    @property
    def is_held(self) -> bool:
        return self.state == "PENDING" and self.reason.startswith("JobHeld")

    @property
    def runs(self) -> bool:
        return self.state in RUNS


def read_wish(comment: str) -> Wish:
    """`softmutex=NAME[:timeout=2h]`."""
    name, *settings = comment.removeprefix(MARK).split(":")
    timeout_s = None
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "timeout":
            raise ConfigError(f"there is no {key!r} in {comment!r}: write softmutex=NAME or softmutex=NAME:timeout=2h")
        try:
            timeout_s = duration_s(value)
        except ValueError as error:
            raise ConfigError(f"timeout={value} in {comment!r}: {error}") from None
    if not name:
        raise ConfigError(f"{comment!r} names no mutex: write softmutex=NAME")
    return Wish(name, timeout_s)


def read_queue(said: str) -> Mapping[str, Job]:
    """The jobs that want a turn, in the order of their numbers."""
    jobs = []
    for line in said.splitlines():
        number, state, reason, comment = line.split("|", 3)
        if comment.startswith(MARK):
            try:
                jobs.append(Job(number, state, reason, read_wish(comment)))
            except ConfigError as error:
                jobs.append(Job(number, state, reason, None, str(error)))
    return {job.id: job for job in sorted(jobs, key=lambda job: (len(job.id), job.id))}


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


async def queue() -> Mapping[str, Job]:
    return read_queue(await ask("squeue", "--noheader", "--all", "--array", f"--format={FIELDS}"))


async def release(job: str) -> None:
    await ask("scontrol", "release", job)


async def hold(job: str) -> None:
    await ask("scontrol", "hold", job)


async def cancel(job: str) -> None:
    await ask("scancel", job)
