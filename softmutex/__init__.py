"""A soft mutex: coordinate bulk work across machines without a lock server.

While nothing goes wrong exactly one holder at a time; when nodes die, pause or are cut off, two may overlap for a
bounded while, and both are told. It protects capacity, not correctness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softmutex.core.errors import (
        AcquireTimeout,
        ConfigError,
        HoldLost,
        Isolated,
        NodeClosed,
        SoftMutexError,
    )
    from softmutex.core.timing import Timing
    from softmutex.runtime.hold import Hold
    from softmutex.runtime.mutex import SoftMutex
    from softmutex.runtime.public import Node

__all__ = [
    "AcquireTimeout",
    "ConfigError",
    "Hold",
    "HoldLost",
    "Isolated",
    "Node",
    "NodeClosed",
    "SoftMutex",
    "SoftMutexError",
    "Timing",
]

_FROM = {"Hold": "runtime.hold", "Node": "runtime.public", "SoftMutex": "runtime.mutex", "Timing": "core.timing"}


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is first used: `softmutex run` and `softmutex.client` need no event loop, and are
    not to wait for the import of one."""
    if name not in __all__:
        raise AttributeError(f"module 'softmutex' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"softmutex.{_FROM.get(name, 'core.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
