"""Frames that nobody without the group's key can forge, read, change or play back. `wire.py` has the frame's layout.

    seal:  header (key id, me, counter++) ----------------.---> header | tag | AES-256-SIV(body)
           body (receiver, mutex, message) ---------------'     associated data: the header, and so the counter
    open:  size, magic, version -> key id -> room, replay -> tag -> body -> receiver -> frame
           '------------- cheap -------------------------'   '--- one derivation, one decryption

    sub-key = HKDF-SHA256(group key, salt = "softmutex 1", info = key id (u8) | sender (u64) | group in UTF-8, 64 bytes)

What it decides: which datagrams deserve to be read. The naive ways break. A cipher that must never see a counter twice,
as GCM: a machine that is cloned, or set back to a snapshot, repeats thousands of them before anybody can notice, and
GCM then gives its key away. A cipher without a memory: a token played back an hour later is a second token. Plain text
where no key is set: one member that lost its key file talks openly, and nobody notices.

S1  A counter is used once: a sub-key belongs to one sender, a sender is one life (N1), its counter starts at 0, grows
    with every frame, and does not restart when the key changes. After a fork the child may not seal. Where it comes
    twice all the same, in a machine that was cloned, nothing is told but whether the two frames are the same (SIV,
    RFC 5297), until that life ends (`lives.py`).
S2  A frame is opened at most once in the life of its receiver. A receiver remembers the last 1,024 counters of every
    sender; what is older than all it remembers is refused. It remembers 65,536 senders (20 MB at most); when there are
    more, it forgets some, and who is not remembered has to prove that it is there now (`replays.py`).
S3  What was sealed for another life is refused: frames recorded before a restart are void after it.
S4  No memory is spent on a sender before a frame of its was opened that was meant for this very life. So a greeting
    (receiver 0) from a sender not heard before can be played back; it is answered by a cookie, and that is all.
S5  There is no fall-back: a node with a key refuses what is not sealed, one without refuses what is.
S6  `open` never raises on bytes from outside, and counts every refusal by its reason.
S7  Bit 63 of the counter says that a signature precedes the body (`identity.py`), bit 62 that it is sealed with what
    sender and receiver alone share (`sessions.py`). Both are part of the header, so they cannot be changed
    unseen. The other bits alone count.
S8  Where identities are required, frames that prove nothing of their sender move nothing that is kept of it: neither
    its counters nor whom it is known as.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from softmutex.core import epochs
from softmutex.core.errors import BadFrame, ConfigError, NodeClosed
from softmutex.core.events import NOBODY, Instant, NodeId
from softmutex.core.messages import Ahead, Bye, Challenge, Hello, Message, Ping, Pong
from softmutex.core.tuples import NamedTuple
from softmutex.core.wire import (
    HEADER_SIZE,
    MAX_FRAME,
    SMALLEST,
    TAG_SIZE,
    UNSEALED,
    Bytes,
    Frame,
    OtherVersion,
    UnfitForWire,
    admit,
    encode,
    read_body,
    read_header,
    write_body,
    write_header,
)
from softmutex.files import read_secret
from softmutex.runtime import forks
from softmutex.runtime.budgets import Quota
from softmutex.runtime.replays import Replays
from softmutex.runtime.sessions import SHOWN, Session

if TYPE_CHECKING:
    from softmutex.runtime.ciphers import AESSIV
    from softmutex.runtime.identity import IdentityVerdict, Vouching

KEY_SIZE = 32
SIGNATURE_SIZE = 64
PING_SIZE = SMALLEST + 8 + TAG_SIZE  # nobody is asked for a proof with more bytes than it sent
AHEAD_A_SECOND = 10  # senders of frames that were opened before are told so, at most
CIPHERS_KEPT = 16  # 2.4 KB each; to derive one anew costs about 4 us
SIGNED = 1 << 63  # in the counter
PAIRED = 1 << 62
FLAGS = SIGNED | PAIRED
OPENINGS = frozenset({Hello, Challenge})  # sealed so that those can read them who know nothing of each other
_SALT = b"softmutex 1"
_PAIR_SALT = b"softmutex 1 pair"
_URLSAFE = str.maketrans("-_", "+/")
KEY_FILE_MAX = 65_536


class Refusal(StrEnum):
    MALFORMED = "malformed"  # no frame, or a sealed one that its sender should not have made
    VERSION = "version"  # a peer of another version
    NOT_SEALED = "not_sealed"  # and this node has a key
    SEALED = "sealed"  # and this node has no key
    UNKNOWN_KEY = "unknown_key"  # sealed with a key that this node does not have (yet, or any more)
    FORGED = "forged"  # the tag is wrong: another key, another group, or changed on the way
    REPLAYED = "replayed"  # opened before, or too old to know
    MISDIRECTED = "misdirected"  # meant for another life
    REFLECTED = "reflected"  # one of this node's own; if not, another process lives under its id
    UNPROVEN = "unproven"  # of one that may have been forgotten: it is asked to show that it is there
    UNSIGNED = "unsigned"  # does not prove whose it is, where identities are required
    UNMET = "unmet"  # sealed for two of which this node is none, or does not know it (any more)
    EPOCH = "epoch"  # tells of a token of ages to come
    UNVOUCHED = "unvouched"  # the signature or the certificate with it is wrong, or out of date


class Refused(NamedTuple):
    reason: Refusal
    detail: str
    version: int = 0  # of the peer, where that is the reason
    sender: NodeId = 0  # where it is certain who that is
    answer: Message | None = None  # what it is to be told, at the address that it came from


# --- keys -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The group's keys by id (1 to 255), and which of them seals. The others only open: so keys can be changed."""

    keys: Mapping[int, bytes] = field(repr=False)
    use: int

    def __post_init__(self) -> None:
        for number, key in self.keys.items():
            if not 0 < number < 256:
                raise ConfigError(f"key id {number}: take one from 1 to 255.")
            if len(key) != KEY_SIZE:
                raise ConfigError(f"key {number} has {len(key)} bytes, and must have {KEY_SIZE}. {REMEDY}")
        if self.use not in self.keys:
            raise ConfigError(f"key {self.use} is to seal, and there is none (there are: {sorted(self.keys)}).")

    @classmethod
    def of(cls, first: bytes, *others: bytes) -> KeyRing:
        """`first` seals, all open. Ids follow from the keys, so that all members give the same key the same id."""
        keys: dict[int, bytes] = {}
        for key in (first, *others):
            number = key_id(key)
            if keys.setdefault(number, key) != key:
                raise ConfigError(f"two of these keys share the id {number}. Make the new one once more. {REMEDY}")
        return cls(keys, next(iter(keys)))


