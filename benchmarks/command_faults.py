"""What becomes of the turns of plain commands when something happens: an agent, a node for each, and flock beside them.

    python benchmarks/command_faults.py

For crontabs, timers and whatever starts commands. A holds, B and then C wait; something happens to A, to B or to the
agent. Told is how long after A was over the next one came in, and in which order. All ways in the same run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.schedulers.contract import wait_until  # noqa: E402 from the source tree

SOFTMUTEX = str(Path(sys.executable).with_name("softmutex"))
WAYS = ("an agent", "a node each", "flock")


def now_s() -> float:
    """The clock of /proc/uptime, which commands read in their shell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Site:
    def __init__(self, way: str, here: Path) -> None:
        self.way, self.here = way, here
        own = {"SOFTMUTEX_MEMBERSHIP": f"local://?directory={here}/run", "SOFTMUTEX_WHEN_ISOLATED": "proceed"}
        own["SOFTMUTEX_AGENT"] = f"{here}/door/agent.sock" if way == "an agent" else "off"
        self.environ = {**os.environ, **own}
        self.commands: dict[str, subprocess.Popen[bytes]] = {}
        self.agent: subprocess.Popen[bytes] | None = None

    def start_agent(self) -> None:
        if self.way == "an agent":
            self.agent = subprocess.Popen([SOFTMUTEX, "agent"], env=self.environ, cwd=self.here)
            wait_until((self.here / "door" / "agent.sock").exists, "the agent does not start")

    def submit(self, name: str, *, long: bool = False) -> None:
        ends = f"until [ -e end-{name} ]; do sleep 0.02; done" if long else "sleep 0.3"
        say = f"read up rest < /proc/uptime; echo %s {name} $up >> visits"
        script = ["sh", "-c", f"{say % 'in'}; {ends}; {say % 'out'}"]
        turn = ["flock", "lock"] if self.way == "flock" else [SOFTMUTEX, "run", "-q", "-n", "link", "--"]
        self.commands[name] = subprocess.Popen(
            [*turn, *script], env=self.environ, cwd=self.here, start_new_session=True, stdin=subprocess.DEVNULL
        )

    def visits(self, what: str = "in") -> list[tuple[str, float]]:
        path = self.here / "visits"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, float(at)) for kind, name, at in lines if kind == what]

    def set_up(self) -> None:
        self.submit("A", long=True)
        wait_until(lambda: self.visits(), "A does not come in")
        for name in "BC":
            self.submit(name)
            time.sleep(1.0)

    def end_a(self) -> float:
        (self.here / "end-A").touch()
        wait_until(lambda: self.visits("out"), "A does not end")
        return self.visits("out")[0][1]

    def came_since(self, since_s: float, who: str = "BC") -> str:
        wait_until(lambda: {name for name, _ in self.visits("out")} >= set(who), f"not all of {who} have their turn")
        came = [(name, at) for name, at in self.visits() if name != "A"]
        return f"{came[0][1] - since_s:.2f} s, {' '.join(name for name, _ in came)}"

    def close(self) -> None:
        for each in (*self.commands.values(), self.agent):
            if each is not None and each.poll() is None:
                each.terminate()
                each.wait(100)


def orderly(site: Site) -> str:
    site.set_up()
    return site.came_since(site.end_a())


def a_is_sent(number: signal.Signals) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        site.set_up()
        at = now_s()
        site.commands["A"].send_signal(number)
        if site.way == "flock":  # whoever has inherited the lock's descriptor keeps it
            time.sleep(1.0)
            if not [name for name, _ in site.visits() if name != "A"]:
                site.end_a()
                return f"its command works on and holds: {site.came_since(at)}"
        return site.came_since(at)

    return story


def b_ends(number: signal.Signals) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        site.set_up()
        site.commands["B"].send_signal(number)
        site.commands["B"].wait(100)
        return site.came_since(site.end_a(), "C")

    return story


def four_at_once(site: Site) -> str:
    names = [f"A{number}" for number in range(1, 5)]
    for name in names:
        site.submit(name)
    wait_until(lambda: len(site.visits("out")) == len(names), "not all of the four have their turn")
    came, went = site.visits(), site.visits("out")
    gaps = [came[number + 1][1] - went[number][1] for number in range(3)]
    return f"{max(gaps):.2f} s, {' '.join(name for name, _ in came)}"


def with_agent(number: signal.Signals, holder_ends: bool) -> Callable[[Site], str]:
    def story(site: Site) -> str:
        if site.way != "an agent":
            return "-"
        site.set_up()
        assert site.agent is not None
        at = now_s()
        site.agent.send_signal(number)
        if holder_ends:
            at = site.end_a()
        site.agent.wait(100)
        site.start_agent()
        site.submit("D")
        said = site.came_since(at, "BCD")
        return said if holder_ends else f"{said}; A goes on, and is told"

    return story


FAULTS: dict[str, Callable[[Site], str]] = {
    "A ends in good order": orderly,
    "A is killed (SIGKILL)": a_is_sent(signal.SIGKILL),
    "A is cancelled, or out of time (SIGTERM)": a_is_sent(signal.SIGTERM),
    "B is cancelled while it waits": b_ends(signal.SIGTERM),
    "B is killed (SIGKILL) while it waits": b_ends(signal.SIGKILL),
    "four at once": four_at_once,
    "the agent is killed, another one is started, and then D asks": with_agent(signal.SIGKILL, False),
    "the agent ends in good order while A finishes, the same": with_agent(signal.SIGTERM, True),
}


@contextmanager
def site_of(way: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as name:
        site = Site(way, Path(name))
        try:
            site.start_agent()
            yield site
        finally:
            site.close()


def main() -> int:
    ways = [way for way in WAYS if way != "flock" or shutil.which("flock")]
    print(f"| what happens | {' | '.join(ways)} |\n| --- |{' --- |' * len(ways)}")
    for name, story in FAULTS.items():
        cells = []
        for way in ways:
            with site_of(way) as site:
                cells.append(story(site))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
