"""The same picture as a page: one file, nothing from outside, light and dark, and each strip says what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from softmutex_adapters.demo.picture import in_order, mean
from softmutex_adapters.demo.plan import MEGA, SCENARIOS
from softmutex_adapters.demo.screen import name_of, sentence
from softmutex_adapters.demo.summary import rows, sentences
from softmutex_adapters.demo.tally import Tally

WIDTH, ROW = 1000, 7
KIND = {"waits": "waits", "done": "done"}  # all other ends of a transfer are `lost`
SAYS = {
    "waits": "waits for its turn",
    "done": "has the file",
    "deadline": "too late: thrown away",
    "refused": "login refused",
    "broken": "broke off: thrown away",
}
STYLE = """
:root { color-scheme: light dark; --ink: #1f3b57; --quiet: #6b7280; --paper: #fff; --waits: #e3e7eb; --done: #4c86b8;
  --lost: #c8452f; --line: #e5e7eb }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe7f3; --quiet: #9aa4ae; --paper: #14181d; --waits: #2b323a;
  --done: #6aa5d8; --lost: #e2664f; --line: #2b323a } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1rem; margin: 0 } p { margin: .3rem 0 }
.quiet { color: var(--quiet) }
.run { margin: 1.8rem 0 } .run header { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; align-items: baseline }
.goodput { font-size: 1.4rem; font-weight: 700; color: var(--done) } .goodput.bad { color: var(--lost) }
svg { display: block; width: 100%; height: auto; margin-top: .4rem } text { fill: var(--quiet); font-size: 12px }
.waits { fill: var(--waits) } .done { fill: var(--done) } .lost { fill: var(--lost) } line { stroke: var(--line) }
.key span { margin-right: 1.4rem } .key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem }
table { border-collapse: collapse; width: 100%; margin: 1.5rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); font-weight: 400 }
thead th { font-weight: 700 } th:first-child { text-align: left; color: var(--quiet) }
"""


def write(path: Path, measured: Sequence[Tally]) -> None:
    path.write_text("\n".join(page(measured)) + "\n", encoding="utf-8")


def page(measured: Sequence[Tally]) -> Iterator[str]:
    plan = measured[0].plan
    longest = max(tally.ended - tally.began for tally in measured)
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>softmutex demo</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{STYLE}</style></head><body>"
    yield f"<h1>{escape(sentence(plan))}</h1>"
    yield f'<p class="quiet">Scenario {plan.scenario}: {escape(SCENARIOS[plan.scenario])}. '
    yield "Measured, not simulated. All subscribers were there, and had met, when the clock started.</p>"
    yield '<p class="key">' + "".join(
        f'<span><i style="background: var(--{kind})"></i>{label}</span>'
        for kind, label in (
            ("waits", "waits"),
            ("done", "transfer that came through"),
            ("lost", "transfer that was thrown away"),
        )
    )
    yield "</p>"
    for tally in measured:
        yield from run(tally, longest)
    yield from table(list(measured))
    yield from (f"<p>{escape(text)}</p>" for text in sentences(list(measured)))
    yield "</body></html>"


def run(tally: Tally, longest: float) -> Iterator[str]:
    seen = tally.figures()
    bad = "" if seen["finished"] == seen["clients"] else " bad"
    yield f'<section class="run"><header><h2>{escape(name_of(tally.plan, tally.stage))}</h2>'
    yield f'<span class="goodput{bad}">{seen["goodput_mbit_s"]:.1f} Mbit/s</span>'
    yield f"<span>{seen['finished']} of {seen['clients']} finished</span>"
    yield f"<span>{seen['wasted_bytes'] / MEGA:.0f} MB thrown away</span><span>{mean(seen)}</span></header>"
    height = ROW * len(tally.clients)
    yield f'<svg viewBox="0 0 {WIDTH} {height + 20}" role="img" aria-label="{escape(tally.stage)}: who did what, when">'
    for at in range(0, int(longest) + 1, 5):
        x = at / longest * WIDTH
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'
        yield f'<text x="{x + 3:.1f}" y="{height + 15}">{at} s</text>'
    for row, client in enumerate(in_order(tally)):
        number = tally.clients.index(client)
        for kind, begins, ends in client.strips(tally.ended):
            x, width = ((each / longest * WIDTH) for each in (begins - tally.began, ends - begins))
            says = f"client {number}: {SAYS[kind]}, {begins - tally.began:.2f} to {ends - tally.began:.2f} s"
            yield (
                f'<rect class="{KIND.get(kind, "lost")}" x="{x:.1f}" y="{row * ROW}" height="{ROW - 1}" '
                f'width="{max(width, 2.5 if kind == "refused" else 0.0):.1f}"><title>{says}</title></rect>'
            )
    yield "</svg></section>"


def table(measured: list[Tally]) -> Iterator[str]:
    head, *lines = rows(measured)
    yield "<table><thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr></thead><tbody>"
    for name, *cells in lines:
        yield f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table>"
