"""A registry in a process of its own, on a free port, in a directory of one test; it can be killed and comes back."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from softmutex.ports import Member
from tests import prepared
from tests.adapters.certificates import make_certificates
from tests.ports import free_port

START_S = 100.0


class Served:
    def __init__(
        self,
        folder: Path,
        *options: str,
        tokens: Sequence[str] = (),
        tls: bool = False,
        store: str | None = None,
        signing_key: Path | None = None,
    ) -> None:
        self.folder, self.tls = folder, tls
        self.store = store or f"sqlite:{folder / 'registry.db'}"
        self.process: subprocess.Popen[str] | None = None
        self.public_key = ""
        self.log = folder / f"registry-{os.urandom(4).hex()}.log"
        self._options = [*options, "--signing-key", str(signing_key or folder / "signing.key")]
        if tokens:
            (folder / "tokens").touch(0o600)
            (folder / "tokens").write_text("\n".join(tokens))
            self._options += ["--token-file", str(folder / "tokens")]
        else:
            self._options.append("--insecure")
        if tls:
            cert, key, self.ca = make_certificates(folder)
            self._options += ["--cert", str(cert), "--key", str(key)]
        self.port = free_port()  # kept for restarts: members know the registry by its address

    @property
    def base(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def url(self, group: str, **options: object) -> str:
        if self.tls:
            options.setdefault("ca", self.ca)
        query = urlencode(options)
        return f"registry+{self.base}/{group}" + (f"?{query}" if query else "")

    def start(self) -> None:
        command = [str(prepared.SOFTMUTEX), "registry"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--store", self.store, *self._options]
        with self.log.open("a") as log:
            self.process = prepared.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        with self.process.stdout as said:
            line = said.readline()
        assert "public_key=" in line, f"the registry did not start: {self.log.read_text()[-2000:]}"
        self.public_key = line.strip().rpartition("=")[2]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(START_S)

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.base}{path}", timeout=60) as answer:
            body = answer.read()
            return json.loads(body) if "json" in answer.headers["Content-Type"] else body.decode()

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"softmutex_registry_{name} ")))


JOIN_AND_WAIT = """
import asyncio, sys
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex.ports import Member

async def main():
    membership = RegistryMembership.from_url(sys.argv[1])
    await membership.join(Member(sys.argv[2], id=int(sys.argv[3])))
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def join_in_another_process(url: str, me: Member) -> Callable[[], None]:
    command = [sys.executable, "-c", JOIN_AND_WAIT, url, me.address, str(me.id)]
    process = prepared.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as answers:
        assert answers.readline() == b"joined\n"

    def kill() -> None:
        process.kill()
        process.wait()

    return kill


def eventually(condition: Callable[[], object], otherwise: str, within_s: float = 100.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
