"""What docs/operations/telemetry.md shows is what happens. Each of its programs sets up the SDK of its process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, blocks
from tests.telemetry.processes import Receiver, taken
from tests.telemetry.test_metrics import ALL
from tests.telemetry.test_prometheus import in_prometheus

PAGE = ROOT / "docs" / "operations" / "telemetry.md"
pytestmark = pytest.mark.house

USE = """
import asyncio
from softmutex import Node

async def main(node=None):
    async with node or Node(transport="memory://page", membership="memory://page") as node:
        async with node.mutex("x"):
            pass

"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def programs() -> tuple[str, str, str]:
    otlp, scraped, own = [block.code for block in blocks(PAGE) if block.language == "python"]
    return otlp, scraped, own


def run(code: str, **environ: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_spans_and_metrics_go_to_the_endpoint(receiver: Receiver):
    otlp, _, _ = programs()
    run(f"{otlp}\n{USE}asyncio.run(main())", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    assert {span.name for _, span in taken(receiver.spans)} == {"softmutex.wait", "softmutex.hold"}
    of_others_or_of_time = {"softmutex.loop.lag", "softmutex.members", "softmutex.messages"}
    assert {metric.name for _, metric in taken(receiver.metrics)} >= ALL - of_others_or_of_time


def test_prometheus_finds_the_metrics():
    _, scraped, _ = programs()
    assert "start_http_server(9464)" in scraped
    code = scraped.replace("start_http_server(9464)", "port = start_http_server(0)[0].server_port")
    read = "import urllib.request\nprint(urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics').read().decode())"
    assert "softmutex_acquisitions_total{" in run(f"{code}\n{USE}asyncio.run(main())\n{read}")


def test_a_node_may_have_providers_of_its_own():
    _, _, own = programs()
    assert "node = Node(observers=[observer])" in own
    code = own.replace("Node(", 'Node(transport="memory://page", membership="memory://page", ')
    made = (
        "from tests.telemetry.sdk import Kept\nkept = Kept()\n"
        "tracer_provider, meter_provider = kept.tracer_provider, kept.meter_provider\n"
    )
    shown = run(
        f"{made}{code}\n{USE}asyncio.run(main(node))\nprint(*[span.name for span in kept.spans()])",
        PYTHONPATH=str(ROOT),
    )
    assert shown.split() == ["softmutex.wait", "softmutex.hold"]


def test_the_page_lists_every_metric_by_both_its_names():
    rows = re.findall(r"^\| `(softmutex\.[\w.]+)` \| [^|]+ \| `(softmutex_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {metric for metric, _ in rows} == ALL
    for metric, name in rows:
        assert all(scraped.startswith(name) for scraped in in_prometheus(metric)), name


def test_the_page_tells_of_every_alert():
    alerts = re.findall(r"- alert: (\w+)", (PAGE.parent / "alerts.yml").read_text())
    assert re.findall(r"^\| `(Softmutex\w+)` \|", PAGE.read_text(), re.MULTILINE) == alerts
