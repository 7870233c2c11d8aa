"""What a frame costs, beside what a datagram costs: `python benchmarks/wire.py [--json] [--rounds N]`.

A token with a trace context of 25 bytes, two watchers and an empty queue is encoded and decoded, sealed and opened; a
datagram of the same size is sent and received over loopback by bare sockets. (asyncio costs several times as much.)
The measurements take turns, so that a busy machine is busy for all of them; of the rounds the fastest counts, and the
ratios are those of one round, in the middle of all rounds.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from softmutex.cli.benching.rounds import InterleavedRounds
from softmutex.core.events import SECOND, Escort, Token
from softmutex.core.messages import Offer
from softmutex.core.wire import Frame, decode, encode
from softmutex.runtime.sealing import KeyRing, Sealer

ME, PEER = 0x1122334455667788, 0x8877665544332211
LOOPS = 2000


def token_frame() -> Frame:
    token = Token(3, 1_700_000_000 * SECOND, 2**52 + 5, 1000, 0, (), 2**63 + 7, b"c" * 25)
    return Frame(PEER, ME, "nightly-ftp", Offer(2**63 + 1, token._replace(escort=Escort((PEER, ME))), early=True))


def things_to_measure() -> dict[str, Callable[[], object]]:
    frame = token_frame()
    data = encode(frame)
    group = KeyRing.of(bytes(range(32)))
    peer, me, other = Sealer(group, "lab", PEER), Sealer(group, "lab", ME), Sealer(group, "lab", ME + 1)
    me.open(peer.seal(frame))  # the first frame of a sender is the dearest
    sealed = peer.seal(frame)
    forged = other.seal(frame._replace(sender=ME + 1))[:-1] + b"\0"
    me.open(sealed)
    out, back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    back.bind(("127.0.0.1", 0))
    address = back.getsockname()

    def datagram() -> object:
        out.sendto(sealed, address)
        return back.recvfrom(2048)

    return {
        "loopback datagram": datagram,
        "encode": lambda: encode(frame),
        "decode": lambda: decode(data),
        "encode + decode": lambda: decode(encode(frame)),
        "seal + open": lambda: me.open(peer.seal(frame)),
        "refuse a replay": lambda: me.open(sealed),
        "refuse a forgery by a stranger": lambda: me.open(forged),
        "refuse garbage": lambda: me.open(b"GET / HTTP/1.1\r\n\r\n"),
    }


def measure_us(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(LOOPS):
        call()
    return (time.perf_counter() - began) / LOOPS * 1e6


def import_ms(module: str) -> float:
    """In a fresh interpreter, without what the interpreter itself takes to start."""
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def run(rounds: int) -> dict[str, object]:
    things = {name: partial(measure_us, call) for name, call in things_to_measure().items()}
    taken = InterleavedRounds.run(things, rounds)
    ratios = {
        f"{name} / loopback datagram": taken.ratio(name, "loopback datagram")
        for name in ("encode + decode", "seal + open")
    }
    return {
        "bytes": {"token": len(encode(token_frame())), "token, sealed": len(encode(token_frame())) + 16},
        "microseconds": {name: round(taken.fastest(name), 2) for name in things},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "import_ms": {name: round(import_ms(name), 1) for name in ("softmutex.core.wire", "softmutex.runtime.sealing")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    result = run(arguments.rounds)
    if arguments.json:
        print(json.dumps(result))
        return
    for group, values in result.items():
        print(group)
        for name, value in values.items():
            print(f"  {name:42} {value:>8}")


if __name__ == "__main__":
    main()
