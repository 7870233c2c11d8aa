"""What a member tells the registry of itself, for the page: the form of a report, and the check of what comes in.

What it decides: numbers are totals since the member joined, never differences. The naive way, "three more since last
time", counts twice where an answer was lost, and not at all where a report was. Times are ages in seconds, counted from
the sending, since no two clocks agree (C4).

    mutexes   those of which something changed since the last report that was answered; all after `known: false`.
              Slots and priorities are told where they are not 1 and 0
    spans     stretches in which the mutex was held here, short gaps closed: `count` holds that took `held` in all
    marks     moments: a token made, lost or discarded, an overlap, an overrun, isolation

`SCHEMA` is the form, for the description of the registry and for `read`, so that the two cannot differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from softmutex.values import PRIORITY_MOST

Schema = dict[str, Any]
NOTHING: Final[Mapping[str, Schema]] = {}

REPORT_MAX = 64 << 10  # bytes
MUTEXES_MAX = 32  # of one report
SPANS_MAX = 128
MARKS_MAX = 64
SHOWN_MAX = 8  # waiting and holding claims of one mutex on one member
TOKENS_MAX = 8
BUCKETS = 25  # bucket b: under 2^b ms, and not in b-1; the last one is open
FACTS = ("generated", "discarded", "token_lost", "overlap", "handed_over")
COUNTERS = ("acquisitions", "timeouts", "cancelled", "overruns", "lost", *FACTS)
MARKS = ("generated", "discarded", "token_lost", "overlap", "lost", "overrun", "isolated", "rejoined")
AGE_MAX_S = 1e9
COUNT_MAX = (1 << 53) - 1  # a browser rounds beyond


def bucket(seconds: float) -> int:
    return min(int(seconds * 1000.0).bit_length(), BUCKETS - 1)


# --- the form -------------------------------------------------------------------------------------------------------


def _object(_optional: Mapping[str, Schema] = NOTHING, **properties: Schema) -> Schema:
    required = list(properties)
    properties |= _optional
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _list(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


AGE: Schema = {"type": "number", "minimum": 0, "maximum": AGE_MAX_S}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": COUNT_MAX}
NAME: Schema = {"type": "string", "maxLength": 255}
NODE: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
HISTOGRAM = _list(COUNT, BUCKETS, BUCKETS)
SLOTS: Schema = {"type": "integer", "minimum": 1, "maximum": COUNT_MAX}
HOLDING = _object({"slots": SLOTS}, for_s=AGE, waited_s=AGE, epoch=COUNT, hop=COUNT)
WISH = _object(slots=SLOTS, priority={**COUNT, "maximum": PRIORITY_MOST})
TOKEN = _object(slot={**COUNT, "maximum": 1023}, epoch=COUNT, hop=COUNT, at=NODE)
MUTEX = _object(
    {"wishes": _list(WISH, SHOWN_MAX)},  # of those of `waiting_for_s`, in that order
    name=NAME,
    algorithm={"type": "string", "maxLength": 64},
    **dict.fromkeys(COUNTERS, COUNT),
    waits=HISTOGRAM,
    holds=HISTOGRAM,
    wait_max_s=AGE,
    hold_max_s=AGE,
    waiting=COUNT,
    waiting_for_s=_list(AGE, SHOWN_MAX),
    holding=_list(HOLDING, SHOWN_MAX),
    tokens=_list(TOKEN, TOKENS_MAX),
)
SPAN = _object(mutex=NAME, ago_s=AGE, span_s=AGE, count=COUNT, held_s=AGE)
MARK = _object(mutex=NAME, ago_s=AGE, kind={"type": "string", "enum": list(MARKS)}, detail=NAME)
SCHEMA = _object(
    mutexes=_list(MUTEX, MUTEXES_MAX), spans=_list(SPAN, SPANS_MAX), marks=_list(MARK, MARKS_MAX), skipped=COUNT
)


# --- the check ------------------------------------------------------------------------------------------------------


def read(body: bytes) -> Any:
    """What fits the form; ValueError, in words for its sender, for anything else."""
    try:
        told = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("a report is not nested so deeply") from None
    check(told, SCHEMA, "the report")
    return told


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def check(value: Any, form: Schema, where: str) -> None:
    """The part of JSON Schema that is used here."""
    match form["type"]:
        case "object":
            _check_object(value, form, where)
        case "array":
            if not isinstance(value, list) or not form["minItems"] <= len(value) <= form["maxItems"]:
                raise ValueError(f"{where} wants a list of {form['minItems']} to {form['maxItems']}")
            for item in value:
                check(item, form["items"], f"an entry of {where}")
        case "string":
            if not isinstance(value, str) or len(value) > form.get("maxLength", len(value)):
                raise ValueError(f"{where} wants a text of up to {form.get('maxLength', 64)} characters")
            if "pattern" in form and not re.fullmatch(form["pattern"].removesuffix("$"), value):
                raise ValueError(f"{where} looks like {form['pattern']}")
            if value not in form.get("enum", (value,)):
                raise ValueError(f"{where} is one of {', '.join(form['enum'])}")
        case kind:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not form["minimum"] <= value <= form["maximum"]:
                raise ValueError(f"{where} wants a number between {form['minimum']:g} and {form['maximum']:g}")
            if kind == "integer" and value != int(value):
                raise ValueError(f"{where} wants a whole number")


def _check_object(value: Any, form: Schema, where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} wants an object")
    if missing := [name for name in form["required"] if name not in value]:
        raise ValueError(f"{where} lacks {missing[0]}")
    if unknown := [name for name in value if name not in form["properties"]]:
        raise ValueError(f"{where} has no {unknown[0][:40]!r}")
    for name, item in value.items():
        check(item, form["properties"][name], name)
