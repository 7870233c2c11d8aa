"""The keys of registries that this user has met, as ssh keeps those of hosts: the first one is believed, no other.

    ~/.config/softmutex/known-registries          HOST:PORT KEY, a line each

What it decides: whoever is on the way later cannot speak for a registry that was met before. `public_key=` is better,
since it is right the first time, too. Where nothing can be kept, the first key stands for the life of the member.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from softmutex.core.errors import ConfigError
from softmutex.files import read_secret
from softmutex.saying import logger
from softmutex_adapters.registry import wire

log = logger("registry")
FILE_MAX = 1 << 20


class Pins:
    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> Self:
        try:
            return cls(Path.home() / ".config" / "softmutex" / "known-registries")
        except RuntimeError:  # no home
            return cls(None)

    def known(self, bases: Iterable[str]) -> str | None:
        """One key is that of all registries of a URL."""
        wanted = {place_of(base) for base in bases}
        return next((public for place, public in self._lines() if place in wanted), None)

    def _lines(self) -> Iterator[tuple[str, str]]:
        if self.path is None or not os.path.exists(self.path):
            return
        content = read_secret(self.path, "file of known registries", most=FILE_MAX)
        for line in content.decode("ascii", "replace").splitlines():
            words = line.split()
            with contextlib.suppress(ValueError, IndexError):
                yield words[0], wire.to_text(wire.from_text(words[1], 32))

    def learn(self, base: str, public: str) -> None:
        try:
            if self.path is None:
                raise OSError("this user has no home")
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            try:
                os.write(descriptor, f"{place_of(base)} {public}\n".encode())  # at once, so that lines stay whole
            finally:
                os.close(descriptor)
        except (OSError, ConfigError) as error:
            log.info("the key of %s cannot be kept (%s): it is believed until this process ends", base, error)


def place_of(base: str) -> str:
    return base.partition("://")[2]
