"""The recipes of examples/schedulers, each run by the real scheduler: turns are taken, one after the other."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.schedulers.contract import wait_until

RECIPES = Path(__file__).parent.parent.parent / "examples" / "schedulers"
BIN = Path(sys.executable).parent
JOBS = 4
pytestmark = pytest.mark.slow
packaged = pytest.mark.needs("recipes")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """As the machine of a user who has this scheduler and softmutex installed."""
    packages = os.environ.get("RECIPES_DIR", "")
    return {
        **os.environ,
        "PATH": f"{BIN}:{packages}/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{packages}:{RECIPES}",
        "SOFTMUTEX_GROUP": f"recipes-{os.getpid()}-{tmp_path.name}"[:60],
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def redis(tmp_path: Path, environ: dict[str, str]) -> Iterator[None]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with running(command, environ, tmp_path):
        environ["REDIS_URL"] = f"redis://127.0.0.1:{port}"
        wait_until(lambda: can_connect(port), "redis does not answer")
        yield


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(command: list[str], environ: dict[str, str], here: Path) -> Iterator[None]:
    with (here / "output").open("ab") as out:
        process = subprocess.Popen(
            command, env=environ, cwd=here, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(100)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(command: list[str], environ: dict[str, str], here: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(command, env=environ, cwd=here, capture_output=True, text=True, timeout=100, **more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def took_turns(visits: Path, jobs: int = JOBS) -> None:
    try:
        wait_until(lambda: visits.exists() and visits.read_text().count("out") >= jobs, "not all had their turn")
    except AssertionError as error:
        output = visits.parent / "output"
        raise AssertionError(f"{error}\n{output.read_text() if output.exists() else ''}") from None
    assert visits.read_text().split() == ["in", "out"] * jobs


@pytest.mark.needs("redis-server")
@packaged
def test_rq(tmp_path: Path, environ: dict[str, str], redis: None):
    enqueue = (
        "import os, sys; from redis import Redis; from rq import Queue, Retry; import rq_jobs\n"
        "queue = Queue(connection=Redis.from_url(os.environ['REDIS_URL']))\n"
        f"for _ in range({JOBS}): queue.enqueue(rq_jobs.fetch, sys.argv[1], retry=Retry(max=50, interval=1))"
    )
    worker = ["rq", "worker", "--url", environ["REDIS_URL"], "--with-scheduler"]
    visits = tmp_path / "visits"
    with running(worker, environ, tmp_path), running(worker, environ, tmp_path):
        run([sys.executable, "-c", enqueue, str(visits)], environ, tmp_path)
        took_turns(visits)


@pytest.mark.needs("redis-server")
@packaged
def test_arq(tmp_path: Path, environ: dict[str, str], redis: None):
    enqueue = (
        "import asyncio, sys, arq_worker; from arq import create_pool\n"
        "async def main():\n"
        "    pool = await create_pool(arq_worker.WorkerSettings.redis_settings)\n"
        f"    for _ in range({JOBS}): await pool.enqueue_job('fetch', sys.argv[1])\n"
        "    await pool.aclose()\n"
        "asyncio.run(main())"
    )
    worker = ["arq", "arq_worker.WorkerSettings"]
    visits = tmp_path / "visits"
    with running(worker, environ, tmp_path), running(worker, environ, tmp_path):
        run([sys.executable, "-c", enqueue, str(visits)], environ, tmp_path)
        took_turns(visits)


@pytest.mark.needs("redis-server")
@packaged
def test_dramatiq(tmp_path: Path, environ: dict[str, str], redis: None):
    send = f"import sys, dramatiq_actors\nfor _ in range({JOBS}): dramatiq_actors.fetch.send(sys.argv[1])"
    worker = ["dramatiq", "dramatiq_actors", "--processes", "2", "--threads", "2"]
    visits = tmp_path / "visits"
    with running(worker, environ, tmp_path):
        run([sys.executable, "-c", send, str(visits)], environ, tmp_path)
        took_turns(visits)


@packaged
def test_luigi(tmp_path: Path, environ: dict[str, str]):
    command = [sys.executable, "-m", "luigi", "--module", "luigi_tasks", "All", "--directory", str(tmp_path)]
    run([*command, "--local-scheduler", "--workers", "4"], environ, tmp_path)
    took_turns(tmp_path / "visits")


@packaged
def test_snakemake(tmp_path: Path, environ: dict[str, str]):
    shutil.copy(RECIPES / "Snakefile", tmp_path)
    run([sys.executable, "-m", "snakemake", "--cores", "4", "--quiet"], {**environ, "HOME": str(tmp_path)}, tmp_path)
    took_turns(tmp_path / "visits")


@pytest.mark.needs("parallel")
def test_gnu_parallel(tmp_path: Path, environ: dict[str, str]):
    (tmp_path / "urls").write_text("".join(f"{number}\n" for number in range(JOBS)))
    script = (RECIPES / "gnu_parallel.sh").read_text().replace("--slots 2", "--slots 1")  # so that turns can be seen
    command = ["sh", "-c", script, "gnu_parallel.sh", "urls", "sh", "-c"]
    transfer = "'echo in >> visits; sleep 0.1; echo out >> visits'"
    run([*command, transfer], environ, tmp_path)
    took_turns(tmp_path / "visits")


def test_cron(tmp_path: Path, environ: dict[str, str]):
    """The line of the crontab, as cron runs it: by sh, with next to no environment and no terminal."""
    line = next(line for line in (RECIPES / "crontab").read_text().splitlines() if line.startswith("0 2"))
    transfer = f"sh -c {shlex.quote('echo in >> visits; sleep 0.1; echo out >> visits')}"
    command = line.split(maxsplit=5)[5].replace("/usr/local/bin/mirror", transfer).replace("--slots 2", "--slots 1")
    bare = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path), "SHELL": "/bin/sh", "LOGNAME": "root"}
    bare["SOFTMUTEX_GROUP"] = environ["SOFTMUTEX_GROUP"]
    started = [
        subprocess.Popen(["/bin/sh", "-c", command], env=bare, cwd=tmp_path, stdin=subprocess.DEVNULL)
        for _ in range(JOBS)
    ]
    assert [process.wait(100) for process in started] == [0] * JOBS
    took_turns(tmp_path / "visits")


@pytest.mark.needs("systemd-analyze")
def test_the_systemd_units_are_units(tmp_path: Path):
    """Programs that are not installed here are replaced by one that is; all else is as it stands."""
    for name in ("mirror.service", "mirror.timer"):
        unit = (RECIPES / name).read_text().replace("/usr/local/bin/softmutex", "/bin/true")
        (tmp_path / name).write_text(unit)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "mirror.timer"), str(tmp_path / "mirror.service")],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    assert "mirror" not in checked.stderr, checked.stderr


USER_MANAGER = """
mount -t tmpfs -o mode=0755 none /run && mkdir -p /run/systemd/system /run/here || exit 77
export XDG_RUNTIME_DIR=/run/here
/usr/lib/systemd/systemd --user > {here}/manager 2>&1 & manager=$!
for turn in $(seq 900); do systemctl --user is-system-running --wait > {here}/state 2>&1 && break; sleep 0.1; done
"""


def under_systemd(script: str, environ: dict[str, str], here: Path) -> str:
    """In a mount namespace, by a user's manager of its own: the machine need not have been started by systemd."""
    whole = USER_MANAGER.format(here=here) + script + "\nkill $manager; wait $manager"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", whole],
        env={**environ, "HOME": str(here)},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return ran.stdout + ran.stderr


