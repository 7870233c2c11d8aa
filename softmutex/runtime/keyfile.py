"""The file that holds the group's keys: one a line, the first one seals, all of them open. Read, changed, followed.

    on every host, in three rounds:      install new             use new                retire old
    the file                     old ---------------> old, new -----------> new, old ---------------> new
    a running node         opens old           opens both; old seals      new seals            opens new; 5 s later
                                                                                               the old one no more

What it decides: keys are changed by files alone, while everybody works. The naive way, a signal to each process, takes
the signal away from the application, misses who is just starting, and cannot reach who runs as another user.
So a running node looks at its file every LOOK_S, and at once when a frame comes that is sealed with a key which it does
not have: between hosts, rounds may follow each other without a pause.

K1  A file is whole or it is not there: a change is written beside it, to disk, and renamed over it. Its mode is 0600.
K2  A file that cannot be read, holds no key, or two of one id, changes nothing: the node goes on with the keys that it
    has, and tells.
K3  A retired key still opens for GRACE_S what was on its way, and what hosts seal that have not looked again yet.
K4  Which key seals is decided by the file alone; the key in use, or the only one, is not retired.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hmac
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.events import SECOND, from_seconds
from softmutex.runtime.clock import Clock
from softmutex.runtime.config import Settings
from softmutex.runtime.sealing import KEY_SIZE, KeyRing, Sealer, key_id, parse_key, read_keys
from softmutex.runtime.timers import Timers
from softmutex.saying import logger

log = logger("keys")

LOOK_S = 1.0
GRACE_S = 5.0
LOOKS_A_SECOND = 100  # so many at most are caused by strangers' frames
_LOOK, _GRACE = from_seconds(LOOK_S), from_seconds(GRACE_S)


class NodeForKeys(Protocol):
    """What is asked of the node. Nothing else of it is touched."""

    name: str
    settings: Settings
    now: Clock
    timers: Timers

    def warn(self, what: str, message: str, *, once: str = "") -> None: ...


class KeysInForce:
    """The keys of one running node: follows its file, where they come from one."""

    def __init__(self, node: NodeForKeys, seal: Sealer, keys: Sequence[bytes], path: Path | None) -> None:
        self._node, self._seal, self._path = node, seal, path
        self._keys = list(keys)
        self._retired: list[bytes] = []
        self._stamp = stamp_of(path)
        self._looks, self._looks_second = 0, 0
        if path is not None:
            self._look_later()

    @property
    def in_use(self) -> tuple[bytes, ...]:
        """The one that seals first, and all that open."""
        return (*self._keys, *self._retired)

    def serve(self, seal: Sealer) -> None:
        """The seal of another life."""
        self._seal = seal

    def prove(self, what: str) -> str:
        return _proof(self._keys[0], self._node.settings["group"], what)

    def is_proof(self, what: str, proof: str) -> bool:
        group = self._node.settings["group"]
        return any(hmac.compare_digest(_proof(key, group, what).encode(), proof.encode()) for key in self.in_use)

    def _look_later(self) -> None:
        self._node.timers.set("keys", self._node.now() + _LOOK, self._look_again, None)

    def _look_again(self, _: None) -> None:
        self.look()
        self._look_later()

    def unknown(self) -> bool:
        """A frame came that is sealed with a key which this node does not have. True: try again, there are others."""
        second = self._node.now() // SECOND
        if second != self._looks_second:
            self._looks, self._looks_second = 0, second
        self._looks += 1
        return self._looks <= LOOKS_A_SECOND and self.look()

    def look(self) -> bool:
        """Whether the file has changed, and with it the keys."""
        if self._path is None or (stamp := stamp_of(self._path)) == self._stamp:
            return False
        self._stamp = stamp  # as it was before it is read: a change in between is seen at the next look
        try:
            keys = read_keys(self._path, of_group=self._node.settings["key_group"])
            self.check(keys)
        except ConfigError as error:
            self._node.warn("keys", f"{error} Until then this node goes on with the keys that it has.", once=str(error))
            return False
        changed = list(keys) != self._keys
        self.change(keys)
        return changed

    def check(self, keys: Sequence[bytes]) -> None:
        """ConfigError where these cannot follow those in force: of two keys with one id only one could open (K2)."""
        KeyRing.of(*keys)
        new = {key_id(key): key for key in keys}
        for key in self._keys:
            if new.get(number := key_id(key), key) != key:
                raise ConfigError(
                    f"a new key shares the id {number} with one in use, so what the others seal with that could not be "
                    "opened meanwhile. Make the new one once more: softmutex key new FILE."
                )

    def change(self, keys: Sequence[bytes]) -> None:
        retired = [key for key in [*self._keys, *self._retired] if key not in keys]
        ids = {key_id(key) for key in keys}
        self._keys = list(keys)
        self._retired = [key for key in dict.fromkeys(retired) if key_id(key) not in ids]
        self._seal.rekey(KeyRing.of(*self._keys, *self._retired))
        if self._retired:
            self._node.timers.set("retired", self._node.now() + _GRACE, self._forget, None)
        opens = ", ".join(str(key_id(key)) for key in keys)
        log.info("%s: key %d seals from now on; there are: %s", self._node.name, key_id(keys[0]), opens)

    def _forget(self, _: None) -> None:
        self._retired = []
        self._seal.rekey(KeyRing.of(*self._keys))


def _proof(key: bytes, group: str, what: str) -> str:
    """Begins otherwise than all else that is made of this key."""
    return hmac.digest(key, f"softmutex proof\n{group}\n{what}".encode(), "sha256")[:16].hex()


def stamp_of(path: Path | None) -> tuple[int, ...]:
    """Another one where the file, what is in it or who may read it has changed."""
    if path is None:
        return ()
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


# --- changes, for `softmutex key` -------------------------------------------------------------------------------------


def make(path: Path, beside: Sequence[bytes] = (), fits: Callable[[bytes], bool] = lambda key: True) -> int:
    """A new file with one new key, whose id is none of those `beside`."""
    taken = {key_id(key) for key in beside}
    while key_id(key := secrets.token_bytes(KEY_SIZE)) in taken or not fits(key):
        pass
    with being_changed(path):
        if path.exists():
            raise ConfigError(f"{path} is there already. Name a file that is not: no key is ever overwritten.")
        write(path, [written(key)])
    return key_id(key)


def install(path: Path, source: Path) -> list[int]:
    """The keys of `source` that were new to the file. They open from now on, and do not seal."""
    added = read_keys(source)
    with being_changed(path):
        lines, keys = read_lines(path)
        new = [key for key in added if key not in keys]
        ring(path, *keys, *new)
        if new:
            write(path, [*lines, *map(written, new)])
    return [key_id(key) for key in new]


def use(path: Path, number: int) -> None:
    with being_changed(path):
        lines, keys = read_lines(path)
        at = line_of(path, lines, keys, number)
        write(path, [lines[at], *lines[:at], *lines[at + 1 :]])


def retire(path: Path, number: int) -> None:
    with being_changed(path):
        lines, keys = read_lines(path)
        at = line_of(path, lines, keys, number)
        if number == key_id(keys[0]):
            others = ", ".join(str(key_id(key)) for key in keys[1:])
            first = f"Use another one first ({others}), on every host." if others else "It is the only one."
            raise ConfigError(f"key {number} of {path} is the one that seals: it cannot be retired. {first}")
        write(path, lines[:at] + lines[at + 1 :])


def ring(path: Path, *keys: bytes) -> KeyRing:
    try:
        return KeyRing.of(*keys)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def line_of(path: Path, lines: Sequence[str], keys: Sequence[bytes], number: int) -> int:
    for key in keys:
        if key_id(key) == number:
            return next(at for at, line in enumerate(lines) if is_key(line) and parse_key(line, str(path)) == key)
    there = ", ".join(str(key_id(key)) for key in keys)
    raise ConfigError(f"{path} has no key {number} (there are: {there}). Look: softmutex key list.")


def read_lines(path: Path) -> tuple[list[str], tuple[bytes, ...]]:
    """As they are, comments too; a file of 32 bare bytes becomes one of text."""
    keys = read_keys(path, of_anybody=True)  # root looks after the files of services
    ring(path, *keys)
    content = path.read_bytes()
    return ([written(content)] if len(content) == KEY_SIZE else content.decode("ascii").splitlines()), keys


def is_key(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def written(key: bytes) -> str:
    return base64.b64encode(key).decode()


@contextlib.contextmanager
def being_changed(path: Path) -> Iterator[None]:
    """One change of a file at a time; what goes wrong with files is told with its remedy."""
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"the directory of {path} cannot be used ({error.strerror}). Make it, or name another."
        ) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
        os.fsync(folder)
    except SoftMutexError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be changed ({error.strerror}); it is as it was. Check who may write there."
        ) from None
    finally:
        os.close(folder)


def write(path: Path, lines: Sequence[str]) -> None:
    replace(path, ("\n".join(lines) + "\n").encode("ascii"))


def replace(path: Path, content: bytes) -> None:
    """K1. Through symbolic links, and for the user whose file it is."""
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                owner = path.stat()
                if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