def key_id(key: bytes) -> int:
    """Follows from the key, so that all members call it the same, and tells nothing of it that would help a guess."""
    return 1 + int.from_bytes(hmac.digest(key, b"softmutex key id", "sha256")) % 255


REMEDY = "Make a key: softmutex key new FILE, and copy it to all members."


def parse_key(text: str, whence: str) -> bytes:
    """A key of 32 bytes from hexadecimal or base64. `whence` says in errors where it is from; it is never shown."""
    text = text.strip()
    try:
        if len(text) == 2 * KEY_SIZE:
            key = bytes.fromhex(text)
        else:
            key = base64.b64decode(text.translate(_URLSAFE) + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ConfigError(f"{whence}: neither hexadecimal nor base64 of {KEY_SIZE} bytes. {REMEDY}") from None
    if len(key) != KEY_SIZE:
        raise ConfigError(f"{whence}: a key of {len(key)} bytes, and it must have {KEY_SIZE}. {REMEDY}")
    return key


def read_keys(path: Path | str, *, of_anybody: bool = False, of_group: str | None = None) -> tuple[bytes, ...]:
    """The keys in a file, one a line, the one that seals first; or 32 bytes as they are. Only for its owner's eyes, and
    for those of a group of users where one was named."""
    remedy = REMEDY.replace("FILE", str(path))
    content = read_secret(path, "key file", remedy, most=KEY_FILE_MAX, of_anybody=of_anybody, of_group=of_group)
    if len(content) == KEY_SIZE:
        return (content,)
    lines = content[:KEY_FILE_MAX].decode("ascii", "replace").splitlines()
    keys = tuple(
        parse_key(line, f"the key file {path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not keys:
        raise ConfigError(f"the key file {path} has no key in it. {remedy}")
    return keys


def is_opening(message: Message) -> bool:
    """Of a greeting, and answered or not without anything that is kept."""
    return isinstance(message, Challenge) or (isinstance(message, Hello) and not message.cookie)


def signed_part(body: bytes) -> int:
    """How many bytes of the body are certificate and signature."""
    size = 1 + body[0] + SHOWN + SIGNATURE_SIZE if body else 0
    if not 0 < size < len(body):
        raise BadFrame("cut off in its signature")
    return size


def _cipher_of(secret: bytes, salt: bytes, info: bytes) -> AESSIV:
    from softmutex.runtime.ciphers import cipher_of  # brings `cryptography` along

    return cipher_of(secret, salt, info)


def _wrong_tag() -> type[Exception]:
    from softmutex.runtime.ciphers import InvalidTag

    return InvalidTag


# --- the doors ------------------------------------------------------------------------------------------------------


class _Door:
    def __init__(self, me: NodeId) -> None:
        self.me = me
        self.refusals = dict.fromkeys(Refusal, 0)
        self.key_ids: tuple[int, ...] = ()  # the one that seals first
        self._now: Callable[[], Instant] | None = None
        self.is_right = False  # another life, which knows this one, has used the key that seals here

    @property
    def sealed(self) -> int:
        """How many frames, in this life: 0 where nothing is."""
        return 0

    def serve(self, members: Collection[NodeId], now: Callable[[], Instant]) -> None:
        """What the node knows for whom it seals: who is forgotten last, and what time it is."""
        self._now = now

    def strike(self, banned: Collection[int | bytes]) -> None:
        """Ids of lives, and public keys of identities: nothing that these have claimed stands in anybody's way."""

    def _refuse(self, reason: Refusal, detail: str, version: int = 0) -> Refused:
        self.refusals[reason] += 1
        return Refused(reason, detail, version)

    def _refuse_bad(self, error: BadFrame) -> Refused:
        if isinstance(error, OtherVersion):
            return self._refuse(Refusal.VERSION, str(error), error.version)
        return self._refuse(Refusal.MALFORMED, str(error))

    def _misplaced(self, frame: Frame) -> Refused | None:
        """A node's own greeting may come back to it: that is how it learns that an address is its own, once a secret
        that went there in a frame for this very life came back, too. A second process under its id is found so, too."""
        is_greeting = frame.receiver == self.me and isinstance(frame.message, Hello | Challenge)
        if frame.sender == self.me and frame.receiver != NOBODY and not is_greeting:
            return self._refuse(Refusal.REFLECTED, "sealed by this node itself, or by another process under its id")
        if frame.receiver not in (self.me, NOBODY):
            return self._refuse(Refusal.MISDIRECTED, "meant for another life")
        return None

    def _impossible(self, frame: Frame) -> Refused | None:
        if self._now is None or epochs.is_possible(frame.message, self._now()):
            return None
        return self._refuse(Refusal.EPOCH, "tells of a token of ages to come")

    def _not_ours(self, frame: Frame) -> UnfitForWire:
        return UnfitForWire(f"a frame of node {frame.sender!r:.80}, and this is {self.me}: nobody sends for others.")


class Unsealed(_Door):
    """No key: frames as they are. Forgery and replays are possible; only for where strangers cannot send."""

    def seal(self, frame: Frame) -> bytes:
        if frame.sender != self.me:
            raise self._not_ours(frame)
        return encode(frame)

    def open(self, data: Bytes) -> Frame | Refused:
        try:
            data = admit(data)
            key, sender, counter = read_header(data)
            if key != UNSEALED:
                return self._refuse(Refusal.SEALED, f"sealed with key {key}, and this node has no key")
            if counter:
                return self._refuse(Refusal.MALFORMED, f"unsealed with counter {counter}, which must be 0")
            frame = read_body(sender, data, HEADER_SIZE)
        except BadFrame as error:
            return self._refuse_bad(error)
        return self._misplaced(frame) or self._impossible(frame) or frame


class Sealer(_Door):
    """One life's seal. `rekey` may be called at any time: counters and memory of replays go on."""

    def __init__(self, ring: KeyRing, group: str, me: NodeId) -> None:
        super().__init__(me)
        self._group = group.encode()
        self._counter = 0
        self.replays = Replays()
        self._aheads = Quota(AHEAD_A_SECOND)
        self._born = forks.here.generation
        self.vouching: Vouching | None = None
        self.rekey(ring)

    @property
    def sealed(self) -> int:
        """How many frames, in this life."""
        return self._counter

    def rekey(self, ring: KeyRing) -> None:
        self._keys = dict(ring.keys)
        self._ciphers: dict[tuple[int, NodeId], AESSIV] = {}
        self._pair_ciphers: dict[tuple[int, NodeId, NodeId], AESSIV] = {}
        self._use = ring.use
        self.is_right = False
        self.key_ids = (ring.use, *(number for number in ring.keys if number != ring.use))
        self._mine: AESSIV | None = None  # made with the first frame that is sealed

    def serve(self, members: Collection[NodeId], now: Callable[[], Instant]) -> None:
        super().serve(members, now)
        self.replays.members = members

    def strike(self, banned: Collection[int | bytes]) -> None:
        if self.vouching is not None:
            self.replays.drop(self.vouching.strike(banned))

    def _derive(self, key: int, sender: NodeId) -> AESSIV:
        info = key.to_bytes() + sender.to_bytes(8) + self._group
        return _cipher_of(self._keys[key], _SALT, info)

    def _seal_first(self) -> AESSIV:
        self._mine = self._derive(self._use, self.me)
        return self._mine

    def _new_cipher(self, key: int, sender: NodeId) -> AESSIV:
        """Kept for those who have been heard: strangers cannot push these out."""
        cipher = self._derive(key, sender)
        if sender in self.replays:
            if len(self._ciphers) >= CIPHERS_KEPT:
                del self._ciphers[next(iter(self._ciphers))]
            self._ciphers[key, sender] = cipher
        return cipher

    def seal(self, frame: Frame) -> bytes:
        if forks.here.generation != self._born:
            raise NodeClosed("this node belongs to the parent of this forked process: it would use a nonce twice.")
        if frame.sender != self.me:
            raise self._not_ours(frame)
        body = write_body(frame)
        counter = self._counter
        if counter >= PAIRED:
            raise UnfitForWire(f"counter {counter}: this life has sealed all that it can.")
        self._counter = counter + 1
        cipher = self._mine or self._seal_first()
        if self.vouching is not None:
            session = self.vouching.sessions.get(frame.receiver)
            if session is not None and session.is_known_there and type(frame.message) not in OPENINGS:
                counter |= PAIRED
                cipher = self._pair_cipher(self._use, self.me, frame.receiver, session)
            marked = write_header(self._use, self.me, counter | SIGNED)
            attestation = self.vouching.attest(frame.message, frame.receiver, marked, body)
            if attestation and len(marked) + len(attestation) + len(body) + TAG_SIZE <= MAX_FRAME:
                counter, body = counter | SIGNED, attestation + body
        header = write_header(self._use, self.me, counter)
        return header + cipher.encrypt(body, [header])

    def open(self, data: Bytes) -> Frame | Refused:
        try:
            data = admit(data)
            key, sender, number = read_header(data)
            counter = number & ~FLAGS
            if key == UNSEALED:
                return self._refuse(Refusal.NOT_SEALED, "not sealed, and this node has a key")
            if key not in self._keys:
                return self._refuse(Refusal.UNKNOWN_KEY, f"sealed with key {key}; this node has {sorted(self._keys)}")
            is_bare = number == counter and self.vouching is not None and self.vouching.demands_proof(sender)
            if not is_bare and not self.replays.is_new(sender, counter):
                return self._replayed(data, key, sender, number)
            cipher = None if number & PAIRED else self._ciphers.get((key, sender))
            cipher = cipher or self._cipher_of(key, sender, is_paired=bool(number & PAIRED))
            if cipher is None:
                return self._refuse(Refusal.UNMET, "sealed for two that are strangers here")
            header = data[:HEADER_SIZE]
            body = cipher.decrypt(data[HEADER_SIZE:], [header])
            begin = signed_part(body) if number & SIGNED else 0
            frame = read_body(sender, body, begin)
        except BadFrame as error:
            return self._refuse_bad(error)
        except _wrong_tag():
            return self._refuse(Refusal.FORGED, "sealed with another key or for another group, or changed on the way")
        if (frame.receiver != self.me or sender == self.me) and (misplaced := self._misplaced(frame)):
            return misplaced
        verdict = None
        if self.vouching is not None and (sender != self.me or self.vouching.required):
            is_paired = bool(number & PAIRED)
            verdict = self.vouching.judge(frame, header, body[:begin], body[begin:], is_paired=is_paired)
            if sender == self.me:
                verdict = self.vouching.judge_own(verdict, is_opening=is_opening(frame.message))
            if verdict.wrong:
                self.refusals[why := Refusal.UNVOUCHED if begin else Refusal.UNSIGNED] += 1
                return Refused(why, verdict.wrong, sender=sender if verdict.is_certain else NOBODY)
        if is_bare and type(frame.message) in OPENINGS:
            return frame
        whose = ~sender if is_bare else sender
        taken = self._impossible(frame) or self._take_in(frame, whose, counter, verdict, len(data))
        if not self.is_right and taken is frame and frame.receiver == self.me and sender != self.me:
            self.is_right = key == self._use
        return taken

    def _replayed(self, data: bytes, key: int, sender: NodeId, number: int) -> Refused:
        """Its sender, where that has sealed it indeed, is told how far it has got: it may have been set back."""
        refused = self._refuse(Refusal.REPLAYED, "opened before, or older than all that is remembered")
        if sender == self.me or len(data) < PING_SIZE or self._now is None or not self._aheads.take(self._now()):
            return refused
        cipher = self._cipher_of(key, sender, is_paired=bool(number & PAIRED))
        try:
            body = cipher.decrypt(data[HEADER_SIZE:], [data[:HEADER_SIZE]]) if cipher is not None else b""
            frame = read_body(sender, body, signed_part(body) if number & SIGNED else 0)
        except (BadFrame, _wrong_tag()):
            return refused
        if frame.receiver != self.me or isinstance(frame.message, Ahead | Bye):
            return refused
        return refused._replace(sender=sender, answer=Ahead(self.replays.highest(sender)))

    def _cipher_of(self, key: int, sender: NodeId, *, is_paired: bool) -> AESSIV | None:
        if not is_paired:
            return self._ciphers.get((key, sender)) or self._new_cipher(key, sender)
        session = self.vouching.sessions.get(sender) if self.vouching is not None else None
        return None if session is None else self._pair_cipher(key, sender, self.me, session)

    def _pair_cipher(self, key: int, sender: NodeId, receiver: NodeId, session: Session) -> AESSIV:
        name = (key, sender, receiver)
        cipher = self._pair_ciphers.get(name)
        if cipher is None:
            assert self.vouching is not None
            own = self.vouching.sessions.half
            halves = own + session.half if sender == self.me else session.half + own
            info = key.to_bytes() + sender.to_bytes(8) + receiver.to_bytes(8) + halves + self._group
            secret = self._keys[key] + session.shared
            cipher = _cipher_of(secret, _PAIR_SALT, info)
            if len(self._pair_ciphers) >= 2 * CIPHERS_KEPT:
                del self._pair_ciphers[next(iter(self._pair_ciphers))]
            self._pair_ciphers[name] = cipher
        return cipher

    def _take_in(
        self, frame: Frame, whose: NodeId, counter: int, verdict: IdentityVerdict | None, size: int
    ) -> Frame | Refused:
        """It is what it says. `whose`: counters of frames that prove nothing of their sender are kept apart."""
        replays, sender, message = self.replays, frame.sender, frame.message
        if whose != sender and not replays.is_new(whose, counter):  # of the others that was the first question
            return self._refuse(Refusal.REPLAYED, "opened before, or older than all that is remembered")
        if frame.receiver == self.me and whose == sender and replays.must_prove(sender):
            if is_opening(message):
                return frame
            if not (isinstance(message, Pong) and message.nonce == replays.stamp(sender)):
                self.refusals[Refusal.UNPROVEN] += 1
                answer = self._ask_for_proof(sender, message, size)
                return Refused(Refusal.UNPROVEN, "has not proved that it is there", sender=sender, answer=answer)
        if frame.receiver == self.me or whose in replays:
            if replays.note(whose, counter) and self.vouching is not None:
                self.vouching.forget(replays)
            if verdict is not None and self.vouching is not None:
                self.vouching.take_in(sender, verdict)
        return frame

    def _ask_for_proof(self, sender: NodeId, message: Message, size: int) -> Message | None:
        """A sender that is not remembered may be long dead. Two that have forgotten each other answer each other."""
        if isinstance(message, Ping):
            return Pong(message.nonce)
        wants_no_answer = isinstance(message, Bye | Pong) or size < PING_SIZE
        return None if wants_no_answer else Ping(self.replays.stamp(sender))


Seal: TypeAlias = Sealer | Unsealed
