"""`softmutex status`: who is there, where the token is, who waits, and for how long.

    softmutex status [-n NAME] [--json | --watch]

It looks from outside (`survey.py`) and changes nothing: it never is a member, and no token comes near it.
`--json` prints one object:

    {"group": "default", "membership": "local://", "at": 1700000000.0, "unknown": "",
     "nodes": [{"name": "web1-4711-ab12", "id": "00f3...", "address": "127.0.0.1:38411", "answers": true, "rtt": 0.0007,
                "clock_offset": 0.0001, "version": "0.1.0", "peers": 2}],
     "mutexes": [{"name": "nightly-ftp", "algorithm": "wandering", "slots": 1, "epoch": 1, "has_token": true,
                  "acquisitions": 132,
                  "holders": [{"node": "web1-4711-ab12", "user": "ada", "purpose": "lftp", "for": 12.3, "waited": 0.1,
                               "slots": 1}],
                  "waiting": [{"node": "web2-4712-cd34", "user": "bob", "purpose": "rsync", "for": 10.2,
                               "slots": 1, "priority": 0}],
                  "waiting_count": 1, "tokens_at": ["web1-4711-ab12"], "isolated": []}]}

`unknown` says why nothing is known: none of the members that are listed answers, or the list could not be had. The exit
code is 69 then. Times are in seconds. Of a node that does not answer `rtt`, `clock_offset`, `version` and `peers` are
null. Each node tells of itself: what is on the way between two of them when they are asked is seen at neither or at
both. By an algorithm without a token (`has_token`) an epoch is its coordinator's. `waiting` shows those who wait
longest, at most 32 a node; `waiting_count` counts all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from softmutex.cli import Mistake, complain
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.cli.survey import Survey, SurveyAnswer, nobody_answered
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import printable
from softmutex.runtime.config import Settings
from softmutex.seen import span
from softmutex.urls import without_secrets

NOT_STARTED = 69  # EX_UNAVAILABLE
EVERY_S = 1.0
NODES_SHOWN = 20
WAITING_SHOWN = 10
CLEAR = "\x1b[H\x1b[J"  # to the upper left corner, and nothing below


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--name", help="show this mutex only")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object")
    how.add_argument("--watch", action="store_true", help="look again every second, until Ctrl-C; on a terminal")
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    settings = node_settings(arguments)
    if arguments.watch and not sys.stdout.isatty():
        raise Mistake("softmutex status: --watch wants a terminal. Use --json, as often as you like.")
    try:
        if arguments.watch:
            with suppress(KeyboardInterrupt):
                asyncio.run(watch(settings, arguments.name))
            return 0
        picture = asyncio.run(look(settings, arguments.name))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex status: the group cannot be looked at: {error}", NOT_STARTED)
    sys.stdout.write(json.dumps(picture) + "\n" if arguments.json else "\n".join(lines(picture)) + "\n")
    return NOT_STARTED if picture["unknown"] else 0


async def look(settings: Settings, name: str | None) -> dict[str, Any]:
    async with Survey(settings) as survey:
        return await picture_by(survey, settings, name)


async def watch(settings: Settings, name: str | None) -> None:
    async with Survey(settings) as survey:
        while True:
            shown = lines(await picture_by(survey, settings, name))
            width, height = shutil.get_terminal_size()
            sys.stdout.write(CLEAR + "\n".join(line[:width] for line in shown[: height - 1]) + "\n")
            sys.stdout.flush()
            await asyncio.sleep(EVERY_S)


# --- what is seen ----------------------------------------------------------------------------------------------------


async def picture_by(survey: Survey, settings: Settings, only: str | None) -> dict[str, Any]:
    answers = await survey.ask()
    return picture_of(settings, answers, only, nobody_answered(answers, survey.shows_all))


def picture_of(settings: Settings, answers: Sequence[SurveyAnswer], only: str | None, unknown: str) -> dict[str, Any]:
    told = [(answer.name, document) for answer in answers if (document := answer.document)]
    names = {mutex["name"] for _, document in told for mutex in document["mutexes"]}
    return {
        "group": settings["group"],
        "membership": without_secrets(str(settings["membership"])),
        "at": round(time.time(), 3),
        "unknown": unknown,
        "nodes": [picture_of_node(answer) for answer in answers],
        "mutexes": [picture_of_mutex(name, told) for name in sorted(names) if only in (None, name)],
    }


def picture_of_node(answer: SurveyAnswer) -> dict[str, Any]:
    document = answer.document or {}
    return {
        "name": answer.name,
        "id": document.get("id") or (f"{answer.member.id:016x}" if answer.member.id else None),
        "address": answer.member.address,
        "answers": bool(document),
        "rtt": round(answer.rtt_s, 6) if document else None,
        "clock_offset": round(answer.offset_s, 6) if document else None,
        "version": document.get("version"),
        "peers": document.get("peers"),
    }


def picture_of_mutex(name: str, told: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    views = [(node, view) for node, document in told for view in document["mutexes"] if view["name"] == name]
    users = {node: str(document.get("user", "")) for node, document in told}
    newest = max((view for _, view in views), key=lambda view: (view["epoch"], view["hop"]))
    waiting = [
        {
            "node": node,
            "user": users[node],
            "purpose": purpose or "",
            "for": since,
            "slots": slots or 1,
            "priority": priority or 0,
        }
        for node, view in views
        for since, purpose, slots, priority in zip_longest(
            view["waiting"], view.get("purposes", ()), view.get("weights", ()), view.get("priorities", ())
        )
        if since is not None
    ]
    return {
        "name": name,
        "algorithm": newest["algorithm"],
        "slots": newest["slots"],
        "epoch": newest["epoch"],
        "has_token": newest.get("has_token", newest["epoch"] > 0),
        "acquisitions": sum(view["acquisitions"] for _, view in views),
        "holders": [{"node": node, "user": users[node], **hold} for node, view in views for hold in view["holding"]],
        "tokens_at": [node for node, view in views if view["tokens"]],
        "waiting": sorted(waiting, key=lambda one: -one["for"]),
        "waiting_count": sum(view["waiting_count"] for _, view in views),
        "isolated": [node for node, view in views if view["isolated"]],
    }


# --- for people ------------------------------------------------------------------------------------------------------


def lines(picture: dict[str, Any]) -> list[str]:
    nodes, mutexes = picture["nodes"], picture["mutexes"]
    when = time.strftime("%H:%M:%S", time.localtime(picture["at"]))
    silent = sum(not node["answers"] for node in nodes)
    out = [f"group {picture['group']} ({picture['membership']}), {count(len(nodes), 'node')}, {when}"]
    width = max((len(node["name"]) for node in nodes[:NODES_SHOWN]), default=0)
    for node in nodes[:NODES_SHOWN]:
        how = f"{node['rtt'] * 1000:.1f} ms" if node["answers"] else "no answer: see softmutex doctor"
        out.append(f"  {node['name']:{width}}  {node['address']:21}  {how}")
    if len(nodes) > NODES_SHOWN:
        out.append(f"  ... and {len(nodes) - NODES_SHOWN} more; {silent} of all do not answer")
    if not mutexes:
        out += ["", picture["unknown"] or "no mutex is in use"]
    for mutex in mutexes:
        out += ["", *lines_of_mutex(mutex, silent)]
    return list(map(printable, out))


def lines_of_mutex(mutex: dict[str, Any], silent: int) -> list[str]:
    """`silent`: so many members did not answer, and one of them may hold it."""
    slots = f", {mutex['slots']} slots" if mutex["slots"] > 1 else ""
    used = count(mutex["acquisitions"], "acquisition")
    epoch = f", epoch {mutex['epoch']}" if mutex["epoch"] else ""
    out = [f"{mutex['name']}  ({mutex['algorithm']}{slots}{epoch}, {used})"]
    out += [
        f"  held by   {hold['node']}  for {span(hold['for'])}, after {span(hold['waited'])} of waiting"
        f"{several('takes', hold)}{doing(hold)}"
        for hold in mutex["holders"]
    ]
    if sum(slots_of(hold) for hold in mutex["holders"]) < mutex["slots"]:
        resting = [node for node in mutex["tokens_at"] if node not in {hold["node"] for hold in mutex["holders"]}]
        somewhere = "  free, or on the way between two nodes" if mutex["has_token"] else "  free"
        if silent:
            somewhere = f"  held by nobody that answers; {count(silent, 'node')} did not"
        out.append(f"  free at   {', '.join(resting)}" if resting else somewhere)
    out += [
        f"  waits     {one['node']}  for {span(one['for'])}{several('wants', one)}{urgency(one)}{doing(one)}"
        for one in mutex["waiting"][:WAITING_SHOWN]
    ]
    if mutex["waiting_count"] > WAITING_SHOWN:
        out.append(f"  ... {mutex['waiting_count']} wait in all")
    return out + [f"  isolated  {node}  reaches too few of the others" for node in mutex["isolated"]]


def doing(one: dict[str, Any]) -> str:
    what = " of ".join(part for part in (one.get("purpose"), one.get("user")) if part)
    return f" ({what})" if what else ""


def slots_of(one: dict[str, Any]) -> int:
    return int(one.get("slots", 1))  # of a version that does not tell: one


def several(verb: str, one: dict[str, Any]) -> str:
    return f", {verb} {slots_of(one)} slots" if slots_of(one) > 1 else ""


def urgency(one: dict[str, Any]) -> str:
    return f", priority {one['priority']}" if one.get("priority") else ""


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
