"""Looks over the shoulder of every machine of a run: for a person who reads it, and for pictures.

A spied-on run is the same run: the spy wraps machines and decides nothing. Others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from softmutex.core.events import Effect, Event, Instant, NodeId, to_seconds
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.sim.tally import EPOCH

# called with the node's own time, its id, what happened and what it answered
Spy: TypeAlias = Callable[[Instant, NodeId, Event, Sequence[Effect]], object]


class SpiedOn(Algorithm):
    __slots__ = ("_machine", "_me", "_spy")
    name: ClassVar[str] = "spied on"

    def __init__(self, machine: Algorithm, me: NodeId, spy: Spy) -> None:
        self._machine = machine
        self._me = me
        self._spy = spy

    def handle(self, event: Event, now: Instant) -> Sequence[Effect]:
        effects = self._machine.handle(event, now)
        self._spy(now, self._me, event, effects)
        return effects

    def view(self) -> View:
        return self._machine.view()


def spied_on(make: Callable[[Setup], Algorithm], spy: Spy) -> Callable[[Setup], Algorithm]:
    return lambda setup: SpiedOn(make(setup), setup.me, spy)


def teller(write: Callable[[str], object], start_s: float, end_s: float) -> Spy:
    """A spy that writes a line for each event from `start_s` to `end_s`, and one for each of its effects."""

    def tell(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        now_s = to_seconds(now - EPOCH)
        if start_s <= now_s <= end_s:
            write(f"{now_s:.9f}  node {node}  {plain(event)}\n")
            for effect in effects:
                write(f"{'':>{len(f'{now_s:.9f}')}}      -> {plain(effect)}\n")

    return tell


def plain(value: Any) -> str:
    """A tuple with names, without what has its default; moments as seconds of the run."""
    if isinstance(value, int) and abs(value - EPOCH) < EPOCH // 10:
        return f"{to_seconds(value - EPOCH):.9f}"
    if not isinstance(value, tuple) or not hasattr(value, "_fields"):
        return repr(value)
    defaults: dict[str, Any] = getattr(value, "_field_defaults", {})
    shown = [
        f"{name}={plain(field)}"
        for name, field in zip(getattr(value, "_fields", ()), value, strict=True)
        if name not in defaults or field != defaults[name]
    ]
    return f"{type(value).__name__}({', '.join(shown)})"
