"""Sealing as docs and decisions describe it, written a second time from nothing but HMAC and AES-SIV."""

import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESSIV


def cipher(key: bytes, number: int, sender: int, group: str) -> AESSIV:
    """HKDF of RFC 5869: extract, then expand to two blocks."""
    extracted = hmac.digest(b"softmutex 1", key, "sha256")
    info = number.to_bytes() + sender.to_bytes(8) + group.encode()
    first = hmac.digest(extracted, info + b"\x01", "sha256")
    return AESSIV(first + hmac.digest(extracted, first + info + b"\x02", "sha256"))


def header(number: int, sender: int, counter: int) -> bytes:
    return b"\xabM\x01" + number.to_bytes() + sender.to_bytes(8) + counter.to_bytes(8)


def seal(body: bytes, key: bytes, number: int, sender: int, counter: int, group: str) -> bytes:
    begin = header(number, sender, counter)
    return begin + cipher(key, number, sender, group).encrypt(body, [begin])
