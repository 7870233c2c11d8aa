"""Who a member is, beyond somebody who has the group's key: certificates, and signatures under hand-overs. Optional.

    member                                   registry (authority)               other members
      | public key, name, proof -- POST -------> |                                  |
      | <------ certificate: name, key, group, from, until; signed                  |
      | HELLO with cookie, WELCOME, PONG, OFFER, COMMIT + certificate + signature --> | verify: then it is vouched for

What it decides: whose word is taken, where the key alone is not enough (`require_identity`): a member for whom nobody
vouches is not taken in, a hand-over that is not signed is refused, and whatever else is said in the name of a life is
believed only if it is signed or sealed with what that life and this one share (`sessions.py`). The naive way, a
signature under every frame, costs 80 us each; the other one, to let anybody with the key say what hands nothing over,
lets him say farewell for others, and use up their counters.

    sealed body, where bit 63 of the counter is set:
                  n | certificate (n bytes) | half (32) | mark (8) | signature (64) | body as without
    certificate:  1 | from (u64, s) | until (u64, s) | public key (32) | group (8) | n | name (n bytes) | signature (64)
    signed:       SIGNED_AS | group (u64) | header (sender, counter) | half | mark | body (receiver, mutex, message)

V1  A signature is good for one frame: it covers sender, counter, receiver, group, mutex and message. Nothing that is
    kept of a life changes by a frame that is neither signed by it nor sealed with what it shares with this one.
V2  A wrong signature or certificate is refused whether identities are required or not. Times bear CLOCK_SLACK_S.
V3  What is remembered is bounded: one entry for each sender that the seal remembers (S2), the last certificates.
V4  A certificate that cannot be renewed is used up to its end, the node is told of long before: it is renewed at half
    of its time, so that an authority that is away for half of it stops nobody.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import struct
import time
from collections.abc import Callable, Collection, Container
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, get_args, get_type_hints

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from softmutex import plugins
from softmutex.core.errors import ConfigError
from softmutex.core.events import NodeId, Token
from softmutex.core.messages import Challenge, Hello, Message, Pong, StatusRequest, Welcome
from softmutex.core.wire import Frame
from softmutex.ports import Authority, CannotOpen, Membership
from softmutex.runtime.config import Settings
from softmutex.runtime.sealing import Seal, Unsealed, read_keys
from softmutex.runtime.sessions import SHOWN, Sessions
from softmutex.runtime.warned import Warned
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.core.chance import Rng

log = logger("keys")

CERTIFIED_AS = b"softmutex certificate 1\n"
REQUESTED_AS = b"softmutex certificate request 1\n"
SIGNED_AS = b"softmutex frame 1\n"
SIGNATURE = 64
NAME_MAX = 64
CLOCK_SLACK_S = 900  # clocks that are off by less do no harm
CERTIFICATES_KEPT = 4096
FIRST_S = 3.0  # so long a node that opens waits for its certificate
AGAIN_S, AGAIN_MAX_S = 2.0, 60.0
_FIXED = struct.Struct(">BQQ32s8sB")
_FORM = 1
CERTIFICATE_MAX = _FIXED.size + NAME_MAX + SIGNATURE
ATTESTATION_MAX = 1 + CERTIFICATE_MAX + SHOWN + SIGNATURE
SIGNED: frozenset[type[Message]] = frozenset({Hello, Welcome, Pong})  # and whatever carries a token
# What anybody with the key may say who has shown nothing yet: who asks, and who answers and is told that it must.
FROM_STRANGERS: frozenset[type[Message]] = frozenset({Hello, Challenge, Welcome, StatusRequest})

Sign = Callable[[bytes], bytes]


@cache
def hands_over(kind: type[Message]) -> bool:
    """Whether such a message carries a token, of whatever algorithm."""
    return any(hint is Token or Token in get_args(hint) for hint in get_type_hints(kind).values())


class Certificate(NamedTuple):
    name: str
    public: bytes
    group: bytes
    not_before: int
    not_after: int
    signed: bytes
    signature: bytes


def group_mark(group: str) -> bytes:
    return hashlib.blake2b(group.encode(), digest_size=8, person=b"certificate").digest()


def issue(sign: Sign, name: str, public: bytes, group: str, not_before: int, not_after: int) -> bytes:
    """For the authority. `name` of at most NAME_MAX bytes of UTF-8."""
    written = name.encode()
    told = _FIXED.pack(_FORM, not_before, not_after, public, group_mark(group), len(written)) + written
    return told + sign(CERTIFIED_AS + told)


def read_certificate(raw: bytes) -> Certificate:
    """Any bytes give a certificate, of which nothing is checked yet, or ValueError."""
    if not _FIXED.size + SIGNATURE <= len(raw) <= CERTIFICATE_MAX:
        raise ValueError(f"a certificate of {len(raw)} bytes")
    form, not_before, not_after, public, group, size = _FIXED.unpack_from(raw)
    told, signature = raw[:-SIGNATURE], raw[-SIGNATURE:]
    if form != _FORM or size != len(told) - _FIXED.size:
        raise ValueError("a certificate of another form")
    return Certificate(told[_FIXED.size :].decode(), public, group, not_before, not_after, told, signature)


def proof_text(group: str, name: str, public: bytes) -> bytes:
    """What a member signs to show the authority that the key is its own."""
    return REQUESTED_AS + b"\n".join((group.encode(), name.encode(), public))


def is_signed(public: bytes, what: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, what)
    except (InvalidSignature, ValueError):
        return False
    return True


class Vouched(NamedTuple):
    """Whom the certificate of a sender names."""

    name: str
    public: bytes
    not_after: int


class IdentityVerdict(NamedTuple):
    """On a frame. With nothing said against it, and `vouched`: what it has shown, to be taken in once it proved new."""

    wrong: str = ""
    is_certain: bool = False  # that it is the sender's own frame, wrong as it is
    vouched: Vouched | None = None
    shown: bytes = b""
    is_paired: bool = False  # sealed with what the two share


BELIEVED = IdentityVerdict()
PAIRED = IdentityVerdict(is_paired=True)


class Vouching:
    """What one node signs with, and whom it believes. `sealing.py` asks it."""

    def __init__(
        self,
        *,
        group: int,
        authority: bytes,
        authority_group: str,
        required: bool,
        secret: bytes | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.required = required
        self.certificate = b""  # this node's own, as it is shown
        self.until = 0
        self.senders: dict[NodeId, Vouched] = {}
        self.sessions = Sessions()
        self.wall_s = wall_s
        self._frame_begins = SIGNED_AS + group.to_bytes(8)
        self._authority, self._mark = authority, group_mark(authority_group)
        self._key = None if secret is None else Ed25519PrivateKey.from_private_bytes(secret)
        self._believed: dict[bytes, Certificate] = {}

    @property
    def public(self) -> bytes:
        return b"" if self._key is None else self._key.public_key().public_bytes_raw()

    @property
    def shown(self) -> str:
        """As a ban names it."""
        return base64.urlsafe_b64encode(self.public).decode().rstrip("=")

    def begin_anew(self) -> None:
        """Another life of the same identity, which has met nobody."""
        self.senders = {}
        self.sessions = Sessions()

    # --- signing ----------------------------------------------------------------------------------------------------

    def adopt(self, raw: bytes) -> Certificate:
        """A new certificate of this node. ValueError where it is none that others would take."""
        certificate = read_certificate(raw)
        if certificate.public != self.public or not self._is_genuine(certificate):
            raise ValueError("a certificate for another key, of another group or by another authority")
        self.certificate, self.until = raw, certificate.not_after
        return certificate

    def prove(self, what: bytes) -> bytes:
        assert self._key is not None
        return self._key.sign(what)

    def attest(self, message: Message, receiver: NodeId, header: bytes, body: bytes) -> bytes:
        """What goes before the body; nothing where nothing is signed."""
        session = self.sessions.get(receiver)
        kind = type(message)
        wants_it = hands_over(kind) or (kind in SIGNED and not (isinstance(message, Hello) and not message.cookie))
        if not self.certificate or not (wants_it or (session is not None and not session.is_known_there)):
            return b""
        shown = self.sessions.shown_to(receiver)
        signature = self.prove(self._frame_begins + header + shown + body)
        return bytes([len(self.certificate)]) + self.certificate + shown + signature

    # --- believing --------------------------------------------------------------------------------------------------

    def is_vouched(self, sender: NodeId) -> bool:
        known = self.senders.get(sender)
        return known is not None and known.not_after + CLOCK_SLACK_S > self.wall_s()

    def demands_proof(self, sender: NodeId) -> bool:
        """A frame in this name counts only if it is signed, or sealed with what the two share."""
        session = self.sessions.get(sender)
        return self.required or (session is not None and session.is_spoken)

    def judge(
        self, frame: Frame, header: bytes, attestation: bytes, body: bytes, *, is_paired: bool
    ) -> IdentityVerdict:
        """Whether this frame is believed."""
        if attestation:
            return self._judge_signed(frame, header, attestation, body)._replace(is_paired=is_paired)
        kind = type(frame.message)
        if is_paired:
            is_wrong = self.required and hands_over(kind)
            return IdentityVerdict("hands a token over without a signature", is_certain=True) if is_wrong else PAIRED
        if not frame.receiver or not self.demands_proof(frame.sender):
            return BELIEVED
        is_harmless = kind is Challenge or (isinstance(frame.message, Hello) and not frame.message.cookie)
        if is_harmless or (kind in FROM_STRANGERS and self.sessions.get(frame.sender) is None):
            return BELIEVED
        return IdentityVerdict("does not show who it is")

    def judge_own(self, verdict: IdentityVerdict, *, is_opening: bool) -> IdentityVerdict:
        """On a frame in the name of this very life: a greeting of its own, or of a clone, which has its identity."""
        if is_opening or verdict.wrong:
            return IdentityVerdict(verdict.wrong)
        is_own = verdict.vouched is not None and verdict.vouched.public == self.public
        return BELIEVED if is_own else IdentityVerdict("does not show that it is this node, in whose name it speaks")

    def _judge_signed(self, frame: Frame, header: bytes, attestation: bytes, body: bytes) -> IdentityVerdict:
        end = len(attestation) - SIGNATURE
        raw, shown, signature = attestation[1 : end - SHOWN], attestation[end - SHOWN : end], attestation[end:]
        certificate = self._believed.get(raw)
        if certificate is None:
            try:
                certificate = read_certificate(raw)
            except ValueError as error:
                return IdentityVerdict(f"shows {error}")
            if not self._is_genuine(certificate):
                return IdentityVerdict("shows a certificate of another authority or another group")
            if len(self._believed) >= CERTIFICATES_KEPT:
                del self._believed[next(iter(self._believed))]
            self._believed[raw] = certificate
        if not is_signed(certificate.public, self._frame_begins + header + shown + body, signature):
            return IdentityVerdict(f"shows the certificate of {certificate.name!r} and has not its key")
        if wrong := self.sessions.objection(frame.sender, certificate.public, shown):
            return IdentityVerdict(wrong)
        if wrong := untimely(certificate, self.wall_s()):
            return IdentityVerdict(wrong, is_certain=True)
        vouched = Vouched(certificate.name, certificate.public, certificate.not_after)
        return IdentityVerdict(vouched=vouched if frame.receiver else None, shown=shown)

    def take_in(self, sender: NodeId, verdict: IdentityVerdict) -> None:
        """Its frame is new, and the seal remembers its counters from now on."""
        if verdict.is_paired:
            self.sessions.spoken(sender)
        if verdict.vouched is not None:
            self.senders[sender] = verdict.vouched
            self.sessions.met(sender, verdict.vouched.public, verdict.shown)

    def forget(self, but: Container[NodeId]) -> None:
        self.senders = {sender: vouched for sender, vouched in self.senders.items() if sender in but}
        self.sessions.forget(but)

    def strike(self, identities: Collection[int | bytes]) -> list[NodeId]:
        """They are banned: what they said of themselves keeps nobody else from an id. Whose ids they had."""
        struck = [sender for sender, each in self.senders.items() if each.public in identities]
        self.senders = {sender: each for sender, each in self.senders.items() if each.public not in identities}
        self.sessions.strike(identities)
        return struck

    def _is_genuine(self, certificate: Certificate) -> bool:
        signed = CERTIFIED_AS + certificate.signed
        return certificate.group == self._mark and is_signed(self._authority, signed, certificate.signature)


def untimely(certificate: Certificate, now_s: float) -> str:
    late_s, early_s = now_s - certificate.not_after, certificate.not_before - now_s
    if late_s > CLOCK_SLACK_S:
        remedy = "It should have renewed it (its log says why not); if it is fresh, one of the two clocks is wrong"
        return f"shows a certificate that expired {late_s / 3600:.1f} hours ago by the clock of this host. {remedy}"
    if early_s > CLOCK_SLACK_S:
        remedy = "One of the two clocks is wrong: set them by NTP"
        return f"shows a certificate that begins in {early_s / 3600:.1f} hours by the clock of this host. {remedy}"
    return ""


# --- a node's own certificate -----------------------------------------------------------------------------------------


class NodeForPapers(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    rng: Rng

    def warn(self, what: str, message: str, *, once: str = "") -> None: ...


class Papers:
    """Keeps the certificate of a node fresh. The last one is kept beside the identity, for the next start."""

    def __init__(self, node: NodeForPapers, vouching: Vouching, authority: Authority, file: Path, name: str) -> None:
        self._node, self._vouching, self._authority, self._name = node, vouching, authority, name
        self._kept = file.with_name(file.name + ".certificate")
        self._half_s = 0.0  # of the certificate's time
        self._first = asyncio.Event()

    async def first(self) -> None:
        """Waits for a certificate, but not for ever: what is not there yet comes later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await self._first.wait()

    def _last_one(self) -> bytes:
        try:
            return self._kept.read_bytes()
        except OSError:
            return b""

    def _adopt(self, raw: bytes) -> Certificate:
        certificate = self._vouching.adopt(raw)
        self._half_s = (certificate.not_after - certificate.not_before) / 2
        if not untimely(certificate, self._vouching.wall_s()):
            self._first.set()
        return certificate

    async def renew_forever(self) -> None:
        """By durations: a clock that is wrong, or set, makes nobody ask without end."""
        pause_s, failures = 0.0, 0
        with contextlib.suppress(ValueError):
            self._adopt(self._last_one())
            left_s = self._vouching.until - self._vouching.wall_s()
            pause_s = left_s - self._half_s if left_s <= 2 * self._half_s else 0.0
        while True:
            await asyncio.sleep(max(0.0, pause_s))
            try:
                await self._renew()
                pause_s, failures = self._half_s * (0.9 + 0.1 * self._node.rng.random()), 0
            except (CannotOpen, ValueError) as error:
                self._complain(str(error))
                pause_s = min(AGAIN_MAX_S, AGAIN_S * 2 ** min(failures, 10)) * (0.75 + 0.5 * self._node.rng.random())
                failures += 1

    async def _renew(self) -> None:
        public = self._vouching.public
        proof = self._vouching.prove(proof_text(self._authority.group, self._name, public))
        raw = await self._authority.certify(self._name, public, proof)
        certificate = self._adopt(raw)
        off_s = certificate.not_before - self._vouching.wall_s()
        if abs(off_s) > CLOCK_SLACK_S:
            way = "behind" if off_s > 0 else "ahead of"
            self._node.warn(
                "clock",
                f"the clock of this host is {abs(off_s) / 3600:.1f} hours {way} the one of the authority: it and the "
                "others refuse each other's certificates. Set it by NTP.",
                once="clock",
            )
        self._keep(raw)

    def _keep(self, raw: bytes) -> None:
        from softmutex.runtime.keyfile import replace

        try:
            replace(self._kept, raw)
        except OSError as error:
            log.info("the certificate cannot be kept in %s for the next start: %s", self._kept, error)

    def _complain(self, why: str) -> None:
        left_s = self._vouching.until - self._vouching.wall_s()
        if left_s > 0:
            state = f"The one there is ends in {left_s / 3600:.1f} hours"
        elif self._vouching.certificate:
            state = (
                f"The one there was expired {-left_s / 3600:.1f} hours ago, and others refuse what this node hands over"
            )
        else:
            state = "There is none, and members that require identities do not take this node in"
        self._node.warn(
            "certificate", f"no certificate: {why} {state}. It is asked for again.", once=f"certificate {why}"
        )


