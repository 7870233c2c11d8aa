from collections.abc import AsyncIterator

import pytest

from softmutex import Node
from softmutex.testing import MemoryNetwork
from tests.runtime.group import node_on


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


@pytest.fixture
async def node(no_leaks: None, network: MemoryNetwork) -> AsyncIterator[Node]:
    async with node_on(network) as node:
        yield node
