"""Who is not wanted in a group: named in every list that the registry signs, so that all members ignore the same.

    PUT, DELETE /v1/groups/G/banned/WHO      WHO: the id of a node's life (16 hexadecimal digits), or the public key of
    GET         /v1/groups/G/banned          an identity (43 characters of base 64), as `softmutex status --json` shows

What it decides: a ban is a change of the list like any other: committed, versioned, signed, told to all watchers and to
other registries at once. The naive way, a list of its own beside it, can be held back while the member list goes on.
In the stores a ban is an entry whose lease nobody can have; it has no time to live.

A ban of an id holds until that process begins another life; one of an identity holds where identities are required,
and strikes it off the list of those who may be certified (`enrolment.py`): with another key it would have to be invited
again. Who has the group's key and means harm is kept out by changing the key (`softmutex key`), too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from softmutex.ports import Member
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.routes import Answer, Refused, Route, read_body
from softmutex_adapters.registry.store import ALONE, BAN, ENROLLED, Entry
from softmutex_adapters.registry.tokens import Right

BANS_MAX = 256  # of one group
WHY_MAX = 100
NO_REASON = "no reason given"
WHO = re.compile(wire.WHO)


class Bans:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def routes(self) -> Iterable[Route]:
        return (
            Route("/v1/groups/{group}/banned", {"GET": self._list}, Right.ADMIN),
            Route("/v1/groups/{group}/banned/{who}", {"PUT": self._ban, "DELETE": self._pardon}, Right.ADMIN),
        )

    async def _list(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        bans = sorted(self._hub.group(parts["group"]).noted(BAN))
        told = [{"who": who, "why": entry.member.name} for who, entry in bans]
        return web.json_response({"banned": told})

    async def _ban(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        name, who = parts["group"], read_who(parts)
        why = read_why(await read_body(request))
        group = self._hub.group(name)
        if BAN + who not in group.notes and len(group.noted(BAN)) >= BANS_MAX:
            raise Refused(503, f"the group {name!r} has {BANS_MAX} bans, which is the limit", {"Retry-After": "30"})
        changes: dict[str, Entry | None] = {BAN + who: Entry(Member("banned", 0, why), ALONE)}
        if ENROLLED + who in group.notes:
            changes[ENROLLED + who] = None
        changes |= {lease: None for lease, entry in group.entries.items() if f"{entry.member.id:016x}" == who}
        return web.json_response({"version": await self._hub.change(name, changes)})

    async def _pardon(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        return web.json_response({"version": await self._hub.change(parts["group"], {BAN + read_who(parts): None})})


def refuse_banned(hub: Hub, name: str, member: Member) -> None:
    ban = hub.group(name).notes.get(f"{BAN}{member.id:016x}")
    if ban is not None:
        raise Refused(
            403, f"the node {member.id:016x} is banned from the group {name!r} ({ban.member.name or NO_REASON})"
        )


def read_who(parts: Mapping[str, str]) -> str:
    if not WHO.fullmatch(parts["who"]):
        raise Refused(400, "who is banned is 16 hexadecimal digits (an id) or 43 characters of base 64 (a public key)")
    return parts["who"]


def read_why(body: bytes) -> str:
    """The body may be empty."""
    try:
        told: Any = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        told = None
    why = told.get("why", "") if isinstance(told, dict) and told.keys() <= {"why"} else None
    if not (isinstance(why, str) and len(why) <= WHY_MAX and why.isprintable()):
        raise Refused(400, f'the body is {{"why": "..."}} with up to {WHY_MAX} printable characters, or nothing')
    return why
