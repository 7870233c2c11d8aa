"""What `softmutex slurm queue` shows: by Slurm's own queue, so that it needs no releaser and no group."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from softmutex_adapters.schedulers.slurm.jobs import Job, Queue, clean

TOLD: Final = re.compile(r" \[place ([0-9]{1,9}) of [^\]]*\]$")
HEAD: Final = ("PLACE", "JOB", "USER", "NAME", "SINCE", "STATE")


def describe(queue: Queue) -> list[dict[str, Any]]:
    """Those that run first, then those that wait, in the order in which they come, then those that cannot start."""
    now_s = time.time()
    mutexes: dict[str, list[Job]] = {}
    for job in queue.jobs.values():
        mutexes.setdefault(job.wish.mutex, []).append(job)
    rows = []
    for mutex, jobs in sorted(mutexes.items()):
        place = 0
        for job in sorted(in_told_order(jobs), key=lambda job: (not job.runs, job.waits, bool(job.why_not_yet(now_s)))):
            state, since_s = state_of(job, now_s), job.started_s if job.runs else job.submitted_s
            is_in_line = job.waits and not job.why_not_yet(now_s)
            rows.append(
                {
                    "mutex": mutex,
                    "place": place + 1 if is_in_line else None,
                    "job": job.row or job.id,
                    "tasks": job.tasks,
                    "user": clean(job.user),
                    "name": clean(job.name),
                    "since": round(max(0.0, now_s - since_s), 1),
                    "state": state,
                    "weight": job.wish.weight or 1,
                    "priority": job.wish.priority,
                }
            )
            place += job.tasks if is_in_line else 0
    return rows


def in_told_order(jobs: list[Job]) -> list[Job]:
    """Where some are urgent, as the releaser last told them: it knows what a priority is worth, Slurm does not."""
    if not any(job.wish.priority for job in jobs):
        return jobs
    told = {job.id: int(found[1]) for job in jobs if (found := TOLD.search(job.comment))}
    return sorted(jobs, key=lambda job: told.get(job.id, len(jobs)))


def state_of(job: Job, now_s: float) -> str:
    if job.runs:
        return "has its turn" if job.wish.by else "runs without a turn"
    if job.waits:
        return clean(job.why_not_yet(now_s)) or "waits"
    return f"was let go, starts soon ({clean(job.reason)})"


def table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no job asks for a turn\n"
    lines = []
    for mutex in dict.fromkeys(row["mutex"] for row in rows):
        of_it = [row for row in rows if row["mutex"] == mutex]
        cells = [
            HEAD,
            *(
                (place_of(row), *(str(row[each]) for each in ("job", "user", "name")), age(row["since"]), words_of(row))
                for row in of_it
            ),
        ]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
        lines.append(mutex)
        lines += [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
    return "\n".join(lines) + "\n"


def place_of(row: dict[str, Any]) -> str:
    if row["place"] is None:
        return "-"
    last = row["place"] + row["tasks"] - 1
    return str(row["place"]) if last == row["place"] else f"{row['place']}-{last}"


def words_of(row: dict[str, Any]) -> str:
    words = [str(row["state"])]
    words += [f"takes {row['weight']} slots"] if row["weight"] > 1 else []
    return ", ".join([*words, f"priority {row['priority']}"] if row["priority"] else words)


def age(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    return f"{int(seconds)}s" if not minutes else f"{minutes}m" if not hours else f"{hours}h{minutes % 60:02}m"
