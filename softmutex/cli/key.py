"""`softmutex key`: makes the group's key, and changes it while everybody works.

    softmutex key new FILE          a new file with a new key; copy it to all members, and name it: SOFTMUTEX_KEY_FILE
    softmutex key list [--members]  the keys in this host's file, by id; --members: and those that the members have

To change it: `new` a second file, and copy that to every host. Then three rounds, each on every host before the next:

    softmutex key install FILE      this host opens what the new key seals
    softmutex key use ID            this host seals with it
    softmutex key retire ID         this host no longer opens what the old one seals

Running nodes see the change within a second (`softmutex.runtime.keyfile` tells how), and a retired key opens for five
seconds more what was on its way; nothing is restarted and nothing is dropped. The keys themselves are never shown.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from softmutex.cli import complain
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.cli.survey import Survey, SurveyAnswer, nobody_answered
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.names import printable
from softmutex.runtime import keyfile, keys
from softmutex.runtime.config import Settings, resolve
from softmutex.runtime.sealing import read_keys

PATIENCE_S = 2.0
UNAVAILABLE = 69


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (__doc__ or "").partition("\n")[2]  # how to change it while everybody works
    parts = parser.add_subparsers(dest="what", required=True, metavar="new | install | use | retire | list")

    def add(name: str, says: str) -> argparse.ArgumentParser:
        return parts.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")

    new = add("new", "make a file with a new key")
    install = add("install", "open from now on what the key in FILE seals, too")
    for part in (new, install):
        part.add_argument("file", metavar="FILE", type=Path)
    use, retire = add("use", "seal with this key from now on"), add("retire", "no longer open what this key seals")
    for part in (use, retire):
        part.add_argument("id", metavar="ID", type=int, help="as `softmutex key list` shows it")
    for part in (new, install, use, retire):
        part.add_argument(
            "--key-file", metavar="FILE", help="this host's file; else SOFTMUTEX_KEY_FILE, or as configured"
        )
        part.add_argument("--config", metavar="FILE", help="the file of the configuration")
    look = add("list", "the keys of this host, and with --members those of everybody")
    look.add_argument("--members", action="store_true", help="ask all members which keys they have")
    add_node_flags(look)


def main(arguments: argparse.Namespace) -> int:
    if arguments.what == "list":
        return show(node_settings(arguments), arguments.members)
    settings = resolve({"key_file": arguments.key_file}, file=arguments.config)
    if arguments.what == "new":
        file = keys.key_file(settings)
        beside = read_keys(file, of_anybody=True) if file is not None and file.exists() else ()
        number = keyfile.make(arguments.file, beside)
        say(f"key {number} is in {arguments.file}. Copy it to all members; nobody else may read it.")
        return 0
    file = own_file(settings)
    if arguments.what == "install":
        added = keyfile.install(file, arguments.file)
        told = ", ".join(f"key {number}" for number in added)
        say(f"{told} is installed in {file}: it opens, and does not seal." if added else f"{file} has it already.")
    elif arguments.what == "use":
        keyfile.use(file, arguments.id)
        say(f"key {arguments.id} seals from now on.")
    else:
        keyfile.retire(file, arguments.id)
        say(f"key {arguments.id} is gone from {file}.")
    return 0


def own_file(settings: Settings) -> Path:
    file = keys.key_file(settings)
    if file is None:
        raise ConfigError("which file? Give --key-file FILE, or SOFTMUTEX_KEY_FILE as the members have it.")
    return file


def show(settings: Settings, with_members: bool) -> int:
    file = keys.key_file(settings)
    if file is not None:
        first, *others = keyfile.ring(file, *read_keys(file, of_anybody=True)).keys
        say(f"{file}: key {first} seals{''.join(f', {other} opens' for other in others)}")
    elif not with_members:
        own_file(settings)
    if not with_members:
        return 0
    try:
        answers, unknown = asyncio.run(ask(settings))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex key: the members cannot be asked: {error}", UNAVAILABLE)
    said = show_members(answers, unknown)
    return UNAVAILABLE if unknown else said


async def ask(settings: Settings) -> tuple[list[SurveyAnswer], str]:
    """The answers, and why nothing is known where nobody gave one."""
    async with Survey(settings) as survey:
        answers = await survey.ask(PATIENCE_S)
        return answers, nobody_answered(answers, survey.shows_all)


def show_members(answers: Sequence[SurveyAnswer], unknown: str) -> int:
    """1 where somebody does not answer: it may have been away when the others changed their keys."""
    seals: set[int] = set()
    opens: list[set[int]] = []
    for answer in answers:
        there = answer.document["keys"] if answer.document else None
        if there is None:
            say(f"{answer.name}: does not answer. Is it away, or has it none of the keys of this host?")
        elif there:
            seals.add(there[0])
            opens.append(set(there))
            say(f"{answer.name}: key {there[0]} seals{''.join(f', {other} opens' for other in there[1:])}")
        else:
            say(f"{answer.name}: no key")
    common = sorted(set.intersection(*opens)) if opens else []
    listed = ", ".join(map(str, common)) or "none"
    say(unknown or f"in use: {', '.join(map(str, sorted(seals))) or 'none'}; opened by all who answer: {listed}")
    return int(any(answer.document is None for answer in answers))


def say(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
