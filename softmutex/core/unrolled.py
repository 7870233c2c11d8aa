"""The codec of a message as one straight function: what `codec.py` does with a call a field, without the calls.

The naive way, the closures of `codec.py` alone, takes longer for a token than a datagram takes on loopback. So a record
is unrolled into source, with the records in it. Neighbours of fixed size, of whichever record, share one `struct`:

    class Offer:                      def read(data, at):
        nonce: U64                        v2, v6, v7, v8, v9, = v19(data, at); at += 40        nonce, epoch ... hop
        token: Token                      v10 = data[at]; at += 1                              slot
        early: Flag                       if v10 > 127: v10, at = v20(data, at - 1)
                                          ...
                                          v3 = new(v5, (v6, v7, v8, v9, v10, ...))             token
                                          value = new(v1, (v2, v3, v4, ))

U1  The same answers as `codec.py`, only sooner: what is accepted is the same, to the byte (`tests/wire`).
U2  No words: whatever is wrong raises some error, and the caller asks `codec.py` again, which says what it is.

Source is made from declarations of this package alone; nothing that was received is ever in it.
"""

from __future__ import annotations

import struct
from typing import Any

from softmutex.core.codec import Read, WireType, Write
from softmutex.core.errors import BadFrame

# What the quick functions raise on what is wrong.
BROKEN = (BadFrame, LookupError, struct.error)


def unroll(record: WireType) -> tuple[Write, Read]:
    source = _Source()
    source.take(record, "value")
    source.end_run()
    lines = [
        "def write(value):",
        *(f"    {line}" for line in source.writing),
        f"    return join(({''.join(f'{part}, ' for part in source.parts)}))",
        "def read(data, at):",
        *(f"    {line}" for line in [*source.reading, *reversed(source.making)]),
        "    if at > len(data): raise IndexError",
        "    return value, at",
    ]
    exec(compile("\n".join(lines), f"<{record.means}, unrolled>", "exec"), source.names)
    return source.names["write"], source.names["read"]


class _Source:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {"join": b"".join, "new": tuple.__new__}
        self.writing: list[str] = []  # takes the value apart
        self.parts: list[str] = []  # the parts as bytes
        self.reading: list[str] = []
        self.making: list[str] = []  # puts the value together, the outermost record first
        self._run: list[tuple[str, str]] = []  # neighbours of fixed size: code, variable
        self._count = 0

    def name(self, thing: Any = None) -> str:
        self._count += 1
        name = f"v{self._count}"
        if thing is not None:
            self.names[name] = thing
        return name

    def take(self, wire_type: WireType, value: str) -> None:
        if wire_type.layout:
            self._run.append((wire_type.layout, value))
        elif wire_type.cls:
            cls, parts = self.name(wire_type.cls), [self.name() for _ in wire_type.fields]
            self.writing.append(f"if type({value}) is not {cls}: raise TypeError")
            self.making.append(f"{value} = new({cls}, ({''.join(f'{part}, ' for part in parts)}))")
            if parts:
                self.writing.append(f"{''.join(f'{part}, ' for part in parts)} = {value}")
            for part, (_, field) in zip(parts, wire_type.fields, strict=True):
                self.take(field, part)
        else:
            self.end_run()
            read = self.name(wire_type.read)
            self.parts.append(f"{self.name(wire_type.write)}({value})")
            quick = wire_type.quick or "{v}, at = {read}(data, at)"
            self.reading += quick.format(v=value, read=read, table=self.name(wire_type.table)).splitlines()

    def end_run(self) -> None:
        if self._run:
            layout = struct.Struct(">" + "".join(code for code, _ in self._run))
            values = "".join(f"{value}, " for _, value in self._run)
            self.parts.append(f"{self.name(layout.pack)}({values})")
            self.reading.append(f"{values} = {self.name(layout.unpack_from)}(data, at); at += {layout.size}")
            self._run = []
