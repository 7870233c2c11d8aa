"""Real processes, the SDK with its batch processor, OTLP over HTTP, decoded: what any backend would get."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.telemetry.processes import Receiver, applications, taken

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROCESSES, HOLDS = 3, 4


class Told(NamedTuple):
    """By which process, and what."""

    spans: list[tuple[int, Any]]
    metrics: list[tuple[int, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One story for all who look at it: three processes that import an SDK are a second and a half of computing."""
    receiver = Receiver()
    try:
        tell_story(receiver, tmp_path_factory.mktemp("story"))
    finally:
        receiver.close()
    return Told(taken(receiver.spans), taken(receiver.metrics))


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def tell_story(receiver: Receiver, directory: Path) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01",
        "OTHERS": str(PROCESSES - 1),
    }
    with applications(PROCESSES, "otlp", f"local://story?directory={directory}", str(HOLDS), **environ) as started:
        for words in ("ready", "done"):
            assert [application.hear() for application in started] == [words] * PROCESSES
            for application in started:
                application.go_on()
        assert [application.end() for application in started] == [0] * PROCESSES


def test_the_holds_of_all_processes_form_one_linked_story_of_the_token(told: Told):
    holds = {span.span_id: (pid, span) for pid, span in told.spans if span.name == "softmutex.hold"}
    assert len(holds) == PROCESSES * (HOLDS + 1)
    before = {id: [link.span_id for link in span.links] for id, (_, span) in holds.items()}
    assert all(len(links) <= 1 for links in before.values())
    heads = [id for id, links in before.items() if not links]
    made = sum(
        point.as_int
        for _, metric in told.metrics
        if metric.name == "softmutex.regenerations"
        for point in metric.sum.data_points
    )
    assert 1 <= len(heads) <= 1 + made, "a story begins with a token, and ends with it"
    after = {links[0]: id for id, links in before.items() if links}
    assert len(after) == len(holds) - len(heads), "no hold has two successors"
    assert set(after) <= set(holds)
    crossings = [id for id, links in before.items() if links and holds[links[0]][0] != holds[id][0]]
    assert crossings, "the token went from process to process, and the story with it"
    for earlier, later in after.items():
        assert holds[earlier][1].start_time_unix_nano <= holds[later][1].start_time_unix_nano


def test_the_trace_context_of_the_application_is_parent_of_wait_and_hold(told: Told):
    jobs = {pid: span for pid, span in told.spans if span.name == "job"}
    assert {span.parent_span_id.hex() for span in jobs.values()} == {SPAN_ID}
    ours = [(pid, span) for pid, span in told.spans if span.name in ("softmutex.wait", "softmutex.hold")]
    assert len(ours) == PROCESSES * (2 * HOLDS + 3)
    for pid, span in ours:
        assert span.trace_id.hex() == TRACE_ID
        assert span.parent_span_id == jobs[pid].span_id
        assert attributes(span)["softmutex.name"] == "nightly-ftp"
    outcomes = [attributes(span).get("softmutex.outcome") for _, span in ours if span.name == "softmutex.wait"]
    assert sorted(outcomes) == ["granted"] * PROCESSES * (HOLDS + 1) + ["timeout"] * PROCESSES


def test_metrics_arrive_too_a_series_for_each_process(told: Told):
    acquired: dict[str, int] = {}
    for _, metric in told.metrics:
        if metric.name == "softmutex.acquisitions":
            assert metric.sum.is_monotonic
            for point in metric.sum.data_points:
                labels = attributes(point)
                if labels["softmutex.outcome"] == "granted":
                    acquired[labels["softmutex.node"]] = point.as_int
    assert sorted(acquired.values()) == [HOLDS + 1] * PROCESSES
