"""THE pump: a running node, on one event loop. Every message takes this way, and no other:

    transport.hand_to --> take: open, decode, whom is it for?      (`receive`, where the transport is not `Prompt`)
                            |-- a mutex: handle(mutex, Received) --> machine.handle --> effects --> perform
                            |-- the node as a whole: driver.py (the rules of the group), status.py
    timers.py --------------'                                     perform: Send --> send: seal, transport.send
    claims of the application (local.py) ----> handle                      Grant, Lose --> local.py --> the application
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
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from softmutex import plugins
from softmutex.core.chance import Rng
from softmutex.core.errors import NodeClosed
from softmutex.core.events import (
    CallRoll,
    CancelTimer,
    Depart,
    Effect,
    Event,
    Grant,
    Instant,
    Leaving,
    Lose,
    NodeId,
    Note,
    Received,
    Send,
    SetTimer,
    Slept,
    Started,
    Suspect,
)
from softmutex.core.machine import Setup, WhenIsolated
from softmutex.core.messages import Ahead, Message, name_of
from softmutex.core.wire import Frame
from softmutex.ending import end
from softmutex.ports import CannotOpen, Closed, Datagram, Member, Membership, Observation, Prompt, Transport
from softmutex.runtime import forks, keys, lives, lookout, resting
from softmutex.runtime.budgets import Budgets, Quota
from softmutex.runtime.claim import MutexClaim
from softmutex.runtime.clock import clock_of
from softmutex.runtime.config import Settings
from softmutex.runtime.doorstep import Doorstep
from softmutex.runtime.driver import FOR_THE_NODE, GroupDriver
from softmutex.runtime.lag import SLEEP, LagMonitor
from softmutex.runtime.local import LocalMutex
from softmutex.runtime.observing import Observers, default_name
from softmutex.runtime.status import StatusDesk
from softmutex.runtime.terms import Plan, Terms
from softmutex.runtime.timers import Timers
from softmutex.saying import logger

if TYPE_CHECKING:
    from softmutex.runtime.sealing import Refused
    from softmutex.runtime.statistics import NodeStatistics

log = logger("node")

ANSWERS_A_SECOND = 1000  # to who has to prove that it is there (`replays.py`)
LINGER_S = 0.01  # a leaving node waits for so long a silence, and
LINGER_TURNS = 5  # so often at most
READING_S = 11.0  # how long `open` waits for a membership that cannot be read, or for names that are being looked up
GREETING_S = 0.5  # how long `open` waits for those whom the membership names only by address


class RunningNode:
    """`open` gives one that takes part in its group, or raises and leaves nothing behind. It belongs to one loop."""

    @classmethod
    async def open(cls, settings: Settings) -> RunningNode:
        # By URL in thousands of processes: nothing is imported before it is known to be used.
        transport, membership = plugins.transport(settings["transport"]), plugins.membership(settings["membership"])
        try:
            group_keys = keys.group_keys(settings, membership)
            await transport.open()
            keys.check_reach(settings, transport, group_keys)
            node = cls(settings, transport, membership, group_keys)
        except BaseException:
            await close_each(settings["name"] or "that opens", membership.aclose, transport.aclose)
            raise
        await node._join()
        return node

    def __init__(
        self, settings: Settings, transport: Transport, membership: Membership, group_keys: Sequence[bytes]
    ) -> None:
        """The transport is open. What can fail comes before what would have to be undone."""
        self.settings = settings
        self.transport = transport
        self.membership = membership
        self.loop = asyncio.get_running_loop()
        self.now = clock_of(self.loop)
        self.rng: Rng = random.Random()
        self.id: NodeId = secrets.randbits(64) or 1
        self.name: str = settings["name"] or default_name(self.id)
        self.group = keys.group_fingerprint(settings["group"])
        seen_as = settings["membership"] if isinstance(settings["membership"], str) else id(settings["membership"])
        self.where = (seen_as, settings["group"])  # the same for all nodes of a group
        self.mutexes: dict[str, LocalMutex] = {}
        self.small_talk: set[str] = set()  # of all algorithms that run here
        self.dropped: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.banned: NodeClosed | None = None
        self.is_open = False
        self.closing = False
        self.said_bye = False
        self.heard = False  # since `_linger` looked last
        self.turns_to_hear = 3  # turns of the loop until what lies in the socket is handled: read, woken, handled
        self.born = forks.here.generation
        self.overdue_at: Instant = 1 << 63  # when it is clear that this process did not get its turn (`lag.py`)
        self._told = Budgets()
        self._answers = Quota(ANSWERS_A_SECOND)
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()  # set when something that `close` or `open` waits for may have changed
        self.timers = Timers(self.loop, self.now)
        self.seal = keys.seal_with(group_keys, settings["group"], self.id)
        self.identity = keys.identify(self)
        self.vouching = None if self.identity is None else self.identity.vouching
        self.observers = Observers(settings["observers"], self)
        self.begin_group()
        self.doorstep = Doorstep(self)
        self.status, self.lookout = StatusDesk(self), lookout.Lookout(self)
        self.lag = LagMonitor.of(self.loop)
        self.keys = keys.in_force(self, group_keys)
        self.lives = lives.NodeLives(self)

    def begin_group(self) -> None:
        self.driver = GroupDriver(self)
        self.members = self.driver.members
        self.seal.serve(self.members, self.now)

    # --- birth and death --------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        try:
            if isinstance(self.transport, Prompt):
                self.turns_to_hear = 2
                self.transport.hand_to(self.receive)
            else:
                self.start_task(self._pump(), "pump")
            if self.identity is not None and self.identity.papers is not None:
                self.start_task(self.identity.papers.renew_forever(), "certificate")
                await self.identity.papers.first()
            await self.membership.join(Member(self.transport.address, self.id, self.name))
            self.driver.listed(await self.membership.watch())
            self.start_task(self._watch(), "members")
            await self._until(lambda: not self.driver.unread(), READING_S)
            if unread := self.driver.unread():
                what = f"the membership could not be read for {READING_S:g} s, so nobody knows who else is there"
                raise CannotOpen(f"{what}: {', '.join(unread)}. Is it up, and can it be reached? See softmutex doctor.")
            await self._until(lambda: self.driver.is_settled or self.doorstep.is_shut_out(), GREETING_S)
        except BaseException:
            await self._tear_down()
            raise
        self.lag.watch(self)
        self.is_open = True

    async def close(self, own: Collection[MutexClaim] = ()) -> None:
        """Hands everything over, within `leave_timeout`; says farewell; leaves nothing behind. `own`: holds whose
        bodies wait for this: they are over now."""
        self.closing = True
        self.is_open = False
        for claim in [claim for claim in own if claim._crossing.node is self]:
            claim._close()
        for mutex in list(self.mutexes.values()):
            mutex.fail(NodeClosed(f"the node was closed while the mutex {mutex.name!r} was waited for."))
            if mutex.started:
                self.handle(mutex, Leaving())
            else:
                self.driver.closed(mutex)  # nobody needs to know any more
        await self._until(
            lambda: all(each.departed and not each.holding for each in self.mutexes.values() if each.started),
            self.settings["leave_timeout"],
        )
        for mutex in self.mutexes.values():
            mutex.abandon()
        self.driver.say_bye()
        await self._linger()
        await self._tear_down()

    async def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not condition():
                    self._news.clear()
                    await self._news.wait()

    async def _linger(self) -> None:
        """What others sent before they heard the farewell is still passed on, such as requests that chase the token."""
        if len(self.members) == 1 or not self.is_mine():
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
        if isinstance(self.transport, Prompt):
            self.transport.hand_to(None)
        self.timers.close()
        self.lag.leave(self)
        await end(*self._tasks)
        await close_each(self.name, self.membership.aclose, self.transport.aclose)
        if self.identity is not None:
            await close_each(self.name, self.identity.aclose)
        self.observers.close()

    def start_task(self, work: Any, name: str) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self.loop.create_task(work, name=f"softmutex {name}"))

    def is_mine(self) -> bool:
        """False in a forked child of the process that it was opened in."""
        return self.born == forks.here.generation

    def check_usable(self) -> None:
        if self.born != forks.here.generation:
            raise NodeClosed("this node belongs to the parent of this forked process. Open one of its own here.")
        if not self.is_open:
            raise NodeClosed("the node is closed.")

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                for datagram in await self.transport.receive():
                    self.receive(datagram)

    def receive(self, datagram: Datagram) -> None:
        try:
            if datagram.payload:
                self.heard = True
                self.take(datagram)
            elif not self.said_bye:
                self.driver.refused(datagram.source)  # transport.T7
        except Exception:
            self.warn("breakdowns", "a frame could not be handled; it is dropped", exc_info=True)

    async def _watch(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                view = await self.membership.watch()
                self.driver.listed(view)  # of the life that there is by now
                self._news.set()

    def take(self, datagram: Datagram) -> None:
        frame = self.seal.open(datagram.payload)
        source = datagram.source
        if not isinstance(frame, Frame):
            self._refused(frame, datagram)
            return
        sender, receiver, name, message = frame
        if type(message) in FOR_THE_NODE:
            if not self.said_bye:
                self._take_for_node(sender, name, message, source, to_me=bool(receiver))
            return
        now = self.now()
        if receiver and self.driver.heard(sender, source, now):
            self.take_for_mutex(sender, name, message, now)
        else:
            self.drop("not addressed")

    def take_for_mutex(self, sender: NodeId, name: str, message: Message, now: Instant) -> None:
        mutex = self.mutexes.get(name)
        if mutex is None:
            self.driver.keep(name, Received(sender, message))
            return
        mutex.heard_at = now
        resting.used(mutex, message, now)
        said, counts = name_of(type(message)), mutex.counts.received
        counts[said] = counts.get(said, 0) + 1
        if said in self.observers.of_messages:
            self.observers.message(mutex, "message_received", said)
        self.handle(mutex, Received(sender, message), now)

    def _refused(self, refused: Refused, datagram: Datagram) -> None:
        if refused.answer is not None and self._answers.take(self.now()):
            self.driver.post(datagram.source, refused.sender, "", refused.answer)
        elif refused.reason == "unknown_key" and self.keys is not None and self.keys.unknown():
            self.seal.refusals[refused.reason] -= 1  # it is not, after all
            self.take(datagram)
        else:
            self.doorstep.refused(refused, datagram)

    def _take_for_node(self, sender: NodeId, mutex: str, message: Message, source: str, to_me: bool) -> None:
        heard = (sender, message, source, to_me)
        if to_me and isinstance(message, Ahead):
            self.lives.told(sender, message)
        elif self.status.received(*heard) or self.lookout.received(*heard, mutex):
            pass
        elif not self.driver.received(sender, mutex, message, source, to_me):
            self.drop("not addressed")

    # --- the machine ------------------------------------------------------------------------------------------------

    def handle(self, mutex: LocalMutex, event: Event, now: Instant | None = None) -> None:
        if now is None:
            now = self.now()
        if now > self.overdue_at:
            self.is_awake()
        if mutex.busy or not mutex.started:
            mutex.backlog.append(event)
        else:
            self._drive(mutex, event, now)

    def start(self, mutex: LocalMutex, started: Started) -> None:
        """What happened before waits in the backlog, and comes after the beginning."""
        mutex.started = True
        self._drive(mutex, started, self.now())
        if self.closing:
            self.handle(mutex, Leaving())

    def is_awake(self) -> None:
        """Tells machines, before anything else, if this process did not get its turn for so long that it matters."""
        now = self.now()
        late = now - self.overdue_at
        if late > 0:
            self.lag.look()
            self.overdue_at = now + SLEEP  # said once
            for mutex in list(self.mutexes.values()):
                if mutex.started:
                    self.handle(mutex, Slept(late + SLEEP))

    def _drive(self, mutex: LocalMutex, event: Event, now: Instant) -> None:
        machine, backlog, perform = mutex.machine, mutex.backlog, self.perform
        mutex.busy = True
        try:
            while True:
                for effect in machine.handle(event, now):
                    perform(mutex, effect)
                if not backlog:
                    break
                event, now = backlog.popleft(), self.now()
        except Exception as error:  # an InvariantBreach, or a bug that the machine itself did not see
            self._break_down(mutex, error)
        finally:
            mutex.busy = False

    def perform(self, mutex: LocalMutex, effect: Effect) -> None:
        if isinstance(effect, Send):  # a chain of patterns takes four times as long
            to, message = effect
            kind, counts = name_of(type(message)), mutex.counts.sent
            counts[kind] = counts.get(kind, 0) + 1
            if kind in self.observers.of_messages:
                self.observers.message(mutex, "message_sent", kind)
            self.send(to, mutex.name, message)
        elif isinstance(effect, SetTimer):
            self.timers.set((mutex, effect.timer), effect.at, mutex.fired, effect.timer)
        elif isinstance(effect, CancelTimer):
            self.timers.cancel((mutex, effect.timer))
        elif isinstance(effect, Grant):
            mutex.grant(effect)
        elif isinstance(effect, Note):
            mutex.note(effect)
            self.observers.note(mutex, effect)
        elif isinstance(effect, Lose):
            mutex.lose(effect.request, effect.reason)
        elif isinstance(effect, Depart):
            mutex.departed = True
            self.something_changed()
        elif isinstance(effect, Suspect):
            self.driver.suspect(effect.node)
        elif isinstance(effect, CallRoll):
            self.driver.call_roll(mutex, effect)
        else:
            mutex.overlapped(effect)

    def _break_down(self, mutex: LocalMutex, error: Exception) -> None:
        """A machine found itself to be wrong. It is put aside; the others go on, and a new one may be made."""
        self.warn("breakdowns", f"the machine of the mutex {mutex.name!r} broke down: {error}", exc_info=True)
        if self.mutexes.get(mutex.name) is mutex:
            del self.mutexes[mutex.name]
            self.driver.closed(mutex)
        mutex.started = False
        mutex.backlog.clear()
        failure = NodeClosed(f"the machine of the mutex {mutex.name!r} broke down: {error}. Please report it.")
        failure.__cause__ = error
        mutex.fail(failure)
        mutex.abandon()

    # --- out --------------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, mutex: str, message: Message) -> None:
        if self.born != forks.here.generation:
            return
        driver = self.driver
        peer = driver.peers.get(to)
        if peer is None:
            self.drop("unroutable")
            return
        if peer.by:
            driver.send_by_way(to, mutex, message)
        else:  # nearly always
            self.transport.send(peer.address, self.seal.seal(Frame(self.id, to, mutex, message)))
        if self.said_bye:
            driver.say_bye_to(to)  # or they would take what they get for a sign of life
        if driver.out:
            driver.perform()

    # --- mutexes ----------------------------------------------------------------------------------------------------

    def open_mutex(self, plan: Plan) -> LocalMutex:
        """The one that an application wants to use: the group has to run it by the same terms."""
        mutex = self.mutexes.get(plan.name)
        if mutex is None or resting.gives_way(self, mutex, plan.terms):
            mutex = self.make_mutex(plan.name, plan.terms, plan.policy.when_isolated)
            self.driver.open(mutex, plan)
        elif mutex.terms is not plan.terms:
            self.driver.opened_again(mutex, plan)
        return mutex

    def make_mutex(self, name: str, terms: Terms, when_isolated: WhenIsolated) -> LocalMutex:
        resting.make_room(self)
        setup = Setup(
            self.id,
            self.members,
            self.rng,
            terms.timing,
            terms.machine_options(),
            terms.slots,
            when_isolated,
            place=keys.place_of(name),
            shared=self.driver.made_of_members,
        )
        machine = terms.machine_class()(setup)
        self.small_talk |= machine.small_talk
        mutex = self.mutexes[name] = LocalMutex(self, name, terms, machine, when_isolated)
        return mutex

    def rekey(self, group_keys: Sequence[bytes]) -> None:
        if self.keys is not None and group_keys:
            self.keys.change(group_keys)

    # --- what the parts of the node ask of each other ---------------------------------------------------------------

    def something_changed(self) -> None:
        """A greeting or a hold ended, or a machine has handed everything over: `open` or `close` may wait for that."""
        self._news.set()

    def drop(self, why: str, count: int = 1) -> None:
        self.dropped[why] += count

    def warn(self, what: str, message: str, *, once: str = "", exc_info: bool = False) -> None:
        """Something that the user of this node should know."""
        self.warnings[what] += 1
        if self._told.take(what, once or message, self.now()):
            log.warning("%s: %s", self.name, message, exc_info=exc_info)

    def notice(self, mutex: str, what: str, values: dict[str, float | int | str]) -> None:
        if self.observers.awake:
            self.observers.notice(Observation(mutex, self.id, what, values))

    def tick(self, lag_s: float) -> None:
        self.observers.tick()
        self.notice("", "loop_lag", {"seconds": lag_s})

    def call(self, id: NodeId) -> str:
        return self.driver.group.company.call(id)

    def statistics(self) -> NodeStatistics:
        from softmutex.runtime.statistics import NodeStatistics  # slow to make

        return NodeStatistics.of(self)


async def close_each(name: str, *parts: Callable[[], Awaitable[None]]) -> None:
    for part in parts:
        try:
            await part()
        except Exception:
            log.exception("a part of the node %s could not be closed", name)
