"""The proof: the laws that it claims, under every fault of the matrix, and a mutex over UDP. Needs no pytest."""

import asyncio
import tempfile
import unittest
from collections.abc import Sequence

from softmutex_ask_everybody import AskEverybody, Permit, Request

from softmutex import Node
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import Effect, Event, Instant, Received, Released, Requested, Send
from softmutex.core.machine import Setup
from softmutex.sim import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.scenarios import fitting, scenario


class InVirtualTime(unittest.TestCase):
    def test_it_keeps_what_it_claims_under_every_fault(self) -> None:
        for name in fitting(AskEverybody):
            for seed in (1, 2, 3):
                result = simulate(scenario(name, "ask-everybody", seed))
                with self.subTest(scenario=name, seed=seed):
                    assert result.violations == [], result.violations[0]
                    assert result.acquisitions > 0

    def test_an_entry_costs_a_question_and_an_answer_for_each_other_member(self) -> None:
        for nodes in (2, 10, 50):
            rare = Scenario("ask-everybody", nodes, 5000.0, demand="poisson:0.005", delay_s=0.05)
            each = simulate(rare).messages_per_acquisition
            assert 2 * (nodes - 1) <= each <= 2.1 * (nodes - 1), each

    def test_the_laws_see_it_where_one_says_yes_too_early(self) -> None:
        for name in ("nothing", "loss-5", "kill-holder"):
            laws = {violation.law for violation in simulate(scenario(name, SaysYesToEverybody, 3)).violations}
            assert "exclusion" in laws

    def test_the_laws_see_it_where_one_never_answers(self) -> None:
        laws = {violation.law for violation in simulate(scenario("nothing", AnswersNobody, 3)).violations}
        assert "requests" in laws


class SaysYesToEverybody(AskEverybody):
    def _asked(self, sender: int, stamp: int, now: Instant, out: list[Effect]) -> None:
        super()._asked(sender, stamp, now, out)
        out.extend(Send(node, Permit(postponed)) for node, postponed in self._postponed.items())
        self._postponed.clear()


class AnswersNobody(AskEverybody):
    def _asked(self, sender: int, stamp: int, now: Instant, out: list[Effect]) -> None: ...


class OneNode(unittest.TestCase):
    def test_it_checks_itself(self) -> None:
        alone = AskEverybody(Setup(1, [1], Never()))
        events: Sequence[Event] = (Requested(1), Requested(2), Released(1))
        for event in events:
            alone.handle(event, 0)
        assert alone.view().holding == (2,)
        said = ""
        try:
            alone.handle(Released(1), 0)
        except InvariantBreach as breach:
            said = str(breach)
        assert "1 is released, and 2 runs" in said

    def test_a_stranger_is_not_permitted_anything(self) -> None:
        alone = AskEverybody(Setup(1, [1], Never()))
        assert alone.handle(Received(2, Request(1)), 0) == []


class Never:
    def random(self) -> float:
        raise AssertionError("it draws nothing")


class OverUdp(unittest.IsolatedAsyncioTestCase):
    async def test_three_nodes_of_which_one_only_takes_part_share_a_mutex(self) -> None:
        inside = most = 0

        async def work(node: Node) -> None:
            nonlocal inside, most
            mutex = node.mutex("demo", algorithm="ask-everybody")
            for _ in range(5):
                async with mutex.hold(timeout=60):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1

        with tempfile.TemporaryDirectory() as folder:
            place = {"transport": "udp://127.0.0.1:0", "membership": f"local://demo?directory={folder}"}
            async with Node(**place) as one, Node(**place) as two, Node(**place) as other:
                async with asyncio.timeout(60):
                    while any(len(node.peers()) < 2 for node in (one, two, other)):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                await asyncio.gather(work(one), work(two))
                sent = other.mutex("demo", algorithm="ask-everybody").statistics().sent
        assert most == 1
        assert sent["PERMIT"] >= 10, sent


if __name__ == "__main__":
    unittest.main()
