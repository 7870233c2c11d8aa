"""The settings of `softmutex.runtime.options` as flags: every command that joins or asks a group has the same ones.

A flag counts as a keyword does in Python: it goes before the environment, the file and the URL's query.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from softmutex import values
from softmutex.runtime.config import Settings, resolve, with_places
from softmutex.runtime.options import SETTINGS, read_one

NODE: Final = tuple(name for name, each in SETTINGS.items() if each.flag and each.of == "node")
MUTEX: Final = tuple(name for name, each in SETTINGS.items() if each.flag and each.of == "mutex")


METAVARS: Final[dict[Any, str]] = {
    values.count: "K",
    values.duration_s: "2h",
    values.duration_or_none_s: "2h",
    values.duration_or_never_s: "10m",
    values.adapter: "URL",
    values.path: "FILE",
    values.priority: "0..9",
}
# What is not a URL, though it is read like one.
NAMES: Final = {"algorithm": "NAME", "when_isolated": "wait|proceed|raise", "advertise": "HOST:PORT", "group": "NAME"}


def add_node_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the group", "As in Python, the environment (SOFTMUTEX_GROUP, ...) and the file.")
    group.add_argument("--config", metavar="FILE", help="the file; else softmutex.toml or pyproject.toml here")
    group.add_argument("--node-name", metavar="NAME", help=SETTINGS["name"].help)
    add_flags(group, NODE)


def add_mutex_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser.add_argument_group("the mutex", "The same for all members."), MUTEX)


def add_flags(parser: argparse._ArgumentGroup, names: tuple[str, ...]) -> None:
    for name in names:
        flag, setting = "--" + name.replace("_", "-"), SETTINGS[name]
        if setting.default is False:
            parser.add_argument(flag, action="store_const", const=True, help=setting.help)
        else:
            says = setting.help.replace("a URL or an instance", "a URL")  # here nobody can give an instance
            parser.add_argument(flag, metavar=NAMES.get(name) or METAVARS.get(setting.read, "TEXT"), help=says)


def group_settings(arguments: argparse.Namespace) -> Settings:
    """What is said of the group and the node, or `ConfigError`. What follows from that nobody has looked at yet."""
    keywords = {name: getattr(arguments, name) for name in NODE} | {"name": arguments.node_name}
    return resolve(keywords, file=arguments.config)


def node_settings(arguments: argparse.Namespace) -> Settings:
    """What is in force for the node, or `ConfigError`."""
    return with_places(group_settings(arguments))


def mutex_keywords(arguments: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """The flags about the mutex that were given, read."""
    given = {name: getattr(arguments, name) for name in MUTEX} | more
    return {name: read_one(SETTINGS[name], raw, "flag") for name, raw in given.items() if raw is not None}
