"""The frozen pictures that the application is given of what was counted (`counting.py`).

Dataclasses are slow to make, so this is imported by whoever asks for one: a command that ends at once does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softmutex.core.events import NodeId

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode


@dataclass(frozen=True, slots=True)
class OverlapStatistics:
    """Holds of this node that were held while another node held the same, as far as it is known by now."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class MutexStatistics:
    """One mutex as this node saw it since the node was opened."""

    name: str
    holding: int  # claims of this node that hold it now
    waiting: int  # claims of this node that wait for it now
    acquisitions: int
    timeouts: int
    cancelled: int
    overruns: int
    lost: int  # holds that were told that they may not be the only one, whatever the reason
    wait_total: float  # seconds, of those that were granted
    wait_max: float
    hold_total: float
    hold_max: float
    facts: Mapping[str, int]  # by FactKind: generated, discarded, handed_over, overlap ...
    sent: Mapping[str, int]  # messages by kind
    received: Mapping[str, int]
    overlaps: OverlapStatistics = OverlapStatistics()

    @classmethod
    def nothing(cls, name: str) -> MutexStatistics:
        """Of a mutex that this node has not met."""
        return cls(name, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, {}, {}, {})


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The node as a whole since it was opened."""

    peers: int
    mutexes: int
    dropped: Mapping[str, int]  # frames that were not for this node to act on, by reason
    told: Mapping[str, int]  # what went wrong around this node, by kind: breakdowns, observer errors ...
    loop_lag_max: float  # seconds for which the loop did not get its turn, at worst in the last hour or two
    loop_lags: int  # how often that was worth a warning
    transport: Mapping[str, int]
    membership: Mapping[str, int]
    timers: int = 0  # set, and still to fire

    @classmethod
    def of(cls, node: RunningNode) -> NodeStatistics:
        return cls(
            peers=len(node.members) - 1,
            mutexes=len(node.mutexes),
            dropped={**node.dropped, **{why.value: count for why, count in node.seal.refusals.items() if count}},
            told=dict(node.warnings),
            loop_lag_max=node.lag.max_s,
            loop_lags=node.lag.count,
            transport=dict(node.transport.statistics()),
            membership=dict(node.membership.statistics()),
            timers=len(node.timers),
        )


@dataclass(frozen=True, slots=True)
class Peer:
    """Another live node of the group."""

    id: NodeId
    name: str
    address: str
    heard_ago: float | None  # seconds since it was last heard; None: known from the membership only
    suspected: bool  # it did not answer lately, and is asked, or looked for
    silent: bool = False  # it was asked in every way and did not answer; it still counts
