"""What the installed packages have registered for softmutex, as `importlib.metadata.entry_points` would find it.

    each directory of sys.path --> *.dist-info/entry_points.txt --> [softmutex.transports]  udp = "module:attribute"

What it decides: a command that starts does not pay for the papers of each package that is there. The naive way,
`importlib.metadata`, brings a parser of mail headers along, and costs a sixth of a start where 160 packages are. So the
one file is looked into, and taken apart only where it names a group of ours. Where a place is no directory (a zip file
may have packages in it, too), `importlib.metadata` is asked as ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from softmutex.core.tuples import NamedTuple

PREFIX = "softmutex."
ENDINGS = (".dist-info", ".egg-info")


class RegisteredEntry(NamedTuple):
    name: str
    value: str  # package.module, or package.module:attribute
    group: str

    def load(self) -> Any:
        module, _, attributes = self.value.partition(":")
        found: Any = import_module(module.strip())
        for attribute in attributes.split("[")[0].strip().split(".") if attributes else ():
            found = getattr(found, attribute)
        return found


def entries(group: str) -> Mapping[str, RegisteredEntry]:
    """What is registered in a group, by name."""
    return {each.name: each for each in registered(tuple(sys.path)) if each.group == group}


@cache
def registered(places: tuple[str, ...]) -> tuple[RegisteredEntry, ...]:
    """In all groups of ours. Looked up once a process: as long as `sys.path` is the same."""
    if any(map(os.path.isfile, places)):
        from importlib.metadata import entry_points  # slow to import

        found = entry_points()
        ours = [each for group in filter(is_ours, found.groups) for each in found.select(group=group)]
        return tuple(RegisteredEntry(each.name, each.value, each.group) for each in ours)
    return tuple(each for text in _files(places) if f"[{PREFIX}" in text for each in parsed(text))


def is_ours(group: str) -> bool:
    return group.startswith(PREFIX)


def _files(places: tuple[str, ...]) -> Iterator[str]:
    """Of each package the first one that is found: that is the one which is imported."""
    seen: set[str] = set()
    for place in dict.fromkeys(places):
        try:
            inside = sorted(os.listdir(place or "."))
        except OSError:
            continue
        for each in inside:
            package = each.partition("-")[0].lower()
            if not each.endswith(ENDINGS) or package in seen:
                continue
            seen.add(package)
            try:
                with open(os.path.join(place, each, "entry_points.txt"), encoding="utf-8") as file:
                    yield file.read()
            except (OSError, UnicodeDecodeError):  # it registers nothing
                continue


def parsed(text: str) -> Iterator[RegisteredEntry]:
    """Of a file as the packaging specification has it: sections, and `name = value` in them."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif is_ours(group) and line and line[0] not in "#;":
            name, equals, value = line.partition("=")
            if equals:
                yield RegisteredEntry(name.strip(), value.strip(), group)
