"""The README's own example: a static list of names, over UDP, with name servers of all paces."""

import asyncio
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from softmutex import Node
from tests.ports import free_ports

RUNS = 40
SLOWEST_S = 3.0


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look-up of a name below `.lab` takes 0 to 3 s; all of them stand for this host."""
    chance = random.Random(12)
    ask = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        if str(host).endswith(".lab"):
            time.sleep(chance.random() * SLOWEST_S)
            host = "127.0.0.1"
        return ask(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.slow
async def test_while_names_are_still_looked_up_nobody_is_granted_a_second_time(no_leaks: None, slow_names: None):
    """Issue 12 f: the newcomer was granted in 9 of 10 runs, before its first datagram had left."""
    chance = random.Random(13)
    ports = free_ports(3 * RUNS)
    second_holders = 0

    async def run(number: int) -> None:
        nonlocal second_holders
        a, b, c = ports[3 * number : 3 * number + 3]
        where = {"membership": f"static://a.lab:{a},b.lab:{b},c.lab:{c}"}
        async with Node(transport=f"udp://127.0.0.1:{a}", **where) as first, first.mutex("x").hold(timeout=60):
            await asyncio.sleep(chance.random())
            async with Node(transport=f"udp://127.0.0.1:{b}", **where) as second:
                if hold := await second.mutex("x").try_acquire():
                    second_holders += 1
                    await hold.release()

    with ThreadPoolExecutor(6 * RUNS) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        await asyncio.gather(*map(run, range(RUNS)))
    assert second_holders == 0
