"""Drives the rules of the group (`core/group`): who is a member, and who makes the first token of a mutex.

    membership.watch --> listed --------.                       .--> Send, Tell, Mail: seal, transport.send
    transport: refused, heard, received -+--> core.group.Group --+--> timers.py
    machines: Suspect, CallRoll --------'                       '--> machines: Started, MembersChanged, Silenced, ...
    applications: open -----------------'                       '--> Say, Drop: what people read, what is counted

What it decides: nothing of membership; every such rule is in the core, where the simulator drives it as well. It adds
what the core cannot know: bans and certificates (`Door`), addresses, the log.

D1  What the rules order is performed in order, one at a time: what a machine answers to one effect comes behind it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from softmutex.core.errors import NodeClosed, SoftMutexError
from softmutex.core.events import (
    NOBODY,
    CallRoll,
    CancelTimer,
    Duration,
    Instant,
    LostReason,
    MembersChanged,
    NodeId,
    Received,
    Returned,
    Send,
    SetTimer,
    Silenced,
    Started,
    TimerName,
    from_seconds,
    to_seconds,
)
from softmutex.core.group import Ego, Group, Listed, Listing
from softmutex.core.group.door import BANNED
from softmutex.core.group.effects import (
    Answer,
    Double,
    Drop,
    GiveUp,
    GroupEffect,
    Mail,
    Mismatch,
    RefuseMutex,
    Say,
    Stalled,
    Start,
    TakePart,
    Tell,
    Unwrap,
)
from softmutex.core.messages import OF_NODE, Forget, Message, Relay, Standing
from softmutex.core.wire import Frame, UnfitForWire
from softmutex.ports import CannotOpen, Member
from softmutex.runtime import resting
from softmutex.runtime.lives import REMEDY
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.terms import Plan, Terms, refusal
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.runtime.node import RunningNode
    from softmutex.runtime.statistics import Peer

log = logger("group")

FOR_THE_NODE: Final = frozenset(OF_NODE.values())
NO_IDENTITY: Final = "no identity"
NAMED_AT_MOST: Final = 8  # of those that are silent


class GroupDriver:
    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._banned: frozenset[int | bytes] = frozenset()
        self._is_performing = False
        self.view: Sequence[Member] = ()  # the last one
        self._patience: dict[str, Duration | None] = {}  # how long each mutex waits for those that are silent
        isolated_s = node.settings["isolated_timeout"]
        isolated_timeout = None if isolated_s == math.inf else from_seconds(isolated_s)
        ego = Ego(node.id, node.transport.address, node.name, node.group, secrets.token_bytes(16), node.rng)
        self.group = Group(ego, isolated_timeout=isolated_timeout, door=self)
        self.founding = self.group.founding
        self.founding.uses = lambda mutex: resting.uses(node, mutex)
        self.is_listed = self.group.is_listed
        self.members, self.peers = self.group.members, self.group.peers
        self.out = self.group.out
        self.made_of_members: dict[str, Any] = {}  # by the machines, for all of them

    # --- what happens -----------------------------------------------------------------------------------------------

    def listed(self, view: Sequence[Member]) -> None:
        """The membership's list of the others, whole."""
        membership, now = self._node.membership, self._node.now()
        self.view = view
        # By attributes, not by protocols: `Warned` passes on what the membership behind it has.
        self._heed(getattr(membership, "banned", self._banned))
        pending = getattr(membership, "pending", None)
        listing = Listing(
            tuple(Listed(each.address, each.id, each.name, each.label, each.is_proven) for each in view),
            complete=bool(getattr(membership, "complete", False)),
            pending=tuple(pending or ()),
            unresolved=tuple(getattr(membership, "unresolved", ())),
            may_be_late=pending is None,
        )
        self.group.listed(listing, now)
        self.perform()

    def heard(self, sender: NodeId, source: str, now: Instant) -> bool:
        """A frame for this very life. False: it is not to be handled."""
        is_heard = self.group.heard(sender, source, now)
        if self.out:
            self.perform()
        return is_heard

    def received(
        self, sender: NodeId, mutex: str, message: Message, source: str, to_me: bool, by: NodeId = NOBODY
    ) -> bool:
        """A message of the node as a whole. False: it is none of the group's."""
        if isinstance(message, Forget) and not self._may_say_who_is_gone(sender):
            return False
        is_ours = self.group.received(sender, mutex, message, source, to_me, self._node.now(), by)
        self.perform()
        return is_ours

    def refused(self, address: str) -> None:
        """Nobody listens there, says the transport."""
        self.group.refused(address, self._node.now())
        self.perform()

    def keep(self, mutex: str, received: Received) -> None:
        """About a mutex that nobody opened here."""
        node = self._node
        if not node.closing and (self.founding.is_asking(mutex) or resting.is_worth_it(node, received.message)):
            self.founding.keep(mutex, received, node.now())
            self.perform()

    def forget(self, mutex: str) -> None:
        """This node takes part in it no longer."""
        self.founding.closed(mutex)
        self._patience.pop(mutex, None)

    def suspect(self, node: NodeId) -> None:
        self.group.suspect(node, self._node.now())
        self.perform()

    def call_roll(self, mutex: LocalMutex, order: CallRoll) -> None:
        self.group.call_roll(mutex.name, order.wide, self._node.now())
        self.perform()

    def expel(self, id: NodeId, source: str, why: str) -> None:
        """What it hands over is refused: it must not be handed anything. NOBODY: it is not certain who that is."""
        node = self._node
        who = node.call(id) if id in self.group.peers else source
        node.warn(
            "certificates", f"{who} {why}. It is ignored until that is mended.", once=f"certificate {id or source}"
        )
        if node.vouching is not None and node.vouching.required:
            node.vouching.senders.pop(id, None)
            self.group.expel(id, node.now())
            self.perform()

    def say_bye(self) -> None:
        self.group.say_bye()
        self.perform()

    def say_bye_to(self, id: NodeId) -> None:
        self.group.say_bye_to(id)
        self.perform()

    def _fired(self, timer: TimerName) -> None:
        self.group.fired(timer, self._node.now())
        self.perform()

    # --- mutexes ----------------------------------------------------------------------------------------------------

    def open(self, mutex: LocalMutex, plan: Plan) -> None:
        """Ends with its start, or with a refusal."""
        node, policy = self._node, plan.policy
        mutex.is_own = True
        if mutex.machine.needs_every_member:
            self._warn_of_strangers(mutex)
        self._wait_for_silent(mutex.name, policy.isolated_timeout)
        self.founding.open(
            mutex.name,
            mutex.terms.describe(Standing.KNOWN),
            node.now(),
            when_isolated=policy.when_isolated,
            min_members=policy.min_members,
        )
        self.perform()
        self.fail_those_shut_out()
        if node.mutexes.get(mutex.name) is not mutex and (why := node.doorstep.why_not_alone()):
            raise CannotOpen(why)  # nobody waits for it yet

    def fail_those_shut_out(self) -> None:
        """Where everybody refuses this node, nothing is waited for (`doorstep.py`)."""
        if self._node.doorstep.is_shut_out() and (why := self._node.doorstep.why_not_alone()):
            for mutex in [each for each in self._node.mutexes.values() if not each.started]:
                if mutex.machine_waits != "proceed":
                    self._shut_out(mutex, why)

    def _shut_out(self, mutex: LocalMutex, why: str) -> None:
        del self._node.mutexes[mutex.name]
        self.closed(mutex)
        mutex.fail(CannotOpen(why))

    def opened_again(self, mutex: LocalMutex, plan: Plan) -> None:
        """The application opens a mutex that is here already, by the same settings."""
        self._wait_for_silent(mutex.name, plan.policy.isolated_timeout)
        if not mutex.is_own:
            mutex.is_own, mutex.machine_waits = True, plan.policy.when_isolated
            mutex.machine.when_isolated(plan.policy.when_isolated)

    def closed(self, mutex: LocalMutex) -> None:
        self.founding.closed(mutex.name)
        self._patience.pop(mutex.name, None)
        self.perform()

    def explain_mismatch(self, mutex: LocalMutex, peer: NodeId, detail: str) -> None:
        """A machine met a token of other settings. Which ones is found out by asking, and told once a mutex."""
        if peer and "asked" not in mutex.warned_of:
            mutex.warned_of.add("asked")
            self.founding.ask_terms(peer, mutex.name)
            self.perform()
        elif not peer:
            self._warn_of_mismatch(mutex, detail or "a token of other settings was met")

    def _wait_for_silent(self, mutex: str, timeout: Duration | None) -> None:
        """Members are of the node, time limits of its mutexes: the most patient one counts."""
        self._patience[mutex] = timeout
        limits = [each for each in self._patience.values() if each is not None]
        longest = max(limits) if len(limits) == len(self._patience) else None
        self.group.suspicion.wait_for_silent(longest, self._node.now())
        self.perform()

    def _warn_of_strangers(self, mutex: LocalMutex) -> None:
        states = self.group.reachability()
        if self.group.is_settled and all(state == "reached" for _, state in states):
            return
        silent = ", ".join(sorted(who for who, state in states if state != "reached")) or "whom no list shows yet"
        what = f"the mutex {mutex.name!r} is run by {mutex.terms.algorithm!r}, which has to ask every member"
        remedy = "Use a membership that shows everybody, such as static://, or another algorithm."
        self._node.warn("strangers", f"{what}, and there may be some that this node does not know ({silent}). {remedy}")

    def _warn_of_mismatch(self, mutex: LocalMutex, what: str) -> None:
        if "mismatch" not in mutex.warned_of:
            mutex.warned_of.add("mismatch")
            self._node.warn("mismatch", f"the mutex {mutex.name!r}: {what}. Give all members the same settings.")

    # --- what is to be done -----------------------------------------------------------------------------------------

    def perform(self) -> None:
        if self._is_performing:
            return
        self._is_performing = True
        try:
            out = self.out
            while out:
                self._perform(out.popleft())
        finally:
            self._is_performing = False

    def _perform(self, effect: GroupEffect) -> None:
        node = self._node
        match effect:
            case Send(to, message):
                node.send(to, "", message)
            case Tell(to, mutex, message):
                node.send(to, mutex, message)
            case Mail(address, to, message, by):
                self.post(address, to, "", message, by)
            case SetTimer(timer, at):
                node.timers.set(("group", timer), at, self._fired, timer)
            case CancelTimer(timer):
                node.timers.cancel(("group", timer))
            case MembersChanged():
                node.notice("", "members", {"count": len(self.members)})
                self._tell_machines(effect)
            case Silenced() | Returned():
                self._tell_machines(effect)
            case Answer(asker, reach):
                if (asked := node.mutexes.get(asker)) is not None:
                    node.handle(asked, reach)
            case Unwrap(frame, by):
                self._unwrap(frame, by)
            case Double(source):
                self._doubled(source)
            case Say(what, text, once, is_routine):
                self._say(what, text, once, is_routine)
            case Drop(why, number):
                node.drop(why, number)
            case _:
                self._perform_of_mutex(effect)
        node.something_changed()

    def _perform_of_mutex(self, effect: Start | RefuseMutex | Mismatch | Stalled | TakePart | GiveUp) -> None:
        node = self._node
        mutex = node.mutexes.get(effect.mutex)
        if isinstance(effect, TakePart):
            self._take_part(effect)
        elif mutex is None:
            self.founding.closed(effect.mutex)
        elif isinstance(effect, Start) and effect.founder and (why := self._why_not_found(mutex)):
            self._shut_out(mutex, why)
        elif isinstance(effect, Start):
            self._start(mutex, Started(effect.founder, effect.hint), effect.kept)
        elif isinstance(effect, RefuseMutex):
            del node.mutexes[mutex.name]
            self._patience.pop(mutex.name, None)
            mutex.fail(refusal(mutex.name, node.call(effect.peer), effect.difference))
        elif isinstance(effect, Mismatch):
            self._warn_of_mismatch(mutex, f"{node.call(effect.peer)} runs it otherwise: {effect.difference}")
        elif isinstance(effect, GiveUp):
            resting.forget(node, {mutex})
        else:
            mutex.stall(effect.why)

    def _why_not_found(self, mutex: LocalMutex) -> str:
        return "" if mutex.machine_waits == "proceed" else self._node.doorstep.why_not_alone()

    def send_by_way(self, to: NodeId, mutex: str, message: Message) -> None:
        route = self.group.route(to, self._node.now())
        if route is not None:
            self.post(route[0], to, mutex, message, route[1])

    def post(self, address: str, to: NodeId, mutex: str, message: Message, by: NodeId = NOBODY) -> None:
        """To an address. `by`: in a frame for that node, which passes it on unopened."""
        node = self._node
        if not node.is_mine():
            return
        try:
            sealed = node.seal.seal(Frame(node.id, to, mutex, message))
            if by:
                sealed = node.seal.seal(Frame(node.id, by, "", Relay(to, sealed)))
        except UnfitForWire:
            if not by:
                raise
            node.drop("too large to be relayed")
            return
        node.transport.send(address, sealed)

    def _unwrap(self, sealed: bytes, by: NodeId) -> None:
        """A frame that another member passed on. Of an address it says nothing."""
        node = self._node
        frame = node.seal.open(sealed)
        if not isinstance(frame, Frame):
            return  # counted by the seal
        sender, receiver, name, message = frame
        if type(message) in FOR_THE_NODE:
            if not node.said_bye:
                self.received(sender, name, message, "", bool(receiver), by)
        elif receiver and self.group.relayed(sender, by, now := node.now()):
            node.take_for_mutex(sender, name, message, now)

    def _tell_machines(self, event: MembersChanged | Silenced | Returned) -> None:
        for mutex in list(self._node.mutexes.values()):
            if mutex.started:
                self._node.handle(mutex, event)

    def _start(self, mutex: LocalMutex, started: Started, kept: Sequence[Received]) -> None:
        """Its first events: the beginning, what the application asked meanwhile, who is silent, what others said."""
        node = self._node
        mutex.unstall()
        node.start(mutex, started)
        for silent in self.group.suspicion.silent():
            node.handle(mutex, Silenced(silent))
        for received in kept:
            node.handle(mutex, received)

    def _take_part(self, offered: TakePart) -> None:
        """In a mutex that only others use, by their terms. Not where a node leaves: it would only have to hand over."""
        node, name = self._node, offered.mutex
        if node.closing:
            return
        try:
            terms = Terms.described(offered.description)
            mutex = node.make_mutex(name, terms, node.settings.for_mutex(name, {})["when_isolated"])
        except (SoftMutexError, ValueError, TypeError) as error:
            why = f"this node cannot take part in the mutex {name!r} as {node.call(offered.peer)} runs it: {error}"
            node.warn("terms", why, once=f"terms {name}")
            return
        self.founding.joined(name, terms.describe(Standing.KNOWN))
        self._start(mutex, Started(founder=False, hint=offered.peer), offered.kept)

    def _say(self, what: str, text: str, once: str, is_routine: bool) -> None:
        if is_routine:
            self._node.warnings[what] += 1
            log.info("%s: %s", self._node.name, text)
        else:
            self._node.warn(what, text, once=once)

    def _doubled(self, source: str) -> None:
        """A cloned machine, or one that was set back: both seal under one id, and each is taken for the other."""
        self._node.lives.end(f"another process, at {source}, lives under the id of this node: {REMEDY}")

    def _may_say_who_is_gone(self, sender: NodeId) -> bool:
        """Anybody with the key where there are no identities; where there are, those whom this node's settings name."""
        vouching = self._node.vouching
        if vouching is None or not vouching.required:
            return True
        vouched = vouching.senders.get(sender)
        return vouched is not None and vouched.name in (self._node.settings["evictors"] or ())

    # --- who is not wanted (core.group.Door) ------------------------------------------------------------------------

    def objection(self, node: NodeId) -> str:
        vouching = self._node.vouching
        if self._banned:
            vouched = vouching.senders.get(node) if vouching is not None else None
            if node in self._banned or (vouched is not None and vouched.public in self._banned):
                return BANNED
        if vouching is not None and vouching.required and not vouching.is_vouched(node):
            return NO_IDENTITY
        return ""

    def _heed(self, banned: frozenset[int | bytes]) -> None:
        """Ids of lives, and public keys of identities. Whom the list no longer names may come back."""
        if banned == self._banned:
            return
        self._banned = banned
        node = self._node
        own = {node.id, node.vouching.public if node.vouching is not None else b""}
        self._set_banned(not own.isdisjoint(banned))
        self.group.look_at_door(node.now())
        node.seal.strike(banned)
        self.perform()

    def _set_banned(self, is_banned: bool) -> None:
        """The others ignore this node. Who waits here waits in vain, and who holds may not be alone."""
        self._node.banned = None
        if is_banned:
            why = "this node is banned from its group by the registry. Ask who runs that."
            self._give_up(why)
            self._node.warn("banned", why)

    def _give_up(self, why: str) -> None:
        node = self._node
        node.banned = NodeClosed(why)
        for mutex in list(node.mutexes.values()):
            mutex.fail(node.banned)
            for request in list(mutex.holding):
                mutex.lose(request, LostReason.ISOLATED)

    # --- for people -------------------------------------------------------------------------------------------------

    def cookie(self, source: str, sender: NodeId) -> int:
        """Proves that who repeats it can be reached at `source`."""
        return self.group.porter.cookie(source, sender)

    def unread(self) -> Sequence[str]:
        """What the membership has to find out before it can be believed (M8)."""
        return tuple(getattr(self._node.membership, "pending", ()))

    @property
    def is_settled(self) -> bool:
        return self.group.is_settled

    def shown(self) -> tuple[Peer, ...]:
        from softmutex.runtime.statistics import Peer  # slow to make

        now = self._node.now()
        return tuple(
            Peer(
                peer.id,
                peer.name,
                peer.address,
                to_seconds(now - peer.heard_at) if peer.heard_at else None,
                peer.is_suspected or peer.is_silent,
                peer.is_silent,
            )
            for peer in self.group.sights()
        )

    def who_is_silent(self) -> str:
        """In words; empty where all are heard."""
        silent = self.group.suspicion.silent()
        names = ", ".join(self._node.call(node) for node in silent[:NAMED_AT_MOST])
        return names + (f" and {len(silent) - NAMED_AT_MOST} more" if len(silent) > NAMED_AT_MOST else "")

    def what_comes_next(self, mutex: LocalMutex) -> str:
        """For who is isolated."""
        if mutex.machine_waits == "proceed":
            return "It goes on all the same (when_isolated=proceed)."
        longest = self.group.suspicion.isolated_timeout
        by_itself = (
            "never by itself" if longest is None else f"by itself once they were silent for {to_seconds(longest):g} s"
        )
        return (
            "It goes on when enough of them answer, when the membership or an operator says that they are gone "
            f"(softmutex forget NODE), and {by_itself} (isolated_timeout)."
        )
