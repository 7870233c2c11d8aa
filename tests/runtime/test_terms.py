"""What members must agree on, and what each decides for itself: terms by their fingerprint, and plans from settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from softmutex.core.algorithms.wandering import Wandering
from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND
from softmutex.core.messages import Standing
from softmutex.core.names import NAME_MAX_BYTES
from softmutex.core.timing import Timing
from softmutex.runtime.config import resolve
from softmutex.runtime.terms import Plan, Policy, Terms, gate_name, plan, refusal

TERMS = Terms("wandering", 3, Timing(5.0, 40, 0.5, 10.0, 90.0), '{"each": 2}')
OTHERS = [
    ({"algorithm": "central"}, "algorithm is central there and wandering here"),
    ({"slots": 4}, "slots is 4 there and 3 here"),
    ({"timing": Timing(6.0, 40, 0.5, 10.0, 90.0)}, "op is 6.0 there and 5.0 here"),
    ({"timing": Timing(5.0, 41, 0.5, 10.0, 90.0)}, "nodes_max is 41 there and 40 here"),
    ({"timing": Timing(5.0, 40, None, 10.0, 90.0)}, "skip is None there and 0.5 here"),
    ({"timing": Timing(5.0, 40, 0.5, 11.0, 90.0)}, "min_interval is 11.0 there and 10.0 here"),
    ({"timing": Timing(5.0, 40, 0.5, 10.0, 91.0)}, "max_interval is 91.0 there and 90.0 here"),
    ({"options": ""}, 'options is {} there and {"each": 2} here'),
    ({"slots": 1, "options": ""}, 'slots is 1 there and 3 here, options is {} there and {"each": 2} here'),
]


def planned(name: str = "x", **given: Any) -> Plan:
    return plan(name, resolve(given, environ={}))


@pytest.mark.parametrize(("other", "told"), OTHERS, ids=lambda each: each if isinstance(each, str) else "")
def test_terms_that_differ_have_another_fingerprint_and_it_is_told_in_what(other: dict[str, Any], told: str):
    others = replace(TERMS, **other)
    assert others.fingerprint() != TERMS.fingerprint()
    assert TERMS.difference(others) == told
    assert str(refusal("x", "bravo", told)).startswith(f"the mutex 'x' is run by bravo with other settings: {told}. ")


def test_the_same_terms_have_the_same_fingerprint_wherever_they_are_made():
    """Members of all versions compare it: 53 bits of BLAKE2b."""
    assert TERMS.fingerprint() == replace(TERMS, machine=Wandering).fingerprint() == 4232256064913543
    assert Terms("wandering").fingerprint() == 5243436134443082
    assert TERMS.difference(replace(TERMS)) == ""


@pytest.mark.parametrize("terms", [TERMS, Terms("central"), Terms("adaptive", timing=Timing(0.25, 2))], ids=str)
def test_terms_that_were_described_are_the_same(terms: Terms):
    description = terms.describe(Standing.ASKING)
    assert description.standing is Standing.ASKING
    assert Terms.described(description) == terms


def test_what_nobody_says_is_this():
    assert planned() == Plan("x", Terms("wandering"), Policy(isolated_timeout=600 * SECOND), None)


def test_what_is_said_goes_into_the_terms_or_the_policy():
    found = planned(
        algorithm="keeper",
        slots=4,
        **{"timing.op": 2.0, "timing.nodes_max": 9},
        min_interval=3.0,
        options={"row": 7},
        timeout=1.5,
        max_hold=20,
        on_overrun="release",
        on_lost="cancel",
        when_isolated="raise",
        purpose="to see",
        min_members=3,
        isolated_timeout=60,
    )
    options = '{"each": 4, "min_interval": 3.0, "row": 7}'
    assert found.terms == Terms("keeper", 4, Timing(2.0, 9), options) and found.gate is None
    assert found.policy == Policy(1.5, 20 * SECOND, "release", "cancel", "raise", "to see", 3, 60 * SECOND)
    assert found.terms.machine_options() == {"each": 4, "min_interval": 3.0, "row": 7}
    assert Terms("keeper").machine_options() == {}


def test_an_isolated_timeout_without_end_is_none():
    assert planned(isolated_timeout="never").policy.isolated_timeout is None


def test_a_machine_that_is_given_is_the_one_that_runs():
    found = planned(algorithm=Wandering)
    assert (found.terms.algorithm, found.terms.machine) == ("wandering", Wandering)
    assert found.terms.machine_class() is Wandering and planned().terms.machine_class() is Wandering


def test_one_node_may_use_all_slots_unless_somebody_says_otherwise():
    assert planned(slots=4).terms.options == '{"each": 4}'
    assert planned(slots=4, options={"each": 2}).terms.options == '{"each": 2}'
    assert planned(slots=1).terms.options == ""


def test_who_says_a_weight_waits_at_a_gate_of_one_slot():
    found = planned(slots=4, weight=3, max_hold=9, timeout=2)
    assert found.gate is not None
    assert found.gate.name == gate_name("x") == "x (gate)"
    assert found.gate.terms == Terms("wandering") and found.gate.gate is None
    assert found.gate.policy == found.policy._replace(max_hold=None, weight=None)
    assert found.policy.weight == 3


def test_at_the_gate_the_switches_are_those_of_the_mutex_but_for_how_many_one_node_uses():
    found = planned(slots=4, weight=2, options={"each": 3, "row": 5})
    assert found.gate is not None and found.gate.terms.options == '{"row": 5}'


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"slots": 3, "weight": 4}, "a hold of weight 4 never fits, for slots is 3"),
        ({"slots": 3, "weight": 3, "options": {"each": 2}}, "one node may use 2 of 3 slots"),
        ({"weight": 2}, "a hold of weight 2 never fits, for slots is 1"),
        ({"priority": 1}, "has no priorities: let all its members say what one is worth"),
        ({"priority": 1, "algorithm": "central"}, "the algorithm 'central' has no priorities"),
        ({"ageing": 60, "algorithm": "central"}, "the algorithm 'central' has no priorities"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(given: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        planned(**given)


def test_a_weight_of_all_slots_fits():
    assert planned(slots=3, weight=3).policy.weight == 3
    assert planned(slots=1, weight=1).gate is not None


def test_who_comes_first_is_said_at_the_gate_where_there_are_several_slots():
    one, several = planned(ageing=60, priority=2), planned(ageing=60, priority=2, slots=3)
    assert one.terms.options == '{"ageing": 60.0}' and one.gate is None and one.policy.priority == 2
    assert several.gate is not None and several.gate.terms.options == '{"ageing": 60.0}'
    assert several.policy.weight == 1 and several.terms.options == '{"ageing": 60.0, "each": 3}'
    assert planned(ageing=60, slots=3, weight=2).policy.weight == 2


def test_the_gate_of_a_name_that_is_as_long_as_a_name_may_be_has_a_name_too():
    """All members make the same of it."""
    longest = NAME_MAX_BYTES - len(" (gate)")
    assert gate_name("n" * longest) == "n" * longest + " (gate)"
    assert gate_name("n" * (longest + 1)) == "n" * 32 + "~f5e839132f089560 (gate)"
    assert gate_name("ö" * 32) == "ö" * 16 + "~071d74df6f2e64ce (gate)"
