"""A few hand-overs on a stage: the test is the network and the clock, and the trace is the script."""

from __future__ import annotations

from softmutex.core.events import CancelTimer, Effect, Instant, NodeId, Received, Send, SetTimer, Token, from_seconds
from softmutex.core.handover import TIMER, Handover, Outcome, Passing
from softmutex.core.messages import Message
from tests.handover.explorer import Posted
from tests.tracing import Trace

TOKEN = Token(epoch=0, stamp=7, id=7, hop=0)


class Start:
    """Nonces of node n begin at 1000 n, so that a trace can be read."""

    def __init__(self, node: NodeId) -> None:
        self.node = node

    def random(self) -> float:
        return self.node * 1000 / 2**53


class Stage:
    def __init__(self, trace: Trace, passing: Passing = Passing.FOUR_WAY, nodes: int = 3, resends: int = 2) -> None:
        self.trace = trace
        self.now: Instant = 0
        self.nodes = {
            node: Handover(node, Start(node), passing, patience=from_seconds(0.25), resends=resends)
            for node in range(1, nodes + 1)
        }
        self.flying: list[Posted] = []  # sent and neither delivered nor lost
        self.timers: dict[tuple[NodeId, int], Instant] = {}

    # --- what a node does of its own ---------------------------------------------------------------------------------

    def give(self, node: NodeId, to: NodeId, token: Token = TOKEN) -> Outcome | None:
        out = self._begin(node, f"gives {self.trace.said.told(token)} to {to}")
        return self._end(node, self.nodes[node].give(token, to, self.now, out), out)

    def offer_early(self, node: NodeId, to: NodeId, token: Token = TOKEN) -> None:
        out = self._begin(node, f"offers {self.trace.said.told(token)} to {to}, early")
        self.nodes[node].offer_early(token, to, self.now, out)
        self._end(node, None, out)

    def commit(self, node: NodeId, token: Token = TOKEN) -> Outcome | None:
        out = self._begin(node, f"commits {self.trace.said.told(token)}")
        return self._end(node, self.nodes[node].commit(token, self.now, out), out)

    def withdraw(self, node: NodeId, token: Token = TOKEN) -> bool:
        out = self._begin(node, "withdraws the offer")
        withdrawn = self.nodes[node].withdraw(token, out)
        self._end(node, None, out)
        return withdrawn

    def renounce(self, node: NodeId) -> None:
        out = self._begin(node, "renounces every promise")
        self.nodes[node].renounce(out)
        self._end(node, None, out)

    # --- what happens to it ------------------------------------------------------------------------------------------

    def deliver(self, index: int = 0, *, accept: bool = True, after_s: float = 0.01) -> Outcome | None:
        """The message that has been under way longest (or another) arrives."""
        return self.arrives(self.flying.pop(index), accept=accept, after_s=after_s)

    def again(self, posted: Posted) -> Outcome | None:
        """A copy of what was delivered or lost before arrives, late."""
        return self.arrives(posted)

    def arrives(self, posted: Posted, *, accept: bool = True, after_s: float = 0.01) -> Outcome | None:
        self.now += from_seconds(after_s)
        self.trace.event(self.now, posted.to, Received(posted.sender, posted.message))
        if not accept:
            self.trace.lines[-1] += "  (which wants no token)"
        out: list[Effect] = []
        outcome = self.nodes[posted.to].received(posted.sender, posted.message, self.now, out, accept)
        return self._end(posted.to, outcome, out)

    def lose(self) -> Posted:
        posted = self.flying.pop(0)
        self.trace.lines.append(f"{'':10}  lost: {self.trace.said.message(posted.sender, posted.to, posted.message)}")
        return posted

    def fire(self, node: NodeId) -> Outcome | None:
        """The earliest timer of this node comes due."""
        name = min((name for name in self.timers if name[0] == node), key=lambda name: self.timers[name])
        self.now = max(self.now, self.timers.pop(name))
        out = self._begin(node, "its timer")
        return self._end(node, self.nodes[node].fired((TIMER, name[1]), self.now, out), out)

    def say(self, sender: NodeId, to: NodeId, message: Message, *, accept: bool = True) -> Outcome | None:
        """A message that nobody sent."""
        return self.arrives(Posted(type(message).__name__, sender, to, message), accept=accept)

    def wait(self, seconds: float) -> None:
        self.now += from_seconds(seconds)

    def _begin(self, node: NodeId, what: str) -> list[Effect]:
        self.trace.event(self.now, node, what)
        return []

    def _end(self, node: NodeId, outcome: Outcome | None, out: list[Effect]) -> Outcome | None:
        for effect in out:
            match effect:
                case Send(to, message):
                    self.flying.append(Posted(type(message).__name__, node, to, message))
                case SetTimer((_, nonce), at):
                    self.timers[node, nonce] = at
                case CancelTimer((_, nonce)):
                    del self.timers[node, nonce]
        self.trace.outcome(node, out, outcome)
        return outcome
