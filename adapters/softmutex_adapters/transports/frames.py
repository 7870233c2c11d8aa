"""How frames travel over HTTP: several in one body, each behind its length, and the sender's address in a header.

    POST <base>/softmutex        Softmutex-From: <base of the sender>
    body = (length: 2 bytes, big-endian; frame: that many bytes) *       at most MAX_BODY bytes
    200: a body of the same form, the reply to a sender whose address is not known yet (`visits.py`); else 204

The header proves nothing, as the source of a UDP packet proves nothing. It says where to reply, so it must be a plain
http(s) address, and what is sent there always goes to a path that ends in /softmutex. Until this node has a reason of
its own to believe it, the source is marked: `http://host:port#visitor`.
"""

from __future__ import annotations

from collections import deque
from urllib.parse import urlsplit

MAX_BODY = 64 * 1024
LENGTH_BYTES = 2
MAX_FRAME = MAX_BODY - LENGTH_BYTES
ADDRESS_MAX = 512
PATH = "/softmutex"
SENDER_HEADER = "Softmutex-From"
BODY_TYPE = "application/octet-stream"
VISITOR = "#visitor"  # behind an address that only a header names; no header can have it


def pack(frames: deque[bytes]) -> tuple[bytes, int]:
    """Takes as many frames off the left as one body may have; gives the body and how many they are."""
    body, count = bytearray(), 0
    while frames and len(body) + LENGTH_BYTES + len(frames[0]) <= MAX_BODY:
        frame = frames.popleft()
        body += len(frame).to_bytes(LENGTH_BYTES, "big") + frame
        count += 1
    return bytes(body), count


def unpack(body: bytes) -> list[bytes] | None:
    """The frames of a body; None for whatever is not one. Total: any bytes give an answer, in linear time."""
    frames, place = [], 0
    while place < len(body):
        start = place + LENGTH_BYTES
        place = start + int.from_bytes(body[place:start], "big")
        if place > len(body) or place == start:
            return None
        frames.append(body[start:place])
    return frames or None


def read_base(address: str) -> str | None:
    """An address in its normal form, `http(s)://host[:port][/prefix]`; None for whatever is not one."""
    if not 0 < len(address) <= ADDRESS_MAX or not address.isascii() or not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
        is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or parts.port == 0:
            return None
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
