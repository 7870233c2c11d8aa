"""The switches of the wandering token, read once, each with the figure that chose its default.

Unknown or impossible ones are refused with the nearest right name: a typing error in `watch` must not quietly
switch the watch off.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND, Duration, from_seconds
from softmutex.core.timing import Timing

WHEN_ISOLATED: Final = ("wait", "proceed", "raise")
FIRST_EPOCH: Final = 1  # of a founder's token; all later ones count seconds, see Desk.next_epoch
QUEUE: Final = 32  # tickets in a token: what a datagram has room for

# A holder speaks to its watchers so often; a watcher that hears nothing for `BEAT` + `SLACK` starts to probe. A
# death is noticed SLACK to BEAT + SLACK later, 1.6 s at the median, and costs two messages a beat.
BEAT: Final = 8 * SECOND // 5
SLACK: Final = 4 * SECOND // 5  # at least; more where the network is slow
GRACE: Final = BEAT + SLACK  # for a token that is on its way to somebody who will speak for it
SECOND_BEAT: Final = 2  # the second watcher hears every so-many-th beat
SECOND_EXTRA: Final = (SECOND_BEAT - 1) * BEAT
PARKED_BEAT: Final = 15 * SECOND  # idle traffic of the whole group: 2 or 3 messages each 15 s

RTO_FIRST: Final = SECOND // 5  # before any round trip was measured
RTO_LEAST: Final = SECOND // 32  # a LAN answers in 0.1 ms, a busy process in 10 ms
RTO_MOST: Final = 2 * SECOND
PROBES: Final = 4  # unanswered ones, before a node counts as out of reach
SUSPICION: Final = 20 * SECOND  # how long a silent home is passed over
PATIENCE: Final = 10 * SECOND  # a waiter that was told to wait asks again after this ...
PATIENCE_EACH: Final = 3 * SECOND // 4  # ... or this for every other waiter, whichever is longer
PROMISE: Final = 3 * SECOND // 2  # how long a ballot is promised to one inquirer
FRESH: Final = SECOND // 4  # who spoke less than this ago is there: the token is committed to it at once
LAZY: Final = SECOND // 50  # a holder waits so long before it says QUEUED: the token may come sooner
SAMPLE: Final = 8  # nodes asked by a full inquiry


@dataclass(frozen=True, slots=True)
class Options:
    """`Setup.options` as this algorithm understands them. Durations in seconds."""

    hints: bool = True  # WANT, register, queue; without them the token walks at random
    watch: bool = True  # beats to watchers, who replace a token that fell silent
    census: bool = True  # waiters whose requests go unanswered look for the token themselves
    early: bool = True  # the next holder is asked while A still runs
    watchers: int = 2
    slots: int = 1
    each: int = 1  # slots that one node may use at once
    min_interval: float = 0.0
    when_isolated: str = "wait"
    row: int = 16  # requests of one node that are served in a row while others wait
    row_time: float = 0.02  # no further one is started after this
    listen: float = 0.2  # a node that knows of no other waits so long for others before it makes a token
    spot: int = 0  # the resource's place on the ring of nodes: spreads the homes of many resources

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            kind = type(each.default)
            right = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
            if not right or (kind is not bool and isinstance(value, bool)):
                raise ConfigError(f"option {each.name!r} is {value!r}: give a {kind.__name__}")
            if kind in (int, float) and value < 0:
                raise ConfigError(f"option {each.name!r} is {value!r}: give a number that is not negative")
        for name, least, most in (("slots", 1, 256), ("each", 1, 256), ("row", 1, 4096), ("watchers", 1, 2)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"option {name!r} is {getattr(self, name)}: give {least} to {most}")
        if self.when_isolated not in WHEN_ISOLATED:
            raise ConfigError(
                f"when_isolated is {self.when_isolated!r}: give {', '.join(WHEN_ISOLATED[:-1])} or {WHEN_ISOLATED[-1]}"
            )


def read_options(given: Mapping[str, Any]) -> Options:
    known = [each.name for each in fields(Options)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"the wandering token has no option {name!r}: {hint}")
    return Options(**given)


def least_interval(options: Options, timing: Timing) -> Duration:
    return from_seconds(options.min_interval or timing.min_interval or 0.0)


def fingerprint(options: Options, timing: Timing) -> int:
    """What all members must agree on, in 64 bits. Never 0: that is a token that does not say."""
    text = (
        f"wandering 1 {options.slots} {options.each} {least_interval(options, timing)} {options.hints} {options.watch}"
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") | 1
