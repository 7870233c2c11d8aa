"""The transfer plug-in under a real HTCondor: ten jobs whose inputs come one after the other, and what that adds.

    python benchmarks/condor.py DIRECTORY        as root, on Debian; needs debootstrap and about 1.5 GB

Debian 12 has no HTCondor, Debian 13 has: it is installed into DIRECTORY (once; found there it is used again), runs
there as a personal pool on 127.0.0.1, and fetches from an FTP server of this process. Everything is stopped at the end.
Needs the `dev` extra (pyftpdlib).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import DTPHandler, FTPHandler, ThrottledDTPHandler
    from pyftpdlib.servers import FTPServer

ROOT = Path(__file__).parent.parent
HOME = "home/tester"  # inside the directory
JOBS = 10
TRANSFER_S = 1.0
SIZE = 1_000_000
PATIENCE_S = 180.0
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # of a site's own, that its package index may need
POOL = """\
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = FALSE
use SECURITY : HOST_BASED
ALLOW_WRITE = *
ALLOW_READ = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
START = TRUE
NUM_CPUS = 10
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
USE_PROCD = True
PER_JOB_NAMESPACES = False
MOUNT_UNDER_SCRATCH =
USE_CGROUPS = False
BASE_CGROUP =
TRANSFERS_LIMIT = 1
CONCURRENCY_LIMIT_DEFAULT = 1
"""
SUBMIT = """\
executable = /bin/sh
transfer_executable = false
log = job.log
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
request_cpus = 1
request_memory = 10
request_disk = 2000
"""
BY_PLUGIN = """\
arguments = -c true
transfer_plugins = smftp=smftp
transfer_input_files = smftp://127.0.0.1:{port}/file?mutex=transfers
"""
BY_LIMIT = """\
arguments = "-c 'sleep {seconds}'"
concurrency_limits = transfers
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    there = parser.parse_args().directory.resolve()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.stderr.write("run this as root, with debootstrap installed (apt-get install debootstrap)\n")
        return 69
    if not (there / "usr/sbin/condor_master").exists():
        install(there)
    with mounted(there), ftp_server() as (port, served), pool(there):
        plugin = run_jobs(there, SUBMIT + BY_PLUGIN.format(port=port))
        gaps = [two.begin - one.end for one, two in pairwise(sorted(served))]
        limit = run_jobs(there, SUBMIT + BY_LIMIT.format(seconds=TRANSFER_S))
    print(f"{JOBS} jobs, transfers of {TRANSFER_S:g} s, one at a time")
    print(f"softmutex   all done after {plugin:6.1f} s; between two transfers at most {max(gaps):.2f} s")
    print(f"            overlaps: {sum(gap < 0 for gap in gaps)}")
    print(f"HTCondor's concurrency_limits  {limit:6.1f} s")
    return int(any(gap < 0 for gap in gaps))


def install(there: Path) -> None:
    print("installing Debian 13 with HTCondor; this takes some minutes", flush=True)
    subprocess.run(["debootstrap", "--variant=minbase", "trixie", str(there)], check=True, stdout=subprocess.DEVNULL)
    (there / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (there / "usr/sbin/policy-rc.d").chmod(0o755)
    packages = ["minicondor", "python3", "python3-venv"]
    inside(there, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    inside(there, "useradd", "--create-home", "tester")


def inside(there: Path, *command: str) -> str:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ran = subprocess.run(["chroot", str(there), *command], env=environ, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)}: {ran.stderr or ran.stdout}")
    return ran.stdout


@contextmanager
def mounted(there: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "proc", "proc", str(there / "proc")], check=True)
    subprocess.run(["mount", "--bind", "/dev", str(there / "dev")], check=True)
    try:
        yield
    finally:
        for name in ("dev", "proc"):
            subprocess.run(["umount", "--lazy", str(there / name)], check=True)


