"""What happens to the mutexes of one node, kept in little room until the registry is told (`report.py` has the form).

    node --read, notice--> totals, the last spans and marks --draw--> one report --answered--> settle
    who holds and who waits: looked up when it is drawn

What it decides: holds that follow each other closely are one span. The naive way, an event for each hold, is a
thousand events a second where a thousand holds are, and a picture of them is a bar all the same. For the same reason it
reads of them some at a time (O8), and is told (`notice`) only of what is rare.

N1  `notice` and `read` come in any thread, do a few microseconds of work, and wait for nothing but each other.
N2  What is kept is bounded: mutexes, spans, marks. What did not fit is counted (`skipped`).
N3  What an unanswered report told is told again with the next one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from softmutex.core.events import SECOND
from softmutex.ports import Diary, Lately, NodeSeen, Observation
from softmutex_adapters.registry import report
from softmutex_adapters.registry.report import (
    BUCKETS,
    COUNT_MAX,
    FACTS,
    MARKS,
    MARKS_MAX,
    MUTEXES_MAX,
    SHOWN_MAX,
    SPANS_MAX,
)

KEPT_MUTEXES_MAX = 1024
GAP_S = 0.1  # a hold that begins so soon after the last one continues its span ...
SPAN_MAX_S = 5.0  # ... while that is not longer than this
PLAIN = (1, 0)  # slots, priority
MILLISECOND = SECOND // 1000


class Kept:
    """One mutex, as this node saw it."""

    __slots__ = ("algorithm", "counts", "diary", "hold_max_s", "holds", "span", "tokens", "wait_max_s", "waits")

    def __init__(self) -> None:
        self.algorithm = ""
        self.diary: Diary | None = None
        self.counts = dict.fromkeys(report.COUNTERS, 0)
        self.waits, self.holds = [0] * report.BUCKETS, [0] * report.BUCKETS
        self.wait_max_s = self.hold_max_s = 0.0
        self.tokens: dict[int, tuple[int, int, int]] = {}  # slot -> epoch, hop, node
        self.span: list[Any] | None = None  # the last one, while it may still grow


class Reporter:
    """`wake` is called, in whatever thread, when there is something new after `draw` found nothing or was settled."""

    messages = False  # O5: of single ones it wants to hear nothing

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._wake, self._clock = wake, clock
        self._lock = threading.Lock()
        self._nodes: dict[int, NodeSeen] = {}
        self._kept: dict[str, Kept] = {}
        self._changed: dict[str, None] = {}  # mutexes to be told of, in the order of their changes
        self._spans: deque[list[Any]] = deque()  # mutex, begin, end, count, held
        self._marks: deque[tuple[str, float, str, str]] = deque()
        self._skipped = 0
        self._quiet = True
        self._drawn: tuple[list[str], int, int] = ([], 0, 0)

    # --- in ---------------------------------------------------------------------------------------------------------

    def opened(self, node: NodeSeen) -> None:
        with self._lock:
            self._nodes[node.id] = node

    def closed(self, node: NodeSeen) -> None:
        with self._lock:
            self._nodes.pop(node.id, None)

    def follows(self) -> bool:
        return False

    def read(self, diary: Diary, lately: Lately) -> None:
        waits, holds, handed_over, now = lately
        with self._lock:
            kept = self._keep(diary.mutex)
            if kept is None:
                self._skipped += len(waits) + len(holds) + handed_over
                return
            kept.diary, kept.algorithm = diary, diary.algorithm
            kept.counts["acquisitions"] += len(waits)
            kept.counts["handed_over"] += handed_over
            for waited in waits:
                kept.waits[min((waited // MILLISECOND).bit_length(), BUCKETS - 1)] += 1
            kept.wait_max_s = max(kept.wait_max_s, max(waits, default=0) / SECOND)
            offset_s = self._clock() - now / SECOND
            for begin, end in holds:
                self._held(kept, diary.mutex, begin / SECOND + offset_s, end / SECOND + offset_s)
            for slot, token in diary.tokens().items():
                self._saw(kept, slot, *token)
            is_news = self._is_news(diary.mutex)
        if is_news:
            self._wake()

    def notice(self, seen: Observation) -> None:
        take = TAKERS.get(seen.what)
        mutex = seen.mutex
        if take is None or not mutex:
            return
        with self._lock:
            kept = self._keep(mutex)
            if kept is None:
                self._skipped += 1
                return
            take(self, kept, seen, self._clock())
            is_news = self._is_news(mutex)
        if is_news:
            self._wake()

    def _keep(self, mutex: str) -> Kept | None:
        kept = self._kept.get(mutex)
        if kept is None and len(self._kept) < KEPT_MUTEXES_MAX:
            kept = self._kept[mutex] = Kept()
        return kept

    def _is_news(self, mutex: str) -> bool:
        self._changed[mutex] = None
        was_quiet, self._quiet = self._quiet, False
        return was_quiet

    def _wait_ended(self, kept: Kept, seen: Observation, now: float) -> None:
        outcome = seen.values["outcome"]
        if outcome in ("timeout", "cancelled"):
            kept.counts["timeouts" if outcome == "timeout" else "cancelled"] += 1

    def _held(self, kept: Kept, mutex: str, since: float, now: float) -> None:
        held_s = now - since
        kept.holds[report.bucket(held_s)] += 1
        if held_s > kept.hold_max_s:
            kept.hold_max_s = held_s
        span = kept.span
        if span is not None and since - span[2] < GAP_S and now - span[1] < SPAN_MAX_S:
            span[2] = now
            span[3] += 1
            span[4] += held_s
            return
        kept.span = [mutex, since, now, 1, held_s]
        if len(self._spans) == SPANS_MAX:
            self._spans.popleft()
            self._skipped += 1
            self._drawn = (self._drawn[0], max(0, self._drawn[1] - 1), self._drawn[2])
        self._spans.append(kept.span)

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
        for node in list(self._nodes.values()):
            node.settle()
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
                "mutexes": [_mutex(name, self._kept[name]) for name in names],
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


def _mutex(name: str, kept: Kept) -> dict[str, Any]:
    all_waiting = kept.diary.waiting() if kept.diary is not None else ()
    holding = kept.diary.holding() if kept.diary is not None else ()
    waiting = all_waiting[:SHOWN_MAX]
    is_plain = all((slots, priority) == PLAIN for _, slots, priority in waiting)
    return {
        "name": name,
        "algorithm": kept.algorithm[:64],
        **kept.counts,
        "waits": list(kept.waits),
        "holds": list(kept.holds),
        "wait_max_s": _s(kept.wait_max_s),
        "hold_max_s": _s(kept.hold_max_s),
        "waiting": len(all_waiting),
        "waiting_for_s": [_s(waited / SECOND) for waited, _, _ in waiting],
        **({} if is_plain else {"wishes": [{"slots": slots, "priority": urgent} for _, slots, urgent in waiting]}),
        "holding": [
            {
                "for_s": _s(held / SECOND),
                "waited_s": _s(waited / SECOND),
                "epoch": min(epoch, COUNT_MAX),
                "hop": min(hop, COUNT_MAX),
                **({"slots": slots} if slots > 1 else {}),
            }
            for held, waited, epoch, hop, slots in holding[:SHOWN_MAX]
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
    "wait_ended": Reporter._wait_ended,
    "hold_lost": Reporter._hold_lost,
    "overrun": Reporter._overrun,
    **{what: Reporter._fact for what in (*FACTS, "isolated", "rejoined") if what != "handed_over"},  # it reads of those
}
