"""Attackers of the threat model as processes, against groups of processes, over UDP and HTTP; a witness judges.

What is judged is what an observer sees: the holds in the witness (tests/faults/worker.py), who is a member, and how
many warnings were written. Each attacker is one row of the table in docs/security.md.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from softmutex_adapters.registry import wire

from softmutex.runtime import keyfile
from softmutex.runtime.sealing import read_keys
from tests.faults.harness import PATIENCE_S, ROOT, Worker, assert_alone, group, settles, stays, turns_of
from tests.faults.relay import Relay
from tests.ports import free_port
from tests.registry.serving import Served

pytestmark = pytest.mark.slow
MEMBERS = 3
ROUNDS = 10
NOBODY = 65_534
LINES_MOST = 100  # far fewer than what was sent; a busy machine has things to say, too
OF_STRANGERS = {"own id", "other key", "turned away", "version", "epoch", "groups", "reflected"}
READ, JOIN, ADMIN = "r" * 20, "j" * 20, "a" * 20


def places(transport: str) -> list[str]:
    ports = [free_port() for _ in range(MEMBERS)]
    return [f"{'http://' if transport == 'http' else ''}127.0.0.1:{port}" for port in ports]


def keyed(folder: Path) -> str:
    if not (file := folder / "key").exists():
        keyfile.make(file)
    return str(file)


def over(transport: str, at: Sequence[str], folder: Path, **more: Any) -> list[dict[str, Any]]:
    """Members that know each other by a static list, with a key, unless `more` says otherwise."""
    given = {"membership": f"static://{','.join(at)}", "key_file": keyed(folder), **more}
    return [{"transport": place if transport == "http" else f"udp://{place}", **given} for place in at]


@contextmanager
def attacked_by(kind: str, **given: Any) -> Iterator[dict[str, Any]]:
    """He is at work meanwhile; what he says is there afterwards."""
    command = [sys.executable, "-m", "tests.security.attacker", kind, json.dumps(given)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = {}
    try:
        yield told
        told |= json.loads(process.communicate(timeout=300)[0])
    finally:
        process.kill()
        process.wait()


def all_turns(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.order(f"turns 2 {ROUNDS}")
    for worker in workers:
        worker.hears("turned")


def judge(folder: Path, workers: Sequence[Worker], rounds: int) -> list[dict[str, Any]]:
    """Nobody held beside another one, all were served, and they know each other and nobody else."""
    counted = all_know_all(workers)
    for worker in workers:
        worker.ends()
    seen = stays(folder)
    assert_alone(seen)
    assert set(turns_of(seen).values()) == {2 * ROUNDS * rounds}
    return counted


def all_know_all(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    """And nobody else, in the end: whom a registry lists counts until it is known that nobody is there."""
    deadline = time.monotonic() + PATIENCE_S
    while any(worker.statistics()["node"]["peers"] != MEMBERS - 1 for worker in workers):
        assert time.monotonic() < deadline, "somebody is a member who is none"
        time.sleep(0.1)
    counted = [worker.statistics()["node"] for worker in workers]
    assert not any(each["told"].get("breakdowns", 0) for each in counted), counted
    return counted


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the processes have written; none of them has a logger of its own."""
    return [line for line in capfd.readouterr().err.splitlines() if line.strip()]


def refused(counted: Sequence[dict[str, Any]]) -> int:
    return sum(sum(each["dropped"].values()) + each["transport"].get("oversized", 0) for each in counted)


@pytest.mark.parametrize("transport", ["udp", "http"])
def test_who_can_send_and_has_nothing_moves_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str], transport: str):
    at = places(transport)
    with group(tmp_path, over(transport, at, tmp_path)) as workers:
        all_turns(workers)
        with attacked_by("nothing", targets=at, ids=[worker.id for worker in workers]) as told:
            all_turns(workers)
        all_turns(workers)
        counted = judge(tmp_path, workers, 3)
    assert told["sent"] > 20
    assert refused(counted) > 10
    assert len(lines(capfd)) < LINES_MOST, "by HTTP he may name any address as his own: a line for each"


@pytest.mark.needs("root")
def test_another_user_of_the_host_reads_nothing_and_moves_nobody(tmp_path: Path):
    with group(tmp_path, [{} for _ in range(MEMBERS)]) as workers:  # `local://`, as by default
        all_turns(workers)
        at = [str(worker.said[0]["address"]) for worker in workers]
        paths = [str(tmp_path / "runtime"), str(tmp_path)]
        ids = [worker.id for worker in workers]
        with attacked_by("account", uid=NOBODY, targets=at, ids=ids, paths=paths) as told:
            all_turns(workers)
        all_turns(workers)
        counted = judge(tmp_path, workers, 3)
    assert not [path for path in told["opened"] if path.startswith(str(tmp_path / "runtime"))]
    assert refused(counted) > 10
    assert not [each["told"] for each in counted if OF_STRANGERS & each["told"].keys()]


