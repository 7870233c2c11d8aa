"""What `softmutex ban` and `softmutex identity` have in common: which registry is meant, and how it is asked."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import printable
from softmutex.runtime.config import Settings, add_to_query, resolve, with_places
from softmutex_adapters.memberships.registry import RegistryMembership

UNAVAILABLE = 69
T = TypeVar("T")


def add_registry_flags(parser: argparse.ArgumentParser, *, admin: bool = True) -> None:
    whose = "one that may administer" if admin else "the one that members have"
    parser.add_argument(
        "--authority",
        metavar="URL",
        help="registry+https://host:9430/GROUP; else the authority or membership configured",
    )
    parser.add_argument("--token-file", metavar="FILE", help=f"the file of a token: {whose}; else as in the URL")
    parser.add_argument("--config", metavar="FILE", help="the file of the configuration")


def settings_of(arguments: argparse.Namespace) -> Settings:
    return with_places(resolve({"authority": arguments.authority}, file=arguments.config))


def registry_of(arguments: argparse.Namespace, settings: Settings) -> RegistryMembership:
    url = settings["authority"] or settings["membership"]
    if not isinstance(url, str) or not url.startswith(("registry+http://", "registry+https://")):
        raise ConfigError("which registry? Give --authority registry+https://host:9430/GROUP, or configure it.")
    if arguments.token_file:
        url = add_to_query(url, "token_file", arguments.token_file)
    return RegistryMembership.from_url(url)


def ask(command: str, registry: RegistryMembership, work: Callable[[RegistryMembership], Awaitable[int]]) -> int:
    """What `work` returns; 69, and why, where no registry does what is asked."""

    async def and_close() -> int:
        try:
            return await work(registry)
        finally:
            await registry.aclose()

    try:
        return asyncio.run(and_close())
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        sys.stderr.write(printable(f"softmutex {command}: {error}") + "\n")
        return UNAVAILABLE


def say(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")


def table(rows: list[tuple[Any, ...]]) -> None:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
