"""What the page shows of one group: made of the member list, which is known, and of reports, which are hearsay. Pure.

    member list --look--> who is here, who left, who fell silent
    reports --take--> totals, who holds, who waits, where tokens were seen last, spans and marks --> picture

What it decides: nothing here ever reaches a member. The naive way, a registry that "knows" who holds the token, is
asked for it sooner or later, and then it is a lock server. This one may be wrong, late or gone, and no hop notices.

V1  Bounded: who reports, mutexes, spans, marks, the gone, and what a picture shows of them; it says what it omits.
V2  Ages, not times of day: the page counts them from when it was told (C4).
V3  A token is where the highest (epoch, hop) was seen; a hand-over names the receiver, so both ends tell of it.
V4  Two holders are shown where two hold, not where one of them has told later than the other that the token went on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

from softmutex.ports import Member
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.report import BUCKETS, COUNTERS
from softmutex_adapters.registry.store import Entry

REPORTERS_MAX = 2_000
REPORTS_A_SECOND = 200.0  # all members together; with more of them each one tells less often
PACE_S = 0.5
PACE_FULL_S = 600.0  # for those of whom no report is kept
MUTEXES_MAX = 256
SPANS_KEPT, MARKS_KEPT, GONE_KEPT, EPOCHS_KEPT = 4_000, 500, 200, 4
SPAN_S = 300.0  # what the timeline shows
GONE_S = 600.0
MEMBERS_SHOWN, MUTEXES_SHOWN, SPANS_SHOWN, MARKS_SHOWN, CLAIMS_SHOWN = 200, 24, 1_200, 200, 24
SUMS = (*COUNTERS, "waits", "holds", "wait_max_s", "hold_max_s")
Json = dict[str, Any]
PLAIN: Json = {"slots": 1, "priority": 0}


class Totals:
    """Of one mutex over all members that ever told of it."""

    def __init__(self) -> None:
        self.algorithm = ""
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.waits, self.holds = [0] * BUCKETS, [0] * BUCKETS
        self.wait_max_s = self.hold_max_s = 0.0
        self.tokens: dict[int, tuple[int, int, str]] = {}  # slot -> epoch, hop, node
        self.newest: dict[int, tuple[int, float]] = {}  # epoch -> its highest hop, and when that was told

    def add(self, told: Json, before: Json, now: float) -> None:
        self.algorithm = told["algorithm"] or self.algorithm
        for name in COUNTERS:
            self.counts[name] += max(0, told[name] - before.get(name, 0))
        for name, sums in (("waits", self.waits), ("holds", self.holds)):
            for place, (new, old) in enumerate(zip(told[name], before.get(name, [0] * BUCKETS), strict=True)):
                sums[place] += max(0, new - old)
        self.wait_max_s = max(self.wait_max_s, told["wait_max_s"])
        self.hold_max_s = max(self.hold_max_s, told["hold_max_s"])
        for token in told["tokens"]:
            seen = (token["epoch"], token["hop"])
            if seen >= self.tokens.get(token["slot"], (-1, -1, ""))[:2]:
                self.tokens[token["slot"]] = (*seen, token["at"])
        for seen_here in told["holding"] + told["tokens"]:
            epoch, hop = seen_here["epoch"], seen_here["hop"]
            if hop > self.newest.get(epoch, (-1, 0.0))[0]:
                self.newest[epoch] = (hop, now)
        if len(self.newest) > EPOCHS_KEPT:
            self.newest = {epoch: self.newest[epoch] for epoch in sorted(self.newest)[-EPOCHS_KEPT:]}

    def has_gone_on(self, hold: Json, told_at: float) -> bool:
        """V4. A token of another epoch does not come from this holder: it was made because this one was missed."""
        hop, at = self.newest.get(hold["epoch"], (-1, 0.0))
        return hold["hop"] < hop and told_at < at and len(self.tokens) < 2


class Teller:
    def __init__(self) -> None:
        self.at = 0.0
        self.mutexes: dict[str, tuple[float, Json]] = {}  # when it was told, and what


@dataclass(slots=True)
class Claims:
    holding: list[Json]
    waiting: list[Json]
    waiting_count: int = 0


class Scene:
    def __init__(self, name: str) -> None:
        self.name = name
        self.changes = 0
        self._here: dict[str, tuple[Member, float, str]] = {}  # lease -> member, since when it is seen, its key
        self._gone: OrderedDict[str, tuple[Member, float, bool]] = OrderedDict()  # when, and whether it said so
        self._tellers: dict[str, Teller] = {}
        self._totals: dict[str, Totals] = {}
        self._spans: deque[tuple[float, float, str, str, int, float]] = deque(maxlen=SPANS_KEPT)
        self._marks: deque[tuple[float, str, str, str, str]] = deque(maxlen=MARKS_KEPT)
        self._skipped = 0

    # --- in ---------------------------------------------------------------------------------------------------------

    def look(self, entries: Mapping[str, Entry], farewells: Mapping[str, None], now: float) -> None:
        """The member list as it is now."""
        self.changes += 1
        for lease in [lease for lease in self._here if lease not in entries]:
            member, _, _ = self._here.pop(lease)
            self._gone[lease] = (member, now, lease in farewells)
            if lease in self._tellers:
                self._end_holds(lease, self._tellers[lease], now)
        for lease, entry in entries.items():
            if lease not in self._here:
                self._gone.pop(lease, None)
                self._here[lease] = (entry.member, now, wire.key_of(lease))
            elif self._here[lease][0] != entry.member:
                self._here[lease] = (entry.member, *self._here[lease][1:])
        while self._gone and (len(self._gone) > GONE_KEPT or next(iter(self._gone.values()))[1] < now - GONE_S):
            lease, _ = self._gone.popitem(last=False)
            self._tellers.pop(lease, None)

    def _end_holds(self, lease: str, teller: Teller, now: float) -> None:
        """Of whoever is gone: nobody else will tell of it."""
        for name, (at, told) in teller.mutexes.items():
            for hold in told["holding"]:
                if not self._totals[name].has_gone_on(hold, at):
                    begin = at - hold["for_s"]
                    self._spans.append((begin, now, lease, name, 1, now - begin))
                    self._marks.append((now, lease, name, "silent", ""))

    def take(self, lease: str, told: Json, now: float) -> tuple[bool, float]:
        """A report of a listed member. Whether there was one before, and when the next one is wanted."""
        teller = self._tellers.get(lease)
        is_known = teller is not None
        if teller is None:
            if len(self._tellers) >= REPORTERS_MAX:
                return True, PACE_FULL_S
            teller = self._tellers[lease] = Teller()
        self.changes += 1
        teller.at = now
        for mutex in told["mutexes"]:
            self._take_mutex(teller, mutex, now)
        for span in told["spans"]:
            end = now - span["ago_s"]
            self._spans.append((end - span["span_s"], end, lease, span["mutex"], span["count"], span["held_s"]))
        for mark in told["marks"]:
            self._marks.append((now - mark["ago_s"], lease, mark["mutex"], mark["kind"], mark["detail"]))
        return is_known, max(PACE_S, len(self._tellers) / REPORTS_A_SECOND)

    def _take_mutex(self, teller: Teller, told: Json, now: float) -> None:
        name = told["name"]
        totals = self._totals.get(name)
        if totals is None:
            if len(self._totals) >= MUTEXES_MAX:
                self._skipped += 1
                return
            totals = self._totals[name] = Totals()
        _, before = teller.mutexes.get(name, (0.0, {}))
        totals.add(told, before, now)
        teller.mutexes[name] = (now, told)

    # --- out --------------------------------------------------------------------------------------------------------

    def picture(self, now: float) -> Json:
        claims = self._claims(now)
        names = sorted(self._totals, key=lambda name: (-len(claims[name].holding) - len(claims[name].waiting), name))
        shown = sorted(names[:MUTEXES_SHOWN])
        spans = [span for span in self._spans if span[1] > now - SPAN_S and span[3] in shown]
        return {
            "members": self._members(claims, now),
            "mutexes": [self._mutex(name, claims[name]) for name in shown],
            "mutexes_omitted": len(names) - len(shown) + self._skipped,
            "span_s": SPAN_S,
            "spans": [
                {
                    "member": wire.key_of(lease),
                    "mutex": mutex,
                    "from_s": _s(now - begin),
                    "to_s": _s(now - end),
                    "count": count,
                    "held_s": _s(held_s),
                }
                for begin, end, lease, mutex, count, held_s in sorted(spans)[-SPANS_SHOWN:]
            ],
            "marks": [
                {"member": wire.key_of(lease), "mutex": mutex, "ago_s": _s(now - at), "kind": kind, "detail": detail}
                for at, lease, mutex, kind, detail in sorted(self._marks)[-MARKS_SHOWN:]
                if mutex in shown
            ],
        }

    def _claims(self, now: float) -> dict[str, Claims]:
        """Of each mutex, as members tell that are here."""
        found = {name: Claims([], []) for name in self._totals}
        for lease, teller in self._tellers.items():
            if lease not in self._here:
                continue
            key = self._here[lease][2]
            for name, (at, told) in teller.mutexes.items():
                claims, since = found[name], now - at
                claims.waiting_count += told["waiting"]
                claims.waiting += [
                    {"member": key, "for_s": _s(for_s + since), **wish}
                    for for_s, wish in zip(
                        told["waiting_for_s"], chain(told.get("wishes", ()), repeat(PLAIN)), strict=False
                    )
                ]
                claims.holding += [
                    {
                        "member": key,
                        "for_s": _s(one["for_s"] + since),
                        "waited_s": one["waited_s"],
                        "epoch": one["epoch"],
                        "slots": one.get("slots", 1),
                    }
                    for one in told["holding"]
                    if not self._totals[name].has_gone_on(one, at)
                ]
        return found

    def _mutex(self, name: str, claims: Claims) -> Json:
        totals = self._totals[name]
        return {
            "name": name,
            "algorithm": totals.algorithm,
            **totals.counts,
            "waits": totals.waits,
            "holds": totals.holds,
            "wait_max_s": totals.wait_max_s,
            "hold_max_s": totals.hold_max_s,
            "holding": claims.holding[:CLAIMS_SHOWN],
            "waiting": sorted(claims.waiting, key=lambda one: -one["for_s"])[:CLAIMS_SHOWN],
            "waiting_count": claims.waiting_count,
            "tokens": [
                {"slot": slot, "epoch": epoch, "hop": hop, "at": node}
                for slot, (epoch, hop, node) in sorted(totals.tokens.items())
            ],
        }

    def _members(self, claims: Mapping[str, Claims], now: float) -> Json:
        busy: dict[str, dict[str, list[str]]] = {}
        for name, told in claims.items():
            for what, ones in (("holds", told.holding), ("waits", told.waiting)):
                for one in ones:
                    names = busy.setdefault(one["member"], {"holds": [], "waits": []})[what]
                    if name not in names and len(names) < 4:
                        names.append(name)
        keyed = {key: (member, since) for member, since, key in self._here.values()}
        first = [key for key in keyed if key in busy][:MEMBERS_SHOWN]
        rest = islice((key for key in keyed if key not in busy), MEMBERS_SHOWN - len(first))
        shown = [
            {
                **_member(key, member),
                "state": "here",
                "for_s": _s(now - since),
                **busy.get(key, {"holds": [], "waits": []}),
            }
            for key in [*first, *rest]
            for member, since in [keyed[key]]
        ]
        shown += [
            {
                **_member(wire.key_of(lease), member),
                "state": "left" if said else "gone",
                "for_s": _s(now - at),
                "holds": [],
                "waits": [],
            }
            for lease, (member, at, said) in reversed(self._gone.items())
        ]
        reporting = sum(lease in self._here for lease in self._tellers)
        return {"count": len(self._here), "reporting": reporting, "shown": sorted(shown, key=_by_name)}


def _member(key: str, member: Member) -> Json:
    return {"key": key, "name": member.name, "address": member.address, "id": f"{member.id:016x}"}


def _by_name(one: Json) -> tuple[bool, str, str]:
    return one["state"] != "here", one["name"], one["key"]


def _s(seconds: float) -> float:
    return round(max(seconds, 0.0), 3)
