"""The page on the agent's protocol, line by line against a real agent; and its clients in other languages."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from softmutex.agent.link import VERSION
from softmutex.client import SoftMutex
from tests.agent.conftest import Agent
from tests.cli.processes import PATIENCE_S, eventually, group_is_empty, read_number, started, state_of

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "agent-protocol.md"
BLOCKS = re.findall(r"<!-- run by tests/agent/test_protocol\.py -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
UNASKED = {"said", "progress"}
CLIENTS = ROOT / "examples" / "agent_clients"
Start = Callable[..., subprocess.Popen[str]]


def fits(said: Any, expected: Any) -> bool:
    """What the page leaves out may be there, and `...` stands for anything."""
    if expected == "...":
        return True
    if isinstance(expected, dict) and isinstance(said, dict):
        return all(key in said and fits(said[key], value) for key, value in expected.items())
    return bool(said == expected)


@pytest.mark.parametrize("block", BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_the_page_is_what_happens(agent: Agent, environ: dict[str, str], block: str):
    with ExitStack() as stack:
        links: dict[str, Any] = {}
        for line in block.splitlines():
            found = re.fullmatch(r"(?:(\d) )?(->|<-|hangs up) ?(.*)", line)
            assert found, line
            who, arrow, text = found.groups()
            if who not in links:
                link = stack.enter_context(socket.socket(socket.AF_UNIX))
                link.settimeout(PATIENCE_S)
                link.connect(environ["SOFTMUTEX_AGENT"])
                links[who] = stack.enter_context(link.makefile("rw", encoding="utf-8"))
            if arrow == "->":
                links[who].write(text + "\n")
                links[who].flush()
            elif arrow == "<-":
                expected = json.loads(text)
                said = json.loads(links[who].readline())
                while said["is"] in UNASKED - {expected["is"]}:
                    said = json.loads(links[who].readline())
                assert fits(said, expected), f"{said} where the page has {expected}"


def test_the_page_names_the_version_and_every_kind():
    page = PAGE.read_text()
    assert f"this is version {VERSION}" in page
    source = (ROOT / "softmutex" / "agent" / "session.py").read_text()
    kinds = set(re.findall(r'_say\(\s*"(\w+)"', source)) | set(re.findall(r'"is": "(\w+)"', source))
    assert {kind for kind in kinds if f"`{kind}`" not in page and f'"{kind}"' not in page} == set()


# --- other languages --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("go") / "softmutex"
    environ = {**os.environ, "GOCACHE": str(built.parent / "cache"), "GO111MODULE": "off", "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", built, CLIENTS / "softmutex.go"], check=True, env=environ, cwd=CLIENTS)
    return str(built)


@pytest.fixture(
    params=[
        pytest.param("sh", marks=pytest.mark.needs("socat")),
        pytest.param("node", marks=pytest.mark.needs("node")),
        pytest.param("go", marks=pytest.mark.needs("go")),
    ]
)
def client(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "go":
        return [request.getfixturevalue("go_client")]
    return ["sh", str(CLIENTS / "softmutex.sh")] if request.param == "sh" else ["node", str(CLIENTS / "softmutex.mjs")]


@pytest.fixture
def start(client: list[str], tmp_path: Path, environ: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(seconds: str, script: str, **more: str) -> subprocess.Popen[str]:
            words = [*client, "x", seconds, "sh", "-c", script]
            return stack.enter_context(started(*words, cwd=tmp_path, env={**environ, **more}, stdout=subprocess.PIPE))

        yield begin


def told(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.read()


def test_it_acquires_waits_and_releases(agent: Agent, start: Start):
    with SoftMutex("x"):
        waiting = start("100", "echo $SOFTMUTEX_HELD $SOFTMUTEX_EPOCH; exit 3")
        eventually(lambda: SoftMutex("x").look().waiting_count, "it does not wait")
    said, _ = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, said) == (3, "x 1\n")
    with SoftMutex("x", timeout=100):
        pass


def test_it_gives_up_in_time_and_says_who_is_in_the_way(agent: Agent, start: Start):
    with SoftMutex("x", purpose="mirror"):
        late = start("0.2", "true")
        assert late.wait(PATIENCE_S) == 75
        assert "(mirror of " in told(late)


def test_without_an_agent_it_says_so(start: Start):
    alone = start("5", "true")
    assert alone.wait(PATIENCE_S) == 69
    assert "no agent" in told(alone)


@pytest.mark.parametrize("on_lost", ["warn", "term"])
def test_a_loss_is_told_and_ends_the_command_where_that_is_wanted(
    agent: Agent, start: Start, tmp_path: Path, on_lost: str
):
    holder = start("60", "echo $$ > holder.pid; i=0; while [ ! -e go ]; do sleep 0.05; done; exit 7", ON_LOST=on_lost)
    read_number(tmp_path / "holder.pid")
    assert SoftMutex("x").evict("hangs") == 1
    assert holder.stderr
    assert "x may be held by others, too: evicted" in holder.stderr.readline()  # while its command goes on
    if on_lost == "warn":
        with SoftMutex("x", timeout=100):
            (tmp_path / "go").touch()
    code = holder.wait(PATIENCE_S)
    assert code == (7 if on_lost == "warn" else 143)


def test_when_it_is_killed_its_command_ends_before_the_next_one_enters(agent: Agent, start: Start, tmp_path: Path):
    holder = start("60", "echo $$ > holder.pid; exec sleep 60")
    group = read_number(tmp_path / "holder.pid")
    for _ in range(3):  # it has told the agent of the group by now: it waits for the command, and the agent answers
        eventually(lambda: state_of(holder.pid) == "S", "the client does not come to rest")
        assert SoftMutex("x").look().holders
    holder.kill()
    with SoftMutex("x", timeout=100):
        assert group_is_empty(group)


@pytest.mark.parametrize("file", sorted(CLIENTS.glob("softmutex.*")), ids=lambda file: file.suffix)
def test_a_client_is_short(file: Path):
    lines = [line.strip() for line in file.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith(("//", "#"))]
    assert len(code) < 100


@pytest.mark.needs("go")
def test_the_go_client_is_formatted_as_go_is():
    if shutil.which("gofmt"):
        assert subprocess.run(["gofmt", "-l", CLIENTS], capture_output=True, text=True).stdout == ""
