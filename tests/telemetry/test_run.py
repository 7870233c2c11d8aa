"""`softmutex run` in a trace: its spans are below the caller's, and the command's are below them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import but_for_standstills
from tests.telemetry.processes import Receiver, eventually, taken

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SHOW = ["--", sys.executable, "-c", "import os; print(os.environ.get('TRACEPARENT', 'none'))"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SOFTMUTEX_", "OTEL_"))}
    membership = f"local://?directory={tmp_path}/runtime"
    return {**own, "SOFTMUTEX_MEMBERSHIP": membership, "SOFTMUTEX_AGENT": str(tmp_path / "agent.sock")}


def run(environ: dict[str, str], *flags: str, **more: str) -> str:
    """What the command found in TRACEPARENT."""
    done = subprocess.run(
        [SOFTMUTEX, "run", "-n", "x", "--timeout", "100s", *flags, *SHOW],
        env={**environ, **more},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, but_for_standstills(done.stderr)) == (0, ""), done.stderr
    return done.stdout.strip()


def spans(receiver: Receiver) -> dict[str, Any]:
    return {span.name: span for _, span in taken(receiver.spans)}


def check_story(found: dict[str, Any], seen_by_command: str) -> None:
    wait, hold = found["softmutex.wait"], found["softmutex.hold"]
    for span in (wait, hold):
        assert span.trace_id.hex() == TRACE_ID
        assert span.parent_span_id.hex() == SPAN_ID
    assert seen_by_command == f"00-{TRACE_ID}-{hold.span_id.hex()}-01"


def test_its_spans_are_below_the_callers_and_the_commands_below_its_hold(receiver: Receiver, environ: dict[str, str]):
    caller = f"00-{TRACE_ID}-{SPAN_ID}-01"
    seen = run(environ, "--no-agent", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, TRACEPARENT=caller)
    check_story(spans(receiver), seen)  # they were sent before it ended


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def test_with_an_agent_that_is_traced_it_is_the_same(receiver: Receiver, environ: dict[str, str]):
    agent = subprocess.Popen(
        [SOFTMUTEX, "agent"],
        env={**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"},
        stderr=subprocess.PIPE,
    )
    try:
        eventually(lambda: listens(environ["SOFTMUTEX_AGENT"]))
        seen = run(environ, TRACEPARENT=f"00-{TRACE_ID}-{SPAN_ID}-01")
    finally:
        agent.terminate()
        agent.communicate(timeout=100)
    check_story(spans(receiver), seen)


def test_without_a_caller_it_begins_a_trace_and_without_telemetry_it_passes_the_callers_on(
    receiver: Receiver, environ: dict[str, str]
):
    seen = run(environ, "--no-agent", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    hold = spans(receiver)["softmutex.hold"]
    assert not hold.parent_span_id
    assert seen.startswith(f"00-{hold.trace_id.hex()}-{hold.span_id.hex()}-")
    caller = f"00-{TRACE_ID}-{SPAN_ID}-01"
    assert run(environ, "--no-agent", TRACEPARENT=caller) == caller
    assert run(environ, "--no-agent", TRACEPARENT=caller, OTEL_TRACES_EXPORTER="none") == caller
    assert run(environ, "--no-agent") == "none"


def test_a_collector_that_is_not_there_holds_nothing_up_for_long(environ: dict[str, str]):
    nobody = "http://127.0.0.1:9"
    assert run(environ, "--no-agent", "-q", OTEL_EXPORTER_OTLP_ENDPOINT=nobody).startswith("00-")
