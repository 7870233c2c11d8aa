"""Each strict algorithm by its name: five processes over UDP come, take their turn and go, again and again."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.processes import started

SOFTMUTEX = Path(sys.executable).with_name("softmutex")
STRICT = ("central", "ricart-agrawala", "token-ring", "ring-search", "binary-search")
VOTED = ("sigma", "e2e", "non-e2e")  # soft: but not where nothing goes wrong
IN_CI = os.environ.get("CI", "").lower() in {"true", "1", "yes"}
PROCESSES = 5
TURNS = 40 if IN_CI else 4  # of each, every one by a node of its own
# Two at once would see the other's directory. Whoever could not run ends the loop, and says so.
LOOP = r"""
for turn in $(seq {turns}); do
  {softmutex} run -n x -q --algorithm {algorithm} -- \
    sh -c 'mkdir inside || exit 99; sleep 0.01; rmdir inside; echo >> ran'
  ended=$?
  test $ended = 0 || exit $ended
done
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", [*STRICT, *VOTED])
def test_processes_that_come_and_go_never_run_at_once(algorithm: str, environ: dict[str, str], tmp_path: Path):
    loop = LOOP.format(softmutex=SOFTMUTEX, algorithm=algorithm, turns=TURNS)
    with ExitStack() as stack:
        loops = [stack.enter_context(started("sh", "-c", loop, env=environ, cwd=tmp_path)) for _ in range(PROCESSES)]
        said = [each.communicate(timeout=800)[1] for each in loops]
    assert [each.returncode for each in loops] == [0] * PROCESSES, said
    assert (tmp_path / "ran").read_text() == "\n" * PROCESSES * TURNS
