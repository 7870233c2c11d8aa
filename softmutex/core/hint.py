"""What a node answers to somebody whose frames it cannot open: that it is there, and will not listen.

    byte   0       2     3     4         5        6        14        22
           +-------+-----+-----+---------+--------+--------+---------+
           | magic |  00 | why | version | key id | sender | counter |    the last three: as in what was refused
           +-------+-----+-----+---------+--------+--------+---------+

What it decides: how two can speak that have no key in common. The naive way, silence, tells only the members that are
right: the one that has last year's key looks for them, finds nobody, and works alone, as if all were well.

    why        1: it cannot be opened (another key, another group, or one of the two has none)  2: another version
    version    the one that this node speaks

H1  A hint is smaller than any frame, and nothing answers a hint: nobody gets more bytes sent than he spends.
H2  It gives nothing away: neither keys nor group nor members, and it goes only to hosts that the list of members names.
H3  It repeats the sender's id, 64 random bits, so nobody can make one up who has not seen the frame.
H4  It is a reason to say something, and not to begin alone. It never makes or removes a member, and ends no hold.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from softmutex.core.events import NodeId
from softmutex.core.tuples import NamedTuple
from softmutex.core.wire import HEADER_SIZE, MAGIC, VERSION

_MARK: Final = MAGIC + b"\0"  # a version that no frame ever had
_FORM: Final = struct.Struct(">3sBBBQQ")
HINT_SIZE: Final = _FORM.size


class Why(IntEnum):
    KEY = 1
    VERSION = 2


class Hint(NamedTuple):
    """`version` is what its author speaks, `sender` whose frame was refused."""

    why: Why
    version: int
    sender: NodeId


def write_hint(why: Why, refused: bytes) -> bytes:
    """To who has sent this. Empty where that is too small to be a frame, or a hint itself."""
    header = refused[len(_MARK) : HEADER_SIZE]
    if len(refused) <= HINT_SIZE or refused.startswith(_MARK):
        return b""
    return _MARK + bytes([why, VERSION]) + header


def read_hint(data: bytes) -> Hint | None:
    """None for whatever is no hint."""
    if len(data) != HINT_SIZE or not data.startswith(_MARK):
        return None
    _, why, version, _, sender, _ = _FORM.unpack(data)
    return Hint(Why(why), version, sender) if why in (Why.KEY, Why.VERSION) else None
