"""Whatever a job says to an agent: an answer or silence, and nothing in the agent's log that a job can repeat."""

from __future__ import annotations

import socket

from softmutex.client import SoftMutex
from tests.agent.conftest import StartAgent
from tests.cli.processes import PATIENCE_S

HALF = b'"\\ud800"'  # of a pair of surrogates
WISHES = (
    b'"options":["weight"]',
    b'"options":5',
    b'"options":{"weight":NaN}',
    b'"place":5',
    b'"place":"group"',
    b'"place":{"group":{"a":1}}',
    b'"said":1' + b"0" * 400,
    b'"since":-1' + b"0" * 400,
    b'"keep":NaN,"timeout":0.1',
    b'"since":Infinity,"timeout":0',
    b'"timeout":NaN',
    b'"version":1' + b"0" * 400,
    b'"version":NaN,"timeout":0',
    b'"on_overrun":[1]',
    b'"trace":[1]',
    b'"trace":"x"',
    b'"purpose":' + HALF,
)
FIRST_LINES = (
    *(b'{"is":"want","name":"x",' + wish + b"}\n" for wish in WISHES),
    *(b'{"is":"' + kind + b'","name":' + HALF + b"}\n" for kind in (b"want", b"look", b"evict")),
    b'{"is":["want"]}\n',
    b'{"is":{}}\n',
    b"[" * 5000 + b"\n",
    b'{"is":"look","name":["x"]}\n',
    b'{"is":"want"}\n{"is":"want"}\n',
)


def answer_to(door: str, line: bytes) -> bytes:
    """All that is said until it is clear what comes of that."""
    heard = b""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(PATIENCE_S)
        link.connect(door)
        link.sendall(line)
        while b'"granted"' not in heard and (chunk := link.recv(4096)):
            heard += chunk
    return heard


def test_no_first_words_of_a_job_write_into_the_agents_log(start_agent: StartAgent, environ: dict[str, str]):
    agent = start_agent()
    for line in FIRST_LINES:
        heard = answer_to(environ["SOFTMUTEX_AGENT"], line)
        assert b'"granted"' not in heard or b'"timeout":0' in line or b"1000" in line, (line, heard)
    with SoftMutex("x", timeout=100), socket.socket(socket.AF_UNIX) as link:
        link.connect(environ["SOFTMUTEX_AGENT"])
        link.sendall(b'{"is":"want","name":"x"}\n{"is":"running","group":1' + b"0" * 30 + b"}\n")
    agent.process.terminate()
    assert agent.process.stderr
    said = agent.process.stderr.read()
    assert agent.ends() == 0
    assert "Traceback" not in said, said
    assert "never retrieved" not in said, said
