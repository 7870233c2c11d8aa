"""The switches and the constants of the wandering token, each with the figure that chose it."""

# No `from __future__ import annotations`: to read options is to compile each annotation that is a text.
from dataclasses import asdict, dataclass, replace
from typing import Final

from softmutex.core.algorithms.in_common import fingerprint_of
from softmutex.core.events import SECOND, Duration
from softmutex.core.machine import Setup
from softmutex.core.options import Options, within

FIRST_EPOCH: Final = 1  # of a founder's token; all later ones count seconds, see `Context.next_epoch`
QUEUE: Final = 32  # tickets in a token: what a datagram has room for

# A holder speaks to its watchers so often; a watcher that hears nothing for `BEAT` + `SLACK` starts to probe. A
# death is noticed SLACK to BEAT + SLACK later, 1.6 s at the median, and costs two messages a beat.
BEAT: Final = 8 * SECOND // 5
SLACK: Final = 4 * SECOND // 5  # at least; more where the network is slow
SLACK_MOST: Final = 6 * SECOND
GRACE: Final = BEAT + SLACK  # for a token that is on its way to somebody who will speak for it
SECOND_BEAT: Final = 2  # the second watcher hears every so-many-th beat
SECOND_EXTRA: Final = (SECOND_BEAT - 1) * BEAT
PACE_OF_AGE: Final = 4  # a hold is spoken for each quarter of its age: what lasts long is missed less soon,
PACE_MOST: Final = 6 * SECOND  # ... but not later than this and SLACK
PARKED_BEAT: Final = 7 * SECOND  # idle traffic of the whole group: 2 messages each 7 s; nobody grants later unheard

RTO_FIRST: Final = SECOND // 5  # before any round trip was measured
RTO_LEAST: Final = SECOND // 32  # a LAN answers in 0.1 ms, a busy process in 10 ms
RTO_MOST: Final = 3 * SECOND
PROBES: Final = 4  # unanswered ones, before a node counts as out of reach
SUSPICION: Final = 20 * SECOND  # how long a silent home is passed over
PATIENCE: Final = 6 * SECOND  # a waiter that was told to wait asks again after this ...
PATIENCE_EACH: Final = 3 * SECOND // 4  # ... or this for every other waiter, whichever is longer
PROMISE: Final = 3 * SECOND // 2  # how long a ballot is promised to one inquirer, or
PROMISE_TRIPS: Final = 8  # so many retransmission time-outs, whichever is longer
FRESH: Final = SECOND // 4  # who spoke less than this ago is there: the token is committed to it at once
FRESH_TRIPS: Final = 128  # ... or so many round trips, where turns are over before who is asked could answer ...
FRESH_MOST: Final = 3 * SECOND  # ... but no longer ago: by then the group itself asks who is silent
LAZY: Final = SECOND // 50  # a holder waits so long before it says QUEUED: the token may come sooner
SAMPLE: Final = 8  # nodes asked by a wide inquiry; before a token is made, everybody is asked
BATCH: Final = 512  # of these so many at once


@dataclass(frozen=True)
class WanderingOptions(Options):
    """Durations in seconds."""

    hints: bool = True  # WANT, register, queue; without them the token walks at random
    watch: bool = True  # beats to watchers, who replace a token that fell silent
    census: bool = True  # waiters whose requests go unanswered look for the token themselves
    early: bool = True  # the next holder is asked while A still runs
    watchers: int = within(2, 1, 2)
    each: int = within(1, 1, 256)  # slots that one node may use at once; the runtime says `slots` where nobody says
    min_interval: float = within(0.0, 0.0)
    row: int = within(16, 1, 4096)  # requests of one node that are served in a row while others wait
    row_time: float = within(0.02, 0.0)  # no further one is started after this
    ageing: float = within(0.0, 0.0)  # so long a wait is worth a step of priority; 0: first come first served
    listen: float = within(0.2, 0.0)  # a node that knows of no other waits so long for others before it makes a token


@dataclass(frozen=True)
class Switches(WanderingOptions):
    """The options, and what the driver says."""

    slots: int = 1
    when_isolated: str = "wait"
    gate_ageing: float = 0.0  # of several slots: priorities are said at the gate, but all members say the same
    place: int = 0  # of the resource on the ring of nodes: spreads the homes of many resources

    @property
    def by_home(self) -> bool:
        """The home alone says who is next, ticket by ticket, for it alone knows the other tokens, or the priorities."""
        return self.slots > 1 or self.ageing > 0


_READ: Final[dict[tuple[object, ...], Switches]] = {}  # by what they follow from: a simulator makes many machines
READ_MOST: Final = 64


def read_switches(setup: Setup, algorithm: str) -> Switches:
    key = (algorithm, repr(setup.options), setup.slots, setup.when_isolated, setup.place)
    switches = _READ.get(key)
    if switches is None:
        if len(_READ) >= READ_MOST:
            _READ.clear()
        switches = _READ[key] = _read(setup, algorithm)
    return switches


def _read(setup: Setup, algorithm: str) -> Switches:
    options = WanderingOptions.read(setup.options, algorithm)
    gate_ageing = options.ageing if setup.slots > 1 else 0.0
    if gate_ageing:
        options = replace(options, ageing=0.0)
    return Switches(
        **asdict(options),
        slots=setup.slots,
        when_isolated=setup.when_isolated,
        place=setup.place,
        gate_ageing=gate_ageing,
    )


def fingerprint(options: Switches, least: Duration) -> int:
    text = f"wandering 1 {options.slots} {options.each} {least} {options.hints} {options.watch}"
    if ageing := options.ageing or options.gate_ageing:
        text += f" ageing {ageing:g}"
    return fingerprint_of(text)
