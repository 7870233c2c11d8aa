"""The vocabulary between the group rules and whoever drives them.

What it decides: the rules never send a byte, wait or log. After each call the driver performs what is in `out`, in
order, until it is empty: what a machine answers to one effect may put further ones behind it, and never runs inside the
rule that made the first.

    Send(to, message)                      to a member, by its route              (core/events.py)
    Tell(to, mutex, message)               the same, about a mutex
    Mail(address, to, message, by)         to an address
    SetTimer, CancelTimer                  answered by `fired(name, now)`         (core/events.py)
    MembersChanged, Silenced, Returned     for every machine of the node          (core/events.py)
    Answer(asker, Reach)                   for the machine that called the roll
    Start, Refuse, Mismatch, Stalled,
    TakePart, GiveUp                       what becomes of a mutex (`founding.py`)
    Unwrap, Double, Say, Drop              for the driver itself
"""

from typing import TypeAlias

from softmutex.core.events import (
    NOBODY,
    CancelTimer,
    MembersChanged,
    NodeId,
    Reach,
    Received,
    Returned,
    Send,
    SetTimer,
    Silenced,
)
from softmutex.core.messages import Description, Message
from softmutex.core.tuples import NamedTuple


class Listed(NamedTuple):
    """One node as a membership tells of it. `id` 0: only the address is known. `label`: as people wrote the entry.
    `is_proven`: nobody else than who has the group's key can have written it (ports.M13), or others cannot write."""

    address: str
    id: NodeId = NOBODY
    name: str = ""
    label: str = ""
    is_proven: bool = True


class Listing(NamedTuple):
    """The membership's list of the others, whole.

    `complete`: of two that join at once at least one sees the other, and whom it no longer shows is gone. `pending`:
    what it is still finding out, in words (a name that is being looked up, a list that was not read yet).
    `unresolved`: entries of which it found out that they lead nowhere, for now. `may_be_late`: it may show somebody
    late, and does not say so by `pending`.
    """

    places: tuple[Listed, ...] = ()
    complete: bool = False
    pending: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    may_be_late: bool = True


class Tell(NamedTuple):
    """To a member, by its route. The frame names the mutex."""

    to: NodeId
    mutex: str
    message: Message


class Mail(NamedTuple):
    """A message for `to` (NOBODY: whoever is there), to this address. `by` not NOBODY: sealed for `to`, wrapped in a
    `Relay`, and that sealed for `by`, whose address this is."""

    address: str
    to: NodeId
    message: Message
    by: NodeId = NOBODY


class Answer(NamedTuple):
    """What the roll call has found, for the machine that asked for it (by the name of its mutex)."""

    asker: str
    reach: Reach


class Start(NamedTuple):
    """The machine of this mutex begins: Started(founder, hint), then what was kept for it."""

    mutex: str
    founder: bool
    hint: NodeId = NOBODY
    kept: tuple[Received, ...] = ()


class RefuseMutex(NamedTuple):
    """Others run this mutex by other terms: it is not opened here. `difference` says in which."""

    mutex: str
    peer: NodeId
    difference: str


class Mismatch(NamedTuple):
    """This node takes part in the mutex, and so does the peer, by other terms."""

    mutex: str
    peer: NodeId
    difference: str


class Stalled(NamedTuple):
    """The first token of this mutex may not be made here yet, since too few of the members answer; `why` says who."""

    mutex: str
    why: str


class TakePart(NamedTuple):
    """A member speaks of a mutex that nobody here has opened, and this is how it runs it."""

    mutex: str
    peer: NodeId
    description: Description
    kept: tuple[Received, ...]


class GiveUp(NamedTuple):
    """Somebody uses this mutex by other terms, or is about to, and nobody here uses it: it is to be forgotten."""

    mutex: str


class Unwrap(NamedTuple):
    """A sealed frame that came by way of `by`: open it, and tell `Group.relayed` before it is handled."""

    frame: bytes
    by: NodeId


class Double(NamedTuple):
    """Another process lives under this node's id, and has proved that it is at `source`: begin a new life."""

    source: str


class Say(NamedTuple):
    """Something that the people who run this node should know; `once`: what makes it the same thing said again.

    `is_routine`: it happens where nothing is wrong.
    """

    what: str
    text: str
    once: str = ""
    is_routine: bool = False


class Drop(NamedTuple):
    """So many messages or entries were dropped, for this reason."""

    why: str
    number: int = 1


GroupEffect: TypeAlias = (
    Send
    | Tell
    | Mail
    | SetTimer
    | CancelTimer
    | MembersChanged
    | Silenced
    | Returned
    | Answer
    | Start
    | RefuseMutex
    | Mismatch
    | Stalled
    | TakePart
    | GiveUp
    | Unwrap
    | Double
    | Say
    | Drop
)
