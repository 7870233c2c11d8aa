"""mDNS keeps M1 to M6, by real multicast on a loopback interface. Each test has a group of its own on it."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ifaddr
import pytest
from softmutex_adapters.memberships import mdns
from softmutex_adapters.memberships.mdns import MdnsMembership

from softmutex.ports import Member, Membership
from softmutex.testing import MembershipContract
from tests.network import own_loopback

JOIN_AND_WAIT = """
import asyncio, sys
from softmutex_adapters.memberships.mdns import MdnsMembership
from softmutex.ports import Member

async def main():
    membership = MdnsMembership.from_url(sys.argv[1])
    await membership.join(Member(sys.argv[2], id=int(sys.argv[3])))
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def join_in_another_process(url: str, me: Member) -> Callable[[], None]:
    command = [sys.executable, "-c", JOIN_AND_WAIT, url, me.address, str(me.id)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as answers:
        assert answers.readline() == b"joined\n"

    def kill() -> None:
        process.kill()
        process.wait()

    return kill


class TestMdns(MembershipContract):
    scheme = "mdns"
    patience_s = 60.0  # the killed one is seen until its TTL is over
    can_kill = True
    can_break = True
    can_refuse = True

    @pytest.fixture(autouse=True)
    def place(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.url = f"mdns://contract-{secrets.token_hex(8)}?interfaces=127.0.0.1&ttl=5"
        self.works = True
        get_adapters = ifaddr.get_adapters

        def adapters_or_not(**options: Any) -> Any:
            if not self.works:
                raise OSError("the system does not tell its interfaces")
            return get_adapters(**options)

        monkeypatch.setattr(ifaddr, "get_adapters", adapters_or_not)
        monkeypatch.setattr(mdns, "LOOK_S", 0.1)
        with own_loopback():
            yield

    def make(self) -> Membership:
        return MdnsMembership.from_url(self.url)

    async def join_elsewhere(self, me: Member) -> Callable[[], None]:
        return join_in_another_process(self.url, me)

    async def break_it(self) -> None:
        self.works = False

    async def mend_it(self) -> None:
        self.works = True

    @pytest.mark.alone  # on a busy machine a record of 5 s is renewed too late, and that is shown
    async def test_m4_what_fails_is_silence_counted_and_retried(self) -> None:
        await super().test_m4_what_fails_is_silence_counted_and_retried()

    def make_impossible(self) -> Membership:
        return MdnsMembership("contract", interfaces=["no-such-interface"])
