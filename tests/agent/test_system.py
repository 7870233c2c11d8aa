"""An agent of all users of a host: who is who, what each gets of it, and what nobody can do to anybody else."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from softmutex.agent.link import pack
from softmutex.agent.place import NoAgent, call, check_directory, read_one
from softmutex.client import SoftMutex
from tests.agent.conftest import SOFTMUTEX, Agent
from tests.cli.processes import PATIENCE_S, eventually, is_alive, started

SERVICE, EVA, ADAM = 1, 65534, 2  # daemon, nobody, bin: they are everywhere
# May read everything, since the interpreter may lie in root's home, and nothing more.
MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
ROOT_ALONE = [pytest.mark.needs("root", "setpriv")]
pytestmark = ROOT_ALONE


def as_user(uid: int, *words: str, caps: tuple[str, ...] = MAY_READ) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *caps, *words]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where nobody but root can have let anybody listen; the directory is the service's."""
    with tempfile.TemporaryDirectory(dir="/run", prefix="softmutex-test-") as name:
        os.chmod(name, 0o755)
        (Path(name) / "softmutex.toml").write_text(
            f'membership = "local://?directory={name}/runtime"\n[mutex.declared]\nslots = 2\nmax_hold = "1h"\n'
        )
        for made in ("door", "runtime"):
            (Path(name) / made).mkdir(mode=0o755)
            os.chown(f"{name}/{made}", SERVICE, SERVICE)
        (Path(name) / "runtime").chmod(0o700)
        yield Path(name)


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SOFTMUTEX_")}


@pytest.fixture(scope="module")
def door(place: Path, environ: dict[str, str]) -> Iterator[str]:
    """The agent, at work as a user of its own."""
    path = f"{place}/door/agent.sock"
    flags = ("--system", "--socket", path, "--jobs-per-user", "12", "--turns-per-user", "4")
    with started(*as_user(SERVICE, str(SOFTMUTEX), "agent", "-v", *flags), cwd=place, env=environ) as process:
        Agent(process).says("jobs ask at")
        yield path


class Job:
    """Of a user: what `socket.connect` was called by is who asks, so the link is made by a child of that user."""

    def __init__(self, door: str, uid: int, name: str, **more: Any) -> None:
        self.link = dialled_as(uid, door)
        self.link.settimeout(PATIENCE_S)
        self.link.sendall(pack("want", name=name, **more))

    def hears(self, kind: str) -> dict[str, Any]:
        while (message := read_one(self.link))["is"] != kind:
            assert message["is"] in ("welcome", "said", "progress"), message
        return message

    def enters(self) -> dict[str, Any]:
        turn = self.hears("granted")["turn"]
        self.link.sendall(pack("take", turn=turn))
        return self.hears("go")

    def leaves(self) -> None:
        self.link.sendall(pack("done"))
        self.link.close()


def dialled_as(uid: int, door: str) -> socket.socket:
    """The kernel notes the user at `connect`."""
    link, before = socket.socket(socket.AF_UNIX), os.geteuid()
    os.seteuid(uid)
    try:
        link.connect(door)
    finally:
        os.seteuid(before)
    return link


def looked_at(door: str, uid: int, name: str) -> dict[str, Any]:
    with dialled_as(uid, door) as link:
        link.sendall(pack("look", name=name))
        return read_one(link)


# --- who is who ------------------------------------------------------------------------------------------------------


def test_commands_of_two_users_take_turns(door: str, place: Path, environ: dict[str, str]):
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        script = "mkdir alone && sleep 0.1 && rmdir alone"
        run = (str(SOFTMUTEX), "run", "-v", "-n", "turns", "--", "sh", "-c", script)
        env = {**environ, "SOFTMUTEX_AGENT": door}
        runs = [
            subprocess.Popen(as_user(uid, *run), cwd=shared, env=env, stderr=subprocess.PIPE, text=True)
            for uid in (EVA, ADAM, EVA, ADAM)
        ]
        said = [each.communicate(timeout=PATIENCE_S)[1] for each in runs]
    assert [each.returncode for each in runs] == [0] * 4, said
    assert all("0 others known" in each for each in said), said