under = pytest.mark.needs("root", "netns", "systemd-run", "/usr/lib/systemd/systemd")


@under
def test_systemd_run(tmp_path: Path, environ: dict[str, str]):
    """Four transfers take turns; one that waits is stopped; one that holds is stopped and may finish."""
    recipe = (RECIPES / "systemd_run.sh").read_text()
    (tmp_path / "recipe").write_text(recipe.replace("--collect", '--collect --unit="$UNIT"'))
    transfer = "sh -c 'echo in >> visits; sleep 0.1; echo out >> visits'"
    polite = """sh -c 'trap "echo finished >> visits; exit" TERM; echo first >> visits; while :; do sleep 0.05; done'"""
    script = f"""
        UNIT=first sh recipe {polite}
        until grep -q first visits; do sleep 0.05; done
        for number in 1 2 3 4; do UNIT=mirror-$number sh recipe {transfer}; done
        UNIT=waits sh recipe touch never
        sleep 1; systemctl --user stop waits first
        for turn in $(seq 2000); do [ "$(grep -c out visits)" = 4 ] && break; sleep 0.05; done
        [ -e never ] && echo "it was not stopped"
    """
    said = under_systemd(script, environ, tmp_path)
    assert (tmp_path / "visits").read_text().split() == ["first", "finished", *["in", "out"] * 4], said
    assert "it was not stopped" not in said


