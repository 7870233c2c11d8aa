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
    of one, or was passing one to a node that answered, this one included. An answer counts for its stage only. Who
    doubts a token of its own makes none, and does not ask all who come meanwhile, or it would never end.
S2  A node promises the ballot of a slot to one inquirer at a time (`PROMISE` long): of several inquirers at once,
    those whose samples meet in one node, and all samples hold the homes, make one token.
S3  The epoch made is above every epoch that the asker and those who answered know.
L1  An inquiry ends within PROBES retransmission time-outs a stage, and one more after each answer that was late;
    whoever still has the reason starts it again.
A4  Answers cost the asked nothing but a message, and hold no state beyond one promise a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from softmutex.core.algorithms.wandering.context import Context, gives_way, is_copy, place_of, same_token
from softmutex.core.algorithms.wandering.messages import Account, Heard, Place, Presence, Probe, Sight
from softmutex.core.algorithms.wandering.settings import (
    BATCH,
    FRESH,
    PROBES,
    PROMISE,
    PROMISE_TRIPS,
    SAMPLE,
    SUSPICION,
)
from softmutex.core.events import NOBODY, SECOND, Duration, FactKind, Instant, LostReason, NodeId, from_seconds
from softmutex.core.messages import Accept, Done, Message

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.tokens import HeldToken, TokensHere

PROBE_LEAST: Final = SECOND // 20  # a probe may come at a bad moment; 1 + 2 + 3 + 4 of these are patient enough
ROUNDS: Final = 2  # of asking who came meanwhile about a token that is here, or it would never end
FEW: Final = 2  # probes to one of many: it is no loss if some do not answer
GIVEN_UP: Final = PROBES + 1
LATELY: Final = 2 * SECOND
OUT_OF_SIGHT: Final = 5 * SECOND  # a doubted token waits so long for one whose holder is no member here
NEW: Final = 4 * SECOND  # who came so lately and never heard of the token knows too few to say that there is none
WAIT_FOR_HOME: Final = 4 * SECOND  # whom others call silent, and the group does not tell of
GHOSTS: Final = 16
GHOSTS_EVERY: Final = 4 * SECOND
GHOSTS_TOLD: Final = 75  # times
NOBODY_YET: Final[tuple[NodeId, Instant]] = (NOBODY, 0)
DEAF_FOR: Final = 5 * SECOND  # it says so again within 2.5 s and an inquiry


class TokenSearch:
    """What is noted of one search for one token. `TokenSearches` decides what follows from it."""

    __slots__ = (
        "asked",
        "began",
        "between",
        "everybody",
        "heir",
        "impatient",
        "news",
        "number",
        "pending",
        "refused",
        "rounds",
        "sent_at",
        "slot",
        "tries",
        "unasked",
        "why",
        "wide",
    )

    def __init__(self, slot: int, why: str, number: int) -> None:
        self.slot = slot
        self.why = why
        self.number = number
        self.wide = False
        self.asked: dict[NodeId, int] = {}  # node -> probes sent without an answer; -1: it answered
        self.news = False  # the wide stage heard of a later sighting than the near one
        self.between = False  # somebody has one that is doubted, or should be
        self.refused = False  # somebody promised the ballot to another
        self.heir: NodeId = 0  # to whom somebody says it is passing the token
        self.impatient = False  # who was asked again in this stage did answer: others may, whom it has given up
        self.began: Instant = 0  # this stage
        self.sent_at: Instant = 0
        self.tries = 0  # rounds of probes in this stage
        self.pending = 0  # asked in this round, and not answered
        self.everybody = False  # is asked, in this stage
        self.unasked: list[NodeId] = []  # who comes in a later batch
        self.rounds = 0  # in which those were asked who had not been, or came meanwhile


