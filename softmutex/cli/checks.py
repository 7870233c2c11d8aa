"""What `softmutex doctor` looks at: one function a question, each gives findings with a verdict and a remedy.

The naive way, one try around everything, tells of the first thing that is wrong only. Here a check that cannot be made
says so in its own line, and the others are made all the same.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from softmutex import plugins
from softmutex.cli.survey import SurveyAnswer
from softmutex.ports import CannotOpen, Closed, Transport, is_on_this_host
from softmutex.runtime.config import Settings, meets_nobody_else, places_of_files
from softmutex.runtime.options import SETTINGS
from softmutex.runtime.status import own_version
from softmutex.urls import split_address, without_secrets

ECHO_S = 1.0
CLOCK_S = 1.0  # clocks that differ by more deserve a word; the algorithms bear hours
LAG_S = 0.5
STRANGE = ("unknown_key", "forged", "not_sealed", "sealed", "version")  # frames that a node refused, by reason


class CheckVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: CheckVerdict
    says: str
    remedy: str = ""


def ok(check: str, says: str) -> Finding:
    return Finding(check, CheckVerdict.OK, says)


def warn(check: str, says: str, remedy: str) -> Finding:
    return Finding(check, CheckVerdict.WARN, says, remedy)


def fail(check: str, says: str, remedy: str = "") -> Finding:
    return Finding(check, CheckVerdict.FAIL, says, remedy)


# --- this installation -----------------------------------------------------------------------------------------------


def check_installation() -> Iterator[Finding]:
    yield ok("installation", f"softmutex {own_version()}, Python {sys.version.split()[0]}, {sys.platform}")
    for role in plugins.Role:
        broken = {}
        for name in plugins.installed(role):
            try:
                plugins.load(role, name)
            except Exception as error:  # whatever an adapter of anybody's raises when it is imported
                broken[name] = str(error)
        working = [name for name in plugins.installed(role) if name not in broken]
        yield ok("installation", f"{role.value}s: {', '.join(working) or 'none'}")
        for name, why in broken.items():
            yield warn("installation", f"{role.value} {name}: {why}", "Repair it, or uninstall what brings it.")


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield ok("settings", f"file: {settings.file or f'none of {looked_for()}'}")
    if why := meets_nobody_else(settings):
        says, _, remedy = why.partition(". ")
        yield warn("settings", says, remedy)
    for name in SETTINGS:
        yield ok("settings", f"{name} = {shown(settings, name)}  ({origin(settings, name)})")


def looked_for() -> str:
    return ", ".join(["SOFTMUTEX_CONFIG", *map(str, places_of_files(os.environ))])


def shown(settings: Settings, name: str) -> str:
    value = settings[name]
    return "(hidden)" if isinstance(value, bytes) else without_secrets(str(value))


def origin(settings: Settings, name: str) -> str:
    said = settings.origin(name)
    return "flag" if said == "keyword" else said


# --- this host -------------------------------------------------------------------------------------------------------


def check_key(settings: Settings, found: Sequence[bytes]) -> Iterator[Finding]:
    """With what frames are sealed. That only its owner can read a key was checked when it was read."""
    file = settings["key"] or settings["key_file"]
    more = f", {len(found)} keys, the first one seals" if len(found) > 1 else ""
    if found and file is not None:
        who = (
            f"only its owner and the group {settings['key_group']} can"
            if settings["key_group"]
            else "only its owner can"
        )
        yield ok("key", f"frames are sealed with {file}{more}, which {who} read")
    elif found:
        yield ok("key", f"frames are sealed with the key that {shown(settings, 'membership')} gives its members")


async def check_transport(settings: Settings, has_key: bool, answers: Sequence[SurveyAnswer]) -> list[Finding]:
    """Whether a node could listen here, and reach itself under the address that it tells others."""
    transport = plugins.transport(settings["transport"])
    try:
        await transport.open()
    except (CannotOpen, OSError) as error:
        return [port_taken(settings, answers, error)]
    try:
        return [*check_reach(settings, transport, has_key), *await check_address(settings, transport)]
    finally:
        await transport.aclose()


def check_reach(settings: Settings, transport: Transport, has_key: bool) -> Iterator[Finding]:
    """A node without a key must not be reached by strangers."""
    if has_key:
        return
    if is_on_this_host(transport):
        says = "no key: no other host reaches this node, and any user of this one can take part, or break the group"
        yield warn("key", says, "Where others have accounts here: membership local://, or give all members a key_file.")
    elif settings["insecure"]:
        says = f"no key, and insecure: whoever reaches {transport.address} can take part, or break the group"
        yield warn("key", says, "Give all members the same key_file.")
    else:
        says = f"no key, and {transport.address} can be reached from other hosts: no node starts like that"
        yield fail("key", says, "Give all members the same key_file. This makes one: softmutex key new FILE")


def port_taken(settings: Settings, answers: Sequence[SurveyAnswer], error: Exception) -> Finding:
    place = str(settings["transport"]).partition("://")[2].partition("?")[0]
    port = place.rpartition(":")[2]
    ours = [each.name for each in answers if each.document and each.document["address"].rpartition(":")[2] == port]
    if ours and port not in ("", "0"):
        return ok("port", f"port {port} is taken, by the node {ours[0]} of this group as it seems")
    return fail("port", f"a node could not listen: {error}", f"See who does: ss -lnp | grep ':{port}'. Or use another.")


async def check_address(settings: Settings, transport: Transport) -> list[Finding]:
    address = transport.address
    findings = [ok("port", f"a node can listen; others reach it at {address}")]
    if is_on_this_host(transport) and not is_on_this_host(plugins.membership(settings["membership"])):
        advice = "Give a transport that they can reach: udp://0.0.0.0:9431, or advertise=host:port."
        findings.append(warn("port", f"{address} is this host alone; no other host reaches it", advice))
    transport.send(address, b"softmutex doctor")
    try:
        async with asyncio.timeout(ECHO_S):
            while not any(datagram.payload for datagram in await transport.receive()):
                pass  # that was refused, and perhaps another address is meant
    except (TimeoutError, Closed):
        advice = "Is the advertised address this host's? Does a firewall or NAT drop what comes back?"
        findings.append(warn("port", f"what is sent to {address} does not come in here", advice))
    return findings


# --- the group -------------------------------------------------------------------------------------------------------


LISTEN = "Between commands nobody may be there: run softmutex doctor --listen there meanwhile."


def check_names(unresolved: Sequence[str]) -> Iterator[Finding]:
    for name in unresolved:
        host = name.rpartition(":")[0]
        yield fail("members", f"{name} cannot be resolved", f"Does `getent hosts {host}` know it on this host?")


def check_members(settings: Settings, answers: Sequence[SurveyAnswer]) -> Iterator[Finding]:
    told = [each for each in answers if each.document]
    if not answers:
        says = f"{shown(settings, 'membership')} shows no member"
        alone = is_on_this_host(plugins.membership(settings["membership"]))
        advice = f"Does one run? With the same membership and group? {LISTEN}"
        yield ok("members", says) if alone else warn("members", says, advice)
    for each in answers:
        if each.turned_away:
            says, _, remedy = each.turned_away.partition(". ")
            yield fail("members", f"{each.name} at {each.member.address} is there and refuses us: {says}", remedy)
        elif each.is_refused and is_own(settings, each.member.address):
            yield ok("members", f"{each.name} at {each.member.address} is this host, and no node runs here now")
        elif each.is_refused:
            yield fail(
                "members",
                f"{each.name} at {each.member.address} is reached, and nobody listens at that port",
                f"Start its agent, or whatever is the member there. {LISTEN}",
            )
        elif each.document is None:
            yield fail(
                "members",
                f"{each.name} at {each.member.address} does not answer",
                "Does it run, and is not stopped? Do firewalls let it through both ways? The same key and group there?",
            )
    for each in told:
        document = each.document or {}
        knows, others = document["peers"], len(told) - 1
        whom = "1 other" if knows == 1 else f"{knows} others"
        reached = f"{each.name} at {each.member.address} answers in {each.rtt_s * 1000:.1f} ms and knows {whom}"
        if knows >= others:
            yield ok("members", reached)
        else:
            advice = f"Can {each.name} and the others reach each other's addresses? Start softmutex doctor there."
            yield fail("members", f"{reached}, {others} are there", advice)
        yield from check_node(each.name, document)


def is_own(settings: Settings, address: str) -> bool:
    """Whether a node that is started here would be the one at this address."""
    try:
        host, port = split_address(address.rpartition("://")[2])
        _, own_port = split_address(str(settings["transport"]).partition("://")[2].partition("?")[0].partition("/")[0])
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(place)  # only what is an address of this host can be
    except (ValueError, OSError):
        return False
    return port == own_port


def check_node(name: str, document: dict[str, Any]) -> Iterator[Finding]:
    """What a node itself found strange."""
    refused = {why: count for why in STRANGE if (count := document["dropped"].get(why, 0))}
    if refused:
        counts = ", ".join(f"{why} {count}" for why, count in refused.items())
        advice = "A member, or a stranger, has another key, group or version. Give all the same."
        yield warn("members", f"{name} refused frames: {counts}", advice)
    for what in ("mismatch", "terms", "breakdowns", "own id"):
        if count := document["told"].get(what, 0):
            yield warn("members", f"{name} complained of '{what}', {count} times", f"See the log of {name}.")
    if document["loop_lag_max"] > LAG_S:
        says = f"the event loop of {name} was blocked for {document['loop_lag_max']:.1f} s: it looked dead meanwhile"
        yield warn("members", says, "Move what blocks into a thread, or use Node(thread=True).")
    for mutex in document["mutexes"]:
        if mutex["isolated"]:
            yield fail("members", f"{name} is isolated: {mutex['name']} waits there", "Can it reach the others?")


def check_clocks(answers: Sequence[SurveyAnswer]) -> Iterator[Finding]:
    for each in answers:
        if each.document is None:
            continue
        doubt_s = each.rtt_s / 2
        if abs(each.offset_s) - doubt_s > CLOCK_S:
            way = "ahead of" if each.offset_s > 0 else "behind"
            says = f"the clock of {each.name} is {abs(each.offset_s):.1f} s {way} ours"
            yield warn("clocks", says, "Run NTP on both, and start again what ran when the clock was set.")
        else:
            yield ok("clocks", f"the clock of {each.name} agrees to {abs(each.offset_s) + doubt_s:.3f} s")


def check_agreement(answers: Sequence[SurveyAnswer]) -> Iterator[Finding]:
    """Whether all run the same version, and each mutex by the same terms."""
    told = [(each.name, each.document) for each in answers if each.document]
    versions = sorted({document["version"] for _, document in told} | {own_version()})
    if told and len(versions) > 1:
        yield warn("agreement", f"versions differ: {', '.join(versions)}", "Bring all members to one version.")
    by_mutex: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, document in told:
        for mutex in document["mutexes"]:
            terms = {"algorithm": mutex["algorithm"], "slots": mutex["slots"], **mutex["terms"]}
            by_mutex[mutex["name"]][name] = terms
    for mutex_name, by_node in sorted(by_mutex.items()):
        (first, terms), *others = by_node.items()
        differences = [
            f"{key} is {its.get(key)} at {node} and {terms.get(key)} at {first}"
            for node, its in others
            for key in sorted({*terms, *its})
            if its.get(key) != terms.get(key)
        ]
        if differences:
            yield fail("agreement", f"{mutex_name}: {'; '.join(differences)}", "Give all members the same settings.")
        else:
            yield ok("agreement", f"{mutex_name}: {len(by_node)} of {len(told)} nodes take part, by the same terms")
