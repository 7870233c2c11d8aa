"""Raises at once where a task (or a thread) would wait for a mutex that it holds itself, and so for ever.

The naive ways: a re-entrant lock lets the body of the outer hold release what the inner one believes to have, and a
lock that forbids its owner to ask again cannot be passed on. Here only bodies count: who entered a body of this mutex
and has not left it. A hold that was passed on to another task is nobody's body.

The same resource by another node of this process is a deadlock only where there is no time limit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from softmutex.core.errors import AcquireTimeout, SoftMutexError

if TYPE_CHECKING:
    from softmutex.runtime.use import Use


class _Held(Protocol):
    _use: Use


_inside: dict[Hashable, list[_Held]] = {}  # who runs bodies, and of which holds


def enter(who: Hashable, hold: _Held) -> None:
    _inside.setdefault(who, []).append(hold)


def leave(who: Hashable, hold: _Held) -> None:
    bodies = _inside.get(who)
    if bodies is not None and hold in bodies:
        bodies.remove(hold)
        if not bodies:
            del _inside[who]


def check(who: Hashable, what: str, use: Use, timeout_s: float | None) -> None:
    """`who` is about to wait for this mutex. `what`: a word for what it is."""
    bodies = _inside.get(who)
    if not bodies or not _would_wait_for_itself(bodies, use, timeout_s):
        return
    name = use.plan.name
    if timeout_s is not None and timeout_s <= 0:
        raise AcquireTimeout(f"the mutex {name!r} is in use: this very {what} holds it.")
    raise SoftMutexError(
        f"this {what} holds the mutex {name!r} already: waiting for it again would never end. "
        "Do the inner work under the outer hold, or pass the hold on."
    )


def _would_wait_for_itself(bodies: list[_Held], use: Use, timeout_s: float | None) -> bool:
    here = sum(hold._use.life is use.life and hold._use.plan.name == use.plan.name for hold in bodies)
    if here:
        return here >= use.each
    if timeout_s is not None or use.plan.terms.slots > 1:
        return False
    return any(hold._use.resource == use.resource for hold in bodies)
