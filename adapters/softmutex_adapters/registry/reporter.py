"""What happens to the mutexes of one node, kept in little room until the registry is told (`report.py` has the form).

    node --notice--> totals, what is held, who waits, the last spans and marks --draw--> one report --answered--> settle

What it decides: holds that follow each other closely are one span. The naive way, an event for each hold, is a
thousand events a second where a thousand holds are, and a picture of them is a bar all the same.

N1  `notice` is told in any thread, does a few microseconds of work, and waits for nothing but another `notice`.
N2  What is kept is bounded: mutexes, claims, spans, marks. What did not fit is counted (`skipped`).
N3  What an unanswered report told is told again with the next one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from softmutex.ports import Observation
from softmutex_adapters.registry import report
from softmutex_adapters.registry.report import COUNT_MAX, FACTS, MARKS, MARKS_MAX, MUTEXES_MAX, SHOWN_MAX, SPANS_MAX

KEPT_MUTEXES_MAX = 1024
CLAIMS_MAX = 1024
GAP_S = 0.1  # a hold that begins so soon after the last one continues its span ...
SPAN_MAX_S = 5.0  # ... while that is not longer than this
PLAIN = (1, 0)  # slots, priority
NEVER_SEEN = (-1, -1, 0)  # epoch, hop, node


class Kept:
    """One mutex, as this node saw it."""

    __slots__ = (
        "algorithm",
        "counts",
        "granted",
        "hold_max_s",
        "holding",
        "holds",
        "span",
        "tokens",
        "wait_max_s",
        "waiting",
        "waits",
    )

    def __init__(self) -> None:
        self.algorithm = ""
        self.counts = dict.fromkeys(report.COUNTERS, 0)
        self.waits, self.holds = [0] * report.BUCKETS, [0] * report.BUCKETS
        self.wait_max_s = self.hold_max_s = 0.0
        self.waiting: dict[int, tuple[float, int, int]] = {}  # claim -> since, slots, priority
        self.granted: dict[int, float] = {}  # claim -> how long it waited, until its hold is told
        self.holding: dict[int, tuple[float, float, int, int, int]] = {}  # request -> since, waited, epoch, hop, slots
        self.tokens: dict[int, tuple[int, int, int]] = {}  # slot -> epoch, hop, node
        self.span: list[Any] | None = None  # the last one, while it may still grow


class Reporter:
    """`wake` is called, in whatever thread, when there is something new after `draw` found nothing or was settled."""

    messages = False  # O5: of single ones it wants to hear nothing

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._wake, self._clock = wake, clock
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._changed: dict[str, None] = {}  # mutexes to be told of, in the order of their changes
        self._spans: deque[list[Any]] = deque()  # mutex, begin, end, count, held
        self._marks: deque[tuple[str, float, str, str]] = deque()
        self._skipped = 0
        self._quiet = True
        self._drawn: tuple[list[str], int, int] = ([], 0, 0)

    # --- in ---------------------------------------------------------------------------------------------------------

    def notice(self, seen: Observation) -> None:
        take = TAKERS.get(seen.what)
        mutex = seen.mutex
        if take is None or not mutex:
            return
        with self._lock:
            kept = self._kept.get(mutex)
            if kept is None:
                if len(self._kept) >= KEPT_MUTEXES_MAX:
                    self._skipped += 1
                    return
                kept = self._kept[mutex] = Kept()
            take(self, kept, seen, self._clock())
            self._changed[mutex] = None
            if not self._quiet:
                return
            self._quiet = False
        self._wake()

    def _wait_started(self, kept: Kept, seen: Observation, now: float) -> None:
        values: Any = seen.values
        kept.algorithm = values["algorithm"]
        if len(kept.waiting) < CLAIMS_MAX:
            kept.waiting[values["claim"]] = now, values.get("slots", 1), values.get("priority", 0)
        else:
            self._skipped += 1

    def _wait_ended(self, kept: Kept, seen: Observation, now: float) -> None:
        values: Any = seen.values
        claim, outcome = values["claim"], values["outcome"]
        kept.waiting.pop(claim, None)
        if outcome == "granted":
            waited_s = values["seconds"]
            kept.counts["acquisitions"] += 1
            kept.granted[claim] = waited_s
            kept.waits[report.bucket(waited_s)] += 1
            if waited_s > kept.wait_max_s:
                kept.wait_max_s = waited_s
        elif outcome in ("timeout", "cancelled"):
            kept.counts["timeouts" if outcome == "timeout" else "cancelled"] += 1

    def _hold_started(self, kept: Kept, seen: Observation, now: float) -> None:
        values: Any = seen.values
        epoch, hop = values["epoch"], values["hop"]
        waited_s = kept.granted.pop(values["claim"], 0.0)
        if len(kept.holding) < CLAIMS_MAX:
            kept.holding[values["request"]] = (now, waited_s, epoch, hop, values.get("slots", 1))
        else:
            self._skipped += 1
        rests_on_token = values.get("rights", 1) > 0  # permissions are nowhere
        if rests_on_token and (epoch, hop) > kept.tokens.get(0, NEVER_SEEN)[:2]:
            kept.tokens[0] = (epoch, hop, seen.node)

    def _hold_ended(self, kept: Kept, seen: Observation, now: float) -> None:
        values: Any = seen.values
        held_s = values["seconds"]
        kept.holds[report.bucket(held_s)] += 1
        if held_s > kept.hold_max_s:
            kept.hold_max_s = held_s
        held = kept.holding.pop(values["request"], None)
        since = held[0] if held else now - held_s
        span = kept.span
        if span is not None and since - span[2] < GAP_S and now - span[1] < SPAN_MAX_S:
            span[2] = now
            span[3] += 1
            span[4] += held_s
            return
        kept.span = [seen.mutex, since, now, 1, held_s]
        if len(self._spans) == SPANS_MAX:
            self._spans.popleft()
            self._skipped += 1
            self._drawn = (self._drawn[0], max(0, self._drawn[1] - 1), self._drawn[2])
        self._spans.append(kept.span)

    def _handed_over(self, kept: Kept, seen: Observation, now: float) -> None:
        """The same as `_fact`, for the one of which there are many."""
        kept.counts["handed_over"] += 1
        token = seen.note.token if seen.note else None
        if token is not None and seen.note is not None:
            self._saw(kept, token.slot, token.epoch, token.hop, seen.note.peer)

    def _hold_lost(self, kept: Kept, seen: Observation, now: float) -> None:
        kept.counts["lost"] += 1
        self._mark(seen.mutex, now, "lost", str(seen.values["reason"]))

    def _overrun(self, kept: Kept, seen: Observation, now: float) -> None:
        kept.counts["overruns"] += 1
        self._mark(seen.mutex, now, "overrun", "")

    def _fact(self, kept: Kept, seen: Observation, now: float) -> None:
        what, note = seen.what, seen.note
        if what in FACTS:
            kept.counts[what] += 1
        detail = note.detail if note else ""
        if note is not None and note.token is not None:
            token = note.token
            if what == "generated":
                self._saw(kept, token.slot, token.epoch, token.hop, seen.node)
            detail = detail or f"epoch {token.epoch}"
        if what in MARKS:
            self._mark(seen.mutex, now, what, detail)

    @staticmethod
    def _saw(kept: Kept, slot: int, epoch: int, hop: int, node: int) -> None:
        known = kept.tokens.get(slot)
        if node and (len(kept.tokens) < report.TOKENS_MAX if known is None else (epoch, hop) >= known[:2]):
            kept.tokens[slot] = (epoch, hop, node)

    def _mark(self, mutex: str, now: float, kind: str, detail: str) -> None:
        if len(self._marks) == MARKS_MAX:
            self._marks.popleft()
            self._skipped += 1
            self._drawn = (*self._drawn[:2], max(0, self._drawn[2] - 1))
        self._marks.append((mutex, now, kind, detail[: report.NAME["maxLength"]]))

    # --- out --------------------------------------------------------------------------------------------------------

    def draw(self) -> dict[str, Any] | None:
        """What is to be told now; None where there is nothing. Followed by `settle` where it was answered."""
        with self._lock:
            now = self._clock()
            names = list(self._changed)[:MUTEXES_MAX]
            if not names:
                self._quiet = True
                return None
            for name in names:  # what changes from here on is told with the next one
                del self._changed[name]
            spans, marks = list(self._spans), list(self._marks)
            for name, *_ in spans:
                self._kept[name].span = None
            self._drawn = (names, len(spans), len(marks))
            return {
                "mutexes": [_mutex(name, self._kept[name], now) for name in names],
                "spans": [
                    {
                        "mutex": name,
                        "ago_s": _s(now - end),
                        "span_s": _s(end - begin),
                        "count": count,
                        "held_s": _s(held),
                    }
                    for name, begin, end, count, held in spans
                ],
                "marks": [
                    {"mutex": name, "ago_s": _s(now - at), "kind": kind, "detail": detail}
                    for name, at, kind, detail in marks
                ],
                "skipped": min(self._skipped, COUNT_MAX),
            }

    def settle(self, *, answered: bool, known: bool = True, all_again: bool = False) -> None:
        """`known` False: the registry had nothing of this node before this report, so the rest is told, too.
        `all_again`: another one had nothing, and perhaps did not take this one."""
        with self._lock:
            names, spans, marks = self._drawn
            self._drawn = ([], 0, 0)
            if answered:
                for _ in range(spans):
                    self._spans.popleft()
                for _ in range(marks):
                    self._marks.popleft()
            else:
                self._changed = dict.fromkeys([*names, *self._changed])
            if all_again:
                self._changed.update(dict.fromkeys(self._kept))
            elif not known:
                told = frozenset(names)
                self._changed.update(dict.fromkeys(name for name in self._kept if name not in told))


def _mutex(name: str, kept: Kept, now: float) -> dict[str, Any]:
    waiting = list(kept.waiting.values())[:SHOWN_MAX]
    is_plain = all((slots, priority) == PLAIN for _, slots, priority in waiting)
    return {
        "name": name,
        "algorithm": kept.algorithm[:64],
        **kept.counts,
        "waits": list(kept.waits),
        "holds": list(kept.holds),
        "wait_max_s": _s(kept.wait_max_s),
        "hold_max_s": _s(kept.hold_max_s),
        "waiting": len(kept.waiting),
        "waiting_for_s": [_s(now - since) for since, _, _ in waiting],
        **({} if is_plain else {"wishes": [{"slots": slots, "priority": urgent} for _, slots, urgent in waiting]}),
        "holding": [
            {
                "for_s": _s(now - since),
                "waited_s": _s(waited),
                "epoch": min(epoch, COUNT_MAX),
                "hop": min(hop, COUNT_MAX),
                **({"slots": slots} if slots > 1 else {}),
            }
            for since, waited, epoch, hop, slots in list(kept.holding.values())[:SHOWN_MAX]
        ],
        "tokens": [
            {"slot": slot, "epoch": min(epoch, COUNT_MAX), "hop": min(hop, COUNT_MAX), "at": f"{node:016x}"}
            for slot, (epoch, hop, node) in kept.tokens.items()
            if slot < 1024
        ],
    }


def _s(seconds: float) -> float:
    return round(min(max(seconds, 0.0), report.AGE_MAX_S), 4)


Taker = Callable[[Reporter, Kept, Observation, float], None]
TAKERS: dict[str, Taker] = {
    "wait_started": Reporter._wait_started,
    "wait_ended": Reporter._wait_ended,
    "hold_started": Reporter._hold_started,
    "hold_ended": Reporter._hold_ended,
    "hold_lost": Reporter._hold_lost,
    "overrun": Reporter._overrun,
    **dict.fromkeys((*FACTS, "isolated", "rejoined"), Reporter._fact),
    "handed_over": Reporter._handed_over,
}
