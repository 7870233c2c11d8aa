"""The wandering token, fit for use on demand."""

from softmutex.core.algorithms.wandering.machine import Wandering

__all__ = ["Wandering"]
