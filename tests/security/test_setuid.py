"""A command that becomes another user cannot be ended from here: it holds the mutex for as long as it runs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import eventually, is_alive, kill

# May read everything, since the interpreter may lie in root's home, and nothing more.
MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *MAY_READ)
SOFTMUTEX = Path(sys.executable).with_name("softmutex")
BECOME_ROOT = (
    '$< = 0; $> = 0; open(my $f, ">", "{0}/pid.new"); print $f $$; close $f; rename "{0}/pid.new", "{0}/pid"; '
)
UNTIL_TOLD = 'sleep 1 until -e "{0}/end"'
pytestmark = [pytest.mark.needs("root", "perl", "setpriv"), pytest.mark.slow]


@pytest.fixture
def place() -> Iterator[Path]:
    """That `nobody` can reach, with a program that becomes root."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        shutil.copy(str(shutil.which("perl")), folder / "becomes-root")
        (folder / "becomes-root").chmod(0o4755)
        yield folder
        if (folder / "pid").exists():
            kill(int((folder / "pid").read_text()))


def run(place: Path, *words: str) -> "subprocess.Popen[str]":
    environ = {"PATH": os.environ["PATH"], "SOFTMUTEX_AGENT": "off"}
    environ["SOFTMUTEX_MEMBERSHIP"] = f"local://it?directory={place}/run"
    command = [*AS_NOBODY, str(SOFTMUTEX), "run", "-n", "x", *words]
    return subprocess.Popen(command, env=environ, cwd=place, stderr=subprocess.PIPE, text=True)


def ends(place: Path, *words: str) -> int:
    with run(place, *words) as process:
        process.communicate(timeout=100)
        return process.returncode


@pytest.mark.parametrize("how", ["the front is killed", "the front is told to end and its group lives on"])
def test_a_command_that_has_become_another_user_holds_until_it_ends(place: Path, how: str):
    script = (BECOME_ROOT + UNTIL_TOLD).format(place)
    words = [f"{place}/becomes-root", "-e", script]
    if how != "the front is killed":  # a shell of ours that has such a child; it ends when it is told to
        words = ["sh", "-c", '"$@" & wait', "sh", *words]
    with run(place, "--grace", "1s", "--", *words) as front:
        pid = int(eventually(lambda: (place / "pid").exists() and (place / "pid").read_text(), "it runs"))
        front.send_signal(signal.SIGKILL if how == "the front is killed" else signal.SIGTERM)
        assert ends(place, "--timeout", "8s", "--", "true") == 75, "nobody else comes in meanwhile"
        assert is_alive(pid)
        (place / "end").touch()
        assert ends(place, "--timeout", "60s", "--", "true") == 0
        assert not is_alive(pid)
        _, said = front.communicate(timeout=100)
    if how != "the front is killed":
        assert "cannot be ended from here" in said
