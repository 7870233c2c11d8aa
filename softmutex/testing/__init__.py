"""For the tests of applications, and of adapters: a network in memory, virtual time, and the contracts.

MemoryNetwork               nodes without sockets: seeded loss, delay, duplication, partitions, crashes
virtual_time, VirtualLoop   an hour's time-out in a millisecond; `in_virtual_time` decorates a test
TransportContract, MembershipContract   what every adapter must pass; subclass, and say how to make one
"""

from softmutex.testing.clock import VirtualLoop, in_virtual_time, virtual_time
from softmutex.testing.contracts import MembershipContract, TransportContract
from softmutex.testing.memory import MemoryMembership, MemoryNetwork, MemoryTransport

__all__ = [
    "MembershipContract",
    "MemoryMembership",
    "MemoryNetwork",
    "MemoryTransport",
    "TransportContract",
    "VirtualLoop",
    "in_virtual_time",
    "virtual_time",
]
