"""One group in the memory of a registry: who is in it, what changed since when, and whose lease is over. Pure.

What it decides: a watcher is told what changed since the version that it has, from a log of the last changes; only who
comes from further back is given the whole list. The naive way, the whole list at every change, is 10,000 members times
10,000 watchers times 80 bytes, and the network is gone because one node restarted.

A lease is over when

    nothing was heard of it for `ttl_s`                 the host died, or the way to it
    its stream broke DROPPED_S ago, and came not back   the process died: the kernel closes its connections

The second is doubted where at least half of all streams broke: then it was the network, a proxy or this registry, and
whoever believed it would tell the first one to come back that it is alone.

G1  The log and the list agree: the list of any version in the log, and the changes since, give the list of now.
G2  An address, and an id, is that of the lease that came first (`places.py`). It goes to another one when its lease is
    over, when its stream has broken, or when nobody came back for it until the list of a new registry has settled.
G3  A version that a client has, and this history has not, is the sign of a store that was set back: no change is
    told on top of it.
G4  Time is told, in seconds of a clock that never jumps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from softmutex.ports import Member
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.places import Places
from softmutex_adapters.registry.store import BAN, NOTES, Entry, Stored

DROPPED_S = 4.0  # at 1 % loss 2 s would remove a living member of a group of fifteen once a week (docs/figures)
CHANGES_MAX = 20_000
FAREWELLS_MAX = 1_000
FORGET_S = 60.0  # an empty group that nobody watches


class Group:
    def __init__(self, name: str, signer: wire.Signer, stored: Stored | None, now: float, settled_at: float) -> None:
        self.name = name
        self.version = stored.version if stored else 0
        self.entries: dict[str, Entry] = {}
        self.notes: dict[str, Entry] = {}  # bans, and who may be certified
        for lease, entry in stored.entries.items() if stored else ():
            (self.notes if lease.startswith(NOTES) else self.entries)[lease] = entry
        self.settled_at = settled_at
        self.used_at = now
        self.deadlines: dict[str, float] = {}
        self.standing: dict[str, int] = {}  # lease -> streams of it that are open
        self.farewells: OrderedDict[str, None] = OrderedDict()  # leases that were ended by their members
        self._signer = signer
        self._heard: set[str] = set()  # leases whose members have spoken to this registry
        self._places = Places()
        for lease, entry in self.entries.items():
            self._places.claim(lease, entry.member)
        self._changes: OrderedDict[str, tuple[int, Entry | None]] = OrderedDict()  # in the order of their versions
        self._floor = self.version  # the log tells everything since this version
        self._loaded = self.version
        self._first = 0  # the first version after it, where it is known that there is none between
        self._dropped: dict[str, float] = {}  # lease -> when its last stream broke
        self._told: dict[int | None, tuple[bytes, str]] = {}

    # --- changes ----------------------------------------------------------------------------------------------------

    def make_room(self, lease: str, member: Member, now: float, elsewhere: frozenset[str]) -> list[str] | None:
        """The leases that give way to this one (G2); None where one does not. `elsewhere`: other registries that live,
        and hear whether their members do."""
        rivals = self._places.rivals(lease, member)
        comes_back = self._places.was_first(lease, now)
        if not all(comes_back or self._gives_way(rival, now, elsewhere) for rival in rivals):
            return None
        for rival in rivals:
            self._places.release(rival)
            if not comes_back:
                self._places.put_aside(rival, self.deadlines.get(rival, now))
        self._places.claim(lease, member)
        return rivals

    def _gives_way(self, lease: str, now: float, elsewhere: frozenset[str]) -> bool:
        entry = self.entries.get(lease)
        if entry is None or entry.owner in elsewhere:
            return False
        return lease in self._dropped or (lease not in self._heard and now >= self.settled_at)

    def forget_claim(self, lease: str) -> None:
        """It was not committed."""
        if lease not in self.entries:
            self._places.release(lease)
            self._heard.discard(lease)

    def apply(self, changes: Mapping[str, Entry | None], version: int, *, is_next: bool = True) -> None:
        """What the store has committed as `version`. Not `is_next`: there may have been others before it."""
        self._first = self._first or (version if is_next else self._loaded + 1)
        for lease, entry in changes.items():
            if lease.startswith(NOTES):
                self.notes.pop(lease, None)
                if entry is not None:
                    self.notes[lease] = entry
                continue
            known = self.entries.get(lease)
            if entry is not None and known is not None and (entry.member, entry.proof) == (known.member, known.proof):
                self.entries[lease] = entry  # another owner: nothing to tell
                continue
            self._dropped.pop(lease, None)  # who left says nothing about the network
            self.entries.pop(lease, None)
            if entry is None:
                self.forget_claim(lease)
                if known is None:
                    continue
            else:
                self.farewells.pop(lease, None)
                self.entries[lease] = entry
                self._places.claim(lease, entry.member)
            self._changes[lease] = (version, entry)
            self._changes.move_to_end(lease)
        while len(self.farewells) > FAREWELLS_MAX:
            self.farewells.popitem(last=False)
        while len(self._changes) > CHANGES_MAX:
            _, (self._floor, _) = self._changes.popitem(last=False)
        self.version = version
        self._told.clear()

    def differences(self, stored: Stored) -> dict[str, Entry | None]:
        """What to `apply` to become what the store has."""
        ours = self.entries | self.notes
        changes: dict[str, Entry | None] = dict.fromkeys(lease for lease in ours if lease not in stored.entries)
        changes.update({lease: entry for lease, entry in stored.entries.items() if ours.get(lease) != entry})
        return changes

    def noted(self, kind: str) -> list[tuple[str, Entry]]:
        """Who is banned, enrolled or invited."""
        return [(lease.removeprefix(kind), entry) for lease, entry in self.notes.items() if lease.startswith(kind)]

    # --- what watchers are told -------------------------------------------------------------------------------------

    def since(self, after: int, now: float) -> tuple[bytes, str] | None:
        """The signed line that leads from version `after` to now; None where nothing has to be told."""
        if after == self.version:
            return None
        base = after if after and self._floor <= after < self.version else None
        if base not in self._told:
            self._told[base] = self._write(base, now)
        return self._told[base]

    def _write(self, base: int | None, now: float) -> tuple[bytes, str]:
        joined = self.entries
        left: list[str] = []
        if base is not None:
            changes: dict[str, Entry] = {}
            for lease, (version, changed) in reversed(self._changes.items()):
                if version <= base:
                    break
                if changed is None:
                    left.append(wire.key_of(lease))
                else:
                    changes[lease] = changed
            joined = dict(reversed(changes.items()))
        settling_s = max(0.0, self.settled_at - now)
        told = [wire.entry(lease, entry.member) for lease, entry in joined.items()]
        proofs = {wire.key_of(lease): entry.proof for lease, entry in joined.items() if entry.proof}
        banned = sorted(who for who, _ in self.noted(BAN))
        line = wire.write(self.name, self.version, base, settling_s, told, left, banned, proofs)
        return line, self._signer.sign(line)

    def knows(self, version: int) -> bool:
        """False: a client has seen a version that was never there since this registry knows the group (G3)."""
        return version <= self._loaded or max(self._first, self._loaded + 1) <= version <= self.version

    def begin_anew(self, version: int, settled_at: float) -> None:
        """All are told the whole list."""
        self.version = self._floor = self._loaded = self._first = version
        self.settled_at = settled_at
        self._changes.clear()
        self._told.clear()

    # --- leases -----------------------------------------------------------------------------------------------------

    def heard(self, lease: str, deadline: float) -> None:
        self.deadlines[lease] = deadline
        self._heard.add(lease)
        self._dropped.pop(lease, None)

    def adopt(self, owners: Iterable[str], deadline: float) -> None:
        """Members of dead registries get a whole lease more, in which to come here."""
        living = frozenset(owners)
        for lease, entry in self.entries.items():
            if entry.owner not in living:
                self.deadlines.setdefault(lease, deadline)

    def stream_opened(self, lease: str) -> None:
        self.standing[lease] = self.standing.get(lease, 0) + 1
        self._dropped.pop(lease, None)

    def stream_broke(self, lease: str, now: float) -> None:
        self.standing[lease] -= 1
        if not self.standing[lease]:
            del self.standing[lease]
            if lease in self.entries:
                self._dropped[lease] = now

    def over(self, now: float) -> list[str]:
        """The leases that are over; each is told once."""
        late = [lease for lease, deadline in self.deadlines.items() if deadline <= now]
        for lease in late:
            del self.deadlines[lease]
        broken = [lease for lease, at in self._dropped.items() if at + DROPPED_S <= now]
        is_believed = len(self._dropped) <= len(self.standing)
        for lease in broken:
            del self._dropped[lease]
        if is_believed:
            for lease in broken:
                self.deadlines.pop(lease, None)
            late += broken
        return [lease for lease in dict.fromkeys(late) if lease in self.entries]

    def is_idle(self, now: float) -> bool:
        return not self.entries and not self.notes and not self.standing and now - self.used_at > FORGET_S
