"""Reads adapter URLs: `scheme://place?option=value`. For every adapter, also those of third parties.

What it decides: an option that nobody asked for is an error that names the nearest right one. The naive way,
`options.get("recieve_buffer")`, runs with the default and says nothing, and two members of one group then differ
unnoticed. So an adapter takes its options one by one, and `finish` looks at what is left over:

    url = Url("udp://0.0.0.0:9431?advertise=ftp1.example:9431")
    host, port = url.host_and_port(default_port=0)
    advertise = url.text("advertise")
    url.finish()
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from softmutex.core.errors import ConfigError
from softmutex.values import FALSE_WORDS, TRUE_WORDS


def without_secrets(url: str) -> str:
    """As it may be shown: a password behind a user's name, and one that is an option, is left out."""
    before, mark, query = url.partition("?")
    login, at, place = before.rpartition("@")
    scheme, separator, login = login.partition("://" if "://" in login else ":")
    user, colon, _ = login.partition(":")
    before = f"{scheme}{separator}{user}{colon and ':***'}{at}{place}"
    return before + mark + re.sub(r"\b(password|token|secret)=[^&]*", r"\1=***", query)


class Url:
    """`scheme`, `place` (all between `://` and `?`, as written) and the options, each to be taken once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = without_secrets(url)
        self.scheme, separator, rest = url.partition("://")
        if not separator or not self.scheme:
            raise ConfigError(f"{self.shown!r} is not an adapter URL: it wants the form scheme://place?option=value.")
        self.place, _, query = rest.partition("?")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        except ValueError:
            raise ConfigError(f"{self.shown!r}: the options after '?' want the form name=value&name=value.") from None
        self._left = dict(pairs)
        self._taken: list[str] = []
        if len(self._left) != len(pairs):
            raise ConfigError(f"{self.shown!r}: an option stands there twice. Keep the one that you mean.")

    def host_and_port(self, *, default_host: str = "127.0.0.1", default_port: int = 0) -> tuple[str, int]:
        """The place as `host:port`, either of which may be missing. A path behind it is an error."""
        place = unquote(self.place.removesuffix("/"))
        if "/" in place or "@" in place:
            self.refuse(f"{self.place!r} is not host:port")
        try:
            return split_address(place, default_host=default_host, default_port=default_port)
        except ValueError as error:
            self.refuse(str(error))

    def text(self, name: str, default: str | None = None) -> str | None:
        self._taken.append(name)
        return self._left.pop(name, default)

    def number(self, name: str, default: float, *, low: float = 0.0, high: float = float("inf")) -> float:
        written = self.text(name)
        if written is None:
            return default
        try:
            value = float(written)
        except ValueError:
            self.refuse(f"{name}={written} is not a number")
        if not low <= value <= high:
            self.refuse(f"{name}={written} is not between {low:g} and {high:g}")
        return value

    def integer(self, name: str, default: int, *, low: int = 0, high: int = 2**31 - 1) -> int:
        value = self.number(name, default, low=low, high=high)
        if value != int(value):
            self.refuse(f"{name}={value:g} is not a whole number")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        written = self.text(name)
        if written is None:
            return default
        if written.lower() not in TRUE_WORDS | FALSE_WORDS:
            self.refuse(f"{name}={written} is neither true nor false")
        return written.lower() in TRUE_WORDS

    def finish(self) -> None:
        """To be called once all known options were taken: whatever is left is a mistake."""
        if not self._left:
            return
        unknown = next(iter(self._left))
        import difflib  # slow to import

        near = difflib.get_close_matches(unknown, self._taken, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self._taken)) or "none"
        raise ConfigError(
            f"{self.shown!r}: there is no option {unknown!r}.{hint} Options of {self.scheme}://: {known}."
        )

    def refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"{self.shown!r}: {why}.")


def split_address(address: str, *, default_host: str = "", default_port: int | None = None) -> tuple[str, int]:
    """`host:port` or `[v6]:port` in parts; ValueError where it is neither. Without a default, both must be there."""
    if address.startswith("["):
        host, bracket, tail = address[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ValueError(f"{address!r} is not [IPv6]:port")
        port = tail[1:]
    else:
        host, _, port = address.partition(":")
        if ":" in port:
            raise ValueError(f"{address!r} is not host:port (an IPv6 address goes into brackets: [{address}]:9431)")
    host = host or default_host
    if not host:
        raise ValueError(f"{address!r} names no host")
    if not port and default_port is not None:
        return host, default_port
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{address!r} names no port between 0 and 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(url: str) -> str | None:
    """None where there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".") or None
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this host is reached under it, as far as its spelling tells."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
