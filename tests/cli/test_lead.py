"""`softmutex lead`: of several, one runs its command; when it is killed another one does. Exit codes as with `run`."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.cli.processes import eventually, kill, started

SOFTMUTEX = Path(sys.executable).with_name("softmutex")


def test_one_runs_its_command_and_another_one_when_that_one_is_killed(environ: dict[str, str], tmp_path: Path):
    office = tmp_path / "office"
    with ExitStack() as stack:
        members = {}
        for name in ("a", "b", "c"):
            work = ("sh", "-c", f"echo {name} >> {office}; exec sleep 600")
            command = (SOFTMUTEX, "lead", "-n", "indexer", "--no-agent", "-q", "--", *work)
            members[name] = stack.enter_context(started(*command, env=environ))
        (first,) = eventually(lambda: office.exists() and office.read_text().split(), "one leads")
        kill(members[first].pid)
        second = eventually(lambda: office.read_text().split()[1:], "another one leads")
        assert len(second) == 1 and second != [first]


def test_what_elects_nobody_is_refused(environ: dict[str, str]):
    command = (SOFTMUTEX, "lead", "-n", "x", "--no-agent", "--algorithm", "token-ring", "--", "true")
    done = subprocess.run(command, env=environ, timeout=100, check=False, capture_output=True, text=True)
    assert done.returncode == 64 and "elects no leader: give bully or ring" in done.stderr


def test_the_exit_code_is_the_commands_own(environ: dict[str, str]):
    command = (SOFTMUTEX, "lead", "-n", "x", "-q", "--no-agent", "--", "sh", "-c", "exit 7")
    assert subprocess.run(command, env=environ, timeout=100, check=False).returncode == 7
