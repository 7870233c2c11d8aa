"""What this process tells of itself, and of its holds, to members that look: host, user, purpose.

What it decides: a command line may have a password in it, and is nobody's business; the name of the program is what
people ask for. So that is what is told, and `purpose=` says something better, or `none`.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from softmutex.core.events import Instant, to_seconds
from softmutex.meeting import program
from softmutex.runtime.terms import gate_name

if TYPE_CHECKING:
    from softmutex.runtime.local import LocalMutex

SHOWN: Final = 16  # of those who wait on one node
PAST_SHOWN: Final = 32

# Of the job on whose behalf this process asks now, where it is not this process itself.
purpose_of_job: ContextVar[str | None] = ContextVar("purpose_of_job", default=None)


@cache
def of_this_process() -> dict[str, str]:
    try:
        import pwd

        user = pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        user = str(os.geteuid()) if hasattr(os, "geteuid") else ""
    return {"host": socket.gethostname()[:64], "user": user[:32]}


def purpose_of(said: str | None) -> str:
    """What is told of a claim that is made now."""
    job = purpose_of_job.get()
    return job if job is not None else program() if said is None else said


def shown_uses(local: LocalMutex, now: Instant) -> dict[str, Any]:
    gate = local.node.mutexes.get(gate_name(local.name))
    waiting = [*local.waiting.values(), *(gate.waiting.values() if gate else ())]
    patient = [claim for claim in waiting if claim._timeout_s is None or claim._timeout_s > 0]
    return {
        "slots": local.terms.slots,
        "epoch": local.machine.view().epoch,
        "holding": [
            {
                "request": claim._request,
                "for": seconds(now - claim._granted_at),
                "waited": seconds(claim._granted_at - claim._asked_at),
                "purpose": claim._purpose,
                "epoch": claim.epoch,
                "hop": claim.hop,
            }
            for claim in list(local.holding.values())[:SHOWN]
        ],
        "waiting": [{"for": seconds(now - claim._asked_at), "purpose": claim._purpose} for claim in patient[:SHOWN]],
        "waiting_count": len(patient),
    }


def shown_past(local: LocalMutex, now: Instant) -> list[dict[str, Any]]:
    """The last holds that this node knows of; `ended`: so many seconds ago."""
    return [
        {
            **past.told._asdict(),
            "ended": seconds(now - past.ended_at),
            "held": seconds(past.told.held),
            "waited": seconds(past.told.waited),
        }
        for past in sorted(local.past)[-PAST_SHOWN:]
    ]


def cut(text: str, most: int) -> str:
    """So many bytes of UTF-8 at most."""
    if len(text) <= most and text.isascii():
        return text
    return text.encode()[:most].decode(errors="ignore")


def seconds(duration_ns: int) -> float:
    return round(to_seconds(duration_ns), 3)
