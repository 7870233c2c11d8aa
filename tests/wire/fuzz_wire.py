"""Looks for bytes that `decode` answers with anything but a frame or BadFrame, or that have a second spelling.

    python tests/wire/fuzz_wire.py -use_value_profile=1 --cpu 20 [CORPUS ...]

Guided by coverage (atheris): an input that reaches a new branch is kept and changed further. It starts from the
vectors, so that it need not find the magic bytes first; they are written to a directory of their own, which goes away.
The unrolled functions have no branches to see, so what they accept is read again by those of `codec.py`. The doors of
`sealing.py` get the same bytes, as a datagram, as what a member sealed, and as what it says that it signed.
A finding is saved as crash-<digest>; `python tests/wire/fuzz_wire.py crash-<digest>` shows it again.
"""

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

import atheris
import by_hand  # beside this file

sys.path.append(str(Path(__file__).parent.parent.parent))
from tests.fuzzing.limited import end_after_cpu_s

with atheris.instrument_imports(include=["softmutex"]):
    from softmutex.core.codec import record
    from softmutex.core.errors import BadFrame
    from softmutex.core.wire import (
        HEADER_SIZE,
        MAX_FRAME,
        SMALLEST,
        TAG_SIZE,
        Frame,
        decode,
        encode,
        kinds,
    )
    from softmutex.plugins import load_all_algorithms
    from softmutex.runtime.identity import Vouching, is_signed, issue, read_certificate
    from softmutex.runtime.sealing import PAIRED, SIGNED, KeyRing, Refused, Sealer, Unsealed
    from softmutex.runtime.sessions import SHOWN

VECTORS = Path(__file__).with_name("vectors.json")


load_all_algorithms()
SLOW = {cls: record(cls) for cls in kinds().values()}
ME, PEER = 1, 2
RING = KeyRing({1: bytes(32)}, use=1)
SEALER, UNSEALED = Sealer(RING, "fuzz", ME), Unsealed(ME)
MEMBER = by_hand.cipher(RING.keys[RING.use], RING.use, PEER, "fuzz")
AUTHORITY = Vouching(group=1, authority=b"", authority_group="fuzz", required=True, secret=bytes(32))
SEALER.vouching = Vouching(group=1, authority=AUTHORITY.public, authority_group="fuzz", required=True)
CERTIFICATE = issue(AUTHORITY.prove, "fuzz", AUTHORITY.public, "fuzz", 0, 1 << 40)
COUNTERS = itertools.count()


def check(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def one_input(data: bytes) -> None:
    try_to_decode(data)
    counter = next(COUNTERS)
    body = data[HEADER_SIZE : MAX_FRAME - TAG_SIZE]
    genuine = bytes([len(CERTIFICATE)]) + CERTIFICATE + bytes(SHOWN) + bytes(64) + body
    sealed = [
        seal(counter, body),
        seal(counter | PAIRED, body),
        seal(counter | SIGNED, body),
        seal(counter | SIGNED, genuine),
    ]
    answers = [UNSEALED.open(data), *map(SEALER.open, [data, *sealed])]
    for answer in answers:
        check(isinstance(answer, Frame | Refused), "a door neither opened nor refused")
    for answer in answers[-2:]:
        check(isinstance(answer, Refused), "a signature that nobody made was believed")
    try_to_read_certificate(body)


def seal(counter: int, body: bytes) -> bytes:
    header = by_hand.header(RING.use, PEER, counter)
    return header + MEMBER.encrypt(body[: MAX_FRAME - HEADER_SIZE - TAG_SIZE] or b"\0", [header])


def try_to_read_certificate(raw: bytes) -> None:
    try:
        certificate = read_certificate(raw)
    except ValueError as error:
        check(bool(str(error)), "no certificate, and no reason")
        return
    check(certificate.signed + certificate.signature == raw, f"read otherwise: {certificate}")
    check(not is_signed(AUTHORITY.public, certificate.signed, certificate.signature), "forged")


def try_to_decode(data: bytes) -> None:
    try:
        frame = decode(data)
    except BadFrame as error:
        check(bool(str(error)), "BadFrame without a reason")
        return
    again = encode(frame)
    check(again == data, f"two spellings of {frame}: {data.hex()} and {again.hex()}")
    check(decode(again) == frame, f"read otherwise the second time: {frame}")
    slowly = SLOW[type(frame.message)].read(data, SMALLEST + len(frame.mutex.encode()))
    check(slowly == (frame.message, len(data)), f"{frame} unrolled, and {slowly} otherwise")


def write_seeds(directory: Path) -> None:
    told = json.loads(VECTORS.read_text("utf-8"))
    for number, vector in enumerate(told["valid"] + told["invalid"]):
        (directory / f"vector-{number}").write_bytes(bytes.fromhex(vector["hex"]))


def main() -> None:
    arguments, begin = end_after_cpu_s(sys.argv[1:])
    flags = [argument for argument in arguments if argument.startswith("-")]
    given = [argument for argument in arguments if not argument.startswith("-")]
    reproducing = any(Path(path).is_file() for path in given)
    with tempfile.TemporaryDirectory() as seeds:
        write_seeds(Path(seeds))
        child = os.fork()  # the fuzzer never returns, and would leave the directory behind
        if not child:
            corpora = given if reproducing else [*given, seeds]
            begin()
            atheris.Setup([sys.argv[0], f"-max_len={MAX_FRAME + 8}", *flags, *corpora], one_input)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
