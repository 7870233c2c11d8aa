"""Short-lived certificates for members: who has a token of the group and shows that a key is its own, is given one.

    POST /v1/groups/G/certificates   {"name": "ftp1", "public_key": base 64, "proof": base 64}
                                     -> {"certificate": base 64, "not_before": s, "not_after": s}

What it decides: a certificate says that this registry has met the holder of a key lately, under the group's token, and
had not banned it. So it lasts a day: a ban needs no list of revoked certificates, and who loses the registry for hours
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
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.routes import Answer, Refused, Route, read_body
from softmutex_adapters.registry.store import BAN
from softmutex_adapters.registry.tokens import Right

CERTIFICATE_S = 86_400


class Certificates:
    def __init__(self, hub: Hub, lifetime_s: int = CERTIFICATE_S, wall_s: Callable[[], float] = time.time) -> None:
        self._hub, self._lifetime_s, self._wall_s = hub, lifetime_s, wall_s

    def routes(self) -> Iterable[Route]:
        return (Route("/v1/groups/{group}/certificates", {"POST": self._post}, Right.JOIN),)

    async def _post(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        group = parts["group"]
        name, public, proof = read_request(await read_body(request))
        if not is_signed(public, proof_text(group, name, public), proof):
            raise Refused(403, "proof is no signature by this key of what it should be: is the group the right one?")
        ban = self._hub.group(group).bans.get(BAN + wire.to_text(public))
        if ban is not None:
            self._hub.counts["certificates_refused"] += 1
            raise Refused(403, f"this identity is banned from the group {group!r} ({ban.member.name or NO_REASON})")
        begin = int(self._wall_s())
        raw = issue(self._hub.signer.sign_bare, name, public, group, begin, begin + self._lifetime_s)
        self._hub.counts["certificates"] += 1
        told = {"certificate": wire.to_text(raw), "not_before": begin, "not_after": begin + self._lifetime_s}
        return web.json_response(told, headers={"Cache-Control": "no-store"})


def read_request(body: bytes) -> tuple[str, bytes, bytes]:
    try:
        told: Any = json.loads(body)
        name, public, proof = told["name"], told["public_key"], told["proof"]
        if not (told.keys() == {"name", "public_key", "proof"} and isinstance(name, str) and name.isprintable()):
            raise ValueError("other fields")
        if not 0 < len(name.encode()) <= NAME_MAX:
            raise ValueError("a name of another length")
        return name, wire.from_text(public, 32), wire.from_text(proof, 64)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused(
            400,
            f'the body is {{"name": up to {NAME_MAX} bytes, "public_key": base 64, "proof": base 64}}',
        ) from None
