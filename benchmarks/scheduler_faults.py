"""What becomes of the turns when something happens: Slurm's own licence, and the two ways of softmutex, fault by fault.

    python benchmarks/scheduler_faults.py [--only "node is lost" ...] [--slow]      as root; a real Slurm of two nodes

A job holds (A), two wait (B, then C); something happens to A, to B or to a part of the machinery. Told is who came in
next, how long after A was over (to a hundredth of a second), who was lost, and whether those who waited kept their
places. All three ways in the same run. `--slow`: Slurm's time limit, too, whose least is a minute.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.schedulers.contract import wait_until  # noqa: E402 from the source tree
from tests.schedulers.slurm_cluster import NODES, Cluster, running_cluster  # noqa: E402

SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))
NEEDS = ("slurmctld", "slurmd", "munged", "sbatch")
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
PATIENCE_S = 150.0
WAYS = ("wrapped", "held", "licence")


def now_s() -> float:
    """The clock of /proc/uptime, which jobs read in their shell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Site:
    """One way to take turns, and the jobs of one story."""

    way: str
    cluster: Cluster
    here: Path
    slots: int = 1
    jobs: dict[str, int] = field(default_factory=dict)
    restart: Callable[[], None] = lambda: None  # the broker: who decides about turns
    kill_broker: Callable[[], None] = lambda: None

    def submit(self, name: str, *more: str, long: bool = False) -> None:
        ends = f"until [ -e {self.here}/end-{name} ]; do sleep 0.05; done" if long else "sleep 0.3"
        say = f"read up rest < /proc/uptime; echo %s {name}$SLURM_ARRAY_TASK_ID $up >> {self.here}/visits"
        script = f"{say % 'in'}; {ends}; {say % 'out'}"
        if self.way == "wrapped":
            script = f"exec {SOFTMUTEX} run -q -n link --slots {self.slots} -- sh -c '{script}'"
        asked = {"wrapped": (), "held": ("--comment", "softmutex=link"), "licence": ("--licenses=ftp:1",)}[self.way]
        self.jobs[name] = self.cluster.submit(script, *asked, *more)

    def visits(self, what: str = "in") -> list[tuple[str, float]]:
        """Who came in (or went out), and when, in that order."""
        path = self.here / "visits"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, float(at)) for kind, name, at in lines if kind == what]

    def comes_in(self, name: str, times: int = 1) -> None:
        came = lambda: [each for each, _ in self.visits()].count(name) >= times  # noqa: E731
        wait_until(came, f"{name} does not come in ({self.way}): {self.visits()}", PATIENCE_S)

    def end(self, name: str) -> None:
        (self.here / f"end-{name}").touch()

    def state(self, name: str) -> str:
        return self.cluster.state(self.jobs[name])

    def scontrol(self, *words: str) -> None:
        said = self.cluster.run("scontrol", *words)
        assert not said.startswith("failed"), said

    def all_over(self) -> None:
        wait_until(lambda: all(self.state(name) in OVER for name in self.jobs), "jobs do not end", PATIENCE_S)

    def most_at_once(self) -> int:
        """Of those that came to their end. Whoever was killed writes no `out`, and is not counted."""
        out = self.visits("out")
        came = [(name, at) for name, at in self.visits() if name in {each for each, _ in out}]
        events = sorted([(at, 1) for _, at in came[-len(out) :]] + [(at, -1) for _, at in out])
        most = inside = 0
        for _, change in events:
            inside += change
            most = max(most, inside)
        return most


class NotHere(Exception):
    """There is no such thing in this way to take turns."""


@dataclass
class Told:
    gap_s: float | None
    order: str
    lost: str = ""


# --- the faults ------------------------------------------------------------------------------------------------------

Fault = Callable[[Site], Told]


def setting(site: Site, *of_a: str) -> None:
    site.submit("A", "--no-requeue", *of_a, long=True)
    site.comes_in("A")
    for name in "BC":
        site.submit(name)
        time.sleep(1.0)  # so that it is clear who asked first


