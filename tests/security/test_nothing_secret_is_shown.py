"""Passwords are in no output; what strangers call themselves is shown, never sent to a terminal or a log as it is."""

import importlib
import json
import logging
import os
import pkgutil
from pathlib import Path

import pytest

import softmutex
from softmutex import Node, plugins
from softmutex.core.errors import ConfigError
from softmutex.testing import MemoryNetwork
from softmutex.urls import without_secrets
from tests import prepared
from tests.runtime.group import node_on, until

SECRET = "s3cret-word"
URL = f"redis://somebody:{SECRET}@127.0.0.1:1/lab"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "redis://somebody:***@127.0.0.1:1/lab"),
        (f"redis://:{SECRET}@h/0?db=1", "redis://:***@h/0?db=1"),
        (f"redis://u:{SECRET}/with@signs:@h/0", "redis://u:***@h/0"),
        (f"redis://h/0?password={SECRET}&db=1", "redis://h/0?password=***&db=1"),
        (f"x://h/?db=1&token={SECRET}", "x://h/?db=1&token=***"),
        (
            "registry+https://h:9430/g?token_file=/a&public_key=b",
            "registry+https://h:9430/g?token_file=/a&public_key=b",
        ),
        ("udp://[fd00::1]:9431", "udp://[fd00::1]:9431"),
        ("etcd://a:2379,b:2379/g?user=me", "etcd://a:2379,b:2379/g?user=me"),
        ("static://a:1,b:2", "static://a:1,b:2"),
        ("redis://somebody@h/0", "redis://somebody@h/0"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str):
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["doctor", "--json"],
        ["status"],
        ["status", "--json"],
        ["key", "list", "--members"],
        ["run", "-v", "-n", "x", "--timeout", "1s", "--", "true"],
        ["run", "-n", "x", "--membership", f"{URL}?tll=4", "--", "true"],
        ["status", "--membership", URL.replace("/lab", "/-lab")],
        ["status", "--membership", URL.replace(":1/", ":x/")],
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_no_command_shows_a_password(tmp_path: Path, command: list[str]):
    environ = {**os.environ, "HOME": str(tmp_path), "SOFTMUTEX_MEMBERSHIP": URL, "SOFTMUTEX_AGENT": "off"}
    run = prepared.run(
        [prepared.SOFTMUTEX, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert SECRET not in run.stdout + run.stderr, run.stdout + run.stderr


def test_a_store_that_cannot_be_opened_is_named_without_its_password(tmp_path: Path):
    command = [prepared.SOFTMUTEX, "registry", "--listen", "127.0.0.1:0", "--insecure", "--store"]
    for store in (f"redis://u:{SECRET}@127.0.0.1:1/0", f"redis://u:{SECRET}@h:x/0", f"mysql://u:{SECRET}@h/0"):
        run = prepared.run([*command, store], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode in (64, 69)
        assert SECRET not in run.stdout + run.stderr, run.stderr


def test_settings_that_cannot_be_read_are_named_without_their_password():
    for url in (f"carrier-pigeon://u:{SECRET}@h", f"{URL}?nonsense=1", URL.replace("://", ":")):
        with pytest.raises(ConfigError) as refusal:
            plugins.membership(url)
        assert SECRET not in str(refusal.value)


async def test_what_a_peer_calls_itself_does_not_reach_a_log_as_it_is(no_leaks: None, caplog: pytest.LogCaptureFixture):
    """Two of one name are told of: it is written as in a literal, without line ends and escape sequences."""
    nasty = "evil\x1b[2J\r\nWARNING root: all is well\u202e"
    caplog.set_level(logging.INFO, "softmutex")
    network = MemoryNetwork()
    async with node_on(network, name=nasty) as one, node_on(network, name=nasty), node_on(network, name="c") as third:
        await until(lambda: len(third.peers()) == 2 and len(one.peers()) == 2)
        await until(lambda: "two live nodes are named" in caplog.text)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("softmutex.")]
    assert any("evil" in line for line in said)
    for line in said:
        assert line.isprintable(), line


async def test_what_was_logged_with_a_trace_keeps_its_lines(no_leaks: None, caplog: pytest.LogCaptureFixture):
    async with Node(transport="memory://trace", membership="memory://trace"):
        log = logging.getLogger("softmutex.node")
        log.warning("said: %s", "a\x1bb")
        log.warning("%s of %d", json.dumps({"a": 1}), 3)
    assert [record.getMessage() for record in caplog.records[-2:]] == ["said: a\\x1bb", '{"a": 1} of 3']


def test_every_part_that_logs_makes_its_lines_fit_to_be_shown():
    for module in pkgutil.walk_packages(softmutex.__path__, "softmutex."):
        importlib.import_module(module.name)
    loggers = {
        name: logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("softmutex.")
    }
    assert {"softmutex.hold", "softmutex.node", "softmutex.group", "softmutex.keys"} <= loggers.keys()
    bare = [name for name, log in loggers.items() if not log.filters and not name.startswith("softmutex.core")]
    assert not bare, "made by softmutex.saying.logger they would have the filter"
