"""What may go wrong in a run, as plain descriptions; `weather.py` makes them happen.

Each is frozen and has a name, so that a scenario with its faults can be written to a trace and read back.
`target` says whom it hits: holder (whoever runs A, else whoever has the token), waiter, passer (who handed the
token to the holder), both (holder and passer at once), last (the highest id, which `bully` elects), other (neither
holder nor waiter), random.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from softmutex.core.errors import ConfigError
from softmutex.core.laws import Weather

TARGETS = ("holder", "waiter", "passer", "both", "first", "last", "other", "random")


@dataclass(frozen=True)
class Fault:
    kind: ClassVar[str] = ""
    weather: ClassVar[Weather] = Weather.FAIR

    def complaints(self) -> list[str]:
        return []


@dataclass(frozen=True)
class TokenLoss(Fault):
    """The next hand-over after each `every_s` loses the token for good."""

    kind: ClassVar[str] = "token-loss"
    weather: ClassVar[Weather] = Weather.LOSS
    every_s: float

    def complaints(self) -> list[str]:
        return _positive("--token-loss-every", self.every_s)


@dataclass(frozen=True)
class Kill(Fault):
    """SIGKILL, each `every_s`. After `restart_s` a newcomer takes the place (None: nobody does).

    `at_message` (OFFER, ACCEPT, COMMIT, ...): the victim is whoever sends the next message of that kind, right after.
    `silent`: its host is gone as well, and no membership tells of it. Else the host refuses what is sent to it.
    """

    kind: ClassVar[str] = "kill"
    weather: ClassVar[Weather] = Weather.DEATHS
    every_s: float
    target: str = "holder"
    restart_s: float | None = 1.0
    times: int | None = None
    at_message: str = ""
    silent: bool = False

    def complaints(self) -> list[str]:
        return _positive("--kill-holder-every", self.every_s) + _target(self.target)


@dataclass(frozen=True)
class Pause(Fault):
    """SIGSTOP, and SIGCONT `length_s` later: messages queue up meanwhile, timers and releases come late."""

    kind: ClassVar[str] = "pause"
    weather: ClassVar[Weather] = Weather.PAUSES
    every_s: float
    length_s: float
    target: str = "holder"
    times: int | None = None

    def complaints(self) -> list[str]:
        return (
            _positive("a pause's every", self.every_s) + _positive("its length", self.length_s) + _target(self.target)
        )


@dataclass(frozen=True)
class Partition(Fault):
    """From `start_s` to `end_s` a share of the group and the rest do not hear each other.

    `one_way`: the share is heard but hears nothing; with `mute` it hears, but is not heard.
    `target` holder: the holder is in the share, of one or more.
    `seen_after_s`: so much later each side's membership drops the other side, and takes it back on healing.
    `every_s`, `times`: the same again, counted from start to start.
    """

    kind: ClassVar[str] = "partition"
    weather: ClassVar[Weather] = Weather.CUTS
    start_s: float
    end_s: float
    share: float = 0.5
    one_way: bool = False
    target: str = "random"
    seen_after_s: float | None = None
    every_s: float = 0.0
    times: int = 1
    mute: bool = False

    def complaints(self) -> list[str]:
        wrong = _target(self.target)
        if not 0 <= self.start_s < self.end_s:
            wrong.append(
                f"a partition from {self.start_s:g} s to {self.end_s:g} s cannot be: give START:END:SHARE with START "
                "before END"
            )
        if not 0 < self.share < 1:
            wrong.append(f"a partition cuts off a share between 0 and 1 of the nodes, not {self.share:g}")
        if self.times > 1 and self.every_s <= self.end_s - self.start_s:
            wrong.append("a partition that comes again must heal before: give a longer every_s")
        return wrong


@dataclass(frozen=True)
class DeadLink(Fault):
    """From `start_s` to `end_s` two nodes do not hear each other, and everybody else hears both.

    `target`: one of the two; the other is anybody, or, of `waiter`, the holder. `one_way`: the first is not heard.
    """

    kind: ClassVar[str] = "dead-link"
    weather: ClassVar[Weather] = Weather.LINKS
    start_s: float
    end_s: float
    target: str = "random"
    one_way: bool = False

    def complaints(self) -> list[str]:
        if 0 <= self.start_s < self.end_s:
            return _target(self.target)
        return [f"a link cannot be dead from {self.start_s:g} s to {self.end_s:g} s: give a start before the end"]


@dataclass(frozen=True)
class Clog(Fault):
    """The links of one node after another take `delay_s` more for `every_s`, then they are freed."""

    kind: ClassVar[str] = "clog"
    weather: ClassVar[Weather] = Weather.LATENESS
    every_s: float
    delay_s: float

    def complaints(self) -> list[str]:
        return _positive("a clog's every", self.every_s) + _positive("its delay", self.delay_s)


@dataclass(frozen=True)
class Replay(Fault):
    """A share of all messages arrives again, unchanged, up to `within_s` later."""

    kind: ClassVar[str] = "replay"
    weather: ClassVar[Weather] = Weather.REPETITION
    share: float
    within_s: float

    def complaints(self) -> list[str]:
        return [] if 0 < self.share <= 1 else [f"a replay repeats a share up to 1 of the messages, not {self.share:g}"]


@dataclass(frozen=True)
class Churn(Fault):
    """Each minute `rate` of the group (0.3: 30 %) leaves in good order, and as many newcomers join."""

    kind: ClassVar[str] = "churn"
    weather: ClassVar[Weather] = Weather.COMINGS
    rate: float

    def complaints(self) -> list[str]:
        return _positive("--churn", self.rate)


@dataclass(frozen=True)
class Batch(Fault):
    """At `at_s` so many newcomers join at once and, where `wants`, each asks once, at once."""

    kind: ClassVar[str] = "batch"
    weather: ClassVar[Weather] = Weather.COMINGS
    at_s: float
    count: int
    wants: bool = True

    def complaints(self) -> list[str]:
        return [] if self.at_s >= 0 and self.count > 0 else ["a batch is of at least one, at 0 s or later"]


@dataclass(frozen=True)
class Lives(Fault):
    """Each `every_s` a newcomer joins, asks once if it `wants`, and leaves in good order after `life_s`, or A."""

    kind: ClassVar[str] = "lives"
    weather: ClassVar[Weather] = Weather.COMINGS
    every_s: float
    life_s: float
    wants: bool = True

    def complaints(self) -> list[str]:
        return _positive("the lives' every", self.every_s) + _positive("a life", self.life_s)


@dataclass(frozen=True)
class Clocks(Fault):
    """A share of the nodes has a clock that is off by up to `offset_s` from the start, or runs at another rate.

    `jump_s`: at `at_s` it leaps ahead; back it never goes (`events.N2`).
    """

    kind: ClassVar[str] = "clocks"
    weather: ClassVar[Weather] = Weather.CLOCKS
    share: float = 0.5
    offset_s: float = 0.0
    rate: float = 1.0
    jump_s: float = 0.0
    at_s: float = 0.0

    def complaints(self) -> list[str]:
        wrong = _positive("the clocks' rate", self.rate)
        if self.jump_s < 0:
            wrong.append(f"a machine's clock never goes back, so it cannot jump by {self.jump_s:g} s")
        if not 0 < self.share <= 1:
            wrong.append(f"a share up to 1 of the clocks is wrong, not {self.share:g}")
        return wrong


FAULTS: dict[str, type[Fault]] = {
    each.kind: each for each in (TokenLoss, Kill, Pause, Partition, DeadLink, Clog, Replay, Churn, Batch, Lives, Clocks)
}


def fault_to_json(fault: Fault) -> dict[str, Any]:
    return {"kind": fault.kind, **dataclasses.asdict(fault)}


def fault_from_json(data: Mapping[str, Any]) -> Fault:
    fields = dict(data)
    kind = fields.pop("kind", "")
    if kind not in FAULTS:
        raise ConfigError(f"no fault named {kind!r} (there are {', '.join(FAULTS)})")
    try:
        return FAULTS[kind](**fields)
    except TypeError as error:
        raise ConfigError(f"the fault {kind!r} cannot be made of {fields}: {error}") from error


def _positive(name: str, value: float) -> list[str]:
    return [] if value > 0 else [f"{name} is {value:g}: give a number above 0"]


def _target(target: str) -> list[str]:
    return [] if target in TARGETS else [f"no target {target!r} (there are {', '.join(TARGETS)})"]
