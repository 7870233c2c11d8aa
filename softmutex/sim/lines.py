"""Events and effects as lines that a person reads: for `--show`, for the traces of the tests, for a diff in review.

    2.407  1 timer probe:0                       what happened: when, and to whom
                 1→3 PROBE #1 e1003              what it did about it: a message to 3, ...
                 timer probe:0 at 2.607          ... a timer, a grant, a note
                 = idle, holder 3, e1            and what it shows of itself then
    2.408  1→3 PROBE #1 e1003                    the message arrives

    3→1 COMMIT #1/2 e1/h4        a message: from whom to whom, its name, its fields in order
    e1/h4  e1/h4@3               a token, by epoch and hop; where it was seen. s2: of slot 2; ': another token than the
                                 first one that these lines name, '': a third one
    2#7                          the ticket of node 2, for its request 7
    #1  #1/2                     what names an attempt or a question; random numbers are counted as they come up
    1.6s                         a duration

What is zero, empty or false is left out: a field that somebody adds changes no line that does not use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from softmutex.core.at_once import STANDING
from softmutex.core.events import (
    SECOND,
    CallRoll,
    CancelTimer,
    Depart,
    Effect,
    Event,
    Fired,
    Grant,
    Instant,
    Leaving,
    Lose,
    MembersChanged,
    NodeId,
    Note,
    Overlapped,
    Reach,
    Received,
    Released,
    Requested,
    Returned,
    Right,
    Send,
    SetTimer,
    Silenced,
    Slept,
    Started,
    Suspect,
    Ticket,
    TimerName,
    Token,
    Withdrawn,
)
from softmutex.core.machine import View
from softmutex.core.messages import Message, name_of

LARGE: Final = 1 << 32  # a random number, and not one that was counted
LONG: Final = SECOND // 10_000  # a duration, and not a count
NAMED_FIRST: Final = ("nonce", "number", "request", "stamp")  # a first field that says which: #7


def _kinds_of(cls: type[Any]) -> dict[str, object]:
    """What a field is declared as: u64, i64, varint, ..."""
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # declared where only the type checker looks
        return {}
    return {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}


class Story:
    """One story. `origin`: the moment from which its time is counted."""

    def __init__(self, origin: Instant = 0) -> None:
        self._origin = origin
        self._tokens: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._settings = 0  # that most tokens carry
        self._kinds: dict[type[Any], dict[str, object]] = {}

    def event(self, now: Instant, node: NodeId, event: Event | str) -> str:
        """What happened to a node; or what it was told to do, in words."""
        what = self._event(node, event) if not isinstance(event, str) else f"{node} {event}"
        return f"{self._time(now):>10}  {what}"

    def effects(self, node: NodeId, effects: Iterable[Effect]) -> list[str]:
        return [f"{'':16}{self._effect(node, effect)}" for effect in effects]

    def state(self, shown: object) -> str:
        return f"{'':16}= {self._view(shown) if isinstance(shown, View) else self.told(shown)}"

    def message(self, sender: NodeId, to: NodeId, message: Message) -> str:
        return f"{sender}→{to} {name_of(type(message))}{self._fields(message)}"

    def _time(self, at: Instant) -> str:
        whole, _, rest = f"{(at - self._origin) / SECOND:.6f}".partition(".")
        return f"{whole}.{rest[:3]}{rest[3:].rstrip('0')}"

    # --- what happens ------------------------------------------------------------------------------------------------

    def _event(self, node: NodeId, event: Event) -> str:
        match event:
            case Received(sender, message):
                return self.message(sender, node, message)
            case Fired(timer):
                what = f"timer {_timer(timer, self)}"
            case Requested(request, priority):
                what = f"wants #{request}{f' with priority {priority}' if priority else ''}"
            case Withdrawn(request):
                what = f"wants #{request} no more"
            case Released(request, baggage):
                what = f"releases #{request}{_baggage(baggage)}"
            case Started(founder):
                what = f"starts{', as the founder' * founder}"
            case MembersChanged(joined, left):
                words = [f"{word} {_list(nodes)}" for word, nodes in (("joined:", joined), ("left:", left)) if nodes]
                what = ", ".join(words) or "members changed"
            case Slept(span):
                what = f"slept {_duration(span)}"
            case Leaving():
                what = "is to leave"
            case Silenced() | Returned() | Reach():
                what = f"hears of its group: {self.told(event)}"
        return f"{node} {what}"

    def _effect(self, node: NodeId, effect: Effect) -> str:
        match effect:
            case Send(to, message):
                return self.message(node, to, message)
            case SetTimer(timer, at):
                return f"timer {_timer(timer, self)} at {self._time(at)}"
            case CancelTimer(timer):
                return f"no timer {_timer(timer, self)}"
            case Grant(request, epoch, hop, baggage, alone, rights):
                by = "".join(f" {self.told(right)}" for right in rights) or f" e{epoch}/h{hop}"
                return f"grants #{request}{by}{_baggage(baggage)}{'' if alone else ', not alone'}"
            case Lose(request, reason):
                return f"tells #{request} that it may be lost: {reason}"
            case Note(kind, token, peer, detail):
                parts = [kind.value, self._label(token) if token else "", f"node {peer}" if peer else ""]
                return f"notes {' '.join(part for part in parts if part)}{': ' * bool(detail)}{detail}"
            case Depart():
                return "departs"
            case Suspect(node):
                return f"suspects {node}"
            case CallRoll(wide):
                return f"calls the roll{' of all' * wide}"
            case Overlapped(request, other, their_request, length):
                return f"tells #{request} that it overlapped with #{their_request} of {other} for {_duration(length)}"

    def _view(self, view: View) -> str:
        parts = [
            view.state or "no state",
            *(f"token {self.told(token)}" for token in view.tokens),
            f"runs #{_list(view.holding)}" if view.holding else "",
            f"{view.waiting} waiting" if view.waiting else "",
            f"holder {view.holder}" if view.holder else "",
            f"queue {_list(view.queue)}" if view.queue else "",
            f"e{view.epoch}" if view.epoch else "",
        ]
        return ", ".join(part for part in parts if part)

    # --- what it consists of -----------------------------------------------------------------------------------------

    def told(self, value: Any, kind: object = None) -> str:
        """Any value that a message may hold."""
        match value:
            case Ticket(node, request):
                return f"{node}#{request}"
            case Token() | Right():
                return self._token(value)
            case Enum():
                return value.name.lower().replace("_", " ")
            case bytes():
                return value.hex()
            case tuple() if hasattr(value, "_fields"):
                return self._record(value)
            case tuple():
                return _list(self.told(item) for item in value)
            case int() if kind == "i64":
                return self._time(value)
            case int() if kind == "varint" and value >= LONG:
                return _duration(value)
            case int() if value >= LARGE:
                return f"#{self._number(value)}"
        return str(value)

    def _record(self, value: Any) -> str:
        if {"epoch", "id", "hop", "holder"} <= set(value._fields):  # where a token was seen
            return f"{self._token(value)}@{value.holder}"
        return f"{type(value).__name__.lower()}({self._fields(value).strip()})"

    def _label(self, token: Any) -> str:
        marks = self._tokens.setdefault(token.id, "'" * len(self._tokens))
        return f"e{token.epoch}/h{token.hop}{f's{token.slot}' * bool(token.slot)}{marks}"

    def _token(self, token: Any) -> str:
        """A token, and whatever else of it the tuple tells."""
        words = [self._label(token)]
        if isinstance(token, Token):
            words += [f"queue={self.told(token.queue)}"] if token.queue else []
            self._settings = self._settings or token.settings
            words += ["other settings"] if token.settings not in (0, self._settings) else []
            words += [f"baggage={token.baggage.hex()}"] if token.baggage else []
            words += [self._fields(token.escort).strip()]
        return " ".join(word for word in words if word)

    def _fields(self, value: Any) -> str:
        """What is not zero, empty or false, each after a space."""
        cls, words = type(value), []
        kinds = self._kinds.get(cls) or self._kinds.setdefault(cls, _kinds_of(cls))
        for at, (name, field) in enumerate(zip(value._fields, value, strict=True)):
            if not at and name in NAMED_FIRST:
                words.append(f"#{self._number(field)}")
            elif name == "reply" and words:
                words[-1] += f"/{self._number(field)}"
            elif isinstance(field, Enum | Token):
                words.append(self.told(field))
            elif name == "place" and field:
                words.append(self._record(field))
            elif field is True:
                words.append(name)
            elif field:
                words.append(f"{name}={self.told(field, kinds.get(name))}")
        return "".join(f" {word}" for word in words)

    def _number(self, number: int) -> str:
        if number >= STANDING:
            return f"r{number - STANDING}"  # a request that stands for it
        if number < LARGE:
            return str(number)
        return str(self._numbers.setdefault(number, len(self._numbers) + 1))


def _timer(name: TimerName, lines: Story) -> str:
    return name if isinstance(name, str) else f"{name[0]}:{lines._number(name[1])}"


def _duration(span: int) -> str:
    return f"{span / SECOND:g}s"


def _baggage(baggage: bytes) -> str:
    return f" with {baggage.hex()}" if baggage else ""


def _list(items: Iterable[object]) -> str:
    return ",".join(map(str, items))
