"""Finds what a URL or a name stands for: the four kinds of plug-ins, by entry point and by nothing else.

    udp://0.0.0.0:9431  --scheme-->  entry point `udp` of the group `softmutex.transports`  --from_url-->  a transport
    "wandering"         --name---->  entry point `wandering` of `softmutex.algorithms`      ------------>  a class

An algorithm brings its messages along: whoever loads one (`algorithm`) teaches the wire what it says.

The naive way, importing adapters by hand where they are needed, makes third parties second class and the import of this
library slow. So nothing is looked up before the first node opens, and nothing is imported that is not used.

An instance is accepted wherever a URL is. A package registers its own in `pyproject.toml`:

    [project.entry-points."softmutex.transports"]
    carrier-pigeon = "pigeons:PigeonTransport"        # has a classmethod `from_url(url)`
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast

from softmutex.core import wire
from softmutex.core.errors import ConfigError
from softmutex.core.machine import Algorithm
from softmutex.entries import RegisteredEntry, entries
from softmutex.ports import Membership, Observer, Transport
from softmutex.saying import logger
from softmutex.urls import without_secrets

P = TypeVar("P")

log = logger("plugins")
_LEARNING = threading.Lock()  # threads make mutexes at once, each the first of its algorithm


class Role(StrEnum):
    TRANSPORT = "transport"
    MEMBERSHIP = "membership"
    ALGORITHM = "algorithm"
    OBSERVER = "observer"

    @property
    def group(self) -> str:
        return f"softmutex.{self.value}s"


@cache
def installed(role: Role) -> Mapping[str, RegisteredEntry]:
    """What is installed of a role, by name, in alphabetical order. Looked up once a process."""
    return dict(sorted(entries(role.group).items()))


@cache
def load(role: Role, name: str) -> Any:
    """The object that `name` stands for. What is missing is an error that names the remedy."""
    entry = installed(role).get(name)
    if entry is None:
        raise ConfigError(_explain_unknown(role, name))
    try:
        return entry.load()
    except ImportError as error:
        raise ConfigError(
            f"the {role} {name!r} is installed but cannot be imported ({error}). {_how_to_install(error.name or name)}"
        ) from error


def transport(what: str | Transport) -> Transport:
    return cast(Transport, _by_url(Role.TRANSPORT, what))


def membership(what: str | Membership) -> Membership:
    return cast(Membership, _by_url(Role.MEMBERSHIP, what))


def algorithm(what: str | type[Algorithm]) -> type[Algorithm]:
    machine = load(Role.ALGORITHM, what) if isinstance(what, str) else what
    if not (isinstance(machine, type) and issubclass(machine, Algorithm)):
        raise ConfigError(
            f"algorithm={what!r} is {machine!r}, which is no algorithm. Name one of {_names(Role.ALGORITHM)}, or give "
            "a class derived from softmutex.core.machine.Algorithm."
        )
    if isinstance(what, str) and machine.name != what:
        raise ConfigError(
            f"the algorithm {what!r} is a class that calls itself {machine.name!r}. Register it under its own name: "
            "that is what members tell each other."
        )
    with _LEARNING:
        wire.learn(machine.name, machine.messages)
    return machine


@cache
def load_all_algorithms() -> None:
    """So that the messages of each are known: a peer may use one that nobody here has asked for."""
    for name in installed(Role.ALGORITHM):
        try:
            algorithm(name)
        except Exception as error:  # one that is broken must not make the others unknown
            log.warning("the algorithm %r is installed and cannot be used: %s", name, error)


wire.when_unknown(load_all_algorithms)


def observers(what: Iterable[str | Observer]) -> list[Observer]:
    return [cast(Observer, load(Role.OBSERVER, one)()) if isinstance(one, str) else one for one in what]


def _by_url(role: Role, what: object) -> object:
    if not isinstance(what, str):
        return what
    scheme, separator, _ = what.partition("://")
    if not separator:
        raise ConfigError(
            f"{role}={without_secrets(what)!r} is not a URL. Write scheme://..., with one of these schemes: "
            f"{_names(role)}."
        )
    return load(role, scheme).from_url(what)


def _names(role: Role) -> str:
    return ", ".join(installed(role)) or "none"


def _explain_unknown(role: Role, name: str) -> str:
    import difflib  # slow to import

    near = difflib.get_close_matches(name, installed(role), n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else _how_to_install(name)
    return (
        f"no {role} named {name!r} (installed: {_names(role)}). {remedy} "
        f"One of your own is registered under the entry-point group {role.group!r}."
    )


def _how_to_install(name: str) -> str:
    """The command that brings `name`, where it is one of our own extras; advice otherwise."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        extras = metadata("softmutex").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        extras = []
    extra = name.partition("+")[0].partition(".")[0]
    if extra in extras:
        return f"Run: pip install 'softmutex[{extra}]'."
    return "Install the package that brings it."
