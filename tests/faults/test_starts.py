"""Starts under bad conditions: a port that is taken, peers that do not answer, everybody at once."""

import os
import socket
import sys
from pathlib import Path

import pytest

from softmutex import Node, SoftMutexError
from softmutex.ports import CannotOpen
from tests import prepared
from tests.faults.harness import assert_alone, group, stays
from tests.ports import OWN_HOST, free_port

SOFTMUTEX = Path(sys.executable).with_name("softmutex")


async def test_a_port_that_is_in_use_is_an_error_that_names_it_and_leaves_nothing_open(no_leaks: None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        node = Node(transport=f"udp://127.0.0.1:{port}", membership="static://127.0.0.1:1")
        with pytest.raises(CannotOpen, match=str(port)) as said:
            await node.open()
        assert isinstance(said.value, SoftMutexError)


def test_softmutex_run_says_69_where_the_port_is_in_use(tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        flags = ["--transport", f"udp://127.0.0.1:{port}", "--membership", f"local://?directory={tmp_path}/runtime"]
        run = prepared.run(
            [SOFTMUTEX, "run", "-n", "x", *flags, "--", "touch", tmp_path / "ran"], capture_output=True, text=True
        )
    assert run.returncode == 69
    assert str(port) in run.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("dead", ["127.0.0.1:9", "192.0.2.1:9431", "no-such-host.invalid:9431"])
async def test_a_peer_that_never_answers_does_not_keep_a_node_from_the_mutex(no_leaks: None, dead: str):
    """Nobody there, a place that no route leads to, a name that nobody knows."""
    place = f"{OWN_HOST}:{free_port(OWN_HOST)}"
    async with (
        Node(transport=f"udp://{place}", membership=f"static://{place},{dead}") as node,
        node.mutex("x").hold(timeout=60),  # it takes five
    ):
        assert node.peers() == ()


def test_dead_addresses_in_the_list_cost_the_living_nothing(tmp_path: Path):
    living = [f"{OWN_HOST}:{free_port(OWN_HOST)}" for _ in range(3)]
    dead = [f"{OWN_HOST}:{free_port(OWN_HOST)}" for _ in range(3)]
    everybody = "static://" + ",".join(living + dead)
    nodes = [{"transport": f"udp://{place}", "membership": everybody} for place in living]
    with group(tmp_path, nodes) as workers:
        for worker in workers:
            worker.order("turns 2 20")
        for worker in workers:
            worker.hears("turned")
        for worker in workers:
            worker.ends()
    assert_alone(stays(tmp_path))


def test_many_that_start_at_the_same_moment_make_one_token(tmp_path: Path):
    with group(tmp_path, [{} for _ in range(12)]) as workers:
        for worker in workers:
            worker.order("turns 2 10")
        for worker in workers:
            worker.hears("turned")
        for worker in workers:
            worker.ends()
    seen = stays(tmp_path)
    assert len({stay.epoch for stay in seen}) == 1
    assert_alone(seen)


def test_many_commands_that_start_at_the_same_moment_run_one_at_a_time(tmp_path: Path):
    """As cron does it on the hour."""
    environ = {**os.environ, "SOFTMUTEX_MEMBERSHIP": f"local://?directory={tmp_path}/runtime"}
    script = f"mkdir {tmp_path}/inside || exit 99; sleep 0.01; rmdir {tmp_path}/inside"
    command = [SOFTMUTEX, "run", "-n", "x", "--", "sh", "-c", script]
    runs = [prepared.Popen(command, env=environ) for _ in range(16)]
    assert [run.wait(100) for run in runs] == [0] * 16
