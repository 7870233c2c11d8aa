"""Notes: what a node keeps for the other members to read, by topic. Kept by nobody else, and gone with the node.

    me --READ_NOTE(topic)--> each member     member --STATUS_REPLY, all pages at once--> me      one round trip

What it decides: a fact about a member is told by that member. The naive way, to copy it to everybody, needs an answer
to who may delete the copies of one that died. Whoever wants more than that (a register that outlives its writers) has
each node note what it read of the others (`softmutex_adapters.tooz_groups`).

N1  Members only read, and are read, a second at most (lookout.V1, V2).
N2  Who does not answer is suspected, and counts with what it said last, until it is known to be silent or gone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from softmutex.core.errors import ConfigError
from softmutex.core.events import NodeId
from softmutex.core.messages import ReadNote
from softmutex.core.names import check_name

if TYPE_CHECKING:
    from softmutex.runtime.lookout import Lookout

NOTE_MAX: Final = 15 * 1024  # bytes of JSON; the answer has a little more around it
TOPICS: Final = 64


class Notes:
    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._own: dict[str, Any] = {}
        self._read: dict[str, dict[NodeId, Any]] = {}  # the last answers

    def write(self, topic: str, value: Any) -> None:
        """Plain data, as JSON has it. None: nothing more to tell."""
        check_name(topic)
        if value is None:
            self._own.pop(topic, None)
            return
        size = len(json.dumps(value, separators=(",", ":")))
        if size > NOTE_MAX:
            raise ConfigError(f"a note has at most {NOTE_MAX} bytes as JSON; that on {topic!r} would have {size}.")
        if topic not in self._own and len(self._own) >= TOPICS:
            raise ConfigError(f"a node has notes on at most {TOPICS} topics. Put more into one of them.")
        self._own[topic] = value

    def shown(self, topic: str) -> dict[str, Any]:
        """What is answered to a member."""
        return {"note": self._own[topic]} if topic in self._own else {}

    async def read(self, topic: str) -> dict[NodeId, Any]:
        """What each member says now, this one too; those who say nothing of it are left out."""
        lookout, node = self._lookout, self._lookout.node
        silent = {peer.id for peer in node.driver.shown() if peer.silent}
        whom = [id for id in lookout.whom(check_name(topic)) if id not in silent]
        asked = await lookout.ask_each(topic, lambda _, nonce: ReadNote(nonce), whom)
        for id in asked.missing:
            node.driver.suspect(id)
        last = self._read.get(topic, {})
        still = {id: last[id] for id in asked.missing if id in last and id in node.members}
        told = {**still, **{id: each["note"] for id, each in asked.answers.items() if is_note(each)}}
        self._read[topic] = told
        return {**told, **({node.id: self._own[topic]} if topic in self._own else {})}


def is_note(answer: Any) -> bool:
    return isinstance(answer, dict) and "note" in answer
