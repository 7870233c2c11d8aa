"""Where agents listen, and who may talk to them.

    /tmp/softmutex-<uid>/agent.sock      of one user, and for nobody else, not even root: the directory 0700 and ours,
                                         the socket 0600; or where SOFTMUTEX_AGENT says;
                                         `softmutex.meeting` tells where, if another user has taken that name
    /run/softmutex/agent.sock            of the host, for all its users; asked where a user has none of its own

What it decides: the place depends on the user alone, whatever XDG_RUNTIME_DIR and TMPDIR say, so that jobs of cron,
services and shells find the same agent. Permissions are not enough: somebody else may have made that directory first.
So each side asks the kernel who the other one is. A user's agent talks to that user; a job talks to an agent of its
own user, and to one that listens where only root could have let it: no other user can be the host's agent.

A lock says which agent is alive: a socket file that a killed one left behind is replaced, a living one's never.
A living one touches its socket now and then. So who finds nobody behind a socket that was touched lately knows that an
agent was killed a moment ago, and may wait for the next one: else newcomers, who begin alone, overtake those who wait.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from softmutex.agent.link import LINE_MAX, Message, pack, read
from softmutex.core.errors import SoftMutexError
from softmutex.meeting import meeting_place

VARIABLE = "SOFTMUTEX_AGENT"
OF_HOST = "/run/softmutex/agent.sock"
OFF = "off"
HANDSHAKE_S = 5.0  # an agent that does not answer for so long is stuck
BACKLOG = 1024
PATH_MAX_BYTES = 107

TOUCH_EVERY_S = 5.0
LATELY_S = 15.0

FIRST_INHERITED = 3  # systemd's first socket


class NoAgent(SoftMutexError, OSError):
    """No agent can be talked to there, or made there; the message names the remedy."""


class Elsewhere(SoftMutexError):
    """The agent is in another group than the one that is wanted."""


def path_of(environ: Mapping[str, str] = os.environ) -> str | None:
    """None where agents are not to be used."""
    said = environ.get(VARIABLE)
    return None if said == OFF else said or f"{meeting_place()}/agent.sock"


def paths_of(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Where a job asks, in that order: an agent of its own user is there on purpose. Never empty but for `off`."""
    path = path_of(environ)
    if path is None:
        return []
    if environ.get(VARIABLE) or not os.path.exists(OF_HOST):
        return [path]
    return [path, OF_HOST] if os.path.exists(path) else [OF_HOST]


def was_there_lately(paths: Sequence[str]) -> bool:
    """Whether an agent was killed at one of these places so short a time ago that another one may be on its way."""
    for path in paths:
        with suppress(OSError):
            if time.time() - os.stat(path).st_mtime < LATELY_S:
                return True
    return False


def call_any(paths: Sequence[str], want: Message) -> socket.socket:
    """A conversation with the first that takes the wish; else `Elsewhere` where one is there, or what was wrong with
    the last one."""
    errors: list[NoAgent | Elsewhere] = []
    for path in paths:
        try:
            return call(path, want)
        except (NoAgent, Elsewhere) as error:
            errors.append(error)
    raise next((error for error in errors if isinstance(error, Elsewhere)), errors[-1])


def ask_any(paths: Sequence[str], kind: str, **values: Any) -> Message:
    for path in paths[:-1]:
        with suppress(NoAgent):
            return ask(path, kind, **values)
    return ask(paths[-1], kind, **values)


def call(path: str, want: Message) -> socket.socket:
    """A conversation with the agent there, which has taken the wish. `NoAgent`, or `Elsewhere`."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(HANDSHAKE_S)
        link.connect(path)
        check_peer(link, path)
        link.sendall(pack("want", **want))
        answer = read_one(link)
        if answer.get("is") == "elsewhere":
            raise Elsewhere(f"the agent at {path} {answer.get('why')}")
        if answer.get("is") != "welcome":
            raise NoAgent(f"what listens at {path} is no agent of softmutex: it said {answer}")
        link.settimeout(None)
    except (OSError, ValueError) as error:
        link.close()
        if isinstance(error, NoAgent):
            raise
        raise NoAgent(f"no agent answers at {path} ({error}). Start one: softmutex agent") from error
    except BaseException:
        link.close()
        raise
    return link


def ask(path: str, kind: str, **values: Any) -> Message:
    """One question to the agent there, and its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.settimeout(HANDSHAKE_S)
            link.connect(path)
            check_peer(link, path)
            link.sendall(pack(kind, **values))
            return read_one(link)
        except NoAgent:
            raise
        except (OSError, ValueError) as error:
            raise NoAgent(f"no agent answers at {path} ({error}). Start one: softmutex agent") from error


