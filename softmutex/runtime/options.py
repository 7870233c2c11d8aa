"""The keywords of `SoftMutex`, `Node` and `Node.mutex`, once for asyncio and for threads.

A type checker reads the declarations; a running program is told of an unknown keyword with the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict

from softmutex.core.errors import ConfigError
from softmutex.core.machine import Algorithm
from softmutex.core.timing import Timing
from softmutex.ports import Membership, Observer, Transport
from softmutex.runtime.config import SETTINGS, read_one, refuse_unknown

OnOverrun: TypeAlias = Literal["warn", "release", "cancel"] | Callable[..., Any]
OnLost: TypeAlias = Literal["continue", "cancel"] | Callable[..., Any]
WhenIsolated: TypeAlias = Literal["wait", "proceed", "raise"]


class MutexOptions(TypedDict, total=False):
    """Durations in seconds."""

    timeout: float | None  # how long to wait; None: for ever; 0: only try
    slots: int  # how many may hold it at once; the same for all members
    max_hold: float | None  # a hold that takes longer without touch() overruns
    on_overrun: OnOverrun  # a function is given the Hold
    on_lost: OnLost
    when_isolated: WhenIsolated  # what becomes of those who wait while too few others answer
    algorithm: str | type[Algorithm]  # the same for all members
    timing: Timing  # the same for all members
    min_interval: float | None  # who held it less than that ago yields to others
    options: Mapping[str, Any]  # switches of the algorithm's own


class SharedNodeOptions(TypedDict, total=False):
    transport: str | Transport
    membership: str | Membership
    key: bytes | str | PathLike[str]  # the group key itself, or the path of a file that holds it
    key_file: str | PathLike[str]  # the same as `key=PATH`, as it is called in the environment and in files
    insecure: bool
    identity: str | PathLike[str]  # the file of this member's own key; signs its hand-overs
    authority: str  # who gives certificates: a registry's URL; else the membership does
    require_identity: bool  # take in only members for whom the authority vouches
    group: str
    advertise: str  # host:port under which others reach this node
    thread: bool  # run the node on another thread, where a blocked loop does not hurt it
    leave_timeout: float  # how long a leaving node may take to hand everything over
    observers: Sequence[str | Observer]
    config: str | PathLike[str]  # the configuration file


class NodeOptions(SharedNodeOptions, total=False):
    name: str  # what people call this node


class OneShotOptions(SharedNodeOptions, MutexOptions, total=False):
    node_name: str


def read_mutex_options(given: Mapping[str, Any]) -> dict[str, Any]:
    return read(given, MutexOptions)


def read_node_options(given: Mapping[str, Any]) -> dict[str, Any]:
    return read(given, NodeOptions)


def read_one_shot_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the node, and those of the mutex."""
    refuse_strangers(given, OneShotOptions)
    mutex = {name: value for name, value in given.items() if name in MutexOptions.__annotations__}
    node = {name: value for name, value in given.items() if name not in MutexOptions.__annotations__}
    if "node_name" in node:
        node["name"] = node.pop("node_name")
    return read(node, NodeOptions), read(mutex, MutexOptions)


def read(given: Mapping[str, Any], declared: type) -> dict[str, Any]:
    """The settings that were given, by the names of `config.SETTINGS`, checked as far as they can be alone."""
    refuse_strangers(given, declared)
    if given.get("key") is not None and given.get("key_file") is not None:
        raise ConfigError("key and key_file are both given, and mean the same. Give one of them.")
    result = {name: value for name, value in given.items() if name not in ("timing", "config")}
    timing = given.get("timing")
    if timing is not None:
        result |= {f"timing.{each.name}": getattr(timing, each.name) for each in fields(timing)}
    return {name: read_one(SETTINGS[name], value, "keyword") for name, value in result.items() if value is not None}


def refuse_strangers(given: Mapping[str, Any], declared: type) -> None:
    for name in given:
        if name not in declared.__annotations__:
            refuse_unknown(name, declared.__annotations__, "keyword", "setting")
