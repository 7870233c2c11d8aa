"""What this process tells of itself, and of its holds, to members that look: host, user, purpose.

What it decides: a command line may have a password in it, and is nobody's business; the name of the program is what
people ask for. So that is what is told, and `purpose=` says something better, or `none`.
"""

from __future__ import annotations

import os
import socket
import sys
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from softmutex.core.events import Instant, to_seconds

if TYPE_CHECKING:
    from softmutex.runtime.local import LocalMutex

PURPOSE_MAX: Final = 64
SHOWN: Final = 16  # of those who wait on one node
PAST_SHOWN: Final = 32

# Of the job on whose behalf this process asks now, where it is not this process itself.
purpose_of_job: ContextVar[str | None] = ContextVar("purpose_of_job", default=None)


@cache
def program() -> str:
    """Its name, as one would call it."""
    started = Path(sys.argv[0] if sys.argv else "")
    name = started.parent.name if started.name == "__main__.py" else started.name
    return (name if name and not name.startswith("-") else "python")[:PURPOSE_MAX]


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
    patient = [claim for claim in local.waiting.values() if claim._timeout_s is None or claim._timeout_s > 0]
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
    """The last holds of this node; `ended`: so many seconds ago."""
    who = {"node": local.node.name, **of_this_process()}
    return [
        {
            **who,
            "request": past.request,
            "epoch": past.epoch,
            "hop": past.hop,
            "ended": seconds(now - past.ended_at),
            "held": seconds(past.ended_at - past.granted_at),
            "waited": seconds(past.granted_at - past.asked_at),
            "purpose": past.purpose,
            "lost": past.lost,
        }
        for past in list(local.past)[-PAST_SHOWN:]
    ]


def seconds(duration_ns: int) -> float:
    return round(to_seconds(duration_ns), 3)
