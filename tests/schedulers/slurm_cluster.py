"""A real Slurm of two virtual nodes on this host, for as long as somebody wants it. As root.

python -m tests.schedulers.slurm_cluster       starts one, says what to export, and stops it on Ctrl-C
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_ports
from tests.schedulers.contract import wait_until

NODES = ("n1", "n2")


class Cluster:
    def __init__(self, here: Path, submit_plugin: str = "") -> None:
        self.here = here
        self.conf = here / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.services: list[subprocess.Popen[bytes]] = []  # `softmutex slurm release`, as tests started them
        controller, *ports = free_ports(1 + len(NODES))
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=500"
            for name, port in zip(NODES, ports, strict=True)
        )
        plugin = ""
        if submit_plugin:
            (here / "job_submit.lua").write_text(submit_plugin)
            plugin = "JobSubmitPlugins=lua"
        (here / "state").mkdir()
        self.conf.write_text(f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool-%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd-%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=60
KillWait=2
MinJobAge=300
JobRequeue=1
MailProg=/bin/true
{plugin}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def start(self) -> None:
        key = self.here / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        paths = [f"--{name}={self.here}/munge.{end}" for name, end in (
            ("key-file", "key"), ("socket", "sock"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")
        )]  # fmt: skip
        self._spawn("munged", "munged", "--force", "--foreground", "--num-threads=2", *paths)
        wait_until(lambda: (self.here / "munge.sock").exists(), "munged does not start")
        self._spawn("slurmctld", "slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").split() == ["idle"], "the nodes are not idle")

    def start_node(self, name: str) -> None:
        self._spawn(name, "slurmd", "-D", "-N", name)

    def restart_controller(self) -> None:
        controller = self._processes.pop("slurmctld")
        controller.terminate()
        controller.wait()
        self._spawn("slurmctld", "slurmctld", "-D")
        wait_until(lambda: self.run("scontrol", "ping").startswith("Slurmctld(primary) at"), "the controller is gone")
        wait_until(lambda: "UP" in self.run("scontrol", "ping"), "the controller is not back")

    def _spawn(self, name: str, *command: str) -> None:
        with (self.here / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, env=self.environ(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def environ(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def run(self, *command: str | bytes, user: str = "root") -> str:
        """As that user of this machine. What users write need not be UTF-8."""
        as_user = (
            []
            if user == "root"
            else ["setpriv", "--reuid", user, "--init-groups", "--regid", str(pwd.getpwnam(user).pw_gid)]
        )
        ran = subprocess.run([*as_user, *command], env=self.environ(), cwd="/", capture_output=True, timeout=100)
        return ran.stdout.decode(errors="replace") if ran.returncode == 0 else f"failed: {ran.stderr.decode()}"

    def submit(self, script: str, *more: str | bytes, user: str = "root") -> int:
        """A job by a user who may read nothing here: it says nothing and starts in /."""
        said = self.run("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *more, "--wrap", script, user=user)
        assert said.strip().isdigit(), said
        return int(said)

    def fields(self, job: int) -> dict[str, str]:
        words = self.run("scontrol", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: int) -> str:
        return self.fields(job).get("JobState", "")

    def lose_power(self, name: str) -> None:
        """The node and everything on it, at once. Slurm is told, as by a power monitor: by itself it notices later."""
        daemon = self._processes.pop(name)
        daemon.kill()
        daemon.wait()
        for pid in [
            int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and self._is_of(each, name)
        ]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=power")

    def repair(self, name: str) -> None:
        self.start_node(name)
        self.run("scontrol", "update", f"nodename={name}", "state=resume")

    def releasers(self) -> list[int]:
        """The processes of this cluster that hold mutexes for its jobs, also those that no service leads any more."""
        mine = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and b"--worker" in (entry / "cmdline").read_bytes().split(b"\0"):
                    found += [int(entry.name)] if mine in (entry / "environ").read_bytes().split(b"\0") else []
        return found

    def _is_of(self, process: Path, node: str) -> bool:
        """A slurmstepd does not say of which node it is; its children do."""
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
            children = (process / "task" / process.name / "children").read_text().split()
        except OSError:
            return False
        if f"SLURM_CONF={self.conf}".encode() not in environ:
            return False
        if command.startswith(b"slurmstepd"):
            return any(self._is_of(process.parent / child, node) for child in children)
        return f"SLURMD_NODENAME={node}".encode() in environ

    def stop(self) -> None:
        if "slurmctld" in self._processes:
            self.run("scancel", "--partition=main")
            deadline = time.monotonic() + 100
            while (self.run("squeue", "-h").strip() or self.releasers()) and time.monotonic() < deadline:
                time.sleep(0.1)
            for process in self.releasers():
                os.kill(process, signal.SIGKILL)
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(100)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running_cluster(submit_plugin: str = "", more: str = "") -> Iterator[Cluster]:
    """`more`: further lines of slurm.conf. Every user of the machine may submit."""
    here = Path(tempfile.mkdtemp(prefix="slurm-"))
    here.chmod(0o755)
    cluster = Cluster(here, submit_plugin)
    cluster.conf.write_text(cluster.conf.read_text() + more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(here)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with suppress(KeyboardInterrupt), running_cluster() as cluster:
        sys.stdout.write(f"export SLURM_CONF={cluster.conf}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