def read_one(link: socket.socket) -> Message:
    """One line, and not a byte more: what follows is for whoever gets the link next."""
    line = b""
    while not line.endswith(b"\n"):
        byte = link.recv(1)
        if not byte or len(line) > LINE_MAX:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        line += byte
    return read(line)


def check_peer(link: socket.socket, path: str) -> None:
    uid = uid_of_peer(link)
    if uid not in (None, os.geteuid()) and not is_let_in_by_root(path, uid):
        raise NoAgent(
            f"who listens at {path} is user {uid}, not you ({os.geteuid()}): it is not asked. Remove what is there."
        )


def is_let_in_by_root(path: str, uid: int | None) -> bool:
    """Whether nobody but root and that user could have made a socket there: not in /tmp, nor below what others may
    write. A socket that systemd hands over is root's."""
    directory = os.path.dirname(os.path.abspath(path))
    while True:
        try:
            found = os.lstat(directory)
        except OSError:
            return False
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022 or found.st_uid not in (0, uid):
            return False
        if directory == "/":
            return True
        directory, uid = os.path.dirname(directory), 0  # above its own directory only root's


def uid_of_peer(link: socket.socket) -> int | None:
    """As the kernel knows it; None where this kernel does not say. There the permissions have to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


# --- the agent's side ------------------------------------------------------------------------------------------------


class AgentDoor:
    """The socket on which an agent listens, inherited from systemd or made. `of_host`: for all users."""

    def __init__(self, path: str, environ: Mapping[str, str] = os.environ, *, of_host: bool = False) -> None:
        if of_host and not hasattr(socket, "SO_PEERCRED"):
            raise NoAgent("this system does not say who calls (SO_PEERCRED), so users cannot be told apart.")
        self._of_host = of_host
        self._lock = -1
        self._made = ""
        self.comes_after_one_that_was_killed = False
        inherited = int(environ.get("LISTEN_FDS", "0")) if environ.get("LISTEN_PID") == str(os.getpid()) else 0
        self.socket = self._inherit(inherited) if inherited else self._make(path)
        self.path = str(self.socket.getsockname())
        self.socket.setblocking(False)

    def _inherit(self, count: int) -> socket.socket:
        found = socket.socket(fileno=FIRST_INHERITED)
        if count != 1 or found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM:
            raise NoAgent(f"{count} sockets were handed over; exactly one ListenStream= with a path is wanted.")
        os.set_inheritable(FIRST_INHERITED, False)
        return found

    def _make(self, path: str) -> socket.socket:
        if len(os.fsencode(path)) > PATH_MAX_BYTES:
            raise NoAgent(f"{path} is longer than a socket's path may be ({PATH_MAX_BYTES} bytes). Choose another one.")
        try:
            check_directory(os.path.dirname(path) or ".", self._of_host)
            self._lock = take_lock(f"{path}.lock")
            if os.path.lexists(path):
                self.comes_after_one_that_was_killed = True
                os.unlink(path)
            return self._bind(path)
        except NoAgent:
            raise
        except OSError as error:
            raise NoAgent(f"no agent can listen at {path} ({error}). Choose another place: --socket PATH") from error

    def _bind(self, path: str) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o111 if self._of_host else 0o177)
        try:
            listening.bind(path)
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(before)
        self._made = path
        listening.listen(BACKLOG)
        return listening

    def touch(self) -> None:
        if self._made:
            with suppress(OSError):
                os.utime(self._made)

    def close(self) -> None:
        """A socket that was inherited stays: who calls meanwhile is answered by the next agent."""
        if self._made:
            os.unlink(self._made)
            self._made = ""
        self.socket.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def check_directory(directory: str, of_host: bool = False) -> None:
    with suppress(FileExistsError):
        os.mkdir(directory, 0o700)
        if of_host:
            os.chmod(directory, 0o755)
    found = os.lstat(directory)
    if of_host:
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise NoAgent(
                f"{directory} must be a directory in which nobody but this user may write (mode 0755): it is of user "
                f"{found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}. Mend that, or choose another: --socket PATH"
            )
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise NoAgent(
            f"{directory} must be a directory of yours that others may not enter (mode 0700): it is of user "
            f"{found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}. Mend that, or choose another place: --socket PATH"
        )


def take_lock(path: str) -> int:
    import fcntl

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise NoAgent(f"an agent is there already: it holds {path}. One is enough; or choose another place.") from None
    return lock
