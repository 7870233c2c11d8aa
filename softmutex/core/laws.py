"""What an algorithm may claim, and in which weather: what the simulator's checkers hold its runs to.

An algorithm declares its laws, each with all that may go wrong while it still keeps it:

    laws = claim(Weather.ANY, Law.EFFECTS) | claim(Weather.LOSS | Weather.LATENESS, Law.REQUESTS, Law.OVERLAP)

A law is watched in every run in which nothing else goes wrong. The naive way, a list of algorithms that are excused
from a law, excuses them in fair weather too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, StrEnum
from typing import Final


class Law(StrEnum):
    EFFECTS = "effects"  # what it orders is legal: a grant of a request that waits, one at a time on a node
    REQUESTS = "requests"  # every request ends exactly once, soon after the weather has cleared
    TOKENS = "tokens"  # no token in two places, none too many, none that goes with a node that leaves
    ORDER = "order"  # (epoch, hop) at the resource grows while there is one token
    OVERLAP = "overlap"  # no more than `slots` run A, except in the wake of something that went wrong
    EXCLUSION = "exclusion"  # no more than `slots` run A, ever
    EVIDENCE = "evidence"  # whoever overlapped is told, and nobody else
    ALARMS = "alarms"  # who is told that it may not be alone had a reason
    FAIRNESS = "fairness"  # nobody waits for more than two rounds of those that waited before it
    ISOLATION = "isolation"  # the smaller side of a cut stops


class Weather(Flag):
    """What goes wrong beside messages that take their time and overtake one another: that is fair weather."""

    FAIR = 0
    LOSS = 1  # messages get lost
    REPETITION = 2  # messages come twice, perhaps much later
    LATENESS = 4  # some messages take much longer than others
    CUTS = 8  # nodes that do not hear each other
    DEATHS = 16
    PAUSES = 32  # processes that do not get their turn for a while
    CLOCKS = 64  # that differ, run at other rates, or jump
    COMINGS = 128  # members join and leave in good order
    VIEWS = 256  # members do not agree on who is there
    FOUNDERS = 512  # nobody begins, or several do
    LINKS = 1024  # two nodes do not hear each other, but by way of the others
    SILENCE = 2048  # deaths of which nobody tells: a power cut
    ANY = 4095


def claim(weather: Weather, *laws: Law) -> dict[Law, Weather]:
    """That these laws are kept while nothing worse than this happens."""
    return dict.fromkeys(laws, weather)


# What an algorithm claims that says nothing else: all that a soft mutex is.
IN_ANY_WEATHER: Final[Mapping[Law, Weather]] = claim(Weather.ANY, *(law for law in Law if law is not Law.EXCLUSION))


def watched(laws: Mapping[Law, Weather], weather: Weather) -> tuple[Law, ...]:
    """The laws that are claimed for this weather."""
    return tuple(law for law, worst in laws.items() if not weather & ~worst)
