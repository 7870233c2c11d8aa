"""`softmutex forget NODE`: an operator knows that a member which is silent is gone for good, and the group goes on.

Silence may be a cut, so whoever is silent still counts, and `when_isolated="wait"` waits for it (`isolated_timeout`).
NODE is its name, its address or its id, as `softmutex status` or the log shows it. Every member that can be reached is
told. One that spoke within the last seconds stays. Exit code 1: no member takes it for silent; 69: nobody answered.

With `require_identity` members believe only those whom their `evictors` name, and a visitor never.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from softmutex.cli import complain
from softmutex.cli.settings import add_node_flags, node_settings
from softmutex.cli.survey import Survey, SurveyAnswer, nobody_answered
from softmutex.core.errors import ConfigError, SoftMutexError
from softmutex.core.messages import Forgetting
from softmutex.core.names import printable
from softmutex.runtime.config import Settings
from softmutex.runtime.status import Word

UNKNOWN, NOT_STARTED = 1, 69


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="its name, address or id, as softmutex status shows it")
    add_node_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    try:
        return asyncio.run(forget(node_settings(arguments), arguments.node))
    except ConfigError:
        raise
    except (SoftMutexError, OSError) as error:
        return complain(f"softmutex forget: {error}", NOT_STARTED)


async def forget(settings: Settings, whom: str) -> int:
    async with Survey(settings) as survey:
        answers = await survey.ask()
        if unknown := nobody_answered(answers, survey.shows_all):
            return complain(f"softmutex forget: {unknown}", NOT_STARTED)
        gone = meant(answers, whom)
        if not gone:
            silent = sorted({called(peer) for answer in answers if answer.document for peer in silent_of(answer)})
            heard = f"silent are: {', '.join(silent)}" if silent else "nobody is silent"
            return complain(printable(f"softmutex forget: no member takes {whom!r} for silent ({heard})"), UNKNOWN)
        told: Counter[Forgetting | None] = Counter()
        for id, called_so in gone.items():
            reached = [answer.member for answer in answers if answer.document]
            told.update(await asyncio.gather(*(survey.tell(Word(member, id)) for member in reached)))
            sys.stdout.write(printable(f"{called_so} ({id:016x}) is said to be gone") + "\n")
    if told[Forgetting.ALIVE]:
        return complain(f"softmutex forget: {told[Forgetting.ALIVE]} members heard it seconds ago: it stays", UNKNOWN)
    sys.stdout.write(f"{len([answer for answer in answers if answer.document])} members were told\n")
    return 0 if told[Forgetting.FORGOTTEN] else complain("softmutex forget: no member obeys", UNKNOWN)


def silent_of(answer: SurveyAnswer) -> Sequence[dict[str, str]]:
    return [] if answer.document is None else answer.document.get("silent", [])


def called(peer: dict[str, str]) -> str:
    return peer["name"] or peer["address"]


def meant(answers: Sequence[SurveyAnswer], whom: str) -> dict[int, str]:
    """Ids of those who are silent to somebody, and are called so. Several lives may have had one name."""
    return {
        int(peer["id"], 16): called(peer)
        for answer in answers
        for peer in silent_of(answer)
        if whom in (peer["name"], peer["address"], peer["id"])
    }
