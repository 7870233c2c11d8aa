"""What every adapter must pass: one test a promise of `softmutex.ports`. Public, and without pytest.

What it decides: an adapter proves itself by subclassing, and a subclass supplies only the way to make one. Nothing is
left out because a driver lacks it: what a driver can do beyond the promises it declares, by being one of the small
protocols of `softmutex.ports` or by name (`can_...`), and a declared thing that fails is red.

    class TestPigeons(TransportContract):                                # pytest with pytest-asyncio, asyncio_mode=auto
        def make(self) -> Transport:
            return PigeonTransport(loft="127.0.0.1:0")

    class PigeonTest(TransportContract, unittest.IsolatedAsyncioTestCase):        # the same with unittest alone
        def make(self) -> Transport: ...

The classes do not start with `Test`, so that importing them into a test module collects nothing.

A contract runs in real time, since it is about real sockets, files and processes; it waits for conditions, and only
what must *not* happen is waited for by the clock (`quiet_s`).
"""

from softmutex.testing.contracts.membership import MembershipContract
from softmutex.testing.contracts.observer import ObserverContract
from softmutex.testing.contracts.transport import TransportContract

__all__ = ["MembershipContract", "ObserverContract", "TransportContract"]
