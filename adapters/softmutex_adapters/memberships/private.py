"""Files that only their user can have written: directories that are refused when they are not ours, and a shared key.

The naive way, `os.makedirs("/tmp/name-of-mine", exist_ok=True)`, takes whatever is there: a directory of somebody else,
who then reads the key, or a symbolic link to anywhere. So each directory is opened without following a link, looked at
by its descriptor, and only used through that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

from softmutex.ports import CannotOpen

KEY_BYTES = 32
PLACE_OF_YOURS = "or choose another place: local://name?directory=/a/path/of/yours"


def open_private(name: str, shown: str, within: int | None = None) -> int:
    """A descriptor of the directory `name` (in that of `within`), made if need be. `shown` is its path, for errors."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=within)
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except OSError as error:
        raise CannotOpen(
            f"{shown} cannot be made or entered as a directory of your own ({error.strerror}). "
            f"Remove what is in the way, {PLACE_OF_YOURS}"
        ) from error
    try:
        check_owner(os.fstat(directory), shown)
    except BaseException:
        os.close(directory)
        raise
    return directory


def check_owner(found: os.stat_result, shown: str) -> None:
    if found.st_uid != os.geteuid():
        raise CannotOpen(
            f"{shown} belongs to user {found.st_uid}, not to you ({os.geteuid()}): somebody else may have put it there."
            f" Have it removed, {PLACE_OF_YOURS}"
        )
    if found.st_mode & 0o077:
        raise CannotOpen(
            f"{shown} can be read or written by others (mode {stat.S_IMODE(found.st_mode):04o}). If you trust what "
            f"is in it: chmod go= {shown}; otherwise remove it, {PLACE_OF_YOURS}"
        )


def write_whole(directory: int, name: str, content: bytes) -> None:
    """Writes aside and renames: a reader sees all of it or nothing."""
    aside = f".{name}"
    try:
        write_new(directory, aside, content)
        os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        remove(directory, aside)
        raise


def write_new(directory: int, name: str, content: bytes) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    with os.fdopen(file, "wb") as writer:
        writer.write(content)


def read_whole(directory: int, name: str, limit: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with os.fdopen(file, "rb") as reader:
        return reader.read(limit)


def remove(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def shared_key(directory: int, shown: str) -> bytes:
    """The key in this directory; the first one who asks makes it, and of several at once only one does."""
    with contextlib.suppress(FileExistsError):
        if "key" not in os.listdir(directory):
            offer_key(directory, secrets.token_bytes(KEY_BYTES))
    check_owner(os.stat("key", dir_fd=directory, follow_symlinks=False), f"{shown}/key")
    try:
        key = read_whole(directory, "key", KEY_BYTES + 1)
    except OSError as error:  # above all a symbolic link
        raise CannotOpen(f"{shown}/key cannot be read ({error.strerror}). Remove it when no member runs.") from error
    if len(key) != KEY_BYTES:
        raise CannotOpen(f"{shown}/key holds {len(key)} bytes, a key has {KEY_BYTES}. Remove it when no member runs.")
    return key


def offer_key(directory: int, key: bytes) -> None:
    """Makes `key` the shared one, unless there is one: FileExistsError."""
    aside = f".key-{secrets.token_hex(8)}"
    try:
        write_new(directory, aside, key)
        os.link(aside, "key", src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        remove(directory, aside)