class Ballots:
    """Who may make a token, as far as this node has a say: one node at a time, and only the first home that is there.

    A home that another node calls silent may only be silent for that one. So the group is asked (`Suspect`): when it
    knows that the home is dead or silent, the next one is the first; while it says nothing, we wait for a moment.

    At most one promise a slot, and one home is waited for.
    """

    __slots__ = ("_desk", "_promises", "_waited_for")

    def __init__(self, context: Context) -> None:
        self._desk = context
        self._promises: dict[int, tuple[NodeId, Instant]] = {}  # slot -> to whom, until when
        self._waited_for = NOBODY_YET  # a home that others want to stand in for, since when

    def is_next(self, node: NodeId) -> bool:
        home, since = self._desk.home, self._waited_for[1]
        if home in (node, NOBODY) or not self._desk.is_member(node):
            return True
        if home == self._desk.me:
            return False
        self._desk.suspicious(home)
        if self._waited_for[0] != home or self._desk.now - since > SUSPICION:
            self._waited_for = (home, self._desk.now)
            return False
        return self._desk.now - since > WAIT_FOR_HOME and self._desk.heard.get(home, 0) < since

    def promise(self, slot: int, node: NodeId) -> bool:
        """Whether it has ours now."""
        if node in self._desk.deaf or node in self._desk.gone:  # what it said may have been late
            return False
        holder, until = self._promises.get(slot, (node, 0))
        if holder != node and until > self._desk.now:
            return False
        self._promises[slot] = (node, self._desk.now + max(PROMISE, PROMISE_TRIPS * self._desk.rto))
        return True

    def yields(self, slot: int, to: NodeId) -> bool:
        """Our own is of no use beside the first home's, and several that look for it would keep each other from it."""
        own = self._promises.get(slot, (NOBODY, 0))[0] == self._desk.me != to == self._desk.home
        if own and slot in self._desk.best:  # else both are newcomers, and either may know nobody of the group
            del self._promises[slot]
            return True
        return False

    def release(self, slot: int, node: NodeId) -> None:
        if self._promises.get(slot, (NOBODY, 0))[0] == node:
            del self._promises[slot]

    def departed(self, node: NodeId) -> None:
        for slot in list(self._promises):
            self.release(slot, node)


class Ghosts:
    """Nodes that did not answer when a token was made: one of them may have the old one, and come back with it.

    A node that was only cut off or asleep finds out by itself if it was using the token (its lease). A token that was
    parked has no lease, and its node would take it again without a message. So whoever made the new token tells the
    silent ones of it, again and again, until they answer, the membership drops them, or a few minutes have passed.

    At most `GHOSTS` a node; the oldest is forgotten.
    """

    __slots__ = ("context", "nodes")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.nodes: dict[NodeId, tuple[int, int]] = {}  # node -> (slot, how often it is told yet)

    def haunt(self, slot: int, silent: Sequence[NodeId]) -> None:
        for node in silent:
            self.nodes[node] = (slot, GHOSTS_TOLD)
        while len(self.nodes) > GHOSTS:
            del self.nodes[next(iter(self.nodes))]
        if self.nodes:
            self.context.timer("ghosts", self.context.now + GHOSTS_EVERY)

    def speaks(self, node: NodeId) -> None:
        """Now it will hear."""
        if node in self.nodes:
            slot, _ = self.nodes.pop(node)
            self._tell(node, slot)

    def forget(self, node: NodeId) -> None:
        self.nodes.pop(node, None)

    def fired(self) -> None:
        for node, (slot, times) in list(self.nodes.items()):
            self._tell(node, slot)
            if times > 1:
                self.nodes[node] = (slot, times - 1)
            else:
                del self.nodes[node]
        if self.nodes:
            self.context.timer("ghosts", self.context.now + GHOSTS_EVERY)

    def _tell(self, node: NodeId, slot: int) -> None:
        self.context.post(node, Sight(0, slot, self.context.best.get(slot), Presence.ABSENT, False))