@pytest.mark.needs("unshare")
@pytest.mark.skipif(not shutil.which("mount"), reason="no mount")
def test_it_is_found_where_units_put_it_by_whoever_has_none_of_his_own(tmp_path: Path, environ: dict[str, str]):
    script = textwrap.dedent(f"""
        mount -t tmpfs -o mode=0755 none /run && cd /run || exit 77
        {SOFTMUTEX} agent -v --system 2> /run/said & agent=$!
        for turn in $(seq 2000); do grep -q "jobs ask at /run/softmutex/agent.sock" /run/said && break; sleep 0.05; done
        for uid in {EVA} {ADAM}; do
            setpriv --reuid=$uid --regid=$uid --clear-groups {" ".join(MAY_READ)} \\
                {SOFTMUTEX} run -v -n x -- id -u 2>> /run/told
        done
        cat /run/told >&2
        kill $agent; wait $agent; echo "agent: $?"; grep -c "joined as $(hostname | cut -d. -f1)-$agent-" /run/told
    """)
    own = {**environ, "SOFTMUTEX_MEMBERSHIP": f"local://?directory={tmp_path}/runtime"}
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=own, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.stdout.split() == [str(EVA), str(ADAM), "agent:", "0", "2"], ran.stderr


def test_whose_job_it_is_says_the_agent_and_not_the_job(door: str):
    job = Job(door, EVA, "named", purpose="bin: mirror", options={})
    job.enters()
    seen = looked_at(door, ADAM, "named")
    assert [holder["purpose"] for holder in seen["holders"]] == ["nobody: bin: mirror"]
    job.leaves()


def test_a_door_in_a_directory_where_others_write_is_none(tmp_path: Path):
    (tmp_path / "door").mkdir()
    (tmp_path / "door").chmod(0o777)
    with pytest.raises(NoAgent, match="nobody but this user may write"):
        check_directory(str(tmp_path / "door"), of_host=True)


def test_who_listens_where_users_may_make_sockets_is_not_believed_to_be_the_hosts(tmp_path: Path):
    """In a directory of his own below /tmp anybody could play the agent of the host."""
    door = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))
        os.seteuid(EVA)
        try:
            listening.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(NoAgent, match=f"user {EVA}, not you"):
            call(str(door), {"name": "x"})


@pytest.mark.needs("cat")
def test_the_groups_key_is_the_agents_alone(place: Path, environ: dict[str, str]):
    key, door = place / "group.key", place / "door" / "keyed.sock"
    subprocess.run([SOFTMUTEX, "key", "new", str(key)], env=environ, check=True, capture_output=True)
    os.chown(key, 0, SERVICE)
    key.chmod(0o640)
    (keyed := place / "keyed").mkdir()
    told = ("transport = 'udp://127.0.0.1:0'", "membership = 'static://127.0.0.1:9'", "when_isolated = 'proceed'")
    (keyed / "softmutex.toml").write_text("\n".join((*told, f"key_file = '{key}'", "key_group = 'daemon'")))
    command = as_user(SERVICE, str(SOFTMUTEX), "agent", "-v", "--system", "--socket", str(door))
    with started(*command, cwd=keyed, env=environ) as process:
        Agent(process).says("jobs ask at")
        job = Job(str(door), EVA, "x")
        assert job.enters()["peers"] == 0
        job.leaves()
    assert subprocess.run(as_user(EVA, "cat", str(key), caps=()), capture_output=True).returncode != 0


# --- what each gets --------------------------------------------------------------------------------------------------


def test_one_who_takes_all_connections_leaves_them_to_the_others(door: str):
    idle = [dialled_as(EVA, door) for _ in range(12)]
    try:
        with dialled_as(EVA, door) as refused:
            said = read_one(refused)
        assert (said["is"], said["code"], said["error"]) == ("failed", 75, "limit")
        other = Job(door, ADAM, "crowded")
        other.enters()
        other.leaves()
    finally:
        for link in idle:
            link.close()
    eventually(lambda: enters_at_once(door), "the places are free again")


def enters_at_once(door: str) -> bool:
    with dialled_as(EVA, door) as link, suppress(OSError):
        link.sendall(pack("want", name="crowded"))
        return read_one(link)["is"] == "welcome"
    return False


def test_who_says_that_he_waits_for_ever_is_not_before_others(door: str):
    holder = Job(door, ADAM, "since")
    holder.enters()
    mine = [Job(door, EVA, "since", since=0.0) for _ in range(3)]
    other = Job(door, ADAM, "since")
    for job in (*mine, other):
        job.hears("welcome")
    eventually(lambda: looked_at(door, ADAM, "since")["waiting_count"] == 4, "all wait")
    holder.leaves()
    mine[0].enters()
    mine[0].leaves()
    assert other.enters(), "after one turn of the other user it is this one's"
    other.leaves()
    for job in mine[1:]:
        job.link.close()


def test_so_many_turns_and_no_more_are_one_users(door: str):
    jobs = [Job(door, EVA, f"turn-{number}", options={}) for number in range(4)]
    for job in jobs:
        job.enters()
    fifth = Job(door, EVA, "turn-5", timeout=0.2)
    assert fifth.hears("failed")["code"] == 75
    fifth.link.close()
    other = Job(door, ADAM, "turn-5")
    other.enters()
    for job in (*jobs, other):
        job.leaves()


