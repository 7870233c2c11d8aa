"""A member that says whatever can be written: any field of any message, and its own true ones with a part changed."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from softmutex.core.events import NodeId
from softmutex.core.messages import Message
from softmutex.core.wire import Frame
from softmutex.runtime.sealing import Sealer
from tests.wire.shapes import CLASSES, RANGES, fields_of, shape_of

KEPT = 200


class Liar:
    """Speaks with the seal of a node that is a member, and has heard what that said itself."""

    def __init__(self, seal: Sealer, seed: int, ids: list[NodeId]) -> None:
        self.seal = seal
        self._rng = random.Random(seed)
        self._ids = ids
        self._heard: deque[Frame] = deque(maxlen=KEPT)
        self._truthful = seal.seal
        seal.seal = self._overhear  # type: ignore[method-assign]

    def _overhear(self, frame: Frame, *more: Any) -> bytes:
        self._heard.append(frame)
        return self._truthful(frame, *more)

    def lie(self, me: NodeId, to: NodeId, mutexes: list[str]) -> bytes:
        rng = self._rng
        if self._heard and rng.random() < 0.7:
            true = rng.choice(self._heard)
            mutex = true.mutex
            message = self._changed(true.message)
        else:
            cls = rng.choice(CLASSES)
            mutex, message = rng.choice(mutexes), self._any(cls, whole=True)
        return self._truthful(Frame(me, to, mutex, message))

    def _changed(self, message: Message) -> Message:
        hints = fields_of(type(message))
        if not hints:
            return message
        name = self._rng.choice(list(hints))
        return message._replace(**{name: self._near(hints[name], getattr(message, name))})  # type: ignore[attr-defined]

    def _near(self, annotation: Any, value: Any) -> Any:
        """Another value; of what is made of parts, another part."""
        rng, shape = self._rng, shape_of(annotation)
        if shape.kind == "record" and rng.random() < 0.8:
            return self._changed(value)
        if shape.kind == "tuple" and value and rng.random() < 0.6:
            items = list(value)
            place = rng.randrange(len(items))
            if rng.random() < 0.5:
                items[place] = self._near(shape.of, items[place])
            else:
                items.append(items[place])
            return tuple(items[: shape.most])
        if shape.kind in RANGES and rng.random() < 0.5:
            low, high = RANGES[shape.kind]
            return min(high, max(low, value + rng.choice((-1, 1, 2, 1000, -(10**9), 10**9, 3600 * 10**9))))
        if shape.kind == "optional" and value is not None and rng.random() < 0.7:
            return self._near(shape.of, value)
        return self._any(annotation)

    def _any(self, annotation: Any, whole: bool = False) -> Any:
        rng = self._rng
        kind, of, most = ("record", annotation, 0) if whole else shape_of(annotation)
        match kind:
            case "u64" | "i64" | "varint":
                low, high = RANGES[kind]
                return rng.choice([0, 1, 2, rng.randrange(300), *self._ids, low, high, rng.randrange(low, high)]) & high
            case "flag":
                return rng.random() < 0.5
            case "enum":
                return rng.choice(list(of))
            case "bytes":
                return rng.randbytes(rng.choice((0, 1, most)))
            case "text":
                return rng.choice(("", "x", "wandering", '{"a": 1e999}', "[" * most, "\u2028\x1b[2J"))[: most // 4]
            case "tuple":
                return tuple(self._any(of) for _ in range(min(most, rng.choice((0, 1, 3, most)))))
            case "optional":
                return None if rng.random() < 0.5 else self._any(of)
        return of(*(self._any(hint) for hint in fields_of(of).values()))
