"""A route of the registry, what a handler may answer, and how it reads what came in.

An endpoint in a file of its own: a function that returns its routes, added to the table of `server.py`, and their
words, added to the table of `description.py`. A test holds that both tables name the same.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from softmutex.ports import Member
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.guard import BODY_MAX, HEADER_S
from softmutex_adapters.registry.tokens import Right

BODY_S = 10.0
GROUP = re.compile(wire.GROUP)
LEASE = re.compile(wire.LEASE)
ADDRESS = re.compile(wire.ADDRESS)
BODY_OF_MEMBER = {"address", "id", "name", "proof"}

Answer = web.StreamResponse
Handler = Callable[[web.BaseRequest, Mapping[str, str]], Awaitable[Answer]]


class Refused(Exception):
    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status, self.why, self.headers = status, why, headers or {}


@dataclass(frozen=True, slots=True)
class Route:
    """`{group}` and `{lease}` stand for a part of the path. `right`: what the token must allow in this group; in all of
    them, where the path names none."""

    path: str
    methods: Mapping[str, Handler]
    right: Right
    pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]*)", self.path)))


# --- what comes in --------------------------------------------------------------------------------------------------


async def read_body(request: web.BaseRequest, most: int = BODY_MAX) -> bytes:
    if (request.content_length or 0) > most:
        raise Refused(413, f"a body may have {most} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(min(BODY_S, HEADER_S)):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > most:
                    raise Refused(413, f"a body may have {most} bytes")
    except TimeoutError:
        raise Refused(408, f"the body took more than {BODY_S:g} s") from None
    return bytes(body)


def read_member(body: bytes) -> tuple[Member, str]:
    """And what it proves itself with to the others."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or not {"address", "id"} <= told.keys() <= BODY_OF_MEMBER:
        raise Refused(400, 'the body is {"address": "host:port", "id": "16 hexadecimal digits", "name": "..."}')
    address, id, name, proof = told["address"], told["id"], told.get("name", ""), told.get("proof", "")
    if not (isinstance(address, str) and ADDRESS.fullmatch(address)):
        raise Refused(400, f"address looks like {wire.ADDRESS}")
    if not (isinstance(id, str) and wire.ID.fullmatch(id)):
        raise Refused(400, "id is 16 hexadecimal digits in lower case")
    if not (isinstance(name, str) and len(name) <= wire.NAME_MAX and name.isprintable()):
        raise Refused(400, f"name has up to {wire.NAME_MAX} printable characters")
    if not (isinstance(proof, str) and ("proof" not in told or wire.PROOF.fullmatch(proof))):
        raise Refused(400, "proof is 32 hexadecimal digits in lower case")
    return Member(address, int(id, 16), name), proof


def read_after(request: web.BaseRequest) -> int:
    written = request.query.get("after", "0")
    if not (written.isascii() and written.isdecimal() and len(written) <= 16 and int(written) < wire.VERSION_MAX):
        raise Refused(400, f"after is a version that was told before, a whole number under {wire.VERSION_MAX}")
    return int(written)


def read_wait(request: web.BaseRequest, most_s: float) -> float:
    written = request.query.get("wait", "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", written) or float(written) > most_s:
        raise Refused(400, f"wait is seconds, between 0 and {most_s:g}")
    return float(written)
