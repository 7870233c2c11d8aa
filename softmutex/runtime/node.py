"""THE pump: one life of a node, on one event loop. Every message takes this way, and no other:

    transport.receive --> take: open, decode, whom is it for?
                            |-- a mutex: handle(seat, Received) --> machine.handle --> effects --> perform
                            |-- the node as a whole: peers.py, founding.py, status.py
    timers.py --------------'                             perform: Send --> transmit: encode, seal, transport.send
    claims of the application (seat.py) -----> handle              Grant, Lose --> seat.py --> the application
                                                                   SetTimer, CancelTimer --> timers.py

What it decides: nothing about mutual exclusion; every such rule is in `softmutex.core`. It decides which bytes deserve
to be heard, and keeps one broken part from taking the others along. The naive way, a task for each mutex that awaits
its messages, lets events of one machine overlap, and no test can replay what happened.

R1  Events of one machine come one at a time: what happens while effects are performed waits in the backlog (D1, D2).
R2  No byte from outside and no exception of a plug-in ends the pump. Everything dropped is counted, by reason.
R3  After a fork the child never sends, and its calls raise.
R4  After `close` no task, timer or socket of the node is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from softmutex import plugins
from softmutex.core.errors import ConfigError, NodeClosed, SoftMutexError
from softmutex.core.events import (
    CancelTimer,
    Depart,
    Effect,
    Event,
    Grant,
    Instant,
    Leaving,
    Lose,
    LostReason,
    MembersChanged,
    NodeId,
    Note,
    Received,
    Send,
    SetTimer,
    Slept,
    Suspect,
)
from softmutex.core.machine import Setup, WhenIsolated
from softmutex.core.messages import OF_NODE, Message, name_of
from softmutex.core.wire import Frame
from softmutex.ports import Closed, Datagram, Member, Observation
from softmutex.runtime import forks, keys
from softmutex.runtime.claim import Claim
from softmutex.runtime.clock import clock_of
from softmutex.runtime.config import Settings
from softmutex.runtime.founding import Founding
from softmutex.runtime.lag import SLEEP, LagMonitor
from softmutex.runtime.observing import Observers
from softmutex.runtime.peers import Peers
from softmutex.runtime.seat import Seat
from softmutex.runtime.statistics import MutexStatistics, NodeStatistics
from softmutex.runtime.status import StatusDesk
from softmutex.runtime.terms import Plan, Terms
from softmutex.runtime.timers import Timers

if TYPE_CHECKING:
    from softmutex.runtime.identity import Vouching
    from softmutex.runtime.sealing import Refused

log = logging.getLogger("softmutex")

FOR_THE_NODE = frozenset(OF_NODE.values())
SEATS_MAX = 4096
SAID_MAX = 1000  # different warnings; what comes later is counted only
NOT_UNDERSTOOD = ("unknown_key", "forged", "not_sealed", "sealed")  # of a member: another key, or another group
LINGER_S = 0.01  # a leaving node waits for so long a silence, and
LINGER_TURNS = 5  # so often at most
GREETING_PATIENCE_S = 0.5  # how long `open` waits for those whom the membership names only by address


class Life:
    """Made and used on one loop. `open` once, `close` once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.now = clock_of(self.loop)
        self.rng = random.Random()
        self.id: NodeId = secrets.randbits(64) or 1
        self.name: str = settings["name"] or default_name(self.id)
        self.group = keys.group_fingerprint(settings["group"])
        self.timers = Timers(self.loop, self.now)
        self.seats: dict[str, Seat] = {}
        self.dropped: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.vouching: Vouching | None = None  # where identities are used
        self.banned: NodeClosed | None = None
        self.is_open = False
        self.closing = False
        self.said_bye = False
        self.heard = False  # since `_linger` looked last
        self.born = forks.count()
        seen_as = settings["membership"] if isinstance(settings["membership"], str) else id(settings["membership"])
        self.where = (seen_as, settings["group"])  # the same for all nodes of a group
        self._said: set[str] = set()
        self.overdue_at: Instant = 1 << 63  # when it is clear that this process did not get its turn (`lag.py`)
        self._tasks: list[asyncio.Task[None]] = []
        self.also_close: list[Callable[[], Awaitable[None]]] = []
        self._idle = asyncio.Event()  # set when something that `close` or `open` waits for may have changed
        # By URL in thousands of processes: nothing is imported before it is known to be used.
        self.transport = plugins.transport(settings["transport"])
        self.membership = plugins.membership(settings["membership"])
        self.observers = Observers(settings["observers"], self)

    # --- birth and death --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            group_keys = keys.group_keys(self.settings, self.membership)
            await self.transport.open()
            keys.check_reach(self.settings, self.transport, group_keys)
            self.seal = keys.seal_with(group_keys, self.settings["group"], self.id)
            self.keys = keys.in_force(self, group_keys)
            papers = keys.identify(self)
            self.peers = Peers(self)
            self.members = self.peers.members
            self.founding = Founding(self)
            self.status = StatusDesk(self)
            self._start(self._pump(), "pump")
            if papers is not None:
                self._start(papers.renew_forever(), "certificate")
                await papers.first()
            await self.membership.join(Member(self.transport.address, self.id, self.name))
            self.peers.update(await self.membership.watch())
            self._start(self._watch(), "members")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GREETING_PATIENCE_S):
                    while self.peers.greetings:
                        self._idle.clear()
                        await self._idle.wait()
        except BaseException:
            await self._tear_down()
            raise
        self.lag = LagMonitor.watch(self)
        self.is_open = True

    async def close(self) -> None:
        """Hands everything over, within `leave_timeout`; says farewell; leaves nothing behind."""
        self.closing = True
        self.is_open = False
        for seat in list(self.seats.values()):
            seat.fail(NodeClosed(f"the node was closed while the mutex {seat.name!r} was waited for."))
            if seat.started:
                self.handle(seat, Leaving())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings["leave_timeout"]):
                while not all(seat.departed and not seat.holding for seat in self.seats.values() if seat.started):
                    self._idle.clear()
                    await self._idle.wait()
        for seat in self.seats.values():
            seat.abandon()
        self.peers.say_bye()
        await self._linger()
        await self._tear_down()

    async def _linger(self) -> None:
        """What others sent before they heard the farewell is still passed on, such as requests that chase the token."""
        if not self.peers.table or not self.is_mine():
            return
        self.said_bye = True
        try:
            await self.membership.leave()
        except Exception:
            log.exception("the node %s could not leave its membership in good order", self.name)
        for _ in range(LINGER_TURNS):
            self.heard = False
            await asyncio.sleep(LINGER_S)
            if not self.heard:
                return

    async def _tear_down(self) -> None:
        self.closing = True
        self.timers.close()
        if hasattr(self, "lag"):
            self.lag.leave(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for part in (self.membership.aclose, self.transport.aclose, *self.also_close):
            try:
                await part()
            except Exception:
                log.exception("a part of the node %s could not be closed", self.name)
        self.observers.close()

    def _start(self, work: Any, name: str) -> None:
        self._tasks.append(self.loop.create_task(work, name=f"softmutex {name}"))

    def is_mine(self) -> bool:
        """False in a forked child of the process that it was opened in."""
        return self.born == forks.count()

    def check_usable(self) -> None:
        if not self.is_mine():
            raise NodeClosed("this node belongs to the parent of this forked process. Open one of its own here.")
        if not self.is_open:
            raise NodeClosed("the node is closed.")

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        receive, take = self.transport.receive, self.take
        with contextlib.suppress(Closed):
            while True:
                for datagram in await receive():
                    self.heard = True
                    try:
                        take(datagram)
                    except Exception:
                        self.tell("breakdowns", "a frame could not be handled; it is dropped", exc_info=True)

    async def _watch(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                self.peers.update(await self.membership.watch())

    def take(self, datagram: Datagram) -> None:
        frame = self.seal.open(datagram.payload)
        source = datagram.source
        if not isinstance(frame, Frame):
            self._refused(frame, datagram)
            return
        sender, receiver, mutex, message = frame
        kind = type(message)
        if kind in FOR_THE_NODE:
            if not self.said_bye:
                self._take_for_node(sender, mutex, message, source, to_me=bool(receiver))
        elif not receiver or (peer := self.peers.heard(sender, source)) is None:
            self.drop("not addressed")
        else:
            seat = self.seats.get(mutex)
            event = Received(sender, message)
            if seat is None:
                self.founding.keep(mutex, event)
            else:
                seat.heard_at = peer.heard_at
                name = name_of(kind)
                seat.counts.received[name] = seat.counts.received.get(name, 0) + 1
                if name in self.observers.of_messages:
                    self.tell_observers(mutex, "message_received", {"kind": name})
                self.handle(seat, event)

    def _refused(self, refused: Refused, datagram: Datagram) -> None:
        """Counted by the seal; some of the reasons are for the user to know."""
        source = datagram.source
        if refused.reason == "unknown_key" and self.keys is not None and self.keys.unknown():
            self.seal.refusals[refused.reason] -= 1  # it is not, after all
            self.take(datagram)
        elif refused.reason == "version":
            self.tell("version", f"{source} speaks {refused.detail}", once=f"version {source}")
        elif refused.reason in ("unsigned", "unvouched"):
            self.peers.expel(refused.sender, source, refused.detail)
        elif refused.reason in NOT_UNDERSTOOD and self.peers.is_listed(source):
            what = f"{source} is a member by the list, and its frames are refused: {refused.detail}."
            self.tell("other key", f"{what} Give all members the same key and group.", once=f"key {source}")
        elif refused.reason == "reflected":
            self.tell("own id", f"{source} sends in the name of this node: {refused.detail}.", once="own id")

    def _take_for_node(self, sender: NodeId, mutex: str, message: Message, source: str, to_me: bool) -> None:
        peers, status = self.peers, self.status
        if peers.received(sender, message, source, to_me) or status.received(sender, message, source, to_me):
            return
        if to_me and self.peers.heard(sender, source) is not None and self.founding.received(sender, mutex, message):
            return
        self.drop("not addressed")

    # --- the machine ------------------------------------------------------------------------------------------------

    def handle(self, seat: Seat, event: Event) -> None:
        if self.now() > self.overdue_at:
            self.is_awake()
        seat.backlog.append(event)
        if seat.started and not seat.busy:
            self.drain(seat)

    def is_awake(self) -> None:
        """Tells machines, before anything else, if this process did not get its turn for so long that it matters."""
        now = self.now()
        late = now - self.overdue_at
        if late > 0:
            self.overdue_at = now + SLEEP  # said once
            for seat in list(self.seats.values()):
                if seat.started:
                    self.handle(seat, Slept(late + SLEEP))

    def drain(self, seat: Seat) -> None:
        machine, backlog, perform = seat.machine, seat.backlog, self.perform
        seat.busy = True
        try:
            while backlog:
                for effect in machine.handle(backlog.popleft(), self.now()):
                    perform(seat, effect)
        except Exception as error:  # an InvariantBreach, or a bug that the machine itself did not see
            self._break_down(seat, error)
        finally:
            seat.busy = False

    def perform(self, seat: Seat, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                kind = name_of(type(message))
                seat.counts.sent[kind] = seat.counts.sent.get(kind, 0) + 1
                if kind in self.observers.of_messages:
                    self.tell_observers(seat.name, "message_sent", {"kind": kind})
                self.transmit(to, seat.name, message)
            case SetTimer(timer, at):
                self.timers.set((seat, timer), at, seat.fired, timer)
            case CancelTimer(timer):
                self.timers.cancel((seat, timer))
            case Grant():
                seat.grant(effect)
            case Lose(request, reason):
                seat.lose(request, reason)
            case Note():
                seat.note(effect)
                self.observers.note(seat.name, effect)
            case Depart():
                seat.departed = True
                self._idle.set()
            case Suspect(node):
                self.peers.suspect(node)
            case _:  # no machine orders the others yet
                pass

    def _break_down(self, seat: Seat, error: Exception) -> None:
        """A machine found itself to be wrong. It is put aside; the others go on, and a new one may be made."""
        self.tell("breakdowns", f"the machine of the mutex {seat.name!r} broke down: {error}", exc_info=True)
        if self.seats.get(seat.name) is seat:
            del self.seats[seat.name]
        seat.started = False
        seat.backlog.clear()
        failure = NodeClosed(f"the machine of the mutex {seat.name!r} broke down: {error}. Please report it.")
        failure.__cause__ = error
        seat.fail(failure)
        seat.abandon()

    # --- out --------------------------------------------------------------------------------------------------------

    def transmit(self, to: NodeId, mutex: str, message: Message, address: str | None = None) -> None:
        if not self.is_mine():
            return
        if address is None:
            peer = self.peers.table.get(to)
            if peer is None:
                self.drop("unroutable")
                return
            address = peer.address
        self.transport.send(address, self.seal.seal(Frame(self.id, to, mutex, message)))
        if self.said_bye:
            self.peers.say_bye_to(to)  # or they would take what they get for a sign of life

    # --- mutexes ----------------------------------------------------------------------------------------------------

    def ask(self, plan: Plan, claim: Claim) -> None:
        """What the application wants. Never raises: the claim is told."""
        try:
            self.check_usable()
            if self.banned is not None:
                raise self.banned
            seat = self.seat(plan)
        except SoftMutexError as error:
            claim.fail(error)
        else:
            seat.ask(claim)

    def withdraw(self, claim: Claim) -> None:
        if claim.seat is not None:
            claim.seat.withdraw(claim)

    def release(self, claim: Claim, baggage: bytes) -> None:
        if claim.seat is not None:
            claim.seat.release(claim, baggage)
            if self.closing:
                self._idle.set()

    def seat(self, plan: Plan) -> Seat:
        seat = self.seats.get(plan.name)
        if seat is None:
            seat = self.make_seat(plan.name, plan.terms, plan.policy.when_isolated)
            self.founding.open(seat)
        elif seat.terms is not plan.terms:
            self.founding.check(seat, plan.terms)
        return seat

    def make_seat(self, name: str, terms: Terms, when_isolated: WhenIsolated = "wait") -> Seat:
        if len(self.seats) >= SEATS_MAX:
            raise ConfigError(f"this node takes part in {SEATS_MAX} mutexes already, which is the limit of a node.")
        setup = Setup(
            self.id,
            self.members,
            self.rng,
            terms.timing,
            terms.machine_options(),
            terms.slots,
            when_isolated,
            place=keys.place_of(name),
        )
        machine = terms.machine_class()(setup)
        seat = self.seats[name] = Seat(self, name, terms, machine)
        return seat

    def rekey(self, group_keys: Sequence[bytes]) -> None:
        if self.keys is not None and group_keys:
            self.keys.change(group_keys)

    # --- what the parts of the node ask of each other ---------------------------------------------------------------

    def members_changed(self, event: MembersChanged) -> None:
        self.tell_observers("", "members", {"count": len(self.members)})
        for seat in list(self.seats.values()):
            if seat.started:
                self.handle(seat, event)

    def set_banned(self, is_banned: bool) -> None:
        """The others ignore this node. Who waits here waits in vain, and who holds may not be alone."""
        self.banned = None
        if is_banned:
            self.banned = NodeClosed("this node is banned from its group by the registry. Ask who runs that.")
            self.tell("banned", str(self.banned))
            for seat in list(self.seats.values()):
                seat.fail(self.banned)
                for request in list(seat.holding):
                    seat.lose(request, LostReason.ISOLATED)

    def greetings_changed(self) -> None:
        self._idle.set()

    def membership_is_complete(self) -> bool:
        """Whether the membership shows everybody who joined before: of two that join, at least one sees the other."""
        return bool(getattr(self.membership, "complete", False))

    def knows_everybody(self) -> bool:
        return self.membership_is_complete() and not self.peers.greetings

    def drop(self, why: str, count: int = 1) -> None:
        self.dropped[why] += count

    def tell(self, what: str, message: str, *, once: str = "", exc_info: bool = False) -> None:
        """Something that the user of this node should know."""
        key = once or message
        self.told[what] += 1
        if key not in self._said and len(self._said) < SAID_MAX:
            self._said.add(key)
            log.warning("%s: %s", self.name, message, exc_info=exc_info)

    def tell_observers(self, mutex: str, what: str, values: dict[str, float | int | str]) -> None:
        if self.observers:
            self.observers.notice(Observation(mutex, self.id, what, values))

    def call(self, id: NodeId) -> str:
        """How people call a node."""
        peer = self.peers.table.get(id)
        return f"{peer.name or 'a node'} at {peer.address}" if peer else f"node {id:x}"

    def random_u64(self) -> int:
        return secrets.randbits(64)

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def mutex_statistics(self, name: str) -> MutexStatistics:
        seat = self.seats.get(name)
        return MutexStatistics.nothing(name) if seat is None else seat.statistics()

    def statistics(self) -> NodeStatistics:
        return NodeStatistics(
            peers=len(self.members) - 1,
            mutexes=len(self.seats),
            dropped={**self.dropped, **{why.value: count for why, count in self.seal.refusals.items() if count}},
            told=dict(self.told),
            loop_lag_max=self.lag.max_s,
            loop_lags=self.lag.count,
            transport=dict(self.transport.statistics()),
            membership=dict(self.membership.statistics()),
        )


def default_name(id: NodeId) -> str:
    """Where to look for the node, and which of the nodes there."""
    return f"{socket.gethostname().partition('.')[0][:40]}-{os.getpid()}-{id >> 32:08x}"
