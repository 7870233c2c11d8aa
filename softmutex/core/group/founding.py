"""Who makes the first token of a mutex, and how a node learns what mutex it is that others speak of.

    open "x": all members are asked, 8 first, then all       a member's message is about "x", which nobody opened here
       somebody uses it --> Started(hint), or Refuse                                |
       nobody does, and the group is settled --> FOUNDER        DESCRIBE --> its sender --DESCRIPTION--> TakePart
       another one asks too: the lower id goes on               (messages that come meanwhile are kept, a few)
       too few answer --> wait; Stalled, it is said

What it decides: that nobody makes a second token. The naive ways make one: to found when one has heard nothing for a
while, as soon as the network is slow; to ask a sample, or nobody in a large group, when those that know are not in it;
to ask only whom one knows, when one knows a part.

F1  A founder has asked every member that it knows, and each answered that it knows nobody who uses it, or is known to
    be dead, or was silent for `alone_after` while more than half of those that count answered (`proceed`: whatever
    answered). Nobody founds before the group is settled: every listed address met, refused, or silent so long.
F2  Of two that ask at once and have asked one and the same third node, at most one founds: it names the one to the
    other, and of two the lower id goes on; the other one waits for its word, and asks again.
F3  Answers tell how many members the answerer knows, and who they are (a digest). Where that is not what this node
    knows, whom it names is met and asked, too. (Not where the membership is complete: of two that join one sees the
    other, and asks it.) Who finds it in use asks one of them: a node cannot reach whom it does not know.
F4  Terms are compared before anything is granted: who has others than those who use it takes no part.
F5  An answer counts for the stage of the inquiry in which it was asked for, a word that was not asked for only if it
    says that the mutex is used.
F6  What others can make grow is bounded, and forgotten: notes of who asks and who uses, messages kept.
F7  Who only takes part defends no terms. Where nobody that answers uses it, and some take part by other terms, all are
    asked anew, and are to give it up: each forgets it before it answers, and is as one that never heard of it (F2).
    Nobody is left out (but with `proceed`): who was silent would go on with a token of its own, beside the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final

from softmutex.core.chance import drawn
from softmutex.core.events import NOBODY, SECOND, CancelTimer, Instant, NodeId, Received, SetTimer, from_seconds
from softmutex.core.group.effects import Drop, GiveUp, Mismatch, RefuseMutex, Say, Stalled, Start, TakePart, Tell
from softmutex.core.group.inquiry import Inquiry
from softmutex.core.messages import Describe, Description, Message, Standing
from softmutex.core.tuples import NamedTuple

if TYPE_CHECKING:
    from softmutex.core.group.group import Group

BATCH_FIRST: Final = 8
BATCH: Final = 256  # asked, and not answered yet
ANSWER: Final = from_seconds(0.1)  # the first wait; or the learnt patience
STOOD_BACK: Final = SECOND  # who waits for another's word asks again then: that one may have died
ROSTERS_MOST: Final = 256  # asked for in one inquiry
NOTES_MAX: Final = 4096
ASKING_FOR: Final = 3 * SECOND
KNOWN_FOR: Final = 60 * SECOND
INTRODUCTION: Final = 2 * SECOND
UNDESCRIBED_MAX: Final = 64
KEPT_MAX: Final = 8
TERMS: Final = ("algorithm", "slots", "op", "nodes_max", "skip", "min_interval", "max_interval", "options")


class Standpoint(NamedTuple):
    """Of a mutex that nobody here uses: who asks for it, or uses it, as this node heard."""

    standing: Standing
    by: NodeId
    until: Instant


class Introduction:
    """Messages about a mutex that nobody has described yet, and who was asked to, and when."""

    __slots__ = ("asked", "kept", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: dict[NodeId, Instant] = {}
        self.kept: list[Received] = []


class Founding:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.running: dict[str, Description] = {}  # the terms of the mutexes in which this node takes part
        self.uses: Callable[[str], bool] = self.running.__contains__  # which of them an application here uses, too
        self._inquiries: dict[str, Inquiry] = {}
        self._introductions: dict[str, Introduction] = {}
        self._by_number: dict[int, str] = {}  # of inquiries and introductions: what their timers are called
        self._last_number = 0
        self._notes: dict[str, Standpoint] = {}
        self._is_due = False

    # --- the application opens a mutex ------------------------------------------------------------------------------

    def open(
        self, mutex: str, terms: Description, now: Instant, *, when_isolated: str = "wait", min_members: int = 1
    ) -> None:
        """Ends with `Start` or `RefuseMutex`, at once where nobody is to be asked."""
        if mutex in self._inquiries or mutex in self.running:
            return
        introduction = self._introductions.pop(mutex, None)
        kept = tuple(introduction.kept) if introduction is not None else ()
        if introduction is not None:
            del self._by_number[introduction.number]
            self._group.put(CancelTimer(("introduction", introduction.number)))
        number = self._number(mutex)
        inquiry = Inquiry(mutex, terms, when_isolated, min_members, number, self._draw(), now)
        self._inquiries[mutex] = inquiry
        note = self._note_of(mutex, now)
        if note is not None and note.standing is Standing.KNOWN and note.by in self._group.peers:
            inquiry.pointed(note.by, now)
        inquiry.is_contested = note is not None and note.standing is Standing.ASKING
        for received in kept:
            self._heard_of(inquiry, received)
        self._advance(inquiry, now)

    def closed(self, mutex: str) -> None:
        """This node takes part in it no longer, or cannot."""
        self.running.pop(mutex, None)
        inquiry = self._inquiries.pop(mutex, None)
        if inquiry is not None:
            self._end(inquiry)

    def joined(self, mutex: str, terms: Description) -> None:
        """It takes part, after `TakePart`."""
        self.running[mutex] = terms

    def is_asking(self, mutex: str) -> bool:
        return mutex in self._inquiries

    # --- the inquiry ------------------------------------------------------------------------------------------------

    def left(self, gone: Container[NodeId], now: Instant) -> None:
        """They are members no longer: what was heard of them counts no longer either."""
        for mutex in [mutex for mutex, note in self._notes.items() if note.by in gone]:
            del self._notes[mutex]
        self.look_again(now)

    def look_again(self, now: Instant) -> None:
        """Something has changed in the group. Soon, and not inside of what changes it."""
        for inquiry in self._inquiries.values():
            inquiry.is_stale = True
        if self._inquiries and not self._is_due:
            self._is_due = True
            self._group.put(SetTimer(("found", 0), now))

    def fired(self, kind: str, number: int, now: Instant) -> None:
        """The timers ("found", number of an inquiry, or 0: all of them) and ("introduction", number)."""
        if kind == "found" and not number:
            self._is_due = False
            for inquiry in list(self._inquiries.values()):
                self._advance(inquiry, now)
            return
        mutex = self._by_number.get(number, "")
        if kind == "introduction" and mutex in self._introductions:
            del self._by_number[number]
            self._group.put(Drop("undescribed", len(self._introductions.pop(mutex).kept)))
        elif kind == "found" and mutex in self._inquiries:
            inquiry = self._inquiries[mutex]
            if inquiry.stands_back:
                inquiry.resume(self._draw(), now)
            self._advance(inquiry, now)

    def roster_ended(self, node: NodeId, now: Instant) -> None:
        for inquiry in self._inquiries.values():
            inquiry.roster_ended(node)
        self.look_again(now)

    def _advance(self, inquiry: Inquiry, now: Instant) -> None:
        """Asks whom it is time to ask, and concludes where that may be."""
        group = self._group
        if inquiry.stands_back and not inquiry.known_by:
            return
        wait = max(ANSWER, group.patience.wait())
        inquiry.own_digests[group.company.digest] = None
        inquiry.line_up(group.members, group.peers, group.ego.rng)
        for node in inquiry.whom_to_ask(BATCH_FIRST, BATCH, wait, now):
            if inquiry.replaces:
                group.put(Tell(node, inquiry.mutex, self._say(inquiry.terms, Standing.ASKING, group.ego.id)))
            group.put(Tell(node, inquiry.mutex, Describe(True, inquiry.stage)))
            if inquiry.is_overdue(node):
                group.suspect(node, now)
        if not inquiry.known_by and not inquiry.unanswered:
            is_complete = group.listing is not None and group.listing.complete
            for node in inquiry.whose_rosters(is_complete, ROSTERS_MOST):
                group.rosters.ask(node, now)
        if not self._conclude_if_clear(inquiry, now):
            group.put(SetTimer(("found", inquiry.number), now + wait))

    def _conclude_if_clear(self, inquiry: Inquiry, now: Instant) -> bool:
        group = self._group
        patience = group.alone_after
        if len(group.members) < inquiry.min_members:
            self._stall(
                inquiry, f"{len(group.members)} of at least {inquiry.min_members} members are there (min_members)"
            )
            return False
        if inquiry.known_by:
            if inquiry.may_still_tell(group.peers, now, patience):
                return False
            self._conclude(inquiry, inquiry.known_by, now)
            return True
        if not group.is_settled or inquiry.is_open_ended(group.peers, now):
            return False
        silent = inquiry.unanswered
        if inquiry.may_still_answer(now, patience):
            return False
        answered = len(group.members) - len(silent)
        if silent and inquiry.when_isolated != "proceed" and 2 * answered <= len(group.members):
            self._stall(inquiry, self._name_silent(silent, answered, "which is not more than half"))
            return False
        if inquiry.others_terms and not inquiry.takes_part:
            if silent and inquiry.when_isolated != "proceed":
                why = "some with other settings, which are changed only where all answer"
                self._stall(inquiry, self._name_silent(silent, answered, why))
                return False
            if not inquiry.replaces:
                inquiry.replace(self._draw(), now)
                self.look_again(now)
                return False
        self._tell_who_is_missing(inquiry.mutex, silent)
        self._conclude(inquiry, inquiry.takes_part, now)
        return True

    def _stall(self, inquiry: Inquiry, why: str) -> None:
        if not inquiry.is_stalled:
            inquiry.is_stalled = True
            self._group.put(Stalled(inquiry.mutex, why))

    def _name_silent(self, silent: Sequence[NodeId], answered: int, which: str) -> str:
        group = self._group
        who = ", ".join(group.company.call(node) for node in silent[:4]) + (", ..." if len(silent) > 4 else "")
        return (
            f"{answered} of {len(group.members)} members answer, this one included, {which}, "
            f"and none of these knows of a token. Silent: {who}"
        )

    def _tell_who_is_missing(self, mutex: str, silent: Sequence[NodeId]) -> None:
        """Where a list names others, and not all of them are there."""
        group = self._group
        found = group.reachability()
        found += tuple((group.company.call(node), "silent") for node in silent if group.peers[node].listed is None)
        missing = [(who, state) for who, state in found if state != "reached"]
        if not missing:
            return
        there = len(found) - len(missing)
        head = f"the first token of {mutex!r} is made here" if len(group.members) > 1 else "starting alone"
        states = ", ".join(f"{who} {state}" for who, state in missing[:8]) + (", ..." if len(missing) > 8 else "")
        text = f"{head}: {there} of {len(found)} reachable: {states}"
        is_routine = not silent and all(state == "refused" for _, state in missing)
        group.put(Say("alone" if len(group.members) == 1 else "missing", text, is_routine=is_routine))

    def _conclude(self, inquiry: Inquiry, hint: NodeId, now: Instant) -> None:
        """And all that were asked are told, so that who asks them later hears of it."""
        group = self._group
        is_founder = not hint
        del self._inquiries[inquiry.mutex]
        self._end(inquiry)
        self.running[inquiry.mutex] = inquiry.terms
        self._notes.pop(inquiry.mutex, None)
        group.put(Start(inquiry.mutex, is_founder, hint, inquiry.kept))
        known = self._say(inquiry.terms, Standing.KNOWN, group.ego.id)
        for node in inquiry.whom_to_tell(is_founder):
            group.put(Tell(node, inquiry.mutex, known))
        if hint:
            self._learn(inquiry.knows_others, inquiry.their_digest, now)

    def _end(self, inquiry: Inquiry) -> None:
        del self._by_number[inquiry.number]
        self._group.put(CancelTimer(("found", inquiry.number)))

    def _stand_back(self, inquiry: Inquiry, rival: NodeId, now: Instant) -> None:
        inquiry.rivals[rival] = None
        if not inquiry.stands_back:
            inquiry.stands_back = True  # a time-out, for it may have died, and then asks anew
            wait = max(STOOD_BACK, 4 * self._group.patience.wait())
            self._group.put(SetTimer(("found", inquiry.number), now + wait))

    # --- a member's message is about a mutex that nobody opened here ------------------------------------------------

    def keep(self, mutex: str, received: Received, now: Instant) -> None:
        """Keeps the message until somebody has told what the mutex is: its sender, or that of the next message."""
        group, sender = self._group, received.sender
        if mutex in self._inquiries:
            self._heard_of(self._inquiries[mutex], received)
            self._advance(self._inquiries[mutex], now)
            return
        introduction = self._introductions.get(mutex)
        if introduction is None:
            if len(self._introductions) >= UNDESCRIBED_MAX:
                group.put(Drop("undescribed"))
                return
            introduction = self._introductions[mutex] = Introduction(self._number(mutex))
            group.put(SetTimer(("introduction", introduction.number), now + INTRODUCTION))
        if len(introduction.asked) < KEPT_MAX:
            self._ask(introduction, mutex, sender, now)
        if len(introduction.kept) < KEPT_MAX:
            introduction.kept.append(received)
        else:
            group.put(Drop("undescribed"))

    def _ask(self, introduction: Introduction, mutex: str, peer: NodeId, now: Instant) -> None:
        if now - introduction.asked.get(peer, 0) >= ANSWER:
            introduction.asked[peer] = now
            self._group.put(Tell(peer, mutex, Describe(False)))

    def _heard_of(self, inquiry: Inquiry, received: Received) -> None:
        """Whoever speaks of a mutex to its machine uses it, or takes part by terms that are not known to be others."""
        if received.sender in inquiry.others_terms:
            return
        inquiry.used(received.sender, is_compared=False)
        if len(inquiry.kept) < KEPT_MAX:
            inquiry.kept = (*inquiry.kept, received)
        else:
            self._group.put(Drop("undescribed"))

    # --- messages ---------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> int:
        """Of how many mutexes that nobody here uses something was heard."""
        return len(self._notes)

    def ask_terms(self, peer: NodeId, mutex: str) -> None:
        """A machine met a token of other settings: which ones is found out by asking."""
        self._group.put(Tell(peer, mutex, Describe(False)))

    def received(self, sender: NodeId, mutex: str, message: Message, now: Instant) -> bool:
        if isinstance(message, Describe):
            self._on_describe(sender, mutex, message, now)
        elif isinstance(message, Description):
            self._on_description(sender, mutex, message, now)
        else:
            return False
        return True

    def _on_describe(self, sender: NodeId, mutex: str, asked: Describe, now: Instant) -> None:
        group = self._group
        me = group.ego.id
        inquiry = self._inquiries.get(mutex)
        note = self._note_of(mutex, now)
        if mutex in self.running:
            said = self._of_running(mutex)
        elif inquiry is not None:
            said = self._say(inquiry.terms, Standing.ASKING, me)
        elif note is not None and note.by != sender:
            said = Description(note.standing, "", by=note.by)
        else:
            said = Description(Standing.UNKNOWN, "")
        told = said._replace(stage=asked.stage, members=len(group.members), digest=group.company.digest)
        group.put(Tell(sender, mutex, told))
        if not asked.founding or mutex in self.running:
            return
        if inquiry is None:
            if note is None or (note.standing is Standing.ASKING and sender <= note.by):
                self._note(mutex, Standing.ASKING, sender, now + ASKING_FOR)
        elif sender < me:
            self._stand_back(inquiry, sender, now)  # it may have come after we asked, and counts on that
        else:
            inquiry.rivals[sender] = None

    def _on_description(self, sender: NodeId, mutex: str, said: Description, now: Instant) -> None:
        inquiry = self._inquiries.get(mutex)
        if inquiry is not None:
            self._on_answer(inquiry, sender, said, now)
        elif mutex in self.running:
            if said.algorithm and (difference := differs(self.running[mutex], said)):
                self._on_other_terms(mutex, sender, said, difference, now)
        elif mutex in self._introductions and said.algorithm:
            self._on_introduction(mutex, sender, said, now)
        elif said.standing is Standing.KNOWN:
            self._note(mutex, Standing.KNOWN, said.by or sender, now + KNOWN_FOR)

    def _on_other_terms(self, mutex: str, sender: NodeId, said: Description, difference: str, now: Instant) -> None:
        """F7. `said.by` is NOBODY where it is not used there either."""
        group = self._group
        if self.uses(mutex):
            if not said.by:
                group.put(Tell(sender, mutex, self._of_running(mutex)))
            elif said.standing is Standing.KNOWN:
                group.put(Mismatch(mutex, sender, difference))
        elif said.by:
            del self.running[mutex]
            known_for = KNOWN_FOR if said.standing is Standing.KNOWN else ASKING_FOR
            self._note(mutex, said.standing, sender, now + known_for)
            group.put(GiveUp(mutex))

    def _on_introduction(self, mutex: str, sender: NodeId, said: Description, now: Instant) -> None:
        """F7. This node may have given it up, since somebody is about to run it otherwise, and is told how it was run
        before, by one that only takes part. So whoever was heard to use it, or to be about to, is asked then."""
        group, note = self._group, self._note_of(mutex, now)
        if said.standing is not Standing.KNOWN:
            return
        if not said.by and note is not None and note.by != sender and note.by in group.peers:
            self._ask(self._introductions[mutex], mutex, note.by, now)
            return
        introduction = self._introductions.pop(mutex)
        del self._by_number[introduction.number]
        group.put(CancelTimer(("introduction", introduction.number)))
        group.put(TakePart(mutex, sender, said, tuple(introduction.kept)))
        self._learn(sender, said.digest, now)

    def _on_answer(self, inquiry: Inquiry, sender: NodeId, said: Description, now: Instant) -> None:
        group = self._group
        if said.digest and said.digest != group.company.digest:
            inquiry.knows_others, inquiry.their_digest = sender, said.digest
        if said.standing is Standing.KNOWN:
            difference = said.algorithm and differs(inquiry.terms, said)
            if difference and not said.by:
                if said.stage == inquiry.stage and not inquiry.stands_back:
                    inquiry.rests(sender, said.digest)
            elif difference:
                del self._inquiries[inquiry.mutex]
                self._end(inquiry)
                group.put(RefuseMutex(inquiry.mutex, sender, difference))
                return
            elif said.algorithm and not said.by and inquiry.is_contested:
                inquiry.takes_part = sender
                inquiry.answered(sender, said.digest)
            elif said.algorithm:
                inquiry.used(sender, is_compared=True)
            else:
                inquiry.answered(sender, said.digest)
                if said.by != group.ego.id:
                    inquiry.pointed(said.by, now)
                    self._meet(said.by, sender, now)
        elif said.stage != inquiry.stage or inquiry.stands_back:
            return
        elif said.standing is Standing.ASKING and said.by < group.ego.id:
            inquiry.is_contested = True
            self._stand_back(inquiry, said.by, now)
        else:
            inquiry.answered(sender, said.digest)
            inquiry.is_contested = inquiry.is_contested or said.standing is Standing.ASKING
            if said.standing is Standing.ASKING and said.by not in (group.ego.id, sender):
                inquiry.rivalled(said.by, now + group.alone_after, group.peers)
                self._meet(said.by, sender, now)
        self._advance(inquiry, now)

    def _learn(self, node: NodeId, digest: int, now: Instant) -> None:
        """Of whom it knows, where that is not whom this node knows. (A list that is complete will say so.)"""
        group = self._group
        is_complete = group.listing is not None and group.listing.complete
        if node in group.peers and digest and digest != group.company.digest and not is_complete:
            group.rosters.ask(node, now)

    def _meet(self, node: NodeId, teller: NodeId, now: Instant) -> None:
        """Who speaks of a node that is no member here knows where it is."""
        if node not in self._group.peers:
            self._group.rosters.ask(teller, now)

    # --- how --------------------------------------------------------------------------------------------------------

    def _of_running(self, mutex: str) -> Description:
        """By nobody: it only takes part."""
        return self._say(self.running[mutex], Standing.KNOWN, self._group.ego.id if self.uses(mutex) else NOBODY)

    def _say(self, terms: Description, standing: Standing, by: NodeId) -> Description:
        return terms._replace(standing=standing, stage=0, by=by)

    def _note_of(self, mutex: str, now: Instant) -> Standpoint | None:
        note = self._notes.get(mutex)
        if note is not None and note.until <= now:
            del self._notes[mutex]
            return None
        return note

    def _note(self, mutex: str, standing: Standing, by: NodeId, until: Instant) -> None:
        self._notes.pop(mutex, None)
        self._notes[mutex] = Standpoint(standing, by, until)
        if len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]

    def _number(self, mutex: str) -> int:
        self._last_number += 1
        self._by_number[self._last_number] = mutex
        return self._last_number

    def _draw(self) -> int:
        return 1 + drawn(self._group.ego.rng)


def differs(mine: Description, theirs: Description) -> str:
    """In words, empty where they are the same: `slots is 2 there and 1 here`."""
    return ", ".join(
        f"{name} is {shown(name, theirs)} there and {shown(name, mine)} here"
        for name in TERMS
        if getattr(mine, name) != getattr(theirs, name)
    )


def shown(name: str, terms: Description) -> object:
    value = getattr(terms, name)
    if name == "options":
        return value or "{}"
    is_time = name in ("op", "skip", "min_interval", "max_interval")
    return value / SECOND if is_time and value is not None else value
