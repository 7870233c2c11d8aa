"""The laws that a run is held to, looked at from outside the machines.

A machine that checks itself believes itself. So these see only what an outsider sees: who was granted what and when,
who was told of an overlap, which tokens are in reach of somebody. Each law is a sentence of the design, and an
algorithm claims those that it keeps (`core/laws.py`):

effects    What machines order is legal: a grant only of a request that waits, one run of A at a time on a node, no
           timer in the past, no exception.
requests   Every request ends exactly once; those that wait when the network has healed are granted in time.
tokens     No token is in two places. No second one is made without a disturbance. None goes with a node that leaves in
           good order. Once all is healed there are exactly `slots`.
order      (epoch, hop) at the resource strictly grows while there is one token.
overlap    No more than `slots` run A, but in the wake of a disturbance.
exclusion  No more than `slots` run A, whatever happens. (The soft mutex does not claim it.)
evidence   Whoever overlapped is told (granted not `alone`, a `Lose`, a note), and nobody of an overlap that was not.

Disturbances are losses, kills, pauses, cuts, clocks at other rates, and a token made by who knows nobody that is there
and is known by nobody, as after the only acquaintance left, or who is linked by no chain of acquaintances to anybody
that has one; not delay, jitter, duplication or churn in good
order. Their wake is `Scenario.grace_s`. Two holders who could not hear each other while they overlapped (a cut, a
pause), or of whom one was killed, could not be told: they are counted as `untold`, and break no law. Nor does it
to tell or not to tell of two tokens' holds that missed or met each other by less than a round trip: whoever was not
there has to compare two clocks by messages, and no message can tell more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from softmutex.core.events import SECOND, FactKind, Instant, NodeId, Note, Overlapped, Right, Token, to_seconds
from softmutex.core.laws import Law
from softmutex.sim.tally import EPOCH

if TYPE_CHECKING:
    from softmutex.sim.node import Running, SimNode
    from softmutex.sim.world import World

TIME_TO_TELL = 10 * SECOND  # for two who hear each other again
NOT_YET: Instant = 1 << 63
KEPT = 20  # violations that are remembered with their text; the others are counted


class Violation(NamedTuple):
    law: str
    at_s: float
    node: NodeId
    what: str

    def __str__(self) -> str:
        return f"law of {self.law} broken at {self.at_s:.6f} s by node {self.node}: {self.what}"


def short(token: Token | Right | None) -> str:
    return "no token" if token is None else f"token {token.id:x} of slot {token.slot} ({token.epoch}, {token.hop})"


class Overlap:
    """Two that run A at once; `severed` if they cannot hear each other, or could not until just before the end."""

    __slots__ = ("at", "first", "second", "severed", "until")

    def __init__(self, at: Instant, first: Running, second: Running, severed: bool) -> None:
        self.at = at
        self.until = NOT_YET
        self.first = first
        self.second = second
        self.severed = severed


def _are_rivals(old: Running, new: Running) -> bool:
    """Whether they rest on different tokens."""
    if len(old.rights) == len(new.rights) == 1:
        return old.rights[0].id != new.rights[0].id
    ids = {right.id for right in old.rights}
    return bool(new.rights) and bool(ids) and ids.isdisjoint(right.id for right in new.rights)


class Laws:
    def __init__(self, world: World, names: Sequence[str]) -> None:
        self.violations: list[Violation] = []
        self.count = 0
        self.untold = 0
        self.looked: dict[Law, int] = dict.fromkeys(Law, 0)  # how often there was something to look at, and no excuse
        self.alarms: dict[str, int] = {}  # holds that were told that they may not be alone, by reason
        self.false_alarms: dict[str, int] = {}  # of these, those that were alone from the beginning to the end
        self._world = world
        self._names = frozenset(names)
        self._slots = world.scenario.slots
        self._ordered = Law.ORDER in names
        self._exclusive = not {Law.OVERLAP, Law.EXCLUSION, Law.EVIDENCE}.isdisjoint(names)
        self._grace = round(world.scenario.grace_s * SECOND)
        self._disturbed_at: Instant | None = None if world.scenario.founders == 1 else EPOCH
        self._vague = round(2 * world.scenario.delay_s * (1 + world.scenario.jitter) * SECOND)  # a round trip
        self._over: deque[tuple[Instant, Running]] = deque(maxlen=4)  # the last holds that ended
        self._always = bool(world.scenario.loss or world.scenario.corruption or world.scenario.reordering)
        self._last: dict[int, tuple[int, int]] = {}  # slot -> (epoch, hop) at the resource
        self._crowded: set[int] = set()  # slots that had more than one token at their last grant
        self._overlaps: list[Overlap] = []
        self._severed: list[Overlap] = []  # those of them that are still going on
        self._overlap_until: dict[NodeId, Instant] = {}  # node -> when its last overlapped run of A ended, or will
        self._noted: dict[NodeId, Instant] = {}  # node -> when it last told of an overlap

    def broken(self, law: Law, at: Instant, node: NodeId, what: str) -> None:
        if law in self._names:
            self.count += 1
            if len(self.violations) < KEPT:
                self.violations.append(Violation(law, to_seconds(at - EPOCH), node, what))

    def illegal(self, at: Instant, node: NodeId, what: str) -> None:
        self.broken(Law.EFFECTS, at, node, what)

    # --- disturbances ------------------------------------------------------------------------------------------------

    def disturbed(self, at: Instant) -> None:
        self._disturbed_at = at

    def always_disturbed(self) -> None:
        self._always = True

    def killed(self, at: Instant, node: SimNode) -> None:
        self.disturbed(at)

    def healed(self, at: Instant) -> None:
        """Just before all that is wrong ends."""
        if self._calm_since() is None:
            self._disturbed_at = at
        self._always = False

    def _calm_since(self) -> Instant | None:
        """When the last disturbance was over; None while one goes on."""
        network, group = self._world.network, self._world.group
        if self._always or network.cuts or network.slow or group.paused:
            return None
        if network.dead and network.divides(group.living):
            self._disturbed_at = self._world.now
            return None
        return EPOCH if self._disturbed_at is None else self._disturbed_at

    def excused(self, at: Instant) -> bool:
        """Whether something went wrong so lately that its consequences may still begin."""
        if self._disturbed_at is not None and at <= self._disturbed_at + self._grace:
            return True
        return self._calm_since() is None

    # --- what `bounds.py` looks at -----------------------------------------------------------------------------------

    def asked(self, at: Instant, node: SimNode) -> None: ...

    def withdrew(self, at: Instant, node: SimNode) -> None: ...

    def lost(self, at: Instant, running: Running) -> None: ...

    def reported(self, at: Instant, node: SimNode, overlapped: Overlapped) -> None: ...

    def joined(self, at: Instant) -> None: ...

    def removed(self, at: Instant, node: SimNode) -> None: ...

    def parted(self, at: Instant, is_seen: bool = False) -> None:
        """Who can hear whom is another question now. `is_seen`: the membership tells each side of the other."""

    # --- what happens ------------------------------------------------------------------------------------------------

    def granted(self, at: Instant, new: Running, others: list[Running]) -> None:
        if len(others) >= self._slots:
            self._overlap(at, new, others)
        for old in self._near_misses(at, new):
            for running in (old, new):
                self._overlap_until[running.node] = max(at, self._overlap_until.get(running.node, 0))
        self._in_order(at, new)

    def _near_misses(self, at: Instant, new: Running) -> list[Running]:
        """Holds of other tokens that ended so lately that nobody can tell whether they had."""
        return [
            old
            for ended_at, old in self._over
            if at - ended_at < self._vague and old.node != new.node and _are_rivals(old, new)
        ]

    def _in_order(self, at: Instant, new: Running) -> None:
        if not new.rights or not self._ordered:
            return
        self.looked[Law.ORDER] += 1
        tokens = self._world.tally.alive
        alive = [token.slot for token in tokens.values()] if len(tokens) > 1 else []  # one slot may have two
        for right in new.rights:
            last = self._last.get(right.slot)
            position = (right.epoch, right.hop)
            crowded = alive.count(right.slot) > 1
            if last is not None and position <= last and not (crowded or right.slot in self._crowded):
                self.broken(Law.ORDER, at, new.node, f"(epoch, hop) {position} came to the resource after {last}")
            self._last[right.slot] = position
            (self._crowded.add if crowded else self._crowded.discard)(right.slot)

    def _overlap(self, at: Instant, new: Running, others: list[Running]) -> None:
        if self._exclusive:
            what = f"runs A while node {', '.join(str(other.node) for other in others)} does"
            self.broken(Law.EXCLUSION, at, new.node, what)
            if not self.excused(at):
                self.broken(Law.OVERLAP, at, new.node, f"{what}, and nothing had gone wrong lately")
        if self._slots > 1:
            return  # which of them is one too many?
        for other in others:
            if other.node == new.node:
                self.illegal(at, new.node, f"granted request {new.request} while {other.request} runs on the same node")
                continue
            if not self._exclusive:
                continue
            overlap = Overlap(at, other, new, self._are_severed(other, new))
            self._overlaps.append(overlap)
            if overlap.severed:
                self._severed.append(overlap)
            for running in (new, other):
                running.overlapped = True
                self._overlap_until[running.node] = NOT_YET

    def _are_severed(self, one: Running, other: Running) -> bool:
        nodes = [self._world.nodes.get(running.node) for running in (one, other)]
        if not all(node is not None and node.awake for node in nodes):
            return True
        return any(cut(one.node, other.node) or cut(other.node, one.node) for cut in self._world.network.cuts)

    def ended(self, at: Instant, running: Running) -> None:
        if self._exclusive:
            self._over.append((at, running))
        if not running.overlapped:
            return
        self._overlap_until[running.node] = at
        for overlap in self._overlaps:
            if running in (overlap.first, overlap.second):
                overlap.until = min(overlap.until, at)
        for overlap in [each for each in self._severed if running in (each.first, each.second)]:
            self._severed.remove(overlap)
            healed_lately = self._disturbed_at is not None and at < self._disturbed_at + TIME_TO_TELL
            if not healed_lately and not self._are_severed(overlap.first, overlap.second):
                overlap.severed = False

    def alarmed(self, running: Running) -> None:
        """At the end of a hold that was told. No law forbids a false alarm: it may be right to warn, but not often."""
        self.alarms[running.alarm] = self.alarms.get(running.alarm, 0) + 1
        if not running.overlapped and self._slots == 1:
            self.false_alarms[running.alarm] = self.false_alarms.get(running.alarm, 0) + 1

    def noted(self, at: Instant, node: SimNode, note: Note) -> None:
        if note.kind is FactKind.OVERLAP:
            self._noted[node.id] = at
            until = self._overlap_until.get(node.id)
            if until is None or (until + self._grace < at and not self.excused(at)):
                self.broken(
                    Law.EVIDENCE, at, node.id, f"told of an overlap that was not ({note.detail or short(note.token)})"
                )
        elif note.kind is FactKind.GENERATED and self._is_secluded(node):
            self.disturbed(at)
        elif note.kind is FactKind.GENERATED and at > EPOCH and not self.excused(at):
            alive = [short(token) for token in self._world.tally.alive.values() if token is not note.token]
            if len(alive) >= self._slots:
                what = f"made {short(note.token)} beside {', '.join(alive)}, and nothing had gone wrong lately"
                self.broken(Law.TOKENS, at, node.id, what)

    def _is_secluded(self, node: SimNode) -> bool:
        """Others are there, but it knows none of them, and none of them knows it; nor, of those that have a token, is
        there one that any chain of acquaintances leads to: it can neither ask nor be told."""
        near, others = [node], [other for other in self._world.nodes.values() if other is not node]
        for one in near:
            known = {other.id: other for other in others if one.knows(other.id) or other.knows(one.id)}
            shown = [other.machine.view() for other in known.values()]
            if any(view.tokens or view.state == "passing" for view in shown):
                return False
            near += known.values()
            others = [other for other in others if other.id not in known]
        return bool(others) and (len(near) == 1 or any(other.machine.view().tokens for other in others))

    def leaving(self, at: Instant, node: SimNode) -> None:
        """It was told to."""

    def stayed(self, at: Instant, node: SimNode) -> None:
        """Told to leave in good order, it had not done so when there was no more patience with it."""
        calm = self._calm_since()
        if calm is not None and calm < at - self._grace:
            self.broken(Law.REQUESTS, at, node.id, "was told to leave and did not depart, and nothing had gone wrong")

    def departed(self, at: Instant, node: SimNode) -> None:
        if all(member == node.id for member in node.members):
            return  # it knows nobody to whom it could leave it
        for token in node.machine.view().tokens:
            self.broken(Law.TOKENS, at, node.id, f"left and took {short(token)} with it")

    # --- the end -----------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Between two events: no token is in two places."""
        if Law.TOKENS not in self._names:
            return
        self.looked[Law.TOKENS] += 1
        where: dict[int, NodeId] = {}
        for node in self._world.nodes.values():
            for token in node.machine.view().tokens:
                if token.id in where:
                    what = f"has {short(token)}, and so has node {where[token.id]}"
                    self.broken(Law.TOKENS, self._world.now, node.id, what)
                where[token.id] = node.id

    def at_rest(self) -> bool:
        """Whether a healed world has settled: nobody waits, and there are as many tokens as there should be."""
        if self._world.tally.demand:
            return False
        return Law.TOKENS not in self._names or len(self._world.group.tokens_in_reach()) == self._slots

    def verdict(self) -> None:
        """At the end of the second phase, when everything should be in order again."""
        world, now = self._world, self._world.now
        for node in world.nodes.values():
            for request, asked in node.pending.items():
                waited = f"{to_seconds(now - asked):.3f} s, {world.scenario.settle_s:g} s of them on a healthy network"
                self.broken(Law.REQUESTS, now, node.id, f"request {request} still waits, for {waited}")
        tokens = world.group.tokens_in_reach()
        if len(tokens) != self._slots:
            found = ", ".join(map(short, tokens.values())) or "none"
            self.broken(Law.TOKENS, now, 0, f"{len(tokens)} tokens where {self._slots} should be: {found}")
        for overlap in self._overlaps:
            self._was_told(overlap)

    def _was_told(self, overlap: Overlap) -> None:
        if overlap.until - overlap.at < self._vague:
            return
        pair = (overlap.first, overlap.second)
        excused = overlap.severed or any(running.node not in self._world.nodes for running in pair)
        for running, other in (pair, pair[::-1]):
            if running.told or self._noted.get(running.node, 0) >= overlap.at:
                continue
            if excused:
                self.untold += 1
            else:
                what = f"overlapped with node {other.node} from {to_seconds(overlap.at - EPOCH):.6f} s and was not told"
                self.broken(Law.EVIDENCE, self._world.now, running.node, what)
