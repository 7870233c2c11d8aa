"""`softmutex doctor`: can members reach each other, do clocks and settings agree, is the port open, is a key set?

    softmutex doctor [--json] [the flags of the group]          exit code 1 where something failed, else 0
    softmutex doctor --listen                                   is a member, for a doctor on another host to find

One line a finding: `ok`, `warn` or `fail`, and below what to do; the last line sums up. `--json` prints one object:

    {"ok": true,
     "settings": {"transport": {"value": "udp://127.0.0.1:0", "origin": "default"}},
     "findings": [{"check": "port", "verdict": "ok", "says": "a node can listen", "remedy": ""}]}

It looks from outside (`survey.py`) and changes nothing. What it tells of the reach between others it has from them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Sequence

from softmutex import plugins
from softmutex.cli import complain
from softmutex.cli.checks import (
    CheckVerdict,
    Finding,
    check_agreement,
    check_clocks,
    check_installation,
    check_key,
    check_members,
    check_names,
    check_settings,
    check_transport,
    fail,
    origin,
    shown,
)
from softmutex.cli.settings import add_mutex_flags, add_node_flags, mutex_keywords, node_settings
from softmutex.cli.survey import Survey, SurveyAnswer
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import printable
from softmutex.runtime import keys
from softmutex.runtime.config import Settings
from softmutex.runtime.options import SETTINGS

PATIENCE_S = 3.0
LOOK_EVERY_S = 0.5
NOT_STARTED = 69  # EX_UNAVAILABLE
MEETING_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", help="show the settings as they are for this mutex")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--listen", action="store_true", help="be a member until Ctrl-C, and tell who comes")
    add_mutex_flags(parser)
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    settings: Settings | None = None
    logging.getLogger("softmutex.membership").addHandler(logging.NullHandler())  # what it would say is a finding here
    findings = list(check_installation())
    try:
        settings = node_settings(arguments)
    except ConfigError as error:
        findings.append(fail("settings", str(error)))
    else:
        keywords = mutex_keywords(arguments)
        if arguments.name is not None or keywords:
            settings = settings.for_mutex(arguments.name or "", keywords)
        if arguments.listen:
            return listen(settings)
        findings += asyncio.run(examine(settings))
    if arguments.json:
        sys.stdout.write(json.dumps(report(settings, findings)) + "\n")
    else:
        sys.stdout.write("\n".join([*lines(findings), verdict(findings)]) + "\n")
    return int(any(each.verdict is CheckVerdict.FAIL for each in findings))


def verdict(findings: Sequence[Finding]) -> str:
    """One line for who reads only that."""
    failed = [each for each in findings if each.verdict is CheckVerdict.FAIL]
    warned = [each for each in findings if each.verdict is CheckVerdict.WARN]
    worst = (failed or warned)[:1]
    if not worst:
        return "=> all is well"
    counts = [f"{len(each)} {what}" for each, what in ((failed, "failed"), (warned, "to be looked at")) if each]
    return printable(f"=> {', '.join(counts)}; first of all: {worst[0].says}")


def listen(settings: Settings) -> int:
    """Is a member, and tells who comes and goes, until it is interrupted."""
    from softmutex import Node

    async def stay() -> None:
        async with Node._of(settings) as node:
            sys.stdout.write(f"listening as {node.name} at {node.address}, until Ctrl-C\n")
            known: set[str] = set()
            while True:
                now = {f"{peer.name or 'a node'} at {peer.address}" for peer in node.peers()}
                news = [*(f"+ {one}" for one in sorted(now - known)), *(f"- {one}" for one in sorted(known - now))]
                sys.stdout.write("".join(f"{printable(each)}\n" for each in news))
                sys.stdout.flush()
                known = now
                await asyncio.sleep(LOOK_EVERY_S)

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(stay())
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex doctor: {error}", NOT_STARTED)
    return 0


async def examine(settings: Settings) -> list[Finding]:
    findings = list(check_settings(settings))
    try:
        plugins.transport(settings["transport"])
        membership = plugins.membership(settings["membership"])
    except ConfigError as error:  # an adapter that there is not, or an option that it does not know
        return [*findings, fail("settings", str(error))]
    try:
        group_keys = keys.group_keys(settings, membership)
    except (SoftMutexError, OSError) as error:
        return [*findings, fail("key", str(error))]
    finally:
        await membership.aclose()
    findings += check_key(settings, group_keys)
    answers: Sequence[SurveyAnswer] = ()
    try:
        async with Survey(settings) as survey:
            answers = await survey.ask(PATIENCE_S)
            if not all_have_met(answers):  # somebody may have come just now: the others learn of it a moment later
                await asyncio.sleep(MEETING_S)
                answers = await survey.ask(PATIENCE_S)
    except (SoftMutexError, OSError) as error:
        findings.append(fail("members", f"the group cannot be looked at: {error}"))
    else:
        findings += [
            *check_names(survey.unresolved),
            *check_members(settings, answers),
            *check_clocks(answers),
            *check_agreement(answers),
        ]
    return [*findings, *await check_transport(settings, bool(group_keys), answers)]


def all_have_met(answers: Sequence[SurveyAnswer]) -> bool:
    told = [each.document for each in answers if each.document]
    return all(document["peers"] >= len(told) - 1 for document in told)


def report(settings: Settings | None, findings: Sequence[Finding]) -> dict[str, object]:
    in_force = (
        {}
        if settings is None
        else {name: {"value": shown(settings, name), "origin": origin(settings, name)} for name in SETTINGS}
    )
    return {
        "ok": all(each.verdict is not CheckVerdict.FAIL for each in findings),
        "settings": in_force,
        "findings": [
            {"check": each.check, "verdict": each.verdict.value, "says": each.says, "remedy": each.remedy}
            for each in findings
        ],
    }


def lines(findings: Sequence[Finding]) -> list[str]:
    out = []
    for each in findings:
        out.append(f"{each.verdict.value:4}  {each.check:12}  {each.says}")
        if each.remedy:
            out.append(f"{'':20}-> {each.remedy}")
    return list(map(printable, out))
