"""A soft mutex: coordinate bulk work across machines without a lock server.

While nothing goes wrong exactly one holder at a time; when nodes die, pause or are cut off, two may overlap for a
bounded while, and both are told. It protects capacity, not correctness.
"""

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
