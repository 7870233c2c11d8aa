"""Runs a recipe that is too heavy for every build, with the real thing.

    python examples/schedulers/try_heavy.py airflow|prefect [DIRECTORY]

DIRECTORY gets a virtual environment with the scheduler and softmutex (minutes, and up to a gigabyte; the next time it
is used as it is) and the data of two installations that know nothing of each other. Each runs two transfers at the same
time as the other, while a third party holds the mutex for longer than a task waits in one go: so they are put off or
tried again, too. What the transfers wrote down must be `in out` four times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

RECIPES = Path(__file__).parent.resolve()
INSTALLATIONS, TRANSFERS = 2, 2
PATIENCE_S, ENDS_S = 300.0, 15.0
THIRD_PARTY = ["run", "-n", "nightly-ftp", "--", "sh", "-c", "touch held; sleep 40; echo free >> visits"]
# Some versions of what these two are made of do not go together, whatever their own metadata says.
PACKAGES = {
    "airflow": [
        "apache-airflow==2.10.5",
        "connexion<3",
        "flask<3",
        "pendulum<3.1",
        "sqlalchemy<2",
    ],
    "prefect": ["prefect==3.8.8", "fastapi<0.145"],
}

Command = list[str]


def venv(here: Path, name: str) -> Path:
    """Its programs. softmutex is that of the tree around this file."""
    programs = here / f"{name}-venv" / "bin"
    if not (programs / name).exists():
        subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
        packages = [*PACKAGES[name], str(RECIPES.parent.parent)]
        subprocess.run([programs / "pip", "install", "--quiet", *packages], check=True)
    return programs


def prefect(programs: Path, data: Path, visits: Path) -> tuple[list[Command], Command, dict[str, str]]:
    return (
        [],
        [str(programs / "python"), str(RECIPES / "prefect_flow.py"), str(visits.parent)],
        {
            "PREFECT_HOME": str(data),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "240",  # its 20 s are short on a busy machine
        },
    )


def airflow(programs: Path, data: Path, visits: Path) -> tuple[list[Command], Command, dict[str, str]]:
    program = str(programs / "airflow")
    environ = {
        "AIRFLOW_HOME": str(data),
        "AIRFLOW__CORE__DAGS_FOLDER": str(data / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(data / "logs"),
    }
    (data / "dags").mkdir(parents=True)
    (data / "dags" / "airflow_dag.py").write_text((RECIPES / "airflow_dag.py").read_text())
    conf = json.dumps({"directory": str(visits.parent)})
    before = [
        [program, "db", "migrate"],
        [program, "dags", "reserialize"],
        [program, "dags", "trigger", "nightly", "--conf", conf],
    ]
    return before, [program, "scheduler", "--skip-serve-logs"], environ


WAYS: dict[str, Callable[[Path, Path, Path], tuple[list[Command], Command, dict[str, str]]]] = {
    "airflow": airflow,
    "prefect": prefect,
}


def end(process: subprocess.Popen[bytes]) -> None:
    """Those that end by themselves may do so; then nothing of them is left."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    """Or until PATIENCE_S are over: what is there then is judged."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)


def try_it(name: str, here: Path) -> bool:
    programs = venv(here, name)
    run = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=here))
    visits, wanted = run / "visits", ["free"] + ["in", "out"] * (INSTALLATIONS * TRANSFERS)
    with ExitStack() as started:

        def start(command: Command, environ: Mapping[str, str]) -> None:
            process = subprocess.Popen(command, env=environ, cwd=run, stdout=log, stderr=log, start_new_session=True)
            started.callback(end, process)

        log = started.enter_context((run / "log").open("ab"))
        ready = []
        for number in range(INSTALLATIONS):
            data = run / f"installation-{number}"
            before, command, more = WAYS[name](programs, data, visits)
            environ = {**os.environ, **more, "SOFTMUTEX_GROUP": run.name, "PATH": f"{programs}:{os.environ['PATH']}"}
            for step in before:
                subprocess.run(step, env=environ, stdout=log, stderr=log, check=True)
            ready.append((command, environ))
        start([str(programs / "softmutex"), *THIRD_PARTY], environ)
        wait_until(lambda: (run / "held").exists())
        for command, environ in ready:
            start(command, environ)
        wait_until(lambda: visits.exists() and len(visits.read_text().split()) >= len(wanted))
    seen = visits.read_text().split() if visits.exists() else []
    print(f"{name}: {' '.join(seen) or 'nothing'} ({'as it must be' if seen == wanted else f'not so; see {run}/log'})")
    return seen == wanted


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in WAYS:
        sys.stderr.write(f"{__doc__}")
        return 64
    here = Path(sys.argv[2] if len(sys.argv) == 3 else tempfile.mkdtemp(prefix="softmutex-heavy-")).resolve()
    here.mkdir(parents=True, exist_ok=True)
    return 0 if try_it(sys.argv[1], here) else 1


if __name__ == "__main__":
    sys.exit(main())
