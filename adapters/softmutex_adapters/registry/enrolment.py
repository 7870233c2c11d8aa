"""Who may be certified in a group: a list of identities, which only the operator, or a one-time token, adds to.

    POST   /v1/groups/G/invitations            admin   {"name": "ftp1", "for_s": 86400} -> {"invitation": TOKEN, ...}
    DELETE /v1/groups/G/invitations/MARK       admin
    GET    /v1/groups/G/identities             admin   who is enrolled, and who is invited
    PUT, DELETE /v1/groups/G/identities/KEY    admin   {"name": "ftp1"}: enrols without a token; strikes off

What it decides: a certificate is for an identity that somebody has let in once. The naive way, for every key under the
group's token, makes a ban worth nothing: the banned host makes another key, and is certified again.

An invitation is a random word that is good once, for one name, until its time is over. Only its mark is stored. Which
of two that use it at once is let in, the store decides (S6), also where two registries are asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from softmutex.ports import Member
from softmutex.runtime.identity import NAME_MAX
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.routes import Answer, Refused, Route, read_body
from softmutex_adapters.registry.store import ALONE, ENROLLED, INVITED, Entry
from softmutex_adapters.registry.tokens import Right, new_token

IDENTITIES_MAX = 20_000  # of one group
INVITATIONS_MAX = 1_000
FOR_MAX_S = 30 * 86_400
PUBLIC = re.compile(r"[A-Za-z0-9_-]{43}")
MARK = re.compile(r"[0-9a-f]{16}")
INVITATION = re.compile(r"[A-Za-z0-9_-]{16,64}")


def mark_of(invitation: str) -> str:
    return hashlib.blake2b(invitation.encode(), digest_size=8, person=b"invitation").hexdigest()


class Enrolment:
    def __init__(self, hub: Hub, wall_s: Callable[[], float] = time.time) -> None:
        self._hub, self._wall_s = hub, wall_s

    def routes(self) -> Iterable[Route]:
        return (
            Route("/v1/groups/{group}/identities", {"GET": self._list}, Right.ADMIN),
            Route("/v1/groups/{group}/identities/{key}", {"PUT": self._enrol, "DELETE": self._strike}, Right.ADMIN),
            Route("/v1/groups/{group}/invitations", {"POST": self._invite}, Right.ADMIN),
            Route("/v1/groups/{group}/invitations/{mark}", {"DELETE": self._withdraw}, Right.ADMIN),
        )

    # --- for who is to be certified (`certificates.py`) -------------------------------------------------------------

    async def name_of(self, group: str, public: str, invitation: str) -> str:
        """Under which name this key is certified; enrols it where the invitation is good. `Refused` where none is."""
        known = self._hub.group(group).notes.get(ENROLLED + public)
        if known is not None:
            return known.member.name
        if not invitation:
            raise Refused(
                403,
                f"the identity {public} is not enrolled in the group {group!r}. Its operator enrols it (softmutex "
                "identity allow), or makes a one-time token (softmutex identity invite), with which it enrols itself",
            )
        return await self._use(group, public, mark_of(invitation))

    async def _use(self, group: str, public: str, mark: str) -> str:
        invited = self._hub.group(group).notes.get(INVITED + mark)
        if invited is None or invited.member.id < self._wall_s():
            raise Refused(403, "this one-time token is not known, was used, or its time is over. Ask for another one")
        winner = await self._hub.store.offer(f"invitation {group} {mark}", public.encode())
        if winner.decode() != public:
            raise Refused(403, "this one-time token was used by another key. Ask for another one")
        name = invited.member.name
        enrolled = {ENROLLED + public: Entry(Member("enrolled", 0, name), ALONE), INVITED + mark: None}
        await self._hub.change(group, enrolled)
        self._hub.counts["enrolled"] += 1
        return name

    # --- for the operator -------------------------------------------------------------------------------------------

    async def _list(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        group, now_s = self._hub.group(parts["group"]), self._wall_s()
        enrolled = [{"public_key": key, "name": entry.member.name} for key, entry in group.noted(ENROLLED)]
        invited = [
            {"mark": mark, "name": entry.member.name, "not_after": entry.member.id}
            for mark, entry in group.noted(INVITED)
            if entry.member.id >= now_s
        ]
        return web.json_response({"enrolled": enrolled, "invited": invited}, headers={"Cache-Control": "no-store"})

    async def _enrol(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        key = read_key(parts)
        name, _ = read_name(await read_body(request), {"name"})
        self._check_room(parts["group"], ENROLLED, IDENTITIES_MAX, "identities")
        enrolled = {ENROLLED + key: Entry(Member("enrolled", 0, name), ALONE)}
        return web.json_response({"version": await self._hub.change(parts["group"], enrolled)})

    async def _strike(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        changes = {ENROLLED + read_key(parts): None}
        return web.json_response({"version": await self._hub.change(parts["group"], changes)})

    async def _invite(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        name, told = read_name(await read_body(request), {"name", "for_s"})
        for_s = told.get("for_s", 86_400)
        if isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 1 <= for_s <= FOR_MAX_S:
            raise Refused(400, f"for_s is seconds, between 1 and {FOR_MAX_S}")
        group = self._hub.group(parts["group"])
        changes: dict[str, Entry | None] = {
            INVITED + mark: None for mark, entry in group.noted(INVITED) if entry.member.id < self._wall_s()
        }
        if len(group.noted(INVITED)) - len(changes) >= INVITATIONS_MAX:
            raise Refused(503, f"there are {INVITATIONS_MAX} invitations, which is the limit", {"Retry-After": "30"})
        invitation, until = new_token(), int(self._wall_s() + for_s)
        changes[INVITED + mark_of(invitation)] = Entry(Member("invited", until, name), ALONE)
        await self._hub.change(parts["group"], changes)
        made = {"invitation": invitation, "mark": mark_of(invitation), "not_after": until}
        return web.json_response(made, headers={"Cache-Control": "no-store"})

    async def _withdraw(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        if not MARK.fullmatch(parts["mark"]):
            raise Refused(400, "the mark of an invitation is 16 hexadecimal digits")
        return web.json_response({"version": await self._hub.change(parts["group"], {INVITED + parts["mark"]: None})})

    def _check_room(self, group: str, kind: str, most: int, what: str) -> None:
        if len(self._hub.group(group).noted(kind)) >= most:
            raise Refused(503, f"the group {group!r} has {most} {what}, which is the limit", {"Retry-After": "30"})


def read_key(parts: Mapping[str, str]) -> str:
    if not PUBLIC.fullmatch(parts["key"]):
        raise Refused(400, "an identity is 43 characters of base 64 (a public key)")
    return parts["key"]


def read_name(body: bytes, fields: set[str]) -> tuple[str, dict[str, Any]]:
    try:
        told: Any = json.loads(body)
        name = told["name"]
        if not (isinstance(told, dict) and told.keys() <= fields and isinstance(name, str) and name.isprintable()):
            raise ValueError("other fields")
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise ValueError("a name of another length")
        return name, told
    except (ValueError, KeyError, TypeError, RecursionError):
        listed = ", ".join(sorted(fields))
        raise Refused(400, f"the body is JSON with {listed}; a name has 1 to {NAME_MAX} bytes") from None
