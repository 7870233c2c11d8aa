"""A user's program is clean under mypy strict and under pyright, and a user's mistakes are seen by both."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", "--python-version=3.11"]
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(HERE)]


def lines_with_errors(checker: list[str], file: str, where: Path, code: int) -> tuple[set[int], str]:
    # From elsewhere: the library is found as an installed package, as a user has it.
    program = where / file
    program.write_text((HERE / file).read_text())
    run = subprocess.run([*checker, str(program)], capture_output=True, text=True, cwd=where, timeout=300)
    said = run.stdout + run.stderr
    assert run.returncode == code, said  # 1: it found mistakes; 2 and more: it did not get so far
    return {int(line) for line in re.findall(rf"{re.escape(file)}:(\d+)(?::\d+)*(?: -)? ?:? ?error", said)}, said


@pytest.mark.slow
@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_a_users_program_is_clean(checker: list[str], tmp_path: Path):
    found, said = lines_with_errors(checker, "user_code.py", tmp_path, code=0)
    assert not found, said
    assert re.search(r"Success: no issues found in 1 source file|^0 errors, 0 warnings", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_a_users_mistakes_are_seen(checker: list[str], tmp_path: Path):
    lines = (HERE / "user_mistakes.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
    found, said = lines_with_errors(checker, "user_mistakes.py", tmp_path, code=1)
    assert found == marked, said
