"""For the tests of applications, and of adapters: a network in memory, virtual time, and the contracts.

MemoryNetwork               nodes without sockets: seeded loss, delay, duplication, partitions, crashes
NullMutex, NullSyncMutex     no node at all: free, busy or lost as the test says
virtual_time, VirtualLoop   an hour's time-out in a millisecond; `in_virtual_time` decorates a test
TransportContract, MembershipContract, ObserverContract    what every adapter must pass; subclass, say how to make one

What an application does when it does not get its turn for an hour, tested in a moment:

>>> from softmutex import AcquireTimeout, Node
>>> from softmutex.testing import MemoryNetwork, virtual_time
>>> async def main() -> str:
...     network = MemoryNetwork(seed=1, delay=0.005)
...     async with (
...         Node(transport=network.transport(), membership=network.membership()) as one,
...         Node(transport=network.transport(), membership=network.membership()) as other,
...         one.mutex("nightly-ftp"),
...     ):
...         try:
...             async with other.mutex("nightly-ftp").hold(timeout=3600):
...                 return "its turn"
...         except AcquireTimeout:
...             return "postponed"
>>> with virtual_time() as runner:
...     runner.run(main())
'postponed'
"""

from softmutex.testing.clock import VirtualLoop, in_virtual_time, virtual_time
from softmutex.testing.contracts import MembershipContract, ObserverContract, TransportContract
from softmutex.testing.memory import MemoryMembership, MemoryNetwork, MemoryTransport
from softmutex.testing.null import NullMutex, NullSyncMutex

__all__ = [
    "MembershipContract",
    "MemoryMembership",
    "MemoryNetwork",
    "MemoryTransport",
    "NullMutex",
    "NullSyncMutex",
    "ObserverContract",
    "TransportContract",
    "VirtualLoop",
    "in_virtual_time",
    "virtual_time",
]
