"""`NamedTuple`, as `typing` has it, in a third of the time: it is declared more than a hundred times by what one
`softmutex run` imports.

What it decides: nothing is compiled in order to declare a tuple with names. The naive way, `typing.NamedTuple`,
compiles a constructor for each from text, and each annotation that is a text: a tenth of what `softmutex run` adds to a
command. Here the constructors are there already, one for each number of fields, and are given the fields' names.
"""

# No `from __future__ import annotations`, which would have them in the class where they are not.
from typing import TYPE_CHECKING


class _Probe:
    field: int


if TYPE_CHECKING or "__annotations__" not in vars(_Probe):  # from Python 3.14 on annotations are not there yet
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter, namedtuple
    from types import FunctionType

    GLOBALS = {"new": tuple.__new__, "__name__": __name__}
    CONSTRUCTORS = [
        each.__code__
        for each in (
            lambda cls: new(cls, ()),  # noqa: F821
            lambda cls, a: new(cls, (a,)),  # noqa: F821
            lambda cls, a, b: new(cls, (a, b)),  # noqa: F821
            lambda cls, a, b, c: new(cls, (a, b, c)),  # noqa: F821
            lambda cls, a, b, c, d: new(cls, (a, b, c, d)),  # noqa: F821
            lambda cls, a, b, c, d, e: new(cls, (a, b, c, d, e)),  # noqa: F821
            lambda cls, a, b, c, d, e, f: new(cls, (a, b, c, d, e, f)),  # noqa: F821
            lambda cls, a, b, c, d, e, f, g: new(cls, (a, b, c, d, e, f, g)),  # noqa: F821
            lambda cls, a, b, c, d, e, f, g, h: new(cls, (a, b, c, d, e, f, g, h)),  # noqa: F821
            lambda cls, a, b, c, d, e, f, g, h, i: new(cls, (a, b, c, d, e, f, g, h, i)),  # noqa: F821
            lambda cls, a, b, c, d, e, f, g, h, i, j: new(cls, (a, b, c, d, e, f, g, h, i, j)),  # noqa: F821
            lambda cls, a, b, c, d, e, f, g, h, i, j, k: new(cls, (a, b, c, d, e, f, g, h, i, j, k)),  # noqa: F821
        )
    ]

    def constructor(name, fields, defaults):
        if len(fields) >= len(CONSTRUCTORS):
            return namedtuple(name, fields, defaults=defaults).__new__
        code = CONSTRUCTORS[len(fields)].replace(co_varnames=("_cls", *fields), co_qualname=f"{name}.__new__")
        return FunctionType(code, GLOBALS, "__new__", defaults)

    class _Record(tuple):
        """What all of them can do."""

        __slots__ = ()

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **values):
            made = self._make(map(values.pop, self._fields, self))
            if values:
                raise ValueError(f"Got unexpected field names: {list(values)!r}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(map('%s=%r'.__mod__, zip(self._fields, self, strict=True)))})"

        def __getnewargs__(self):
            return tuple(self)

    class _Declaring(type):
        def __new__(meta, name, bases, namespace):
            if not bases:
                return super().__new__(meta, name, bases, namespace)
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace.pop(field) for field in fields if field in namespace}
            made = constructor(name, fields, tuple(defaults.values()))
            made.__annotations__ = namespace.get("__annotations__", {})
            namespace |= {field: _tuplegetter(at, None) for at, field in enumerate(fields)}
            namespace |= {"__slots__": (), "__new__": made, "__match_args__": fields}
            return type(name, (_Record,), {**namespace, "_fields": fields, "_field_defaults": defaults})

    class NamedTuple(metaclass=_Declaring):
        """Derive from it, and annotate the fields."""