def test_terms_that_the_host_declares_are_not_a_jobs_to_change(door: str):
    for options in ({"slots": 3}, {"when_isolated": "proceed"}, {"max_hold": 7200}):
        job = Job(door, EVA, "declared", options=options)
        said = job.hears("failed")
        job.link.close()
        assert (said["code"], said.get("error")) == (64, "config"), said
    pair = [Job(door, uid, "declared", options={"slots": 2, "max_hold": 60}) for uid in (EVA, ADAM)]
    assert all(10 < job.enters()["left"] <= 60 for job in pair)
    for job in pair:
        job.leaves()
    plain = Job(door, EVA, "declared")
    assert plain.enters()["left"] > 3000, "who says nothing has the host's"
    plain.leaves()


# --- what nobody can do to anybody else ------------------------------------------------------------------------------


def test_a_hold_of_another_user_is_ended_by_administrators_only(door: str):
    job = Job(door, EVA, "evicted")
    job.enters()
    for uid, answer in ((ADAM, "failed"), (EVA, "failed"), (0, "evicted")):
        with dialled_as(uid, door) as link:
            link.sendall(pack("evict", name="evicted", reason="mine now"))
            said = read_one(link)
            assert said["is"] == answer, said
    assert job.hears("lost")["reason"] == "evicted"
    job.leaves()


def test_nobodys_processes_are_killed_for_a_user_and_the_mutex_is_held_until_they_are_gone(door: str):
    with started("sleep", "600") as victim:
        job = Job(door, EVA, "running")
        job.enters()
        job.link.sendall(pack("running", group=victim.pid))
        job.link.close()
        next_one = Job(door, ADAM, "running")
        next_one.hears("welcome")
        impatient = Job(door, ADAM, "running", timeout=0.3)
        assert impatient.hears("failed")["error"] == "timeout"
        impatient.link.close()
        assert is_alive(victim.pid)
        victim.kill()
        victim.wait(PATIENCE_S)
        next_one.enters()
        next_one.leaves()


def test_who_talks_without_end_is_read_later_and_nobody_else_is(door: str):
    loud = Job(door, EVA, "loud")
    loud.enters()
    loud.link.setblocking(False)
    sent = 0
    try:
        while sent < 10_000_000:
            sent += loud.link.send(b'{"is":"touch"}\n' * 1000)
    except BlockingIOError:
        pass
    else:
        raise AssertionError(f"{sent} bytes were read at once")
    quiet = Job(door, ADAM, "quiet")
    quiet.enters()
    quiet.leaves()
    loud.link.close()


def test_python_programs_find_it(door: str, place: Path, environ: dict[str, str]):
    code = textwrap.dedent("""
        import json, sys
        from softmutex.client import SoftMutex
        with SoftMutex("python", timeout=60) as hold:
            print(json.dumps([hold.name, hold.lost.is_set()]))
    """)
    env = {**environ, "SOFTMUTEX_AGENT": door}
    ran = subprocess.run(as_user(EVA, sys.executable, "-c", code), cwd="/", env=env, capture_output=True, text=True)
    assert json.loads(ran.stdout) == ["python", False], ran.stderr
    eventually(lambda: SoftMutex("python", agent=door).look().holders == (), "it is given back")


# --- its units -------------------------------------------------------------------------------------------------------


def shown_units(environ: dict[str, str]) -> dict[str, str]:
    ran = subprocess.run([SOFTMUTEX, "agent", "--system", "--print-units"], env=environ, capture_output=True, text=True)
    texts = ran.stdout.split("# /etc/systemd/system/")[1:]
    return dict(each.split("\n", 1) for each in texts)  # type: ignore[misc]


def test_its_units_name_the_interpreter_and_the_place_where_jobs_look(environ: dict[str, str]):
    units = shown_units(environ)
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    for text in units.values():
        read.read_string(text)
    assert (read["Socket"]["ListenStream"], read["Socket"]["SocketMode"]) == ("/run/softmutex/agent.sock", "0666")
    interpreter, *words = read["Service"]["ExecStart"].split()
    assert words == ["-m", "softmutex", "agent", "--system"]
    assert Path(interpreter).parent == Path(sys.executable).parent  # `python` or `python3.11`, as it was installed
    assert Path(interpreter).samefile(sys.executable)
    assert read["Service"]["CapabilityBoundingSet"] == ""


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_them(environ: dict[str, str], tmp_path: Path):
    for name, text in shown_units(environ).items():
        (tmp_path / name).write_text(
            text.replace("=softmutex\n", "=daemon\n").replace("=daemon\nWork", "=softmutex\nWork")
        )
    verify = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("softmutex-system.*"))]
    ran = subprocess.run(verify, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.strip()) == (0, ""), ran.stderr