@under
def test_the_agents_units_work_under_systemd(tmp_path: Path, environ: dict[str, str]):
    """As `softmutex agent --print-units` prints them: the socket starts the agent when the first job asks."""
    units = tmp_path / ".config" / "systemd" / "user"
    units.mkdir(parents=True)
    shown = run([str(BIN / "softmutex"), "agent", "--print-units"], environ, tmp_path).stdout
    for part in shown.split("# ~/.config/systemd/user/")[1:]:
        name, _, text = part.partition("\n")
        (units / name).write_text(text.replace("/tmp/softmutex-%U", str(tmp_path / "door")))
    script = f"""
        systemctl --user daemon-reload; systemctl --user start softmutex-agent.socket
        SOFTMUTEX_AGENT={tmp_path}/door/agent.sock softmutex run -v -n x -- true
        systemctl --user show -p MainPID softmutex-agent.service
        systemctl --user stop softmutex-agent.service; systemctl --user show -p Result softmutex-agent.service
    """
    said = under_systemd(script, environ, tmp_path)
    (pid,) = [line.partition("=")[2] for line in said.splitlines() if line.startswith("MainPID=")]
    assert f"-{pid}-" in said, said  # the member has the number of that process in its name
    assert "Result=success" in said, said


@packaged
def test_nomad(tmp_path: Path, environ: dict[str, str]):
    """The job file is HCL, and its command takes turns as it stands. No Nomad has run it here."""
    read = (
        "import hcl2, json, sys; job = hcl2.load(open(sys.argv[1]))['job'][0]; "
        "unquoted = json.loads(json.dumps(job).replace('\\\\\"', '')); (job,) = unquoted.values(); "
        "(group,) = job['group'][0].values(); (task,) = group['task'][0].values(); print(json.dumps([job, task]))"
    )
    said = run([sys.executable, "-c", read, str(RECIPES / "mirror.nomad.hcl")], environ, tmp_path).stdout
    job, task = json.loads(said)
    assert (job["type"], job["periodic"][0]["prohibit_overlap"], task["kill_signal"]) == ("batch", True, "SIGTERM")
    config = task["config"][0]
    assert (config["command"], config["args"][-2:]) == ("/usr/local/bin/softmutex", ["--", "/usr/local/bin/mirror"])
    transfer = ["sh", "-c", "echo in >> visits; sleep 0.1; echo out >> visits"]
    flags = [flag.replace("2", "1") if flag == "2" else flag for flag in config["args"][:-1]]
    command = [str(BIN / "softmutex"), *flags, *transfer]
    started = [subprocess.Popen(command, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL) for _ in range(JOBS)]
    assert [process.wait(100) for process in started] == [0] * JOBS
    took_turns(tmp_path / "visits")
