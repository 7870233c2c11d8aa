"""Our `NamedTuple` beside that of `typing`: the same, only that it is declared sooner."""

import inspect
import pickle
import typing
from typing import Annotated, Any, get_type_hints

import pytest

from softmutex.core import events
from softmutex.core.tuples import NamedTuple


class Ours(NamedTuple):
    """Two fields."""

    left: int
    right: Annotated[str, "<=8"] = "x"

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


class Theirs(typing.NamedTuple):
    """Two fields."""

    left: int
    right: Annotated[str, "<=8"] = "x"

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


class Many(NamedTuple):
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
    h: int
    i: int
    j: int
    k: int
    l: int = 12


class Nothing(NamedTuple):
    pass


@pytest.mark.parametrize(
    "what",
    [
        lambda cls: tuple(cls(1)),
        lambda cls: tuple(cls(right="r", left=2)),
        lambda cls: (cls(1).left, cls(1, "b").right, cls(3, "c").both),
        lambda cls: tuple(cls._make([1, "b"])),
        lambda cls: tuple(cls(1)._replace(right="r")),
        lambda cls: cls(1)._asdict(),
        lambda cls: repr(cls(1)).partition("(")[2],
        lambda cls: (cls._fields, cls._field_defaults, cls.__match_args__, cls.__doc__),
        lambda cls: str(inspect.signature(cls)),
        lambda cls: get_type_hints(cls, include_extras=True),
        lambda cls: (tuple in cls.__mro__, type(cls)),
        lambda cls: hasattr(cls(1), "__dict__"),
    ],
)
def test_it_does_what_theirs_does(what: Any):
    assert what(Ours) == what(Theirs)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda cls: cls(),
        lambda cls: cls(1, "b", 3),
        lambda cls: cls(1, wrong=2),
        lambda cls: cls._make([1]),
        lambda cls: cls(1)._replace(wrong=2),
        lambda cls: setattr(cls(1), "left", 2),
    ],
)
def test_it_refuses_what_theirs_refuses(mistake: Any):
    said = []
    for cls in (Ours, Theirs):
        with pytest.raises((TypeError, ValueError, AttributeError)) as refused:
            mistake(cls)
        said.append(str(refused.value).replace(cls.__name__, "it"))
    assert said[0] == said[1]


def test_it_may_have_many_fields_or_none():
    assert Many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, k=11) == tuple(range(1, 13))
    assert Many._make(range(12)).l == 11
    assert Nothing() == ()


def test_it_can_be_matched_and_sent():
    assert pickle.loads(pickle.dumps(Ours(1, "b"))) == Ours(1, "b")
    match Ours(1, "b"):
        case Ours(left, right="b"):
            assert left == 1
        case _:
            pytest.fail("it is an Ours")


@pytest.mark.skipif(Ours.__bases__ == (tuple,), reason="it is that of typing here")
def test_what_is_declared_by_the_dozen_is_declared_by_it():
    assert events.Ticket.__new__.__globals__ is Ours.__new__.__globals__
