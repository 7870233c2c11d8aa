"""What a mutex may be called."""

from __future__ import annotations

from softmutex.core.errors import ConfigError

NAME_MAX_BYTES = 64


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_MAX_BYTES:
        raise ConfigError(f"a mutex is named by a text of 1 to {NAME_MAX_BYTES} bytes of UTF-8, not {name!r:.100}.")
    return name
