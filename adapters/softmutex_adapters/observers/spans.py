"""The story of a token as spans, across processes.

    caller's span --+-- softmutex.wait    from asking until it is granted or given up
                    +-- softmutex.hold    from the grant to the end; linked to the hold before it, wherever that was
                           '-- softmutex.handover    from letting go until the next one is known to have the token

A wait and a hold are two spans: one that mixes them tells nobody whether work or waiting took long.

What it decides: what to trace. The naive way, three spans for each acquisition, costs a mutex of a thousand hand-overs
a second more than the mutex itself. So after a burst only some a second are traced (`Allowance`); a hold that is not
traced passes on the context that came with the token, so that the story goes on, with gaps that `softmutex.hop` shows.

The context travels as 25 bytes: trace id (16), span id (8), trace flags (1). Whoever sends something else is ignored:
it came from outside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry import context, trace
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from softmutex.core.events import FactKind, NodeId
from softmutex.ports import NodeSeen, Observation

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

WAIT, HOLD, HANDOVER = "softmutex.wait", "softmutex.hold", "softmutex.handover"
OFFERS = ("OFFER", "COMMIT")  # the message with which a hand-over begins, where it is sent after the release
PACKED_BYTES = 25
EARLY_NEWS_MAX = 64

Attributes: TypeAlias = dict[str, str | int]
Key: TypeAlias = tuple[NodeId, str, object]  # node, mutex, claim or request


class Allowance:
    """So many at once, then so many a second."""

    def __init__(self, at_once: float, a_second: float) -> None:
        self._most, self._a_second = float(at_once), a_second
        self._left = float(at_once)
        self._as_of = time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._as_of) * self._a_second)
            self._as_of = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Asked:
    """One traced acquisition, while it waits and while it is held."""

    __slots__ = ("attributes", "caller", "hold", "wait")

    def __init__(self, caller: Context, wait: Span, attributes: Attributes) -> None:
        self.caller = caller
        self.wait = wait
        self.hold: Span | None = None
        self.attributes = attributes


class LetGo:
    """The last traced hold of a mutex here, until its token is somewhere else."""

    __slots__ = ("at_ns", "hold", "offered_at_ns")

    def __init__(self, hold: SpanContext) -> None:
        self.hold = hold
        self.at_ns = time.time_ns()
        self.offered_at_ns = 0  # after that, where it stayed here a while


class Spans:
    def __init__(self, provider: TracerProvider | None, allowance: Allowance) -> None:
        self._tracer = trace.get_tracer("softmutex", tracer_provider=provider)
        self.follows = allowance.take
        self._nodes: dict[NodeId, NodeSeen] = {}
        self._waits: dict[Key, Asked] = {}  # by claim
        self._holds: dict[Key, Asked] = {}  # by request
        self._early: dict[Key, str] = {}  # losses told before the application has its hold
        self._let_go: dict[tuple[NodeId, str], LetGo] = {}
        self.takers: Mapping[str, Callable[[Observation], None]] = {
            "wait_started": self._wait_started,
            "wait_ended": self._wait_ended,
            "hold_started": self._hold_started,
            "hold_ended": self._hold_ended,
            "hold_lost": self._hold_lost,
            "overrun": self._overrun,
            "message_sent": self._offered,
            FactKind.HANDED_OVER.value: self._handed_over,
            FactKind.HANDOVER_FAILED.value: self._not_handed_over,
            FactKind.TOKEN_LOST.value: self._not_handed_over,
        }

    def opened(self, node: NodeSeen) -> None:
        self._nodes[node.id] = node

    def closed(self, node: NodeSeen) -> None:
        self._nodes.pop(node.id, None)
        for key in [key for key in list(self._let_go) if key[0] == node.id]:
            self._let_go.pop(key, None)

    def _attributes(self, seen: Observation) -> Attributes:
        node = self._nodes.get(seen.node)
        name = node.name if node else f"{seen.node:x}"
        algorithm = node.algorithm(seen.mutex) if node else ""
        return {
            "softmutex.name": seen.mutex,
            "softmutex.node": name,
            "softmutex.algorithm": str(seen.values.get("algorithm", algorithm)),
        }

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait_started(self, seen: Observation) -> None:
        caller, attributes = context.get_current(), self._attributes(seen)
        wait = self._tracer.start_span(WAIT, caller, attributes=attributes)
        self._waits[seen.node, seen.mutex, seen.values["claim"]] = Asked(caller, wait, attributes)

    def _wait_ended(self, seen: Observation) -> None:
        key = (seen.node, seen.mutex, seen.values["claim"])
        asked = self._waits.get(key)
        if asked is None:
            return
        outcome = str(seen.values["outcome"])
        if outcome != "granted":
            del self._waits[key]
        if outcome in ("timeout", "closed"):
            asked.wait.set_status(Status(StatusCode.ERROR, outcome))
        asked.wait.set_attribute("softmutex.outcome", outcome)
        asked.wait.end()

    # --- holding ----------------------------------------------------------------------------------------------------

    def _hold_started(self, seen: Observation) -> None:
        asked = self._waits.pop((seen.node, seen.mutex, seen.values["claim"]), None)
        key = (seen.node, seen.mutex, seen.values["request"])
        lost = self._early.pop(key, None)
        if asked is None:
            return
        place: Attributes = {"softmutex.epoch": int(seen.values["epoch"]), "softmutex.hop": int(seen.values["hop"])}
        before = unpack(str(seen.values["baggage"]))
        asked.hold = self._tracer.start_span(
            HOLD, asked.caller, attributes=asked.attributes | place, links=[Link(before)] if before else None
        )
        self._holds[key] = asked
        if lost is not None:
            asked.hold.add_event("softmutex.lost", {"softmutex.reason": lost})

    def baggage(self, seen: Observation) -> bytes:
        """Asked just before the token is let go: `hold_ended` comes when it is under way."""
        asked = self._holds.get((seen.node, seen.mutex, seen.values["request"]))
        if asked is None or asked.hold is None:
            return b""
        hold = asked.hold.get_span_context()
        if not hold.is_valid or not hold.trace_flags.sampled:
            return b""
        self._let_go[seen.node, seen.mutex] = LetGo(hold)
        return pack(hold)

    def trace_of(self, seen: Observation) -> Mapping[str, str]:
        asked = self._holds.get((seen.node, seen.mutex, seen.values["request"]))
        headers: dict[str, str] = {}
        if asked is not None and asked.hold is not None:
            TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(asked.hold))
        return headers

    def _hold_ended(self, seen: Observation) -> None:
        asked = self._holds.pop((seen.node, seen.mutex, seen.values["request"]), None)
        if asked is not None and asked.hold is not None:
            asked.hold.end()

    def _hold_lost(self, seen: Observation) -> None:
        key, reason = (seen.node, seen.mutex, seen.values["request"]), str(seen.values["reason"])
        asked = self._holds.get(key)
        if asked is not None and asked.hold is not None:
            asked.hold.add_event("softmutex.lost", {"softmutex.reason": reason})
        elif self._waits:  # it may be of one that is traced
            self._early[key] = reason
            if len(self._early) > EARLY_NEWS_MAX:
                self._early.pop(next(iter(self._early)), None)

    def _overrun(self, seen: Observation) -> None:
        asked = self._holds.get((seen.node, seen.mutex, seen.values["request"]))
        if asked is not None and asked.hold is not None:
            asked.hold.add_event("softmutex.overrun")

    # --- handing over -----------------------------------------------------------------------------------------------

    def _offered(self, seen: Observation) -> None:
        last = self._let_go.get((seen.node, seen.mutex))
        if last is not None and not last.offered_at_ns and seen.values["kind"] in OFFERS:
            last.offered_at_ns = time.time_ns()

    def _handed_over(self, seen: Observation) -> None:
        last = self._let_go.pop((seen.node, seen.mutex), None)
        if last is not None:
            self._tell_handover(seen, last).end()

    def _not_handed_over(self, seen: Observation) -> None:
        last = self._let_go.get((seen.node, seen.mutex))
        if last is None or seen.note is None or not seen.note.peer:
            return
        span = self._tell_handover(seen, last)
        span.set_status(Status(StatusCode.ERROR, seen.note.detail or seen.what))
        span.end()
        last.offered_at_ns = 0

    def _tell_handover(self, seen: Observation, last: LetGo) -> Span:
        attributes = self._attributes(seen)
        if seen.note is not None and seen.note.token is not None:
            attributes |= {"softmutex.epoch": seen.note.token.epoch, "softmutex.hop": seen.note.token.hop}
        held = trace.set_span_in_context(NonRecordingSpan(last.hold), context.Context())
        # Offered before it was let go, or not offered at all: it went at once. Else it stayed here until it was wanted.
        begun_ns = max(last.at_ns, last.offered_at_ns)
        return self._tracer.start_span(HANDOVER, held, attributes=attributes, start_time=begun_ns)


def pack(of: SpanContext) -> bytes:
    return of.trace_id.to_bytes(16, "big") + of.span_id.to_bytes(8, "big") + bytes([of.trace_flags])


def unpack(baggage: str) -> SpanContext | None:
    packed = bytes.fromhex(baggage)
    if len(packed) != PACKED_BYTES:
        return None
    found = SpanContext(
        int.from_bytes(packed[:16], "big"), int.from_bytes(packed[16:24], "big"), True, TraceFlags(packed[24])
    )
    return found if found.is_valid else None
