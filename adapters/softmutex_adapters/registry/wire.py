"""The signed member list, as it goes over the line; for the registry, its clients and its page.

What it decides: a list, or what changed since one, is one line of JSON that stands for itself: it names its group, its
version and, if it is a change, the version that it changes. The signature covers these bytes. The naive way, a list
signed as it happens to be, can be shown again when it is long out of date, to another group, or on top of another list.

    {"group": "lab", "version": 1763469387123, "after": null, "settling_s": 0,
     "joined": [["5f2c0e1d9a3b4c7d", "10.0.0.7:9431", "00c0ffee00c0ffee", "ftp1"], ...], "left": []}

W1  `after: null` is the whole list. Otherwise it applies to the list of version `after`, and to no other.
W2  Versions of a group only grow, also over restarts and lost stores: they follow the clock of the registry in
    milliseconds, where that is later than the last one. A client takes no list that is older than what it has.
W3  `settling_s`: so long this list may still lack members that an earlier registry knew. A duration, no time of day.
W4  `banned`, where it is there, is the whole list of those whom the members ignore; in a change, too.
W5  An entry is known by its key, made from its lease. The lease itself is told to nobody: who knows it may end it.
W6  `proofs`: by key, what shows those who have the group's key that one of them wrote this entry, lease and all
    (`proved`). A registry that knows of such things says `proofs` in each list, and can make none: it has not that key.

A list that was signed once is genuine for ever. So whoever asks sends a nonce, and is told, signed, at which version
the group is at this very moment: `Softmutex-Fresh: VERSION SIGNATURE`. What it is shown must lead there.

As a server-sent event both are `data` lines, the JSON first; as an answer the signature is in a header.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softmutex.ports import Member

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNED_AS = b"softmutex registry 1\n"
FRESH_AS = b"softmutex registry fresh 1\n"
SIGNATURE_HEADER = "Softmutex-Signature"
KEY_HEADER = "Softmutex-Registry-Key"
NONCE_HEADER = "Softmutex-Nonce"
FRESH_HEADER = "Softmutex-Fresh"
LIST_MAX = 32 << 20  # bytes of one list, at the client
VERSION_MAX = 1 << 53  # beyond it a browser would round
GROUP = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
LEASE = NONCE = r"[A-Za-z0-9_-]{16,64}"
ADDRESS = r"[!-~]{3,256}"
PROOF = re.compile(r"[0-9a-f]{32}")
WHO = r"[0-9a-f]{16}|[A-Za-z0-9_-]{43}"
NAME_MAX = 128
KEY = re.compile(r"[0-9a-f]{16}")
ID = re.compile(r"[0-9a-f]{16}")


class Nonsense(ValueError):
    """What came is no list of a registry; the text says why."""


@dataclass(frozen=True, slots=True)
class MemberList:
    group: str
    version: int
    after: int | None
    settling_s: float
    joined: Sequence[tuple[str, Member]]  # by key
    left: Sequence[str]
    banned: Sequence[str] = ()
    proofs: Mapping[str, str] | None = None  # by key; None: of a registry that knows nothing of proofs


def key_of(lease: str) -> str:
    return hashlib.blake2b(lease.encode(), digest_size=8, person=b"lease").hexdigest()


def write(
    group: str,
    version: int,
    after: int | None,
    settling_s: float,
    joined: Iterable[Sequence[str]],
    left: Iterable[str],
    banned: Sequence[str] = (),
    proofs: Mapping[str, str] | None = None,
) -> bytes:
    told: dict[str, Any] = {"group": group, "version": version, "after": after, "settling_s": round(settling_s, 1)}
    told |= {"joined": list(joined), "left": list(left)} | ({"banned": banned} if banned else {})
    told |= {} if proofs is None else {"proofs": proofs}
    return json.dumps(told, separators=(",", ":")).encode()


def entry(lease: str, member: Member) -> list[str]:
    return [key_of(lease), member.address, f"{member.id:016x}", member.name]


def proved(group: str, key: str, member: Member) -> str:
    """What the proof of an entry is made for. Its key is that of a lease which others cannot have."""
    return f"{group}\n{key}\n{member.address}\n{member.id:016x}"


def read(line: bytes) -> MemberList:
    """Any bytes give a list, or `Nonsense`."""
    try:
        told = json.loads(line)
        after = told["after"]
        result = MemberList(
            group=_read_group(told["group"]),
            version=_version(told["version"]),
            after=None if after is None else _version(after),
            settling_s=min(max(0.0, float(told["settling_s"])), 3600.0),  # 0 where it is no number
            joined=[_read_entry(entry) for entry in _checked(told["joined"], list)],
            left=[_checked(key, str) for key in _checked(told["left"], list)],
            banned=[_read_who(who) for who in _checked(told.get("banned", []), list)],
            proofs=_read_proofs(told["proofs"]) if "proofs" in told else None,
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Nonsense(f"no member list ({type(error).__name__}: {str(error)[:80]})") from None
    if result.after is not None and result.after >= result.version:
        raise Nonsense(f"a change from version {result.after} back to {result.version}")
    return result


def _checked(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} wanted, {type(value).__name__} found")
    return value


def _read_group(value: Any) -> str:
    if not re.fullmatch(GROUP, value):
        raise ValueError("a list of no group")
    return str(value)


def _version(value: Any) -> int:
    version: int = _checked(value, int)
    if not 0 <= version < VERSION_MAX:
        raise ValueError(f"version {version} is out of bounds")
    return version


def _read_who(value: Any) -> str:
    if not re.fullmatch(WHO, value):
        raise ValueError("a ban of nobody")
    return str(value)


def _read_proofs(value: Any) -> dict[str, str]:
    for key, proof in _checked(value, dict).items():
        if not (KEY.fullmatch(key) and PROOF.fullmatch(proof)):
            raise ValueError("a proof of nothing")
    return dict(value)


def _read_entry(value: Any) -> tuple[str, Member]:
    key, address, id, name = _checked(value, list)
    if not (KEY.fullmatch(key) and re.fullmatch(ADDRESS, address) and ID.fullmatch(id)):
        raise ValueError("an entry without key, address or id")
    if len(_checked(name, str)) > NAME_MAX:
        raise ValueError("a name that is too long")
    return key, Member(address, int(id, 16), name)


# --- signatures -----------------------------------------------------------------------------------------------------


def to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def from_text(text: str, size: int) -> bytes:
    """ValueError where `text` is not `size` bytes in base 64, with or without padding."""
    try:
        raw = base64.b64decode(text.strip().rstrip("=") + "=" * (-size % 3), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text[:60]!r} is not base 64 ({error})") from None
    if len(raw) != size:
        raise ValueError(f"{text[:60]!r} holds {len(raw)} bytes instead of {size}")
    return raw


class Signer:
    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = to_text(self._key.public_key().public_bytes_raw())

    def sign(self, line: bytes) -> str:
        return to_text(self._key.sign(SIGNED_AS + line))

    def fresh(self, group: str, nonce: str, version: int) -> str:
        """`nonce` is what the one who asks has made for this request."""
        return f"{version} {to_text(self._key.sign(fresh_text(group, nonce, version)))}"

    def sign_bare(self, what: bytes) -> bytes:
        """`what` begins with words of its own that say what it is."""
        return self._key.sign(what)


def fresh_text(group: str, nonce: str, version: int) -> bytes:
    return FRESH_AS + f"{group}\n{nonce}\n{version}".encode()


def read_fresh(public: str, group: str, nonce: str, told: str) -> int:
    """The version at which the group is; `Nonsense` where this key has not signed it for this very nonce."""
    written, _, signature = told.partition(" ")
    is_number = written.isascii() and written.isdecimal() and len(written) <= 16
    if not is_number or not is_genuine(public, fresh_text(group, nonce, int(written)), signature):
        raise Nonsense("an answer to another request, or from a registry that is older than this member")
    return int(written)


def is_signed_by(public: str, line: bytes, signature: str) -> bool:
    return is_genuine(public, SIGNED_AS + line, signature)


def is_genuine(public: str, what: bytes, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(from_text(public, 32))
        key.verify(from_text(signature, 64), what)
    except (ValueError, InvalidSignature):
        return False
    return True


# --- server-sent events ---------------------------------------------------------------------------------------------


def event(version: int, line: bytes, signature: str) -> bytes:
    return b"event: members\nid: %d\ndata: %b\ndata: %b\n\n" % (version, line, signature.encode())


class EventReader:
    """Bytes of a stream in, (JSON line, signature) out. Whole events only; a comment gives nothing."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0

    def feed(self, data: bytes) -> list[tuple[bytes, str]]:
        self._rest += data
        found = []
        while (end := self._rest.find(b"\n\n", self._looked)) >= 0:
            lines = bytes(self._rest[:end]).split(b"\n")
            del self._rest[: end + 2]
            self._looked = 0
            said = [line[6:] for line in lines if line.startswith(b"data: ")]
            if len(said) == 2:
                found.append((said[0], said[1].decode("ascii", "replace")))
            elif said or not all(line.startswith(b":") for line in lines):
                raise Nonsense(f"no event of a registry: {lines[0][:60]!r}")
        self._looked = max(0, len(self._rest) - 1)
        if len(self._rest) > LIST_MAX:
            raise Nonsense(f"an event of over {LIST_MAX >> 20} MiB")
        return found
