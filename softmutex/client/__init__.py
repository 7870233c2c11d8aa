"""The mutex for programs beside an agent: no node, no event loop and no thread of their own, and a quick start.

    from softmutex.client import SoftMutex

    with SoftMutex("nightly-ftp", timeout=600) as hold:        # or `async with`
        ...

    program -- want, take --> softmutex agent (of this user on this host, or of the host) --> the group

What it decides: the kernel tells the agent when this program dies, for then the socket closes, and the other way round.
So nothing has to be renewed, and no thread has to run for that: a loss is read from the socket when `hold.lost` is
looked at. An agent that ends while somebody waits is called again, until the time limit; where none comes back within
CALL_PATIENCE_S, that is `NoAgent`.

`SoftMutex` here and in `softmutex` have the same shapes. What this one lacks: reactions that are functions (`on_lost`,
`on_overrun`), and the settings of the node, which are the agent's.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from softmutex.agent import place, traced
from softmutex.agent.link import Lines, Message, NotALink, pack
from softmutex.agent.place import Elsewhere, NoAgent
from softmutex.core.errors import AcquireTimeout, ConfigError, HoldLost, Isolated, NodeClosed, SoftMutexError
from softmutex.core.events import LostReason
from softmutex.front import UNSET, TaskHolding, ThreadHolding, Threads, Unset, limit_of
from softmutex.meeting import program

if TYPE_CHECKING:
    from softmutex.client.on_loop import AsyncHold, TaskMutex
    from softmutex.seen import MutexSeen

__all__ = ["Elsewhere", "Hold", "NoAgent", "SoftMutex"]

CALL_EVERY_S, CALL_PATIENCE_S = 0.1, 10.0
ERRORS: Final = {"timeout": AcquireTimeout, "isolated": Isolated, "config": ConfigError, "closed": NodeClosed}
REASONS: Final = {reason.value: reason for reason in LostReason}


class Talk:
    """What is said on the link, without a word on how it is carried."""

    def __init__(self, mutex: SoftMutex, timeout_s: float | None) -> None:
        self.mutex = mutex
        self.timeout_s = timeout_s
        self.began_at = time.monotonic()
        self.since_s = time.time() if mutex._since_s is None else mutex._since_s
        self.granted: Message | None = None
        self.error: SoftMutexError | None = None
        self.lost_reason: LostReason | None = None
        self.lost_detail = ""
        self.overran = False
        self._lines = Lines()

    def want(self) -> Message:
        self._lines = Lines()
        left_s = self.timeout_s
        if left_s:
            left_s = max(0.001, left_s - (time.monotonic() - self.began_at))
        more = dict(self.mutex._options)
        return {
            "name": self.mutex.name,
            "timeout": left_s,
            "said": self.timeout_s,
            "since": self.since_s,
            "keep": self.mutex._keep_s,
            "on_overrun": more.pop("on_overrun", "warn"),
            "place": more.pop("place", {}),
            "options": more,
            "trace": traced.here(),
            "purpose": self.mutex._purpose,
        }

    def is_settled(self) -> bool:
        return self.granted is not None or self.error is not None

    def may_call_again(self, since: float) -> bool:
        """After the agent hung up: whether one may still be hoped for."""
        now = time.monotonic()
        if self.timeout_s is not None and now >= self.began_at + self.timeout_s:
            self.error = AcquireTimeout(f"the mutex {self.mutex.name!r} was not granted within {self.timeout_s:g} s.")
            return False
        return now < since + CALL_PATIENCE_S

    def feed(self, chunk: bytes) -> bytes:
        """What is to be answered. An end of the stream that comes while it is held is a loss."""
        if not chunk and self.granted is not None:
            self._lose(LostReason.CLOSED)
        answer = b""
        for message in self._lines.feed(chunk):
            match message:
                case {"is": "granted", "turn": int(turn)} if self.granted is None:
                    answer += pack("take", turn=turn)
                case {"is": "go"}:
                    self.granted = message
                case {"is": "failed", "why": str(why)}:
                    kind = ERRORS.get(message.get("error", ""), SoftMutexError)
                    self.error = kind(f"the mutex {self.mutex.name!r}: {why}")
                case {"is": "lost", "reason": str(reason)}:
                    self.lost_detail = str(message.get("detail") or "")
                    self._lose(REASONS.get(reason, LostReason.CLOSED))
                case {"is": "overrun", "end": bool(end)}:
                    self.overran = self.overran or end
                case _:
                    pass
        return answer

    def _lose(self, reason: LostReason) -> None:
        self.lost_reason = self.lost_reason or reason

    def to_raise_afterwards(self) -> HoldLost | None:
        name = self.mutex.name
        if self.lost_reason is not None and self.mutex._on_lost == "cancel":
            return HoldLost(f"the hold of the mutex {name!r} is no longer the only one for sure ({self.lost_reason}).")
        if self.overran:
            return HoldLost(f"the mutex {name!r} was held longer than max_hold without touch().")
        return None


class GrantedTalk:
    """What a hold is told at its grant."""

    _talk: Talk
    _link: socket.socket

    def __init__(self, talk: Talk, link: socket.socket) -> None:
        granted = cast(Message, talk.granted)
        self._talk = talk
        self._link = link
        self._over = False
        self.name = talk.mutex.name
        self.node: str = granted["node"]
        self.epoch: int = granted["epoch"]
        self.hop: int = granted["hop"]
        self.peers: int = granted["peers"]
        self.waited: float = time.monotonic() - talk.began_at
        self._max_hold_s: float | None = granted["left"]
        self.deadline: float | None = None if self._max_hold_s is None else time.monotonic() + self._max_hold_s

    @property
    def lost_detail(self) -> str:
        """What was said of the loss: the reason of an eviction."""
        return self._talk.lost_detail

    def __repr__(self) -> str:
        lost = self._talk.lost_reason
        state = "over" if self._over else f"lost: {lost.value}" if lost else "held"
        return f"<client.Hold of {self.name!r} on {self.node!r}, epoch {self.epoch}, hop {self.hop}, {state}>"

    def touch(self) -> None:
        """There is progress: max_hold begins anew."""
        if self._max_hold_s is not None and not self._over:
            self.deadline = time.monotonic() + self._max_hold_s
            self._say("touch")

    def _enter(self) -> None:
        if self._over:
            raise SoftMutexError(f"this hold of the mutex {self.name!r} is over. Acquire it again.")

    def _say(self, kind: str) -> None:
        with suppress(OSError):  # the agent is gone, or deaf: the end of the link says the same
            self._link.send(pack(kind))

    def _let_go(self) -> None:
        if not self._over:
            self._over = True
            self._say("done")
            self._link.close()


class Lost:
    """`hold.lost` of a thread: looks at the link when it is asked."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        return self._hold._look(timeout)


