"""The code blocks of a page, and what its author says of them to this suite in comments right before (or after) one.

<!-- given: ... -->        a statement that the reader's own program has: run first
<!-- here: A -> B -->      what cannot be so on a test machine (an address) is B here; A must occur
<!-- run by PATH -->       not run from the page: that test does it
<!-- then: ... -->         run after the block above
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(
    r"(?P<before>(?:[ ]*<!--.*?-->\s*?\n)*)(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)\n[ ]*```\n"
    r"(?P<after>(?:<!-- then:.*?-->\s*?\n)*)",
    re.DOTALL,
)
COMMENT = re.compile(r"<!-- (given|here|run by|then):? (.*?) -->", re.DOTALL)


class Block(NamedTuple):
    language: str
    code: str
    given: tuple[str, ...]
    then: tuple[str, ...]
    run_by: tuple[str, ...]
    line: int

    @property
    def file(self) -> str:
        """What a whole program is called by its first line, `# NAME.py`; empty where it is a piece of one."""
        found = re.match(r"# (\w+\.py)\n", self.code)
        return found[1] if found and self.language == "python" else ""


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text() + "\n"
    for found in FENCE.finditer(text):
        said: dict[str, list[str]] = {"given": [], "here": [], "run by": [], "then": []}
        for kind, what in COMMENT.findall(found["before"] + found["after"]):
            said[kind].append(what)
        code = textwrap.dedent(found["indent"] + found["code"])
        for change in said["here"]:
            there, _, here = change.partition(" -> ")
            assert there in code, f"{page.name}: {there!r} is not in the block that it changes"
            code = code.replace(there, here)
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(found["language"], code, tuple(said["given"]), tuple(said["then"]), tuple(said["run by"]), line)


async def run(code: str, where: str, names: dict[str, Any]) -> None:
    """As in a program whose top level may await."""
    compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    made = eval(compiled, names)
    if inspect.iscoroutine(made):
        await made
