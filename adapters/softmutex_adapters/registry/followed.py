"""The list as a member has it that follows it, and of whom in it the group's key is not proven.

What it decides: who may write to a registry is not yet a member. The naive way, to count everybody whom the list names,
lets who has a token of the registry and not the group's key outnumber the members by names that he invents: they then
wait for a majority of nobody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from softmutex.ports import Member, Proofs
from softmutex_adapters.registry import wire


class View:
    """The list as this member has it. W1, W2, W6."""

    def __init__(self, group: str) -> None:
        self.version = 0
        self.members: dict[str, Member] = {}
        self.banned: frozenset[str] = frozenset()
        self._group = group
        self._unproven: dict[str, str] = {}  # by key: what it shows, or nothing; to be looked at, or in vain so far

    def take(self, told: wire.MemberList) -> bool:
        """False where it does not lead on from here."""
        if told.version <= self.version or told.after not in (None, self.version):
            return False
        if told.after is None:
            self.members, self._unproven = {}, {}
        for key in told.left:
            self.members.pop(key, None)
            self._unproven.pop(key, None)
        for key, member in told.joined:
            self.members.pop(key, None)  # who comes again, comes last
            self.members[key] = member
            self._unproven.pop(key, None)
            if told.proofs is not None:  # an older registry could not have shown any
                self._unproven[key] = told.proofs.get(key, "")
        self.version = told.version
        self.banned = frozenset(told.banned)
        return True

    def others(self, me: Member | None, lease: str, proofs: Proofs | None = None) -> tuple[Member, ...]:
        """One for each address: who came last is who is there."""
        mine = wire.key_of(lease) if lease else ""
        own = me.address if me else None
        in_doubt = self._in_doubt(proofs)
        found = {
            one.address: replace(one, is_proven=False) if key in in_doubt else one
            for key, one in self.members.items()
            if key != mine and one.address != own
        }
        return tuple(found.values())

    def _in_doubt(self, proofs: Proofs | None) -> Collection[str]:
        """A key may be new here, and what was sealed with it in the list before: so these are looked at each time."""
        if proofs is None:
            return ()
        for key, proof in list(self._unproven.items()):
            if proof and proofs.is_proof(wire.proved(self._group, key, self.members[key]), proof):
                del self._unproven[key]
        return self._unproven
