"""The list as a member has it that follows it, and of whom in it the group's key is not proven.

What it decides: who may write to a registry is not yet a member. The naive way, to count everybody whom the list names,
lets who has a token of the registry and not the group's key outnumber the members by names that he invents: they then
wait for a majority of nobody. To look at all that proves nothing at each change of the list costs tens of milliseconds
where thousands are invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from softmutex.ports import Member, Proofs
from softmutex_adapters.registry import wire

AGAIN: Final = 64  # of those that were looked at in vain, at each change


class View:
    """The list as this member has it. W1, W2, W6."""

    def __init__(self, group: str) -> None:
        self.version = 0
        self.members: dict[str, Member] = {}
        self.banned: frozenset[str] = frozenset()
        self._group = group
        self._new: dict[str, str] = {}  # by key: what it shows, or nothing; to be looked at
        self._again: dict[str, str] = {}  # ... in vain so far, who waits longest first: a key may be new here
        self._doubted: dict[str, Member] = {}  # and as what they are shown

    def take(self, told: wire.MemberList) -> bool:
        """False where it does not lead on from here."""
        if told.version <= self.version or told.after not in (None, self.version):
            return False
        if told.after is None:
            for each in (self.members, self._new, self._again, self._doubted):
                each.clear()
        for key in told.left:
            self._forget(key)
        for key, member in told.joined:
            self._forget(key)  # who comes again, comes last
            self.members[key] = member
            if told.proofs is not None:  # an older registry could not have shown any
                self._new[key] = told.proofs.get(key, "")
        self.version = told.version
        self.banned = frozenset(told.banned)
        return True

    def others(self, me: Member | None, lease: str, proofs: Proofs | None = None) -> tuple[Member, ...]:
        """One for each address: who came last is who is there."""
        mine = wire.key_of(lease) if lease else ""
        own = me.address if me else None
        in_doubt = {} if proofs is None else self._in_doubt(proofs)
        found = {
            one.address: in_doubt.get(key, one)
            for key, one in self.members.items()
            if key != mine and one.address != own
        }
        return tuple(found.values())

    def _forget(self, key: str) -> None:
        for each in (self.members, self._new, self._again, self._doubted):
            each.pop(key, None)

    def _in_doubt(self, proofs: Proofs) -> Mapping[str, Member]:
        """A key may be new here, and what was sealed with it in the list before: some are looked at once more."""
        due = {**dict(islice(self._again.items(), AGAIN)), **self._new}
        self._new.clear()
        for key, proof in due.items():
            self._again.pop(key, None)
            if proof and proofs.is_proof(wire.proved(self._group, key, self.members[key]), proof):
                self._doubted.pop(key, None)
                continue
            self._doubted[key] = replace(self.members[key], is_proven=False)
            if proof:
                self._again[key] = proof
        return self._doubted