def test_who_is_on_the_path_stops_them_for_as_long_as_he_is_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    chance = random.Random(1)
    with Relay(MEMBERS) as relay:
        everybody = ",".join(relay.address(number) for number in range(MEMBERS))
        given = {"membership": f"static://{everybody}", "key_file": keyed(tmp_path)}
        nodes = [{"transport": relay.transport(number), **given} for number in range(MEMBERS)]
        relay.tape_max = 2000

        def in_his_hands(sender: int, receiver: int, payload: bytes) -> bool:
            """Loses one in ten, sends back, plays back to anybody, in anybody's name, and changes."""
            if relay.taped and chance.random() < 0.5:
                _, _, old = chance.choice(relay.taped)
                changed = bytearray(old)
                changed[chance.randrange(len(changed))] ^= 1 + chance.randrange(255)
                relay.deliver(*chance.sample(range(MEMBERS), 2), old)
                relay.deliver(*chance.sample(range(MEMBERS), 2), bytes(changed))
                relay.deliver(receiver, sender, payload)
            return chance.random() < 0.1

        with group(tmp_path, nodes) as workers:
            all_turns(workers)
            relay.hook = in_his_hands
            all_turns(workers)
            relay.hook = None
            settles(tmp_path, workers)
            counted = all_know_all(workers)
    assert refused(counted) > 10
    assert len(lines(capfd)) < LINES_MOST


@contextmanager
def a_registry(tmp_path: Path) -> Iterator[tuple[Served, str]]:
    """With a token for each right; the URL is that of a member, who may join."""
    served = Served(tmp_path, tokens=[f"read {READ}", f"join {JOIN}", f"admin {ADMIN}"])
    own = tmp_path / "member.token"
    own.touch(0o600)
    own.write_text(JOIN)
    served.start()
    try:
        yield served, served.url("default", token_file=own, public_key=served.public_key, report="no")
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("token", "transport"), [(READ, "udp"), (JOIN, "udp"), (JOIN, "http")], ids=["read udp", "join udp", "join http"]
)
def test_who_has_a_token_of_the_registry_and_not_the_key_moves_nobody(tmp_path: Path, token: str, transport: str):
    with a_registry(tmp_path) as (served, url):
        at = places(transport)
        with group(tmp_path, over(transport, at, tmp_path, membership=url)) as workers:
            all_turns(workers)
            members = [{"address": place, "id": worker.id} for place, worker in zip(at, workers, strict=True)]
            with attacked_by("token", registry=served.base, token=token, members=members) as told:
                all_turns(workers)
            all_turns(workers)
            judge(tmp_path, workers, 3)
    assert "PUT 409" in told["answers"] or token == READ
    assert (token == JOIN) is ("PUT 200" in told["answers"]), "what he invents is listed at places that are free"
    assert "DELETE 200" not in told["answers"] or token == JOIN
    assert told["answers"]["GET 200"] > 5
    assert not [entry for entry in served.logged() if entry["level"] == "error" or "exception" in entry]


def test_invented_members_that_swallow_everything_keep_nobody_from_a_turn(tmp_path: Path):
    """Twenty of them stopped two of three for as long as they were listed: whom a list names counted unheard."""
    with a_registry(tmp_path) as (served, url):
        at = places("udp")
        with group(tmp_path, over("udp", at, tmp_path, membership=url)) as workers:
            all_turns(workers)
            with attacked_by("token", registry=served.base, token=JOIN, members=[], swallowing=20, seconds=5) as told:
                wait_for_listed(served, MEMBERS + 20)
                all_turns(workers)
                assert [worker.statistics()["node"]["peers"] for worker in workers] == [MEMBERS - 1] * MEMBERS
            all_turns(workers)
            judge(tmp_path, workers, 3)
    assert told["answers"]["PUT 200"] == 20


def wait_for_listed(served: Served, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    headers = {"Authorization": f"Bearer {READ}"}
    while True:
        asked = urllib.request.Request(f"{served.base}/v1/groups/default/members", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            if len(json.load(answer)["joined"]) == number:
                return
        assert time.monotonic() < deadline, "what he invents is listed"
        time.sleep(0.05)


def test_who_has_the_groups_key_and_no_identity_moves_nobody_where_one_is_required(tmp_path: Path):
    with a_registry(tmp_path) as (served, url):
        at = places("udp")
        nodes = over("udp", at, tmp_path, membership=url, require_identity=True)
        for number, node in enumerate(nodes):
            file = tmp_path / f"{number}.identity"
            keyfile.make(file)
            enrol(served, file)
            node["identity"] = str(file)
        [secret] = read_keys(tmp_path / "key")
        with group(tmp_path, nodes) as workers:
            all_turns(workers)
            with attacked_by("key", targets=at, key=secret.hex(), ids=[worker.id for worker in workers]):
                all_turns(workers)
            all_turns(workers)
            counted = judge(tmp_path, workers, 3)
    assert sum(each["dropped"].get("unsigned", 0) for each in counted) > 10


def enrol(served: Served, file: Path) -> None:
    """As `softmutex identity allow` does."""
    public = Ed25519PrivateKey.from_private_bytes(read_keys(file)[0]).public_key().public_bytes_raw()
    asked = urllib.request.Request(
        f"{served.base}/v1/groups/default/identities/{wire.to_text(public)}",
        data=json.dumps({"name": file.stem}).encode(),
        headers={"Authorization": f"Bearer {ADMIN}"},
        method="PUT",
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
