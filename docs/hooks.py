"""What is made while the docs are built: pictures and tables that come from the program, so they are never stale.

mkdocs calls the functions by their names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from softmutex.cli import main
from softmutex.runtime.options import SETTINGS

HERE = Path(__file__).parent
COMMANDS = (
    "run",
    "lead",
    "agent",
    "init",
    "evict",
    "history",
    "status",
    "doctor",
    "demo",
    "registry",
    "key",
    "identity",
    "ban",
    "slurm",
    "bench",
    "sim run",
    "sim reproduce",
    "sim compare",
    "sim replay",
    "sim check",
)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_config(config: Any) -> Any:
    """Each decision has its place in the navigation by being there."""
    explanation = next(part["Explanation"] for part in config.nav if isinstance(part, dict) and "Explanation" in part)
    explanation.append({"Decisions": ["decisions/index.md", *(f"decisions/{path.name}" for path in decided())]})
    return config


def decided() -> list[Path]:
    return sorted((HERE / "decisions").glob("[0-9]*.md"))


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    picture = load("moving_picture")
    files.append(File.generated(config, "pictures/token.svg", content=picture.draw(picture.story())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`{{ settings }}`, `{{ help }}` and `{{ wire }}` stand for what the program says of itself, `{{ decisions }}` for
    their list."""
    said = {"settings": settings, "help": helps, "wire": wire, "decisions": decisions}
    for name, written in said.items():
        if (mark := f"{{{{ {name} }}}}") in markdown:
            markdown = markdown.replace(mark, written())
    return markdown


def wire() -> str:
    page: str = load("wire_page").page()
    return page


def decisions() -> str:
    titles = {path.name: path.read_text().splitlines()[0].removeprefix("# ") for path in decided()}
    return "\n".join(f"- [{title}]({name})" for name, title in titles.items())


def settings() -> str:
    rows = ["| setting | default | what it says | environment |", "| --- | --- | --- | --- |"]
    for each in SETTINGS.values():
        default = "" if each.default is None else f"`{each.default}`"
        variable = "only as a keyword" if each.keyword_only else f"`{each.variable}`"
        said = each.help.replace("|", "\\|")
        rows.append(f"| `{each.name}` | {default} | {said} | {variable} |")
    return "\n".join(rows)


def helps() -> str:
    parts = []
    for command in COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*command.split(), "--help"])
        text = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue())
        parts.append(f"## `softmutex {command}`\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)
