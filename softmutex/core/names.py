"""What a mutex may be called, and how names are shown.

A name is whatever a member says: written as it is, its escape sequences would be the terminal's of whoever looks.
"""

from __future__ import annotations

from softmutex.core.errors import ConfigError

NAME_MAX_BYTES = 64


def check_name(name: object) -> str:
    try:
        fits = isinstance(name, str) and 0 < len(name.encode()) <= NAME_MAX_BYTES
    except UnicodeEncodeError:  # half of a pair of surrogates, as JSON may have it
        fits = False
    if not (isinstance(name, str) and fits):
        raise ConfigError(f"a mutex is named by a text of 1 to {NAME_MAX_BYTES} bytes of UTF-8, not {name!r:.100}.")
    return name


def printable(line: str) -> str:
    """One line to be shown to people: what is no character to be seen (escapes, line ends, marks that turn the
    direction of writing) is written as in a literal of Python."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
