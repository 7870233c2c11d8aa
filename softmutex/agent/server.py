"""The agent: one node, and a session with each job that comes to its door.

    accept --a user it serves--> want --of this group--> a session --> the job's hold
              '--a stranger: hang up       '--elsewhere

When it is told to end, holders may finish within `leave_timeout` and are then told that their hold is lost; those who
wait are hung up on, and ask the next agent. When it is killed, the kernel hangs up on all of them.

Any program that has a loop and a node may open such a door for the jobs beside it: `serve(node, Door(path))`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from softmutex import ConfigError, Node, SoftMutexError
from softmutex.agent.link import NOT_ACQUIRED, USAGE, VERSION, Lines, Message, NotALink, pack
from softmutex.agent.place import TOUCH_EVERY_S, AgentDoor, uid_of_peer
from softmutex.agent.room import Rooms
from softmutex.agent.session import JobSession, JobWish
from softmutex.agent.users import WORDS_OF_A_WISH, Limits, TooMuch, User, Users
from softmutex.core.names import check_name
from softmutex.runtime.options import BY_JOB, SETTINGS, read_one
from softmutex.saying import logger
from softmutex.urls import without_secrets
from softmutex.values import text_or_nothing

log = logger("agent")

WISH_PATIENCE_S = 5.0
SESSIONS_MAX = 4096
KEEP_MOST_S = 300.0
SECONDS_MOST = 1e12  # since 1970, too
SETTLE_S = 0.5  # after one that was killed: those who waited there call again within a tenth, and are older
FIRST_WORDS = ("want", "look", "evict")


class Server:
    def __init__(self, node: Node, door: AgentDoor, limits: Limits | None = None) -> None:
        self._node = node
        self._users = Users(limits)
        self._door = door
        self._sessions: set[asyncio.Task[None]] = set()
        self._rooms = Rooms()
        self._closing = False
        self._begins_s = 0.0

    async def serve(self) -> None:
        """Until it is cancelled; then the node is still open, and `close` ends what goes on."""
        loop = asyncio.get_running_loop()
        if self._door.comes_after_one_that_was_killed:
            self._begins_s = loop.time() + SETTLE_S
        touching = loop.create_task(self._touch())
        self._sessions.add(touching)
        touching.add_done_callback(self._sessions.discard)
        while True:
            try:
                link, _ = await loop.sock_accept(self._door.socket)
            except OSError as error:  # too many open files: those who hold must be able to say that they are done
                log.warning("a job could not be let in: %s", error)
                await asyncio.sleep(0.1)
                continue
            user = self._users.find(uid_of_peer(link))
            if user is None or len(self._sessions) >= SESSIONS_MAX:
                link.close()
                continue
            if full := user.full():
                turn_away(link, full)
                continue
            user.jobs += 1
            session = loop.create_task(self._attend(link, user))
            self._sessions.add(session)
            session.add_done_callback(partial(self._is_over, user))

    async def _touch(self) -> None:
        while True:
            self._door.touch()
            await asyncio.sleep(TOUCH_EVERY_S)

    def _is_over(self, user: User, session: asyncio.Task[None]) -> None:
        user.jobs -= 1
        self._sessions.discard(session)

    async def close(self) -> None:
        """Hangs up on those who wait, gives holders time to finish, and closes the node."""
        self._closing = True
        self._door.close()
        self._rooms.close()
        await self._node.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    async def _attend(self, link: socket.socket, user: User) -> None:
        with link:
            link.setblocking(False)
            lines = Lines()
            try:
                async with asyncio.timeout(WISH_PATIENCE_S):
                    want = await read_wish(link, lines, user.reads_most)
                await user.say(WORDS_OF_A_WISH)
                if want["is"] != "want":
                    async with asyncio.timeout(WISH_PATIENCE_S):
                        await asyncio.get_running_loop().sock_sendall(link, await self._answer(want, user))
                    return
                wish = self._take(link, want, user)
            except (OSError, NotALink, TimeoutError) as error:
                log.debug("a job was not understood: %s", error)
                return
            if wish is not None:
                await asyncio.sleep(self._begins_s - asyncio.get_running_loop().time())
                session = JobSession(
                    *(link, wish, self._node),
                    lines=lines,
                    rooms=self._rooms,
                    is_closing=lambda: self._closing,
                    user=user,
                )
                try:
                    await session.attend()
                except Exception:
                    log.exception("a session went wrong; the agent goes on")

    def _take(self, link: socket.socket, want: Message, user: User) -> JobWish | None:
        version = want.get("version")
        if isinstance(version, int | float) and version > VERSION:
            why = f"this agent speaks version {VERSION} of its protocol, and {version} is wanted. Start a newer agent."
            link.send(pack("failed", code=USAGE, error="config", why=why))
            return None
        try:
            if difference := self._difference(table_of(want, "place")):
                link.send(pack("elsewhere", why=difference))
                return None
            link.send(pack("welcome", version=VERSION))
            wish = wish_of(want)
            self._name(wish.name, user)
            mine = self._node.settings().for_mutex(wish.name, {})
            return wish._replace(keywords=user.check(mine, wish.keywords), purpose=user.words_of(wish.purpose))
        except TooMuch as error:
            link.send(pack("failed", code=NOT_ACQUIRED, error="limit", why=str(error)))
        except (ConfigError, TypeError, ValueError) as error:
            link.send(pack("failed", code=USAGE, error="config", why=str(error)))
        return None

    def _name(self, name: str, user: User) -> None:
        check_name(name)
        if name not in self._node.running().mutexes:
            user.name_new()

    async def _answer(self, question: Message, user: User) -> bytes:
        try:
            self._name(name := str(question.get("name")), user)
            if question["is"] == "evict" and not user.may_evict:
                return pack("failed", code=USAGE, error="config", why=user.why_no_eviction())
            mutex = self._node.mutex(name)
            if question["is"] == "look":
                return pack("seen", **asdict(await mutex.look()))
            return pack("evicted", holds=await mutex.evict(str(question.get("reason"))))
        except TooMuch as error:
            return pack("failed", code=NOT_ACQUIRED, error="limit", why=str(error))
        except SoftMutexError as error:
            return pack("failed", code=USAGE, error="config", why=str(error))

    def _difference(self, place: Mapping[str, Any]) -> str:
        """In words, empty where the agent is in the group that the job named."""
        mine = self._node.settings()
        for name in ("group", "membership"):
            if name in place and place[name] != mine[name]:
                there, wanted = (without_secrets(str(one[name])) for one in (mine, place))
                return f"is in the {name} {there!r}, and {wanted!r} is wanted."
        return ""


def turn_away(link: socket.socket, why: str) -> None:
    """Says so to whoever listens."""
    with link, contextlib.suppress(OSError):
        link.setblocking(False)
        link.send(pack("failed", code=NOT_ACQUIRED, error="limit", why=why))


async def read_wish(link: socket.socket, lines: Lines, most: int) -> Message:
    loop = asyncio.get_running_loop()
    while True:
        chunk = await loop.sock_recv(link, most)
        if not chunk:
            raise ConnectionResetError("it hung up")
        if messages := lines.feed(chunk):
            if len(messages) > 1 or messages[0].get("is") not in FIRST_WORDS:
                raise NotALink(f"not a wish: {messages[0]}")
            return messages[0]


def wish_of(want: Message) -> JobWish:
    """`ConfigError`, `TypeError` and `ValueError` say what is wrong with it, whatever it is."""
    name, options, timeout = want.get("name"), table_of(want, "options"), want.get("timeout")
    if unknown := set(options) - BY_JOB:
        raise ConfigError(
            f"an agent cannot be told {', '.join(sorted(unknown))}. It knows {', '.join(sorted(BY_JOB))}."
        )
    read = {key: read_one(SETTINGS[key], value, "job") for key, value in options.items()}
    on_overrun = want.get("on_overrun") or "warn"
    if on_overrun not in ("warn", "cancel", "release"):
        raise ConfigError(f"on_overrun={on_overrun!r}: warn, cancel or release.")
    timeout_s = None if timeout is None else read_one(SETTINGS["timeout"], timeout, "job")
    trace = {str(key): str(value) for key, value in table_of(want, "trace").items()}
    purpose = want.get("purpose")
    return JobWish(
        str(name),
        read,
        timeout_s,
        seconds_of(want, "said"),
        on_overrun,
        trace,
        seconds_of(want, "since"),
        min(seconds_of(want, "keep") or 0.0, KEEP_MOST_S),
        None if purpose is None else text_or_nothing(str(purpose)),
        want.get("progress") is True,
    )


def table_of(want: Message, key: str) -> Mapping[str, Any]:
    value = want.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} is a table of names and values, not {value!r:.40}.")
    return value


def seconds_of(want: Message, key: str) -> float | None:
    """None where nothing is said, or what is no time: JSON of ours has numbers without an end, and none at all."""
    value = want.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) <= SECONDS_MOST else None


async def serve(node: Node, door: AgentDoor, limits: Limits | None = None) -> None:
    """Until it is cancelled. The node must be open; it is closed in the end. `limits`: of each user, for all users."""
    server = Server(node, door, limits)
    try:
        await server.serve()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.close()
