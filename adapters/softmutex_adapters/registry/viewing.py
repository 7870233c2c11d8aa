"""The endpoints of the registry's page: what members report, the picture that is made of it, and the page itself.

    POST /v1/groups/G/members/L/report               a member tells of itself (`report.py`)
    GET  /v1/groups/G/picture?after=V&wait=S         everything that the page shows; waits for something new
    GET  /  /ui/page.css  /ui/page.js  /ui/icon.svg  the page: without secrets, so open to everybody who can connect

What it decides: the page asks with the token in a header, by long polls. The naive way, server-sent events, cannot send
a header, so the token goes into the address, and from there into logs; or into a cookie, which other sites then use.

The page comes with a policy that lets it load nothing from elsewhere and run nothing but its own script, and the script
has no way to make markup from text: what members call themselves stays text.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from softmutex_adapters.registry import report
from softmutex_adapters.registry.group import Group
from softmutex_adapters.registry.hub import Hub
from softmutex_adapters.registry.routes import Answer, Refused, Route, read_after, read_body, read_wait
from softmutex_adapters.registry.scene import PACE_S, Scene
from softmutex_adapters.registry.tokens import Right

WAIT_MAX_S = 30.0
GATHER_S = 0.1  # what changes at once is shown at once
GATHER_MAX_S = 2.0
VIEWERS_MAX = 256
FOLDER = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html"),
    "/ui/page.css": ("page.css", "text/css"),
    "/ui/page.js": ("page.js", "text/javascript"),
    "/ui/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Drawn(NamedTuple):
    version: int
    at: float
    pace_s: float  # so long it is good enough: a picture takes a tenth of the registry's time at most
    body: bytes


class Viewing:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._scenes: dict[str, Scene] = {}
        self._first = secrets.randbits(40) + 1  # another one after a restart: no picture is taken for a known one
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._drawn: dict[str, Drawn] = {}
        self._viewers = 0
        hub.listeners.append(self._list_changed)

    def routes(self) -> list[Route]:
        return [
            *(Route(path, {"GET": self._file}, Right.NONE) for path in FILES),
            Route("/v1/groups/{group}/picture", {"GET": self._picture}, Right.READ),
            Route("/v1/groups/{group}/members/{lease}/report", {"POST": self._report}, Right.JOIN),
        ]

    # --- members ----------------------------------------------------------------------------------------------------

    async def _report(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        try:
            told = report.read(await read_body(request, report.REPORT_MAX))
        except ValueError as error:
            raise Refused(400, f"no report: {error}") from None
        name, lease = parts["group"], parts["lease"]
        group = self._hub.groups.get(name)
        if group is None or lease not in group.entries:
            return web.json_response({"known": False, "again_s": PACE_S})  # it joins again soon
        scene = self._scene(group)
        is_known, again_s = scene.take(lease, told, self._hub.now())
        self._hub.counts["reports"] += 1
        self._wake(name)
        return web.json_response({"known": is_known, "again_s": again_s})

    def _scene(self, group: Group) -> Scene:
        scene = self._scenes.get(group.name)
        if scene is None:
            scene = self._scenes[group.name] = Scene(group.name)
            scene.look(group.entries, group.farewells, self._hub.now())
        return scene

    def _list_changed(self, group: Group, *, is_forgotten: bool = False) -> None:
        if is_forgotten:
            self._scenes.pop(group.name, None)
            self._drawn.pop(group.name, None)
        elif group.name in self._scenes:
            self._scenes[group.name].look(group.entries, group.farewells, self._hub.now())
        self._wake(group.name)

    def _wake(self, name: str) -> None:
        for waiting in self._waiting.pop(name, ()):
            if not waiting.done():
                waiting.set_result(None)

    # --- viewers ----------------------------------------------------------------------------------------------------

    async def _picture(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        after, wait_s, name = read_after(request), read_wait(request, WAIT_MAX_S), parts["group"]
        if self._viewers >= VIEWERS_MAX:
            raise Refused(503, f"{VIEWERS_MAX} others look at it already", {"Retry-After": "30"})
        scene = self._scene(self._hub.group(name))
        if after == self._first + scene.changes and wait_s > 0 and not self._hub.closing:
            self._viewers += 1
            try:
                await self._wait(name, wait_s)
            finally:
                self._viewers -= 1
            scene = self._scene(self._hub.group(name))
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if self._first + scene.changes == after:
            return web.Response(status=204, headers=headers)
        drawn = self._drawn.get(name)
        if drawn is None or drawn.version == after or self._hub.now() - drawn.at > drawn.pace_s:
            drawn = self._drawn[name] = self._draw(name, scene)
        return web.Response(body=drawn.body, content_type="application/json", headers=headers)

    def _draw(self, name: str, scene: Scene) -> Drawn:
        """Once for all who look at the same time; the larger it is, the less often."""
        now, began, version = self._hub.now(), time.perf_counter(), self._first + scene.changes
        told = {"group": name, "version": version, "store": self._hub.trouble, **scene.picture(now)}
        body = json.dumps(told, separators=(",", ":")).encode()
        took_s = time.perf_counter() - began
        return Drawn(version, now, min(max(GATHER_S, took_s * 10), GATHER_MAX_S), body)

    async def _wait(self, name: str, wait_s: float) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name].add(changed)
        try:
            async with asyncio.timeout(wait_s):
                await changed
                await asyncio.sleep(self._drawn[name].pace_s if name in self._drawn else GATHER_S)
        except TimeoutError:
            pass
        finally:
            self._waiting[name].discard(changed)

    async def _file(self, request: web.BaseRequest, parts: Mapping[str, str]) -> Answer:
        name, kind = FILES[request.path]
        return web.Response(body=(FOLDER / name).read_bytes(), content_type=kind, charset="utf-8", headers=HEADERS)
