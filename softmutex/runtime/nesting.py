"""Raises at once where a task (or a thread) would wait for a mutex that it holds itself, and so for ever.

The naive ways: a re-entrant lock lets the body of the outer hold release what the inner one believes to have, and a
lock that forbids its owner to ask again cannot be passed on. Here only bodies count: who entered a body of this mutex
and has not left it. A hold that was acquired without a body, or passed on to another task, belongs to its handle. Nor
is a thread known by its number, which the next one gets when it has ended.

The same resource by another node of this process is a deadlock only where there is no time limit.
"""

from __future__ import annotations

import asyncio
from threading import local
from typing import Any

from softmutex.core.errors import AcquireTimeout, SoftMutexError
from softmutex.runtime.claim import MutexClaim
from softmutex.runtime.crossing import Crossing

of_tasks: dict[asyncio.Task[Any], list[MutexClaim]] = {}  # who runs bodies, and of which holds


class OfThread(local):
    """The same of this thread."""

    def __init__(self) -> None:
        self.holds: list[MutexClaim] = []


of_thread = OfThread()


def enter(task: asyncio.Task[Any], hold: MutexClaim) -> None:
    bodies = of_tasks.get(task)
    if bodies is None:
        of_tasks[task] = [hold]
    else:
        bodies.append(hold)


def leave(task: asyncio.Task[Any], hold: MutexClaim) -> None:
    bodies = of_tasks.get(task)
    if bodies is not None and hold in bodies:
        bodies.remove(hold)
        if not bodies:
            del of_tasks[task]


def bodies_here() -> list[MutexClaim]:
    """Of the task that runs, and of this thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        task = None
    of_task = [] if task is None else of_tasks.get(task, [])
    return [*of_task, *of_thread.holds]


def check(bodies: list[MutexClaim], what: str, crossing: Crossing, timeout_s: float | None) -> None:
    """Whoever runs these bodies is about to wait for this mutex. `what`: a word for what it is."""
    if not _would_wait_for_itself(bodies, crossing, timeout_s):
        return
    name = crossing.plan.name
    if timeout_s is None:
        raise SoftMutexError(
            f"this {what} holds the mutex {name!r} already: waiting for it again would never end. "
            "Do the inner work under the outer hold, or pass the hold on."
        )
    if timeout_s <= 0:
        raise AcquireTimeout(f"the mutex {name!r} is in use: this very {what} holds it.")
    raise AcquireTimeout(
        f"this {what} holds the mutex {name!r} already, so that it would not be granted within {timeout_s:g} s, nor "
        "ever. Do the inner work under the outer hold, or pass the hold on."
    )


def _would_wait_for_itself(bodies: list[MutexClaim], crossing: Crossing, timeout_s: float | None) -> bool:
    mine = [hold for hold in bodies if hold._crossing.node.is_mine()]  # not what a forked child found in its parent
    name = crossing.plan.name
    here = sum(hold._crossing.node is crossing.node and hold.name == name for hold in mine)
    if here and crossing.plan.policy.weight is not None:
        return True  # who has a part and waits for more at the gate stops everybody behind it
    if here:
        return here >= crossing.plan.terms.holds_of_one_node()
    if timeout_s is not None or crossing.plan.terms.slots > 1:
        return False
    return any(hold._crossing.resource == crossing.resource for hold in mine)
