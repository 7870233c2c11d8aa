"""Where the processes of one user on one host meet: the directory of `local://` groups and of the agent's socket.

    /tmp/softmutex-<uid>                        where it is ours, or not there yet
    ~/.softmutex-<boot id of this host>         where another user has taken that name

What it decides: the place depends on nothing but user and host, so that jobs of cron, services and shells meet,
whatever their environment is. But the name is known to everybody, and in /tmp everybody may take it first: then the
processes of this user could not start at all. So there is a second place, where nobody else writes.

One that is there and ours goes before one that is not there: whoever took the name and gives it back later does not
part those who have met meanwhile.
"""

from __future__ import annotations

import os
import stat
import sys

TMP = "/tmp"
NAME_MAX = 64
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def meeting_place() -> str:
    first, second = f"{TMP}/softmutex-{os.geteuid()}", second_place()
    for place in (first, second):
        if place and is_ours(place):
            return place
    return first if not second or not os.path.lexists(first) else second


def program() -> str:
    """How people would call this process: the name of its program, without a word of its command line."""
    path = sys.argv[0] if sys.argv else ""
    directory, name = os.path.split(path)
    if name == "__main__.py":
        name = os.path.basename(directory)
    return name[:NAME_MAX] if name and not name.startswith("-") else "python"


def second_place() -> str:
    """Empty where this user has no home, or this host does not say who it is: homes are shared between hosts."""
    import pwd

    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
        with open(BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
    except (KeyError, OSError, UnicodeDecodeError):
        return ""
    return f"{home}/.softmutex-{boot[:8]}" if os.path.isdir(home) else ""


def is_ours(place: str) -> bool:
    try:
        found = os.lstat(place)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
