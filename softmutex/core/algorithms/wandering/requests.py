"""The requests of this node: kept in order, asked for with one ticket, asked for again until somebody answers.

    quiet --ask--> asking --QUEUED or an offer--> queued --grant--> quiet
                     |  ^------- patience is over ---'
                     '-- homes are silent --> census

One ticket stands for all requests of the node: with 10,000 nodes of 100 tasks each, the register has 10,000 lines.
The naive way, to ask until the token comes, costs N messages a round; to ask once loses a request with a datagram.
So silence is answered within round trips and a QUEUED by asking again after a patience that grows with the queue.

L1  As long as a request waits, a timer of this node runs (`want`, or `gen` where there are no hints).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from softmutex.core.algorithms.wandering.messages import Want
from softmutex.core.algorithms.wandering.precedence import Precedence
from softmutex.core.algorithms.wandering.settings import PATIENCE, PATIENCE_EACH
from softmutex.core.errors import InvariantBreach
from softmutex.core.events import NOBODY, SECOND, Duration, Instant, NodeId, RequestId, from_seconds
from softmutex.core.timing import Timing

if TYPE_CHECKING:
    from softmutex.core.algorithms.wandering.search import TokenSearches
    from softmutex.core.algorithms.wandering.tokens import KeptAhead, TokensHere

STEPS: Final = 3  # how often a WANT is passed on
EACH_HOME: Final = 2  # WANTs to a home before the next is tried
DAY: Final = 86_400 * SECOND
AGAIN: Final = 3  # retransmission time-outs until a WANT is repeated: it may take three hops to be answered


class TokenMaker(Protocol):
    def regenerate(self, slot: int, why: str) -> None:
        """Nobody has it, as far as can be known."""


class OwnRequests:
    __slots__ = (
        "ahead",
        "asked",
        "asked_at",
        "context",
        "gen",
        "gen_most",
        "here",
        "home",
        "keeper",
        "last_run",
        "maker",
        "missed",
        "named",
        "patience",
        "precedence",
        "repeated",
        "search",
        "since",
        "tries",
        "waiting",
    )

    def __init__(
        self, here: TokensHere, ahead: KeptAhead, search: TokenSearches, maker: TokenMaker, timing: Timing
    ) -> None:
        self.context = here.context
        self.here = here
        self.ahead = ahead
        self.search = search
        self.maker = maker
        self.waiting: dict[RequestId, Instant] = {}
        self.precedence = Precedence(here.context.options)  # of the requests that wait here
        self.named: RequestId = 0  # by our last ticket
        self.asked: RequestId | None = None  # the request that our ticket names
        self.asked_at: Instant = 0  # when our WANT was sent first that nobody has answered; 0: none
        self.repeated = False  # ... and it was sent again
        self.tries = 0  # by the home unanswered ones in a row, of whatever request
        self.home = NOBODY  # as it was when our ticket was sent
        self.keeper = NOBODY  # who said last that it has our ticket, and for how long that is good
        self.patience: Duration = 0
        self.missed = False  # a token came for our ticket while this node had as many as it may use
        self.last_run: Instant | None = None
        most = timing.max_interval if timing.max_interval is not None else 1.5 * timing.op * timing.nodes_max
        self.gen_most: Duration = max(from_seconds(most), SECOND)
        self.gen: Duration = self.gen_most  # adaptive, as in seed 000 section 5: the last resort

    # --- the application ---------------------------------------------------------------------------------------------

    def add(self, request: RequestId, priority: int) -> None:
        self.waiting[request], credit = self.context.now, self.credit
        self.precedence.asks(request, self.context.now - priority * self.precedence.step, again=False)
        if self.asked is not None and self.credit > credit and self.context.options.hints:
            self._send()  # the same ticket, for somebody more urgent

    def remove(self, request: RequestId) -> None:
        self.waiting.pop(request, None)
        self.precedence.due.pop(request, None)
        if not self.waiting:
            self.rest()

    @property
    def asks(self) -> bool:
        """A ticket of ours is somewhere."""
        return self.asked is not None

    def ran(self) -> None:
        self.last_run = self.context.now

    def next(self) -> RequestId:
        return self.precedence.take(self.waiting)[0]

    @property
    def label(self) -> RequestId:
        """What the next ticket names: a request that waits; where they are not served in order, a number that grows."""
        oldest = next(iter(self.waiting))
        return max(oldest, self.named + 1) if self.context.options.ageing else oldest

    @property
    def credit(self) -> Duration:
        """By how much the most urgent request here counts as older than now."""
        return max(0, self.precedence.lead(self.waiting, self.context.now))

    @property
    def late(self) -> bool:
        return self.last_run is not None and self.context.now - self.last_run < self.context.least

    @property
    def stands_for(self) -> RequestId:
        """The token may come for this one unasked."""
        here, options = self.here, self.context.options
        if self.asked is None or not self.waiting or here.leaving or not (options.hints and options.early):
            return 0
        return self.asked if here.in_use < options.each else 0

    # --- the ticket --------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Make sure that somebody knows that this node waits."""
        if not self.waiting or self.asked is not None:
            return
        self.asked = self.named = self.label
        if self.context.options.hints:
            self._send(new=True)
        if not (self.context.options.hints and self.context.options.census):
            self.context.timer("gen", self.context.now + self.gen)

    def noted(self, request: RequestId) -> None:
        """Our ticket is in the queue of the token that is here. Tokens get lost: ask if it does not come back."""
        self.asked, self.named = request, max(self.named, request)
        self.queued(request, PATIENCE)

    def rest(self) -> None:
        """Our turn came, or nobody here waits any more: the ticket is used up."""
        if self.asked is None:
            return
        self.asked = None
        self.asked_at = 0
        self.missed = False
        self.context.cancel("want")
        self.ahead.rest()
        if not (self.context.options.hints and self.context.options.census):
            self.context.cancel("gen")

    def freed(self) -> None:
        """A hold is over, and it was too late for the token that came: our ticket is used up."""
        if self.missed and self.waiting:
            self.missed = False
            self.ask_again()

    def ask_again(self, holder: NodeId = NOBODY) -> None:
        """The census found the token, or a new one was made."""
        if self.asked is None or not self.context.options.hints:
            return
        self.tries = self.asked_at = 0
        if holder == NOBODY:
            self._send()
        else:
            self._send_to(holder, STEPS)

    def queued(self, request: RequestId, patience: Duration, keeper: NodeId = NOBODY) -> None:
        if self.asked is None:
            return
        reminds = not patience and request < self.asked  # an idle token, and somebody who has not heard of our turn
        if request == self.asked or reminds:
            if self.asked_at and keeper == self.home:
                self.context.answered(self.context.now - self.asked_at, self.repeated)
            self.asked_at = 0
            self.tries = 0
            patience = min(patience, DAY)
            self.keeper, self.patience = keeper, patience
            self.context.timer("want", self.context.now + self.context.jitter(patience))

    def heard(self, node: NodeId) -> None:
        """A home's silence is counted, not a request's: those that each wait for a moment notice it together."""
        if self.tries and node == self.context.home and node != self.context.me:
            self.tries = 0

    def departed(self, node: NodeId) -> None:
        """Who keeps our ticket left, and may have found nobody to leave it to: ask soon, the fewer wait the sooner."""
        if node == self.keeper:
            self.keeper = NOBODY
            self._ask_soon()

    def returned(self, node: NodeId) -> None:
        """The first home is back: who stood in for it may have our ticket, and what it fed may not have arrived."""
        if node == self.context.first:
            self._ask_soon()

    def missed_commit(self) -> None:
        """The token was committed to us, and did not arrive: our ticket was used up by that."""
        self._ask_soon()

    def moved_homes(self) -> None:
        """The membership changed. Who keeps our ticket is a home no longer, and may be lost unnoticed from here."""
        if self.context.home != self.home:
            self.home = self.context.home
            self._ask_soon()

    def _ask_soon(self) -> None:
        """Our ticket may be lost; many others will ask, too."""
        if self.asked is not None:
            spread = min(self.patience, len(self.context.members) * PATIENCE_EACH) // 32
            soon = round(self.context.rng.random() * spread)
            self.context.timer("want", self.context.now + self.context.rto + soon)

    def offered(self, early: bool) -> None:
        """An offer is on its way: we are in the token's queue. While A runs there, which may take long, that is no news
        to who was told when to ask again; where there are several tokens, another one may be free sooner."""
        options = self.context.options
        if self.asked is None or not options.hints or (early and not self.tries and not options.by_home):
            return
        self.tries = 0
        self.context.timer("want", self.context.now + self.context.jitter(PATIENCE))

    def passed_over(self) -> None:
        """A token came for our ticket while this node had as many as it may use."""
        self.missed = True

    def want_fired(self) -> None:
        if self.asked is None:
            return
        if not self.waiting:
            self.rest()
            return
        if self.tries:
            if self.tries > 1:
                self.context.lost()
            self.context.suspicious(self.context.home)
            if self.tries % EACH_HOME == 0:
                self.context.suspect(self.context.home)
            if self.tries >= 2 * EACH_HOME and self.context.options.census:
                self.search.census()
        self._send()

    def gen_fired(self) -> None:
        """The last resort of seed 000: no token for so long that there may be none."""
        if self.asked is None:
            return
        self.gen = self.gen * 3 // 2
        self.context.timer("gen", self.context.now + self.gen)
        if self.context.options.census:
            self.search.census()
        else:
            self.maker.regenerate(0, "no token within the regeneration time")

    def visited(self) -> None:
        """A token came: the regeneration time goes back towards its mean."""
        self.gen -= (self.gen - self.gen_most) // 20

    def _send(self, new: bool = False) -> None:
        after = self.ahead.beside_a_new_home() if new else NOBODY
        if after != NOBODY:
            self._send_to(after, STEPS, self.ahead.trail.hop)
        else:
            self._send_to(self.context.home, 0 if self.tries else STEPS)

    def _send_to(self, to: NodeId, steps: int, ahead: int = 0) -> None:
        if self.asked is None:
            raise InvariantBreach(f"node {self.context.me} looks for the token on behalf of nobody")
        wait = min(AGAIN * self.context.rto << min(self.tries, 4), PATIENCE)
        self.repeated = self.asked_at > 0 and self.home == self.context.home
        if not self.repeated:
            self.asked_at = self.context.now
        self.home = self.context.home
        self.tries += to == self.home
        self.context.timer("want", self.context.now + wait)
        self.context.ask(to, Want(self.context.me, self.asked, self.late, steps, ahead), self.credit)
