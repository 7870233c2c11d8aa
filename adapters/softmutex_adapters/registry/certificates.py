"""Short-lived certificates for members: who has a token of the group and shows that an enrolled key is its own.

    POST /v1/groups/G/certificates   {"name": "ftp1", "public_key": base 64, "proof": base 64, "invitation": TOKEN}
                                     -> {"certificate": base 64, "not_before": s, "not_after": s}

`invitation` is needed once, where nobody else has enrolled the key (`enrolment.py`); the name is that of the enrolment.

What it decides: a certificate says that this registry has met the holder of an enrolled key lately, and had not banned
it. So it lasts a day: a ban needs no list of revoked certificates, and who loses the registry for hours
loses nothing. `softmutex/runtime/identity.py` has its form, and what members make of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from softmutex.runtime.identity import NAME_MAX, is_signed, issue, proof_text
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.bans import NO_REASON
from softmutex_adapters.registry.enrolment import INVITATION, Enrolment
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.routes import Answer, Refused, Route, read_body
from softmutex_adapters.registry.store import BAN
from softmutex_adapters.registry.tokens import Right

CERTIFICATE_S = 86_400


class Certificates:
    def __init__(
        self, hub: Hub, enrolment: Enrolment, lifetime_s: int = CERTIFICATE_S, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._hub, self._enrolment, self._lifetime_s, self._wall_s = hub, enrolment, lifetime_s, wall_s

    def routes(self) -> Iterable[Route]:
        return (Route("/v1/groups/{group}/certificates", {"POST": self._post}, Right.JOIN),)

    async def _post(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        group = parts["group"]
        name, public, proof, invitation = read_request(await read_body(request))
        if not is_signed(public, proof_text(group, name, public), proof):
            raise Refused(403, "proof is no signature by this key of what it should be: is the group the right one?")
        ban = self._hub.group(group).notes.get(BAN + wire.to_text(public))
        if ban is not None:
            self._hub.counts["certificates_refused"] += 1
            raise Refused(403, f"this identity is banned from the group {group!r} ({ban.member.name or NO_REASON})")
        name = await self._enrolment.name_of(group, wire.to_text(public), invitation)
        begin = int(self._wall_s())
        raw = issue(self._hub.signer.sign_bare, name, public, group, begin, begin + self._lifetime_s)
        self._hub.counts["certificates"] += 1
        told = {"certificate": wire.to_text(raw), "not_before": begin, "not_after": begin + self._lifetime_s}
        return web.json_response(told, headers={"Cache-Control": "no-store"})


def read_request(body: bytes) -> tuple[str, bytes, bytes, str]:
    try:
        told: Any = json.loads(body)
        name, public, proof = told["name"], told["public_key"], told["proof"]
        invitation = told.get("invitation", "")
        are_all = told.keys() - {"invitation"} == {"name", "public_key", "proof"}
        if not (are_all and isinstance(name, str) and name.isprintable()):
            raise ValueError("other fields")
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise ValueError("a name of another length")
        if invitation and not INVITATION.fullmatch(invitation):
            raise ValueError("no invitation")
        return name, wire.from_text(public, 32), wire.from_text(proof, 64), invitation
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused(
            400,
            f'the body is {{"name": up to {NAME_MAX} bytes, "public_key": base 64, "proof": base 64}}, and once, where '
            'it was given one, "invitation"',
        ) from None
