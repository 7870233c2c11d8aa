"""What coordinators of tooz know of groups, merged from each other's notes, in any order."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from softmutex_adapters.tooz_groups import DELETED_KEPT, GROUPS_MAX, Register

NAMES = ("a", "b", "c", "d")
GROUPS = ("g", "h")


def over_the_wire(register: Register) -> Any:
    return json.loads(json.dumps(register.note()))


def shown(register: Register) -> dict[str, dict[str, str]]:
    return {
        group: {member: stay.capabilities for member, stay in sorted(register.members_of(group).items())}
        for group in GROUPS
        if register.exists(group)
    }


def live(steps: int, rng: random.Random) -> list[Register]:
    """Coordinators that do what they like, and read what they can reach."""
    all_of_them = [Register(name) for name in NAMES]
    for step in range(steps):
        one, group = rng.choice(all_of_them), rng.choice(GROUPS)
        match rng.randrange(5):
            case 0 | 1:
                reached = rng.sample(all_of_them, rng.randrange(len(all_of_them) + 1))
                one.merge(over_the_wire(each) for each in reached)
            case 2 if not one.exists(group) or not one.members_of(group):
                one.turn_group(group)
            case 3 if one.exists(group):
                one.stay(group, True, f"at step {step}")
            case 4 if one.member in one.members_of(group):
                one.stay(group, False)
    return all_of_them


@given(st.integers(0, 60), st.integers(0, 10_000))
def test_whatever_happened_all_who_read_all_know_the_same(steps: int, seed: int):
    rng = random.Random(seed)
    all_of_them = live(steps, rng)
    for _ in range(2):  # once for the groups, once more for what members say of groups that they did not know
        notes = [over_the_wire(each) for each in all_of_them]
        for one in all_of_them:
            rng.shuffle(notes)
            one.merge(notes + notes[:2])
    assert all(shown(one) == shown(all_of_them[0]) for one in all_of_them)
    for one in all_of_them:
        for group, stay in one.stays.items():
            is_member = stay.is_in and one.exists(group) and stay.of_group == one.groups[group]
            assert (one.member in one.members_of(group)) == is_member, "a member knows best whether it is in"


def test_a_member_that_is_there_no_longer_is_in_no_group_and_the_group_outlives_its_maker():
    a, b = Register("a"), Register("b")
    a.turn_group("g")
    a.stay("g", True)
    b.merge([over_the_wire(a)])
    assert set(b.members_of("g")) == {"a"}
    b.merge([over_the_wire(b)])
    assert b.exists("g") and not b.members_of("g")


def test_who_was_in_a_deleted_group_is_not_in_the_next_one_of_that_name():
    a, b = Register("a"), Register("b")
    a.turn_group("g")
    a.stay("g", True)
    b.merge([over_the_wire(a)])
    b.turn_group("g")  # as where the deleter could not hear the member
    assert not b.exists("g")
    b.turn_group("g")
    a.merge([over_the_wire(b)])
    assert a.exists("g") and not a.members_of("g")
    a.stay("g", True)
    b.merge([over_the_wire(a)])
    assert set(b.members_of("g")) == {"a"}


def test_another_coordinator_of_the_same_id_may_take_it_out():
    a, twin = Register("a"), Register("a")
    a.turn_group("g")
    a.stay("g", True)
    twin.merge([over_the_wire(a)])
    twin.stay("g", False)
    a.merge([over_the_wire(a), over_the_wire(twin)])
    assert not a.members_of("g")
    a.merge([over_the_wire(a)])
    assert not a.members_of("g"), "it knows so itself now"


@pytest.mark.parametrize(
    "note",
    [
        *(None, 7, "x", [], {}, {"member": 1}, {"member": "m", "groups": 5, "in": "g"}),
        {"member": "m", "groups": {"g": "1"}, "in": {"g": [1, 1]}},
        {"member": "m", "groups": {"g": True, "h": -1}, "in": {"g": [1, 1, 5]}},
        {"member": "m", "groups": {"g": 2**60}, "in": {"g": [1.5, 1, ""], "h": {"of": 1}}},
        {"member": "m", "groups": {}, "in": {"nobody made it": [1, 1, ""]}},
    ],
)
def test_what_does_not_look_like_a_note_is_not_believed(note: Any):
    register = Register("a")
    register.turn_group("g")
    register.merge([note, over_the_wire(register)])
    assert register.groups == {"g": 1} and not register.members_of("g")


def test_there_is_an_end_to_what_is_remembered_and_told():
    register = Register("a")
    register.merge([{"member": "m", "groups": {f"g{number}": 1 for number in range(5000)}, "in": {}}])
    assert len(register.groups) == GROUPS_MAX
    for name in list(register.groups):
        register.turn_group(name)
    assert len(register.note()["groups"]) == DELETED_KEPT
