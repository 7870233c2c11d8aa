"""What may go wrong in a run, as plain descriptions; `weather.py` makes them happen.

Each is frozen and has a name, so that a scenario with its faults can be written to a trace and read back.
`target` says whom it hits: holder (whoever runs A, else whoever has the token), waiter, passer (who handed the
token to the holder), other (neither holder nor waiter), random, or both (holder and passer at once).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from softmutex.core.errors import ConfigError

TARGETS = ("holder", "waiter", "passer", "other", "random", "both")


@dataclass(frozen=True)
class Fault:
    kind: ClassVar[str] = ""

    def complaints(self) -> list[str]:
        return []


@dataclass(frozen=True)
class TokenLoss(Fault):
    """The next hand-over after each moment loses the token for good."""

    kind: ClassVar[str] = "token-loss"
    every_s: float

    def complaints(self) -> list[str]:
        return _positive("--token-loss-every", self.every_s)


@dataclass(frozen=True)
class Kill(Fault):
    """SIGKILL. After `restart_s` a newcomer takes the place (None: nobody does)."""

    kind: ClassVar[str] = "kill"
    every_s: float
    target: str = "holder"
    restart_s: float | None = 1.0
    times: int | None = None  # how often; None: until the end
    at_message: str = ""  # wait for the next message of this kind (TOKEN, ACK, COMMIT, ...) and kill its sender

    def complaints(self) -> list[str]:
        return _positive("--kill-holder-every", self.every_s) + _target(self.target)


@dataclass(frozen=True)
class Pause(Fault):
    """SIGSTOP, and SIGCONT `length_s` later: messages queue up meanwhile, timers and releases come late."""

    kind: ClassVar[str] = "pause"
    every_s: float
    length_s: float
    target: str = "holder"
    times: int | None = None

    def complaints(self) -> list[str]:
        return _positive("the pause's every", self.every_s) + _target(self.target)


@dataclass(frozen=True)
class Partition(Fault):
    """From `start_s` to `end_s` a share of the group and the rest do not hear each other.

    `one_way`: the share is heard but hears nothing. `target` holder: the holder is on the share's side.
    With `seen_after_s` each side's membership drops the other side after so long, and takes it back on healing.
    """

    kind: ClassVar[str] = "partition"
    start_s: float
    end_s: float
    share: float = 0.5
    one_way: bool = False
    target: str = "random"
    seen_after_s: float | None = None
    every_s: float | None = None  # again and again
    times: int = 1

    def complaints(self) -> list[str]:
        wrong = _target(self.target)
        if not 0 <= self.start_s < self.end_s:
            wrong.append(
                f"a partition from {self.start_s:g} s to {self.end_s:g} s cannot be: give START:END:SHARE with START "
                "before END"
            )
        if not 0 < self.share < 1:
            wrong.append(f"a partition cuts off a share between 0 and 1 of the nodes, not {self.share:g}")
        return wrong


@dataclass(frozen=True)
class Churn(Fault):
    """Each minute `rate` of the group (0.3: 30 %) leaves in good order, and as many newcomers join."""

    kind: ClassVar[str] = "churn"
    rate: float

    def complaints(self) -> list[str]:
        return _positive("--churn", self.rate)


@dataclass(frozen=True)
class Weather(Fault):
    """From `start_s` to `end_s` the network is another one. What is None stays as it is."""

    kind: ClassVar[str] = "weather"
    start_s: float
    end_s: float
    delay_s: float | None = None
    loss: float | None = None
    target: str = ""  # only messages from and to this node; "": all

    def complaints(self) -> list[str]:
        return _target(self.target) if self.target else []


@dataclass(frozen=True)
class Clocks(Fault):
    """A share of the nodes (every `1/share`-th) has a clock that is wrong from the start, or jumps at `at_s`."""

    kind: ClassVar[str] = "clocks"
    share: float = 0.5
    offset_s: float = 0.0
    rate: float = 1.0
    jump_s: float = 0.0  # forwards only: the clocks of machines never go back (N2)
    at_s: float = 0.0

    def complaints(self) -> list[str]:
        wrong = _positive("the clocks' rate", self.rate)
        if self.jump_s < 0:
            wrong.append(f"a machine's clock never goes back, so it cannot jump by {self.jump_s:g} s")
        return wrong


FAULTS: dict[str, type[Fault]] = {
    each.kind: each for each in (TokenLoss, Kill, Pause, Partition, Churn, Weather, Clocks)
}


def fault_to_json(fault: Fault) -> dict[str, Any]:
    return {"kind": fault.kind, **dataclasses.asdict(fault)}


def fault_from_json(data: Mapping[str, Any]) -> Fault:
    fields = dict(data)
    kind = fields.pop("kind", "")
    if kind not in FAULTS:
        raise ConfigError(f"no fault named {kind!r} (there are {', '.join(FAULTS)})")
    return FAULTS[kind](**fields)


def _positive(name: str, value: float) -> list[str]:
    return [] if value > 0 else [f"{name} is {value:g}: give a number above 0"]


def _target(target: str) -> list[str]:
    return [] if target in TARGETS else [f"no target {target!r} (there are {', '.join(TARGETS)})"]
