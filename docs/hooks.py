"""What is made while the docs are built: pictures and tables that come from the program, so they are never stale.

mkdocs calls the functions by their names.
"""

from __future__ import annotations

import collections.abc
import contextlib
import importlib.util
import io
import re
import types
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from softmutex.cli import main
from softmutex.runtime.options import SETTINGS, MutexOptions, NodeOptions, OneShotOptions

HERE = Path(__file__).parent
PROOF = ("constant", "shown by")  # columns for who doubts
ESCAPED = "\\|"
OPTIONS: dict[str, Any] = {"SoftMutexOptions": OneShotOptions, "NodeOptions": NodeOptions, "MutexOptions": MutexOptions}
ELSE = {
    "timing": "the pace of the algorithm: `Timing`",
    "config": "the configuration file; else the first that is found",
}
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
    figures = sorted(path.name for path in (HERE / "figures").glob("*.md") if path.name != "index.md")
    explanation.append({"Figures": ["figures/index.md", *(f"figures/{name}" for name in figures)]})
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
    their list, `{{ options of Node }}` for its keywords. What only a test reads of a table is folded."""
    said = {"settings": settings, "help": helps, "wire": wire, "decisions": decisions}
    said |= {f"options of {each.removesuffix('Options')}": partial(options, each) for each in OPTIONS}
    for name, written in said.items():
        if (mark := f"{{{{ {name} }}}}") in markdown:
            markdown = markdown.replace(mark, written())
    return fold(markdown)


def fold(markdown: str) -> str:
    """Tables with a column `shown by`: what is promised stands first, by which test it is shown is folded below it."""
    out, rows = [], list[list[str]]()

    def flush() -> None:
        if not rows:
            return
        keep = [place for place, name in enumerate(rows[0]) if name not in PROOF]
        proof = [0, *(place for place, name in enumerate(rows[0]) if name in PROOF)]
        out.extend([line(row, keep) for row in rows])
        out.extend(["", '??? note "Shown by which test"', "", *("    " + line(row, proof) for row in rows), ""])
        rows.clear()

    for each in markdown.splitlines():
        cells = [cell.strip() for cell in each.strip().strip("|").split(" | ")] if each.startswith("| ") else []
        if cells and (rows or "shown by" in cells):
            rows.append(cells)
        else:
            flush()
            out.append(each)
    flush()
    return "\n".join(out)


def line(cells: list[str], places: list[int]) -> str:
    return f"| {' | '.join(cells[place] for place in places)} |"


def options(name: str) -> str:
    """The keywords of a constructor, as they are declared."""
    rows = ["| keyword | takes | default | what it says | since |", "| --- | --- | --- | --- | --- |"]
    keywords: dict[str, Any] = OPTIONS[name].__annotations__
    for keyword, kind in keywords.items():
        setting = SETTINGS.get({"node_name": "name"}.get(keyword, keyword))
        if setting is not None:
            default = "`None`" if setting.default is None else f"`{setting.default!r}`"
            said = setting.help
        else:
            default, said = "`None`", ELSE[keyword]
        cells = [f"`{keyword}`", takes(kind), default, said, setting.since if setting else "0.1"]
        rows.append(f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |")
    return "\n".join(rows)


def takes(kind: Any) -> str:
    """What a person may give, by the annotation."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(kind, ForwardRef):
        return f"`{kind.__forward_arg__}`"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(takes(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each!r}`" for each in get_args(kind))
    if kind is types.NoneType:
        return "`None`"
    if get_origin(kind) is collections.abc.Callable:
        return "a function"
    known = getattr(kind, "__name__", str(kind))
    return (
        f"`{known}`"
        if get_origin(kind) is None
        else f"`{str(kind).replace('collections.abc.', '').replace('typing.', '')}`"
    )


def wire() -> str:
    page: str = load("wire_page").page()
    return page


def decisions() -> str:
    titles = {path.name: path.read_text().splitlines()[0].removeprefix("# ") for path in decided()}
    return "\n".join(f"- [{title}]({name})" for name, title in titles.items())


def settings() -> str:
    rows = ["| setting | default | what it says | environment | since |", "| --- | --- | --- | --- | --- |"]
    for each in SETTINGS.values():
        default = "" if each.default is None else f"`{each.default}`"
        variable = "only as a keyword" if each.keyword_only else f"`{each.variable}`"
        said = each.help.replace("|", "\\|")
        rows.append(f"| `{each.name}` | {default} | {said} | {variable} | {each.since} |")
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
