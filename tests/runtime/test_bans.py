"""A node whose membership says who is banned: the others ignore it, and it says itself why it does nothing."""

from __future__ import annotations

import logging

import pytest

from softmutex import NodeClosed
from softmutex.ports import Member
from softmutex.testing import MemoryNetwork, in_virtual_time
from tests.runtime.group import until
from tests.runtime.test_peers import Listed, known, listed_node


class Banning(Listed):
    """As a registry that has a list of who is banned."""

    banned: frozenset[int | bytes] = frozenset()


def test_who_is_banned_is_ignored_gives_up_what_it_holds_and_may_come_back(caplog: pytest.LogCaptureFixture):
    @in_virtual_time
    async def main() -> None:
        network = MemoryNetwork(seed=1)
        caplog.set_level(logging.WARNING, "softmutex")
        here, there = Banning(Member("b"), complete=True), Banning(Member("a"), complete=True)
        async with listed_node(network, here, "a") as a, listed_node(network, there, "b") as b:
            await until(lambda: known(a) == ["b"] and known(b) == ["a"])
            hold = await b.mutex("x").acquire()
            for membership, other in ((here, "b"), (there, "a")):
                membership.banned = frozenset({b.id, b"somebody's public key"})
                membership.show(Member(other))
            await until(hold.lost.is_set)
            assert hold.lost_reason == "isolated"
            with pytest.raises(NodeClosed, match="banned from its group"):
                await b.mutex("y").acquire()
            await until(lambda: known(a) == [])
            async with a.mutex("x"):
                pass
            assert "this node is banned" in caplog.text and "it: this node ignores it" not in caplog.text
            for membership, other in ((here, "b"), (there, "a")):
                membership.banned = frozenset()
                membership.show(Member(other))
            await until(lambda: known(a) == ["b"])
            async with b.mutex("y"):
                pass

    main()
