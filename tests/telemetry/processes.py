"""Real applications (`application.py`), a real OTLP receiver and a real Prometheus."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.ports import free_port

APPLICATION = Path(__file__).with_name("application.py")
PATIENCE_S = 100.0


def eventually(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)  # other processes get there meanwhile
    return result


class Application:
    def __init__(self, *words: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, APPLICATION, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
            text=True,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        with suppress(OSError):
            self.process.communicate(timeout=PATIENCE_S)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def applications(count: int, *words: str, **environ: str) -> Iterator[list[Application]]:
    started = [Application(*words, **environ) for _ in range(count)]
    try:
        yield started
    finally:
        for application in started:
            application.kill()


class Receiver:
    """What any backend has at the end of `OTLP over HTTP`."""

    def __init__(self) -> None:
        self.spans: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()  # process id, span
        self.metrics: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.put((pid_of(resource), span))
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics.put((pid_of(resource), metric))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def pid_of(resource: Any) -> int:
    """0 where it does not say."""
    return sum(int(each.value.int_value) for each in resource.resource.attributes if each.key == "process.pid")


def taken(kept: queue.SimpleQueue[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [kept.get() for _ in range(kept.qsize())]


# --- Prometheus ------------------------------------------------------------------------------------------------------

CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 200ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: applications
    static_configs: [{{targets: [{targets}]}}]
"""


class Prometheus:
    def __init__(self, where: Path, rules: Path, ports: list[int]) -> None:
        targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        (where / "prometheus.yml").write_text(CONFIGURATION.format(rules=rules, targets=targets))
        self._port = free_port()
        self._log = (where / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={where / 'prometheus.yml'}",
                f"--storage.tsdb.path={where / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def is_there(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            return bool(self.ask("label/__name__/values"))
        except OSError:
            return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()
