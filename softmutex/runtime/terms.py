"""What all members must agree on for one mutex, and what each may decide for itself.

`Terms` are the group's: algorithm, slots, timing. Two members that differ in them compete by different rules, and the
naive way (each runs what it was told) lets nobody notice until the resource is overloaded. So terms have a fingerprint
that travels, and can be sent and compared; the difference is told in words.

`Policy` is one application's own: how long it may hold, and what becomes of it when something goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.core.events import Duration, from_seconds, to_seconds
from softmutex.core.machine import Algorithm, WhenIsolated
from softmutex.core.messages import Description, Standing
from softmutex.core.names import NAME_MAX_BYTES
from softmutex.core.timing import Timing
from softmutex.core.tuples import NamedTuple
from softmutex.runtime.config import Settings

GATE = " (gate)"


@dataclass(frozen=True, slots=True)
class Terms:
    """What all members of a mutex must agree on."""

    algorithm: str
    slots: int = 1
    timing: Timing = field(default_factory=Timing)
    options: str = ""  # JSON with sorted keys: the algorithm's own switches
    machine: type[Algorithm] | None = field(default=None, compare=False)  # where it is no installed one

    def fingerprint(self) -> int:
        """53 bits that differ when any of the terms does."""
        shown = json.dumps([self.algorithm, self.slots, *times(self.timing), self.options])
        return int.from_bytes(hashlib.blake2b(shown.encode(), digest_size=8).digest(), "big") >> 11

    def difference(self, other: Terms) -> str:
        """In words, empty when there is none: `slots is 2 there and 1 here`."""
        mine, others = dict(self._shown()), dict(other._shown())
        return ", ".join(
            f"{name} is {others[name]} there and {mine[name]} here" for name in mine if mine[name] != others[name]
        )

    def _shown(self) -> list[tuple[str, Any]]:
        timing = [(each.name, getattr(self.timing, each.name)) for each in fields(self.timing)]
        return [("algorithm", self.algorithm), ("slots", self.slots), *timing, ("options", self.options or "{}")]

    def describe(self, standing: Standing) -> Description:
        op, nodes_max, skip, min_interval, max_interval = times(self.timing)
        return Description(
            standing, self.algorithm, self.slots, op or 0, nodes_max, skip, min_interval, max_interval, self.options
        )

    @classmethod
    def described(cls, by: Description) -> Terms:
        def seconds(value: Duration | None) -> float | None:
            return None if value is None else to_seconds(value)

        timing = Timing(
            to_seconds(by.op), by.nodes_max, seconds(by.skip), seconds(by.min_interval), seconds(by.max_interval)
        )
        return cls(by.algorithm, by.slots, timing, by.options)

    def machine_class(self) -> type[Algorithm]:
        return self.machine or plugins.algorithm(self.algorithm)

    def machine_options(self) -> dict[str, Any]:
        return dict(json.loads(self.options)) if self.options else {}

    def holds_of_one_node(self) -> int:
        return self.machine_class().holds_of_one_node(self.machine_options())


def times(timing: Timing) -> tuple[Duration, int, Duration | None, Duration | None, Duration | None]:
    def nanoseconds(value: float | None) -> Duration | None:
        return None if value is None else from_seconds(value)

    return (
        from_seconds(timing.op),
        timing.nodes_max,
        nanoseconds(timing.skip),
        nanoseconds(timing.min_interval),
        nanoseconds(timing.max_interval),
    )


class Policy(NamedTuple):
    timeout_s: float | None = None
    max_hold: Duration | None = None
    on_overrun: str | Callable[..., Any] = "warn"
    on_lost: str | Callable[..., Any] = "continue"
    when_isolated: WhenIsolated = "wait"
    purpose: str | None = None
    min_members: int = 1
    isolated_timeout: Duration | None = None
    weight: int | None = None
    priority: int = 0


class Plan(NamedTuple):
    """One mutex as one application wants it."""

    name: str
    terms: Terms
    policy: Policy
    gate: Plan | None = None  # where those come in who take several slots (weighing.py)


def plan(name: str, settings: Settings) -> Plan:
    max_hold_s, isolated_s = settings["max_hold"], settings["isolated_timeout"]
    algorithm, machine = settings["algorithm"], None
    if not isinstance(algorithm, str):
        algorithm, machine = algorithm.name, algorithm
    timing = Timing(**{each.name: settings[f"timing.{each.name}"] for each in fields(Timing)})
    options = dict(settings["options"])
    if settings["min_interval"] is not None:
        options["min_interval"] = settings["min_interval"]
    ageing, weight = settings["ageing"], settings["weight"]
    check_priority(name, settings["priority"], ageing, machine or plugins.algorithm(algorithm))
    if ageing:
        options["ageing"] = ageing  # of several slots, too: who does not say it goes past the gate
        if settings["slots"] > 1:
            weight = weight or 1  # who comes first is said at the gate, of one slot
    if settings["slots"] > 1 and has_switch(machine or plugins.algorithm(algorithm), "each"):
        options.setdefault("each", settings["slots"])  # one node may use all of them, where nobody says otherwise
    terms = Terms(algorithm, settings["slots"], timing, json.dumps(options, sort_keys=True) if options else "", machine)
    policy = Policy(
        settings["timeout"],
        None if max_hold_s is None else from_seconds(max_hold_s),
        settings["on_overrun"],
        settings["on_lost"],
        settings["when_isolated"],
        settings["purpose"],
        settings["min_members"],
        None if isolated_s == math.inf else from_seconds(isolated_s),
        weight,
        settings["priority"],
    )
    return Plan(name, terms, policy, None if weight is None else gate_of(name, terms, policy, options))


def gate_of(name: str, terms: Terms, policy: Policy, options: Mapping[str, Any]) -> Plan:
    """The mutex at which those wait who say a weight. All members make the same of it."""
    weight, most = policy.weight or 1, min(terms.slots, terms.holds_of_one_node() if terms.slots > 1 else 1)
    if weight > most:
        limit = f"slots is {terms.slots}" if most == terms.slots else f"one node may use {most} of {terms.slots} slots"
        raise ConfigError(f"the mutex {name!r}: a hold of weight {weight} never fits, for {limit}.")
    one = {key: value for key, value in options.items() if key != "each"}
    terms = replace(terms, slots=1, options=json.dumps(one, sort_keys=True) if one else "")
    return Plan(gate_name(name), terms, policy._replace(max_hold=None, weight=None))


def gate_name(name: str) -> str:
    named = f"{name}{GATE}"
    if len(named.encode()) <= NAME_MAX_BYTES:
        return named
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{name.encode()[:32].decode(errors='ignore')}~{digest}{GATE}"


def has_switch(machine: type[Algorithm], name: str) -> bool:
    return any(option.name == name for option in fields(machine.Options))


def check_priority(name: str, priority: int, ageing: float | None, machine: type[Algorithm]) -> None:
    """Nobody believes to come first where the algorithm, or the group, knows no priorities."""
    if (priority or ageing is not None) and not has_switch(machine, "ageing"):
        raise ConfigError(
            f"the mutex {name!r}: the algorithm {machine.name!r} has no priorities. "
            "Leave out priority and ageing, or use algorithm 'wandering'."
        )
    if priority and not ageing:
        raise ConfigError(
            f"the mutex {name!r} has no priorities: let all its members say what one is worth. "
            "With ageing=60 each step of priority counts as a minute of waiting."
        )


def refusal(name: str, who: str, difference: str) -> ConfigError:
    return ConfigError(
        f"the mutex {name!r} is run by {who} with other settings: {difference}. Give all members the same ones."
    )
