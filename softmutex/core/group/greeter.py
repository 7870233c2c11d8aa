"""From an address to the life that is there: greetings, and the search for those that do not answer.

    listed, or hinted at --HELLO, 0.1 s, HELLO, 0.2 s, ...--> WELCOME: met
                             |-- refused twice in a row -------------------> known: nobody is there, for now
                             |-- alone_after without an answer ------------> silent
                             '-- our own HELLO came back, and proved it ---> this node itself, for OWN_FOR

What it decides: when enough was tried to say who is there. The naive way, to go on greeting ever more rarely, lets two
halves of a group that can talk again not know it for half a minute; greeting all of them often costs N² messages for as
long as one host is down. So a new address is greeted quickly, and of all that did not answer one, at random, is greeted
a second (`Group.look`).

An address at which this node hears itself is its own only if a secret that was sent there, to this very life, came
back. The naive way, to believe a HELLO that returns, lets anybody who reflects one datagram part two nodes for good.

G1  Of a HELLO that nobody asked for nothing is remembered.
G2  Candidates are bounded. An address that was only hinted at is forgotten once it was tried.
"""

from __future__ import annotations

from typing import Final, Protocol

from softmutex.core.chance import Rng, drawn
from softmutex.core.events import NOBODY, SECOND, CancelTimer, Duration, Instant, NodeId, SetTimer, from_seconds
from softmutex.core.group.effects import Drop, Listed, Mail, Say
from softmutex.core.messages import Hello
from softmutex.core.tuples import NamedTuple

GREETING: Final = from_seconds(0.1)  # the gap after the first HELLO; the next ones double
GREETING_MOST: Final = SECOND
REFUSALS: Final = 2
OWN_FOR: Final = 10 * SECOND  # two that are told so of each other by reflected frames miss each other for so long
CANDIDATES_MAX: Final = 4096


class Ego(NamedTuple):
    """One life of a node, as it shows itself to others."""

    id: NodeId
    address: str
    name: str
    group: int  # fingerprint of the group's name
    secret: bytes  # for cookies
    rng: Rng


class GreeterOwner(Protocol):
    def put(self, effect: Mail | SetTimer | CancelTimer | Drop | Say) -> None: ...

    def decided(self, now: Instant) -> None:
        """Of one more address it is known whether somebody is there."""
        ...


class Greeting:
    """An address whose node is not known."""

    __slots__ = ("is_awaited", "is_hint", "is_quick", "nonce", "number", "own_until", "place", "proof", "refusals",
                 "since", "tries")  # fmt: skip

    def __init__(self, place: Listed, number: int, nonce: int, since: Instant, is_hint: bool) -> None:
        self.place = place
        self.number = number
        self.nonce = nonce  # answers name it: they may come from another address than was greeted
        self.since = since
        self.is_hint = is_hint  # no list shows it, and no member was there
        self.is_quick = True
        self.tries = 0
        self.is_awaited = False  # the last HELLO was neither answered nor refused
        self.refusals = 0  # in a row
        self.proof = 0  # what comes back only from this very life
        self.own_until: Instant = 0


