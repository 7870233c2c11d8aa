"""Which frames of whom were opened, so that none is opened twice, in a life that need not end.

    sender not heard of, nothing forgotten yet --> it is new: heard, and remembered
    the table is full ------------------------> half of it goes (members stay), and a new stamp begins
    sender not remembered, since something was forgotten --> PING(stamp of that sender) --PONG(stamp)--> remembered

What it decides: what a node may forget. The naive ways break. To forget the oldest: what was recorded of it can be
played back, and a dead holder's token lives again. To forget nobody and to refuse newcomers once the table is full:
each `softmutex run` is a sender, so that one day the newcomers and the others no longer hear each other, and both hold.
A memory of all that was ever forgotten grows as the table did.

So after something was forgotten a sender that is not remembered has to show that it is there now: by a number which
only the present stamp gives, and which was sent to it. Each forgetting begins another stamp, so a PONG that was
recorded before it proves nothing.

K1  A frame is opened at most once: as long as its sender is remembered, by its window; later, since it proves nothing.
K2  The table has SENDERS_MAX entries at most, whoever and how many come.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable

from softmutex.core.events import NodeId

WINDOW = 1024
SENDERS_MAX = 65_536
_WINDOW_MASK = (1 << WINDOW) - 1


class _Window:
    """Which counters of one sender were opened. Bit i of `seen`: `highest - i` was.

    `seen` has no more bits than it needs, so a sender that was heard once costs next to nothing; its highest bit is the
    oldest counter remembered.
    """

    __slots__ = ("highest", "seen")

    def __init__(self, counter: int) -> None:
        self.highest = counter
        self.seen = 1

    def is_new(self, counter: int) -> bool:
        behind = self.highest - counter
        return behind < 0 or (behind < self.seen.bit_length() and not self.seen >> behind & 1)

    def note(self, counter: int) -> None:
        ahead = counter - self.highest
        if ahead > 0:
            self.seen = (self.seen << ahead | 1) & _WINDOW_MASK if ahead < WINDOW else 1
            self.highest = counter
        else:
            self.seen |= 1 << -ahead


class Replays:
    def __init__(self) -> None:
        self.forgettings = 0
        self.members: Collection[NodeId] = ()  # who is kept, if possible
        self._windows: dict[NodeId, _Window] = {}
        self._secret = b""  # of the present stamp; none while nothing was forgotten

    def __contains__(self, sender: object) -> bool:
        return sender in self._windows

    def __len__(self) -> int:
        return len(self._windows)

    def is_new(self, sender: NodeId, counter: int) -> bool:
        window = self._windows.get(sender)
        return window is None or window.is_new(counter)

    def highest(self, sender: NodeId) -> int:
        """The highest counter of one that is remembered."""
        return self._windows[sender].highest

    def must_prove(self, sender: NodeId) -> bool:
        """It may be one that was forgotten."""
        return bool(self._secret) and sender not in self._windows

    def stamp(self, sender: NodeId) -> int:
        """What a sender says again to prove that it is there."""
        digest = hashlib.blake2b(sender.to_bytes(8), digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest)

    def note(self, sender: NodeId, counter: int) -> bool:
        """It was opened. True: others had to be forgotten for that."""
        window = self._windows.get(sender)
        if window is not None:
            window.note(counter)
            return False
        is_full = len(self._windows) >= SENDERS_MAX
        if is_full:
            self._forget()
        self._windows[sender] = _Window(counter)
        return is_full

    def drop(self, senders: Iterable[NodeId]) -> None:
        """What came from these is refused for another reason."""
        for sender in senders:
            self._windows.pop(sender, None)

    def _forget(self) -> None:
        """All but those that are members, half of the table at most: the ones that came last."""
        members = set(self.members)
        kept: dict[NodeId, _Window] = {}
        for sender in reversed(self._windows):
            if sender in members and len(kept) < SENDERS_MAX // 2:
                kept[sender] = self._windows[sender]
        self._windows = kept
        self._secret = secrets.token_bytes(32)
        self.forgettings += 1
