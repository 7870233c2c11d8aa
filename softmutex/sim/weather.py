"""Makes the faults of a scenario happen, each at its time, to a victim chosen by the seed.

A fault that a machine could not tell from another run of events is not simulated twice: a crash is silence, a pause
is a queue, a cut is loss. Every disturbance is told to the laws, so that they know what may be excused by it.
All of it ends with the rough phase: `heal` leaves a network that only takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from softmutex.core.chance import exponential
from softmutex.core.errors import ConfigError
from softmutex.core.events import SECOND, Duration, NodeId, Right, Token
from softmutex.core.messages import HANDOVER, Ask, Commit, Done, Offer, Void, name_of
from softmutex.sim.faults import (
    Batch,
    Churn,
    Clocks,
    Clog,
    DeadLink,
    Fault,
    Kill,
    Lives,
    Partition,
    Pause,
    Replay,
    TokenLoss,
)
from softmutex.sim.network import Cut

if TYPE_CHECKING:
    from softmutex.sim.node import SimNode
    from softmutex.sim.world import World

AFTER_COMMIT = (Commit, Done, Ask, Void)


def start(world: World) -> None:
    for fault in world.scenario.faults:
        _START[type(fault)](world, fault)


def heal(world: World) -> None:
    """No more faults, no more demand, and everybody hears everybody."""
    world.rough = False
    world.laws.healed(world.now)
    world.network.heal()
    for node in list(world.nodes.values()):
        world.group.resume(node)
    world.laws.parted(world.now)
    world.group.make_views_agree()


def victims(world: World, target: str) -> list[SimNode]:
    """Whom it hits; nobody when there is no such node just now."""
    nodes = world.nodes
    if target in ("holder", "passer", "both", "first"):
        running = world.running[0] if world.running else None
        holder = running.node if running else _keeper(world)
        token: Right | Token | None = next(iter(running.rights), None) if running else None
        if token is None and holder:
            token = next(iter(nodes[holder].machine.view().tokens), None)
        passer = world.tally.passed_by(token.id) if token else None
        first = world.group.living[0]
        wanted = {"holder": [holder], "passer": [passer], "both": [holder, passer], "first": [holder, first]}[target]
        found = [nodes[node_id] for node_id in dict.fromkeys(wanted) if node_id in nodes]
        return found if len(found) == len(wanted) else []
    if target == "last":
        return [nodes[max(world.group.living)]] if world.group.living else []
    pool = [
        node
        for node in nodes.values()
        if target == "random" or (bool(node.pending) == (target == "waiter") and not node.holds)
    ]
    return [pool[int(world.chance() * len(pool))]] if pool else []


def _keeper(world: World) -> NodeId | None:
    """Who has a token: mostly whom it was sent to last; else everybody is looked at."""
    nodes, tally = world.nodes, world.tally
    likely = [tally.passed_to(token_id) for token_id in tally.alive]
    for node_id in [*(node_id for node_id in likely if node_id in nodes), *nodes]:
        if nodes[node_id].machine.view().tokens:
            return node_id
    return None


class Repeating:
    """Does something each `every_s`; where there is nobody to do it to, it looks again a little later."""

    def __init__(self, world: World, every_s: float, times: int | None, act: Callable[[], bool]) -> None:
        self._world = world
        self._every = round(every_s * SECOND)
        self._left = times
        self._act = act
        world.after(self._every, self._happen)

    def _happen(self) -> None:
        if not self._world.rough or self._left == 0:
            return
        if self._act():
            self._left = None if self._left is None else self._left - 1
            self._world.after(self._every, self._happen)
        else:
            self._world.after(max(1, self._every // 50), self._happen)


# --- what happens to a token -----------------------------------------------------------------------------------------


class Doom:
    """Swallows the message with the right in it, and all later ones of that hand-over, so that nobody can repair it."""

    def __init__(self, world: World, fault: TokenLoss) -> None:
        self._world = world
        self._armed = False
        self._nonce = -1
        Repeating(world, fault.every_s, None, self._arm)

    def _arm(self) -> bool:
        self._armed = True
        self._world.network.intercept(self)
        return True

    def __call__(self, sender: SimNode, to: NodeId, message: Any) -> bool:
        world, tally = self._world, self._world.tally
        if self._armed and isinstance(message, (Offer, Commit)) and type(message) is tally.carrier:
            self._armed = False
            self._nonce = message.nonce
            world.laws.disturbed(world.now)
            tally.gone([message.token.id], world.now)
            if not tally.resent:
                world.network.release(self)
            return True
        return isinstance(message, AFTER_COMMIT) and message.nonce == self._nonce


# --- what happens to a process ---------------------------------------------------------------------------------------


def _kill(world: World, fault: Kill) -> None:
    def strike(nodes: Sequence[SimNode]) -> bool:
        nodes = [node for node in nodes if node.id in world.nodes]
        if not nodes or len(world.nodes) - len(nodes) < 2:
            return False
        for node in nodes:
            world.group.kill(node, fault.silent)
            if fault.restart_s is not None:
                world.after(round(fault.restart_s * SECOND), world.group.join)
        return True

    def wait_for_message() -> bool:
        world.network.intercept(trap)
        return True

    def trap(sender: SimNode, to: NodeId, message: Any) -> bool:
        if type(message) is awaited:
            world.network.release(trap)
            world.after(0, strike, [sender])  # the message itself gets out
        return False

    kinds = {name_of(kind): kind for kind in (*HANDOVER.values(), *world.algorithm.messages.values())}
    if fault.at_message and fault.at_message not in kinds:
        known = ", ".join(kinds)
        raise ConfigError(f"{world.algorithm.name!r} has no message {fault.at_message!r} (there are {known})")
    awaited = kinds.get(fault.at_message)
    act = wait_for_message if fault.at_message else lambda: strike(victims(world, fault.target))
    Repeating(world, fault.every_s, fault.times, act)


def _pause(world: World, fault: Pause) -> None:
    def act() -> bool:
        nodes = [node for node in victims(world, fault.target) if node.awake]
        for node in nodes:
            world.group.pause(node)
            world.after(round(fault.length_s * SECOND), world.group.resume, node)
        return bool(nodes)

    Repeating(world, fault.every_s, fault.times, act)


def _churn(world: World, fault: Churn) -> None:
    gap = max(1, round(60 * SECOND / (fault.rate * world.scenario.nodes)))

    def one_goes_one_comes() -> None:
        if not world.rough:
            return
        staying = [node for node in world.nodes.values() if not node.leaving and node.awake]
        if len(staying) > 2:
            world.group.leave(staying[int(world.chance() * len(staying))])
            world.group.join()
        world.after(exponential(world.rng, gap), one_goes_one_comes)

    world.after(exponential(world.rng, gap), one_goes_one_comes)


def _batch(world: World, fault: Batch) -> None:
    def come() -> None:
        if world.rough:
            newcomers = [world.group.join() for _ in range(fault.count)]
            for node in newcomers if fault.wants else ():
                if not node.pending:
                    world.ask(node)

    world.after(round(fault.at_s * SECOND), come)


def _lives(world: World, fault: Lives) -> None:
    every, life = round(fault.every_s * SECOND), round(fault.life_s * SECOND)

    def begin() -> None:
        if not world.rough:
            return
        node = world.group.join()
        if fault.wants and not node.pending:
            world.ask(node)
        world.after(life, end, node)
        world.after(every, begin)

    def end(node: SimNode) -> None:
        if node.id in world.nodes and not node.leaving:
            world.group.leave(node)

    world.after(every, begin)


def _clocks(world: World, fault: Clocks) -> None:
    stride = max(1, round(1 / fault.share))
    for number, node in enumerate(list(world.nodes.values()), 1):
        if number % stride == 0:
            offset = round((2 * world.chance() - 1) * fault.offset_s * SECOND)
            world.group.set_clock(node, offset, fault.rate)
    if fault.rate != 1.0:
        world.laws.always_disturbed()
    if fault.jump_s:
        chosen = [node for number, node in enumerate(world.nodes.values(), 1) if number % stride == 0]
        world.after(round(fault.at_s * SECOND), _jump, world, chosen, round(fault.jump_s * SECOND), fault.rate)


def _jump(world: World, nodes: Sequence[SimNode], by: Duration, rate: float) -> None:
    world.laws.disturbed(world.now)
    for node in nodes:
        if node.id in world.nodes:
            shown = world.now if node.clock is None else node.clock.shows(world.now)
            world.group.set_clock(node, shown + by - world.now, rate)


# --- what happens to the network -------------------------------------------------------------------------------------


def _partition(world: World, fault: Partition) -> None:
    for turn in range(fault.times):
        start = round((fault.start_s + turn * fault.every_s) * SECOND)
        world.after(start, _divide, world, fault)


def _divide(world: World, fault: Partition) -> None:
    if not world.rough:
        return
    side = _choose_side(world, fault)
    cut = Cut(side, to_side=not (fault.one_way and fault.mute), from_side=not fault.one_way or fault.mute)

    def see() -> None:
        if cut in world.network.cuts:
            _look(world, side, apart=True)

    def mend() -> None:
        if cut not in world.network.cuts:
            return  # all was healed meanwhile
        world.network.mend(cut)
        world.laws.disturbed(world.now)
        world.laws.parted(world.now)
        if fault.seen_after_s is not None:
            _look(world, side, apart=False)

    world.laws.disturbed(world.now)
    world.network.cut(cut)
    world.laws.parted(world.now, fault.seen_after_s is not None)
    length = fault.end_s - fault.start_s
    world.after(round(length * SECOND), mend)
    if fault.seen_after_s is not None and fault.seen_after_s < length:
        world.after(round(fault.seen_after_s * SECOND), see)


def _choose_side(world: World, fault: Partition) -> frozenset[NodeId]:
    pool = list(world.nodes)
    size = min(len(pool) - 1, max(1, round(fault.share * len(pool))))
    side = [] if fault.target == "random" else [node.id for node in victims(world, fault.target)]
    while len(side) < size:
        chosen = pool[int(world.chance() * len(pool))]
        if chosen not in side:
            side.append(chosen)
    return frozenset(side)


def _look(world: World, side: frozenset[NodeId], apart: bool) -> None:
    """The membership of each side drops the other one, or takes it back."""
    here = tuple(sorted(side & world.nodes.keys()))
    there = tuple(node_id for node_id in world.nodes if node_id not in side)
    for mine, others in ((here, there), (there, here)):
        for node_id in mine:
            joined, left = ((), others) if apart else (others, ())
            world.group.tell_one(node_id, joined, left)


def _dead_link(world: World, fault: DeadLink) -> None:
    def die() -> None:
        ends = _choose_ends(world, fault.target)
        if not world.rough or len(ends) < 2:
            return
        one, other = (node.id for node in ends)

        for link in [(one, other)] if fault.one_way else [(one, other), (other, one)]:
            world.network.kill_link(*link)
            world.after(round((fault.end_s - fault.start_s) * SECOND), world.network.mend_link, *link)

    world.after(round(fault.start_s * SECOND), die)


def _choose_ends(world: World, target: str) -> list[SimNode]:
    ends = victims(world, target)[:1]
    if target == "waiter":
        ends += [node for node in victims(world, "holder") if node not in ends]
    others = [node for node in world.nodes.values() if node not in ends]
    if len(ends) == 1 and others:
        ends.append(others[int(world.chance() * len(others))])
    return ends


def _clog(world: World, fault: Clog) -> None:
    every = round(fault.every_s * SECOND)

    def next_one(turn: int) -> None:
        world.network.slow.clear()
        if world.rough:
            living = world.group.living
            world.network.slow_down(living[turn % len(living)], round(fault.delay_s * SECOND))
            world.laws.disturbed(world.now)
            world.after(every, next_one, turn + 1)

    world.after(every, next_one, 0)


def _replay(world: World, fault: Replay) -> None:
    within = round(fault.within_s * SECOND)

    def again(sender: NodeId, to: NodeId, message: Any) -> None:
        if not world.network.is_cut(sender, to):  # a copy is as little heard there as the first one was
            world.deliver(sender, to, message)

    def keep(sender: SimNode, to: NodeId, message: Any) -> bool:
        if world.chance() < fault.share:
            world.after(1 + int(world.chance() * within), again, sender.id, to, message)
        return False

    world.network.intercept(keep)


_START: dict[type[Fault], Callable[..., object]] = {
    TokenLoss: Doom,
    Kill: _kill,
    Pause: _pause,
    Partition: _partition,
    DeadLink: _dead_link,
    Clog: _clog,
    Replay: _replay,
    Churn: _churn,
    Batch: _batch,
    Lives: _lives,
    Clocks: _clocks,
}
