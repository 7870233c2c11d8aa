"""Looking for a token before making another one: the only way in which a token is ever replaced.

Whoever has a reason to believe that a token is lost (its watcher, a waiter whom nobody answers, a holder that was out
of touch) does not know it. The naive way, a time-out that makes a token, doubles it whenever the network is slow. So:

    near   ask who had it last, and the homes               one of them has it ---> found, nothing is made
      |    (and whoever they name, along the chain)         one of them hears its holder ---> later again
    wide   ask also random others, with a ballot            promised to somebody else ---> back off, later again
      |
    all    ask everybody, in batches                        too few answer ---> isolated: `when_isolated` decides
      |
    make   a token of an epoch above all that was heard of

S1  A token is made only where all members were asked, and none that answered has one of the slot, hears the holder
    of one, or was passing one to a node that answered, this one included. An answer counts for its stage only.
S2  A node promises the ballot of a slot to one inquirer at a time (`PROMISE` long): of several inquirers at once,
    those whose samples meet in one node, and all samples hold the homes, make one token.
S3  The epoch made is above every epoch that the asker and those who answered know.
L1  An inquiry ends within PROBES retransmission time-outs a stage; whoever still has the reason starts it again.

Answers cost the asked nothing but a message, and hold no state beyond one promise a slot (`machine.A4`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from softmutex.core.algorithms.wandering.ballots import Ballots
from softmutex.core.algorithms.wandering.desk import Desk, place_of, rank, same_token
from softmutex.core.algorithms.wandering.inquiry import Inquiry
from softmutex.core.algorithms.wandering.messages import Place, Presence, Probe, Sight
from softmutex.core.algorithms.wandering.settings import BATCH, FRESH, PROBES, SAMPLE
from softmutex.core.events import SECOND, Duration, FactKind, Instant, LostReason, NodeId, escorted, from_seconds

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.machine import Wandering
    from softmutex.core.algorithms.wandering.seat import Seat


PROBE_LEAST: Final = SECOND // 20  # a probe may come at a bad moment; 1 + 2 + 3 + 4 of these are patient enough
FEW: Final = 2  # probes to one of many: it is no loss if some do not answer
GIVEN_UP: Final = PROBES + 1
LATELY: Final = 2 * SECOND
OUT_OF_SIGHT: Final = 5 * SECOND  # a doubted token waits so long for one whose holder is no member here


class Inquirer:
    __slots__ = ("ballots", "inquiries", "isolated", "machine", "since")

    def __init__(self, machine: Wandering) -> None:
        self.machine = machine
        self.inquiries: dict[int, Inquiry] = {}
        self.ballots = Ballots(machine.desk)
        self.isolated = False
        self.since: Instant = 0  # when this node began to listen

    @property
    def desk(self) -> Desk:
        return self.machine.desk

    def running(self, slot: int) -> bool:
        return slot in self.inquiries

    # --- reasons -----------------------------------------------------------------------------------------------------

    def start(self, slot: int, why: str, wide: bool = False) -> None:
        seat = self.machine.seats.by_slot.get(slot)
        if slot in self.inquiries or (seat is not None and not seat.doubt):
            return  # it is here: nobody will have seen it, but us, and it may be gone when they have answered
        if seat is None and self.machine.seats.leaving:
            return  # a leaver has no use for one that it would make
        desk = self.desk
        inquiry = self.inquiries[slot] = Inquiry(slot, why, int(desk.rng.random() * 2**53))
        best = desk.best.get(slot)
        if best is not None:
            self._add(inquiry, best.holder)
        for node in desk.homes(2):
            self._add(inquiry, node)
        if wide or best is None or not inquiry.asked:
            self._widen(inquiry)
        self._probe(inquiry)

    def census(self) -> None:
        """This node waits, and the homes are silent."""
        slots = self.desk.options.slots
        self.start(int(self.desk.rng.random() * slots) if slots > 1 else 0, "waits, and no home answers", wide=True)

    def doubt(self, seat: Seat) -> None:
        """Our token may have been replaced: neither grant it nor pass it on before we know."""
        if not self.machine.seats.withhold(seat):
            return
        self.start(seat.token.slot, "was out of touch with its watchers", wide=True)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _add(self, inquiry: Inquiry, node: NodeId, tries: int = 0) -> None:
        if node not in (0, self.desk.me) and self.desk.is_member(node):
            inquiry.asked.setdefault(node, tries)

    def _widen(self, inquiry: Inquiry) -> None:
        desk = self.desk
        inquiry.wide = True
        inquiry.tries = 0
        for node in desk.homes(2):
            self._add(inquiry, node)
        inquiry.everybody = len(desk.members) <= 4 * SAMPLE  # a small group is asked whole
        for node in desk.random_others(4 * SAMPLE if inquiry.everybody else SAMPLE):
            self._add(inquiry, node, 0 if inquiry.everybody else PROBES - FEW)
        if not self.ballots.promise(inquiry.slot, desk.me):
            inquiry.refused = True

    def _probe(self, inquiry: Inquiry) -> None:
        """Ask all who have not answered; when that is nobody, decide."""
        desk = self.desk
        seat = self.machine.seats.by_slot.get(inquiry.slot)
        rival = place_of(seat.token, desk.me) if seat is not None else None
        overlap = seat is not None and seat.using is not None
        inquiry.pending = 0
        if inquiry.wide:
            self.ballots.promise(inquiry.slot, desk.me)  # ours is renewed as well
        if seat is not None and seat.doubt and desk.now - seat.doubted_at > self.machine.watch.slack:
            self.machine.seats.tell(seat, LostReason.LEASE)  # it takes too long to find out
        for node, tries in inquiry.asked.items():
            if 0 <= tries < PROBES:
                inquiry.asked[node] = tries + 1
                inquiry.pending += 1
                if tries > 1 or (tries and not inquiry.everybody):
                    desk.suspicious(node)
                ballot = desk.next_epoch(inquiry.slot) if inquiry.wide else 0
                desk.post(node, Probe(inquiry.number, inquiry.slot, ballot, rival, overlap))
            elif tries == PROBES:
                inquiry.asked[node] = GIVEN_UP
        if inquiry.pending:
            inquiry.sent_at = desk.now
            inquiry.began = inquiry.began or desk.now
            inquiry.tries += 1
            desk.timer(("probe", inquiry.slot), desk.now + inquiry.tries * max(desk.rto, PROBE_LEAST))
        else:
            self._end_of_stage(inquiry)

    def fired(self, slot: int) -> None:
        inquiry = self.inquiries.get(slot)
        if inquiry is not None:
            self._probe(inquiry)

    def retry(self, slot: int) -> None:
        """An inquiry that could not decide is due again, if anybody here still has a reason."""
        seat = self.machine.seats.by_slot.get(slot)
        registrar = self.machine.registrar
        post = registrar.posts.get(slot)
        watched = post is not None and post.until != 0 and post.until <= self.desk.now and seat is None
        if seat is not None:
            if seat.doubt:
                self.start(slot, "was out of touch with its watchers", wide=True)
        elif watched or registrar.ready or registrar.late or self.machine.waiter.asked is not None:
            self.start(slot, "still looks for it", wide=True)

    def listen(self) -> None:
        """A node that joins makes nothing for a while."""
        self.since = self.desk.now
        self.desk.timer("listened", self.desk.now + from_seconds(self.desk.options.listen))

    def listened(self) -> None:
        """If it is the home, it should know where the tokens are."""
        desk = self.desk
        if desk.home == desk.me and not desk.alone:
            for slot in range(desk.options.slots):
                if slot not in desk.best:
                    self.start(slot, "is the home, and never heard of it", wide=True)

    # --- answering ---------------------------------------------------------------------------------------------------

    def probed(self, sender: NodeId, probe: Probe) -> None:
        desk = self.desk
        slot = probe.slot
        if not 0 <= slot < desk.options.slots:
            return
        if probe.number == 0:
            self.machine.deafness.said(sender, probe)
            return
        if probe.rival is not None:
            self._meet(sender, probe.rival, probe.overlap)
        free = True
        if not probe.ballot:
            self.ballots.release(slot, sender)
        else:
            free = self.ballots.is_next(sender) and self.ballots.promise(slot, sender)
            if not free and desk.home == desk.me:
                self.start(slot, "somebody else looks for it")
        seats = self.machine.seats
        presence = seats.presence(slot)
        place = desk.best.get(slot)
        heard_of = self.machine.registrar.heard_of(slot)
        if presence is Presence.ABSENT and heard_of is not None and heard_of.holder != sender:
            presence, place = Presence.WATCHED, heard_of
        elif presence is Presence.ABSENT and self._was_just_seen(slot, sender):
            presence = Presence.WATCHED
        elif presence is Presence.PASSING:
            seat = seats.by_slot[slot]
            place = place_of(seat.token._replace(hop=seat.token.hop + 1), seat.invited)
        elif presence is not Presence.ABSENT:
            place = place_of(seats.by_slot[slot].token, desk.me)
        desk.post(sender, Sight(probe.number, slot, place, presence, free))

    def _was_just_seen(self, slot: int, by: NodeId) -> bool:
        """At a node that is there, and that the asker may not know yet. What the asker said itself is no news to it."""
        place = self.desk.best.get(slot)
        if place is None or place.holder in (by, self.desk.me) or not self.desk.reaches(place.holder):
            return False
        if self.desk.learned_from[slot] == by:
            return False
        return self.desk.now - self.desk.learned_at[slot] < LATELY

    def _release(self, inquiry: Inquiry) -> None:
        """What was promised to us is of no use."""
        for node, tries in inquiry.asked.items():
            if tries < 0:
                self.desk.post(node, Probe(inquiry.number, inquiry.slot, 0, None, False))

    def _meet(self, sender: NodeId, rival: Place, overlap: bool) -> None:
        """Another node has a token of this slot. Both are told, and the weaker one goes."""
        desk = self.desk
        seat = self.machine.seats.by_slot.get(rival.slot)
        desk.learn(rival)
        if seat is None or same_token(rival, place_of(seat.token, desk.me)):
            return
        if overlap and seat.using is not None and not seat.told:
            self.machine.seats.tell(seat, LostReason.OVERLAP)
        if desk.outranked(seat.token) is not None and not seat.giving:
            self.doubt(seat)

    # --- answers -----------------------------------------------------------------------------------------------------

    def sighted(self, sender: NodeId, sight: Sight) -> None:
        desk = self.desk
        place = sight.place
        news = False
        if place is not None:
            if place.slot != sight.slot:
                return
            known = desk.best.get(place.slot)
            news = desk.learn(place, sender)
            if news and known is not None and not same_token(known, place) and known.holder not in (sender, desk.me):
                desk.post(known.holder, Sight(0, place.slot, place, Presence.ABSENT, False))  # it may not pass here
        seat = self.machine.seats.by_slot.get(sight.slot)
        if sight.number == 0:
            if sight.presence is Presence.DOUBTED and seat is not None and not seat.giving:
                self.doubt(seat)  # who watches over it reaches too few to go on doing so
            elif seat is not None and not seat.giving and not seat.doubt and desk.outranked(seat.token) is not None:
                self.doubt(seat)
            return
        inquiry = self.inquiries.get(sight.slot)
        if inquiry is None or inquiry.number != sight.number or sender not in inquiry.asked:
            return
        tries = inquiry.asked[sender]
        if tries == 1:
            desk.measured(desk.now - inquiry.sent_at)
        elif tries > 1:
            desk.late_answer(inquiry.began)
        inquiry.pending -= 0 < tries <= PROBES
        inquiry.asked[sender] = -1
        inquiry.news = inquiry.news or (news and inquiry.wide)
        if sight.presence in (Presence.PARKED, Presence.IN_USE) and place is not None:
            out_of_hands = seat is None or self.machine.seats.presence(sight.slot) is Presence.PASSING
            own = None if seat is None or out_of_hands else place_of(seat.token, desk.me)
            if place != desk.best.get(place.slot) and own is None:
                # A token that a better one was made after, or its holder's own view of it: let the holder find out.
                inquiry.between = True
                desk.post(sender, Sight(0, place.slot, desk.best.get(place.slot), Presence.ABSENT, False))
            elif own is None or (not same_token(own, place) and rank(place) > rank(own)):
                self._found(inquiry, place, sight.presence)
                return
            # Else it has the weaker one: our probe told it so.
        elif sight.presence is Presence.WATCHED and place is not None and self._yields_to(seat, place):
            self._found(inquiry, place, Presence.IN_USE)
            return
        elif sight.presence in (Presence.DOUBTED, Presence.WATCHED):
            inquiry.between = True
            if place is not None and place.holder not in inquiry.asked:
                self._add(inquiry, place.holder)
                if inquiry.asked.get(place.holder) == 0:
                    self._probe_one(inquiry, place.holder)
        elif sight.presence is Presence.PASSING and place is not None and place.holder == desk.me:
            inquiry.between = True  # it comes to us, or goes back
        elif place is not None and place.holder not in (desk.me, sender) and place == desk.best.get(place.slot):
            # An older sighting than the best is a cold trail.
            if sight.presence is Presence.PASSING:
                inquiry.heir = place.holder
            if place.holder not in inquiry.asked:
                self._add(inquiry, place.holder)
                if inquiry.asked.get(place.holder) == 0:
                    self._probe_one(inquiry, place.holder)
        if not sight.free:
            inquiry.refused = True
        if not inquiry.pending:
            self._end_of_stage(inquiry)

    def _yields_to(self, seat: Seat | None, place: Place) -> bool:
        """Ours is the weaker one, and the other one lives."""
        if seat is None or self.machine.seats.presence(seat.token.slot) is Presence.PASSING:
            return False
        own = place_of(seat.token, self.desk.me)
        return not same_token(own, place) and rank(place) > rank(own)

    def _probe_one(self, inquiry: Inquiry, node: NodeId) -> None:
        seat = self.machine.seats.by_slot.get(inquiry.slot)
        rival = place_of(seat.token, self.desk.me) if seat is not None else None
        ballot = self.desk.next_epoch(inquiry.slot) if inquiry.wide else 0
        inquiry.asked[node] = 2  # counts as a repetition: its round trip is not the one of the others
        inquiry.pending += 1
        overlap = seat is not None and seat.using is not None
        self.desk.post(node, Probe(inquiry.number, inquiry.slot, ballot, rival, overlap))

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _end_of_stage(self, inquiry: Inquiry) -> None:
        desk = self.desk
        if not inquiry.wide:
            near = set(inquiry.asked)
            inquiry.number += 1  # what still comes of the near stage is no ballot
            inquiry.began = 0
            self._widen(inquiry)
            for node, tries in inquiry.asked.items():
                # Those who answered are asked for the ballot, those who did not are given up.
                inquiry.asked[node] = 0 if tries < 0 else GIVEN_UP if node in near else tries
            self._probe(inquiry)
            return
        if self._goes_on(inquiry):
            return
        slot = inquiry.slot
        answers = sum(tries < 0 for tries in inquiry.asked.values())
        silent = [node for node, tries in inquiry.asked.items() if tries >= 0]
        seat = self.machine.seats.by_slot.get(slot)
        if seat is not None and self.machine.seats.presence(slot) is Presence.PASSING:
            self._again(inquiry, SECOND)  # ours, and out of our hands: the hand-over ends soon, one way or another
            return
        heir_is_well = inquiry.asked.get(inquiry.heir) == -1
        moves = inquiry.news or heir_is_well or self._is_ahead(inquiry)
        if self._gives_way(seat, moves) if seat is not None else moves or inquiry.between:
            self._again(inquiry, SECOND // 4)  # it was on its way just now, or somebody who has it finds out more
        elif self._cut_off(inquiry, answers):
            self._isolated(inquiry)
        elif inquiry.refused and seat is None:
            self.ballots.release(slot, desk.me)
            self._release(inquiry)  # or two inquirers would renew theirs for ever
            self._again(inquiry, SECOND // 2 if desk.home == desk.me else round(SECOND * (1 + desk.rng.random())))
        elif desk.alone and desk.now - self.since < from_seconds(desk.options.listen):
            self._again(inquiry, from_seconds(desk.options.listen) - (desk.now - self.since))
        else:
            self._connected()
            del self.inquiries[slot]
            for node in silent:
                desk.suspect(node)
            if seat is not None:
                self._settle(seat)
            else:
                self.machine.regenerate(slot, inquiry.why)
                self.machine.ghosts.haunt(slot, silent)

    def _goes_on(self, inquiry: Inquiry) -> bool:
        """A sample found nothing: ask all the others, batch by batch."""
        if not inquiry.everybody and not (inquiry.between or inquiry.refused):
            inquiry.everybody = True
            inquiry.unasked = [node for node in self.desk.members if node not in inquiry.asked]
        if not inquiry.unasked:
            return False
        inquiry.tries = inquiry.began = 0
        for node in inquiry.unasked[:BATCH]:
            self._add(inquiry, node, PROBES - FEW)
        del inquiry.unasked[:BATCH]
        self._probe(inquiry)
        return True

    def departed(self, node: NodeId) -> None:
        """It is known to be gone: its silence says nothing, and what was promised to it is free."""
        self.ballots.departed(node)
        for inquiry in list(self.inquiries.values()):
            tries = inquiry.asked.pop(node, 0)
            if 0 < tries <= PROBES:
                inquiry.pending -= 1
                if not inquiry.pending:
                    self._end_of_stage(inquiry)

    def silenced(self, node: NodeId) -> None:
        """The group has found out that it does not answer: nobody waits for it any longer, but who has a token.
        (Where all answer quickly, its stage is soon over; and a group that was divided may be one again by then.)"""
        for inquiry in list(self.inquiries.values()):
            tries = inquiry.asked.get(node, 0)
            late = self.desk.now - inquiry.began > SECOND
            if 0 < tries <= PROBES and late and inquiry.slot not in self.machine.seats.by_slot:
                inquiry.asked[node] = GIVEN_UP
                inquiry.pending -= 1
                if not inquiry.pending:
                    self._end_of_stage(inquiry)

    def _is_ahead(self, inquiry: Inquiry) -> bool:
        """The trail leads to a node that was not asked any more: the token moves as fast as the questions do."""
        best = self.desk.best.get(inquiry.slot)
        if best is None or best.holder == self.desk.me or best.holder in inquiry.asked:
            return False
        # Whom this node took for dead, others may know better: if it goes on from there, they hear of it soon.
        just_now = self.desk.now - self.desk.learned_at[inquiry.slot] < FRESH
        return just_now or self.desk.is_member(best.holder)

    def _gives_way(self, seat: Seat, moves: bool) -> bool:
        """A better one was heard of. It goes on being heard of, or is where this node cannot ask, which will change
        soon if the group was divided: two that each replace the other at once would both be used until then."""
        better = self.desk.outranked(seat.token)
        if better is None:
            return False
        return moves or (not self.desk.is_member(better.holder) and self.desk.now - seat.doubted_at < OUT_OF_SIGHT)

    def _settle(self, seat: Seat) -> None:
        """We are in touch, and nobody has a better token than the one we doubted."""
        better = self.desk.outranked(seat.token)
        seat.doubt = False
        if better is not None:  # heard of, and nowhere any more: ours is replaced by one that outranks it
            self.machine.seats.renew(seat)
        seat.heard_at = self.desk.now
        seat.token = escorted(seat.token, watch=())
        self.machine.watch.began(seat)
        self.machine.seats.advance(seat)
        if self.machine.seats.by_slot.get(seat.token.slot) is seat and not seat.giving and not seat.parked:
            self.machine.watch.beat(seat)

    def _found(self, inquiry: Inquiry, place: Place, presence: Presence) -> None:
        desk = self.desk
        self._connected()
        self._stop(inquiry)
        seat = self.machine.seats.by_slot.get(inquiry.slot)
        if seat is not None:
            self.machine.seats.discard(seat, place, presence)
        self.machine.registrar.found(place, presence)
        self.machine.waiter.ask_again(place.holder)
        if seat is not None:
            self.machine.waiter.ask()
        desk.trust(place.holder)

    def _cut_off(self, inquiry: Inquiry, answers: int) -> bool:
        """Not more than half of those asked, this node among them, can be reached; of two halves one goes on."""
        there, all_of_them = 2 * (answers + 1), len(inquiry.asked) + 1
        if there != all_of_them or self.desk.options.when_isolated == "proceed":
            return there < all_of_them
        first = next(self.desk.ring(), self.desk.me)
        return first != self.desk.me and inquiry.asked.get(first) != -1

    def _isolated(self, inquiry: Inquiry) -> None:
        desk = self.desk
        if not self.isolated:
            self.isolated = True
            desk.note(FactKind.ISOLATED, detail=f"{inquiry.why}; fewer than half of those asked answer")
        seat = self.machine.seats.by_slot.get(inquiry.slot)
        if seat is not None:
            self.machine.seats.tell(seat, LostReason.ISOLATED)
        if desk.options.when_isolated != "proceed":
            self.machine.deafness.unheard = tuple(node for node, tries in inquiry.asked.items() if tries >= 0)
            self.machine.deafness.say(inquiry.slot)
            self._again(inquiry, 2 * SECOND)
            return
        self._stop(inquiry)
        if seat is not None:
            self._settle(seat)
        else:
            self.machine.regenerate(inquiry.slot, "isolated, and told to proceed")

    def _connected(self) -> None:
        if self.isolated:
            self.isolated = False
            self.machine.deafness.unheard = ()
            self.desk.note(FactKind.REJOINED)

    def _again(self, inquiry: Inquiry, span: Duration) -> None:
        self._stop(inquiry)
        self.desk.timer(("retry", inquiry.slot), self.desk.now + self.desk.jitter(span))

    def _stop(self, inquiry: Inquiry) -> None:
        del self.inquiries[inquiry.slot]
        self.desk.cancel(("probe", inquiry.slot))

    def seen(self, place: Place) -> None:
        """Its holder spoke to us: no need to look for it."""
        inquiry = self.inquiries.get(place.slot)
        if inquiry is not None and self.machine.seats.by_slot.get(place.slot) is None:
            self._found(inquiry, place, Presence.IN_USE)

    def came(self, slot: int) -> None:
        """The token is here: no need to look for it."""
        inquiry = self.inquiries.get(slot)
        if inquiry is not None:
            self._stop(inquiry)
            self.desk.cancel(("retry", slot))
