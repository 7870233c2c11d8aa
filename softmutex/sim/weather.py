"""Makes the faults of a scenario happen, each at its time, to a victim chosen by the seed.

A fault that a machine could not tell from another run of events is not simulated twice: a crash is silence, a pause
is a queue, a cut is loss. Every disturbance is told to the laws, so that they know what may be excused by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softmutex.core.events import SECOND, NodeId
from softmutex.core.messages import Ask, Commit, Done, Offer, Void
from softmutex.sim.faults import Fault, TokenLoss

if TYPE_CHECKING:
    from softmutex.sim.world import SimNode, World

AFTER_COMMIT = (Commit, Done, Ask, Void)


def start(world: World) -> None:
    for fault in world.scenario.faults:
        _START[type(fault)](world, fault)


# --- token losses ----------------------------------------------------------------------------------------------------


def _token_loss(world: World, fault: TokenLoss) -> None:
    every = round(fault.every_s * SECOND)
    world.after(every, _doom, world, Doom(world), every)


def _doom(world: World, doom: Doom, every: int) -> None:
    if not world.asking:
        return
    doom.next_one = True
    world.network.intercept(doom)
    world.after(every, _doom, world, doom, every)


class Doom:
    """Swallows the message with the right in it, and all later ones of that hand-over, so that nobody can repair it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_one = False
        self._nonce = -1

    def __call__(self, sender: SimNode, to: NodeId, message: Any) -> bool:
        world = self._world
        if self.next_one and isinstance(message, (Commit, Offer)) and type(message) is world.carrier:
            self.next_one = False
            self._nonce = message.nonce
            world.laws.disturbed(world.now, "token loss")
            world.tally.gone([message.token.id], world.now)
            if not world.commits_resent:
                world.network.release(self)
            return True
        return type(message) in AFTER_COMMIT and bool(message.nonce == self._nonce)


_START: dict[type[Fault], Callable[..., None]] = {TokenLoss: _token_loss}
