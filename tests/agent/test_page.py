"""What docs/howto/agent.md shows is what happens, with an agent."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from softmutex.client import SoftMutex
from tests.agent.conftest import SOFTMUTEX, Agent
from tests.cli.processes import eventually
from tests.docs.pages import ROOT, blocks, run

pytestmark = pytest.mark.house
PAGE = ROOT / "docs" / "howto" / "agent.md"


def programs() -> list[str]:
    return [block.code for block in blocks(PAGE) if block.language == "python"]


async def test_programs_ask_the_agent(agent: Agent):
    names: dict[str, Any] = {"__name__": "page"}
    with_it, async_with, _ = programs()
    await asyncio.to_thread(exec, with_it, names)
    await run(async_with, PAGE.name, names)
    await names["upload"]()


async def test_a_daemon_may_be_the_agent(environ: dict[str, str], tmp_path: Path):
    names: dict[str, Any] = {"__name__": "page"}
    await run(programs()[-1], PAGE.name, names)
    place = tmp_path / "door"
    place.mkdir(mode=0o700)
    path = place / "socket"
    serving = asyncio.create_task(names["daemon"](str(path)))
    await asyncio.to_thread(eventually, path.exists, "the door is there")
    async with SoftMutex("x", agent=path, timeout=60) as hold:
        assert hold.peers == 0
    serving.cancel()
    await asyncio.wait([serving])
    assert not path.exists()


def test_the_units_are_written_to_two_files(environ: dict[str, str], tmp_path: Path):
    script, of_host = (block.code for block in blocks(PAGE) if "csplit" in block.code)
    lines = [line for line in script.splitlines() if not line.startswith(("systemctl", "loginctl"))]
    words = {**environ, "HOME": str(tmp_path), "PATH": f"{SOFTMUTEX.parent}:{environ['PATH']}"}
    subprocess.run(["bash", "-ec", "\n".join(lines)], env=words, check=True, capture_output=True)
    units = tmp_path / ".config" / "systemd" / "user"
    assert sorted(path.name for path in units.iterdir()) == ["softmutex-agent.service", "softmutex-agent.socket"]
    assert "ListenStream=" in (units / "softmutex-agent.socket").read_text()
    assert "ExecStart=" in (units / "softmutex-agent.service").read_text()
    subprocess.run(["bash", "-ec", "\n".join(of_host.splitlines()[2:-1])], cwd=units, env=words, check=True)
    assert "agent --system" in (units / "softmutex-system.service").read_text()
    assert "/run/softmutex/" in (units / "softmutex-system.socket").read_text()
