"""Every interleaving of a few nodes that pass one token to each other, up to stated bounds.

What was once sent can be delivered at any time, in any order, any number of times or never: the network is the set of
all messages ever sent, so loss, duplication, delay and reordering are all there without a choice of faults. A timer
that is set may fire at any moment. An offer may be refused. What is bounded is how often nodes begin something of their
own (`Bounds`); within the bounds the search is complete: it ends when no new state is left.

The state of a node and its answer to an event are computed by the real `Handover`, once for each pair, and remembered;
a state of the whole is then a few small integers, and some hundred thousand of them are visited in a second.

Checked in every state
    one holder      at most one node may use the token or take it back by itself
    one taker       each hop of the token is taken once
    no breach       the machine finds nothing wrong with its own state, and cancels no timer that is not set
    it can finish   if what is in flight is lost, but nothing after it, the hand-over ends and the token is somewhere
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from softmutex.core.algorithms.wandering.messages import Want
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import CancelTimer, Effect, NodeId, Send, SetTimer, TimerName, Token
from softmutex.core.handover import Failed, Gone, Handover, Passing, Taken
from softmutex.core.messages import Message
from softmutex.testing.handovers import Snapshot

TOKEN = Token(epoch=0, stamp=7, id=7, hop=0)
NOW = 0


@dataclass(frozen=True)
class Bounds:
    nodes: int = 2
    attempts: int = 2  # hand-overs begun, all nodes together
    resends: int = 1
    asks: int = 2
    replies: int = 3  # promises made by one node (an offer delivered again after it was forgotten is a new promise)
    promises: int = 2  # remembered at a time
    memory: int = 8
    stands: int = 0  # requests that each node stands for, one after the other
    offers: bool = True
    early: bool = False  # pipelined: offers while the token is in use, withdrawals
    refusals: bool = False
    impostors: bool = False  # every message is delivered under other names too
    finish: bool = True  # check that it can finish; not where a memory of one makes senders give up


class Posted(NamedTuple):
    kind: str  # tuples of different messages with the same numbers are equal
    sender: NodeId
    to: NodeId
    message: Message


class NodeState(NamedTuple):
    """One node, frozen: what it may use, what its Handover remembers, and the timers that are set."""

    held: Token | None
    begun: int  # hand-overs begun by this node
    inside: Snapshot
    timers: tuple[TimerName, ...]


class Act(NamedTuple):
    """Something that can happen at a node."""

    what: str  # give, offer_early, commit, withdraw, deliver, refuse, fire, late, renounce, stand, skip, sit, at once
    node: NodeId
    about: Any = None

    def __str__(self) -> str:
        if isinstance(self.about, Posted):
            message = self.about.message
            said = [f"hop={part.hop}" if isinstance(part, Token) else str(part) for part in message]
            return f"{self.what} {self.about.kind}({', '.join(said)}) from {self.about.sender} to {self.node}"
        return f"{self.what} at {self.node}" + (f" ({self.about})" if self.about is not None else "")


class Step(NamedTuple):
    """What an act does to its node."""

    after: int  # the node's new state
    sent: int  # bit set of messages
    taken: int  # the hop that was taken, or 0
    gone: bool
    breach: str


class Move(NamedTuple):
    """What an act makes of the whole."""

    act: Act
    after: int  # -1: a breach
    sent: int
    hop: int  # the bit of the hop that was taken
    gives_up: bool


class Found(AssertionError):
    """The explorer found a state that must not be; says how to get there."""


# The states of all nodes; the bit set of every message ever sent, and of the hops taken; whether a sender gave up.
State: TypeAlias = tuple[tuple[int, ...], int, int, bool]


class NoChance:
    def random(self) -> float:
        return 0.0


class Explorer:
    def __init__(self, variant: type[Handover], passing: Passing, bounds: Bounds) -> None:
        self.bounds = bounds
        self.passing = passing
        limits = {"PROMISES": bounds.promises, "MEMORY": bounds.memory, "ASKS": bounds.asks}
        self.variant: type[Handover] = type(variant.__name__, (variant,), limits)
        self.members = tuple(range(1, bounds.nodes + 1))
        self.nodes: list[NodeState] = []
        self.node_ids: dict[NodeState, int] = {}
        self.posted: list[Posted] = []
        self.posted_bits: dict[Posted, int] = {}
        self.inboxes = [0] * bounds.nodes  # bit sets of the messages to each
        self.moves: dict[tuple[int, int, int, bool], tuple[Move, ...]] = {}
        self.alone: dict[tuple[int, int, bool], tuple[Move, ...]] = {}
        self.answers: dict[tuple[int, int, bool], tuple[Move, ...]] = {}
        self.steps: dict[tuple[NodeId, int, Act], Step] = {}
        self.looked_at: dict[tuple[int, ...], tuple[bool, str]] = {}
        self.came_from: dict[State, tuple[State, Act] | None] = {}
        self.visited = 0
        self.deepest = 0
        self.transitions = 0
        self.happened: set[tuple[str, str]] = set()  # (act or message delivered, outcome)

    # --- the search --------------------------------------------------------------------------------------------------

    def explore(self) -> None:
        gc.disable()  # millions of tuples and not one cycle: looking for some takes a third of the time
        try:
            self._explore()
        finally:
            gc.enable()

    def _explore(self) -> None:
        first: State = (tuple(self._intern(self._fresh(node)) for node in self.members), 0, 0, False)
        came_from = self.came_from = {first: None}
        level = [first]
        while level:
            following: list[State] = []
            for state in level:
                nodes, network, taken, gone = state
                may_begin = self._look_at(state)
                for index, frozen in enumerate(nodes):
                    inbox = network & self.inboxes[index]
                    moves = self.moves.get((index, frozen, inbox, may_begin))
                    if moves is None:
                        moves = self._moves(index, frozen, inbox, may_begin)
                    self.transitions += len(moves)
                    for act, node_after, sent, hop, gives_up in moves:
                        nodes_after = (*nodes[:index], node_after, *nodes[index + 1 :])
                        after = (nodes_after, network | sent, taken | hop, gone or gives_up)
                        if taken & hop:
                            raise Found(self._story(f"hop {hop.bit_length() - 1} is taken twice", state, act))
                        if after not in came_from:
                            came_from[after] = (state, act)
                            following.append(after)
                        if node_after < 0:
                            breach = self._step(index + 1, frozen, act).breach
                            raise Found(self._story(f"breach at node {index + 1}: {breach}", state, act))
            self.deepest += bool(following)
            level = following
            self.visited = len(came_from)

    def _moves(self, index: int, frozen: int, inbox: int, may_begin: bool) -> tuple[Move, ...]:
        """What may happen at a node, each difference once: the first act that makes it."""
        found = list(self._alone(index, frozen, may_begin))
        rest = inbox
        while rest:
            bit = rest & -rest
            rest ^= bit
            key = (frozen, bit, may_begin)
            if key not in self.answers:
                posted = self.posted[bit.bit_length() - 1]
                acts = self._arrivals(index + 1, self.nodes[frozen], posted, may_begin)
                self.answers[key] = tuple(self._move(index + 1, frozen, act) for act in acts)
            found += self.answers[key]
        different = {move[1:]: move for move in reversed(found) if move[1:] != (frozen, 0, 0, False)}
        moves = self.moves[index, frozen, inbox, may_begin] = tuple(reversed(different.values()))
        return moves

    def _alone(self, index: int, frozen: int, may_begin: bool) -> tuple[Move, ...]:
        key = (index, frozen, may_begin)
        if key not in self.alone:
            acts = self._own_acts(index + 1, self.nodes[frozen], may_begin)
            self.alone[key] = tuple(self._move(index + 1, frozen, act) for act in acts)
        return self.alone[key]

    def _move(self, node: NodeId, frozen: int, act: Act) -> Move:
        step = self._step(node, frozen, act)
        return Move(act, -1 if step.breach else step.after, step.sent, step.taken and 1 << step.taken, step.gone)

    def _arrivals(self, node: NodeId, state: NodeState, posted: Posted, may_begin: bool) -> Iterator[Act]:
        if posted.kind == "Want":  # whoever has the token may commit it to who once stood, and stands no more
            if state.held is not None and not state.inside.outgoing and may_begin:
                yield Act("at once", node, posted)
        elif self._may_arrive(posted, state):
            yield Act("deliver", node, posted)
            if self.bounds.refusals and posted.kind == "Offer":
                yield Act("refuse", node, posted)
            if self.bounds.impostors:
                for other in self.members:
                    if other not in (node, posted.sender):
                        yield Act("deliver", node, posted._replace(sender=other))

    def _own_acts(self, node: NodeId, state: NodeState, may_begin: bool) -> Iterator[Act]:
        for timer in state.timers:
            yield Act("fire", node, timer)
        if state.inside.standing:
            yield Act("sit", node)
        elif state.inside.retired_to < self.bounds.stands:
            yield Act("stand", node)
            if state.inside.retired_to + 1 < self.bounds.stands:
                yield Act("skip", node)
        if self.bounds.offers and may_begin and state.held is not None and not state.inside.outgoing:
            for other in self.members:
                if other != node:
                    yield Act("give", node, other)
                    if self.bounds.early:
                        yield Act("offer_early", node, other)
        if self.bounds.early and state.inside.outgoing:
            if state.held is not None:
                yield Act("commit", node)
            yield Act("withdraw", node)
        if state.inside.promises:
            if self.passing is Passing.THREE_WAY:
                yield Act("late", node)
            elif self.bounds.early:
                yield Act("renounce", node)

    def _may_arrive(self, posted: Posted, state: NodeState) -> bool:
        made = state.inside.last_nonce - self._fresh(posted.to).inside.last_nonce
        return posted.kind != "Offer" or made < state.begun + self.bounds.replies

    # --- the checks --------------------------------------------------------------------------------------------------

    def _look_at(self, state: State) -> bool:
        """Whether all is well there, and somebody may begin another hand-over. What the nodes are says nearly all."""
        nodes, _, _, gone = state
        if nodes not in self.looked_at:
            self._check_holders(state)
            begun = sum(self.nodes[frozen].begun for frozen in nodes)
            self.looked_at[nodes] = (
                begun < self.bounds.attempts,
                self._finish(nodes) if self.bounds.finish else "here",
            )
        may_begin, end = self.looked_at[nodes]
        if end not in ("here", "gone"):
            if gone and end == "lost":
                return may_begin  # a sender had given up before
            if not (end == "lost" and self.passing is Passing.THREE_WAY):
                raise Found(self._story(f"with no more faults it ends like this: {end}", state))
        return may_begin

    def _check_holders(self, state: State) -> None:
        owners = [node for node, frozen in zip(self.members, state[0], strict=True) if self._owns(self.nodes[frozen])]
        if len(owners) > 1:
            raise Found(self._story(f"nodes {owners} may both use the token", state))

    @staticmethod
    def _owns(state: NodeState) -> bool:
        return state.held is not None or any(not attempt.committed for attempt in state.inside.outgoing)

    def _finish(self, frozen: tuple[int, ...]) -> str:
        """Lose everything in flight, then nothing more: fire the timers in turn, deliver at once, and see it end."""
        nodes = list(frozen)
        last_ask = any(
            attempt.committed and attempt.tries >= self.bounds.resends + self.bounds.asks
            for node in frozen
            for attempt in self.nodes[node].inside.outgoing
        )
        gone = False
        queue: list[int] = []
        for _ in range(60 * len(nodes)):
            if queue:
                posted = self.posted[queue.pop(0)]
                index, act = posted.to - 1, Act("deliver", posted.to, posted)
            else:
                choice = self._next_in_order(nodes)
                if choice is None:
                    break
                index, act = choice
            step = self._step(index + 1, nodes[index], act)
            if step.breach:
                return step.breach
            nodes[index] = step.after
            gone = gone or step.gone
            queue.extend(bit for bit in range(step.sent.bit_length()) if step.sent >> bit & 1)
        else:
            return "it goes on for ever"
        if gone:
            return "gone" if last_ask else "a sender gives up although it is answered"
        if any(self.nodes[node].inside.outgoing for node in nodes):
            return "stuck"
        return "here" if any(self.nodes[node].held is not None for node in nodes) else "lost"

    def _next_in_order(self, nodes: list[int]) -> tuple[int, Act] | None:
        for index, frozen in enumerate(nodes):
            state = self.nodes[frozen]
            if state.timers:
                return index, Act("fire", index + 1, state.timers[0])
            if state.held is not None and state.inside.outgoing:
                return index, Act("commit", index + 1)
        return None

    def _story(self, what: str, state: State, act: Act | None = None) -> str:
        acts = [] if act is None else [str(act)]
        while (came_from := self.came_from[state]) is not None:
            state, before = came_from
            acts.append(str(before))
        lines = [f"  {number}. {act}" for number, act in enumerate(reversed(acts), 1)]
        return "\n".join([f"{self.variant.__name__}, {self.passing}: {what}", *lines])

    # --- one node ----------------------------------------------------------------------------------------------------

    def _fresh(self, node: NodeId) -> NodeState:
        return NodeState(TOKEN if node == 1 else None, 0, Snapshot(last_nonce=node * 1000), ())

    def _intern(self, state: NodeState) -> int:
        if state not in self.node_ids:
            self.node_ids[state] = len(self.nodes)
            self.nodes.append(state)
        return self.node_ids[state]

    def _post(self, posted: Posted) -> int:
        if posted not in self.posted_bits:
            self.posted_bits[posted] = 1 << len(self.posted)
            self.posted.append(posted)
            self.inboxes[posted.to - 1] |= self.posted_bits[posted]
        return self.posted_bits[posted]

    def _step(self, node: NodeId, frozen: int, act: Act) -> Step:
        key = (node, frozen, act)
        step = self.steps.get(key)
        if step is None:
            step = self.steps[key] = self._compute(node, self.nodes[frozen], act)
        return step

    def _compute(self, node: NodeId, state: NodeState, act: Act) -> Step:
        handover = self._thaw(node, state)
        out: list[Effect] = []
        try:
            held, begun, outcome = self._perform(handover, state, act, out)
        except InvariantBreach as breach:
            return Step(0, 0, 0, False, str(breach))
        what = act.about.kind if isinstance(act.about, Posted) else act.what
        self.happened.add((what, type(outcome).__name__))
        taken, gone, breach_text = 0, False, ""
        match outcome:
            case Taken(token):
                taken = token.hop
                breach_text = "" if held is None else "takes the token and has it already"
                held = token
            case Failed(token):
                held = token
            case Gone():
                gone = True
        timers = list(state.timers)
        if act.what == "fire":
            timers.remove(act.about)
        sent = 0
        if act.what in ("stand", "skip"):
            for other in self.members:
                if other != node:
                    for request in range(state.inside.retired_to + 1, handover.standing + 1):
                        sent |= self._post(Posted("Want", node, other, Want(node, request, False, 0)))
        for effect in out:
            match effect:
                case Send(to, message):
                    sent |= self._post(Posted(type(message).__name__, node, to, message))
                case SetTimer(timer):
                    timers = [*(other for other in timers if other != timer), timer]
                case CancelTimer(timer):
                    if timer not in timers:
                        breach_text = f"cancels {timer}, which is not set"
                    timers = [other for other in timers if other != timer]
        return Step(
            self._intern(NodeState(held, begun, Snapshot.of(handover), tuple(timers))), sent, taken, gone, breach_text
        )

    def _perform(
        self, handover: Handover, state: NodeState, act: Act, out: list[Effect]
    ) -> tuple[Token | None, int, Any]:
        held, begun = state.held, state.begun
        outcome: Any = None
        match act.what:
            case "give":
                assert held is not None
                outcome, held, begun = handover.give(held, act.about, NOW, out), None, begun + 1
            case "offer_early":
                assert held is not None
                handover.offer_early(held, act.about, NOW, out)
                begun += 1
            case "commit":
                assert held is not None
                outcome, held = handover.commit(held, NOW, out), None
            case "withdraw":
                token = state.inside.outgoing[0].token
                if handover.withdraw(token, out):
                    held = token
            case "renounce":
                handover.renounce(out)
            case "stand":
                handover.stand(state.inside.retired_to + 1)
            case "skip":  # this request is served without; one learns of it all the same
                handover.stand(state.inside.retired_to + 2)
            case "sit":
                handover.stand(0)
            case "at once":
                assert held is not None
                handover.give_at_once(held, act.about.sender, act.about.message.request, NOW, out)
                held, begun = None, begun + 1
            case "late":
                for name, promise in handover.promises.items():
                    if promise.until is not None:
                        handover.promises[name] = promise._replace(until=NOW - 1)
            case "fire":
                outcome = handover.fired(act.about, NOW, out)
            case "deliver" | "refuse":
                posted: Posted = act.about
                outcome = handover.received(posted.sender, posted.message, NOW, out, act.what == "deliver")
        return held, begun, outcome

    def _thaw(self, node: NodeId, state: NodeState) -> Handover:
        handover = self.variant(node, NoChance(), self.passing, patience=0, resends=self.bounds.resends)
        state.inside.restore(handover, NOW)
        return handover
