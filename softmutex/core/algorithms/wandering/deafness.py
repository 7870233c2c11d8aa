"""Who hears nobody and is heard all the same says so, and is not waited for: a link may work in one direction only.

The naive way, to take whoever speaks for somebody who is there, waits for it as long as it speaks: a home that it would
be, a ballot that it asks for, a token that it has and can pass to nobody. So a node whose inquiry found nobody (it is
isolated, and uses no token before it hears again) tells those whose answers it misses. They pass it over as a home, as
an inquirer and as the next holder, and miss its token at once if somebody waits.

    isolated --PROBE(0)--> deaf, to who hears that --an answer of it, or `LONG` after the last such word--> there again

S1  Said only while no A runs here with the token: who asks for a token in use goes on being told that it is.
A4  At most `MOST` nodes are noted as deaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.desk import place_of
from softmutex.core.algorithms.wandering.messages import Account, Heard, Probe, Sight
from softmutex.core.events import SECOND, NodeId
from softmutex.core.messages import Accept, Done, Message

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering

MOST: Final = 16
LONG: Final = 5 * SECOND  # it says so again within 2.5 s and an inquiry


class Deafness:
    __slots__ = ("machine", "unheard")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.unheard: tuple[NodeId, ...] = ()  # whose answers this node misses; nobody: it is not isolated

    def say(self, slot: int) -> None:
        """I claim nothing, and what I have I do not use."""
        seat = self.machine.seats.by_slot.get(slot)
        if seat is not None and (seat.using is not None or not seat.doubt):
            return
        place = None if seat is None else place_of(seat.token, self.machine.desk.me)
        for node in self.unheard:
            self.machine.desk.post(node, Probe(0, slot, 0, place, False))

    def said(self, sender: NodeId, probe: Probe) -> None:
        desk = self.machine.desk
        desk.deaf.pop(sender, None)
        desk.deaf[sender] = desk.now + LONG
        if len(desk.deaf) > MOST:
            del desk.deaf[next(iter(desk.deaf))]
        desk.timer("deaf", desk.now + LONG)
        self.machine.inquirer.ballots.release(probe.slot, sender)
        post = self.machine.registrar.posts.get(probe.slot)
        if post is not None and probe.rival is not None and post.place.holder == sender:
            post.heard_at = 0  # it has the token, and does not use it: who waits is not to wait for that
            if post.until or post.lent:
                self.machine.inquirer.start(probe.slot, "its holder hears nobody")

    def heard(self, sender: NodeId, message: Message) -> None:
        """It answers a question of ours: it hears."""
        answers = (Accept, Done, Heard, Account)
        if isinstance(message, answers) or (isinstance(message, Sight) and message.number):
            del self.machine.desk.deaf[sender]
            self.machine.seats.members_changed()

    def fired(self) -> None:
        """Whoever has not said so again is as good as anybody."""
        desk = self.machine.desk
        for node, until in list(desk.deaf.items()):
            if until <= desk.now:
                del desk.deaf[node]
        if desk.deaf:
            desk.timer("deaf", min(desk.deaf.values()))
        self.machine.seats.members_changed()