class Greeter:
    __slots__ = ("_alone_after", "_by_nonce", "_by_number", "_ego", "_greetings", "_last_number", "_owner", "_quick")

    def __init__(self, owner: GreeterOwner, ego: Ego, alone_after: Duration) -> None:
        self._owner = owner
        self._ego = ego
        self._alone_after = alone_after
        self._greetings: dict[str, Greeting] = {}  # by address
        self._by_nonce: dict[int, Greeting] = {}
        self._by_number: dict[int, Greeting] = {}
        self._last_number = 0
        self._quick = 0  # how many are not decided yet

    def __contains__(self, address: str) -> bool:
        return address in self._greetings

    def listed_at(self, address: str) -> Listed | None:
        greeting = self._greetings.get(address)
        return None if greeting is None else greeting.place

    def listed(self) -> list[str]:
        """Addresses that a membership showed."""
        return [address for address, each in self._greetings.items() if not each.is_hint]

    @property
    def is_settled(self) -> bool:
        """Of every address it is known whether somebody is there."""
        return not self._quick

    def unmet(self) -> list[str]:
        """Who is looked for."""
        return [address for address, each in self._greetings.items() if not each.is_quick and not each.own_until]

    def is_own(self, address: str) -> bool:
        greeting = self._greetings.get(address)
        return address == self._ego.address or (greeting is not None and bool(greeting.own_until))

    def state(self, address: str) -> str:
        """In a word, for people."""
        greeting = self._greetings.get(address)
        return "refused" if greeting is not None and greeting.refusals >= REFUSALS else "silent"

    # --- greeting ---------------------------------------------------------------------------------------------------

    def greet(self, place: Listed, now: Instant, *, is_hint: bool = False, at_leisure: bool = False) -> None:
        """`at_leisure`: it was tried before, and is only looked for."""
        known = self._greetings.get(place.address)
        if known is not None:
            if not is_hint:
                known.place, known.is_hint = place, False
            elif not known.is_quick and not known.own_until:
                self._quicken(known, now)  # somebody says that it is there
            return
        if place.address == self._ego.address:
            return
        if len(self._greetings) >= CANDIDATES_MAX:
            self._owner.put(Drop("candidates"))
            if not is_hint:
                who = f"{place.label or place.address} is listed, and others, and they are not looked for"
                text = f"{who}: {CANDIDATES_MAX} addresses have not answered yet, which is the limit."
                self._owner.put(Say("candidates", text, once="candidates"))
            return
        self._last_number += 1
        greeting = Greeting(place, self._last_number, drawn(self._ego.rng), now, is_hint)
        self._greetings[place.address] = self._by_nonce[greeting.nonce] = self._by_number[greeting.number] = greeting
        if at_leisure:
            greeting.is_quick = False
        else:
            self._quick += 1
            self._again(greeting, now)

    def stop(self, address: str, now: Instant) -> None:
        greeting = self._greetings.pop(address, None)
        if greeting is None:
            return
        del self._by_nonce[greeting.nonce], self._by_number[greeting.number]
        if greeting.proof:
            text = f"a greeting for {address} came back, and that is not this node: somebody sends its datagrams back"
            self._owner.put(Say("reflected", text, once=f"reflected {address}"))
        if greeting.is_quick or greeting.own_until:
            self._owner.put(CancelTimer(("greet", greeting.number)))
        if greeting.is_quick:
            self._quick -= 1
            self._owner.decided(now)

    def look(self, address: str) -> None:
        """One HELLO to one that is looked for."""
        self._hello(self._greetings[address], NOBODY, 0)

    def fired(self, number: int, now: Instant) -> None:
        """The timer ("greet", number)."""
        greeting = self._by_number.get(number)
        if greeting is None:
            return
        if greeting.own_until:
            greeting.own_until = 0
            self._quicken(greeting, now)
        elif greeting.is_quick:
            self._decide(greeting, now) if now >= greeting.since + self._alone_after else self._again(greeting, now)

    def refused(self, address: str, now: Instant) -> bool:
        """Nobody listens there, says the transport."""
        greeting = self._greetings.get(address)
        if greeting is None:
            return False
        if greeting.is_awaited:
            greeting.is_awaited = False
            greeting.refusals += 1
            if greeting.refusals >= REFUSALS and greeting.is_quick:
                self._decide(greeting, now)
        return True

    # --- answers ----------------------------------------------------------------------------------------------------

    def challenged(self, nonce: int, sender: NodeId, cookie: int) -> None:
        greeting = self._by_nonce.get(nonce)
        if greeting is not None:
            self._hello(greeting, sender, cookie)

    def greeted(self, nonce: int) -> Listed | None:
        """Whose WELCOME that is."""
        greeting = self._by_nonce.get(nonce)
        return None if greeting is None else greeting.place

    def met_one_banned(self, address: str, now: Instant) -> None:
        """Who has answered from there is known, and not waited for."""
        greeting = self._greetings.get(address)
        if greeting is not None and greeting.is_quick:
            self._decide(greeting, now)

    def heard_myself(self, hello: Hello, to_me: bool, now: Instant) -> bool:
        """A HELLO of this very life has come back. False: it is none of ours."""
        greeting = self._by_nonce.get(hello.nonce)
        if greeting is None:
            return False
        if not to_me:
            self._owner.put(Drop("own greetings"))
            greeting.proof = greeting.proof or drawn(self._ego.rng) | 1
            self._hello(greeting, self._ego.id, greeting.proof)
        elif greeting.proof and hello.cookie == greeting.proof:
            greeting.proof = 0
            if greeting.is_quick:
                self._quick -= 1
                greeting.is_quick = False
            greeting.own_until = now + OWN_FOR
            self._owner.put(SetTimer(("greet", greeting.number), greeting.own_until))
            self._owner.decided(now)
        return True

    # --- how --------------------------------------------------------------------------------------------------------

    def _again(self, greeting: Greeting, now: Instant) -> None:
        gap = min(GREETING << min(greeting.tries, 16), GREETING_MOST)
        greeting.tries += 1
        self._hello(greeting, NOBODY, 0)
        wait = round(gap * (0.75 + 0.5 * self._ego.rng.random()))
        at = min(now + wait, max(now + 1, greeting.since + self._alone_after))
        self._owner.put(SetTimer(("greet", greeting.number), at))

    def _quicken(self, greeting: Greeting, now: Instant) -> None:
        greeting.since, greeting.tries, greeting.refusals = now, 0, 0
        greeting.is_quick = True
        self._quick += 1
        self._again(greeting, now)

    def _decide(self, greeting: Greeting, now: Instant) -> None:
        if greeting.is_hint:
            self.stop(greeting.place.address, now)
            return
        greeting.is_quick = False
        self._quick -= 1
        self._owner.put(CancelTimer(("greet", greeting.number)))
        self._owner.decided(now)

    def _hello(self, greeting: Greeting, to: NodeId, cookie: int) -> None:
        if not cookie:
            if greeting.is_awaited:
                greeting.refusals = 0
            greeting.is_awaited = True
        ego = self._ego
        hello = Hello(greeting.nonce, cookie, ego.group, False, ego.name)
        self._owner.put(Mail(greeting.place.address, to, hello))
