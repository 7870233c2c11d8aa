"""Every parser that strangers reach, but that of frames (`tests/wire/fuzz_wire.py`): any bytes give what it promises.

    .ci/fuzz SECONDS                                each for a while, guided by coverage
    python tests/fuzzing/guided.py mdns -max_total_time=600      one of them for ten minutes

A target takes any bytes. It lets pass what its parser may raise, and asserts what must hold of what it gives.
"""

from __future__ import annotations

import contextlib
import json
import math
import tomllib
from collections.abc import Callable
from typing import NamedTuple

from softmutex_adapters.memberships import dns_wire, leased, mdns_text
from softmutex_adapters.memberships.mdns_roll import Roll
from softmutex_adapters.memberships.static import StaticMembership
from softmutex_adapters.registry import bans, certificates, enrolment, report, routes, wire
from softmutex_adapters.registry.guard import Hosts, source_of
from softmutex_adapters.registry.tokens import Right, Tokens
from softmutex_adapters.schedulers.slurm import jobs
from softmutex_adapters.transports import frames

from softmutex.agent import link
from softmutex.agent.server import KEEP_MOST_S, wish_of
from softmutex.core.errors import ConfigError
from softmutex.core.hint import HINT_SIZE, Why, read_hint, write_hint
from softmutex.core.names import check_name
from softmutex.ports import Member
from softmutex.runtime.config import flatten, take_mutex_tables
from softmutex.runtime.identity import issue, read_certificate
from softmutex.runtime.options import SETTINGS, read_one
from softmutex.runtime.sealing import KEY_SIZE, parse_key


class Target(NamedTuple):
    try_it: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def mdns(data: bytes) -> None:
    """The TXT record of a service of ours: anybody in the network announces one."""
    with contextlib.suppress(mdns_text.Unfit):
        said = mdns_text.read(data, ID, GROUP)
        assert said.name.isprintable()
        assert mdns_text.dial(said.address) == said.address
    roll = Roll(GROUP)
    roll.hear(ID, data, 120.0, 0.0)
    for member in roll.others("10.0.0.1:1"):
        assert member.id == ID


def dns(data: bytes) -> None:
    """What somebody answers to a question of ours."""
    with contextlib.suppress(dns_wire.BadAnswer):
        dns_wire.read(data, QUESTION)


def registry(data: bytes) -> None:
    """A list of members, before its signature is looked at, and as an event of a stream."""
    with contextlib.suppress(wire.Nonsense):
        told = wire.read(data)
        assert told.after is None or told.after < told.version
        assert all(member.id < 1 << 64 for _, member in told.joined)
    with contextlib.suppress(wire.Nonsense):
        reader = wire.EventReader()
        for begin in range(0, len(data), 7):
            reader.feed(data[begin : begin + 7])
    with contextlib.suppress(wire.Nonsense):
        wire.read_fresh(PUBLIC, "lab", "nonce", data.decode("utf-8", "replace"))


def reports(data: bytes) -> None:
    """What a member says of itself to a registry."""
    with contextlib.suppress(ValueError):
        report.read(data)


def http(data: bytes) -> None:
    """A body, where its sender says that it is, and the heads of a request that a registry looks at."""
    whole = frames.unpack(data)
    assert whole is None or all(whole)
    base = frames.read_base(data.decode("latin-1"))
    assert base is None or frames.read_base(base) == base
    head = data.decode("utf-8", "surrogateescape")  # as aiohttp gives it
    assert HOSTS.allow(head) in (False, True)
    assert HOSTS.is_elsewhere(head, "registry.lab") or "registry.lab" in head.lower()
    source_of(head)
    assert TOKENS.right(head, "lab") < Right.JOIN or JOIN in head


def hint(data: bytes) -> None:
    """That a frame of ours was refused: of anybody, sealed by nobody."""
    found = read_hint(data)
    assert found is None or (len(data) == HINT_SIZE and found.sender < 1 << 64)
    answer = write_hint(Why.KEY, data)
    assert len(answer) < max(1, len(data)), "no more bytes than came"
    assert not (found and answer), "a hint for a hint"


def bodies(data: bytes) -> None:
    """What is asked of a registry, and what stands on the board of a store."""
    for read in (routes.read_member, certificates.read_request, bans.read_why):
        with contextlib.suppress(routes.Refused):
            read(data)
    with contextlib.suppress(routes.Refused):
        name, _ = enrolment.read_name(data, {"name"})
        assert name
    member = leased.read("10.0.0.2:9431", data.decode("utf-8", "replace"))
    assert member is None or member.id < 1 << 64


def agent(data: bytes) -> None:
    """What a process of this host says to the agent."""
    with contextlib.suppress(link.NotALink):
        lines = link.Lines()
        for begin in range(0, len(data), 11):
            for said in lines.feed(data[begin : begin + 11]):
                agents_wish(said)


def agents_wish(said: link.Message) -> None:
    with contextlib.suppress(ConfigError, TypeError, ValueError):
        wish = wish_of(said)
        assert wish.keep_s <= KEEP_MOST_S
        assert wish.since_s is None or math.isfinite(wish.since_s)
    with contextlib.suppress(ConfigError):
        assert check_name(said.get("name")) == said["name"]