class Deafness:
    """Who hears nobody and is heard all the same says so, and is not waited for: a link may work in one direction only.

    The naive way, to take whoever speaks for somebody who is there, waits for it as long as it speaks: a home that it
    would be, a ballot that it asks for, a token that it has and can pass to nobody. So a node whose inquiry found
    nobody (it is isolated, and uses no token before it hears again) tells those whose answers it misses. They pass it
    over as a home, as an inquirer and as the next holder, and miss its token at once if somebody waits.

        isolated --PROBE(0)--> deaf, to who hears that --an answer, or `DEAF_FOR` after the last word--> there again

    Said only while no A runs here with the token: who asks for a token in use goes on being told that it is. At most
    `context.DEAF` nodes are noted as deaf.
    """

    __slots__ = ("context", "here", "unheard")

    def __init__(self, here: TokensHere) -> None:
        self.context = here.context
        self.here = here
        self.unheard: tuple[NodeId, ...] = ()  # whose answers this node misses; nobody: it is not isolated

    def say(self, slot: int) -> None:
        """I claim nothing, and what I have I do not use."""
        held = self.here.by_slot.get(slot)
        if held is not None and (held.using is not None or not held.doubt):
            return
        place = None if held is None else place_of(held.token, self.context.me)
        for node in self.unheard:
            self.context.post(node, Probe(0, slot, 0, place, False))

    def misses(self, nodes: tuple[NodeId, ...]) -> None:
        """Whose answers did not come. Nobody's: this node is not isolated."""
        self.unheard = nodes

    def said(self, sender: NodeId) -> None:
        self.context.hears_nobody(sender, DEAF_FOR)
        self.context.timer("deaf", self.context.now + DEAF_FOR)

    def heard(self, sender: NodeId, message: Message) -> bool:
        """Whether it answers a question of ours: then it hears."""
        answers = (Accept, Done, Heard, Account)
        if isinstance(message, answers) or (isinstance(message, Sight) and message.number):
            self.context.hears(sender)
            return True
        return False

    def fired(self) -> None:
        """Whoever has not said so again is as good as anybody."""
        context = self.context
        for node, until in list(context.deaf.items()):
            if until <= context.now:
                context.hears(node)
        if context.deaf:
            context.timer("deaf", min(context.deaf.values()))


class TokenSearchOwner(Protocol):
    """What a search asks of the node that it is for, and tells it."""

    def withhold(self, held: HeldToken) -> bool:
        """Neither grant nor pass it any more. False: it is on its way already."""

    def still_looks_for(self, slot: int) -> bool:
        """Whether anybody here has a reason yet."""

    def heard_of(self, slot: int) -> Place | None:
        """Where this node hears its holder, as it should."""

    def found(self, place: Place, presence: Presence) -> None:
        """Somebody has it: what is here of that slot is the weaker one."""

    def settled(self, held: HeldToken) -> None:
        """The token that was doubted here was not replaced."""

    def regenerate(self, slot: int, why: str) -> None:
        """Nobody has it."""


