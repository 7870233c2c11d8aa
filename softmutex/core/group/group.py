"""The rules of membership: see the map in `__init__.py`.

P1  Only ids that a frame, or a membership that knows its members, vouched for are members; sorted, with our own.
P2  A HELLO leaves no state behind until its cookie came back, and is never answered by more bytes than it had.
P3  A suspicion ends in seconds: the member is there, or dead, or silent.
P4  Everything that others can make grow is bounded: members, newcomers a second, candidates, pings, frames that are
    passed on. Whoever is suspected while too many others are asked gets its turn after them.
P5  A cookie is good only in a frame for the very life that gave it: what was recorded cannot greet, or ask, again.
P6  A live node that greets and proves itself is a member again, whatever was said of it before, unless it is banned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from softmutex.core.events import (
    NOBODY,
    SECOND,
    Duration,
    Instant,
    MembersChanged,
    NodeId,
    Returned,
    Send,
    SetTimer,
    Silenced,
    TimerName,
)
from softmutex.core.group.company import Company, KnownPeer, PeerView
from softmutex.core.group.door import BANNED, Door, OpenDoor
from softmutex.core.group.effects import Drop, GroupEffect, Listed, Listing, Say
from softmutex.core.group.founding import Founding
from softmutex.core.group.greeter import Ego, Greeter
from softmutex.core.group.porter import Porter
from softmutex.core.group.roll_call import RollCall
from softmutex.core.group.rosters import Rosters
from softmutex.core.group.search import Search
from softmutex.core.group.suspicion import ISOLATED_TIMEOUT, PING, Suspicion
from softmutex.core.group.ways import Ways
from softmutex.core.messages import (
    Bye,
    Challenge,
    Forget,
    Forgetting,
    Hello,
    Message,
    Ping,
    Pong,
    Relay,
    Roster,
    RosterPage,
    Welcome,
)
from softmutex.core.patience import Patience

ALONE_AFTER: Final = 5 * SECOND
LATE_NEWS: Final = 2 * SECOND  # a list that may err may show somebody so much later
MEMBERS_MAX: Final = 1 << 17
NEWCOMERS_A_SECOND: Final = 2000
BYES_MAX: Final = 64
PARTED_MAX: Final = 1024
FAREWELL: Final = 5 * SECOND  # a greeting that comes so soon after a farewell was sent before it
ALIVE: Final = 10 * SECOND  # who was heard of since then is forgotten by nobody


class Group:
    def __init__(
        self,
        ego: Ego,
        *,
        alone_after: Duration = ALONE_AFTER,
        isolated_timeout: Duration | None = ISOLATED_TIMEOUT,
        door: Door | None = None,
    ) -> None:
        self.ego = ego
        self.alone_after = alone_after
        self.out: deque[GroupEffect] = deque()
        self.put = self.out.append
        self.company = Company(ego.id)
        self.members = self.company.members
        self.peers = self.company.peers
        self.listing: Listing | None = None  # the last one
        self.patience = Patience(PING)
        self.suspicion = Suspicion(self, ego.rng, self.patience, isolated_timeout)
        self.is_silent = self.suspicion.is_silent
        self.roll_call = RollCall(ego.id, self.members, self, ego.rng, self.patience, self.company.heard_at)
        self.greeter = Greeter(self, ego, alone_after)
        self.search = Search(self, self.suspicion, self.greeter, ego.rng)
        self.ways = Ways(self, self.company, ego.rng)
        self.route = self.ways.route
        self.porter = Porter(self, ego, self.greeter)
        self.call_roll = self.roll_call.call
        self.rosters = Rosters(self, self.company, self.patience)
        self.founding = Founding(self)
        self.roster_ended = self.founding.roster_ended
        self._door: Door = door or OpenDoor()
        self._shown: dict[str, Listed] = {}  # by the membership, as of now
        self._parted: dict[NodeId, Instant] = {}  # who is gone, and until when no greeting brings it back
        self._told_bye: set[NodeId] = set()
        self._doubled: set[str] = set()  # names that were told of
        self._budgets: dict[str, tuple[Instant, int]] = {}
        self._unresolved: set[str] = set()  # entries of the list that ever led nowhere
        self._news_at: Instant = 0  # of a list that may err; 0: none is awaited

    # --- what the membership says -----------------------------------------------------------------------------------

    def listed(self, listing: Listing, now: Instant) -> None:
        """The membership's list of the others, whole."""
        may_be_late = self.listing is None and not listing.complete and listing.may_be_late
        leads_nowhere = not self._unresolved.issuperset(listing.unresolved)  # waited for as for who is silent
        if may_be_late or leads_nowhere:
            wait = self.alone_after if leads_nowhere else min(LATE_NEWS, self.alone_after)
            self._news_at = max(self._news_at, now + wait)
            self.put(SetTimer("late news", self._news_at))
        self._unresolved.update(listing.unresolved)
        shown = self._shown = {place.address: place for place in listing.places}
        for address in self.greeter.listed():
            if address not in shown:
                self.greeter.stop(address, now)
        had = [peer for peer in self.peers.values() if peer.listed is not None]
        before = {peer.listed.address: peer for peer in had if peer.listed is not None}
        for peer in had:  # of two lives at one address both
            peer.listed = None
        believed = [place for place in shown.values() if self._is_believed(place, listing.complete, before, now)]
        self.listing = listing
        for place in believed:
            self._parted.pop(place.id, None)
        self._admit(believed, now)
        gone = [peer.id for peer in had if peer.listed is None and peer.id in self.peers]
        for id in gone:
            (self._part if listing.complete else self.suspect)(id, now)
        if listing.complete:
            self._remove(gone, now)
        if believed:
            self._look_at_names()
        self.founding.look_again(now)

    def _is_believed(self, place: Listed, is_complete: bool, before: Mapping[str, KnownPeer], now: Instant) -> bool:
        """One that is not a member yet, and need not be greeted first. `before`: who was listed at an address."""
        known = self.peers.get(place.id) if place.id else before.get(place.address) or self.company.at(place.address)
        is_another = place.id not in (NOBODY, self.ego.id)
        objection = self._door.objection(place.id) if is_another else ""
        if known is not None:
            known.listed, known.name = place, known.name or place.name  # it may have been heard before
        elif self.greeter.is_own(place.address):
            pass
        elif objection == BANNED:
            self._ignore(place.id, place.name or place.address)
        elif is_another and is_complete and place.is_proven and not objection and place.address not in self.greeter:
            return True
        else:  # our own id: this node by another address, or a clone. Unproven and after us in the list: it greets us
            is_late = self.listing is not None and self.listing.complete and not place.is_proven
            self._greet(place, now, at_leisure=is_late)
        return False

    def is_listed(self, address: str) -> bool:
        """Whether the membership shows somebody there: what else sends from anywhere is not worth a word."""
        return address in self._shown

    @property
    def is_settled(self) -> bool:
        """Of everybody who is listed it is known whether it is there, and nobody is expected any more."""
        return bool(self.listing and not self.listing.pending and not self._news_at and self.greeter.is_settled)

    def reachability(self) -> tuple[tuple[str, str], ...]:
        """Everybody whom the membership lists, but for this node, and in a word what became of it."""
        listing = self.listing or Listing()
        places = [place for place in self._shown.values() if not self.greeter.is_own(place.address)]
        return (
            *((place.label or place.address, self._state(place)) for place in places),
            *((entry, "not resolved") for entry in listing.unresolved),
            *((entry, "not known yet") for entry in listing.pending),
        )

    def _state(self, place: Listed) -> str:
        peer = self.peers.get(place.id) if place.id else self.company.at(place.address)
        if peer is None:
            return self.greeter.state(place.address)
        return "silent" if self.is_silent(peer.id) else "reached"

    # --- members ----------------------------------------------------------------------------------------------------

    def heard(self, sender: NodeId, source: str, now: Instant) -> bool:
        """A frame of `sender` for this very life came from `source`. False: it is not to be handled."""
        peer = self.peers.get(sender)
        if peer is None:
            return self._newcomer(sender, source, now)
        peer.heard_at = now
        if peer.address != source:
            self.suspicion.displaced(self.company.at(source), sender, now)
            left = self._shown.get(self.company.move(peer, source))
            if left is not None and left.id != sender:  # its frames came by another's place: who is really there?
                self._greet(left, now, at_leisure=True)
        self.suspicion.heard(sender, now)
        self.roll_call.heard(sender, now)
        return True

    def relayed(self, sender: NodeId, by: NodeId, now: Instant, *, is_question: bool = False) -> bool:
        """A frame of `sender` came in an `Unwrap`. `is_question`: it is answered on that way, and sets none."""
        peer = self.peers.get(sender)
        if peer is None or by not in self.peers:
            self.put(Drop("relays of strangers"))
            return False
        if not is_question:
            self.ways.came_by(peer, by, now)
        peer.heard_at = now
        self.suspicion.heard(sender, now)
        self.roll_call.heard(sender, now)
        return True

    def _newcomer(self, id: NodeId, source: str, now: Instant) -> bool:
        if id == self.ego.id or not self.is_within("newcomers", NEWCOMERS_A_SECOND, now):
            return False
        objection = self._door.objection(id)
        if id in self._parted:
            if now >= self._parted[id] and objection != BANNED:
                self._greet(Listed(source, id), now, is_hint=True)  # a greeting proves that it is there after all
            return not objection
        if objection:
            self._object(id, source, objection, now)
            return False
        self.suspicion.displaced(self.company.at(source), id, now)
        self._admit([Listed(source, id)], now)
        if id in self.peers:
            self.peers[id].heard_at = now
        return id in self.peers

    def _admit(self, newcomers: Sequence[Listed], now: Instant) -> None:
        if (over := len(self.members) + len(newcomers) - MEMBERS_MAX) > 0:
            self.put(Drop("members", over))
            self.put(Say("members", f"{over} more are not taken in: {MEMBERS_MAX} is the limit.", once="members"))
            newcomers = newcomers[: len(newcomers) - over]
        if not newcomers:
            return
        self.company.add(newcomers)
        self.put(MembersChanged(tuple(place.id for place in newcomers), ()))
        for place in newcomers:
            self.peers[place.id].listed = self._shown.get(place.address)
            self.greeter.stop(place.address, now)
        self.founding.look_again(now)

    def _remove(self, ids: Sequence[NodeId], now: Instant) -> None:
        if gone := self.company.remove(ids):
            self.put(MembersChanged((), tuple(gone)))
            for id in gone:
                self.suspicion.forget(id, now)
            self.roll_call.left(gone, now)
            self.rosters.left(gone, now)
            self.founding.left(gone, now)

    def _leave_behind(self, id: NodeId, now: Instant) -> None:
        """It is a member no longer; should somebody be at its address after all, it is met again."""
        listed = self.peers[id].listed
        self._remove([id], now)
        if listed is not None:
            self._greet(listed, now, at_leisure=True)

    def _look_at_names(self) -> None:
        """Two live nodes of one name are no harm, but confuse their people: told once."""
        for peer in self.company.namesakes(self.ego.name):
            if peer.name not in self._doubled:
                self._doubled.add(peer.name)
                where = f"one is at {peer.address}"
                self.put(Say("names", f"two live nodes are named {peer.name!r} ({where}). Give each its own."))

    def sights(self) -> list[PeerView]:
        """The others, for people."""
        return self.company.sights(self.suspicion.is_suspected, self.suspicion.is_silent)

    # --- who is not wanted ------------------------------------------------------------------------------------------

    def _part(self, id: NodeId, until: Instant) -> None:
        self._parted.pop(id, None)
        self._parted[id] = until
        if len(self._parted) > PARTED_MAX:
            del self._parted[next(iter(self._parted))]

    def _object(self, id: NodeId, source: str, objection: str, now: Instant) -> None:
        if objection == BANNED:
            self._ignore(id, source)
        else:
            self.put(Drop(objection))
            self._greet(Listed(source, id), now, is_hint=True)  # it may mend that, and has not done so yet

    def _ignore(self, id: NodeId, who: str) -> None:
        self.put(Drop(BANNED))
        self.put(Say("banned", f"{who} is banned by the registry: this node ignores it.", once=f"banned {id}"))

    def look_at_door(self, now: Instant) -> None:
        """Others than before may be banned."""
        for id in [id for id in self.peers if self._door.objection(id) == BANNED]:
            self._ignore(id, self.company.call(id))
            self._remove([id], now)

    def expel(self, id: NodeId, now: Instant) -> None:
        """What it says is refused: it is not handed anything until it has greeted anew."""
        self._parted.pop(id, None)
        self._remove([id], now)

    def forget(self, id: NodeId, now: Instant) -> Forgetting:
        """An operator says that it is gone for good."""
        peer = self.peers.get(id)
        if peer is None:
            return Forgetting.UNKNOWN
        if peer.heard_at and now - peer.heard_at < ALIVE:
            return Forgetting.ALIVE
        self.put(Say("forgotten", f"{self.company.call(id)} no longer counts: an operator says that it is gone."))
        self._leave_behind(id, now)
        return Forgetting.FORGOTTEN

    def forget_everywhere(self, id: NodeId, now: Instant) -> Forgetting:
        """... and the members that can be reached are told."""
        outcome = self.forget(id, now)
        told = [] if outcome is Forgetting.ALIVE else [node for node in self.peers if not self.is_silent(node)]
        self.out.extend(Send(node, Forget(0, 0, id)) for node in told)
        return outcome

    # --- suspicion --------------------------------------------------------------------------------------------------

    def suspect(self, id: NodeId, now: Instant) -> None:
        if id in self.peers:
            self.suspicion.suspect(id, now)

    def refused(self, address: str, now: Instant) -> None:
        """The transport says that nobody listens there. A hint: it may be late, or forged."""
        self.greeter.refused(address, now)
        peer = self.company.at(address)
        if peer is not None:
            self.suspicion.refused(peer.id, now)

    def ping(self, node: NodeId, nonce: int, tries: int, now: Instant) -> None:
        self.ways.ping(node, nonce, tries, now)

    def not_there(self, nodes: Sequence[NodeId], now: Instant) -> None:
        for node in nodes:
            self.suspect(node, now)

    def found_dead(self, node: NodeId, why: str, now: Instant) -> None:
        self.put(Say("dead", f"{self.company.call(node)} is gone ({why}).", is_routine=True))
        self._leave_behind(node, now)

    def found_silent(self, node: NodeId, now: Instant) -> None:
        peer = self.peers[node]
        other = self.company.at(peer.address)
        if other is not None and other is not peer and other.heard_at > peer.heard_at:
            self.found_dead(node, "another life is at its address", now)
            return
        self.ways.lost(node)
        self.put(Say("silent", f"{self.company.call(node)} does not answer. It still counts as a member."))
        self.put(Silenced(node))
        if peer.listed is not None:
            self._greet(peer.listed, now, at_leisure=True)  # another life may be there
        self.search.later(now)
        self.founding.look_again(now)

    def found_back(self, node: NodeId, now: Instant) -> None:
        self.put(Returned(node))
        self.founding.look_again(now)

    def given_up(self, node: NodeId, now: Instant) -> None:
        self.put(
            Say("given up", f"{self.company.call(node)} was silent for too long: it counts as a member no longer.")
        )
        self._leave_behind(node, now)

    # --- who is missing ---------------------------------------------------------------------------------------------

    def _greet(self, place: Listed, now: Instant, *, is_hint: bool = False, at_leisure: bool = False) -> None:
        self.greeter.greet(place, now, is_hint=is_hint, at_leisure=at_leisure)
        self.search.later(now)

    def hinted(self, place: Listed, now: Instant) -> None:
        if self._door.objection(place.id) != BANNED:
            self._greet(place, now, is_hint=True)

    def decided(self, now: Instant) -> None:
        self.search.later(now)
        self.founding.look_again(now)

    def is_within(self, what: str, most: int, now: Instant) -> bool:
        second, count = self._budgets.get(what, (0, 0))
        count = count + 1 if second == now // SECOND else 1
        self._budgets[what] = (now // SECOND, count)
        if count > most:
            self.put(Drop(what))
        return count <= most

    # --- timers and messages ----------------------------------------------------------------------------------------

    def fired(self, timer: TimerName, now: Instant) -> None:
        match timer:
            case "look":
                self.search.fired(now)
            case "roll":
                self.roll_call.fired(now)
            case "late news":
                self._news_at = 0
                self.founding.look_again(now)
            case ("greet", number):
                self.greeter.fired(number, now)
            case ("ping" | "silent" as kind, node):
                self.suspicion.fired(kind, node, now)
            case ("roster", node):
                self.rosters.fired(node, now)
            case (kind, number):
                self.founding.fired(kind, number, now)
            case _:
                pass

    def received(
        self, sender: NodeId, mutex: str, message: Message, source: str, to_me: bool, now: Instant, by: NodeId = NOBODY
    ) -> bool:
        """A message of the node as a whole. `to_me`: addressed to this very life. `by`: it came in an `Unwrap`.

        False: not one of ours, or not for us.
        """
        if sender == self.ego.id:
            return self.porter.own(message, source, to_me, now)
        match message:
            case Hello() if not by:
                self.porter.hello(sender, message, source, to_me, now)
            case Challenge(nonce, cookie) if to_me and not by:
                self.greeter.challenged(nonce, sender, cookie)
            case Welcome(nonce, group, name) if to_me and not by:
                place = self.greeter.greeted(nonce)
                if place is not None and group == self.ego.group:
                    self.introduce(sender, name, source, place, now)
            case Forget() if to_me and not by and sender not in self.peers:
                self.porter.word(sender, message, source, now)
            case Bye() if to_me and not by:
                if sender in self.peers or not self._door.objection(sender):  # or a farewell would be a way in
                    self._part(sender, now + FAREWELL)
                self._remove([sender], now)
            case _ if to_me:
                is_question = isinstance(message, Ping | Pong)
                if by and not self.relayed(sender, by, now, is_question=is_question):
                    return False
                if not by and not self.heard(sender, source, now):
                    return False
                return self._on_member(sender, mutex, message, source, now, by)
            case _:
                return False
        return True

    def _on_member(self, sender: NodeId, mutex: str, message: Message, source: str, now: Instant, by: NodeId) -> bool:
        match message:
            case Ping():
                self.ways.answer(sender, message, source, by)
            case Pong(nonce):
                is_of_suspicion = self.suspicion.answered(sender, nonce, now)
                if sender in self.peers:
                    self.ways.answered(sender, nonce, by, now, of_suspicion=is_of_suspicion)
            case Relay():
                self.ways.pass_on(sender, message, by, now)
            case Roster():
                self.rosters.answer(sender, message)
            case RosterPage():
                self.rosters.told(sender, message, now)
            case Forget():
                self.forget(message.node, now)
            case _:
                return self.founding.received(sender, mutex, message, now)
        return True

    def introduce(self, id: NodeId, name: str, source: str, greeted: Listed | None, now: Instant) -> None:
        """It proved that it is there. Who was at this address before is probably not any more."""
        objection = self._door.objection(id)
        if objection and objection != BANNED:
            why = "shows no certificate, and this node requires one (require_identity). It is not taken in"
            self.put(Drop(objection))
            self.put(Say("certificates", f"{name or 'a node'} at {source} {why}.", once=f"no certificate {source}"))
            return
        if objection and greeted is not None:
            self.greeter.met_one_banned(greeted.address, now)
        if id in self._parted and now >= self._parted[id]:
            del self._parted[id]  # P6
        listed = greeted or self.greeter.listed_at(source)
        self.suspicion.displaced(self.company.at(source), id, now)
        if self.heard(id, source, now) and id in self.peers:
            peer = self.peers[id]
            if listed is not None:
                peer.listed = peer.listed or self._shown.get(listed.address)
                self.greeter.stop(listed.address, now)
            if not peer.name:
                peer.name = name
                self._look_at_names()

    # --- leaving ----------------------------------------------------------------------------------------------------

    def say_bye(self) -> None:
        """To those who were heard last; the others hear it from the membership, or find out when they need us."""
        for peer in sorted(self.peers.values(), key=lambda peer: -peer.heard_at)[:BYES_MAX]:
            self.say_bye_to(peer.id)

    def say_bye_to(self, id: NodeId) -> None:
        if id not in self._told_bye:
            self._told_bye.add(id)
            self.put(Send(id, Bye()))