def files(data: bytes) -> None:
    """Files and lists that somebody else may have had in hand: keys, tokens, addresses, settings."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ConfigError):
        assert len(parse_key(text, "the file")) == KEY_SIZE
    with contextlib.suppress(ConfigError):
        assert Tokens(text.splitlines()).right("Bearer x", "lab") in (Right.NONE, Right.ADMIN)
    with contextlib.suppress(ConfigError):
        assert StaticMembership.from_url(f"static://{text}").on_this_host in (False, True)
    with contextlib.suppress(ValueError):
        certificate = read_certificate(data)
        assert certificate.signed + certificate.signature == data
    with contextlib.suppress(ConfigError):
        settings(text)


def settings(text: str) -> None:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    take_mutex_tables(table, "the file")
    for name, raw in flatten(table, "the file"):
        read_one(SETTINGS[name], raw, "the file")


def squeue(data: bytes) -> None:
    """What Slurm says of jobs; names and comments are of any user's making."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(jobs.SlurmFailed):
        queue = jobs.read_queue(text)
        for id, job in queue.jobs.items():
            assert jobs.ID.fullmatch(id), id
            assert job.id == id
    with contextlib.suppress(ConfigError):
        wish = jobs.read_wish(text)
        assert jobs.read_wish(wish.mark()).mutex == wish.mutex, "what is marked is read as it was meant"


ID, GROUP = 0x1234, mdns_text.fingerprint("default")
QUESTION = dns_wire.question(7, "example.org", 33)
JOIN = "j" * 20
HOSTS, TOKENS = Hosts(["registry.lab", "*.lab"]), Tokens([f"lab read {'r' * 20}", JOIN])
PUBLIC = wire.Signer(bytes(32)).public
_TEXT = b"".join(
    bytes([len(part)]) + part
    for key, value in mdns_text.write(Member("10.0.0.2:9431", ID, "b"), GROUP).items()
    if (part := f"{key}={value}".encode())
)
_LIST = wire.write("lab", 3, None, 0.0, [wire.entry("l" * 20, Member("10.0.0.2:9431", ID, "b"))], [])
_JOBS = {
    "jobs": [
        {
            "job_id": 17,
            "array_job_id": {"set": True, "number": 0},
            "array_task_id": {"set": False, "number": 0},
            "array_task_string": "",
            "job_state": ["PENDING"],
            "admin_comment": "softmutex=x:timeout=60",
            "comment": "softmutex=x\n18 words",
            "state_reason": "BeginTime",
            "user_name": "u",
            "name": "n",
            "submit_time": {"set": True, "number": 1},
            "priority": {"set": True, "number": 5},
        }
    ]
}
_REPORT = {
    "mutexes": [],
    "spans": [{"mutex": "x", "ago_s": 1, "span_s": 2.5, "count": 3, "held_s": 1}],
    "marks": [],
    "skipped": 0,
}
TARGETS = {
    "mdns": Target(mdns, (_TEXT,)),
    "dns": Target(dns, (QUESTION, QUESTION[:2] + b"\x81\x80" + QUESTION[4:])),
    "registry": Target(registry, (_LIST, b"data: " + _LIST + b"\ndata: s\n\n", b"3 " + b"A" * 86)),
    "reports": Target(reports, (json.dumps(_REPORT).encode(),)),
    "http": Target(
        http,
        (b"\x00\x03abc\x00\x01d", b"https://host:8443/prefix", b"registry.lab:9430", b"[fd00::1%eth0]:1", b"Bearer x"),
    ),
    "hint": Target(
        hint, (write_hint(Why.KEY, bytes(60)), write_hint(Why.VERSION, b"\xabM\x02" + bytes(60)), bytes(60))
    ),
    "bodies": Target(
        bodies,
        (
            b'{"address": "10.0.0.2:9431", "id": "00000000000010e1", "name": "b"}',
            b'{"name": "b", "public_key": "' + b"A" * 43 + b'", "proof": "' + b"A" * 86 + b'", "invitation": "x"}',
            b'{"why": "it floods us"}',
            b'["00000000000010e1", "b", "00"]',
        ),
    ),
    "agent": Target(
        agent,
        (
            b'{"is": "want", "name": "x", "options": {"slots": 2}, "timeout": 5, "since": 1e9, "keep": 9}\n',
            b'{"is": "want", "name": "y", "trace": {"a": "b"}, "said": 3, "on_overrun": "cancel", "purpose": "p"}\n{"',
        ),
    ),
    "files": Target(
        files,
        (
            b"00" * KEY_SIZE,
            b"lab read " + b"r" * 20 + b"\nadmin " + b"a" * 20,
            b"a.lab:9431,[fd00::1]:9431,10.0.0.1:1?refresh=3",
            b'group = "lab"\nslots = 2\nmax_hold = "1h"\n[timing]\nop = 2.5\n[mutex.x]\nslots = 3\n',
            issue(lambda _: bytes(64), "m", bytes(32), "lab", 0, 1),
        ),
    ),
    "squeue": Target(squeue, (json.dumps(_JOBS).encode(), b"softmutex=x:timeout=2h more", b'{"jobs": []}')),
}
