"""What a UDP socket that is connected to nobody hears of ports at which nobody listens.

Linux puts such news (ICMP "port unreachable") into an error queue of the socket, with the address that was sent to, if
it is asked to. It also lets the next operation on the socket fail once, whatever that is about: so whoever sends over
such a socket tries again after `ECONNREFUSED`.

    [ICMP] --> error queue --> `heard`: addresses        elsewhere than on Linux: never any

What it decides: only what was refused at the port counts. "Host unreachable" and the like may pass. And only what
quotes the datagram that it is about: whoever can write the name of a host under a packet can write such news of any
port, and two in a row make a member dead that is there; the bytes that were sent only those know who saw them pass.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any, Final

IP_RECVERR: Final = 11
IPV6_RECVERR: Final = 25
MSG_ERRQUEUE: Final = 0x2000
FROM_THE_NETWORK: Final = (2, 3)  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6
AT_ONCE: Final = 64
QUOTED: Final = 64  # bytes of a datagram that come back; hosts quote 500 of them and more (RFC 1122, RFC 4443)
_EXTENDED_ERROR = struct.Struct("=IBBBBII")


def ask_for(bound: socket.socket) -> bool:
    """False where the system cannot tell."""
    try:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        else:
            bound.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    except OSError:
        return False
    return True


def heard(bound: socket.socket) -> list[tuple[Any, bytes]]:
    """The addresses, as the kernel writes them, that have refused what was sent to them since this was last asked, and
    how that began."""
    found = []
    for _ in range(AT_ONCE):
        try:
            quoted, notes, _, sockaddr = bound.recvmsg(QUOTED, 512, MSG_ERRQUEUE)
        except OSError:  # BlockingIOError: that was all
            break
        if any(is_refusal(level, kind, note) for level, kind, note in notes):
            found.append((sockaddr, quoted))
    return found


def is_refusal(level: int, kind: int, note: bytes) -> bool:
    if (level, kind) not in ((socket.IPPROTO_IP, IP_RECVERR), (socket.IPPROTO_IPV6, IPV6_RECVERR)):
        return False
    if len(note) < _EXTENDED_ERROR.size:
        return False
    number, origin, *_ = _EXTENDED_ERROR.unpack_from(note)
    return number == errno.ECONNREFUSED and origin in FROM_THE_NETWORK
