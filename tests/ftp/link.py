"""vsftpd behind a link of so many Mbit/s: two hosts as network namespaces, a cable, the kernel's own `tbf`.

    clients 10.77.1.2 ====== tbf ====== 10.77.1.1 server, vsftpd

Needs root, and the programs `vsftpd`, `ip` and `tc`. Nothing of it is seen on the machine outside, and all of it goes
with the namespaces. What clients receive is throttled, in the kernel's queue, as on a router: no byte is dropped by
softmutex or by the server.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVER, CLIENTS = "10.77.1.1", "10.77.1.2"
FILE = "image.bin"
PATIENCE_S = 100.0
CONF = f"""\
listen=YES
listen_address={SERVER}
background=NO
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
xferlog_enable=NO
connect_from_port_20=NO
isolate=NO
isolate_network=NO
seccomp_sandbox=NO
max_per_ip=0
"""


@dataclass(frozen=True)
class Link:
    within: Sequence[str]  # what a command is preceded by, to run where the clients are
    url: str  # of the file


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextmanager
def link(mbit_s: float, size: int, *, max_clients: int = 0) -> Iterator[Link]:
    """With a file of so many bytes; `max_clients` as vsftpd means it, 0 is as many as come."""
    name = f"sm{secrets.token_hex(3)}"
    server, clients = f"{name}s", f"{name}c"
    with tempfile.TemporaryDirectory(prefix="softmutex-ftp-") as directory:
        try:
            build(server, clients, mbit_s)
            with vsftpd(server, Path(directory), size, max_clients):
                within = ["ip", "netns", "exec", clients]
                yield Link(within, f"ftp://{SERVER}/{FILE}")
        finally:
            for each in (server, clients):
                subprocess.run(["ip", "netns", "delete", each], capture_output=True)


def build(server: str, clients: str, mbit_s: float) -> None:
    for name in (server, clients):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", server, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", clients)
    for name, address in ((server, SERVER), (clients, CLIENTS)):
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
    shape = ("tbf", "rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "100ms")
    run("tc", "-n", server, "qdisc", "add", "dev", "eth0", "root", *shape)


@contextmanager
def vsftpd(host: str, directory: Path, size: int, max_clients: int) -> Iterator[None]:
    directory.chmod(0o755)  # the server leaves root behind
    served, empty, conf = directory / "served", directory / "empty", directory / "vsftpd.conf"
    served.mkdir()
    empty.mkdir()
    (served / FILE).write_bytes(os.urandom(size))
    conf.write_text(f"{CONF}max_clients={max_clients}\nanon_root={served}\nsecure_chroot_dir={empty}\n")
    server = subprocess.Popen(
        ["ip", "netns", "exec", host, "vsftpd", conf],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        limit = time.monotonic() + PATIENCE_S
        while not answers(host):
            assert server.poll() is None, server.stdout.read() if server.stdout else ""
            assert time.monotonic() < limit, "vsftpd does not answer"
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # and the processes of its sessions
        server.communicate()


def answers(host: str) -> bool:
    """Asked on its own side of the link, and as a client would: it may listen before it can serve."""
    probe = ["ip", "netns", "exec", host, "curl", "-sS", "--max-time", "2", "--head", f"ftp://{SERVER}/{FILE}"]
    return subprocess.run(probe, capture_output=True).returncode == 0
