"""Three fresh hosts, set up by the pages alone: `hosts/*.txt` are what a person types who has only read the page.

    page PATH          a page that lies open; all that follows is written there, or on an earlier one
    a$ COMMAND         on host a, to its end, which is good       all$   on each, one after the other
    a~ COMMAND         the same, tried again until it is good
    a& COMMAND         begins on host a, and stays
    a! COMMAND         no page says this: what any administrator does anyway
    copy a FILE [TO]   "copy it to each host"
    here A -> B        what the page calls A (an address, the id of a key) is B here
    => TEXT            what the last command said

{host} is the host's own name. A host has an /etc, a /tmp, a /run and a network of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import started
from tests.docs.pages import ROOT
from tests.faults.lan import Lan, lan

SCRIPTS = sorted((Path(__file__).parent / "hosts").glob("*.txt"))
FIRST = ("hosts",)  # the others take their time
NAMES = ("a", "b", "c")
PATIENCE_S = 100.0
OWN = ("etc", "run", "tmp")
# What the program runs from is seen as it is, also where it lies in a place of which each host has its own.
SEEN = [path for path in (Path(sys.prefix), ROOT) if path.parts[1] in OWN]
ENTER = "\n".join(
    [
        *(f'mount --bind {shlex.quote(str(path))} "$0"{shlex.quote(str(path))}' for path in SEEN),
        *(f'mount --rbind "$0/{each}" /{each}' for each in OWN),
        'cd /tmp; . ./exported; eval "$1"',
    ]
)

pytestmark = [pytest.mark.needs("netns"), pytest.mark.house]


def but_for_standstills(said: str) -> str:
    """A busy machine lets agents stand still, and `softmutex doctor` finds that they did."""
    wrong = re.findall(r"^(?:warn|fail) .*", said, re.MULTILINE)
    is_all = all("the event loop of" in line and "was blocked for" in line for line in wrong)
    return re.sub("^=> .* to be looked at; .*", "=> all is well", said, flags=re.MULTILINE) if is_all else said


class Host:
    def __init__(self, net: Lan, number: int, place: Path) -> None:
        self.name, self.place = NAMES[number - 1], place
        self._prefix = net.prefix(number)
        shutil.copytree("/etc", place / "etc", symlinks=True, ignore_dangling_symlinks=True)
        for name in ("run", "tmp", *(path.relative_to("/") for path in SEEN)):
            (place / name).mkdir(parents=True, exist_ok=True)
        lines = [f"10.77.0.{each} {name}.lab {name}" for each, name in enumerate(NAMES, 1)]
        (place / "etc" / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        (place / "tmp" / "exported").touch()

    def command(self, line: str) -> list[str]:
        inside = ["unshare", "--mount", "bash", "-ec", ENTER, str(self.place), line]
        return [*self._prefix, *inside]

    def export(self, line: str) -> None:
        """As in the shell's profile."""
        with (self.place / "tmp" / "exported").open("a") as file:
            file.write(f"{line}\n")


class Reader:
    """Types what a script says, and nothing that no page says."""

    def __init__(self, hosts: list[Host], stack: ExitStack) -> None:
        self._hosts, self._stack = {host.name: host for host in hosts}, stack
        self._read = ""
        self._here: list[list[str]] = []
        self._said = ""
        self._environ = {"HOME": "/tmp", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LANG": "C"}

    def follow(self, line: str) -> None:
        if match := re.fullmatch(r"(all|[abc])([$~&!]) (.*)", line):
            where, how, command = match.groups()
            assert how == "!" or self._is_written(command), f"no page says: {command}"
            for host in self._hosts.values() if where == "all" else [self._hosts[where]]:
                self._type(host, how, command.replace("{host}", f"{host.name}.lab"))
        elif line.startswith("page "):
            self._read += (ROOT / line.removeprefix("page ")).read_text()
        elif line.startswith("here "):
            self._here.append(line.removeprefix("here ").split(" -> ")[:2])
        elif line.startswith("copy "):
            self._copy(*line.split()[1:])
        else:
            assert line.startswith("=> "), f"what is this: {line}"
            assert line.removeprefix("=> ") in but_for_standstills(self._said), self._said

    def _is_written(self, command: str) -> bool:
        made = [path.read_text() for host in self._hosts.values() for path in host.place.glob("tmp/*/README")]
        written = command.replace("{host}", "HOST")
        for there, here in self._here:
            written = written.replace(here, there)
        return any(each in text for each in (command, written) for text in (self._read, *made))

    def _type(self, host: Host, how: str, command: str) -> None:
        if command.startswith("export "):
            host.export(command)
            return
        words = host.command(command)
        if how == "&":
            self._stack.enter_context(started(*words, env=self._environ, stdout=subprocess.DEVNULL, cwd="/"))
            return
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                words, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
            )
            self._said = done.stdout + done.stderr
            if done.returncode == 0:
                return
            assert how == "~" and time.monotonic() < deadline, f"{host.name}$ {command}\n{self._said}"
            time.sleep(0.2)

    def _copy(self, where: str, file: str, to: str = "/tmp/") -> None:
        here = self._hosts[where].place / "tmp" / file
        for host in self._hosts.values():
            there = host.place / to.lstrip("/")
            if to.endswith("/"):
                there /= here.name
            if there != here:
                there.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if here.is_dir() else shutil.copy2)(here, there)


@pytest.mark.parametrize(
    "script", [pytest.param(one, marks=() if one.stem in FIRST else pytest.mark.slow, id=one.stem) for one in SCRIPTS]
)
def test_three_hosts_by_the_pages_alone(script: Path, tmp_path: Path):
    with lan(len(NAMES), ipv6=False) as net, ExitStack() as stack:
        hosts = [Host(net, number, tmp_path / name) for number, name in enumerate(NAMES, 1)]
        reader = Reader(hosts, stack)
        for line in script.read_text().splitlines():
            if line and not line.startswith("#"):
                reader.follow(line)


@pytest.mark.parametrize("page", ["hosts", "memberships", "keys", "certificates", "agent"])
def test_each_how_to_that_speaks_of_hosts_has_its_script(page: str):
    assert any(f"page docs/howto/{page}.md" in script.read_text() for script in SCRIPTS)
