"""Every error that softmutex raises on purpose, in one family: `except SoftMutexError` catches them all.

A message says what is wrong, what is there instead, and what to do.
"""

from __future__ import annotations


class SoftMutexError(Exception):
    """The parent of all errors of this library."""


class ConfigError(SoftMutexError, ValueError):
    """A setting is impossible, unknown or contradicts another one."""


class AcquireTimeout(SoftMutexError, TimeoutError):
    """The mutex was not granted within the time that the caller allowed. The body was not entered."""


class HoldLost(SoftMutexError):
    """This hold stopped being the only one while its body ran; raised only where the caller asked for it."""


class Isolated(SoftMutexError):
    """This node cannot reach enough of its group, and the mutex was told to raise then."""


class NodeClosed(SoftMutexError):
    """The node is closed, or belongs to the parent of this forked process."""


class BadFrame(SoftMutexError, ValueError):
    """These bytes are not a frame that this version understands."""


class InvariantBreach(SoftMutexError, AssertionError):
    """A machine broke a promise of its own: a bug here, never the caller's fault. Not silenced by `python -O`."""
