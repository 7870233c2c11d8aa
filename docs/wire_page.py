"""The page on the wire, from the declarations: frames, sealing, every message with its fields, bounds and bytes.

python docs/wire_page.py        prints it; the site has it by way of hooks.py
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from softmutex import plugins
from softmutex.core import hint as hints_module
from softmutex.core import wire
from softmutex.core.events import Escort, Ticket, Token
from softmutex.core.messages import HANDOVER, OF_NODE, name_of
from softmutex.runtime import sealing

HEAD = """## Versions

Byte 2 of each frame is the version, {version} today; bytes 0 to 2 mean the same in every version to come. A node that
gets a frame of another version drops it, counts it (`version`), tells its user once which address speaks what, and
answers by a hint, where its list of members names that host. So
the members of a group are changed to a new version all at once, or in two groups. Within a version a message never
changes. One of a number that a node does not know is dropped and counted, so new ones may be added: who sends them
bears that they are not answered.
"""


VECTORS = Path(__file__).parent.parent / "tests" / "wire" / "vectors.json"


def page() -> str:
    kinds, examples = own_messages(), typical()
    parts = [
        HEAD.format(version=wire.VERSION),
        *module("Frames", wire),
        *module("Sealing", sealing),
        *module("Hints", hints_module),
    ]
    parts += ["## Records\n", "What fields of several messages are made of.\n"]
    records = dict.fromkeys([Token, Ticket, Escort])
    for cls in kinds.values():
        records |= dict.fromkeys(each for each in inside(cls) if each not in records)
    parts += [part for cls in records for part in message(f"`{cls.__name__}`", cls)]
    parts += ["## Messages\n"]
    for number, cls in sorted(kinds.items()):
        parts += message(f"{number} {name_of(cls)}", cls)
        if name_of(cls) in examples:
            parts.append(f"A frame of it, unsealed: `{examples[name_of(cls)]}`\n")
    return "\n".join(parts).rstrip() + "\n"


def own_messages() -> Mapping[int, type]:
    """Those of this package, by number."""
    role = plugins.Role.ALGORITHM
    own = [name for name, entry in plugins.installed(role).items() if entry.value.startswith("softmutex.")]
    numbers = {*HANDOVER, *OF_NODE, *(number for name in own for number in plugins.algorithm(name).messages)}
    return {number: cls for number, cls in wire.kinds().items() if number in numbers}


def typical() -> Mapping[str, str]:
    """A frame of each message, from the vectors, which have more."""
    valid = json.loads(VECTORS.read_text())["valid"]
    return {
        name: each["hex"] for each in valid for name, _, size in [each["name"].partition(", ")] if size == "typical"
    }


def module(title: str, of: types.ModuleType) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"From `{of.__name__}`:\n"
    yield f"```text\n{inspect.cleandoc(of.__doc__ or '')}\n```\n"


def message(title: str, cls: type) -> Iterator[str]:
    yield f"### {title}\n"
    said = inspect.getdoc(cls) or ""
    if said and not said.startswith(f"{cls.__name__}("):
        yield f"{said}\n"
    hints = hints_of(cls)
    if not hints:
        yield "No fields.\n"
        return
    yield "| field | as |\n| --- | --- |"
    yield "\n".join(f"| `{name}` | {spelled(hint)} |" for name, hint in hints.items()) + "\n"


def hints_of(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls._fields}  # type: ignore[attr-defined]


def spelled(hint: Any) -> str:
    """As a person reads it: `u64`, `text, at most 64 bytes`."""
    if get_origin(hint) is Annotated:
        base, mark = get_args(hint)
        if not mark.startswith("<="):
            return f"`{mark}`"
        if base in (bytes, str):
            return f"`{'bytes' if base is bytes else 'text'}`, at most {mark[2:]} bytes"
        return f"tuple of at most {mark[2:]}: {spelled(get_args(base)[0])}"
    if get_origin(hint) in (Union, types.UnionType):
        return f"{spelled(next(part for part in get_args(hint) if part is not types.NoneType))}, or none"
    if issubclass(hint, IntEnum):
        return "enum: " + ", ".join(f"{each.value} {each.name}" for each in hint)
    return f"record `{hint.__name__}`"


def inside(cls: type) -> Iterator[type]:
    """The records that it is made of."""
    for hint in hints_of(cls).values():
        parts = [hint]
        while parts:
            part = parts.pop()
            if get_origin(part) is Annotated:
                parts += [each for each in get_args(get_args(part)[0]) if each is not Ellipsis]
            elif get_args(part):
                parts += [each for each in get_args(part) if each is not types.NoneType]
            elif isinstance(part, type) and hasattr(part, "_fields"):
                yield part
                yield from inside(part)


if __name__ == "__main__":
    sys.stdout.write(page())
