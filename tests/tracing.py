"""Protocol behaviour pinned in files: events in, effects out, state. `pytest --rewrite` writes them anew, for review.

A test plays a short story on real machines and ends with `trace.check(...)`. What the machines did is compared with
`tests/traces/<algorithm>/<sentence>.trace`, where `<sentence>` is the name of the test. The file is text that a person
reads in a diff:

    # a lost commit is sent again
    0.080000 node 1  Fired(timer=('handover', 1001))
        Send(to=2, message=Commit(nonce=1001, reply=2001, token=Token(epoch=0, stamp=7, id=7, hop=0)))
        SetTimer(timer=('handover', 1001), at=0.200000)
        = View(tokens=(), holding=(), waiting=0, state='passing')

Fields that have their default are left out: a field that somebody adds later changes no file that does not use it.

For a whole machine:   trace.handle(machine, event, now, who="node 1")
For a part of one:     trace.event("node 1", now, event); ...; trace.outcome(effects, state)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from softmutex.core.events import Effect, Event, Instant, SetTimer, to_seconds
from softmutex.core.machine import Algorithm

TRACES = Path(__file__).parent / "traces"


class Trace:
    def __init__(self, algorithm: str, test_name: str) -> None:
        sentence = test_name.removeprefix("test_")
        self.path = TRACES / algorithm / f"{sentence}.trace"
        self.lines = [f"# {sentence.replace('_', ' ')}"]

    def event(self, who: str, now: Instant, what: object) -> None:
        self.lines.append(f"{to_seconds(now):.6f} {who}  {show(what)}")

    def outcome(self, effects: Iterable[Effect], state: object = "") -> None:
        self.lines.extend(f"    {show(effect)}" for effect in effects)
        if state != "":
            self.lines.append(f"    = {show(state)}")

    def handle(self, machine: Algorithm, event: Event, now: Instant, who: str = "node") -> Sequence[Effect]:
        self.event(who, now, event)
        effects = machine.handle(event, now)
        self.outcome(effects, machine.view())
        return effects

    def check(self, rewrite: bool) -> None:
        """Compare with the file, or write it (`rewrite`)."""
        text = "\n".join(self.lines) + "\n"
        if rewrite:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, encoding="utf-8")
            return
        pinned = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if text != pinned:
            changes = difflib.unified_diff(pinned.splitlines(), text.splitlines(), "pinned", "now", lineterm="")
            raise AssertionError(
                f"{self.path.name} is not what happens now. If it should be, `pytest --rewrite` and review the diff:\n"
                + "\n".join(changes)
            )


def show(value: Any) -> str:
    """Like repr, without the fields that have their default; instants of timers in seconds."""
    if isinstance(value, SetTimer):
        return f"SetTimer(timer={value.timer!r}, at={to_seconds(value.at):.6f})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        defaults = value._field_defaults
        fields = [(name, getattr(value, name)) for name in value._fields]
        told = [f"{name}={show(item)}" for name, item in fields if name not in defaults or item != defaults[name]]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(show, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, str) and " " in value else repr(value)
