"""The doors of the house: what a transport, a membership and an observer must promise, and nothing more.

Each promise has a number; `softmutex.testing.contracts` has one test for each, and an adapter proves itself by
subclassing the contract. An adapter that cannot keep a promise is not an adapter.

What some adapters can do and others cannot is a small protocol of its own (`OnThisHost`, `Explaining`, `Prompt`,
`Complete`, `Banning`, `Observing`, `Authority`, `Provable`; `Sleeper`, `Courier`, `Choosy`, `Guest`, `Tracer`,
`Reader`): an adapter has it or has it not, and the same contract proves it. The naive way, an attribute that is looked
for where it is needed, is promised by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from softmutex.core.errors import SoftMutexError
from softmutex.core.events import Duration, Instant, NodeId, Note
from softmutex.core.tuples import NamedTuple


class Closed(Exception):
    """Raised by a waiting `receive` or `watch` once the adapter has been closed."""


class CannotOpen(SoftMutexError, OSError):
    """`open`, `join` or `group_key` found its place taken, forbidden or unsafe; the message names the remedy."""


class Datagram(NamedTuple):
    """`source` is an address that `Transport.send` of the same transport accepts; it proves nothing.

    Without a payload: nobody listens at `source` (T7).
    """

    source: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """One node as a membership tells of it. `id` 0: the membership knows only an address, a greeting finds out.

    `label`: the entry as people wrote it, where that is not the address. `is_proven`: M13.
    """

    address: str
    id: NodeId = 0
    name: str = ""
    label: str = field(default="", compare=False)
    is_proven: bool = True


@runtime_checkable
class OnThisHost(Protocol):
    """Of a transport or a membership that knows whether it ever concerns another host than this one.

    T8  A transport for which it is true, once it is open, cannot be sent to from any other host: neither where it
        listens nor under what it shows as `address`. Only there may a node do without a key.
    M9  A membership for which it is true shows none but members on this host.
    """

    @property
    def on_this_host(self) -> bool: ...


@runtime_checkable
class Transport(Protocol):
    """Carries datagrams between nodes, as best it can.

    T1  `send` never raises because a peer is absent, the buffer is full or the address cannot be resolved:
        all of that looks like a lost datagram, and is counted in `statistics()`.
    T2  A datagram arrives whole or not at all; maybe late, twice or out of order. One larger than
        `max_datagram` is refused by `send` with ValueError, and one that arrives larger is dropped and counted.
    T3  After `aclose` returns, `receive` raises `Closed`, and no task, socket or timer of its own is left.
    T4  After `open` returned, `address` is where others reach this node, and datagrams are received from then
        on, also before the first `receive` (bounded: the oldest are dropped and counted).
    T5  A reply sent to `Datagram.source` reaches the sender of that datagram.
    T6  Nothing loop-bound is made in the constructor. `open` may be called once, and raises `CannotOpen` where the
        place cannot be had; `aclose` may follow whether it was called or not, and again.
    T7  Where the network can say that nobody listens at an address to which something was sent (ICMP "port
        unreachable", a TCP connection that is refused), `receive` gives a `Datagram` of that address, as it was given
        to `send`, without a payload. A hint: it may come late, or not at all. An absent host is silence, and so is a
        cut. Nobody else can bring one about: an empty datagram that arrives is dropped, and news that does not quote
        what was sent is, too.

    What else it may be: `OnThisHost` (T8), `Explaining` (T9), `Prompt` (T10).
    Prove it: subclass `softmutex.testing.contracts.TransportContract`.
    """

    @property
    def address(self) -> str: ...

    @property
    def max_datagram(self) -> int: ...

    async def open(self) -> None: ...

    def send(self, address: str, payload: bytes) -> None: ...

    async def receive(self) -> Sequence[Datagram]:
        """All that has arrived since the last call, at least one, in order of arrival; waits when there is none.

        One task at a time may wait. Cancelling it loses nothing.
        """
        ...

    async def aclose(self) -> None: ...

    def statistics(self) -> Mapping[str, int]: ...


@runtime_checkable
class Explaining(Protocol):
    """Of a transport that finds out why somebody who is there cannot be talked to.

    T9  `troubles` tells, by the addresses that were given to `send`, why nothing gets through to somebody who is there
        (a certificate that is not trusted, a port that speaks something else), in a sentence with a remedy. An address
        at which nobody answers, and one that was reached since, are not among them. Bounded.
    """

    def troubles(self) -> Mapping[str, str]: ...


@runtime_checkable
class Prompt(Protocol):
    """Of a transport that gives a datagram away as soon as it has read it, with no task to be woken for that.

    T10  After `hand_to(take)`, `take` is called on the loop with each datagram in order of arrival, first with those
         that had come before, and never from within `send`. It raises nothing. After `hand_to(None)` it is called no
         more, and what comes waits for `receive` again; nor after `aclose`.
    """

    def hand_to(self, take: Callable[[Datagram], None] | None) -> None: ...


@runtime_checkable
class Membership(Protocol):
    """Tells who else may be in the group, as best it can. A hint: the node finds out who really answers.

    M1  After `join(me)` returned, others learn of `me` without any further call. (A fixed list knows everybody
        beforehand; `join` only tells it which entry is `me`.)
    M2  `watch` returns the whole list of the others (never `me`) as soon as it differs from what it last
        returned; the first call returns at once. It works without `join` too, for those who only look.
    M3  After `leave`, others stop seeing `me` soon; a killed process disappears too, later.
    M4  A directory, server or network that fails is silence (the last list stands), never an exception out
        of `watch`; it is counted and retried. A `join` that can never work raises `CannotOpen`.
    M5  After `aclose` returns, `watch` raises `Closed`, and no task, socket, file or timer of its own is left.
        `aclose` leaves, too, and may be called again.
    M6  Nothing loop-bound is made in the constructor. One task at a time may wait in `watch`; cancelling it
        loses nothing.

    What else it may be: `Complete` (M7), `Pending` (M8), `OnThisHost` (M9), `Banning` (M10), `Observing` (M11),
    `Authority` (M12), `Provable` (M13).
    Prove it: subclass `softmutex.testing.contracts.MembershipContract`.
    """

    async def join(self, me: Member) -> None: ...

    async def watch(self) -> Sequence[Member]: ...

    async def leave(self) -> None: ...

    async def aclose(self) -> None: ...

    def group_key(self) -> bytes | None:
        """A key that this membership gives its members for sealing (32 bytes), or None where it has none.

        May be asked before `join`.
        """
        ...

    def statistics(self) -> Mapping[str, int]: ...


@runtime_checkable
class Complete(Protocol):
    """Of a membership that may know everybody.

    M7  While it is true, `watch` shows everybody who joined before: of two that join at once at least one sees the
        other, and whom it no longer shows is gone. Only then may a newcomer make a token at once; without it, it
        listens first.
    """

    @property
    def complete(self) -> bool: ...


@runtime_checkable
class Pending(Protocol):
    """Of a membership that takes time to find out whom it shows.

    M8  `pending` names in words what it is still finding out (names that are being looked up, a list that was never
        read): nobody makes a token meanwhile. It becomes empty once all works. `unresolved` may name entries that lead
        nowhere for now. A membership that is neither this nor `Complete` may show somebody late: whoever is new waits
        a while.
    """

    @property
    def pending(self) -> Sequence[str]: ...


@runtime_checkable
class Banning(Protocol):
    """Of a membership that says who is not to be a member.

    M10 Ids of lives and public keys of identities, as of the last `watch`, which also returns when they differ. Whom it
        no longer names may come back.
    """

    @property
    def banned(self) -> frozenset[int | bytes]: ...


@runtime_checkable
class Observing(Protocol):
    """Of a membership that shows people what happens.

    M11 An observer, which is told what happens on the node that uses this membership; or None.
    """

    @property
    def observer(self) -> Observer | None: ...


@runtime_checkable
class Authority(Protocol):
    """Of a membership that gives certificates (`softmutex.runtime.identity`).

    M12 `certify` gives a certificate for this name and this public key, signed with `public_key`, or raises CannotOpen.
        `public_key` is None where the authority is not known for certain: then none of its certificates is believed.
    """

    @property
    def group(self) -> str: ...

    @property
    def public_key(self) -> bytes | None: ...

    async def certify(self, name: str, public: bytes, proof: bytes) -> bytes:
        """`proof` is what only who has the private key can have signed."""
        ...


class Proofs(Protocol):
    """Of a node that has the group's key."""

    def prove(self, what: str) -> str:
        """What shows those who have that key, and nobody else, that `what` was said by one of them."""
        ...

    def is_proof(self, what: str, proof: str) -> bool: ...


@runtime_checkable
class Provable(Protocol):
    """Of a membership whose list others may write to than who has the group's key.

    M13 `prove_by` comes before `join`. From then on what it shows of `me` bears a proof that nobody can use for another
        entry, and `Member.is_proven` is False of whom it shows without one: that one does not count before it is heard.
    """

    def prove_by(self, proofs: Proofs) -> None: ...


def is_complete(membership: Membership) -> bool:
    return isinstance(membership, Complete) and membership.complete


def shows_all(membership: Membership) -> bool:
    """Whether what it shows is all that it knows of, and not a beginning."""
    return is_complete(membership) or (isinstance(membership, Pending) and not membership.pending)


def is_on_this_host(adapter: Transport | Membership) -> bool:
    return isinstance(adapter, OnThisHost) and adapter.on_this_host


# --- observers -------------------------------------------------------------------------------------------------------


class Observation(NamedTuple):
    """Something that happened to one mutex of one node, for telemetry. `values` holds plain numbers and strings."""

    mutex: str
    node: NodeId
    what: str  # a FactKind, or wait_started, wait_ended, hold_started, hold_ended, message_sent ...
    values: Mapping[str, float | int | str] = MappingProxyType({})
    note: Note | None = None


class NodeSeen(Protocol):
    """A node as its observers see it: to be read at any time, from any thread."""

    id: NodeId
    name: str
    lasting_name: str  # the same for all nodes that a process opens without naming them

    def members(self) -> int:
        """How many it knows, itself included; 0 where it is not open."""
        ...

    def sent(self) -> Mapping[tuple[str, str], int]:
        """Messages sent since it was opened, by mutex and kind."""
        ...

    def algorithm(self, mutex: str) -> str:
        """Empty where it does not take part in such a mutex."""
        ...

    def settle(self) -> None:
        """Tells readers (O8) now what they would be told a moment later."""
        ...


class Lately(NamedTuple):
    """What became of one mutex on one node since its readers were told before."""

    waits: Sequence[Duration]  # of those that were granted
    holds: Sequence[tuple[Instant, Instant]]  # that are over: begin and end, in the order of their ends
    handed_over: int  # tokens
    now: Instant


class Diary(Protocol):
    """One mutex on one node, as readers see it: to be looked at at any time, from any thread."""

    mutex: str
    node: NodeId
    algorithm: str

    def is_used(self) -> bool:
        """By an application of this node, and not only by others of the group."""
        ...

    def waiting(self) -> Sequence[tuple[Duration, int, int]]:
        """Since when, for how many slots, with which priority."""
        ...

    def holding(self) -> Sequence[tuple[Duration, Duration, int, int, int]]:
        """Since when, how long it had waited, epoch, hop, slots."""
        ...

    def tokens(self) -> Mapping[int, tuple[int, int, NodeId]]:
        """By slot: the last epoch and hop that were seen here, and the node that had the token with them."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Is told what happens.

    O1  `notice` returns at once, and may be called from any thread.
    O2  What it raises is swallowed, counted and logged once.

    `wait_started`, `wait_ended`, `hold_started` and `hold_ended` come in the task (or thread) of the application, so
    that an observer finds the caller's context there; everything else on the node's loop.

    What else it may be: `Sleeper` (O3), `Courier` (O4), `Choosy` (O5), `Guest` (O6), `Tracer` (O7), `Reader` (O8).
    Prove it: subclass `softmutex.testing.contracts.ObserverContract`.
    """

    def notice(self, observation: Observation) -> None: ...


@runtime_checkable
class Sleeper(Protocol):
    """O3  True while nothing would come of telling it anything. It returns at once: it is asked before a wait, though
    not more often than each 50 ms, and some times a second. Who is awake once stays awake."""

    def asleep(self) -> bool: ...


@runtime_checkable
class Courier(Protocol):
    """O4  Up to 64 bytes that travel with the token when this hold ends, or none. They come out at the next hold, on
    whichever node that is: `values["baggage"]` of its `hold_started`, in hexadecimal. That is how a trace context
    crosses the group. The first courier that has something to say is the one; where none has, what came with the token
    goes on with it. It is asked just before `hold_ended` is told."""

    def baggage(self, observation: Observation) -> bytes: ...


@runtime_checkable
class Choosy(Protocol):
    """O5  Which single messages it is told of, for they are many: all (True), none (False), or some kinds. It stays the
    same. An observer that does not say is told of all."""

    @property
    def messages(self) -> bool | Collection[str]: ...


@runtime_checkable
class Guest(Protocol):
    """O6  Is shown each node that it observes, to look at whenever it likes between `opened` and `closed`. There may be
    several at a time, and each `closed` follows its `opened`."""

    def opened(self, node: NodeSeen) -> None: ...

    def closed(self, node: NodeSeen) -> None: ...


@runtime_checkable
class Tracer(Protocol):
    """O7  The trace context of a hold that it was told of, as W3C headers (`traceparent`, `tracestate`), for what runs
    under it in another process; empty where that hold is not traced, or over."""

    def trace_of(self, observation: Observation) -> Mapping[str, str]: ...


@runtime_checkable
class Reader(Observer, Protocol):
    """O8  Is told some at a time of what there may be thousands of a second: waits that were granted, holds that are
    over, tokens that were handed over. `read` is called on the node's loop, several times a second at most where little
    happens, or in the thread that calls `settle`; each of these is told once. `follows` is asked before each wait: only
    where it says so is this reader told of that wait and of its hold (`wait_*`, `hold_*`) and of the messages and the
    hand-over after it, one by one like everybody else. Of a wait that was not granted it is told in any case; one that
    is cancelled just as it is granted was not, and its hold was none."""

    def follows(self) -> bool: ...

    def read(self, diary: Diary, lately: Lately) -> None: ...
