"""One attacker, as a process of its own, against members that are processes, too.

    python -m tests.security.attacker nothing   '{"targets": ["127.0.0.1:9431", "http://127.0.0.1:9432"]}'
    python -m tests.security.attacker account   '{"targets": [...], "uid": 65534, "paths": [...]}'
    python -m tests.security.attacker token     '{"registry": URL, "token": TOKEN, "members": [{"address", "id"}]}'
    python -m tests.security.attacker key       '{"targets": [...], "key": HEX, "ids": [...]}'
    python -m tests.security.attacker lives     '{"target": ADDRESS, "id": ID, "key": HEX, "count": 70000}'
    python -m tests.security.attacker names     '{"node": {keywords of Node}, "room": 100, "count": 150}'

Each does what he can, for SECONDS where nothing else is said, and then says in one line of JSON what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from softmutex_adapters.transports.frames import PATH, SENDER_HEADER

from softmutex import ConfigError, Node
from softmutex.core.messages import Bye
from softmutex.core.wire import Frame, encode
from softmutex.plugins import load_all_algorithms
from softmutex.runtime import resting
from tests.security.insider import in_the_name_of
from tests.security.test_insider import lies

SECONDS = 1.0
Told = dict[str, Any]


def what_anybody_makes(chance: random.Random, ids: Sequence[int]) -> Iterator[bytes]:
    """Without a key: noise, giants, hints, frames of other versions, and plain ones in the name of members."""
    said = {(to, of): lies(to, of) for to in ids for of in ids if to != of}
    while True:
        yield chance.randbytes(chance.randrange(1, 1401))
        yield b"\xabM" + bytes([chance.randrange(256)]) + chance.randbytes(60)
        yield b"\xabM\0" + chance.randbytes(19)
        yield bytes(20_000)
        if said:
            (to, of), each = chance.choice(list(said.items()))
            mutex, message = next(each)
            yield encode(Frame(of, to, mutex, message))


def shower(targets: Sequence[str], payloads: Iterator[bytes]) -> int:
    """How many were sent, for SECONDS, to each in turn."""
    until, count, froms = time.monotonic() + SECONDS, 0, itertools.cycle(targets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
        for target in itertools.cycle(targets):
            if time.monotonic() > until:
                return count
            payload = next(payloads)
            count += 1
            if target.startswith("http"):
                post(target, payload[:1400], next(froms))
            else:
                host, _, port = target.rpartition(":")
                speaker.sendto(payload, (host, int(port)))
                if count % 20 == 0:
                    time.sleep(0.002)  # a shared machine: it is no contest of who has more of it
    return count


def post(base: str, frame: bytes, in_the_name_of: str) -> None:
    body = len(frame).to_bytes(2) + frame
    asked = urllib.request.Request(base + PATH, data=body, headers={SENDER_HEADER: in_the_name_of}, method="POST")
    with contextlib.suppress(OSError):
        urllib.request.urlopen(asked, timeout=5).read()


def nothing(given: Told) -> Told:
    made = what_anybody_makes(random.Random(1), given.get("ids", []))
    return {"sent": shower(given["targets"], made)}


def account(given: Told) -> Told:
    """Another user of the host: what he can read or write of the group's, and what he can send."""
    os.setgroups([])
    os.setgid(given["uid"])
    os.setuid(given["uid"])
    opened = []
    for top in map(Path, given["paths"]):
        for path in [top, *(top / name for name in ("key", "default", "default/key"))]:
            for flags in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, flags))
                    opened.append(str(path))
                except OSError:
                    pass
    return {"opened": opened, **nothing(given)}


def token(given: Told) -> Told:
    """Somebody with a token of the registry and without the group's key: places, ids and leases of others."""
    answers: dict[str, int] = {}

    def ask(method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {given['token']}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{given['registry']}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                status, said = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, said = error.code, b""
        answers[f"{method} {status}"] = answers.get(f"{method} {status}", 0) + 1
        return bytes(said)

    group = "/v1/groups/default"
    for number, member in enumerate(given["members"]):
        lease, id = f"lease-of-attacker-{number}", f"{member['id']:016x}"
        ask("PUT", f"{group}/members/{lease}", {"address": member["address"], "id": "00000000000000ff", "name": "me"})
        ask("PUT", f"{group}/members/{lease}", {"address": f"127.0.0.1:{number + 1}", "id": id, "name": "me"})
        ask("DELETE", f"{group}/members/{lease}")
        ask("PUT", f"{group}/banned/{id}", {})
    proofs = [*json.loads(ask("GET", f"{group}/members")).get("proofs", {}).values(), ""]
    swallowing = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(given.get("swallowing", 0))]
    for number, each in enumerate(swallowing):  # he never reads, and shows what members have shown of themselves
        each.bind(("127.0.0.1", 0))
        invented = {"address": f"127.0.0.1:{each.getsockname()[1]}", "id": f"{number + 77:016x}", "name": "void"}
        invented |= {"proof": proof} if (proof := proofs[number % len(proofs)]) else {}
        ask("PUT", f"{group}/members/lease-of-swallower-{number}", invented)
    until, number = time.monotonic() + given.get("seconds", SECONDS), 0
    while time.monotonic() < until:
        number += 1
        if number <= 50 and not swallowing:
            invented = {"address": f"127.0.0.1:{number + 1}", "id": f"{number:016x}", "name": "invented"}
            ask("PUT", f"{group}/members/lease-of-invention-{number}", invented)
        ask("GET", f"{group}/members")
    return {"answers": answers}


def key(given: Told) -> Told:
    """Somebody with the group's key, where identities are required: he seals in the name of members."""
    ids, secret = given["ids"], bytes.fromhex(given["key"])

    def sealed() -> Iterator[bytes]:
        said = {(to, of): lies(to, of) for to in ids for of in ids if to != of}
        for number in itertools.count():
            for (to, of), each in said.items():
                mutex, message = next(each)
                yield in_the_name_of(of, number if number % 2 else 2**61 + number, to, message, mutex, secret)

    return {"sent": shower(given["targets"], sealed())}


def lives(given: Told) -> Told:
    """One with the group's key who begins one life after the other, as a job does that is run again and again."""
    host, _, port = given["target"].rpartition(":")
    secret = bytes.fromhex(given["key"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
        for number in range(given["count"]):
            speaker.sendto(in_the_name_of(1 << 40 | number, 1, given["id"], Bye(), "", secret), (host, int(port)))
            if number % 20 == 0:
                time.sleep(0.002)
    return {"sent": given["count"]}


def names(given: Told) -> Told:
    """A member that asks for more names than it has room for."""
    return asyncio.run(asking_for_names(given))


async def asking_for_names(given: Told) -> Told:
    told = {"granted": 0, "refused": 0}
    resting.MUTEXES_MAX = given["room"]
    async with Node(**given["node"]) as node:

        async def ask(some: Sequence[str]) -> None:
            for name in some:
                try:
                    async with node.mutex(name).hold(timeout=60):
                        told["granted"] += 1
                except ConfigError:
                    told["refused"] += 1

        each = [f"2026-11-19-{number}" for number in range(given["count"])]
        await asyncio.gather(*(ask(each[first::20]) for first in range(20)))
    return told


KINDS: dict[str, Callable[[Told], Told]] = {
    "nothing": nothing,
    "account": account,
    "token": token,
    "key": key,
    "lives": lives,
    "names": names,
}

if __name__ == "__main__":
    load_all_algorithms()  # they declare what is said
    sys.stdout.write(json.dumps(KINDS[sys.argv[1]](json.loads(sys.argv[2]))) + "\n")
