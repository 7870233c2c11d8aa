"""Every observer that this package brings keeps its promises; so does the one that a registry's membership brings."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from softmutex_adapters.observers.otel import OpenTelemetry
from softmutex_adapters.registry.reporter import Reporter

from softmutex.ports import Choosy, Courier, Guest, Observer, Reader, Sleeper, Tracer
from softmutex.testing import ObserverContract


class TestOpenTelemetry(ObserverContract):
    scheme = "opentelemetry"

    def make(self) -> Observer:
        return OpenTelemetry(tracer_provider=TracerProvider(), meter_provider=MeterProvider())

    def test_it_is_all_that_an_observer_may_be(self):
        for part in (Sleeper, Courier, Choosy, Guest, Tracer, Reader):
            assert isinstance(self.make(), part)


class TestReporter(ObserverContract):
    def make(self) -> Observer:
        return Reporter(lambda: None)

    def test_it_is_not_told_of_single_messages(self):
        reporter = self.make()
        assert isinstance(reporter, Choosy)
        assert reporter.messages is False

    def test_it_is_told_of_no_wait_by_itself(self):
        reporter = self.make()
        assert isinstance(reporter, Reader)
        assert reporter.follows() is False
