"""What is needed of `cryptography` to seal frames. Imported with the first frame that is sealed or opened: a command
that meets nobody sends none, and would spend a fifth of its start on it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["AESSIV", "InvalidTag", "cipher_of"]

SUB_KEY_SIZE = 64  # one half authenticates, the other encrypts


def cipher_of(secret: bytes, salt: bytes, info: bytes) -> AESSIV:
    return AESSIV(HKDF(SHA256(), SUB_KEY_SIZE, salt=salt, info=info).derive(secret))
