"""What the documentation shows is what happens: each block of code on each page runs as it stands."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softmutex.cli import main
from softmutex.runtime.config import resolve
from tests.cli.processes import but_for_standstills
from tests.docs.pages import ROOT, blocks, pages, run

SHOWN_ONLY = {"", "text"}  # a picture, or what a program printed
pytestmark = pytest.mark.house
every_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the reader's own, and a group that nobody else is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTMUTEX_GROUP", f"docs-{os.getpid()}-{tmp_path.name}"[:60])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    key = tmp_path / "group.key"
    key.write_text("00" * 31 + "07")
    key.chmod(0o600)
    return tmp_path


@every_page
async def test_python_does_what_the_page_says(page: Path, reader: Path):
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python" and not block.run_by and not block.file:
            for code in (*block.given, block.code, *block.then):
                await run(code, f"{page.relative_to(ROOT)}:{block.line}", names)


@every_page
def test_a_program_that_names_its_file_runs_as_one(page: Path, reader: Path):
    for block in blocks(page):
        if block.file:
            (reader / block.file).write_text(block.code)
            ran = subprocess.run([sys.executable, block.file], capture_output=True, text=True, timeout=100)
            assert (ran.returncode, but_for_standstills(ran.stderr)) == (0, ""), f"line {block.line}"
            assert ran.stdout, f"line {block.line}: it says nothing, and a newcomer cannot see what it did"


@every_page
def test_commands_print_what_the_page_shows(page: Path, reader: Path):
    (reader / "group.key").unlink()  # they make it
    for block in blocks(page):
        if block.language != "console" or block.run_by:
            continue
        lines = block.code.splitlines()
        script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
        shown = [line for line in lines if not line.startswith("$ ")]
        ran = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=100)
        assert ran.returncode == 0, f"line {block.line}: {ran.stdout}{ran.stderr}"
        if shown:
            assert ran.stdout.splitlines() == shown, f"line {block.line}: {ran.stderr}"


@every_page
def test_settings_in_a_file_are_settings(page: Path, reader: Path):
    for block in blocks(page):
        if block.language == "toml" and not block.run_by:
            (reader / "softmutex.toml").write_text(block.code)
            resolve().for_mutex("nightly-ftp", {})


@every_page
def test_settings_in_the_environment_are_settings(page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch):
    for block in blocks(page):
        if block.language == "bash":
            for name, value in re.findall(r"^export (SOFTMUTEX_\w+)=(\S+)$", block.code, re.MULTILINE):
                monkeypatch.setenv(name, value)
            resolve()


@functools.cache
def help_of(*command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*command, "--help"]) == 0, command
    return said.getvalue()


@every_page
def test_a_command_that_is_only_shown_has_right_flags_and_is_right_shell(page: Path, reader: Path):
    for block in blocks(page):
        if block.language == "bash":
            checked = subprocess.run(["bash", "-n", "-c", block.code], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr
            for command in re.findall(r"\bsoftmutex ([a-z]+)((?: [^\n|;&]*)?)", block.code):
                known = help_of(command[0])
                part = re.match(r" ([a-z]+)(?: |$)", command[1])
                if part and re.search(rf"^    {part[1]}\b", known, re.MULTILINE):  # a help of its own
                    known = help_of(command[0], part[1])
                for flag in re.findall(r" (--?[a-z-]+)", command[1].split(" -- ")[0]):
                    assert flag in known, f"softmutex {command[0]} has no {flag}"


@every_page
def test_every_block_says_what_it_is_and_who_runs_it(page: Path):
    for block in blocks(page):
        assert block.language in {"python", "console", "toml", "bash", *SHOWN_ONLY} or block.run_by, (
            f"{page.name}, line {block.line}: nobody runs {block.language!r}; say <!-- run by tests/... -->"
        )
        for test in block.run_by:
            assert (ROOT / test).exists(), f"{page.name}, line {block.line}: there is no {test}"


@pytest.mark.slow
@pytest.mark.parametrize("theme", [[], ["--theme", "mkdocs"]], ids=["ours", "of mkdocs"])
def test_the_site_is_built_without_a_warning(tmp_path: Path, theme: list[str]):
    """Also with the theme that mkdocs brings: the other one can be taken off."""
    words = ["--strict", "--quiet", *theme, "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *words],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    reference = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert all(word in reference for word in ("try_acquire", "lost_reason", "on_lost", "touch", "isolated_timeout"))
    assert "repeatCount" in (tmp_path / "site" / "pictures" / "token.svg").read_text()
