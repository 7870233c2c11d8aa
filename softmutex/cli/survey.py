"""Looks at a group from outside: who is shown by the membership, who answers, what each says of itself.

What it decides: who looks takes no part. It asks as a visitor (`softmutex.runtime.status`), from a port of its own:
the naive way, to open the transport as it is configured, would take the very port from the node of this host.

A membership that looks for others on the network shows nobody at first; so whoever comes within SETTLE_S is waited for,
unless the membership says that it shows everybody at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from softmutex import plugins
from softmutex.core.messages import Forgetting
from softmutex.ending import end
from softmutex.ports import Closed, Member, shows_all
from softmutex.runtime import keys
from softmutex.runtime.config import SAFE, Settings
from softmutex.runtime.status import Question, Visitor, Word
from softmutex.urls import join_address, split_address

SETTLE_S = 1.5
ANSWER_S = 1.0
AT_ONCE = 64  # a group of thousands is asked in portions: their answers must fit the socket's buffer


@dataclass(frozen=True, slots=True)
class SurveyAnswer:
    """`document` is None where the member did not answer. `offset_s`: how far its clock is ahead of ours."""

    member: Member
    document: dict[str, Any] | None = None
    rtt_s: float = 0.0
    offset_s: float = 0.0
    is_refused: bool = False  # nobody listens at its address
    turned_away: str = ""  # why it does not listen to us

    @property
    def name(self) -> str:
        return str(self.document["name"]) if self.document else self.member.name or self.member.address


def nobody_answered(answers: Sequence[SurveyAnswer], shows_all: bool) -> str:
    """What to say where nothing is known of the group, since nobody told; empty where somebody did, or nobody is there.

    An empty list that is not whole is no news of the group: its registry may be out of reach.
    """
    if any(answer.document for answer in answers) or (shows_all and not answers):
        return ""
    listed = "1 member is" if len(answers) == 1 else f"{len(answers) or 'no'} members are"
    return f"nobody answered: {listed} listed, so what is in use is not known. See softmutex doctor"


class Survey:
    """`async with Survey(settings) as survey: answers = await survey.ask()`"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._members: Sequence[Member] = ()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._transport = plugins.transport(visiting(settings["transport"]))
        self._membership = plugins.membership(settings["membership"])
        try:
            group_keys = keys.group_keys(settings, self._membership)
            await self._transport.open()
            me = secrets.randbits(64) or 1
            seal = keys.seal_with(group_keys, settings["group"], me)
            self._visitor = Visitor(self._transport, seal, me, settings["group"])
            self._tasks = [asyncio.create_task(self._visitor.listen()), asyncio.create_task(self._watch())]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await self._settled.wait()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await end(*self._tasks)
        await self._membership.aclose()
        await self._transport.aclose()

    async def _watch(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                self._members = await self._membership.watch()
                if shows_all(self._membership):
                    self._settled.set()

    @property
    def shows_all(self) -> bool:
        """Whether the list of the members is a whole one: then an empty one means that nobody is there."""
        return self._settled.is_set() and shows_all(self._membership)

    @property
    def unresolved(self) -> Sequence[str]:
        """Names that the membership could not look up, where it looks up names."""
        return tuple(getattr(self._membership, "unresolved", ()))

    async def ask(self, patience_s: float = ANSWER_S) -> list[SurveyAnswer]:
        """What each member says, in the order of the membership."""
        portion = asyncio.Semaphore(AT_ONCE)

        async def ask(member: Member) -> SurveyAnswer:
            async with portion:
                return await self._ask(member, patience_s)

        return await asyncio.gather(*map(ask, self._members))

    async def tell(self, word: Word, patience_s: float = ANSWER_S) -> Forgetting | None:
        """What the member made of an operator's word; None where it did not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._visitor.put(word)
        return word.outcome

    async def _ask(self, member: Member, patience_s: float) -> SurveyAnswer:
        question = Question(member)
        try:
            async with asyncio.timeout(patience_s):
                await self._visitor.put(question)
        except TimeoutError:
            why = self._visitor.why_not(member.address)
            return SurveyAnswer(member, is_refused=member.address in self._visitor.refused, turned_away=why)
        document = question.document()
        if document is None:
            return SurveyAnswer(member)
        middle = (question.sent_at + question.heard_at) / 2
        return SurveyAnswer(member, document, question.heard_at - question.sent_at, document["clock"] - middle)


def visiting(transport: Any) -> Any:
    """The same transport on a port of its own."""
    if not isinstance(transport, str):
        return transport
    base, _, query = transport.partition("?")
    scheme, _, place = base.partition("://")
    address, slash, prefix = place.partition("/")
    try:
        host, _ = split_address(address, default_host="127.0.0.1", default_port=0)
    except ValueError:  # not a place with a port
        return transport
    options = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "advertise"]
    own = f"{scheme}://{join_address(host, 0)}{slash}{prefix}"
    return f"{own}?{urlencode(options, safe=SAFE)}" if options else own