def what_came(site: Site, since_s: float, *, but: str = "A") -> Told:
    """When all is over. Lost: whoever did not come to its end."""
    site.all_over()
    came = [(name, at) for name, at in site.visits() if at >= since_s]
    ended = {name for name, _ in site.visits("out")}
    lost = ", ".join(sorted(name for name in site.jobs if name not in ended and name not in but))
    return Told(came[0][1] - since_s if came else None, " ".join(name for name, _ in came), lost)


def orderly(site: Site) -> Told:
    setting(site)
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    return what_came(site, site.visits("out")[0][1])


def killed(site: Site) -> Told:
    setting(site)
    at = now_s()
    site.cluster.run("scancel", "--full", "--signal=KILL", str(site.jobs["A"]))
    return what_came(site, at)


def cancelled_holding(site: Site) -> Told:
    setting(site)
    at = now_s()
    site.cluster.run("scancel", str(site.jobs["A"]))
    return what_came(site, at)


def cancelled_waiting(site: Site) -> Told:
    setting(site)
    site.cluster.run("scancel", str(site.jobs["B"]))
    time.sleep(1.0)
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    return what_came(site, site.visits("out")[0][1], but="AB")


def killed_waiting(site: Site) -> Told:
    """Held jobs, and those that wait for a licence, have no process."""
    setting(site)
    if site.state("B") != "RUNNING":
        raise NotHere
    site.cluster.run("scancel", "--full", "--signal=KILL", str(site.jobs["B"]))
    time.sleep(1.0)
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    return what_came(site, site.visits("out")[0][1], but="AB")


def node_lost(site: Site) -> Told:
    site.submit("A", "--no-requeue", f"--nodelist={NODES[0]}", long=True)
    site.comes_in("A")
    for name in "BC":
        site.submit(name, f"--nodelist={NODES[1]}")
        time.sleep(1.0)
    at = now_s()
    site.cluster.lose_power(NODES[0])
    try:
        return what_came(site, at)
    finally:
        site.cluster.repair(NODES[0])
        wait_until(lambda: site.cluster.run("sinfo", "-h", "-o", "%T").split() == ["idle"], "the nodes are not idle")


def requeued(site: Site) -> Told:
    site.submit("A", "--requeue", long=True)
    site.comes_in("A")
    for name in "BC":
        site.submit(name)
        time.sleep(1.0)
    at = now_s()
    site.scontrol("requeue", str(site.jobs["A"]))
    site.end("A")  # the second time it is quick
    return what_came(site, at, but="")


def out_of_time(site: Site) -> Told:
    setting(site, "--time=00:01:00")
    wait_until(lambda: site.state("A") == "TIMEOUT", "A is not out of time", PATIENCE_S)
    ended = site.cluster.fields(site.jobs["A"])["EndTime"]
    at = now_s() - (time.time() - time.mktime(time.strptime(ended, "%Y-%m-%dT%H:%M:%S")))  # whole seconds
    return what_came(site, at - 1.0)


def an_array(site: Site) -> Told:
    site.submit("A", "--array=1-4")
    site.all_over()
    wait_until(lambda: len(site.visits("out")) == 4, "not all tasks end", PATIENCE_S)
    out = [at for _, at in site.visits("out")]
    gaps = [at - before for (_, at), before in zip(site.visits()[1:], out, strict=False)]
    return Told(sorted(gaps)[1], " ".join(name for name, _ in site.visits()))


def a_dependency(site: Site) -> Told:
    """B waits for another job, which ends after C."""
    site.submit("A", long=True)
    site.comes_in("A")
    other = site.cluster.submit(f"until [ -e {site.here}/end-D ]; do sleep 0.05; done")
    site.submit("B", f"--dependency=afterok:{other}")
    time.sleep(1.0)
    site.submit("C")
    time.sleep(1.0)
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    at = site.visits("out")[0][1]
    site.comes_in("C")
    site.end("D")
    return what_came(site, at)


def held_by_its_user(site: Site) -> Told:
    site.submit("A", long=True)
    site.comes_in("A")
    site.submit("B", "--hold")
    time.sleep(1.0)
    site.submit("C")
    time.sleep(1.0)
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    at = site.visits("out")[0][1]
    site.comes_in("C")
    site.scontrol("release", str(site.jobs["B"]))
    return what_came(site, at)


