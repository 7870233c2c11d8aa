"""What tooz calls a group, where nobody keeps a store: each coordinator notes what it knows and reads the others'.

    a note:  {"member": id, "groups": {group: turn}, "in": {group: [turn of the group, own turn, capabilities]}}

A turn counts on and never back; odd: the group exists, the member is in it; even: no longer. Of two that tell of the
same, the higher turn is right, so in whatever order notes are read, all come to know the same.

What it decides: that a member is in a group is told by that member only, and is over when its node is known to be gone
or silent. That a group exists is told by everybody who has heard of it, so it outlives its maker. The naive way, a list
of members that everybody copies, cannot tell one that joined again from one that died.

G1  Merging is a maximum: the order of the notes, and reading one twice, make no difference.
G2  A member of a group that was deleted is in no group that is made anew under that name.
G3  What does not look like a note is not believed, and of groups more than GROUPS_MAX not remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

GROUPS_MAX: Final = 256
DELETED_KEPT: Final = 32
TURN_MAX: Final = 2**53  # what every reader of JSON takes for a whole number


class Stay(NamedTuple):
    """A member in a group. Ordered: the later one is right."""

    of_group: int  # the group's turn when it joined
    turn: int
    capabilities: str

    @property
    def is_in(self) -> bool:
        return self.turn % 2 == 1


class Register:
    """What one coordinator knows. `groups` and `stays` (its own) are noted; `members` is what it read last."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.groups: dict[str, int] = {}
        self.stays: dict[str, Stay] = {}
        self.members: dict[str, dict[str, Stay]] = {}

    def note(self) -> dict[str, Any]:
        deleted = [name for name, turn in self.groups.items() if turn % 2 == 0]
        dropped = set(deleted[:-DELETED_KEPT])
        return {
            "member": self.member,
            "groups": {name: turn for name, turn in self.groups.items() if name not in dropped},
            "in": {name: list(stay) for name, stay in self.stays.items() if self.exists(name)},
        }

    def merge(self, notes: Iterable[Any]) -> None:
        """All that are there now: who is not among them is in no group."""
        read = [note for note in notes if isinstance(note, Mapping) and isinstance(note.get("member"), str)]
        for note in read:
            for name, turn in items(note.get("groups")):
                if is_turn(turn) and (name in self.groups or len(self.groups) < GROUPS_MAX):
                    self.groups[name] = max(turn, self.groups.get(name, 0))
        found: dict[str, dict[str, Stay]] = {name: {self.member: stay} for name, stay in self.stays.items()}
        for note in read:
            for name, said in items(note.get("in")):
                stay = stay_of(said)
                if stay is not None and name in self.groups:
                    there = found.setdefault(name, {})
                    there[note["member"]] = max(stay, there.get(note["member"], stay))
        self.members = found
        for name, there in found.items():
            if self.member in there:  # another coordinator of this id may have spoken for it
                self.stays[name] = there[self.member]

    def exists(self, group: str) -> bool:
        return self.groups.get(group, 0) % 2 == 1

    def members_of(self, group: str) -> dict[str, Stay]:
        turn = self.groups.get(group, 0)
        return {
            member: stay
            for member, stay in self.members.get(group, {}).items()
            if stay.is_in and stay.of_group == turn  # G2
        }

    # --- what this coordinator does ---------------------------------------------------------------------------------

    def turn_group(self, group: str) -> None:
        """Makes it, or deletes it."""
        self.groups[group] = self.groups.pop(group, 0) + 1

    def stay(self, group: str, is_in: bool, capabilities: str = "") -> None:
        before, of_group = self.stays.get(group), self.groups[group]
        turn = before.turn if before is not None and before.of_group == of_group else 0
        self.stays[group] = Stay(of_group, turn + (2 if turn % 2 == is_in else 1), capabilities)
        self.members.setdefault(group, {})[self.member] = self.stays[group]


def items(said: Any) -> Iterable[tuple[str, Any]]:
    return [(str(name), value) for name, value in said.items()] if isinstance(said, Mapping) else []


def is_turn(said: Any) -> bool:
    return type(said) is int and 0 < said < TURN_MAX


def stay_of(said: Any) -> Stay | None:
    match said:
        case [of_group, turn, str(capabilities)] if is_turn(of_group) and is_turn(turn):
            return Stay(of_group, turn, capabilities)
    return None
