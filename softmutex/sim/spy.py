"""Looks over the shoulder of every machine of a run: for a person who reads it, and for pictures.

A spied-on run is the same run: the spy wraps machines and decides nothing. Others pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from softmutex.core.events import Effect, Event, Instant, NodeId, to_seconds
from softmutex.core.machine import Algorithm, Setup, View
from softmutex.sim.lines import Story
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
    """A spy that writes what happened from `start_s` to `end_s`, and what each node did about it (`lines.py`)."""
    lines = Story(EPOCH)

    def tell(now: Instant, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        if start_s <= to_seconds(now - EPOCH) <= end_s:
            write(lines.event(now, node, event) + "\n")
            for line in lines.effects(node, effects):
                write(line + "\n")

    return tell
