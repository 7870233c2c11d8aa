"""Which rule of an algorithm fired, by what can be seen of it from outside: messages, timers, facts, holds told.

    Rule("inquiry", ("PROBE",), ("kill", "power cut", "token-loss"))

A law that holds says nothing of a rule that was never needed. So a campaign counts how often each rule fired under each
kind of weather, and a rule that never did under one that it is for is told: either the weather never came to where it
matters, or the rule does nothing. What no rule of the table shows is counted under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ENOUGH = 20  # seeds with this weather, before the silence of a rule says anything
CUTS = ("cut", "cut (uneven)", "flapping")
DEATHS = ("kill", "power cut")


class Rule(NamedTuple):
    name: str  # as the table of its algorithm calls it
    signs: tuple[str, ...]
    is_for: tuple[str, ...] = ()  # weather that it answers; none: it works in any, and answers none


HAND_OVER = (
    Rule("hand-over", ("COMMIT",)),
    Rule("hand-over: what was lost is asked for", ("ASK",), ("loss", *DEATHS)),
    Rule("hand-over: not taken, so kept", ("VOID", "fact handover_failed"), ("loss", *DEATHS)),
    Rule("hand-over: too late or twice", ("fact stale",), ("duplication", "replay")),
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "wandering": (
        *HAND_OVER,
        Rule("want", ("WANT",)),
        Rule("register", ("FEED", "QUEUED")),
        Rule("early", ("timer invite",)),
        Rule("watch", ("timer beat",)),
        Rule("watch: nobody is heard", ("timer watch",), (*DEATHS, *CUTS)),
        Rule("lease", ("lost: lease",), CUTS),  # who slept asks first, and is mostly told of the overlap itself
        Rule("roll call", ("PING",), (*DEATHS, *CUTS)),
        Rule("inquiry", ("PROBE",), (*DEATHS, "token-loss", "pause", *CUTS)),
        Rule("suspicion: by way of others", ("RELAY",), ("dead-link",)),
        Rule("rivals", ("fact discarded",), CUTS),
        Rule("ghosts", ("timer ghosts",), CUTS),
        Rule("ledger", ("RECALL", "timer case"), (*CUTS, "pause")),
        Rule("ledger: an overlap is told", ("fact overlap", "lost: overlap", "overlap reported"), (*CUTS, "pause")),
        Rule("leaving", ("BEQUEST",), ("churn", "lives")),
        Rule("isolation", ("fact isolated",), (*CUTS, "one-way cut")),
        Rule("isolation is over", ("fact rejoined",), (*CUTS, "one-way cut")),
    ),
    "keeper": (
        *HAND_OVER,
        Rule("claim", ("CLAIM",)),
        Rule("register", ("FED", "ENTERED")),
        Rule("lease", ("LEASE",)),
        Rule("lease: it has ended", ("lost: lease",), ("pause", *CUTS)),
        Rule("watch: a lease is not asked for again", ("timer watch",), (*DEATHS, "pause", *CUTS)),
        Rule("hand-over: never confirmed", ("UNCONFIRMED",), DEATHS),
        Rule("installation", ("PROPOSE",), (*DEATHS, "token-loss", *CUTS)),
        Rule("rivals", ("fact discarded",), CUTS),
        Rule("ledger", ("RECKON",), (*CUTS, "pause")),
        Rule("ledger: an overlap is told", ("fact overlap", "lost: overlap", "overlap reported"), (*CUTS, "pause")),
        Rule("leaving", ("LEGACY",), ("churn", "lives")),
        Rule("isolation", ("fact isolated",), CUTS),
        Rule("isolation is over", ("fact rejoined",), CUTS),
    ),
}


def fired(algorithm: str, did: Mapping[str, int]) -> dict[str, int]:
    """Rule -> how often, of those that are in the table; and of what shows none of them, by its own name."""
    rules = RULES.get(algorithm, ())
    shown = {sign for rule in rules for sign in rule.signs}
    found = {rule.name: sum(did.get(sign, 0) for sign in rule.signs) for rule in rules}
    return found | {name: times for name, times in sorted(did.items()) if name not in shown}


def silent(algorithm: str, did: Mapping[str, Mapping[str, int]], seeds: Mapping[str, int]) -> list[tuple[str, str]]:
    """(rule, weather that it is for and in which it never fired), where there was enough of that weather."""
    return [
        (rule.name, weather)
        for rule in RULES.get(algorithm, ())
        for weather in rule.is_for
        if seeds.get(weather, 0) >= ENOUGH and not any(did.get(weather, {}).get(sign) for sign in rule.signs)
    ]
