"""HTCondor: a transfer plug-in that users name in the submit file, with no administrator. `softmutex-condor-transfer`.

    transfer_plugins     = smftp,smhttp,smhttps=softmutex-condor-transfer     (the script, in the submit directory)
    transfer_input_files = smftp://ftp.example/pub/data.bin?mutex=nightly-ftp&slots=2

What it decides: all files of a job that want one mutex are fetched in one turn; a turn for each file would let other
jobs in between, and a job of forty files would wait forty times. Where a URL names no mutex, its host is the mutex: two
users who never heard of each other and fetch from one server take turns.

    -classad                         what this plug-in can do
    -infile IN -outfile OUT          IN: an ad for each file (Url, LocalFileName); OUT: an ad for each, how it went
    -upload                          from here to there (FTP only)

A broken FTP transfer is resumed where it broke, in the same turn. Exit code 0 when all files came, else 1: HTCondor
then puts the job on hold with the error, or tries again, as its user says (`periodic_release`).
"""

from __future__ import annotations

import ftplib
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from softmutex import AcquireTimeout, sync
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.values import count, duration_s, priority

METHODS: Final = ("smftp", "smhttp", "smhttps")
CAPABILITIES: Final = f"""\
MultipleFileSupport = true
PluginType = "FileTransfer"
PluginVersion = "0.1"
SupportedMethods = "{",".join(METHODS)}"
"""
SILENCE_S: Final = 60.0  # a server that says nothing for so long is gone
TRIES: Final = 3
BLOCK: Final = 1 << 18
OURS: Final = ("mutex", "slots", "weight", "timeout", "ageing", "priority")  # in the query of a URL


class File(NamedTuple):
    url: str
    local: Path


class Wanted(NamedTuple):
    """The turn that a file wants."""

    mutex: str
    slots: int
    timeout_s: float | None
    weight: int | None
    ageing_s: float | None = None
    priority: int = 0


class Went(NamedTuple):
    file: File
    error: str
    size: int
    begun_s: float
    ended_s: float


# --- ads --------------------------------------------------------------------------------------------------------------


