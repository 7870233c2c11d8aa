"""`softmutex agent` itself: who is let in, where it listens, and what systemd hands it."""

from __future__ import annotations

import configparser
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from softmutex.agent.link import pack
from softmutex.agent.place import NoAgent, call, path_of, read_one
from softmutex.client import SoftMutex
from tests.agent.conftest import SOFTMUTEX, Agent, StartAgent
from tests.cli.processes import PATIENCE_S, eventually, started

NOBODY = 65534


def dial(path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(PATIENCE_S)
    link.connect(path)
    return link


# --- who is let in ---------------------------------------------------------------------------------------------------


def test_only_its_user_can_reach_it(agent: Agent, environ: dict[str, str]):
    path = Path(environ["SOFTMUTEX_AGENT"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


ASKING = """
    import os, socket, sys
    os.setgroups([]); os.setgid({uid}); os.setuid({uid})
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(100)
    link.connect(sys.argv[1])
    try:
        link.send(b'{{"is": "want", "name": "x"}}\\n')
        print(link.recv(100))
    except ConnectionError:
        print(b"")
"""


@pytest.mark.needs("root")
def test_another_user_is_hung_up_on_even_where_the_permissions_would_let_him_in(agent: Agent, environ: dict[str, str]):
    path = Path(environ["SOFTMUTEX_AGENT"])
    for opened in (path, *path.parents):
        if opened.is_relative_to("/tmp") and opened != Path("/tmp"):
            opened.chmod(0o777)
    code = textwrap.dedent(ASKING.format(uid=NOBODY))
    asked = subprocess.run([sys.executable, "-S", "-c", code, path], capture_output=True, text=True)
    assert asked.stdout == "b''\n", asked.stderr
    code = textwrap.dedent(ASKING.format(uid=0))
    asked = subprocess.run([sys.executable, "-S", "-c", code, path], capture_output=True, text=True)
    assert "welcome" in asked.stdout, asked.stderr


LISTENING = """
    import os, socket, sys
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    os.chmod(sys.argv[1], 0o777)
    os.setgid({uid}); os.setuid({uid})
    listening.listen()
    print("ready", flush=True)
    link, _ = listening.accept()
    print(link.recv(100), flush=True)
"""


@pytest.mark.needs("root")
def test_an_agent_of_another_user_is_told_nothing(tmp_path: Path):
    code = textwrap.dedent(LISTENING.format(uid=NOBODY))
    path = str(tmp_path / "socket")
    with started(sys.executable, "-S", "-c", code, path, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout
        assert stranger.stdout.readline() == "ready\n"
        with pytest.raises(NoAgent, match=f"user {NOBODY}, not you"):
            call(path, {"name": "x"})
        assert stranger.stdout.readline() == "b''\n"


@pytest.mark.parametrize(
    "said",
    [b"", b"hello\n", b"[]\n", b'{"is": "done"}\n', b"\xff" * 100 + b"\n", b"[" * 100_000, b"x" * 100_000],
    ids=["nothing", "text", "a list", "no wish", "no UTF-8", "deep", "long"],
)
def test_what_is_no_wish_is_hung_up_on_and_the_agent_goes_on(agent: Agent, environ: dict[str, str], said: bytes):
    with dial(environ["SOFTMUTEX_AGENT"]) as link:
        try:
            link.sendall(said)
            link.shutdown(socket.SHUT_WR)
            assert link.recv(100) == b""
        except ConnectionError:
            pass
    with SoftMutex("x", timeout=PATIENCE_S):
        pass


def test_a_job_may_not_have_the_agent_kill_itself(agent: Agent, environ: dict[str, str]):
    with dial(environ["SOFTMUTEX_AGENT"]) as link:
        link.sendall(pack("want", name="x"))
        assert read_one(link)["is"] == "welcome"
        while (message := read_one(link))["is"] != "granted":
            pass
        link.sendall(pack("take", turn=message["turn"]) + pack("running", group=0) + pack("running", group=agent.pid))
        assert read_one(link)["is"] == "go"
    with SoftMutex("x", timeout=PATIENCE_S):
        pass
    assert agent.process.poll() is None


def test_a_job_is_told_that_it_overruns_when_its_command_runs_and_not_before(agent: Agent, environ: dict[str, str]):
    """Told before, it took no notice: on a busy machine the command was never ended."""
    with dial(environ["SOFTMUTEX_AGENT"]) as link:
        link.sendall(pack("want", name="x", options={"max_hold": 0.01}, on_overrun="cancel"))
        while (message := read_one(link))["is"] != "granted":
            pass
        time.sleep(0.3)
        link.sendall(pack("take", turn=message["turn"]))
        assert [read_one(link)["is"] for _ in range(2)] == ["go", "overrun"]


# --- where it listens ------------------------------------------------------------------------------------------------


def test_the_place_depends_on_the_user_alone():
    elsewhere = {"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"}
    assert path_of(elsewhere) == path_of({}) == f"/tmp/softmutex-{os.geteuid()}/agent.sock"
    assert path_of({"SOFTMUTEX_AGENT": "/a/place"}) == "/a/place"
    assert path_of({"SOFTMUTEX_AGENT": "off"}) is None


def test_a_second_one_at_the_same_place_ends_at_once_and_harms_nobody(agent: Agent, start_agent: StartAgent):
    second = start_agent(ready=False)
    second.says("an agent is there already")
    assert second.ends() == 69
    with SoftMutex("x"):
        pass


def test_what_a_killed_one_left_behind_is_replaced(start_agent: StartAgent, environ: dict[str, str]):
    first = start_agent()
    first.process.kill()
    first.ends()
    assert Path(environ["SOFTMUTEX_AGENT"]).exists()
    start_agent()
    with SoftMutex("x"):
        pass


def test_a_directory_that_others_may_enter_is_refused(start_agent: StartAgent, environ: dict[str, str]):
    place = Path(environ["SOFTMUTEX_AGENT"]).parent
    place.mkdir(mode=0o755)
    agent = start_agent(ready=False)
    agent.says("must be a directory of yours that others may not enter")
    assert agent.ends() == 69


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (["--socket", "/no/such/place/at/all"], 69, "no agent can listen"),
        (["--socket", "/tmp/" + "x" * 120], 69, "longer than a socket's path"),
        (["--transport", "pigeon://x"], 64, "pigeon"),
        (["--frobnicate"], 64, "frobnicate"),
    ],
)
def test_what_cannot_be_ends_with_one_line_and_the_right_code(
    start_agent: StartAgent, flags: list[str], code: int, why: str
):
    agent = start_agent(*flags, ready=False)
    line = agent.says(why)
    assert agent.ends() == code
    assert line.startswith("softmutex agent: ")


def test_it_ends_in_good_order(agent: Agent, environ: dict[str, str]):
    with SoftMutex("x"):
        pass
    agent.process.terminate()
    assert agent.ends() == 0
    assert not Path(environ["SOFTMUTEX_AGENT"]).exists()


def test_told_to_end_it_lets_holders_finish(start_agent: StartAgent, environ: dict[str, str]):
    agent = start_agent(env={**environ, "SOFTMUTEX_LEAVE_TIMEOUT": "25"})
    with SoftMutex("x") as hold:
        agent.process.terminate()
        eventually(lambda: not can_be_called(), "nobody is let in any more")
        assert not hold.lost.is_set()
    assert agent.ends() == 0


def can_be_called() -> bool:
    try:
        call(path_of() or "", {"name": "y"}).close()
    except NoAgent:
        return False
    return True


# --- systemd ---------------------------------------------------------------------------------------------------------

ACTIVATE = """
    import os, socket, sys
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    if listening.fileno() != 3:
        os.dup2(listening.fileno(), 3)
    os.set_inheritable(3, True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_socket_that_is_handed_over_is_used_and_outlives_the_agent(tmp_path: Path, environ: dict[str, str]):
    path = str(tmp_path / "activated")
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(PATIENCE_S)
    command = [sys.executable, "-c", textwrap.dedent(ACTIVATE), path, str(SOFTMUTEX), "agent"]
    with notify, started(*command, env={**environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}) as agent:
        assert notify.recv(100) == b"READY=1"
        with SoftMutex("x", agent=path):
            pass
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(PATIENCE_S) == 0
        assert os.path.exists(path), "the next agent is activated by it"


def test_who_calls_before_the_agent_is_up_waits_for_it(tmp_path: Path, environ: dict[str, str]):
    path = str(tmp_path / "activated")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        with dial(path) as early:
            early.sendall(pack("want", name="x"))
            with started(
                *(sys.executable, "-c", INHERIT.format(fd=listening.fileno()), SOFTMUTEX, "agent"),
                env=environ,
                pass_fds=[listening.fileno()],
            ):
                assert read_one(early)["is"] == "welcome"


INHERIT = (
    "import os, sys; {fd} == 3 or os.dup2({fd}, 3); os.set_inheritable(3, True); "
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_the_units_are_printed_and_name_the_place_where_jobs_look(environ: dict[str, str]):
    shown = subprocess.run([SOFTMUTEX, "agent", "--print-units"], env=environ, capture_output=True, text=True).stdout
    units = configparser.ConfigParser(strict=False, interpolation=None)
    units.optionxform = str  # type: ignore[assignment,method-assign]
    units.read_string(shown)
    place = path_of({})
    assert place is not None
    assert units["Socket"]["ListenStream"] == place.replace(str(os.geteuid()), "%U")
    assert (units["Socket"]["SocketMode"], units["Socket"]["DirectoryMode"]) == ("0600", "0700")
    interpreter, *rest = units["Service"]["ExecStart"].split()
    assert rest == ["-m", "softmutex", "agent"]
    bare = {"PATH": "/usr/bin:/bin"}  # as systemd's: no virtual environment is on it
    assert subprocess.run([interpreter, "-m", "softmutex", "--version"], env=bare, cwd="/").returncode == 0
    assert units["Service"]["Type"] == "notify"