@contextmanager
def pool(there: Path) -> Iterator[None]:
    source = there / "src"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    for name in ("softmutex", "adapters"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copy(CERTIFICATES, there / CERTIFICATES.relative_to("/"))
    shutil.copy("/etc/resolv.conf", there / "etc/resolv.conf")
    inside(there, "python3", "-m", "venv", "/opt/softmutex")
    inside(there, "/opt/softmutex/bin/pip", "install", "-q", "/src")
    (there / "etc/condor/config.d/99-pool").write_text(POOL.format(port=19618))
    for name in ("run/condor", "run/lock/condor"):
        (there / name).mkdir(parents=True, exist_ok=True)
        inside(there, "chown", "condor", f"/{name}")
    with tempfile.TemporaryFile() as said:
        # A process table of its own: beside that of the host HTCondor takes the processes of one job for those of all.
        apart = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={there / 'proc'}"]
        command = [*apart, "chroot", str(there), "condor_master", "-f"]
        master = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        wait_until(lambda: "slot1@" in try_inside(there, "condor_status"), "HTCondor does not start")
        yield
    finally:
        try_inside(there, "su", "tester", "-c", "condor_rm -all")
        master.send_signal(signal.SIGQUIT)
        try:
            master.wait(20)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()
        for entry in Path("/proc").iterdir():  # helpers of its that do not end with it
            if entry.name.isdigit() and is_rooted_in(entry, there):
                os.kill(int(entry.name), signal.SIGKILL)


def is_rooted_in(process: Path, there: Path) -> bool:
    try:
        return (process / "root").readlink() == there
    except OSError:
        return False


def try_inside(there: Path, *command: str) -> str:
    return subprocess.run([*among_jobs(there), "chroot", str(there), *command], capture_output=True, text=True).stdout


def among_jobs(there: Path) -> list[str]:
    """In their process table: members of `local://` that are looked for from outside of it seem to be dead."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_rooted_in(entry, there) and (entry / "comm").read_text() == "condor_master\n":
            return ["nsenter", f"--target={entry.name}", "--pid", "--mount"]
    return []


def run_jobs(there: Path, submit: str) -> float:
    """Seconds from the submission to the end of the last job."""
    home = there / HOME
    (home / "job.sub").write_text(f"{submit}queue {JOBS}\n")
    (home / "smftp").write_text('#!/bin/sh\nexec /opt/softmutex/bin/softmutex-condor-transfer "$@"\n')
    (home / "smftp").chmod(0o755)
    (home / "job.log").unlink(missing_ok=True)
    inside(there, "chown", "-R", "tester", f"/{HOME}")
    begun = time.monotonic()
    inside(there, "su", "tester", "-c", "cd && condor_submit job.sub")

    def over() -> bool:
        log = (home / "job.log").read_text() if (home / "job.log").exists() else ""
        if held := re.search(r"Job was held\.\n\s*(.*)", log):
            raise SystemExit(f"a job was held: {held[1]}")
        return len(re.findall(r"^005 ", log, re.MULTILINE)) == JOBS

    wait_until(over, "the jobs do not end")
    return time.monotonic() - begun


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"after {PATIENCE_S:g} s: {what}")
        time.sleep(0.1)


class Transfer:
    """One file on its way, as the server saw it."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.end = begin
        self.name = ""

    def __lt__(self, other: Transfer) -> bool:
        return self.begin < other.begin


@contextmanager
def ftp_server(**sizes: int) -> Iterator[tuple[int, list[Transfer]]]:
    """Each transfer takes `TRANSFER_S`, or as much longer as its size in these units says, by a limit on its rate."""
    served: list[Transfer] = []

    class Throttled(ThrottledDTPHandler):  # type: ignore[misc]
        read_limit = write_limit = SIZE // 2 + 1  # half of it at once, then it rests for a second

        def __init__(self, *arguments: object) -> None:
            self.transfer = Transfer(time.monotonic())
            served.append(self.transfer)
            super().__init__(*arguments)

        def close(self) -> None:
            if self.transfer.end == self.transfer.begin:
                self.transfer.end = time.monotonic()
                self.transfer.name = Path(self.file_obj.name).name if self.file_obj else ""
            super().close()

    assert issubclass(Throttled, DTPHandler)
    with tempfile.TemporaryDirectory() as here:
        for name, size in (sizes or {"file": 1}).items():
            (Path(here) / name).write_bytes(os.urandom(SIZE * size))
        authorizer = DummyAuthorizer()
        authorizer.add_anonymous(here)
        handler = type(
            "Handler", (FTPHandler,), {"authorizer": authorizer, "dtp_handler": Throttled, "use_sendfile": False}
        )
        server = FTPServer(("127.0.0.1", 0), handler)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                server.ioloop.loop(timeout=0.05, blocking=False)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.address[1], served
        finally:
            over.set()
            thread.join()
            server.close_all()


if __name__ == "__main__":
    sys.exit(main())
