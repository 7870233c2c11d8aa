"""Tells observers what happens, and lets none of them harm the node (O2).

`wait_started`, `wait_ended`, `hold_started` and `hold_ended` are told in the task (or thread) of the application, so
that an observer finds the caller's context there; everything else on the node's loop. `hold_ended` is told when the
token is on its way already: nobody waits for an observer to write it down.

What an observer may be beyond that is in `softmutex.ports` (O3 to O8). What readers (O8) are told some at a time is in
`diary.py`. A membership may bring one, too (`Observing`):
the registry's page shows what members tell it.

The naive way, to tell everybody everything, makes a program pay for telemetry that nobody has switched on.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, ParamSpec, Protocol, TypeVar

from softmutex import plugins
from softmutex.core.events import Duration, FactKind, Instant, NodeId, Note, from_seconds
from softmutex.ports import (
    Choosy,
    Courier,
    Guest,
    Membership,
    Observation,
    Observer,
    Observing,
    Reader,
    Sleeper,
    Tracer,
)
from softmutex.runtime.clock import Clock
from softmutex.runtime.config import Settings
from softmutex.runtime.diary import MutexDiary
from softmutex.runtime.local import LocalMutex
from softmutex.saying import logger

P = ParamSpec("P")
R = TypeVar("R")

log = logger("observers")

BAGGAGE_MAX = 64
LOOK_EVERY: Duration = from_seconds(0.05)


class Everything:
    def __contains__(self, what: object) -> bool:
        return True


EVERYTHING: Final = Everything()


NOTHING: Final[Container[str]] = frozenset()


class NodeForObservers(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    id: NodeId
    name: str
    settings: Settings
    membership: Membership
    now: Clock
    warnings: Counter[str]
    mutexes: dict[str, LocalMutex]
    is_open: bool

    @property
    def members(self) -> Sequence[NodeId]: ...

    def is_mine(self) -> bool: ...


class Observers:
    def __init__(self, wanted: Iterable[str | Observer] | None, node: NodeForObservers) -> None:
        self._node = node
        self._complained: set[int] = set()
        self._lock = threading.Lock()  # diaries are read by one at a time
        self._diaries: dict[MutexDiary, None] = {}
        self._shown = ShownNode(node, self.settle)
        self._asleep = self._installed() if wanted is None else plugins.observers(wanted)
        if isinstance(node.membership, Observing) and node.membership.observer is not None:
            self._asleep.append(node.membership.observer)
        self.awake: list[Observer] = []  # who listens, as of the last look: ...
        self.readers: list[Reader] = []  # ... to most of it some at a time,
        self.plain: list[Observer] = []  # ... or to each single thing
        self._couriers: list[Courier] = []
        self._look_at: Instant = 0
        self.of_messages: Container[str] = NOTHING
        self._wake()

    def _installed(self) -> list[Observer]:
        """All that there are. Nobody asked for them, so one that cannot be loaded is no reason not to start."""
        found: list[Observer] = []
        for name in plugins.installed(plugins.Role.OBSERVER):
            try:
                found += plugins.observers([name])
            except Exception as error:
                self._complain(name, error)
        return found

    def look(self) -> Sequence[Observer]:
        """The readers that follow a wait that begins now, and what becomes of it."""
        if self._asleep:
            self._wake()
        followers: Sequence[Observer] = ()
        for reader in self.readers:
            try:
                if reader.follows():
                    followers = (*followers, reader)
            except Exception as error:
                self._complain(reader, error)
        return followers

    def besides(self, followers: Sequence[Observer]) -> Sequence[Observer]:
        """With those that are told of each single thing: all that are awake by now."""
        return (*self.plain, *followers) if followers else self.plain

    def tick(self) -> None:
        """On the node's loop. Only here is a diary put away: in the midst of a turn its mutex may be gone already, and
        the ends of its holds not be written down."""
        self._wake()
        over = [diary for diary in list(self._diaries) if diary.is_over()]
        self.settle()
        for diary in over:
            del self._diaries[diary]

    def _wake(self) -> None:
        if self._asleep and (now := self._node.now()) >= self._look_at:
            self._look_at = now + LOOK_EVERY
            for observer in list(self._asleep):
                if isinstance(observer, Sleeper) and self._ask(observer, observer.asleep):
                    continue
                self._asleep.remove(observer)
                self.add(observer)
                if isinstance(observer, Courier):
                    self._couriers.append(observer)
                if isinstance(observer, Guest):
                    self._ask(observer, observer.opened, self._shown)

    def add(self, observer: Observer) -> None:
        """One more, from now on, to be told on the node's loop."""
        self.settle()  # what was before is not for this one
        self.awake.append(observer)
        if isinstance(observer, Reader):
            self.readers.append(observer)
        else:
            self.plain.append(observer)
        self.of_messages = kinds_of(self.awake)

    # --- what readers read --------------------------------------------------------------------------------------------

    def diary_of(self, mutex: LocalMutex) -> MutexDiary:
        if mutex.diary is None:  # once for a mutex: each hand-over and each wait comes by here
            with self._lock:
                if mutex.diary is None:
                    mutex.diary = MutexDiary(mutex, self._read)
                    self._diaries[mutex.diary] = None
        return mutex.diary

    def settle(self) -> None:
        """In any thread."""
        for diary in list(self._diaries):
            self._read(diary)

    def _read(self, diary: MutexDiary) -> None:
        with self._lock:
            lately = diary.lately()
        if lately is not None:
            for reader in self.readers:
                self._ask(reader, reader.read, diary, lately)

    # --- birth and death ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.settle()
        for observer in self.awake:
            if isinstance(observer, Guest):
                self._ask(observer, observer.closed, self._shown)

    def begin_anew(self) -> None:
        """The node has another id."""
        self.close()
        self._shown = ShownNode(self._node, self.settle)
        for observer in self.awake:
            if isinstance(observer, Guest):
                self._ask(observer, observer.opened, self._shown)

    def notice(self, observation: Observation) -> None:
        self.tell(self.awake, observation)

    def tell(self, observers: Iterable[Observer], observation: Observation) -> None:
        for observer in observers:
            try:
                observer.notice(observation)
            except Exception as error:
                self._complain(observer, error)

    def note(self, mutex: LocalMutex, note: Note) -> None:
        told: Sequence[Observer] = self.awake
        if note.kind is FactKind.HANDED_OVER:
            told, mutex.followers = self.besides(mutex.followers), ()
            if self.readers:
                self.diary_of(mutex).passed_on(note)
        if told:
            self.tell(told, Observation(mutex.name, self._node.id, note.kind.value, {"detail": note.detail}, note))

    def message(self, mutex: LocalMutex, what: str, kind: str) -> None:
        if told := self.besides(mutex.followers):
            self.tell(told, Observation(mutex.name, self._node.id, what, {"kind": kind}))

    def baggage(self, observation: Observation) -> bytes:
        """What a courier wants to send along with the token that is let go."""
        for courier in self._couriers:
            packed = self._ask(courier, courier.baggage, observation)
            if packed:
                return bytes(packed[:BAGGAGE_MAX])
        return b""

    def trace_of(self, observation: Observation) -> Mapping[str, str]:
        """The trace context of a hold, of the first observer that has one."""
        for observer in self.awake:
            if isinstance(observer, Tracer) and (headers := self._ask(observer, observer.trace_of, observation)):
                return headers
        return {}

    def _ask(self, observer: object, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """None where it failed."""
        try:
            return method(*args, **kwargs)
        except Exception as error:
            self._complain(observer, error)
            return None

    def _complain(self, observer: object, error: Exception) -> None:
        self._node.warnings["observers"] += 1
        if id(observer) not in self._complained:
            self._complained.add(id(observer))
            log.warning("the observer %r raised %r; it is told further on", observer, error, exc_info=error)


def kinds_of(observers: Iterable[Observer]) -> Container[str]:
    wanted = [observer.messages if isinstance(observer, Choosy) else True for observer in observers]
    if True in wanted:
        return EVERYTHING
    return frozenset(kind for kinds in wanted if not isinstance(kinds, bool) for kind in kinds)


class ShownNode:
    """`ports.NodeSeen`."""

    def __init__(self, node: NodeForObservers, settle: Callable[[], None]) -> None:
        self._node = node
        self._settle = settle
        self.id: NodeId = node.id
        self.name: str = node.name
        # `default_name` ends in a part of the id, which is another one each time that a node opens.
        self.lasting_name: str = node.settings["name"] or node.name.rpartition("-")[0]

    def members(self) -> int:
        return len(self._node.members) if self._node.is_open and self._node.is_mine() else 0

    def sent(self) -> Mapping[tuple[str, str], int]:
        mutexes = list(self._node.mutexes.values()) if self._node.is_mine() else []
        return {(each.name, kind): count for each in mutexes for kind, count in dict(each.counts.sent).items()}

    def algorithm(self, mutex: str) -> str:
        found = self._node.mutexes.get(mutex)
        return found.terms.algorithm if found else ""

    def settle(self) -> None:
        if self._node.is_mine():
            self._settle()


def default_name(id: NodeId) -> str:
    """Where to look for the node, and which of the nodes there."""
    return f"{socket.gethostname().partition('.')[0][:40]}-{os.getpid()}-{id >> 32:08x}"