class TokenSearches:
    __slots__ = ("ballots", "by_slot", "context", "deafness", "ghosts", "here", "isolated", "owner", "since")

    def __init__(self, here: TokensHere, deafness: Deafness, ghosts: Ghosts, owner: TokenSearchOwner) -> None:
        self.context = here.context
        self.here = here
        self.owner = owner
        self.by_slot: dict[int, TokenSearch] = {}
        self.ballots = Ballots(here.context)
        self.deafness = deafness
        self.ghosts = ghosts
        self.isolated = False
        self.since: Instant = 0  # when this node began to listen

    def running(self, slot: int) -> bool:
        return slot in self.by_slot

    # --- reasons -----------------------------------------------------------------------------------------------------

    def start(self, slot: int, why: str, wide: bool = False) -> None:
        held = self.here.by_slot.get(slot)
        if slot in self.by_slot or (held is not None and not held.doubt):
            return  # it is here: nobody will have seen it, but us, and it may be gone when they have answered
        context, here = self.context, self.here
        if held is None and here.leaving and not (here.in_use and context.home == context.me):
            return  # a leaver has no use for one that it would make; while A runs, a home has its duties
        search = self.by_slot[slot] = TokenSearch(slot, why, int(context.rng.random() * 2**53))
        best = context.best.get(slot)
        if best is not None:
            self._add(search, best.holder)
        for node in context.homes(2):
            self._add(search, node)
        if wide or best is None or not search.asked:
            self._widen(search)
        self._probe(search)

    def census(self) -> None:
        """This node waits, and the homes are silent."""
        slots = self.context.options.slots
        self.start(int(self.context.rng.random() * slots) if slots > 1 else 0, "waits, and no home answers", wide=True)

    def doubt(self, held: HeldToken) -> None:
        """Our token may have been replaced: neither grant it nor pass it on before we know."""
        if not self.owner.withhold(held):
            return
        self.start(held.token.slot, "was out of touch with its watchers", wide=True)

    def release_ballot(self, slot: int, node: NodeId) -> None:
        """What was promised to it is free."""
        self.ballots.release(slot, node)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _add(self, search: TokenSearch, node: NodeId, tries: int = 0) -> None:
        context = self.context
        if node not in (0, context.me) and node not in context.gone:
            if node in context.silent:
                tries = PROBES - 1  # the group has asked it; but it may be back
            elif not context.is_member(node):
                tries = PROBES - FEW  # it was never heard of here, but somebody knows it
            search.asked.setdefault(node, tries)

    def _widen(self, search: TokenSearch) -> None:
        context = self.context
        search.wide = True
        search.tries = 0
        for node in context.homes(2):
            self._add(search, node)
        search.everybody = len(context.members) <= 4 * SAMPLE  # a small group is asked whole
        for node in context.random_others(4 * SAMPLE if search.everybody else SAMPLE):
            self._add(search, node, 0 if search.everybody else PROBES - FEW)
        if not self.ballots.promise(search.slot, context.me):
            search.refused = True

    def _probe(self, search: TokenSearch) -> None:
        """Ask all who have not answered; when that is nobody, decide."""
        context = self.context
        held = self.here.by_slot.get(search.slot)
        rival = place_of(held.token, context.me) if held is not None else None
        overlap = held is not None and held.using is not None
        search.pending = 0
        if search.wide:
            self.ballots.promise(search.slot, context.me)  # ours is renewed as well
        if held is not None and held.doubt and context.now - held.doubted_at > self.context.slack:
            self.here.tell(held, LostReason.LEASE)  # it takes too long to find out
        for node, tries in search.asked.items():
            if 0 <= tries < PROBES:
                search.asked[node] = tries + 1
                search.pending += 1
                if tries > 1 or (tries and not search.everybody):
                    context.suspicious(node)
                ballot = context.next_epoch(search.slot) if search.wide else 0
                context.post(node, Probe(search.number, search.slot, ballot, rival, overlap))
            elif tries == PROBES:
                search.asked[node] = GIVEN_UP
        if search.pending:
            search.sent_at = context.now
            search.began = search.began or context.now
            search.tries += 1
            context.timer(("probe", search.slot), context.now + search.tries * max(context.rto, PROBE_LEAST))
        else:
            self._end_of_stage(search)

    def fired(self, slot: int) -> None:
        search = self.by_slot.get(slot)
        if search is not None:
            self._probe(search)

    def retry(self, slot: int) -> None:
        """An inquiry that could not decide is due again, if anybody here still has a reason."""
        held = self.here.by_slot.get(slot)
        if held is not None:
            if held.doubt:
                self.start(slot, "was out of touch with its watchers", wide=True)
        elif self.owner.still_looks_for(slot):
            self.start(slot, "still looks for it", wide=True)

    def listen(self) -> None:
        """A node that joins makes nothing for a while."""
        self.since = self.context.now
        self.looks_around()

    def looks_around(self) -> None:
        """Soon: who has a token may tell of it."""
        self.context.timer("listened", self.context.now + from_seconds(self.context.options.listen))

    def listened(self) -> None:
        """If it is the home, it should know where the tokens are."""
        context = self.context
        if context.home == context.me and not context.alone:
            for slot in range(context.options.slots):
                if slot not in context.best:
                    self.start(slot, "is the home, and never heard of it", wide=True)

    # --- answering ---------------------------------------------------------------------------------------------------

    def probed(self, sender: NodeId, probe: Probe) -> None:
        context = self.context
        slot = probe.slot
        if not 0 <= slot < context.options.slots:
            return
        if probe.rival is not None:
            self._meet(sender, probe.rival, probe.overlap)
        free = True
        if not probe.ballot:
            self.ballots.release(slot, sender)
        else:
            search = self.by_slot.get(slot)
            if self.ballots.yields(slot, sender) and search is not None:
                search.refused = True
            free = self.ballots.is_next(sender) and self.ballots.promise(slot, sender)
            if not free and context.home == context.me:
                self.start(slot, "somebody else looks for it")
        here = self.here
        presence = here.presence(slot)
        place = context.best.get(slot)
        heard_of = self.owner.heard_of(slot)
        if presence is Presence.ABSENT and heard_of is not None and heard_of.holder != sender:
            presence, place = Presence.WATCHED, heard_of
        elif presence is Presence.ABSENT and self._was_just_seen(slot, sender):
            presence = Presence.WATCHED
        elif presence is Presence.PASSING:
            place = here.next_place(here.by_slot[slot])
        elif presence is not Presence.ABSENT:
            place = place_of(here.by_slot[slot].token, context.me)
        if presence is Presence.ABSENT and free and probe.ballot and probe.rival is None:
            context.gives_up(slot)
        context.post(sender, Sight(probe.number, slot, place, presence, free))

    def _was_just_seen(self, slot: int, by: NodeId) -> bool:
        """At a node that is there, and that the asker may not know yet. What the asker said itself is no news to it."""
        place = self.context.best.get(slot)
        if place is None or place.holder in (by, self.context.me) or not self.context.reaches(place.holder):
            return False
        if self.context.learned_from[slot] == by:
            return False
        return self.context.now - self.context.learned_at[slot] < LATELY

    def _release(self, search: TokenSearch) -> None:
        """What was promised to us is of no use."""
        for node, tries in search.asked.items():
            if tries < 0:
                self.context.post(node, Probe(search.number, search.slot, 0, None, False))

    def _meet(self, sender: NodeId, rival: Place, overlap: bool) -> None:
        """Another node has a token of this slot. Both are told, and the weaker one goes."""
        context = self.context
        held = self.here.by_slot.get(rival.slot)
        context.learn(rival)
        if held is None:
            return
        is_copied = sender == rival.holder and self.copied(held, rival)
        if not is_copied and same_token(rival, place_of(held.token, context.me)):
            return
        if overlap and held.using is not None and not held.told:
            self.here.tell(held, LostReason.OVERLAP)
        if not is_copied and context.outranked(held.token) is not None and not held.giving:
            if not held.doubt:
                self.doubt(held)
            elif sender == rival.holder:
                self.seen(rival)

    def copied(self, held: HeldToken, place: Place) -> bool:
        """Another node says that it has a token. If that is a second one of ours, as a liar makes, one of the two goes:
        to everybody else both are one that moves, and nobody would ever find it replaced."""
        own = place_of(held.token, self.context.me)
        if held.giving or not is_copy(place, own, held.visit.place):
            return False
        if gives_way(own, place, held.visit.place):
            self.doubt(held)
        else:
            self.context.post(place.holder, Sight(0, place.slot, own, Presence.ABSENT, False))
        return True

    # --- answers -----------------------------------------------------------------------------------------------------

    def sighted(self, sender: NodeId, sight: Sight) -> None:
        context = self.context
        place = sight.place
        news = False
        if place is not None:
            if place.slot != sight.slot:
                return
            known = context.best.get(place.slot)
            news = context.learn(place, sender)
            if news and known is not None and not same_token(known, place) and known.holder not in (sender, context.me):
                context.post(known.holder, Sight(0, place.slot, place, Presence.ABSENT, False))  # it may not pass here
        held = self.here.by_slot.get(sight.slot)
        if sight.number == 0:
            if sight.presence is Presence.DOUBTED and held is not None and not held.giving:
                self.doubt(held)  # who watches over it reaches too few to go on doing so
            elif held is not None and not held.giving and not held.doubt and context.outranked(held.token) is not None:
                self.doubt(held)
            elif held is not None and place is not None and sender == place.holder and not held.doubt:
                self.copied(held, place)
            return
        search = self.by_slot.get(sight.slot)
        if search is None or search.number != sight.number or sender not in search.asked:
            return
        tries = search.asked[sender]
        if tries == 1:
            context.measured(context.now - search.sent_at)
        elif tries > 1:
            context.late_answer(search.began)
            search.impatient = True
        search.pending -= 0 < tries <= PROBES
        search.asked[sender] = -1
        search.news = search.news or (news and search.wide)
        if sight.presence in (Presence.PARKED, Presence.IN_USE) and place is not None:
            out_of_hands = held is None or self.here.presence(sight.slot) is Presence.PASSING
            own = None if held is None or out_of_hands else place_of(held.token, context.me)
            if place != context.best.get(place.slot) and own is None:
                # A token that a better one was made after, or its holder's own view of it: let the holder find out.
                search.between = True
                context.post(sender, Sight(0, place.slot, context.best.get(place.slot), Presence.ABSENT, False))
            elif held is None or own is None or gives_way(own, place, held.visit.place):
                self._found(search, place, sight.presence)
                return
            # Else it has the weaker one: our probe told it so.
        elif sight.presence in (Presence.DOUBTED, Presence.WATCHED):
            if place is not None and self._yields_to(held, place):
                self._found(search, place, Presence.IN_USE)
                return
            search.between = True
            if place is not None and place.holder not in search.asked:
                self._add(search, place.holder)
                if search.asked.get(place.holder) == 0:
                    self._probe_one(search, place.holder)
        elif sight.presence is Presence.PASSING and place is not None and place.holder == context.me:
            search.between = True  # it comes to us, or goes back
        elif place is not None and place.holder not in (context.me, sender) and place == context.best.get(place.slot):
            # An older sighting than the best is a cold trail.
            if sight.presence is Presence.PASSING:
                search.heir = place.holder
            if place.holder not in search.asked:
                self._add(search, place.holder)
                if search.asked.get(place.holder) == 0:
                    self._probe_one(search, place.holder)
        if not sight.free:
            search.refused = True
        if not search.pending:
            self._end_of_stage(search)

    def _yields_to(self, held: HeldToken | None, place: Place) -> bool:
        """Ours is the weaker one, and the other one lives."""
        if held is None or self.here.presence(held.token.slot) is Presence.PASSING:
            return False
        return gives_way(place_of(held.token, self.context.me), place, held.visit.place)

    def _probe_one(self, search: TokenSearch, node: NodeId) -> None:
        held = self.here.by_slot.get(search.slot)
        rival = place_of(held.token, self.context.me) if held is not None else None
        ballot = self.context.next_epoch(search.slot) if search.wide else 0
        search.asked[node] = 2  # counts as a repetition: its round trip is not the one of the others
        search.pending += 1
        overlap = held is not None and held.using is not None
        self.context.post(node, Probe(search.number, search.slot, ballot, rival, overlap))

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _end_of_stage(self, search: TokenSearch) -> None:
        context = self.context
        if not search.wide:
            near = set(search.asked)
            search.number += 1  # what still comes of the near stage is no ballot
            search.began = 0
            search.between, search.heir = False, NOBODY  # what was so then is asked once more
            self._widen(search)
            for node, tries in search.asked.items():
                # Those who answered are asked for the ballot, those who did not are given up.
                search.asked[node] = 0 if tries < 0 else GIVEN_UP if node in near else tries
            self._probe(search)
            return
        if self._goes_on(search) or self._asks_once_more(search):
            return
        slot = search.slot
        answers = sum(tries < 0 for tries in search.asked.values())
        silent = [node for node, tries in search.asked.items() if tries >= 0]
        held = self.here.by_slot.get(slot)
        if held is not None and self.here.presence(slot) is Presence.PASSING:
            self._again(search, SECOND)  # ours, and out of our hands: the hand-over ends soon, one way or another
            return
        heir_is_well = search.asked.get(search.heir) == -1
        moves = search.news or heir_is_well or self._is_ahead(search)
        if self._gives_way(held, moves) if held is not None else moves or search.between:
            self._again(search, SECOND // 4)  # it was on its way just now, or somebody who has it finds out more
        elif self._cut_off(search, answers):
            self._isolated(search)
        elif held is None and (search.refused or self._is_new(slot)):
            self.ballots.release(slot, context.me)
            self._release(search)  # or two inquirers would renew theirs for ever
            self._again(
                search, SECOND // 2 if context.home == context.me else round(SECOND * (1 + context.rng.random()))
            )
        elif context.alone and context.now - self.since < from_seconds(context.options.listen):
            self._again(search, from_seconds(context.options.listen) - (context.now - self.since))
        else:
            self._connected()
            del self.by_slot[slot]
            for node in silent:
                context.suspect(node)
            if held is not None:
                self.owner.settled(held)
            else:
                self.owner.regenerate(slot, search.why)
                self.ghosts.haunt(slot, silent)

    def _goes_on(self, search: TokenSearch) -> bool:
        """A sample found nothing: ask all the others, batch by batch, and who came meanwhile. Whoever has the token
        does in any case: of a sample, on the smaller side of a cut, more than half answer sooner or later."""
        doubts = search.slot in self.here.by_slot
        if not search.unasked and (search.rounds < ROUNDS if doubts else not (search.between or search.refused)):
            search.rounds += 1
            search.everybody = True
            asked, me = search.asked, self.context.me
            search.unasked = [node for node in self.context.members if node not in asked and node != me]
        if not search.unasked:
            return False
        search.tries = search.began = 0
        for node in search.unasked[:BATCH]:
            self._add(search, node, PROBES - FEW)
        del search.unasked[:BATCH]
        self._probe(search)
        return True

    def _asks_once_more(self, search: TokenSearch) -> bool:
        """It took some of them longer than others were waited for: a newcomer knows nothing of a slow network."""
        silent = [node for node, tries in search.asked.items() if tries >= 0 and node not in self.context.silent]
        if not search.impatient or not silent:
            return False
        search.impatient = False
        search.tries = 0
        for node in silent:
            search.asked[node] = PROBES - 1
        self._probe(search)
        return True

    def departed(self, node: NodeId) -> None:
        """It is known to be gone: its silence says nothing, and what was promised to it is free."""
        self.ballots.departed(node)
        for search in list(self.by_slot.values()):
            tries = search.asked.pop(node, 0)
            if 0 < tries <= PROBES:
                search.pending -= 1
                if not search.pending:
                    self._end_of_stage(search)

    def silenced(self, node: NodeId) -> None:
        """The group has found out that it does not answer: nobody waits for it any longer, but who has a token and
        reaches too few. (Where all answer quickly, its stage is soon over; a divided group may be one by then.)"""
        for search in list(self.by_slot.values()):
            tries = search.asked.get(node, 0)
            late = self.context.now - search.began > SECOND
            there = 1 + sum(each < 0 for each in search.asked.values())
            enough = 2 * there > 1 + len(search.asked) or search.slot not in self.here.by_slot
            if 0 < tries <= PROBES and late and enough:
                search.asked[node] = GIVEN_UP
                search.pending -= 1
                if not search.pending:
                    self._end_of_stage(search)

    def _is_ahead(self, search: TokenSearch) -> bool:
        """The trail leads to a node that was not asked any more: the token moves as fast as the questions do."""
        best = self.context.best.get(search.slot)
        if best is None or best.holder == self.context.me or best.holder in search.asked:
            return False
        # Whom this node took for dead, others may know better: if it goes on from there, they hear of it soon.
        just_now = self.context.now - self.context.learned_at[search.slot] < FRESH
        return just_now or self.context.is_member(best.holder)

    def _is_new(self, slot: int) -> bool:
        """Others founded it, and those whom this node knows may be newcomers as well, or leave without an answer, or
        tell of a holder whom it does not know yet."""
        context = self.context
        best = context.best.get(slot)
        if context.now - self.since >= NEW or (context.alone and not context.gone):
            return False
        return best is None or not (
            best.holder == context.me or best.holder in context.gone or context.is_member(best.holder)
        )

    def _gives_way(self, held: HeldToken, moves: bool) -> bool:
        """A better one was heard of. It goes on being heard of, or is where this node cannot ask, which will change
        soon if the group was divided: two that each replace the other at once would both be used until then."""
        better = self.context.outranked(held.token)
        if better is None:
            return False
        return moves or (
            not self.context.is_member(better.holder) and self.context.now - held.doubted_at < OUT_OF_SIGHT
        )

    def _found(self, search: TokenSearch, place: Place, presence: Presence) -> None:
        context = self.context
        self._connected()
        if search.wide:
            self._release(search)  # whoever misses it next is not to wait until they have forgotten this one
        self._stop(search)
        self.owner.found(place, presence)
        context.trust(place.holder)

    def _cut_off(self, search: TokenSearch, answers: int) -> bool:
        """Not more than half of those asked, this node among them, can be reached; of two halves one goes on. Who is no
        member here, and may be long gone, counts only where it answers."""
        all_of_them = 1 + sum(tries < 0 or self.context.is_member(node) for node, tries in search.asked.items())
        there = 2 * (answers + 1)
        if there != all_of_them or self.context.options.when_isolated == "proceed":
            return there < all_of_them
        first = self.context.first or self.context.me
        return first != self.context.me and search.asked.get(first) != -1

    def _isolated(self, search: TokenSearch) -> None:
        context = self.context
        if not self.isolated:
            self.isolated = True
            context.note(FactKind.ISOLATED, detail=f"{search.why}; fewer than half of those asked answer")
        held = self.here.by_slot.get(search.slot)
        if held is not None:
            self.here.tell(held, LostReason.ISOLATED)
        if context.options.when_isolated != "proceed" or (held is None and self._is_new(search.slot)):
            self.deafness.misses(tuple(node for node, tries in search.asked.items() if tries >= 0))
            self.deafness.say(search.slot)
            self._again(search, 2 * SECOND)
            return
        self._stop(search)
        if held is not None:
            self.owner.settled(held)
        else:
            self.owner.regenerate(search.slot, "isolated, and told to proceed")

    def _connected(self) -> None:
        if self.isolated:
            self.isolated = False
            self.deafness.misses(())
            self.context.note(FactKind.REJOINED)

    def _again(self, search: TokenSearch, span: Duration) -> None:
        self._stop(search)
        self.context.timer(("retry", search.slot), self.context.now + self.context.jitter(span))

    def _stop(self, search: TokenSearch) -> None:
        del self.by_slot[search.slot]
        self.context.cancel(("probe", search.slot))

    def seen(self, place: Place) -> None:
        """Its holder spoke to us: no need to look for it, nor whether a weaker one that is here was replaced."""
        search, held = self.by_slot.get(place.slot), self.here.by_slot.get(place.slot)
        if search is not None and (held is None or (self._yields_to(held, place) and not self.context.just_woke)):
            self._found(search, place, Presence.IN_USE)

    def came(self, slot: int) -> None:
        """The token is here: no need to look for it."""
        search = self.by_slot.get(slot)
        if search is not None:
            self._stop(search)
            self.context.cancel(("retry", slot))
