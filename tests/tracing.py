"""Protocol behaviour pinned in files: events in, effects out, state. `pytest --rewrite` writes them anew, for review.

A test plays a short story on real machines and ends with `trace.check(...)`. What the machines did is compared with
`tests/traces/<algorithm>/<sentence>.trace`, where `<sentence>` is the name of the test. The file is text that a person
reads in a diff:

    # a lost commit is sent again
         0.080  1 its timer
                    1→2 COMMIT #1001/2001 e0/h0
                    timer handover:1001 at 0.200
                    = passing

How to read it is told in `softmutex/sim/lines.py`.

For a whole machine:   trace.handle(machine, event, now, node=1)
For a part of one:     trace.event(now, 1, "gives it to 2"); ...; trace.outcome(1, effects, state)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from softmutex.core.events import Effect, Event, Instant, NodeId
from softmutex.core.machine import Algorithm
from softmutex.sim.lines import Story

TRACES = Path(__file__).parent / "traces"


class Trace:
    def __init__(self, algorithm: str, test_name: str, origin: Instant = 0) -> None:
        sentence = test_name.removeprefix("test_")
        self.path = TRACES / algorithm / f"{sentence}.trace"
        self.said = Story(origin)
        self.lines = [f"# {sentence.replace('_', ' ')}"]

    def event(self, now: Instant, node: NodeId, what: Event | str) -> None:
        self.lines.append(self.said.event(now, node, what))

    def outcome(self, node: NodeId, effects: Iterable[Effect], state: object = None) -> None:
        self.lines += self.said.effects(node, effects)
        if state is not None:
            self.lines.append(self.said.state(state))

    def handle(self, machine: Algorithm, event: Event, now: Instant, node: NodeId = 1) -> Sequence[Effect]:
        self.event(now, node, event)
        effects = machine.handle(event, now)
        self.outcome(node, effects, machine.view())
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
            where, state = (
                self.path.relative_to(TRACES.parent.parent),
                "is not what happens now" if pinned else "is new",
            )
            raise AssertionError(
                f"{where} {state}. If this is meant, run this test's file with `--rewrite`, and review the diff:\n"
                + "\n".join(changes)
            )
