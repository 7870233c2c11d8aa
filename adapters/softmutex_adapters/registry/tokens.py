"""Who may do what at a registry: tokens, each with a right, for one group or for all.

    the token file, a line each         [GROUP] [read | join | admin] TOKEN
        lab read R3xx...      sees the list and the page of the group `lab`
        lab J4yy...           joins it, too (`join` is meant where nothing is said)
        admin A5zz...         bans, certifies and pardons, too, and in every group

What it decides: looking, taking part and deciding about others are three rights. The naive way, one token for all of
it, is in the hands of every member, so that each may ban each other one, and of everybody who looks at the page.

A right includes those before it. All tokens are compared, each in constant time, or the time would tell of them.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum

from softmutex.core.errors import ConfigError
from softmutex.files import read_secret

TOKEN_MIN = 16
FILE_MAX = 1 << 20


class Right(IntEnum):
    NONE = 0
    READ = 1
    JOIN = 2
    ADMIN = 3


RIGHTS = {right.name.lower(): right for right in Right if right}
LINE = "[GROUP] [read | join | admin] TOKEN"


class Tokens:
    """Without any, everybody may everything."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._tokens: list[tuple[str, Right, bytes]] = []  # the group, or "" for all
        for line in lines:
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            *about, token = words
            right = RIGHTS[about.pop()] if about and about[-1] in RIGHTS else Right.JOIN
            if len(about) > 1:
                raise ConfigError(f"the token file has a line of {len(words)} words. Write {LINE}.")
            if len(token) < TOKEN_MIN:
                raise ConfigError(f"the token file has a token of under {TOKEN_MIN} characters: it could be guessed.")
            self._tokens.append((about[0] if about else "", right, token.encode()))

    @classmethod
    def from_file(cls, path: str) -> Tokens:
        content = read_secret(path, "token file", f"Write {LINE} in each line.", most=FILE_MAX)
        try:
            tokens = cls(content.decode().splitlines())
        except UnicodeDecodeError as error:
            raise ConfigError(f"the token file {path} cannot be read: {error}.") from None
        if not tokens:
            raise ConfigError(f"the token file {path} holds no token. Write {LINE} in each line.")
        return tokens

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def number(self, authorization: str) -> int:
        """Which of them this is, whatever it may do; 0 where it is none."""
        given = shown_in(authorization)
        return max(
            (number for number, one in enumerate(self._tokens, 1) if hmac.compare_digest(given, one[2])), default=0
        )

    def right(self, authorization: str, group: str) -> Right:
        """What whoever shows this may do in `group`; "" for all groups."""
        if not self._tokens:
            return Right.ADMIN
        given = shown_in(authorization)
        fits = [
            right
            for its_group, right, token in self._tokens
            if hmac.compare_digest(given, token) and (not its_group or its_group == group)
        ]
        return max(fits, default=Right.NONE)


def shown_in(authorization: str) -> bytes:
    kind, _, shown = authorization.partition(" ")
    return shown.strip().encode("utf-8", "surrogateescape") if kind.lower() == "bearer" else b""


def new_token() -> str:
    """It can be given to a command: none begins as a flag does, which one of 64 would."""
    while (token := secrets.token_urlsafe(24)).startswith("-"):
        pass
    return token


def make_file(path: str) -> dict[str, str] | None:
    """A new file with a token for each right, which are returned, to be told once. None where there is one already."""
    made = {name: new_token() for name in ("join", "read", "admin")}
    with suppress(FileExistsError):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise ConfigError(
                f"no token file can be made at {path} ({error.strerror}). Name one: --token-file FILE."
            ) from None
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{name} {token}\n" for name, token in made.items())
        return made
    return None