class NodeForIdentity(NodeForPapers, Protocol):
    name: str
    group: int
    settings: Settings
    membership: Membership
    seal: Seal


class Identity:
    """Whom a node believes, and what it signs with."""

    def __init__(self, vouching: Vouching, papers: Papers | None, own_authority: Membership | None) -> None:
        self.vouching = vouching
        self.papers = papers  # its own, where it has some
        self._own_authority = own_authority  # where that is not the membership

    async def aclose(self) -> None:
        if self._own_authority is not None:
            await self._own_authority.aclose()


def load(node: NodeForIdentity) -> Identity:
    """What the settings say of identities."""
    settings = node.settings
    file, required = settings["identity"], settings["require_identity"]
    if isinstance(node.seal, Unsealed):
        raise ConfigError(
            "identities want a group key: frames that are not sealed are not signed. Set SOFTMUTEX_KEY_FILE."
        )
    if required and file is None:
        raise ConfigError(
            "require_identity without an identity of its own: nobody could prove to this node alone who it is. "
            "Make one: softmutex identity new FILE, and set SOFTMUTEX_IDENTITY=FILE."
        )
    url = settings["authority"]
    authority = node.membership if url is None else plugins.membership(url)
    if not isinstance(authority, Authority) or (public_key := authority.public_key) is None:
        raise ConfigError(
            "identities want an authority with a known key: authority=registry+https://host:port/GROUP?public_key=KEY, "
            "which the registry said at its start; or that as membership."
        )
    vouching = Vouching(
        group=node.group,
        authority=public_key,
        authority_group=authority.group,
        required=required,
        secret=None if file is None else read_keys(file)[0],
    )
    node.seal.vouching = vouching
    name = (settings["name"] or node.name)[:NAME_MAX]
    while len(name.encode()) > NAME_MAX:
        name = name[:-1]
    papers = None if file is None else Papers(node, vouching, authority, file, name)
    if authority is node.membership:
        return Identity(vouching, papers, None)
    if hasattr(authority, "banned"):
        node.membership = Warned(node.membership, authority)
    return Identity(vouching, papers, authority)
