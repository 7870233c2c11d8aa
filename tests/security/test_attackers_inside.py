"""Attackers that have the group's key, or a copy of a member's memory, as processes, against groups of processes.

The threat model gives them what a member can do; what it does not give them is that they outlast it: room that is taken
for ever, a life that is lived twice, names that are never forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from softmutex_adapters.registry import wire

from softmutex.ports import Member
from softmutex.runtime.sealing import read_keys
from tests.faults.harness import Worker, group
from tests.limits import limit
from tests.ports import free_port
from tests.registry.serving import Served, join_in_another_process
from tests.registry.store_process import Process
from tests.security.test_attackers import all_know_all, all_turns, attacked_by, judge, over, places

pytestmark = pytest.mark.slow
LIFE = 0xC10AE
ROOM = 100
SENDERS = "senders whose counters are remembered"


def test_more_lives_than_a_node_remembers_keep_no_newcomer_out(tmp_path: Path):
    """65,536 of them filled the table of a node for its whole life, and newcomers held beside the others."""
    at = places("udp")
    *nodes, newcomer = over("udp", at, tmp_path)
    [secret] = read_keys(tmp_path / "key")
    with group(tmp_path, nodes) as workers:
        count = limit(SENDERS) + 5000
        with attacked_by("lives", target=at[0], id=workers[0].id, key=secret.hex(), count=count):
            pass
        late = Worker({"witness": str(tmp_path / "witness"), "node": {**newcomer, "name": "late"}, "mutex": {}})
        try:
            late.hears("ready")
            workers.append(late)
            all_turns(workers)
            judge(tmp_path, workers, 1)
        finally:
            late.clean_up()


def test_two_processes_that_began_from_one_snapshot_become_two_lives(tmp_path: Path):
    at = places("udp")
    nodes = over("udp", at, tmp_path)
    nodes[1]["life"] = nodes[2]["life"] = LIFE
    with group(tmp_path, nodes) as workers:
        counted = all_know_all(workers)
        assert sum(each["told"].get("own id", 0) for each in counted) >= 1
        all_turns(workers)
        judge(tmp_path, workers, 1)


def test_who_was_killed_and_is_set_back_to_a_snapshot_takes_another_life(tmp_path: Path):
    at = places("udp")
    nodes = over("udp", at, tmp_path)
    nodes[2]["life"] = LIFE
    with group(tmp_path, nodes) as workers:
        assert workers[2].id == LIFE
        while workers[2].statistics()["node"]["transport"]["sent"] < 200:  # or all it sends is new to the others
            all_turns(workers)
        workers[2].kill()
        (tmp_path / "witness").unlink()
        restored = Worker({"witness": str(tmp_path / "again"), "node": {**nodes[2], "name": "restored"}, "mutex": {}})
        try:
            restored.hears("ready")
            known = all_know_all([workers[0], workers[1], restored])
            all_turns([workers[0], workers[1], restored])  # each of the others has seen some of its counters, not all
            restored.enters("mine")
            restored.leaves("mine")
            assert restored.statistics()["node"]["told"].get("own id") == 1, known
        finally:
            restored.clean_up()


def test_more_names_than_a_node_has_room_for_stop_nobody(tmp_path: Path):
    """With less room, as 4,096 names cost a busy machine more than a test may."""
    at = [*places("udp"), f"127.0.0.1:{free_port()}"]
    *nodes, attacker = [{**node, "room": ROOM} for node in over("udp", at, tmp_path)]
    attacker.pop("room")
    with group(tmp_path, nodes) as workers:
        all_turns(workers)
        with attacked_by("names", node={**attacker, "name": "attacker"}, room=ROOM, count=ROOM + 50) as told:
            all_turns(workers)
            all_turns(workers)
        all_turns(workers)
        judge(tmp_path, workers, 4)
    assert told["granted"] in (ROOM - 1, ROOM), "it may take part in ours, too"
    assert told["refused"] >= 50


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("redis", marks=pytest.mark.needs("redis-server")),
        pytest.param("etcd", marks=pytest.mark.needs("etcd")),
    ],
)
def test_who_reads_the_store_of_a_registry_finds_no_signing_key_there(tmp_path: Path, kind: str):
    """Nor does another user of its host."""
    kept, own = tmp_path / "store", tmp_path / "own"
    kept.mkdir()
    own.mkdir()
    store = None if kind == "sqlite" else Process(kind, kept)
    if store is not None:
        store.start()
    where = f"sqlite:{kept / 'registry.db'}" if store is None else store.url
    served = Served(own, store=where, signing_key=own / "signing.key")
    try:
        served.start()
        join_in_another_process(served.url("g", insecure="yes"), Member("10.0.0.1:1", 1, "one"))()
    finally:
        served.stop()
        if store is not None:
            store.stop()
    key = own / "signing.key"
    assert key.stat().st_mode & 0o077 == 0
    text = key.read_bytes().strip()
    secrets = (text, wire.from_text(text.decode(), 32))
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert any(b"10.0.0.1:1" in path.read_bytes() for path in files), "the list is there"
    assert not [path for path in files for secret in secrets if secret in path.read_bytes()]