def read_ads(text: str) -> Iterator[File]:
    """Ads of `Name = "value"`, in brackets with semicolons or a line each; HTCondor has written both."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', text):
        fields[name.lower()] = re.sub(r"\\(.)", r"\1", value)
        if "url" in fields and "localfilename" in fields:
            yield File(fields["url"], Path(fields["localfilename"]))
            fields = {}


def quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{plain}"'


def write_ad(went: Went, upload: bool) -> str:
    scheme = went.file.url.partition(":")[0]
    lines = {
        "TransferSuccess": "false" if went.error else "true",
        "TransferProtocol": quoted(scheme),
        "TransferType": quoted("upload" if upload else "download"),
        "TransferFileName": quoted(went.file.local.name),
        "TransferUrl": quoted(went.file.url),
        "TransferFileBytes": str(went.size),
        "TransferTotalBytes": str(went.size),
        "TransferStartTime": str(int(went.begun_s)),
        "TransferEndTime": str(int(went.ended_s)),
        "ConnectionTimeSeconds": f"{went.ended_s - went.begun_s:.3f}",
    }
    if went.error:
        lines["TransferError"] = quoted(went.error)
    inside = "; ".join(f"{name} = {value}" for name, value in lines.items())
    return f"[ {inside} ]\n"  # the old spelling, a line each, is not read back by HTCondor 23


# --- turns ------------------------------------------------------------------------------------------------------------


def wanted(url: str) -> Wanted:
    parts = urlsplit(url)
    if parts.scheme not in METHODS or not parts.hostname:
        raise ConfigError(f"{url!r} is not a URL of this plug-in: write {METHODS[0]}://host/path")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "smftp" and (strangers := query.keys() - set(OURS)):  # what else HTTP is asked is the server's
        raise ConfigError(f"{url!r}: there is no {min(strangers)!r}. There are {', '.join(OURS)}")
    try:
        timeout_s = duration_s(query["timeout"]) if "timeout" in query else None
        weight = count(query["weight"]) if "weight" in query else None
        ageing_s = duration_s(query["ageing"]) if "ageing" in query else None
        mutex, slots = query.get("mutex", parts.hostname), count(query.get("slots", "1"))
        return Wanted(mutex, slots, timeout_s, weight, ageing_s, priority(query.get("priority", "0")))
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}") from None


def transfer_all(files: list[File], upload: bool) -> Iterator[Went]:
    """Each mutex once, for all files that want it, in the order in which they came."""
    turns: dict[Wanted, list[File]] = {}
    for file in files:
        try:
            turns.setdefault(wanted(file.url), []).append(file)
        except ConfigError as error:
            yield Went(file, str(error), 0, time.time(), time.time())
    for turn, its_files in turns.items():
        try:
            with sync.SoftMutex(
                turn.mutex,
                slots=turn.slots,
                timeout=turn.timeout_s,
                weight=turn.weight,
                ageing=turn.ageing_s,
                priority=turn.priority,
            ):
                for file in its_files:
                    yield transfer(file, upload)
        except (AcquireTimeout, SoftMutexError) as error:
            done = time.time()
            for file in its_files:
                yield Went(file, f"{type(error).__name__}: {error}", 0, done, done)


def transfer(file: File, upload: bool) -> Went:
    begun_s, error = time.time(), ""
    try:
        parts = urlsplit(file.url)
        if parts.scheme == "smftp":
            by_ftp(parts, file.local, upload)
        elif upload:
            raise ConfigError(f"{parts.scheme} can only fetch; smftp can upload")
        else:
            by_http(file.url, parts, file.local)
    except (OSError, EOFError, ftplib.Error, ConfigError) as trouble:
        error = f"{type(trouble).__name__}: {trouble}"
    size = file.local.stat().st_size if file.local.exists() and not error else 0
    return Went(file, error, size, begun_s, time.time())


def by_ftp(parts: SplitResult, local: Path, upload: bool) -> None:
    """A connection that breaks is made anew, and the file goes on where it stopped."""
    if not upload:
        local.unlink(missing_ok=True)
    for attempt in range(1, TRIES + 1):
        try:
            ftp_once(parts, local, upload, attempt)
            return
        except ftplib.error_perm:
            raise
        except (OSError, EOFError, ftplib.Error):
            if attempt == TRIES:
                raise
            time.sleep(attempt)


def ftp_once(parts: SplitResult, local: Path, upload: bool, attempt: int) -> None:
    path = unquote(parts.path)
    with ftplib.FTP(timeout=SILENCE_S) as ftp:
        ftp.connect(parts.hostname or "", parts.port or ftplib.FTP_PORT)
        ftp.login(unquote(parts.username or "anonymous"), unquote(parts.password or "softmutex@"))
        ftp.voidcmd("TYPE I")
        if upload:
            there = 0 if attempt == 1 else ftp.size(path) or 0
            with local.open("rb") as source:
                source.seek(there)
                ftp.storbinary(f"STOR {path}", source, BLOCK, rest=there or None)
            return
        size = ftp.size(path)
        with local.open("ab") as target:
            here = target.tell()
            if here and here == size:
                return
            ftp.retrbinary(f"RETR {path}", target.write, BLOCK, rest=here or None)
        if size is not None and local.stat().st_size != size:
            raise OSError(f"{local.stat().st_size} of {size} bytes came")


def by_http(url: str, parts: SplitResult, local: Path) -> None:
    kept = [f"{name}={value}" for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in OURS]
    plain = parts._replace(scheme=parts.scheme.removeprefix("sm"), query="&".join(kept)).geturl()
    with urllib.request.urlopen(plain, timeout=SILENCE_S) as answer, local.open("wb") as target:
        copied = copy(answer, target)
        size = answer.headers.get("Content-Length")
    if size is not None and copied != int(size):
        raise OSError(f"{copied} of {size} bytes came")


def copy(source: BinaryIO, target: BinaryIO) -> int:
    copied = 0
    while block := source.read(BLOCK):
        target.write(block)
        copied += len(block)
    return copied


# --- the door ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["-classad"]:
        sys.stdout.write(CAPABILITIES)
        return 0
    upload = "-upload" in words
    pairs = dict(pairwise(words))
    if "-infile" not in pairs or "-outfile" not in pairs:
        sys.stderr.write("usage: softmutex-condor-transfer -infile FILE -outfile FILE [-upload] | -classad\n")
        return 64
    try:
        files = list(read_ads(Path(pairs["-infile"]).read_text()))
        failed = False
        with Path(pairs["-outfile"]).open("w") as out:
            for went in transfer_all(files, upload):
                failed = failed or bool(went.error)
                out.write(write_ad(went, upload))
    except OSError as error:
        sys.stderr.write(f"softmutex-condor-transfer: {error}\n")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