class Hold(GrantedTalk):
    """The right to run, until the `with` is over or `release()` was called."""

    def __init__(self, talk: Talk, link: socket.socket) -> None:
        super().__init__(talk, link)
        self.lost = Lost(self)

    @property
    def lost_reason(self) -> LostReason | None:
        self._look(0)
        return self._talk.lost_reason

    def __enter__(self) -> Hold:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._look(0)
        self._let_go()
        afterwards = self._talk.to_raise_afterwards()
        if error is None and afterwards is not None:
            raise afterwards

    def release(self) -> None:
        """Hands the mutex on. It may be called again, and raises nothing."""
        self._let_go()

    def _look(self, timeout_s: float | None) -> bool:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._talk.lost_reason is None and not self._over:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            readable, _, _ = select.select([self._link], [], [], left_s)
            if not readable:
                break
            try:
                self._talk.feed(self._link.recv(65536))
            except (OSError, NotALink):
                self._talk.feed(b"")
        return self._talk.lost_reason is not None


class SoftMutex(Threads[Hold]):
    """A soft mutex that the agent of this user holds for this program, for threads and for asyncio.

    `timeout` as everywhere: seconds, 0 to try, None to wait for ever. `agent` is the path of its socket; without it,
    what SOFTMUTEX_AGENT says, else /tmp/softmutex-<uid>/agent.sock, else that of the host, /run/softmutex/agent.sock.
    `place={"group": ..., "membership": ...}` makes sure of the agent's group: `Elsewhere` if it is in another one.

    Among the jobs of an agent who waits longest comes first, also where the agent was restarted meanwhile. A job that
    asks again later says `since`, when it first asked (seconds since 1970), and for how long after a timeout its place
    in the group's queue is to be kept: `keep`, in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_lost: str = "continue",
        agent: str | os.PathLike[str] | None = None,
        since: float | None = None,
        keep: float = 0.0,
        purpose: str | None = None,
        **options: Any,
    ) -> None:
        if on_lost not in ("continue", "cancel"):
            raise ConfigError(f"on_lost={on_lost!r}: an agent's client knows 'continue' and 'cancel'.")
        if options:
            refuse_what_no_agent_can_be_told(options)
        super().__init__()
        self.name = name
        self._timeout = limit_of(timeout, None)
        self._on_lost = on_lost
        self._path = None if agent is None else os.fspath(agent)
        self._since_s = since
        self._keep_s = keep
        self._purpose = program() if purpose is None else purpose
        self._options = options
        self._tasks: TaskMutex | None = None  # once a program that runs a loop uses it

    # --- threads ----------------------------------------------------------------------------------------------------

    def hold(self, timeout: float | Unset | None = UNSET) -> EitherHolding:
        """`with mutex.hold(timeout=30) as hold`, or `async with`. Not given: as the mutex is set."""
        return EitherHolding(self, timeout)

    def acquire(self, timeout: float | Unset | None = UNSET) -> Hold:
        """A hold without a `with`: it lasts until its `release()`, by whichever thread.

        `AcquireTimeout`; `NoAgent` where none is there; `Isolated`; `ConfigError`.
        """
        talk = Talk(self, limit_of(timeout, self._timeout))
        link = self._first_call(talk)
        try:
            while not talk.is_settled():
                link = self._listen(talk, link)
        except BaseException:
            link.close()
            raise
        if talk.error is not None:
            link.close()
            raise talk.error
        return Hold(talk, link)

    def look(self) -> MutexSeen:
        """Who holds it, who waits and since when, in the whole group, as the agent learns by asking."""
        from softmutex.seen import seen_in  # a program that only holds does without

        return seen_in(self._ask("seen", "look"))

    def evict(self, reason: str) -> int:
        """Takes it from whoever holds it, as `softmutex.SoftMutex.evict` does. How many holds were ended."""
        return int(self._ask("evicted", "evict", reason=reason)["holds"])

    def _ask(self, answer: str, kind: str, **values: str) -> Message:
        said = place.ask_any(self._where(), kind, name=self.name, **values)
        if said.get("is") != answer:
            raise SoftMutexError(f"the mutex {self.name!r}: {said.get('why', said)}")
        return said

    def _where(self) -> list[str]:
        paths = [self._path] if self._path else place.paths_of()
        if not paths:
            raise NoAgent("SOFTMUTEX_AGENT=off: no agent is to be asked. Unset it, or give agent=PATH.")
        return paths

    def _call(self, talk: Talk) -> socket.socket:
        link = place.call_any(self._where(), talk.want())
        _links.add(link)
        return link

    def _first_call(self, talk: Talk) -> socket.socket:
        while True:
            try:
                return self._call(talk)
            except NoAgent:
                if not self._may_come_back(talk):
                    raise
                time.sleep(CALL_EVERY_S)

    def _may_come_back(self, talk: Talk) -> bool:
        """Whether an agent was killed just now, and another one is to be waited for."""
        is_patient = talk.timeout_s is None or talk.timeout_s > CALL_PATIENCE_S
        return is_patient and place.was_there_lately(self._where()) and talk.may_call_again(talk.began_at)

    def _listen(self, talk: Talk, link: socket.socket) -> socket.socket:
        """The link to go on with: another one after the agent hung up."""
        with suppress(OSError, NotALink):
            chunk = link.recv(65536)
            if chunk:
                link.sendall(talk.feed(chunk))
                return link
        link.close()
        since = time.monotonic()
        while True:
            try:
                return self._call(talk)
            except NoAgent:
                if not talk.may_call_again(since):
                    if talk.error is None:
                        raise
                    return link
                time.sleep(CALL_EVERY_S)

    # --- asyncio ----------------------------------------------------------------------------------------------------

    def _for_tasks(self) -> TaskMutex:
        if self._tasks is None:
            from softmutex.client.on_loop import TaskMutex

            self._tasks = TaskMutex(self)
        return self._tasks

    async def __aenter__(self) -> AsyncHold:
        return await self._for_tasks().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._for_tasks().__aexit__(kind, error, traceback)


class EitherHolding(ThreadHolding[Hold]):
    """`with mutex.hold(timeout=30)`, or `async with`: acquires when it is entered. Each one is for one use."""

    def __init__(self, mutex: SoftMutex, timeout: float | Unset | None) -> None:
        super().__init__(mutex, timeout)
        self._tasks = mutex._for_tasks
        self._limit = timeout
        self._of_task: TaskHolding[AsyncHold] | None = None

    async def __aenter__(self) -> AsyncHold:
        self._of_task = self._tasks().hold(self._limit)
        return await self._of_task.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._of_task is not None:
            await self._of_task.__aexit__(kind, error, traceback)


def refuse_what_no_agent_can_be_told(options: Mapping[str, Any]) -> None:
    from softmutex.runtime.options import BY_JOB  # a program that gives no options need not know them

    known = {"on_overrun", "place", *(name for name in BY_JOB if "." not in name)}
    for option in options:
        if option not in known:
            raise ConfigError(f"{option!r} is no option of an agent's client (there are {', '.join(sorted(known))}).")


def _close_in_child() -> None:
    """A forked child holds nothing, and must not keep alive what its parent holds: the links are its parent's."""
    for link in list(_links):
        link.close()


_links: weakref.WeakSet[socket.socket] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_child)
