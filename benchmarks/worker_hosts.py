"""Whether tasks meet whose workers are of two users, or on two hosts: Celery and Dask. As root.

    python benchmarks/worker_hosts.py celery|dask

Two users: each worker is another one's, on one host. Two hosts: each worker in a network namespace of its own, broker
and client in a third one. A worker has a home, a copy of the key and an address of its own, and a list of both
addresses. A is with the first worker and holds, B and then C wait with the second one. Told is how long after A was
over the next one came in, in which order, and whether two were ever in at once. Celery needs redis-server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.worker_faults import SCHEDULERS, TURN, Place, orderly  # noqa: E402 from the source tree
from tests.agent.test_system import as_user  # noqa: E402
from tests.faults.lan import lan  # noqa: E402

USERS = (65534, 2)  # nobody, bin
NEEDS = ("ip", "setpriv")


class Way(NamedTuple):
    prefixes: list[list[str]]  # of each worker's command
    addresses: list[str]
    broker: str  # the address at which workers find it
    are_users: bool = False


def places(way: Way, here: Path) -> list[Place]:
    """Each worker's own: home, runtime directory, a copy of the key."""
    key = here / "key"
    subprocess.run([sys.executable, "-m", "softmutex", "key", "new", str(key)], check=True, capture_output=True)
    found = []
    for number, (prefix, address) in enumerate(zip(way.prefixes, way.addresses, strict=True)):
        home = here / f"home{number}"
        home.mkdir()
        copy = Path(shutil.copy(key, home))
        copy.chmod(0o600)
        for path in (home, copy) if way.are_users else ():
            os.chown(path, USERS[number], USERS[number])
        environ = {
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "SOFTMUTEX_TRANSPORT": f"udp://{address}",
            "SOFTMUTEX_MEMBERSHIP": f"static://{','.join(way.addresses)}",
            "SOFTMUTEX_KEY_FILE": str(copy),
        }
        found.append(Place(prefix, environ))
    return found


def run(scheduler: str, what: str, way: Way) -> None:
    _, sites, _ = SCHEDULERS[scheduler]
    with sites(way.broker) as made, tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        here = Path(name)
        here.chmod(0o777)
        try:
            with made(TURN, here, places(way, here)) as site:
                told = orderly(site)
        except (AssertionError, OSError) as error:
            told = f"**{str(error)[:90]}**"
        print(f"| {what} | {told} |", flush=True)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scheduler", choices=("celery", "dask"))
    parser.add_argument("--on", nargs=3, help=argparse.SUPPRESS)  # the hosts; this process is on the first one
    arguments = parser.parse_args()
    needs = (*NEEDS, *SCHEDULERS[arguments.scheduler][2])
    if missing := [need for need in needs if not shutil.which(need)] + (["root"] if os.geteuid() else []):
        sys.stderr.write(f"left out: no {', '.join(missing)} here\n")
        return 1
    if arguments.on:
        prefixes = [["ip", "netns", "exec", host] for host in arguments.on[1:]]
        run(arguments.scheduler, "two hosts", Way(prefixes, ["10.77.0.2:9441", "10.77.0.3:9441"], "10.77.0.1"))
        return 0
    print("| A ends in good order | in turn |\n| --- | --- |", flush=True)
    users = [as_user(uid) for uid in USERS]
    addresses = [f"127.0.0.1:{free_port()}" for _ in USERS]
    run(arguments.scheduler, "two users", Way(users, addresses, "127.0.0.1", are_users=True))
    with lan(3, ipv6=False) as net:
        hosts = [net.host(number) for number in (1, 2, 3)]
        command = [sys.executable, __file__, arguments.scheduler, "--on", *hosts]
        return subprocess.run([*net.prefix(1), *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
