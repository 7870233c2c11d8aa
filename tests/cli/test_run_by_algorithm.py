"""Each strict algorithm by its name: five processes over UDP come, take their turn and go, again and again."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import children_of, eventually, kill, started

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
STRICT = (
    "central",
    "ricart-agrawala",
    "token-ring",
    "suzuki-kasami",
    "raymond",
    "ring-search",
    "binary-search",
    "keeper",
)
VOTED = ("sigma", "e2e", "non-e2e")
IN_CI = os.environ.get("CI", "").lower() in {"true", "1", "yes"}
PROCESSES = 5
# Of each, every one by a node of its own.
TURNS = 40 if os.environ.get("SOFTMUTEX_DEEP") else 10 if IN_CI else 4
# Two at once would see the other's directory. Whoever could not run ends the loop, and says so.
LOOP = r"""
for turn in $(seq {turns}); do
  {softmutex} run -n x -q {flags} --algorithm {algorithm} -- \
    sh -c 'mkdir inside || exit 99; sleep 0.01; rmdir inside; echo >> ran'
  ended=$?
  test $ended = 0 || exit $ended
done
"""


def each(*quick: str, quiet: tuple[str, ...] = VOTED) -> list[object]:
    """Each algorithm, of which a few are run every time.

    Those that vote claim that no two are in but in the wake of something that went wrong. Two were, with twenty
    processes to a core: a voter that sleeps for a second is enough. So they are tried on a quiet machine.
    """
    marks = {name: [pytest.mark.alone] if name in quiet else [] for name in (*STRICT, *VOTED)}
    return [
        pytest.param(name, marks=also if name in quick else [*also, pytest.mark.slow]) for name, also in marks.items()
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", each())
def test_processes_that_come_and_go_never_run_at_once(algorithm: str, environ: dict[str, str], tmp_path: Path):
    loop = LOOP.format(softmutex=SOFTMUTEX, flags="", algorithm=algorithm, turns=TURNS)
    with ExitStack() as stack:
        loops = [stack.enter_context(started("sh", "-c", loop, env=environ, cwd=tmp_path)) for _ in range(PROCESSES)]
        said = [process.communicate(timeout=800)[1] for process in loops]
    assert [process.returncode for process in loops] == [0] * PROCESSES, said
    assert (tmp_path / "ran").read_text() == "\n" * PROCESSES * TURNS


@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", each("central", "e2e"))
def test_nor_do_those_that_speak_http(algorithm: str, environ: dict[str, str], tmp_path: Path):
    flags = "--no-agent --transport http://127.0.0.1:0"
    loop = LOOP.format(softmutex=SOFTMUTEX, flags=flags, algorithm=algorithm, turns=2)
    with ExitStack() as stack:
        loops = [stack.enter_context(started("sh", "-c", loop, env=environ, cwd=tmp_path)) for _ in range(3)]
        said = [process.communicate(timeout=300)[1] for process in loops]
    assert [process.returncode for process in loops] == [0] * 3, said
    assert (tmp_path / "ran").read_text() == "\n" * 6


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "algorithm", [*each("central", "token-ring", quiet=()), pytest.param("voting", marks=pytest.mark.slow)]
)
def test_when_the_holder_is_killed_another_one_runs(algorithm: str, environ: dict[str, str], tmp_path: Path):
    command = (SOFTMUTEX, "run", "-n", "x", "-q", "--no-agent", "--algorithm", algorithm, "--", "sh", "-c")
    with ExitStack() as stack:
        work = "echo $$ >> ran; exec sleep 600"
        members = [stack.enter_context(started(*command, work, env=environ, cwd=tmp_path)) for _ in range(3)]
        ran = tmp_path / "ran"
        (first,) = eventually(lambda: ran.exists() and ran.read_text().split(), "one runs")
        holder = next(each for each in members if first in " ".join(map(str, _descendants(each.pid))).split())
        kill(holder.pid)
        second = eventually(lambda: ran.read_text().split()[1:], "another one runs")
    assert len(second) == 1 and second != [first]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_go_on_for_a_hundred_turns_when_a_fifth_is_killed_inside(environ: dict[str, str], tmp_path: Path):
    """By its process id, as whoever holds. Nobody is inside beside another one, as seen from outside."""
    command = (SOFTMUTEX, "run", "-n", "x", "-q", "--no-agent", "--algorithm", "keeper", "--", "sh", "-c")
    loop = LOOP.format(softmutex=SOFTMUTEX, flags="--no-agent", algorithm="keeper", turns=26)
    inside = tmp_path / "inside"
    with ExitStack() as stack:
        work = "mkdir inside || exit 99; echo > held; exec sleep 600"
        holder = stack.enter_context(started(*command, work, env=environ, cwd=tmp_path))
        eventually((tmp_path / "held").exists, "the first one runs")
        loops = [stack.enter_context(started("sh", "-c", loop, env=environ, cwd=tmp_path)) for _ in range(4)]
        workers = _descendants(holder.pid)
        inside.rmdir()  # while it holds: whoever comes next may come at any time
        kill(holder.pid)
        for worker in workers:
            kill(worker)
        said = [each.communicate(timeout=800)[1] for each in loops]
    assert [each.returncode for each in loops] == [0] * 4, said
    assert (tmp_path / "ran").read_text() == "\n" * 4 * 26


def _descendants(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *_descendants(child))]
