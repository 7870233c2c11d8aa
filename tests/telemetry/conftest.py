from collections.abc import AsyncIterator, Iterator

import pytest

from softmutex import Node
from softmutex.testing import MemoryNetwork
from tests.telemetry.sdk import Kept


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(seed=1)


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.close()


@pytest.fixture
async def here(network: MemoryNetwork, kept: Kept) -> AsyncIterator[Node]:
    async with Node(
        transport=network.transport(), membership=network.membership(), observers=[kept.observer], name="here"
    ) as node:
        yield node


@pytest.fixture
async def there(network: MemoryNetwork, kept: Kept, here: Node) -> AsyncIterator[Node]:
    async with Node(
        transport=network.transport(), membership=network.membership(), observers=[kept.observer], name="there"
    ) as node:
        yield node
