"""The proof: the contract of transports, with the way to make one, and a mutex over it. Needs no pytest."""

import asyncio
import socket
import tempfile
import unittest

from softmutex_unix import UnixTransport

from softmutex import Node
from softmutex.ports import Transport
from softmutex.testing import TransportContract


class UnixContract(TransportContract, unittest.IsolatedAsyncioTestCase):
    can_forge = True
    can_collide = True

    def make(self) -> Transport:
        return UnixTransport()

    def make_at(self, address: str) -> Transport:
        return UnixTransport(address)

    async def forge(self, address: str, payload: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(payload, address)


class UnixMutex(unittest.IsolatedAsyncioTestCase):
    async def test_two_nodes_share_a_mutex_over_it(self) -> None:
        inside = most = 0

        async def work(node: Node) -> None:
            nonlocal inside, most
            for _ in range(3):
                async with node.mutex("demo").hold(timeout=20):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1

        with tempfile.TemporaryDirectory() as folder:
            membership = f"local://demo?directory={folder}"
            async with (
                Node(transport="unix://", membership=membership) as one,
                Node(transport="unix://", membership=membership) as two,
            ):
                await asyncio.gather(work(one), work(two))
        assert most == 1


if __name__ == "__main__":
    unittest.main()
