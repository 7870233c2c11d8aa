"""A run in a file, and the same run again, compared to the byte.

    softmutex trace 1\\n                            the format
    {"softmutex": "0.1.0", "scenario": {...}}\\n    everything that the run is a function of
    zlib: the numbers of `trace.py`, in order       up to `LIMIT` bytes of them, then only the digest goes on
    {"events": 81273, "bytes": ..., "digest": ...}  after the end of the zlib stream

A trace does not hold what is needed to understand a run, only what is needed to know that it is the same: to look
into it, replay it with `--show`. A file is never larger than `LIMIT` and a header; mostly it is a quarter of it.
"""

from __future__ import annotations

import json
import zlib
from array import array
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.events import to_seconds
from softmutex.sim.result import Result
from softmutex.sim.run import Progress, simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.spy import Spy
from softmutex.sim.tally import EPOCH

FORMAT = 1
MAGIC = b"softmutex trace "
LIMIT = 256 << 20  # bytes of events kept, before compression: some six million events


class BadTrace(SoftMutexError):
    """This file is no trace, or one of another version, or it is damaged."""


class Writer:
    """A sink for `simulate`: call `close` with its result."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self._file = path.open("wb")
        self._pack = zlib.compressobj(6)
        self._left = LIMIT
        header = {"softmutex": version("softmutex"), "scenario": scenario.to_json()}
        self._file.write(MAGIC + b"%d\n" % FORMAT + json.dumps(header).encode() + b"\n")

    def __call__(self, data: bytes) -> None:
        if self._left:
            data = data[: self._left]
            self._left -= len(data)
            self._file.write(self._pack.compress(data))

    def close(self, result: Result | None) -> None:
        self._file.write(self._pack.flush())
        if result is not None:
            footer = {"events": result.events, "bytes": LIMIT - self._left, "digest": result.digest}
            self._file.write(json.dumps(footer).encode() + b"\n")
        self._file.close()


class Trace(NamedTuple):
    scenario: Scenario
    data: bytes  # the numbers, as far as they were kept
    events: int
    digest: str


def read(path: Path) -> Trace:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadTrace(f"cannot read the trace {path}: {error.strerror}") from error
    first, _, rest = content.partition(b"\n")
    if not first.startswith(MAGIC):
        raise BadTrace(f"{path} is not a trace: give a file that `softmutex sim run --trace` wrote")
    if first[len(MAGIC) :] != b"%d" % FORMAT:
        had = first[len(MAGIC) :].decode(errors="replace")
        raise BadTrace(f"{path} has trace format {had}, and this version reads {FORMAT}: write it anew with --trace")
    head, _, body = rest.partition(b"\n")
    header = _parse(path, head)
    here = version("softmutex")
    if header.get("softmutex") != here:
        raise BadTrace(
            f"{path} was written by softmutex {header.get('softmutex')}, and this is {here}, whose machines may do "
            "otherwise. Replay it with that version, or write it anew with --trace"
        )
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(body, LIMIT + 1)
    except zlib.error as error:
        raise BadTrace(f"{path} is damaged: {error}") from error
    footer = _parse(path, unpack.unused_data) if unpack.eof else {}
    if "digest" not in footer:
        raise BadTrace(f"{path} ends too early: the run that wrote it was broken off. Write it anew with --trace")
    try:
        return Trace(Scenario.from_json(header["scenario"]), data, footer["events"], footer["digest"])
    except (ConfigError, KeyError) as error:
        raise BadTrace(f"{path} is damaged: {error}") from error


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadTrace(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BadTrace(f"{path} is damaged: {text[:40]!r} is not what belongs there")
    return found


class Comparison(NamedTuple):
    result: Result
    difference: str  # empty: the same to the byte


def replay(trace: Trace, progress: Progress | None = None, spy: Spy | None = None) -> Comparison:
    """Runs it again. Where it differs, says from which moment on."""
    position = 0
    first_difference: int | None = None

    def compare(data: bytes) -> None:
        nonlocal position, first_difference
        expected = trace.data[position : position + len(data)]
        if first_difference is None and data[: len(expected)] != expected:
            at = next(at for at, (one, other) in enumerate(zip(data, expected, strict=False)) if one != other)
            first_difference = position + at
        position += len(data)

    result = simulate(trace.scenario, progress, compare, spy)
    if first_difference is None and result.digest == trace.digest and result.events == trace.events:
        return Comparison(result, "")
    if first_difference is None:
        return Comparison(result, f"{result.events} events, digest {result.digest}; the trace has {trace.events}")
    return Comparison(result, f"differs from {_moment(trace.data, first_difference)} on")


def _moment(data: bytes, at: int) -> str:
    """The time of the event in which byte `at` is: the last number before it that is a time."""
    words = array("Q", data[: at // 8 * 8 + 8])
    time = next((word for word in reversed(words) if EPOCH <= word < EPOCH * 2), EPOCH)
    return f"{to_seconds(time - EPOCH):.9f} s (number {at // 8} of the trace)"
