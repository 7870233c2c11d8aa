"""Files that others must not have read or written: keys, tokens, passwords, settings that are found by their place.

What it decides: a secret is taken from a file only where nobody but its user, and root, can have put it there or can
look. The naive way, `open(path).read()`, takes whatever lies in a directory that everybody writes to: a key that a
stranger has put there is no secret, and least of all for root, whom no permission stops. What is checked is what is
read: the descriptor, not the name.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from softmutex.core.errors import ConfigError

SECRET_MAX = 65_536


def read_secret(
    path: Path | str,
    what: str,
    remedy: str = "",
    *,
    most: int = SECRET_MAX,
    of_anybody: bool = False,
    of_group: str | None = None,
) -> bytes:
    """What is in the file, cut off after `most` + 1 bytes. `what` it is, for errors: "key file".

    `of_anybody`: for root, who looks after files of others. `of_group`: its members may read the file, too.
    """
    try:
        # A FIFO must not make us wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status, content = os.fstat(descriptor), os.read(descriptor, most + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read ({error.strerror}).{remedy and ' '}{remedy}") from None
    for_group = stat.S_IRGRP if of_group is not None and status.st_gid == number_of(of_group) else 0
    if status.st_mode & 0o077 & ~for_group:
        raise ConfigError(
            f"the {what} {path} has mode {stat.S_IMODE(status.st_mode):04o}: others on this host can use it. "
            f"chmod 600 {path}, and change what is in it if strangers may have read that."
        )
    me = os.geteuid()
    if status.st_uid not in (me, 0) and not (of_anybody and me == 0):
        raise ConfigError(
            f"the {what} {path} belongs to user {status.st_uid}, not to you ({me}): somebody else may have put it "
            f"there. If you trust what is in it: chown {me} {path}."
        )
    return content


def read_found(path: Path, most: int) -> bytes | None:
    """What is in a file that nobody has named, cut off after `most` + 1 bytes; None where there is none. Whoever puts a
    pipe there, or a link to a file without an end, keeps nobody waiting and takes no memory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read(most + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def number_of(group: str) -> int:
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"there is no group of users {group!r} on this host.") from None


def whose(path: Path) -> str:
    """Why what lies at `path` is not to be believed just because it is there; "" where it may be. Others than this user
    and root can have written it, or can put something else in its place; or a link to something of this user's."""
    mine = (os.geteuid(), 0)
    if (link := os.lstat(path)).st_uid not in mine:
        return f"{path} belongs to user {link.st_uid}, and not to you ({mine[0]})"
    for place, found in ((path, os.stat(path)), (path.parent, os.stat(path.parent))):
        if found.st_uid not in mine:
            return f"{place} belongs to user {found.st_uid}, and not to you ({mine[0]})"
        is_shared = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in groups())
        if is_shared and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            return f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def groups() -> tuple[int, int]:
    """Whose members may write what this user believes: its own group, as where each user has one, and root's."""
    return (os.getegid(), 0)
