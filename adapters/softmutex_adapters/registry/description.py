"""The OpenAPI description of the registry, served at /openapi.json, and held against the server by the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from softmutex_adapters.registry import report, wire
from softmutex_adapters.registry.guard import BODY_MAX

Schema = dict[str, Any]

ERRORS = {
    400: "something in the request is not as described",
    401: "the token is missing or wrong",
    403: "the token does not allow this, or who asks is banned from the group, or not enrolled",
    408: "the body came too slowly",
    409: "another member has this address or this id, and may live; Retry-After says when to come again",
    413: f"the body has more than {BODY_MAX} bytes, or a report more than {report.REPORT_MAX}",
    421: "the registry has another name than the one in Host, or a page of elsewhere asks",
    429: "too many requests; Retry-After says when to come again",
    503: "no room for one more, or the store fails; Retry-After says when to come again",
}
VERSION: Schema = {"type": "integer", "minimum": 0, "maximum": wire.VERSION_MAX - 1}
GROUP: Schema = {"type": "string", "pattern": f"^{wire.GROUP}$"}
LEASE: Schema = {"type": "string", "pattern": f"^{wire.LEASE}$"}
MEMBER = {
    "type": "object",
    "required": ["address", "id"],
    "additionalProperties": False,
    "properties": {
        "address": {"type": "string", "pattern": f"^{wire.ADDRESS}$", "description": "where others reach the member"},
        "id": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "the life of the node"},
        "name": {"type": "string", "pattern": f"^[ -~]{{0,{wire.NAME_MAX}}}$", "description": "how people call it"},
        "proof": {"type": "string", "pattern": f"^{wire.PROOF.pattern}$", "description": "of the group's key"},
    },
}
ENTRY = {"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "string"}}
LIST = {
    "type": "object",
    "required": ["group", "version", "after", "settling_s", "joined", "left"],
    "properties": {
        "group": GROUP,
        "version": VERSION,
        "after": {**VERSION, "type": ["integer", "null"], "description": "null: the whole list"},
        "settling_s": {"type": "number", "description": "so long members of an earlier registry may be missing"},
        "joined": {"type": "array", "items": ENTRY, "description": "key, address, id, name of each"},
        "left": {"type": "array", "items": {"type": "string"}, "description": "keys"},
        "banned": {"type": "array", "items": {"type": "string"}, "description": "all whom the members ignore"},
        "proofs": {"type": "object", "description": "by key: that who has the group's key wrote this entry"},
    },
}
EVENT = {
    "type": "object",
    "required": ["event", "id", "data"],
    "properties": {
        "event": {"const": "members"},
        "id": {"type": "string", "description": "the version"},
        "data": {
            "type": "string",
            "description": "a line that holds a list as JSON, and a line that holds its signature",
        },
    },
}


@cache
def description(has_tokens: bool) -> Schema:
    group, lease = _in("path", "group", GROUP), _in("path", "lease", LEASE)
    after = _in("query", "after", VERSION, "the version that the client has; 0 or nothing for the whole list")
    wait = _in("query", "wait", {"type": "number", "minimum": 0, "maximum": 30}, "seconds to wait for a change")
    mine = _in("query", "lease", LEASE, "the lease of this watcher: when the stream breaks, it is over soon")
    long = _in(
        "query", "wait", {"type": "number", "minimum": 0, "maximum": 3600}, "end the stream after so many seconds"
    )
    joined = _json(
        "it is listed at this version, for ttl_s after the last request", _of(version=VERSION, ttl_s={"type": "number"})
    )
    left = _json("it is listed no longer", _of(version=VERSION))
    signed = {wire.KEY_HEADER: _header("the public key"), wire.SIGNATURE_HEADER: _header("Ed25519, of the body")}
    group_told = _of(name=GROUP, version=VERSION, members={"type": "integer"})
    paths = {
        "/healthz": _get(
            "Does it work?", _json("yes", _of(status={"enum": ["ok", "degraded"]}, store={"type": "string"}))
        ),
        "/metrics": _get("Numbers for Prometheus", _plain("metrics", "text/plain")),
        "/openapi.json": _get("This description", _json("an OpenAPI description", {"type": "object"})),
        "/v1/key": _get("The key that signs all lists", _json("base 64", _of(public_key={"type": "string"}))),
        "/v1/groups": _get(
            "All groups",
            _json("groups", _of(groups={"type": "array", "items": group_told})),
            errors=(401,),
            closed=True,
        ),
        "/v1/groups/{group}/members": _get(
            "The members of a group, or what changed after a version",
            {200: {**_json("a list", LIST)[200], "headers": signed}, 204: {"description": "nothing changed"}},
            parameters=[group, after, wait],
            errors=(400, 401, 503),
            closed=True,
        ),
        "/v1/groups/{group}/events": _get(
            "The same as server-sent events; each has two lines of data, the list and its signature",
            _plain("a stream", "text/event-stream", EVENT),
            parameters=[group, after, mine, long],
            errors=(400, 401, 503),
            closed=True,
        ),
        "/v1/groups/{group}/members/{lease}": {
            "parameters": [group, lease],
            "put": _operation("Join, or renew the lease", joined, (400, 401, 403, 408, 409, 413, 503), closed=True)
            | {"requestBody": {"required": True, "content": {"application/json": {"schema": MEMBER}}}},
            "delete": _operation("Leave", left, (400, 401, 503), closed=True),
        },
    }
    paths |= _page(group, lease, after, wait) | _identities(group)
    if not has_tokens:
        for operations in paths.values():
            for method in operations.keys() - {"parameters"}:
                operations[method].pop("security", None)
                operations[method]["responses"].pop("401", None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "softmutex registry", "version": "1", "description": "Members of groups, with leases."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }


def _page(group: Schema, lease: Schema, after: Schema, wait: Schema) -> dict[str, Schema]:
    """Of viewing.py."""
    taken = _json("taken", _of(known={"type": "boolean"}, again_s={"type": "number", "description": "wait so long"}))
    shown = {"type": "object", "description": "all that is shown; times are ages in seconds"}
    picture = _of(group=GROUP, version=VERSION, members=shown, mutexes={"type": "array", "items": shown})
    return {
        "/": _get("The page", _plain("a page", "text/html")),
        "/ui/page.css": _get("Its looks", _plain("a style sheet", "text/css")),
        "/ui/page.js": _get("Its script", _plain("a script", "text/javascript")),
        "/ui/icon.svg": _get("Its icon", _plain("a picture", "image/svg+xml")),
        "/v1/groups/{group}/picture": _get(
            "What the page shows of a group",
            _json("a picture", picture) | {204: {"description": "nothing is new"}},
            parameters=[group, after, wait],
            errors=(400, 401, 503),
            closed=True,
        ),
        "/v1/groups/{group}/members/{lease}/report": {
            "parameters": [group, lease],
            "post": _operation("Tell what happens to the mutexes here", taken, (400, 401, 408, 413, 503), closed=True)
            | {"requestBody": {"required": True, "content": {"application/json": {"schema": report.SCHEMA}}}},
        },
    }


def _identities(group: Schema) -> dict[str, Schema]:
    """Of certificates.py and bans.py."""
    text: Schema = {"type": "string"}
    asked = _of(
        name=_pattern("[ -~]{1,64}"), public_key=_pattern("[A-Za-z0-9_-]{43}"), proof=_pattern("[A-Za-z0-9_-]{86}")
    )
    asked["additionalProperties"] = False
    asked["properties"]["invitation"] = _pattern("[A-Za-z0-9_-]{16,64}")
    given = _json("a certificate", _of(certificate=text, not_before={"type": "integer"}, not_after={"type": "integer"}))
    who = _in("path", "who", _pattern(wire.WHO), "an id, or a public key in base 64")
    why: Schema = {"type": "object", "additionalProperties": False, "properties": {"why": _pattern("[ -~]{0,100}")}}
    listed = _json("bans", _of(banned={"type": "array", "items": _of(who=text, why=text)}))
    version = _json("told to all at this version", _of(version=VERSION))
    return _enrolment(group, version) | {
        "/v1/groups/{group}/certificates": {
            "parameters": [group],
            "post": _operation("Certify a key", given, (400, 401, 403, 408, 413, 503), closed=True)
            | {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}},
        },
        "/v1/groups/{group}/banned": _get(
            "Who is banned", listed, parameters=[group], errors=(400, 401, 503), closed=True
        ),
        "/v1/groups/{group}/banned/{who}": {
            "parameters": [group, who],
            "put": _operation("Ban a node or an identity", version, (400, 401, 408, 413, 503), closed=True)
            | {"requestBody": {"required": False, "content": {"application/json": {"schema": why}}}},
            "delete": _operation("Pardon", version, (400, 401, 503), closed=True),
        },
    }


def _enrolment(group: Schema, version: dict[int, Schema]) -> dict[str, Schema]:
    """Of enrolment.py."""
    text, whole = {"type": "string"}, {"type": "integer"}
    name = {**_of(name=_pattern("[ -~]{1,64}")), "additionalProperties": False}
    asked = {**_of(name=_pattern("[ -~]{1,64}")), "additionalProperties": False}
    asked["properties"] = {**asked["properties"], "for_s": {"type": "number", "minimum": 1, "maximum": 2_592_000}}
    invited = _of(mark=text, name=text, not_after=whole)
    known = _of(
        enrolled={"type": "array", "items": _of(public_key=text, name=text)},
        invited={"type": "array", "items": invited},
    )
    made = _json("a one-time token", _of(invitation=text, mark=text, not_after=whole))
    key = _in("path", "key", _pattern("[A-Za-z0-9_-]{43}"), "a public key in base 64")
    mark = _in("path", "mark", _pattern("[0-9a-f]{16}"), "of an invitation, as it is listed")
    return {
        "/v1/groups/{group}/identities": _get(
            "Who is enrolled and who is invited",
            _json("identities", known),
            parameters=[group],
            errors=(400, 401, 503),
            closed=True,
        ),
        "/v1/groups/{group}/identities/{key}": {
            "parameters": [group, key],
            "put": _operation("Enrol an identity", version, (400, 401, 408, 413, 503), closed=True)
            | {"requestBody": {"required": True, "content": {"application/json": {"schema": name}}}},
            "delete": _operation("Strike an identity off", version, (400, 401, 503), closed=True),
        },
        "/v1/groups/{group}/invitations": {
            "parameters": [group],
            "post": _operation("Invite one to enrol", made, (400, 401, 408, 413, 503), closed=True)
            | {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}},
        },
        "/v1/groups/{group}/invitations/{mark}": {
            "parameters": [group, mark],
            "delete": _operation("Withdraw an invitation", version, (400, 401, 503), closed=True),
        },
    }


def _pattern(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^({pattern})$"}


def _of(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _in(where: str, name: str, schema: Schema, meaning: str = "") -> Schema:
    return {"in": where, "name": name, "required": where == "path", "schema": schema, "description": meaning or name}


def _header(meaning: str) -> Schema:
    return {"description": meaning, "schema": {"type": "string"}}


def _json(meaning: str, schema: Schema) -> dict[int, Schema]:
    return {200: {"description": meaning, "content": {"application/json": {"schema": schema}}}}


def _plain(meaning: str, kind: str, schema: Schema | None = None) -> dict[int, Schema]:
    return {200: {"description": meaning, "content": {kind: {"schema": schema or {"type": "string"}}}}}


def _operation(
    summary: str, answers: dict[int, Schema], errors: tuple[int, ...] = (), *, closed: bool = False, **more: Any
) -> Schema:
    told = _json("", _of(error={"type": "string"}))[200]
    always = {421, 429} | ({403} if closed else set())
    refusals = {status: {**told, "description": ERRORS[status]} for status in sorted({*errors, *always})}
    operation: Schema = {"summary": summary, "responses": {str(k): v for k, v in (answers | refusals).items()}, **more}
    return operation | ({"security": [{"token": []}]} if closed else {})


def _get(
    summary: str, answers: dict[int, Schema], *, errors: tuple[int, ...] = (), closed: bool = False, **more: Any
) -> Schema:
    return {"get": _operation(summary, answers, errors, closed=closed, **more)}
