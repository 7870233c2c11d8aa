"""Whom a node takes in at all, where that makes a difference (bans, identities): the driver knows, and is asked."""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.events import NodeId

BANNED: Final = "banned"


class Door(Protocol):
    """Whom a node takes in at all, where that makes a difference (bans, identities)."""

    def objection(self, node: NodeId) -> str:
        """Why it is not taken in: BANNED, or another reason that it may still mend. "" where it is."""
        ...


class OpenDoor:
    def objection(self, node: NodeId) -> str:
        return ""
