"""Looks for bytes that `decode` answers with anything but a frame or BadFrame, or that have a second spelling.

    python tests/wire/fuzz_wire.py -use_value_profile=1 -max_total_time=20 [CORPUS ...]

Guided by coverage (atheris): an input that reaches a new branch is kept and changed further. It starts from the
vectors, so that it need not find the magic bytes first; they are written to a directory of their own, which goes away.
A finding is saved as crash-<digest>; `python tests/wire/fuzz_wire.py crash-<digest>` shows it again.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["softmutex"]):
    from softmutex.core.errors import BadFrame
    from softmutex.core.wire import MAX_FRAME, decode, encode

VECTORS = Path(__file__).with_name("vectors.json")


def one_input(data: bytes) -> None:
    try:
        frame = decode(data)
    except BadFrame as error:
        if not str(error):
            raise AssertionError("BadFrame without a reason") from error
        return
    again = encode(frame)
    if again != data:
        raise AssertionError(f"two spellings of {frame}: {data.hex()} and {again.hex()}")
    if decode(again) != frame:
        raise AssertionError(f"read otherwise the second time: {frame}")


def write_seeds(directory: Path) -> None:
    told = json.loads(VECTORS.read_text("utf-8"))
    for number, vector in enumerate(told["valid"] + told["invalid"]):
        (directory / f"vector-{number}").write_bytes(bytes.fromhex(vector["hex"]))


def main() -> None:
    flags = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    reproducing = any(Path(path).is_file() for path in given)
    with tempfile.TemporaryDirectory() as seeds:
        write_seeds(Path(seeds))
        child = os.fork()  # the fuzzer never returns, and would leave the directory behind
        if not child:
            corpora = given if reproducing else [*given, seeds]
            atheris.Setup([sys.argv[0], f"-max_len={MAX_FRAME + 8}", *flags, *corpora], one_input)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
