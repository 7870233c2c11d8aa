"""What `look()` gives: who holds a mutex, who waits, since when, and how that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from softmutex.core.events import NodeId

ROUNDED: Final = 0.01  # seconds are told to the millisecond


@dataclass(frozen=True, slots=True)
class HolderSeen:
    node: str
    host: str
    user: str
    purpose: str  # what it does with it, as its settings tell: by default the name of its program
    since: float  # when it was granted; seconds since 1970
    waited: float
    epoch: int
    hop: int
    id: NodeId
    request: int  # names the hold on that node


@dataclass(frozen=True, slots=True)
class WaiterSeen:
    node: str
    host: str
    user: str
    purpose: str
    since: float  # when it began to wait; seconds since 1970
    position: int  # 1: it has waited longest


@dataclass(frozen=True, slots=True)
class PastSeen:
    """A hold that is over, as some member remembers it."""

    node: str
    user: str
    purpose: str
    epoch: int
    hop: int
    ended: float  # seconds since 1970
    held: float
    waited: float
    lost: str  # why, in words; empty where nothing was lost


@dataclass(frozen=True, slots=True)
class MutexSeen:
    """One mutex as its members told at `at` (seconds since 1970). Each tells of itself: what is on its way between two
    of them is seen at neither."""

    name: str
    at: float
    epoch: int
    slots: int
    holders: tuple[HolderSeen, ...]
    waiting: tuple[WaiterSeen, ...]  # those who wait longest; at most 16 of a node
    waiting_count: int
    silent: tuple[str, ...]  # members that did not answer

    def words(self, before: float | None = None) -> str:
        """`a.lab holds it for 3 min (lftp), 2 wait`; empty where nobody does. `before`: only who waits since then."""
        shown = [f"{one.node} holds it for {span(self.at - one.since)}{doing(one)}" for one in self.holders[:3]]
        if len(self.holders) > 3:
            shown.append(f"{len(self.holders) - 3} more hold it")
        ahead = self.waiting_count if before is None else sum(one.since < before - ROUNDED for one in self.waiting)
        if ahead:
            shown.append(f"{ahead} wait{'s' * (ahead == 1)}{'' if before is None else ' before this'}")
        return ", ".join(shown)


def doing(one: HolderSeen | WaiterSeen | PastSeen) -> str:
    what = " of ".join(part for part in (one.purpose, one.user) if part)
    return f" ({what})" if what else ""


def past_of(told: Mapping[str, Any], at: float) -> PastSeen:
    node, user, purpose, lost = (text(told.get(name)) for name in ("node", "user", "purpose", "lost"))
    epoch, hop = (int(number(told.get(name))) for name in ("epoch", "hop"))
    held, waited = number(told.get("held")), number(told.get("waited"))
    return PastSeen(node, user, purpose, epoch, hop, at - number(told.get("ended")), held, waited, lost)


def picture(name: str, told: Mapping[NodeId, Any], silent: Sequence[str], at: float) -> MutexSeen:
    """Of what each node told of itself. What came from a member that lies, or speaks otherwise, counts as little."""
    holders: list[HolderSeen] = []
    waiters: list[tuple[float, tuple[str, str, str, str]]] = []
    count = epoch = 0
    slots = 1
    for id, document in told.items():
        if not isinstance(document, dict):
            continue
        who = text(document.get("name")), text(document.get("host")), text(document.get("user"))
        holders += [holder(id, who, one, at) for one in dictionaries(document.get("holding"))]
        waiters += [
            (at - number(one.get("for")), (*who, text(one.get("purpose"))))
            for one in dictionaries(document.get("waiting"))
        ]
        count += int(number(document.get("waiting_count")))
        epoch = max(epoch, int(number(document.get("epoch"))))
        slots = max(slots, int(number(document.get("slots"))))
    holders.sort(key=lambda one: one.since)
    waiters.sort()
    waiting = tuple(WaiterSeen(*who, since, position + 1) for position, (since, who) in enumerate(waiters))
    return MutexSeen(name, at, epoch, slots, tuple(holders), waiting, max(count, len(waiting)), tuple(silent))


def seen_in(told: Mapping[str, Any]) -> MutexSeen:
    """From plain data, as `dataclasses.asdict` gives it."""
    holders = tuple(HolderSeen(**one) for one in told["holders"])
    waiting = tuple(WaiterSeen(**one) for one in told["waiting"])
    kept = {name: told[name] for name in ("name", "at", "epoch", "slots", "waiting_count")}
    return MutexSeen(**kept, holders=holders, waiting=waiting, silent=tuple(told["silent"]))


def holder(id: NodeId, who: tuple[str, str, str], one: Mapping[str, Any], at: float) -> HolderSeen:
    epoch, hop, request = (int(number(one.get(name))) for name in ("epoch", "hop", "request"))
    since, waited = at - number(one.get("for")), number(one.get("waited"))
    return HolderSeen(*who, text(one.get("purpose")), since, waited, epoch, hop, id, request)


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else 0.0


def dictionaries(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def span(seconds: float) -> str:
    """As one would say it: 0.3 s, 12 s, 5 min 3 s, 2 h 10 min."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
