"""Redis and etcd, the real ones, on a free port and in a directory of one test."""

import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_ports


class Process:
    """A store's own server. `stop` and `start` again keep its data and its place."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.port, self.other_port = free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.kind == "redis" else f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        data = self.folder / self.kind
        data.mkdir(exist_ok=True)
        if self.kind == "redis":
            command = ["redis-server", "--port", str(self.port), "--dir", str(data), "--bind", "127.0.0.1"]
            command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        else:
            here, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.other_port}"
            command = ["etcd", "--data-dir", str(data), "--listen-client-urls", here, "--advertise-client-urls", here]
            command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
            command += ["--initial-cluster", f"default={peers}"]
        with (self.folder / "store.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 100
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "store.log").read_text()[-2000:]

    def _answers(self) -> bool:
        question = b"PING\r\n" if self.kind == "redis" else b"GET /health HTTP/1.0\r\n\r\n"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 30.0) as call:
            call.sendall(question)
            answer = call.recv(1000)
            return b"PONG" in answer or b"true" in answer or (b"200 OK" in answer and b"true" in call.recv(1000))
        time.sleep(0.05)  # it is about to listen
        return False

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
