"""The options of a plug-in are those of `SoftMutex`; a plug-in that keeps a node open gives each its part of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softmutex.runtime.config import resolve
from softmutex.runtime.options import read_mutex_options
from softmutex.runtime.terms import plan

OF_NODE = (
    "transport",
    "membership",
    "key",
    "insecure",
    "group",
    "advertise",
    "thread",
    "leave_timeout",
    "observers",
    "config",
)


def split(options: Mapping[str, Any], default_name: str) -> tuple[Any, Any]:
    """Those of the node and those of the mutex; unknown ones stay with the mutex, which refuses them by name."""
    of_node = {key: options[key] for key in OF_NODE if key in options}
    of_mutex = {key: value for key, value in options.items() if key not in OF_NODE and key != "node_name"}
    return {"name": options.get("node_name", default_name), **of_node}, of_mutex


def refuse_what_never_works(name: str, of_node: Mapping[str, Any], of_mutex: Mapping[str, Any]) -> None:
    """By all that keywords, environment and files say, when the plug-in starts: no job finds out at night."""
    keywords = {key: value for key, value in of_node.items() if key != "config"}
    plan(name, resolve(keywords, file=of_node.get("config")).for_mutex(name, read_mutex_options(of_mutex)))
