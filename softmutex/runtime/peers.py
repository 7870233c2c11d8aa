"""Who else is there: from the hints of a membership to the sorted list of live nodes that all machines share (D5).

    membership: (address, id) --trusted--> member          local, registry, memory: of two that join, one sees the other
    membership: (address, id or 0) ------> greeted --WELCOME--> member          static, mdns: anybody may be listed
    a frame for this very life, or a proven HELLO ------------> member          it knows us; the list will follow
    member --a machine suspects it, or the list drops it--> probed --silence--> removed, greeted at leisure
                                                             `--PONG, any frame--> member
    member --BYE, a ban, a signature that is wrong--> removed

Where identities are required (`identity.py`), a membership is trusted with nobody: all are greeted, and who is not
vouched for is no member.

What it decides: silence is noticed on suspicion only. The naive way, beats from everybody to everybody, costs N²
messages for as long as nothing happens, and takes a busy node for a dead one. Here a node that nobody needs is never
asked.

P1  Only ids that a frame, or a membership that knows its members, vouched for are in `members`; sorted, with our own.
P2  A HELLO leaves no state behind until its cookie came back, and is never answered by more bytes than it had.
P3  A probe ends within PROBE_S · (2^PROBES - 1) seconds; then the peer is a member or it is not.
P4  Everything that others can make grow is bounded: members, newcomers a second, candidates, probes. Whoever is
    suspected while PROBES_AT_ONCE others are probed gets its turn after them; no suspicion is lost.
P5  A cookie is good only in a frame for the very life that gave it: what was recorded cannot greet, or ask, again.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from softmutex.core.events import SECOND, Instant, MembersChanged, NodeId, from_seconds
from softmutex.core.messages import Bye, Challenge, Hello, Message, Ping, Pong, Welcome
from softmutex.ports import Banning, Member, Membership, Transport
from softmutex.runtime import statistics
from softmutex.runtime.clock import Clock
from softmutex.runtime.timers import Timers
from softmutex.saying import logger

if TYPE_CHECKING:
    from collections import Counter

    from softmutex.core.chance import Rng
    from softmutex.runtime.identity import Vouching
    from softmutex.runtime.sealing import Seal

log = logger("group")

MEMBERS_MAX = 1 << 17
CANDIDATES_MAX = 4096
NEWCOMERS_A_SECOND = 2000
PROBES = 3
PROBE = from_seconds(0.2)  # the gap after the first ping; the next ones double
PROBES_AT_ONCE = 256
PUT_OFF = -1
GREETING = from_seconds(0.1)  # the gap after the first HELLO; the next ones double ...
GREETING_MAX = from_seconds(30.0)  # ... up to this
AT_LEISURE = 5  # doublings that are skipped for a node that was silent
BYES_MAX = 64
PARTED_MAX = 1024


class NodeForPeers(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    id: NodeId
    name: str
    group: int
    now: Clock
    rng: Rng
    timers: Timers
    transport: Transport
    membership: Membership
    vouching: Vouching | None
    seal: Seal
    warnings: Counter[str]

    def send(self, to: NodeId, mutex: str, message: Message, address: str | None = None) -> None: ...

    def drop(self, why: str, count: int = 1) -> None: ...

    def warn(self, what: str, message: str, *, once: str = "") -> None: ...

    def call(self, id: NodeId) -> str: ...

    def members_changed(self, event: MembersChanged) -> None: ...

    def something_changed(self) -> None: ...

    def set_banned(self, is_banned: bool) -> None: ...

    def membership_is_complete(self) -> bool: ...


class Peer:
    __slots__ = ("address", "heard_at", "id", "listed", "name", "pings")

    def __init__(self, id: NodeId, address: str, name: str = "") -> None:
        self.id = id
        self.address = address  # where its last frame came from; where it is listed, before the first one
        self.name = name
        self.listed: Member | None = None  # as the membership shows it now
        self.heard_at: Instant = 0
        self.pings = 0  # sent without an answer; 0: not suspected, PUT_OFF: waits for its probe


class Greeting:
    """An address whose node is not known yet, or was silent."""

    __slots__ = ("member", "nonce", "tries")

    def __init__(self, member: Member, nonce: int, tries: int) -> None:
        self.member = member
        self.nonce = nonce
        self.tries = tries


class Peers:
    def __init__(self, node: NodeForPeers) -> None:
        self._node = node
        self.members: list[NodeId] = [node.id]
        self.made_of_members: dict[str, Any] = {}  # by the machines, for all of them
        self.table: dict[NodeId, Peer] = {}
        self.greetings: dict[str, Greeting] = {}
        self._shown: dict[str, Member] = {}  # by the membership, as of now
        self._nonces: dict[int, Greeting] = {}
        self._mine = {node.transport.address}  # addresses at which this node met itself
        self._secret = secrets.token_bytes(16)
        self._newcomers = 0
        self._newcomers_second = 0
        self.banned: frozenset[int | bytes] = frozenset()
        self._probing = 0
        self._put_off: dict[NodeId, Peer] = {}  # whose probe has to wait, in the order of suspicion
        self._parted: dict[NodeId, None] = {}  # said farewell: what they sent before is heard, and makes no member
        self._told_bye: set[NodeId] = set()
        self._doubled: set[str] = set()  # names that were told of

    # --- what the membership says -----------------------------------------------------------------------------------

    def update(self, view: Iterable[Member]) -> None:
        """The membership's list of the others, whole."""
        shown = self._shown = {member.address: member for member in view}
        if isinstance(self._node.membership, Banning):
            self._heed(self._node.membership.banned)
        trusted = self._node.membership_is_complete()
        believed = trusted and not self._requires_identity()
        for address, greeting in list(self.greetings.items()):
            if shown.get(address) != greeting.member:
                self._stop_greeting(address)
        listed_before = [peer for peer in self.table.values() if peer.listed is not None]
        for peer in listed_before:
            peer.listed = None
        at = {peer.address: peer for peer in self.table.values()}
        joined = []
        for address, member in shown.items():
            known = self.table.get(member.id) if member.id else at.get(address)
            if known is not None:
                known.listed = member
            elif address in self._mine or address in self.greetings or member.id == self._node.id:
                continue
            elif member.id in self.banned:
                self._ignore(member.id, member.name or address)
            elif member.id and believed:
                self._parted.pop(member.id, None)
                joined.append(member)
            else:
                self._greet(member)
        self._admit(joined, listed=True)
        gone = [peer.id for peer in listed_before if peer.listed is None]
        if trusted:
            for id in gone:
                self._part(id)
            self._remove(gone)
        else:
            for id in gone:
                self.suspect(id)
        if joined:
            self._look_at_names()

    def is_listed(self, address: str) -> bool:
        """Whether the membership shows somebody there: what else sends from anywhere is not worth a word."""
        return address in self._shown

    # --- members ----------------------------------------------------------------------------------------------------

    def heard(self, sender: NodeId, source: str) -> Peer | None:
        """A frame of `sender` for this very life came from `source`. None where there is no room for one more."""
        if sender in self._parted:
            return None if self._is_banned(sender) else Peer(sender, source)
        peer = self.table.get(sender) or self._newcomer(sender, source)
        if peer is not None:
            peer.address = source
            peer.heard_at = self._node.now()
            if peer.pings:
                self._trust(peer)
        return peer

    def _newcomer(self, id: NodeId, address: str) -> Peer | None:
        second = self._node.now() // SECOND
        if second != self._newcomers_second:
            self._newcomers, self._newcomers_second = 0, second
        self._newcomers += 1
        if self._newcomers > NEWCOMERS_A_SECOND:
            self._node.drop("newcomers")
            return None
        if self._is_banned(id):
            self._ignore(id, address)
            return None
        if self._requires_identity() and not self._is_vouched(id):
            self._node.drop("no identity")
            self._greet_stranger(id, address)
            return None
        self._admit([Member(address, id)], listed=False)
        return self.table.get(id)

    def _admit(self, newcomers: Sequence[Member], listed: bool) -> None:
        room = MEMBERS_MAX - len(self.members)
        if len(newcomers) > room:
            self._node.drop("members", len(newcomers) - room)
            newcomers = newcomers[:room]
        if not newcomers:
            return
        for member in newcomers:
            peer = self.table[member.id] = Peer(member.id, member.address, member.name)
            peer.listed = member if listed else None
            self._stop_greeting(member.address)
        if len(newcomers) == 1:
            insort(self.members, newcomers[0].id)
        if len(newcomers) > 1:
            self.members[:] = sorted({*self.members, *(member.id for member in newcomers)})
        self._node.members_changed(MembersChanged(tuple(member.id for member in newcomers), ()))

    def _part(self, id: NodeId) -> None:
        self._parted[id] = None
        if len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def _remove(self, ids: Sequence[NodeId]) -> None:
        gone = [id for id in ids if id in self.table]
        for id in gone:
            peer = self.table.pop(id)
            if peer.pings:
                self._trust(peer)
            del self.members[bisect_left(self.members, id)]
        if gone:
            self._node.members_changed(MembersChanged((), tuple(gone)))

    def _look_at_names(self) -> None:
        """Two live nodes of one name are no harm, but confuse their people: told once."""
        seen = {self._node.name}
        for peer in self.table.values():
            if peer.name in seen and peer.name not in self._doubled:
                self._doubled.add(peer.name)
                where = f"one is at {peer.address}"
                self._node.warn("names", f"two live nodes are named {peer.name!r} ({where}). Give each its own.")
            if peer.name:
                seen.add(peer.name)

    # --- who is not wanted ------------------------------------------------------------------------------------------

    def _requires_identity(self) -> bool:
        return self._node.vouching is not None and self._node.vouching.required

    def _is_vouched(self, id: NodeId) -> bool:
        return self._node.vouching is not None and self._node.vouching.is_vouched(id)

    def _identity_of(self, id: NodeId) -> bytes:
        vouched = self._node.vouching.senders.get(id) if self._node.vouching is not None else None
        return b"" if vouched is None else vouched.public

    def _is_banned(self, id: NodeId) -> bool:
        return bool(self.banned) and (id in self.banned or self._identity_of(id) in self.banned)

    def _heed(self, banned: frozenset[int | bytes]) -> None:
        """Ids of lives, and public keys of identities. Whom the list no longer names may come back."""
        if banned == self.banned:
            return
        self.banned = banned
        own = {self._node.id, self._node.vouching.public if self._node.vouching is not None else b""}
        self._node.set_banned(not own.isdisjoint(banned))
        for id in [id for id in self.table if self._is_banned(id)]:
            self._ignore(id, self._node.call(id))
            self._remove([id])
        self._node.seal.strike(banned)

    def _ignore(self, id: NodeId, who: str) -> None:
        self._node.drop("banned")
        self._node.warn("banned", f"{who} is banned by the registry: this node ignores it.", once=f"banned {id}")

    def _greet_stranger(self, id: NodeId, address: str) -> None:
        """It may have an identity, and has not shown it yet."""
        if address not in self.greetings:
            self._greet(Member(address, id))

    def expel(self, id: NodeId, source: str, why: str) -> None:
        """What it hands over is refused: it must not be handed anything. NOBODY: it is not certain who that is."""
        who = self._node.call(id) if id in self.table else source
        self._node.warn(
            "certificates", f"{who} {why}. It is ignored until that is mended.", once=f"certificate {id or source}"
        )
        if self._node.vouching is not None and self._node.vouching.required:
            self._node.vouching.senders.pop(id, None)
            self._parted.pop(id, None)
            self._remove([id])

    # --- suspicion --------------------------------------------------------------------------------------------------

    def suspect(self, id: NodeId) -> None:
        peer = self.table.get(id)
        if peer is None or peer.pings:
            return
        if self._probing < PROBES_AT_ONCE:
            self._probing += 1
            self._probe(peer)
        else:
            self._node.warnings["probes put off"] += 1
            peer.pings = PUT_OFF
            self._put_off[id] = peer

    def _probe(self, peer: Peer) -> None:
        if peer.pings == PROBES:
            log.info("node %s at %s does not answer: it is no member any more", peer.name or peer.id, peer.address)
            self._remove([peer.id])
            if peer.listed is not None:
                self._greet(peer.listed, tries=AT_LEISURE)
            return
        gap = PROBE << peer.pings
        peer.pings += 1
        ping = Ping(secrets.randbits(64))
        self._node.send(peer.id, "", ping, peer.address)
        if peer.listed is not None and peer.listed.address != peer.address:
            self._node.send(peer.id, "", ping, peer.listed.address)
        self._node.timers.set(("probe", peer.id), self._node.now() + gap, self._probe, peer)

    def _trust(self, peer: Peer) -> None:
        """It answered, or is gone. Who waited for a probe is next."""
        was, peer.pings = peer.pings, 0
        if was == PUT_OFF:
            del self._put_off[peer.id]
            return
        self._node.timers.cancel(("probe", peer.id))
        if not self._put_off:
            self._probing -= 1
            return
        following = self._put_off.pop(next(iter(self._put_off)))
        following.pings = 0
        self._probe(following)

    # --- greetings --------------------------------------------------------------------------------------------------

    def _greet(self, member: Member, tries: int = 0) -> None:
        if len(self.greetings) >= CANDIDATES_MAX:
            self._node.drop("candidates")
            return
        greeting = self.greetings[member.address] = Greeting(member, secrets.randbits(64), tries)
        self._nonces[greeting.nonce] = greeting
        if tries:
            self._greet_later(greeting)
        else:
            self._greet_again(greeting)

    def _greet_again(self, greeting: Greeting) -> None:
        self._say_hello(greeting, greeting.member.id, 0)
        self._greet_later(greeting)

    def _greet_later(self, greeting: Greeting) -> None:
        gap = min(GREETING << min(greeting.tries, 16), GREETING_MAX)
        greeting.tries += 1
        at = self._node.now() + round(gap * (0.75 + 0.5 * self._node.rng.random()))
        self._node.timers.set(("greet", greeting.member.address), at, self._greet_again, greeting)

    def _stop_greeting(self, address: str) -> None:
        greeting = self.greetings.pop(address, None)
        if greeting is not None:
            del self._nonces[greeting.nonce]
            self._node.timers.cancel(("greet", address))
            self._node.something_changed()

    def _say_hello(self, greeting: Greeting, to: NodeId, cookie: int) -> None:
        hello = Hello(greeting.nonce, cookie, self._node.group, False, self._node.name)
        self._node.send(to, "", hello, greeting.member.address)

    def cookie(self, source: str, sender: NodeId) -> int:
        """Proves that who repeats it can be reached at `source`. Never 0."""
        proof = hashlib.blake2b(f"{sender} {source}".encode(), digest_size=8, key=self._secret).digest()
        return int.from_bytes(proof, "big") | 1

    # --- messages ---------------------------------------------------------------------------------------------------

    def received(self, sender: NodeId, message: Message, source: str, to_me: bool) -> bool:
        """True where the message was one of those that this module knows. `to_me`: addressed to this very life."""
        match message:
            case Hello():
                self._on_hello(sender, message, source, to_me)
            case Challenge(nonce, cookie) if to_me:
                if nonce in self._nonces:
                    self._say_hello(self._nonces[nonce], sender, cookie)
            case Welcome(nonce, group, name) if to_me:
                greeting = self._nonces.get(nonce)
                if greeting is not None and group == self._node.group:
                    self._introduce(sender, name, source, greeting.member)
            case Ping(nonce) if to_me:
                if self.heard(sender, source) is not None:
                    self._node.send(sender, "", Pong(nonce))
            case Pong() if to_me:
                self.heard(sender, source)
            case Bye() if to_me:
                if sender in self.table or not self._requires_identity():  # or a farewell would be a way in
                    self._part(sender)
                self._remove([sender])
            case _:
                return False
        return True

    def _on_hello(self, sender: NodeId, hello: Hello, source: str, to_me: bool) -> None:
        node = self._node
        if sender == node.id:
            greeting = self._nonces.get(hello.nonce)
            if greeting is not None:  # this address is our own
                self._mine.add(greeting.member.address)
                self._stop_greeting(greeting.member.address)
            return
        if hello.group != node.group:
            node.warn(
                "groups", f"a node of another group ({hello.name!r}, {source}) greets this one. It is not answered."
            )
            return
        cookie = self.cookie(source, sender)
        if hello.cookie != cookie or not to_me:
            node.send(sender, "", Challenge(hello.nonce, cookie), source)
            return
        node.send(sender, "", Welcome(hello.nonce, node.group, node.name), source)
        if not hello.visitor:
            self._introduce(sender, hello.name, source, None)

    def _introduce(self, id: NodeId, name: str, source: str, greeted: Member | None) -> None:
        """It proved that it is there. Who was at this address before is probably not any more."""
        if self._requires_identity() and not self._is_vouched(id) and not self._is_banned(id):
            why = "shows no certificate, and this node requires one (require_identity). It is not taken in"
            self._node.drop("no identity")
            self._node.warn("certificates", f"{name or 'a node'} at {source} {why}.", once=f"no certificate {source}")
            return
        listed = greeted or (self.greetings[source].member if source in self.greetings else None)
        if listed is not None:
            self._stop_greeting(listed.address)
        for other in [other.id for other in self.table.values() if other.address == source and other.id != id]:
            self.suspect(other)
        peer = self.heard(id, source)
        if peer is not None:
            peer.listed = peer.listed or listed
            if not peer.name:
                peer.name = name
                self._look_at_names()

    def say_bye(self) -> None:
        """To those who were heard last; the others hear it from the membership, or find out when they need us."""
        heard = sorted(self.table.values(), key=lambda peer: -peer.heard_at)
        for peer in heard[:BYES_MAX]:
            self.say_bye_to(peer.id)

    def say_bye_to(self, id: NodeId) -> None:
        if id not in self._told_bye:
            self._told_bye.add(id)
            self._node.send(id, "", Bye())

    def shown(self) -> tuple[statistics.Peer, ...]:
        now = self._node.now()
        return tuple(
            statistics.Peer(
                peer.id,
                peer.name,
                peer.address,
                (now - peer.heard_at) / SECOND if peer.heard_at else None,
                bool(peer.pings),
            )
            for peer in sorted(self.table.values(), key=lambda peer: (peer.name, peer.id))
        )
