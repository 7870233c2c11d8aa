"""How long a ban takes to be in force everywhere, over a real registry and real sockets."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.registry.inside import inside
from tests.runtime.group import until
from tests.security.test_identity import identity_shown, member, names

BAN_S = 5.0  # on a machine that has other things to do as well


def ban(seed: int, folder: Path) -> float:
    """From the operator's word to the moment from which nobody hears the banned one, who keeps all its secrets."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{seed}-") as own:
        return asyncio.run(over_a_registry(Path(own)))


async def over_a_registry(folder: Path) -> float:
    async with (
        inside(folder) as registry,
        member(registry, folder, "a") as a,
        member(registry, folder, "b") as b,
        member(registry, folder, "bad") as bad,
    ):
        await until(lambda: all(len(node.peers()) == 2 for node in (a, b, bad)))
        who, loop = await identity_shown(bad), asyncio.get_running_loop()
        began = loop.time()
        status, _, _ = await registry.call("PUT", f"/v1/groups/lab/banned/{who}", json={})
        assert status == 200
        await until(lambda: names(a) == {"b"} and names(b) == {"a"})
        return loop.time() - began
