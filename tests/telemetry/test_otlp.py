"""Real processes, the SDK with its batch processor, OTLP over HTTP, decoded: what any backend would get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.processes import Receiver, applications, taken

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROCESSES, HOLDS = 3, 4


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def tell_story(receiver: Receiver, tmp_path: Path) -> list[tuple[int, Any]]:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01",
        "OTHERS": str(PROCESSES - 1),
    }
    with applications(PROCESSES, "otlp", f"local://story?directory={tmp_path}", str(HOLDS), **environ) as started:
        for words in ("ready", "done"):
            assert [application.hear() for application in started] == [words] * PROCESSES
            for application in started:
                application.go_on()
        assert [application.end() for application in started] == [0] * PROCESSES
    return taken(receiver.spans)


def test_the_holds_of_all_processes_form_one_linked_story_of_the_token(receiver: Receiver, tmp_path: Path):
    found = tell_story(receiver, tmp_path)
    holds = {span.span_id: (pid, span) for pid, span in found if span.name == "softmutex.hold"}
    assert len(holds) == PROCESSES * (HOLDS + 1)
    before = {id: [link.span_id for link in span.links] for id, (_, span) in holds.items()}
    assert all(len(links) <= 1 for links in before.values())
    heads = [id for id, links in before.items() if not links]
    made = sum(
        point.as_int
        for _, metric in taken(receiver.metrics)
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


def test_the_trace_context_of_the_application_is_parent_of_wait_and_hold(receiver: Receiver, tmp_path: Path):
    found = tell_story(receiver, tmp_path)
    jobs = {pid: span for pid, span in found if span.name == "job"}
    assert {span.parent_span_id.hex() for span in jobs.values()} == {SPAN_ID}
    ours = [(pid, span) for pid, span in found if span.name in ("softmutex.wait", "softmutex.hold")]
    assert len(ours) == PROCESSES * (2 * HOLDS + 3)
    for pid, span in ours:
        assert span.trace_id.hex() == TRACE_ID
        assert span.parent_span_id == jobs[pid].span_id
        assert attributes(span)["softmutex.name"] == "nightly-ftp"
    outcomes = [attributes(span).get("softmutex.outcome") for _, span in ours if span.name == "softmutex.wait"]
    assert sorted(outcomes) == ["granted"] * PROCESSES * (HOLDS + 1) + ["timeout"] * PROCESSES


def test_metrics_arrive_too_a_series_for_each_process(receiver: Receiver, tmp_path: Path):
    tell_story(receiver, tmp_path)
    acquired: dict[str, int] = {}
    for _, metric in taken(receiver.metrics):
        if metric.name == "softmutex.acquisitions":
            assert metric.sum.is_monotonic
            for point in metric.sum.data_points:
                labels = attributes(point)
                if labels["softmutex.outcome"] == "granted":
                    acquired[labels["softmutex.node"]] = point.as_int
    assert sorted(acquired.values()) == [HOLDS + 1] * PROCESSES
