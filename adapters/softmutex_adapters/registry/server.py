"""HTTP in and out of the registry: a table of routes, one guard before all of them, and answers that say what to do.

    GET  /healthz  /metrics  /openapi.json  /v1/key           open   to everybody who can connect
    GET  /v1/groups                                           read   with a token for all groups
    GET  /v1/groups/G/members?after=V&wait=S                  read   the list, or what changed; waits for a change
    GET  /v1/groups/G/events?after=V&lease=L&wait=S           read   the same as a stream, without an end or for S
    PUT, DELETE /v1/groups/G/members/L                        join   join and renew; leave
    /  /v1/groups/G/picture  /v1/groups/G/members/L/report           the page (viewing.py)
    /v1/groups/G/certificates ...  /v1/groups/G/banned ...           identities (certificates.py, enrolment.py), bans

What it decides: joining and renewing are one request, with everything in it. The naive heartbeat, "I am still there",
finds a registry that lost its store and does not know who "I" is; this one simply puts itself back.

A lease is a random word that its member has made. Whoever knows it may renew and end it, so it is in no list (W5).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from socket import socket

from aiohttp import web

from softmutex.saying import logger
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.bans import Bans, refuse_banned
from softmutex_adapters.registry.certificates import Certificates
from softmutex_adapters.registry.description import description
from softmutex_adapters.registry.enrolment import Enrolment
from softmutex_adapters.registry.guard import Connections, Hosts, Rates, source_of
from softmutex_adapters.registry.hub import Full, Hub, Taken
from softmutex_adapters.registry.metrics import render
from softmutex_adapters.registry.routes import (
    GROUP,
    LEASE,
    Answer,
    Refused,
    Route,
    read_after,
    read_body,
    read_member,
    read_wait,
)
from softmutex_adapters.registry.store import StoreFailed
from softmutex_adapters.registry.streams import CATCHING_UP_MAX, Stream
from softmutex_adapters.registry.tokens import Right, Tokens
from softmutex_adapters.registry.viewing import Viewing

WAIT_MAX_S = 30.0
STREAM_MAX_S = 3600.0
STORE_S = 5.0  # a newcomer waits so long for a store that does not answer
STOP_S = 2.0
CONNECTIONS_MAX = 30_000
RATE_ADDRESS = 500.0  # requests a second of one address; ten seconds' worth may come at once
RATE_GROUP = 2_000.0

log = logger("registry")


class RegistryServer:
    """Serves `hub` on a socket. `routes` may be added to before `start`."""

    def __init__(
        self,
        hub: Hub,
        *,
        tokens: Tokens | None = None,
        hosts: Hosts | None = None,
        connections_max: int = CONNECTIONS_MAX,
        rate_address: float = RATE_ADDRESS,
        rate_group: float = RATE_GROUP,
    ) -> None:
        self.hub, self.tokens, self.hosts = hub, tokens or Tokens(), hosts or Hosts()
        self._rates = {"address": Rates(rate_address), "group": Rates(rate_group)}
        self._turns = asyncio.Semaphore(CATCHING_UP_MAX)
        self._connections_max = connections_max
        self._runner: web.ServerRunner | None = None
        self._connections: Connections | None = None
        enrolment = Enrolment(hub)
        self.routes = [
            Route("/healthz", {"GET": self._health}, Right.NONE),
            Route("/metrics", {"GET": self._metrics}, Right.NONE),
            Route("/openapi.json", {"GET": self._description}, Right.NONE),
            Route("/v1/key", {"GET": self._key}, Right.NONE),
            Route("/v1/groups", {"GET": self._groups}, Right.READ),
            Route("/v1/groups/{group}/members", {"GET": self._members}, Right.READ),
            Route("/v1/groups/{group}/events", {"GET": self._events}, Right.READ),
            Route("/v1/groups/{group}/members/{lease}", {"PUT": self._put, "DELETE": self._drop}, Right.JOIN),
            *Viewing(hub).routes(),
            *Certificates(hub, enrolment).routes(),
            *enrolment.routes(),
            *Bans(hub).routes(),
        ]

    async def start(self, bound: socket, tls: ssl.SSLContext | None = None) -> None:
        self._connections = Connections(self._answer, self.hub.counts, self._connections_max)
        self._runner = web.ServerRunner(self._connections, shutdown_timeout=STOP_S)
        await self._runner.setup()
        await web.SockSite(self._runner, bound, ssl_context=tls, backlog=4096).start()

    @property
    def connections(self) -> int:
        """That are open."""
        return self._connections.number if self._connections is not None else 0

    async def stop(self) -> None:
        """Takes nobody new, answers who waits, and closes the store."""
        if self._runner is not None:
            for site in self._runner.sites:
                await site.stop()
        await self.hub.aclose()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- the guard --------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> Answer:
        assert self._connections is not None
        self._connections.asks(request.protocol)
        try:
            return await self._answer_or_say_why_not(request)
        finally:
            self._connections.was_answered(request.protocol)

    async def _answer_or_say_why_not(self, request: web.BaseRequest) -> Answer:
        try:
            answer = await self._route(request)
        except Refused as refused:
            answer = web.json_response({"error": refused.why}, status=refused.status, headers=refused.headers)
            if refused.status in (408, 413):
                answer.force_close()  # the rest of the body is not read
        except Taken as taken:
            answer = web.json_response({"error": str(taken)}, status=409, headers={"Retry-After": "2"})
        except Full as full:
            answer = web.json_response({"error": str(full)}, status=503, headers={"Retry-After": "30"})
        except (StoreFailed, TimeoutError) as error:
            said = str(error) or f"the store has not answered for {STORE_S:g} s"
            answer = web.json_response({"error": said}, status=503, headers={"Retry-After": "2"})
        except Exception:
            self.hub.counts["breakdowns"] += 1
            log.exception("a request could not be answered: %s %s", request.method, request.path)
            answer = web.json_response({"error": "a mistake of the registry; its log says more"}, status=500)
        self.hub.counts[f"requests_{request.method if answer.status != 405 else 'other'}_{answer.status}"] += 1
        return answer

    async def _route(self, request: web.BaseRequest) -> Answer:
        # A right token counts apart: strangers of its host, or behind the same proxy, shut out nobody who has one.
        source, token = source_of(request.remote or ""), self.tokens.number(request.headers.get("Authorization", ""))
        self._slow_down("address", f"{source} {token}")
        self._check_host(request)
        for route in self.routes:
            if match := route.pattern.fullmatch(request.path):
                break
        else:
            raise Refused(404, "there is nothing here; /openapi.json tells what there is")
        handler = route.methods.get(request.method)
        if handler is None:
            allowed = ", ".join(route.methods)
            raise Refused(405, f"{route.path} knows {allowed}", {"Allow": allowed})
        parts = match.groupdict()
        right = self._check_right(request, route.right, parts.get("group", "")) if route.right else Right.NONE
        if not GROUP.fullmatch(parts.get("group", "a")):
            raise Refused(400, f"a group's name looks like {wire.GROUP}")
        if not LEASE.fullmatch(parts.get("lease", "a" * 16)):
            raise Refused(400, f"a lease looks like {wire.LEASE}")
        if "group" in parts:
            self._slow_down("group", self._counted_with(request, parts, right))
        return await handler(request, parts)

    def _counted_with(self, request: web.BaseRequest, parts: Mapping[str, str], right: Right) -> str:
        """Whose requests share a rate: each listed member has its own, so that nobody keeps it from renewing, and who
        may only look has none of those who may join."""
        lease, group = parts.get("lease") or request.query.get("lease", ""), self.hub.groups.get(parts["group"])
        is_listed = group is not None and lease in group.entries
        return f"{parts['group']} {lease if is_listed else right.name}"

    def _check_host(self, request: web.BaseRequest) -> None:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if not self.hosts.allow(host) or (origin is not None and self.hosts.is_elsewhere(origin, host)):
            self.hub.counts["refused_hosts"] += 1
            why = f"this registry is not called {host[:100]!r}, or a page of elsewhere asks. If it is: --host NAME"
            raise Refused(421, why)

    def _check_right(self, request: web.BaseRequest, wanted: Right, group: str) -> Right:
        right = self.tokens.right(request.headers.get("Authorization", ""), group)
        if not right:
            self.hub.counts["refused_tokens"] += 1
            why = "this wants the group's token: Authorization: Bearer TOKEN"
            raise Refused(401, why, {"WWW-Authenticate": "Bearer"})
        assert self._connections is not None
        self._connections.is_known(request.protocol)
        if right < wanted:
            self.hub.counts["refused_tokens"] += 1
            raise Refused(
                403, f"this token may {right.name.lower()}, and this wants one that may {wanted.name.lower()}"
            )
        return right

    def _slow_down(self, what: str, key: str) -> None:
        wait_s = self._rates[what].wait_s(key, self.hub.now())
        if wait_s:
            self.hub.counts[f"slowed_{what}"] += 1
            raise Refused(429, f"too many requests of this {what}", {"Retry-After": str(int(wait_s) + 1)})

    # --- members ----------------------------------------------------------------------------------------------------

    async def _put(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        member, proof = read_member(await read_body(request))
        refuse_banned(self.hub, parts["group"], member)
        async with asyncio.timeout(STORE_S):
            version = await self.hub.put(parts["group"], parts["lease"], member, proof)
        headers = self._fresh(request, parts["group"])
        return web.json_response({"version": version, "ttl_s": self.hub.ttl_s}, headers=headers)

    def _fresh(self, request: web.BaseRequest, group: str) -> dict[str, str]:
        """Who signs, and how new the list is at this moment, where somebody asks."""
        headers = {wire.KEY_HEADER: self.hub.signer.public}
        nonce = request.headers.get(wire.NONCE_HEADER, "")
        if LEASE.fullmatch(nonce):
            headers[wire.FRESH_HEADER] = self.hub.signer.fresh(group, nonce, self.hub.group(group).version)
        return headers

    async def _drop(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        async with asyncio.timeout(STORE_S):
            version = await self.hub.drop(parts["group"], parts["lease"])
        return web.json_response({"version": version})

    async def _members(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        after = read_after(request)
        version, told = await self.hub.line(parts["group"], after, read_wait(request, WAIT_MAX_S))
        headers = {**self._fresh(request, parts["group"]), "ETag": f'"{version}"', "Cache-Control": "no-store"}
        if told is None:
            return web.Response(status=204, headers=headers)
        line, signature = told
        return web.Response(
            body=line, content_type="application/json", headers={**headers, wire.SIGNATURE_HEADER: signature}
        )

    async def _events(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        name, after, lease = parts["group"], read_after(request), request.query.get("lease", "")
        if lease and not LEASE.fullmatch(lease):
            raise Refused(400, f"a lease looks like {wire.LEASE}")
        wait_s = read_wait(request, STREAM_MAX_S) if "wait" in request.query else None
        hub, transport = self.hub, request.transport
        group = hub.group(name)
        await hub.check_not_set_back(group, after)
        response = web.StreamResponse(
            headers={
                **self._fresh(request, name),
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would keep it until it is over
            }
        )
        await response.prepare(request)
        if transport is None:
            return response  # gone meanwhile

        def lacks(version: int) -> tuple[int, bytes] | None:
            group = hub.group(name)
            told = group.since(version, hub.now())
            return (group.version, wire.event(group.version, *told)) if told else None

        if lease:
            group.stream_opened(lease)
        try:
            stream = Stream(response, transport, after)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stream.follow(hub.streams[name], lacks, self._turns, lambda: hub.closing)
        finally:
            if lease:
                group.stream_broke(lease, hub.now())
        return response

    async def _groups(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        told = [
            {"name": name, "version": group.version, "members": len(group.entries)}
            for name, group in sorted(self.hub.groups.items())
        ]
        return web.json_response({"groups": told})

    # --- about the registry -----------------------------------------------------------------------------------------

    async def _key(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        return web.json_response({"public_key": self.hub.signer.public})

    async def _health(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        """200 also where the store fails: the lists stand, and taking this one out would help nobody."""
        trouble = self.hub.trouble
        told = {"status": "degraded" if trouble else "ok", "store": trouble or "ok"}
        return web.json_response(told, headers={"Cache-Control": "no-store"})

    async def _metrics(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        text = render(self.hub, self.connections)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _description(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        return web.json_response(description(has_tokens=bool(self.tokens)))
