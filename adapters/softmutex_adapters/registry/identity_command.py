"""`softmutex identity`: who a member is, and who may be certified.

on a member's host
    softmutex identity enrol TOKEN             makes its key, if it has none, and enrols it; -: TOKEN is in the input
    softmutex identity show                    its public key

for the operator, with a token of the registry that may administer
    softmutex identity invite NAME [--for 1d]  a one-time token, good for one key, which is called NAME from then on
    softmutex identity allow KEY NAME          enrols a key that was shown to you some other way
    softmutex identity strike WHO              no more certificates; the one that it has ends within a day
    softmutex identity list                    who is enrolled, and who is invited

The key lies in the file that `identity` is set to (SOFTMUTEX_IDENTITY, or --identity FILE), and never leaves the host.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from softmutex.core.errors import ConfigError
from softmutex.runtime import keyfile
from softmutex.runtime.config import Settings
from softmutex.runtime.identity import proof_text, read_certificate
from softmutex.runtime.sealing import read_keys
from softmutex.values import duration_s
from softmutex_adapters.memberships.registry import RegistryMembership
from softmutex_adapters.registry import wire
from softmutex_adapters.registry.enrolment import FOR_MAX_S, INVITATION, PUBLIC
from softmutex_adapters.registry.operating import add_registry_flags, ask, registry_of, say, settings_of, table

FOR = "1d"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="enrol | show | invite | allow | strike | list")

    def add(name: str, says: str, *, admin: bool) -> argparse.ArgumentParser:
        part = parts.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")
        add_registry_flags(part, admin=admin)
        return part

    enrol = add("enrol", "make this host's key, if it has none, and enrol it with a one-time token", admin=False)
    enrol.add_argument(
        "token", metavar="TOKEN", help="as `softmutex identity invite` made it; - reads it from the input"
    )
    show = add("show", "the public key of this host", admin=False)
    for part in (enrol, show):
        part.add_argument("--identity", metavar="FILE", help="the file of the key; else as configured")
    invite = add("invite", "make a one-time token", admin=True)
    invite.add_argument("name", metavar="NAME", help="what it is called that uses it")
    invite.add_argument("--for", dest="for_s", default=FOR, metavar=FOR, help=f"how long it is good; default {FOR}")
    allow = add("allow", "enrol a key", admin=True)
    allow.add_argument("key", metavar="KEY", help="as `softmutex identity show` says it there")
    allow.add_argument("name", metavar="NAME", help="what it is called")
    strike = add("strike", "certify it no more", admin=True)
    strike.add_argument("who", metavar="WHO", help="its name or its public key")
    add("list", "who is enrolled, and who is invited", admin=True)


def main(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if arguments.what == "show":
        say(public_of(secret_of(own_file(arguments, settings))))
        return 0
    work = {"enrol": enrol, "invite": invite, "allow": allow, "strike": strike, "list": show_all}[arguments.what]
    return ask("identity", registry_of(arguments, settings), lambda registry: work(registry, arguments, settings))


# --- on a member's host -----------------------------------------------------------------------------------------------


def own_file(arguments: argparse.Namespace, settings: Settings) -> Path:
    file = Path(arguments.identity) if arguments.identity else settings["identity"]
    if file is None:
        raise ConfigError("which file? Give --identity FILE, or SOFTMUTEX_IDENTITY as the members have it.")
    return Path(file)


def secret_of(file: Path) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(read_keys(file)[0])


def can_be_given_to_a_command(secret: bytes) -> bool:
    """One public key of 64 begins as a flag does."""
    return not public_of(Ed25519PrivateKey.from_private_bytes(secret)).startswith("-")


def public_of(secret: Ed25519PrivateKey) -> str:
    return wire.to_text(secret.public_key().public_bytes_raw())


async def enrol(registry: RegistryMembership, arguments: argparse.Namespace, settings: Settings) -> int:
    token = await asyncio.to_thread(sys.stdin.readline) if arguments.token == "-" else arguments.token
    if not INVITATION.fullmatch(token.strip()):
        raise ConfigError("that is no one-time token. Ask the operator for one: softmutex identity invite NAME.")
    file = own_file(arguments, settings)
    if not file.exists():
        keyfile.make(file, fits=can_be_given_to_a_command)
    secret = secret_of(file)
    public = secret.public_key().public_bytes_raw()
    name = settings["name"] or "member"
    proof = secret.sign(proof_text(registry.group, name, public))
    raw = await registry.certify(name, public, proof, token.strip())
    keyfile.replace(file.with_name(file.name + ".certificate"), raw)
    say(f"{read_certificate(raw).name} is enrolled in {registry.group} ({public_of(secret)}); its key is in {file}.")
    return 0


# --- for the operator -------------------------------------------------------------------------------------------------


async def invite(registry: RegistryMembership, arguments: argparse.Namespace, settings: Settings) -> int:
    try:
        for_s = duration_s(arguments.for_s)
    except ValueError as error:
        raise ConfigError(f"--for {arguments.for_s}: {error}.") from None
    if not 1 <= for_s <= FOR_MAX_S:
        raise ConfigError(f"--for {arguments.for_s}: between one second and {FOR_MAX_S // 86_400} days.")
    made = await registry.administer("POST", "invitations", {"name": arguments.name, "for_s": for_s})
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(made["not_after"]))
    say(made["invitation"])
    sys.stderr.write(f"good once, until {until}. There: softmutex identity enrol TOKEN\n")
    return 0


async def allow(registry: RegistryMembership, arguments: argparse.Namespace, settings: Settings) -> int:
    if not PUBLIC.fullmatch(arguments.key):
        raise ConfigError(f"{arguments.key} is no public key of 43 characters. There: softmutex identity show.")
    await registry.administer("PUT", f"identities/{arguments.key}", {"name": arguments.name})
    say(f"{arguments.name} is enrolled in {registry.group} ({arguments.key}).")
    return 0


async def strike(registry: RegistryMembership, arguments: argparse.Namespace, settings: Settings) -> int:
    known = await registry.administer("GET", "identities")
    keys = [one["public_key"] for one in known["enrolled"] if arguments.who in (one["name"], one["public_key"])]
    marks = [one["mark"] for one in known["invited"] if arguments.who in (one["name"], one["mark"])]
    if not keys and not marks:
        raise ConfigError(
            f"nobody in the group {registry.group!r} is called {arguments.who!r}: softmutex identity list."
        )
    for key in keys:
        await registry.administer("DELETE", f"identities/{key}")
        say(f"{arguments.who} ({key}) is struck off: it is certified no more.")
    for mark in marks:
        await registry.administer("DELETE", f"invitations/{mark}")
        say(f"the invitation of {arguments.who} ({mark}) is withdrawn.")
    return 0


async def show_all(registry: RegistryMembership, arguments: argparse.Namespace, settings: Settings) -> int:
    known = await registry.administer("GET", "identities")
    rows = [(one["name"], one["public_key"], "enrolled") for one in known["enrolled"]]
    for one in known["invited"]:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["not_after"]))
        rows.append((one["name"], one["mark"], f"invited until {until}"))
    if rows:
        table(sorted(rows))
    else:
        say("nobody is enrolled or invited.")
    return 0
