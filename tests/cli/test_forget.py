"""`softmutex forget`: an operator's word ends the wait for a member that is silent for good."""

import asyncio

import pytest

from softmutex import AcquireTimeout, Node
from softmutex.cli.forget import forget
from softmutex.core.events import Suspect
from softmutex.runtime.config import Settings, resolve
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import puppet_mutex, puppet_of


def node_at(network: str, address: str) -> Node:
    where = f"memory://{network}"
    return Node(transport=f"{where}?address={address}", membership=where, name=f"{address}.lab")


def settings_of(network: MemoryNetwork) -> Settings:
    return resolve(transport=network.transport(), membership=network.membership(), environ={})


@in_virtual_time
async def test_a_silent_member_that_an_operator_forgets_holds_nobody_up(capsys: pytest.CaptureFixture[str]):
    network = MemoryNetwork.named("forget")
    async with node_at("forget", "a") as a, node_at("forget", "b") as b:
        async with puppet_mutex(a, "other"):
            pass
        network.partition("a", "b")
        puppet_of(a).pull(Suspect(b.id))
        await asyncio.sleep(3)
        with pytest.raises(AcquireTimeout):  # half of two is not more than half
            async with a.mutex("x").hold(timeout=20):
                raise AssertionError("entered")
        assert await forget(settings_of(network), "c.lab") == 1
        assert "no member takes 'c.lab' for silent (silent are: b.lab)" in capsys.readouterr().err
        assert await forget(settings_of(network), "b.lab") == 0
        assert "b.lab" in capsys.readouterr().out
        assert a.peers() == ()
        async with a.mutex("x").hold(timeout=1):
            pass
        assert a.statistics().told["forgotten"] == 1
        network.heal()
