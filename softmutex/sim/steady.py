"""What an acquisition costs once the queue stands: counted in the second half of a run.

At the start everybody asks at once, and a crowd that does so costs more than one that is served in turns; over a whole
run, messages for each acquisition would say how long the run was.
"""

from __future__ import annotations

from softmutex.core.events import SECOND
from softmutex.sim.result import Result
from softmutex.sim.run import simulate
from softmutex.sim.scenario import Scenario
from softmutex.sim.tally import EPOCH
from softmutex.sim.world import World


def messages_each(scenario: Scenario) -> tuple[Result, float]:
    """The whole run, and the messages for each acquisition in its second half."""
    half: list[tuple[int, int]] = []

    def look(world: World) -> None:
        if not half and world.now - EPOCH >= scenario.duration_s * SECOND / 2:
            half.append((sum(world.sent.values()), len(world.tally.waits)))

    result = simulate(scenario, look=look)
    messages, served = half[0]
    return result, (result.messages - messages) / max(1, result.acquisitions - served)