def broker_restarted(site: Site) -> Told:
    """Who decides: the releaser; slurmctld for licences; nobody where each job is a member."""
    setting(site)
    site.restart()
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    return what_came(site, site.visits("out")[0][1])


def broker_killed(site: Site) -> Told:
    setting(site)
    site.kill_broker()
    site.end("A")
    wait_until(lambda: site.visits("out"), "A does not end")
    return what_came(site, site.visits("out")[0][1])


FAULTS: dict[str, Fault] = {
    "A ends in good order": orderly,
    "A is killed (SIGKILL)": killed,
    "A is cancelled": cancelled_holding,
    "B is cancelled while it waits": cancelled_waiting,
    "B is killed (SIGKILL) while it waits": killed_waiting,
    "node of A is lost": node_lost,
    "A is requeued": requeued,
    "an array of four": an_array,
    "B waits for a dependency": a_dependency,
    "B is held by its user": held_by_its_user,
    "the broker is restarted in good order": broker_restarted,
    "the broker is killed and restarted": broker_killed,
}
SLOW: dict[str, Fault] = {"A is out of time": out_of_time}


# --- the run ---------------------------------------------------------------------------------------------------------


@contextmanager
def site_of(way: str, here: Path) -> Iterator[Site]:
    """A Slurm of its own for each story, so that none finds what another one left."""
    from tests.schedulers import test_slurm

    here.mkdir()
    here.chmod(0o777)
    os.environ["SOFTMUTEX_GROUP"] = f"faults-{os.getpid()}-{time.monotonic_ns()}"
    os.environ["SOFTMUTEX_WHEN_ISOLATED"] = "proceed"
    with ExitStack() as stack:
        lua = test_slurm.printed_lua() if way == "held" else ""
        cluster = stack.enter_context(running_cluster(lua, "Licenses=ftp:1\n"))
        site = Site(way, cluster, here)
        if way == "held":
            running = [test_slurm.start_releaser(cluster)]

            def begin_again(number: signal.Signals) -> None:
                for pid in cluster.releasers() if number == signal.SIGKILL else ():
                    os.kill(pid, number)
                running[0].send_signal(number)
                running[0].wait(100)
                running[0] = test_slurm.start_releaser(cluster)

            stack.callback(lambda: test_slurm.stop(running[0]))
            site.restart = lambda: begin_again(signal.SIGTERM)
            site.kill_broker = lambda: begin_again(signal.SIGKILL)
        elif way == "licence":
            site.restart = site.kill_broker = cluster.restart_controller
        yield site


def tell(way: str, fault: Fault, here: Path) -> str:
    with site_of(way, here) as site:
        try:
            told = fault(site)
        except NotHere:
            return "-"
        except AssertionError as error:
            return f"**{str(error)[:90]}**"
        gap = "-" if told.gap_s is None else f"{told.gap_s:.2f} s"
        over = f"; {site.most_at_once()} at once" if site.most_at_once() > site.slots else ""
        return f"{gap}, {told.order}{f'; lost {told.lost}' if told.lost else ''}{over}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="faults, by a part of their words")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    if missing := [need for need in NEEDS if not shutil.which(need)] + (["root"] if os.geteuid() else []):
        sys.stderr.write(f"left out: no {', '.join(missing)} here\n")
        return 1
    faults = {**FAULTS, **(SLOW if arguments.slow else {})}
    wanted = {name: run for name, run in faults.items() if not arguments.only or any(w in name for w in arguments.only)}
    print(f"| what happens | {' | '.join(arguments.ways)} |\n| --- |{' --- |' * len(arguments.ways)}", flush=True)
    here = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    here.chmod(0o755)
    try:
        for number, (name, fault) in enumerate(wanted.items()):
            cells = [tell(way, fault, here / f"{number}-{way}") for way in arguments.ways]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    finally:
        shutil.rmtree(here)
    return 0


if __name__ == "__main__":
    sys.exit(main())
