"""The laws with a bound: no fault excuses anything that comes later than B after it (`Scenario.bound_s`).

`checkers.py` excuses whatever happens while something is wrong, and for half a minute after it. A group that never
mends what a cut did to it breaks none of its laws. Here a fault (loss, a kill, a pause, a cut, a clock at another rate,
messages that are late by many delays) excuses the following; delay, jitter, repetition, cancellation, orderly comings
and goings, views that differ and dead links excuse nothing. (A dead link does where nobody is left who is a way around
it; a death does until all were told of it, of algorithms that go by the membership's word: `needs_every_member`.)

requests   While somebody waits, somebody is granted within B, of the last fault or of the last grant, unless who was
           told that it may not be alone still runs by the token that it had. After healing all such gaps together, but
           for the time of a hand-over in each, are no longer than B. Who is told to leave, and holds nothing, has left
           B later.
tokens     B after healing there are exactly `slots`, and from then on. One that is being given has an attempt under
           way: a timer that will see to it.
overlap    Two holds of one slot begin only within a fault or B after it, and B after both can talk both have been told.
           A hold that was told is no rival of those that begin later.
evidence   Each pair of holds that overlapped is reported by both nodes, with its length, within 10 s of its end and of
           being able to talk; and no pair that did not, and nothing longer than it was; all but for a round trip.
           (Where clocks run at other rates, or a message takes over 50 ms, or more than a fifth of all are lost, what
           was missed is only counted; so is what was followed by more turns, until they could talk, than are recalled:
           memory has a bound.)
alarms     Nobody is told that it may not be alone while nothing is wrong, and it is.
fairness   While a node waits, no more turns begin than two rounds of those that waited or ran when its ticket had had
           the time to arrive.
isolation  B after a cut, the smaller side neither grants nor holds untold; of two halves one at the most does.

Two can talk when a path of links that work both ways leads from one to the other, and both are awake.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softmutex.core.events import (
    NOBODY,
    SECOND,
    FactKind,
    Instant,
    NodeId,
    Note,
    Overlapped,
    to_seconds,
)
from softmutex.core.handover import TIMER
from softmutex.core.laws import Law
from softmutex.sim.checkers import TIME_TO_TELL, Laws, short
from softmutex.sim.node import NEVER
from softmutex.sim.pairs import Memory, Named, Pair, name_of, share_a_slot
from softmutex.sim.tally import EPOCH

if TYPE_CHECKING:
    from softmutex.sim.node import Running, SimNode
    from softmutex.sim.world import World

NOTICED = 15 * SECOND  # a death may excuse for so long, where B is less: it has to be found out first
HOPS = 8  # one-way delays between a release and the next grant, at the most, when all goes well
ROW, ROW_LENGTH = 16, SECOND // 20  # requests of one node in one turn, and how long it may go on to be granted
EVIDENCE_DELAY_S, EVIDENCE_LOSS = 0.05, 0.2  # on worse networks reports may be missed


class Bounds(Laws):
    def __init__(self, world: World, names: Sequence[str]) -> None:
        super().__init__(world, names)
        scenario = world.scenario
        assert scenario.bound_s is not None
        self._bound = self._grace = round(scenario.bound_s * SECOND)
        told_s = scenario.detection_s * (2 if scenario.own_views else 1)  # by when all know of a death
        self._told = round(told_s * SECOND) if world.algorithm.needs_every_member else 0
        hop = round(scenario.delay_s * (1 + scenario.jitter) * SECOND)
        self._handover = HOPS * hop + SECOND // 4
        fair = not (scenario.faults or scenario.own_views or self._always or scenario.duplication)
        self._ticket = 6 * hop + round(world.algorithm.ticket_s * SECOND) if fair else self._bound  # until it is there
        self._pairs: list[Pair] = []  # that go on
        self._past: list[Pair] = []  # that may still be reported in time
        self._index: dict[Named, Pair] = {}
        self._vaguely: set[Named] = set()  # holds that may have overlapped, and need not
        self._wants: dict[NodeId, Instant] = {}  # since when its ticket waits
        self._effective = 0  # holds that run and were not told
        self._memory = Memory()
        self._last_turn: dict[int, tuple[NodeId, Instant, int]] = {}  # token -> whose, since when, how many holds
        self._crowd_at = array("q", [EPOCH])  # when the number of those who wait or run changed, and to what
        self._crowd = array("q", [0])
        self._gap: Instant | None = None  # since when somebody waits at a free resource, and nobody is granted
        self._lost_time = 0  # in such gaps, since all was healed
        self._healed_at: Instant | None = None
        self._leavers: dict[NodeId, Instant] = {}  # since when nothing keeps it here
        self._smaller: dict[NodeId, Instant] = {}  # on the smaller side of a cut, since
        self._halves: dict[NodeId, tuple[Instant, int]] = {}  # on one of two equal sides, since, and which
        self._half_that_holds: int | None = None
        self._membership_sees = False
        self._joined_at: Instant = 0

    # --- faults ------------------------------------------------------------------------------------------------------

    def killed(self, at: Instant, node: SimNode) -> None:
        self.disturbed(at + max(NOTICED - self._bound, self._told, 0))

    def healed(self, at: Instant) -> None:
        super().healed(at)
        self._healed_at = at
        calm = self._disturbed_at or at
        self._world.after(max(at, calm) + self._bound - at, self._count_tokens)

    def _over_since(self) -> Instant | None:
        """Since when nothing excuses anything; None while something does."""
        calm = self._calm_since()
        if calm is None or calm > self._world.now:
            return None
        return calm

    # --- requests, and in which order --------------------------------------------------------------------------------

    def asked(self, at: Instant, node: SimNode) -> None:
        if node.id not in self._wants:
            self._wants[node.id] = at
            self._count_crowd(at)
        self._look_for_gap(at)

    def withdrew(self, at: Instant, node: SimNode) -> None:
        if not node.pending and self._wants.pop(node.id, None) is not None:
            self._count_crowd(at)
        self._look_for_gap(at)

    def _count_crowd(self, at: Instant) -> None:
        self._crowd_at.append(at)
        self._crowd.append(len(self._wants) + len(self._world.running))

    def _look_for_gap(self, at: Instant, granted: NodeId = NOBODY) -> None:
        waits = bool(self._wants) and self._effective < self._slots
        if waits and self._world.running:
            waits = self._effective + self._rightful() < self._slots
        if waits and (self._slots > 1 or self._world.running):  # a node has one slot at a time, and `granted` has it
            nodes = self._world.nodes
            waits = any(node_id != granted and not nodes[node_id].holds for node_id in self._wants)
        if self._gap is not None and (granted != NOBODY or not waits):
            self._judge_gap(at, closed=True)
            self._gap = None
        if waits and self._gap is None:
            self._gap = at

    def _rightful(self) -> int:
        """Holds that were told that they may not be alone, and still have their token: nobody else may hold by it."""
        count = 0
        for running in self._world.running:
            if running.lost_at != NEVER:
                there = {token.id for token in self._world.nodes[running.node].machine.view().tokens}
                count += any(right.id in there for right in running.rights)
        return count

    def _judge_gap(self, at: Instant, closed: bool = False) -> None:
        calm = self._over_since()
        if self._gap is None or calm is None:
            return
        self.looked[Law.REQUESTS] += 1
        start = max(self._gap, calm)
        length = at - start - self._handover
        if length > self._bound:
            waits = ", ".join(map(str, sorted(self._wants)[:5]))
            what = f"nobody was granted for {to_seconds(at - start):.3f} s, though node {waits} waited"
            self.broken(Law.REQUESTS, at, 0, what)
            self._gap = at
        elif closed and self._healed_at is not None and length > 0:
            before = self._lost_time
            self._lost_time += max(0, at - max(start, self._healed_at) - self._handover)
            if before <= self._bound < self._lost_time:
                what = f"since healing nobody held for {to_seconds(self._lost_time):.3f} s in all, though some waited"
                self.broken(Law.REQUESTS, at, 0, what)

    def _served(self, at: Instant, running: Running) -> None:
        """A node was granted: how many turns of others did it wait for?"""
        node = self._world.nodes[running.node]
        since = self._wants.pop(node.id, at)
        calm = self._over_since()
        if calm is not None:
            start = max(since, calm + self._bound if calm > EPOCH else since) + self._ticket
            if start < at:
                self._judge_wait(start, at, node.id)
        key = running.rights[0].id if running.rights else 0
        last, begun, row = self._last_turn.get(key, (0, 0, ROW))
        if last != node.id or row >= ROW or at - begun > ROW_LENGTH:
            self._memory.turns.append(at)
            begun, row = at, 0
        self._last_turn[key] = (node.id, begun, row + 1)
        if node.pending:
            self._wants[node.id] = at
        self._count_crowd(at)

    def _judge_wait(self, start: Instant, at: Instant, node: NodeId) -> None:
        self.looked[Law.FAIRNESS] += 1
        turns = len(self._memory.turns) - bisect_right(self._memory.turns, start)
        crowd = self._crowd[bisect_right(self._crowd_at, start) - 1]
        if turns > 2 * crowd + self._slots:
            what = f"waited for {turns} turns of others, though {crowd} waited or ran when it did already"
            self.broken(Law.FAIRNESS, at, node, what)

    # --- holds -------------------------------------------------------------------------------------------------------

    def granted(self, at: Instant, new: Running, others: list[Running]) -> None:
        self._effective += 1
        self._memory.held(at, new.node)
        self._served(at, new)
        self._look_for_gap(at, granted=new.node)
        self._cut_off(at, new)
        excused = self.excused(at)
        if not excused:
            self.looked[Law.OVERLAP] += 1
            self.looked[Law.ALARMS] += 1
        if new.rights:
            for other in [other for other in others if share_a_slot(other, new)]:
                if other.node == new.node:
                    self.illegal(at, new.node, f"granted request {new.request} while {other.request} has its slot")
                else:
                    self._meet(at, other, new, excused)
        elif len(others) >= self._slots and not excused:
            self.broken(Law.OVERLAP, at, new.node, f"runs A while {len(others)} others do, with nothing wrong lately")
        for old in self._near_misses(at, new):
            self._vaguely |= {name_of(old, new), name_of(new, old)}
        self._in_order(at, new)

    def _meet(self, at: Instant, old: Running, new: Running, excused: bool) -> None:
        if old.lost_at == NEVER and not excused:
            what = f"runs A while node {old.node} does, and nothing had gone wrong lately"
            self.broken(Law.OVERLAP, at, new.node, what)
        pair = Pair(at, old, new, at if self._can_talk(old.node, new.node) else None)
        self._pairs.append(pair)
        for mine, other in pair.ends():
            mine.overlapped = True
            self._index[name_of(mine, other)] = pair

    def lost(self, at: Instant, running: Running) -> None:
        self._effective -= 1
        if not running.overlapped and not self.excused(at):
            what = f"was told {running.alarm!r} of request {running.request}, alone and with nothing wrong lately"
            self.broken(Law.ALARMS, at, running.node, what)
        self._look_for_gap(at)

    def ended(self, at: Instant, running: Running) -> None:
        self._over.append((at, running))
        if self._slots > 1 and running.node in self._wants:
            self._wants[running.node] = at  # until now it had the one slot that a node may have
        self._effective -= running.lost_at == NEVER
        for pair in [pair for pair in self._pairs if running in (pair.first, pair.second)]:
            self._judge_length(pair, at)
            pair.until = at
            self._pairs.remove(pair)
            if at - pair.at >= self._vague:
                self._past.append(pair)
        if running.node in self._leavers:
            self._leavers[running.node] = at
        self._count_crowd(at)
        self._look_for_gap(at)

    def _judge_length(self, pair: Pair, at: Instant) -> None:
        """Whether it went on untold for longer than B after they could talk."""
        if pair.talk_since is None or pair.judged:
            return
        start, at = max(pair.at, pair.talk_since), min(at, pair.until)  # nodes of what is over may be parted, too
        if min(at, pair.told_at) - start > self._bound + self._vague:
            pair.judged = True
            untold = " and ".join(str(mine.node) for mine, _ in pair.ends() if not mine.told) or "one of them"
            what = f"ran A beside node {pair.second.node} for {to_seconds(at - start):.3f} s in which they could talk, "
            self.broken(Law.OVERLAP, at, pair.first.node, f"{what}and node {untold} was not told within the bound")

    # --- evidence ----------------------------------------------------------------------------------------------------

    def noted(self, at: Instant, node: SimNode, note: Note) -> None:
        if note.kind is not FactKind.OVERLAP:  # what counts is what is reported
            super().noted(at, node, note)
        if note.kind is FactKind.DISCARDED:
            self._look_for_gap(at)  # what runs with it keeps nobody from holding

    def reported(self, at: Instant, node: SimNode, overlapped: Overlapped) -> None:
        request, other, their_request, length = overlapped
        name = (node.id, request, other, their_request)
        pair = self._index.get(name)
        if pair is not None:
            pair.reported[node.id] = max(length, pair.reported.get(node.id, 0))  # a replayed word knows less
            was = min(at, pair.until) - pair.at
            too_long = length > was + self._vague
            wrong = f"for {to_seconds(length):.3f} s, and it was {to_seconds(was):.3f} s" if too_long else ""
        else:
            wrong = "" if name in self._vaguely else "which it did not"
        if wrong and self._are_clocks_right:
            what = f"reported that request {request} overlapped with request {their_request} of node {other}, {wrong}"
            self.broken(Law.EVIDENCE, at, node.id, what)

    @property
    def _are_clocks_right(self) -> bool:
        return all(fault.kind != "clocks" for fault in self._world.scenario.faults)

    @property
    def _must_tell(self) -> bool:
        scenario = self._world.scenario
        loss = 1 - (1 - scenario.loss) * (1 - scenario.corruption)
        fast = scenario.delay_s <= EVIDENCE_DELAY_S
        return fast and loss <= EVIDENCE_LOSS and not scenario.reordering and self._are_clocks_right

    def _judge_reports(self, at: Instant) -> None:
        for pair in list(self._past):
            if pair.talk_since is None:
                continue
            due = max(pair.until, pair.talk_since) + TIME_TO_TELL + self._vague
            if at <= due:
                continue
            self._past.remove(pair)
            self.looked[Law.EVIDENCE] += 1
            for mine, other in pair.ends():
                if pair.reported.get(mine.node, 0) + self._vague < pair.until - pair.at:
                    self._missed(at, pair, mine, other)

    def _missed(self, at: Instant, pair: Pair, mine: Running, other: Running) -> None:
        if not self._must_tell or self._memory.has_lost(pair):
            self.untold += 1
            return
        span = f"from {to_seconds(pair.at - EPOCH):.3f} s for {to_seconds(pair.until - pair.at):.3f} s"
        both = f"request {mine.request} overlapped with request {other.request} of node {other.node} {span}"
        said = f"but {to_seconds(pair.reported[mine.node]):.3f} s" if mine.node in pair.reported else "nothing"
        self.broken(Law.EVIDENCE, at, mine.node, f"reported {said} in time, though {both}")

    # --- who can talk ------------------------------------------------------------------------------------------------

    def _can_talk(self, one: NodeId, other: NodeId) -> bool:
        nodes = [self._world.nodes.get(node_id) for node_id in (one, other)]
        awake = all(node is not None and node.awake for node in nodes)
        return awake and not any(cut.parts(one, other) for cut in self._world.network.cuts)

    def parted(self, at: Instant, is_seen: bool = False) -> None:
        for pair in (*self._pairs, *self._past):
            if not self._can_talk(pair.first.node, pair.second.node):
                self._judge_length(pair, at)
                pair.talk_since = None
            elif pair.talk_since is None:
                pair.talk_since = at
        self._membership_sees = self._membership_sees or is_seen
        if not self._world.network.cuts:
            self._membership_sees = False
        self._weigh_sides(at)

    def joined(self, at: Instant) -> None:
        self._joined_at = at

    def removed(self, at: Instant, node: SimNode) -> None:
        if self._wants.pop(node.id, None) is not None:  # who is not there waits for nothing, whatever it holds
            self._count_crowd(at)
        for running in node.holds.values():
            self.ended(at, running)
        self._leavers.pop(node.id, None)
        for pair in [pair for pair in self._past if node.id in (pair.first.node, pair.second.node)]:
            self._past.remove(pair)  # who is not there cannot be told, nor say what it knows
            self.untold += 1
        self._look_for_gap(at)

    def _weigh_sides(self, at: Instant) -> None:
        cuts, group = self._world.network.cuts, self._world.group
        sides: dict[tuple[bool, ...], list[NodeId]] = {}
        for node_id in group.living if cuts else ():
            sides.setdefault(tuple(node_id in cut.side for cut in cuts), []).append(node_id)
        count = len(group.living) + len(group.silent)
        smaller = [node_id for side in sides.values() if 2 * len(side) < count for node_id in side]
        halves = [side for side in sides.values() if 2 * len(side) == count]
        self._smaller = {node_id: self._smaller.get(node_id, at) for node_id in smaller}
        if not halves:
            self._halves, self._half_that_holds = {}, None
        for number, side in enumerate(halves):
            for node_id in side:
                self._halves.setdefault(node_id, (at, number))
        if self._smaller:
            self._world.after(self._bound + 1, self._look_at_smaller)

    # --- the smaller side --------------------------------------------------------------------------------------------

    def _is_bound_to_stop(self, at: Instant, node: NodeId) -> bool:
        if self._world.scenario.when_isolated != "wait" or self._membership_sees:
            return False
        since = self._smaller.get(node)
        return since is not None and since + self._bound < at and self._joined_at + self._bound < since

    def _cut_off(self, at: Instant, new: Running) -> None:
        if self._is_bound_to_stop(at, new.node):
            self.looked[Law.ISOLATION] += 1
            late_s = to_seconds(at - self._smaller[new.node])
            what = f"granted {late_s:.3f} s after it was cut off with the smaller side"
            self.broken(Law.ISOLATION, at, new.node, what)
        elif new.node in self._halves and self._world.scenario.when_isolated == "wait" and not self._membership_sees:
            since, half = self._halves[new.node]
            if since + self._bound < at and self._joined_at + self._bound < since:
                self.looked[Law.ISOLATION] += 1
                if self._half_that_holds not in (None, half):
                    self.broken(Law.ISOLATION, at, new.node, "granted in one half of the group while the other does")
                self._half_that_holds = half

    def _look_at_smaller(self) -> None:
        at = self._world.now
        for node_id in [node_id for node_id in self._smaller if self._is_bound_to_stop(at, node_id)]:
            self.looked[Law.ISOLATION] += 1
            node = self._world.nodes.get(node_id)
            for running in node.holds.values() if node is not None and node.awake else ():
                if not running.told:
                    what = f"is cut off with the smaller side, and request {running.request} was not told"
                    self.broken(Law.ISOLATION, at, node_id, what)

    # --- comings and goings ------------------------------------------------------------------------------------------

    def leaving(self, at: Instant, node: SimNode) -> None:
        self._leavers[node.id] = at

    def departed(self, at: Instant, node: SimNode) -> None:
        super().departed(at, node)
        self._judge_leave(at, node)

    def stayed(self, at: Instant, node: SimNode) -> None:
        self._judge_leave(at, node)

    def _judge_leave(self, at: Instant, node: SimNode) -> None:
        since, calm = self._leavers.get(node.id), self._over_since()
        if since is not None and calm is not None and not node.holds:
            took = at - max(since, calm)
            if took > self._bound + self._handover:
                what = f"needed {to_seconds(took):.3f} s to leave, with nothing held and nothing wrong"
                self.broken(Law.REQUESTS, at, node.id, what)

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _count_tokens(self) -> None:
        if Law.TOKENS not in self._names:
            return
        early = (self._disturbed_at or 0) + self._bound - self._world.now
        if early > 0:  # a leaver was switched off in its turn, which was too long
            self._world.after(early, self._count_tokens)
            return
        self.looked[Law.TOKENS] += 1
        tokens = self._world.group.tokens_in_reach()
        missing = self._slots - len(tokens)
        if missing and not 0 < missing <= self._world.group.refusals_on_the_way():
            found = ", ".join(map(short, tokens.values())) or "none"
            what = f"{len(tokens)} tokens, and not {self._slots}, when the bound after healing was over: {found}"
            self.broken(Law.TOKENS, self._world.now, 0, what)

    def audit(self) -> None:
        super().audit()
        self.looked[Law.EFFECTS] += 1
        at = self._world.now
        self._judge_gap(at)
        self._judge_reports(at)
        for pair in self._pairs:
            self._judge_length(pair, at)
        for node in self._world.nodes.values():
            if node.awake and node.machine.view().state == "passing" and not _has_attempt(node):
                self.broken(Law.TOKENS, at, node.id, "is passing its token on, and no attempt to is under way")

    def verdict(self) -> None:
        super().verdict()
        self.audit()


def _has_attempt(node: SimNode) -> bool:
    return any(
        timer.due != NEVER and (timer.name[0] if isinstance(timer.name, tuple) else timer.name) == TIMER
        for timer in node.timers.values()
    )
