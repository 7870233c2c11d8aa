"""No figure stands in the README or in the docs but in a section that `docs/claims.md` names, with what checks it.

Or that names the command itself: then whoever doubts it has all he needs on the spot. So does each line of
`docs/limits.md` that says what falls short, and by how much.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from softmutex.cli import BY_ENTRY_POINT, COMMANDS
from tests.docs.pages import ROOT, pages

CLAIMS = ROOT / "docs" / "claims.md"
LIMITS = ROOT / "docs" / "limits.md"
OF_THEIR_OWN = {"glossary.md", "limits.md", "claims.md"}  # of words, of bounds (with a test a row), and this table
UNITS = (
    r"ns|µs|ms|s|min|minutes?|seconds?|hours?|%|KiB|MiB|GiB|KB|MB|GB|Mbit/s|MB/s|bytes?|messages?|packets?|round trips?"
    r"|acquisitions?/s|hand-overs?/s|times a|of a core|d"
)
FIGURE = re.compile(rf"(?<![\w./-])\d[\d,.]*(?:\s?(?:to|-|–|±)\s?\d[\d,.]*)?\s(?:{UNITS})(?![\w/-])")
ROW = re.compile(
    r"^\| (?:\[[^]]*\]\((?P<page>[^)]*)\)|(?P<readme>README\.md)) \| (?P<section>[^|]*) \| (?P<rest>.*) \|$"
)
HEADING = re.compile(r"\| (?:page|---) \|")
COMMAND = re.compile(r"`(?:softmutex (?:sim|bench|demo)|python (?:-m )?(?:benchmarks|tests))[ /.]")
CODE = re.compile(r"`([^`]*)`")
# By a command, a test, or another page.
SHOWN = re.compile(r"`[^`]*(?:softmutex |python |pytest |\.ci/|tests/)[^`]*`|\]\([a-z/-]+\.md")


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """(heading, line), without code."""
    heading, is_code = "", False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif line.startswith("#") and not is_code:
            heading = line.strip("# ")
        elif not is_code:
            yield heading, line


def rows() -> list[tuple[Path, str, list[str]]]:
    found = [row for line in CLAIMS.read_text().splitlines() if (row := ROW.match(line))]
    return [
        (ROOT / ("README.md" if row["readme"] else f"docs/{row['page']}"), row["section"], row["rest"].split(" | "))
        for row in found
    ]


def is_told_elsewhere(page: Path) -> bool:
    return page.name in OF_THEIR_OWN or "decisions" in page.parts


def test_every_figure_stands_in_a_section_that_the_table_of_claims_names():
    named = {(page, section) for page, section, _ in rows()}
    named |= {(page, heading) for page in pages() for heading, line in sections(page) if COMMAND.search(line)}
    missing: dict[str, str] = {}
    for page in pages():
        for heading, line in sections(page) if not is_told_elsewhere(page) else ():
            if (page, heading) not in named and (figure := FIGURE.search(line)):
                missing[f"{page.relative_to(ROOT)}, {heading!r}"] = figure[0]
    assert not missing, f"give each a row in docs/claims.md: {missing}"


def test_no_row_is_passed_over():
    """One without its last `|` was: nobody asked it whether its command is there."""
    lines = [line for line in CLAIMS.read_text().splitlines() if line.startswith("|")]
    assert [line for line in lines if not ROW.match(line)] == [line for line in lines if HEADING.match(line)]


def test_whatever_falls_short_and_has_a_figure_says_what_shows_it():
    short = [line for heading, line in sections(LIMITS) if heading == "What falls short" and line.startswith("- ")]
    assert len(short) >= 20
    assert [line for line in short if FIGURE.search(line) and not SHOWN.search(line)] == []


def test_every_row_names_a_section_that_is_there():
    headings = defaultdict(set)
    for page in {page for page, _, _ in rows()}:
        headings[page] = {heading for heading, _ in sections(page)}
    assert [(page.name, section) for page, section, _ in rows() if section not in headings[page]] == []


@pytest.mark.parametrize(
    "what", sorted({word for _, _, cells in rows() for cell in cells for word in CODE.findall(cell)})
)
def test_what_checks_a_claim_is_there(what: str):
    match shlex.split(what):
        case ["softmutex", command, *_]:
            assert command in COMMANDS or command in {each.name for each in entry_points(group=BY_ENTRY_POINT)}
        case ["python", "-m", module, *_]:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists()
        case ["python", file, *_] | [file] if "/" in file:
            assert (ROOT / file).exists()
        case _:
            pass  # the name of a setting


def test_whatever_is_measured_has_a_command_and_the_day_on_which_it_was():
    measured = [cells for _, _, cells in rows() if len(cells) == 5]
    assert len(measured) >= 15
    for claim, span, check, figures, made in measured:
        assert claim and span and figures and "`" in check
        assert datetime.date(2026, 11, 1) <= datetime.date.fromisoformat(made)


@pytest.mark.parametrize("text", ["in 13 s at", "98 % in use", "| 0.05 s", "7 ms; 0.13 s", "2 to 12 messages", "4.4 d"])
def test_a_figure_is_seen(text: str):
    assert FIGURE.search(text)


@pytest.mark.parametrize(
    "text", ["seed 001's case", "Python 3.11 or newer", "slots=2 means", "port 9431", "5 promises"]
)
def test_what_is_no_figure_is_not(text: str):
    assert not FIGURE.search(text)
