"""`softmutex ban`: shuts a member out, at the registry that all of them listen to; within a second nobody hears it.

    softmutex ban WHO [--why TEXT]     WHO: an identity's name or public key, or a listed node's id or name
    softmutex ban --lift WHO           pardons; an identity has to be enrolled again
    softmutex ban --list               who is banned, and why

A public key that begins with a dash: softmutex ban -- KEY, softmutex ban --lift=KEY.

An identity that is banned loses its enrolment, so that its host comes back only when it is invited again. Who has the
group's key and means harm still can waste the others' time: change the key, too (`softmutex key`).
"""

from __future__ import annotations

import argparse
import re
from urllib.parse import quote

from softmutex.core.errors import ConfigError
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.operating import add_registry_flags, ask, registry_of, say, settings_of, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "softmutex ban WHO [--why TEXT] | --lift WHO | --list"
    parser.add_argument("who", nargs="?", metavar="WHO", help="a name, a public key, or the id of a node")
    parser.add_argument("--why", default="", metavar="TEXT", help="what all who look are told")
    parser.add_argument("--lift", metavar="WHO", help="let it in again")
    parser.add_argument("--list", action="store_true", help="who is banned, and why")
    add_registry_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    if sum(map(bool, (arguments.who, arguments.lift, arguments.list))) != 1:
        raise ConfigError("say whom: softmutex ban WHO, --lift WHO, or --list.")
    registry = registry_of(arguments, settings_of(arguments))

    async def work(registry: RegistryMembership) -> int:
        if arguments.list:
            return await show(registry)
        if arguments.lift:
            who = await find(registry, arguments.lift)
            await registry.administer("DELETE", f"banned/{quote(who)}")
            say(f"{arguments.lift} is pardoned.")
        else:
            who = await find(registry, arguments.who)
            await registry.administer("PUT", f"banned/{quote(who)}", {"why": arguments.why})
            say(f"{arguments.who} is banned ({who}): all members ignore it from now on.")
        return 0

    return ask("ban", registry, work)


async def show(registry: RegistryMembership) -> int:
    banned = (await registry.administer("GET", "banned"))["banned"]
    if banned:
        table([(one["who"], one["why"]) for one in banned])
    else:
        say("nobody is banned.")
    return 0


async def find(registry: RegistryMembership, who: str) -> str:
    """What a ban names: an id or a public key."""
    if re.fullmatch(wire.WHO, who):
        return who
    known = await registry.administer("GET", "identities")
    found: set[str] = {one["public_key"] for one in known["enrolled"] if one["name"] == who}
    if not found:
        listed = await registry.watch()
        found = {f"{member.id:016x}" for member in listed if member.name == who}
    if len(found) != 1:
        how_many = "nobody" if not found else f"{len(found)} of them"
        raise ConfigError(
            f"{how_many} in the group {registry.group!r} is called {who!r}. Give the public key (softmutex identity "
            "list), or the id (softmutex status --json)."
        )
    return found.pop()
