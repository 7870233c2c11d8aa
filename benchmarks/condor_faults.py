"""What becomes of the turns of HTCondor's jobs when something happens: the transfer plug-in, and `concurrency_limits`.

    python benchmarks/condor_faults.py DIRECTORY [--only "is removed" ...]      as root; see benchmarks/condor.py

The inputs of A are on their way, B and then C wait for their turn; something happens. Told is how long after A was over
(or after the fault) the next one came in, and in which order. Beside it, in the same pool, jobs that HTCondor itself
lets run one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.condor import (
    BY_LIMIT,
    HOME,
    SUBMIT,
    Transfer,
    ftp_server,
    inside,
    is_rooted_in,
    mounted,
    pool,
    try_inside,
    wait_until,
)

LONG, SETTLED_S, PATIENCE_S = 15, 4.0, 90.0  # A: 29 s; after two rounds of the negotiator it is clear who waits
PLUGIN, LIMIT = "plug-in", "concurrency_limits"
BY_PLUGIN = """\
arguments = -c true
transfer_plugins = smftp=smftp
transfer_input_files = smftp://127.0.0.1:{port}/{name}?mutex=transfers
"""
IN_SHELL = "read up rest < /proc/uptime; echo %s {name} $up >> visits"


def now_s() -> float:
    """The clock of /proc/uptime, which jobs read in their shell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Site:
    def __init__(self, there: Path, way: str, port: int, served: list[Transfer]) -> None:
        self.there, self.way, self.port, self.served = there, way, port, served
        self.home = there / HOME
        self.ids: dict[str, str] = {}
        self.served.clear()
        self.ahead_s = now_s() - time.monotonic()
        for left in ("visits", "end-A"):
            (self.home / left).unlink(missing_ok=True)

    def submit(self, name: str) -> None:
        words = BY_PLUGIN.format(port=self.port, name=name)
        if self.way == LIMIT:
            say = IN_SHELL.format(name=name)
            script = "until [ -e end-A ]; do sleep 0.05; done" if name == "A" else "sleep 1"
            lines = ["#!/bin/sh", f"cd /{HOME}", say % "in", script, say % "out", ""]
            (self.home / f"job-{name}.sh").write_text("\n".join(lines))
            words = BY_LIMIT.replace("-c 'sleep {seconds}'", f"/{HOME}/job-{name}.sh")
        (self.home / "job.sub").write_text(f"{SUBMIT}{words}queue\n")
        (self.home / "smftp").write_text('#!/bin/sh\nexec /opt/softmutex/bin/softmutex-condor-transfer "$@"\n')
        (self.home / "smftp").chmod(0o755)
        inside(self.there, "chown", "-R", "tester", f"/{HOME}")
        said = self.condor("condor_submit job.sub")
        found = re.search(r"submitted to cluster (\d+)", said)
        assert found, said
        self.ids[name] = found[1]

    def condor(self, command: str) -> str:
        return try_inside(self.there, "su", "tester", "-c", f"cd && {command}")

    def visits(self, kind: str = "in") -> list[tuple[float, str]]:
        if self.way == PLUGIN:
            done = [each for each in self.served if each.name in "ABC" or each.end == each.begin]
            names = {id(each): each.name or "ABC"[0] for each in done}
            at = {"in": lambda each: each.begin, "out": lambda each: each.end}[kind]
            seen = [each for each in done if kind == "in" or (each.end > each.begin and each.name)]
            return sorted((at(each) + self.ahead_s, names[id(each)]) for each in seen)
        path = self.home / "visits"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return sorted((float(at), name) for what, name, at in lines if what == kind)

    def waiting(self) -> int:
        said = self.condor("SOFTMUTEX_AGENT=off /opt/softmutex/bin/softmutex status -n transfers --json")
        return sum(each["waiting_count"] for each in json.loads(said)["mutexes"]) if said.startswith("{") else 0

    def set_up(self) -> None:
        self.submit("A")
        wait_until(lambda: self.visits(), "A does not come in")
        for number, name in enumerate("BC", start=1):
            self.submit(name)
            if self.way == PLUGIN:
                wait_until(lambda number=number: self.waiting() == number, f"{name} does not wait")  # type: ignore[misc]
            else:
                time.sleep(SETTLED_S)

    def end_a(self) -> float:
        """In good order."""
        (self.home / "end-A").touch()
        wait_until(lambda: [at for at, name in self.visits("out") if name == "A"], "A does not end")
        return self.visits("out")[0][0]

    def told(self, since_s: float, who: str = "BC") -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not {name for _, name in self.visits("out")} >= set(who):
            time.sleep(0.1)
        came = [(at, name) for at, name in self.visits() if name in who]
        lost = sorted(set(who) - {name for _, name in self.visits("out")})
        gap = f"{came[0][0] - since_s:.2f} s, {' '.join(name for _, name in came)}" if came else "nobody"
        return gap + (f"; lost {' '.join(lost)}" if lost else "")

    def kill(self, words: str) -> None:
        """The first process in there whose command line has them."""
        for entry in sorted(Path("/proc").iterdir()):
            if entry.name.isdigit() and is_rooted_in(entry, self.there):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in line and "su tester" not in line:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
        raise SystemExit(f"there is no {words}")

    def close(self) -> None:
        (self.home / "end-A").touch()
        self.condor("condor_rm -all")
        wait_until(lambda: not self.condor("condor_q -af ClusterId").strip(), "the jobs do not end")


def orderly(site: Site) -> str:
    site.set_up()
    return site.told(site.end_a())


def happens_to_a(act: Callable[[Site], object]) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        site.set_up()
        at = now_s()
        act(site)
        return site.told(at)

    return story


def b_is_removed(site: Site) -> str:
    site.set_up()
    site.condor(f"condor_rm {site.ids['B']}")
    return site.told(site.end_a(), "C")


def negotiator_killed(site: Site) -> str:
    """Who matches jobs; the master starts another one."""
    site.set_up()
    site.kill("condor_negotiator")
    return site.told(site.end_a())


FAULTS: dict[str, Callable[[Site], str]] = {
    "A ends in good order": orderly,
    "A's process is killed (SIGKILL)": happens_to_a(
        lambda site: site.kill("softmutex-condor-transfer -infile" if site.way == PLUGIN else "job-A.sh")
    ),
    "A is removed": happens_to_a(lambda site: site.condor(f"condor_rm {site.ids['A']}")),
    "A is held": happens_to_a(lambda site: site.condor(f"condor_hold {site.ids['A']}")),
    "B is removed while it waits": b_is_removed,
    "the negotiator is killed": negotiator_killed,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="faults, by a part of their words")
    arguments = parser.parse_args()
    there = arguments.directory.resolve()
    if os.geteuid() != 0 or not (there / "usr/sbin/condor_master").exists():
        sys.stderr.write("run `python benchmarks/condor.py DIRECTORY` first, as root: it installs HTCondor there\n")
        return 69
    print(f"| what happens | {PLUGIN} | {LIMIT} |\n| --- | --- | --- |", flush=True)
    with mounted(there), ftp_server(A=LONG, B=1, C=1) as (port, served), pool(there):
        for name, story in FAULTS.items():
            if any(words in name for words in arguments.only):
                cells = []
                for way in (PLUGIN, LIMIT):
                    site = Site(there, way, port, served)
                    try:
                        cells.append(story(site))
                    finally:
                        site.close()
                print(f"| {name} | {cells[0]} | {cells[1]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
