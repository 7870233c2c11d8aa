"""What happens to a mutex, as OpenTelemetry: spans (`spans.py`) and metrics (`meters.py`). It is installed by default.

    no SDK in this process --> asleep: nothing is imported, counted or made
    an SDK is set up       --> awake from the next wait on, for good

What it decides: when to be awake. The naive way, to import the API and call its empty functions, costs every program
50 ms at its start and each hand-over some microseconds, for telemetry that nobody asked for. But who sets up an SDK
must have imported the API: while that is not there, nothing else needs to be asked.

An application that keeps its providers to itself gives them: `Node(observers=[OpenTelemetry(tracer_provider=...)])`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from softmutex.ports import Diary, Lately, NodeSeen, Observation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from softmutex_adapters.observers.meters import Meters
    from softmutex_adapters.observers.spans import Spans

# Where one of these is set, the API sets up an SDK by itself when it is first asked.
SETS_ITSELF_UP = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")

TRACED_AT_ONCE = 1000  # acquisitions whose spans are made, whatever their rate ...
TRACED_A_SECOND = 50.0  # ... and how many a second after that; metrics count them all


class OpenTelemetry:
    """Observer and courier, for any number of nodes. The trace context of a hold travels with its token."""

    messages = ("OFFER", "COMMIT")  # a hand-over begins with one of these

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        traced_at_once: int = TRACED_AT_ONCE,
        traced_a_second: float = TRACED_A_SECOND,
    ) -> None:
        """Without providers those of the process (`opentelemetry.trace.set_tracer_provider`) are used."""
        self._providers = tracer_provider, meter_provider
        self._limits = traced_at_once, traced_a_second
        self._awake: tuple[Spans, Meters] | None = None
        self._waking = threading.Lock()  # the nodes of several loops may begin at once
        self._takers: Mapping[str, Sequence[Callable[[Observation], None]]] = {}

    def asleep(self) -> bool:
        return self._awake is None and not any(self._providers) and not sdk_is_set_up()

    def opened(self, node: NodeSeen) -> None:
        spans, meters = self._wake()
        spans.opened(node)
        meters.opened(node)

    def closed(self, node: NodeSeen) -> None:
        spans, meters = self._wake()
        spans.closed(node)
        meters.closed(node)

    def notice(self, observation: Observation) -> None:
        if self._awake is None:
            self._wake()
        for take in self._takers.get(observation.what, ()):
            take(observation)

    def follows(self) -> bool:
        spans, _ = self._awake or self._wake()
        return spans.follows()

    def read(self, diary: Diary, lately: Lately) -> None:
        self._wake()[1].read(diary, lately)

    def baggage(self, observation: Observation) -> bytes:
        return self._wake()[0].baggage(observation)

    def trace_of(self, observation: Observation) -> Mapping[str, str]:
        return self._wake()[0].trace_of(observation)

    def _wake(self) -> tuple[Spans, Meters]:
        if self._awake is not None:
            return self._awake
        with self._waking:
            if self._awake is None:
                from softmutex_adapters.observers.meters import Meters
                from softmutex_adapters.observers.spans import Allowance, Spans

                tracer_provider, meter_provider = self._providers
                spans, meters = Spans(tracer_provider, Allowance(*self._limits)), Meters(meter_provider)
                kinds = meters.takers.keys() | spans.takers.keys()
                both = {kind: (meters.takers.get(kind), spans.takers.get(kind)) for kind in kinds}
                self._takers = {kind: [take for take in takers if take is not None] for kind, takers in both.items()}
                self._awake = spans, meters
            return self._awake


def sdk_is_set_up() -> bool:
    """Whether a provider of this process is more than the API's own, which do nothing."""
    imported = "opentelemetry.trace" in sys.modules or "opentelemetry.metrics" in sys.modules
    if not imported and not any(name in os.environ for name in SETS_ITSELF_UP):
        return False
    from opentelemetry import metrics, trace

    return does_something(trace.get_tracer_provider()) or does_something(metrics.get_meter_provider())


def does_something(provider: object) -> bool:
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


@cache
def shared() -> OpenTelemetry:
    """The one of this process: an instrument that is made once for each node is an error in the SDK."""
    return OpenTelemetry()
