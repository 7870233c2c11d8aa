"""What a mutant is: the package with one small thing changed, as a hurried person might have written it.

    a bound, moved       <  ->  <=          a number, more          3  ->  4, 600  ->  1200
    a test, turned       ==  ->  !=         a switch, turned        True  ->  False
    a condition, turned  if a:  ->  if not a:                       and  ->  or
    an effect, dropped   self.told.add(who)  ->  pass               min  ->  max, +  ->  -

Texts, types, checks of what cannot be and what is only shown (`__repr__`) are left as they are: nobody's word is
broken by them. The change is made in the tree of the syntax, so nothing is written, and lines keep their numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
OTHER_WAY = {"min": "max", "max": "min", "any": "all", "all": "any"}
SMALL = 10  # from there on one more is nothing
SHOWN_ONLY = {"__repr__", "__str__"}
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Continue, ast.Break, ast.Raise)
NOT_RUN = {"annotation", "body", "orelse", "handlers", "finalbody", "cases", "type_params"}  # or statements


class Mutant(NamedTuple):
    """Which one: the `number`-th change that can be made in this file."""

    file: str
    number: int
    first: int  # lines of the statement
    last: int
    where: str  # class and function
    before: str
    after: str

    @property
    def name(self) -> str:
        """By which it is known again when lines have moved."""
        return f"{self.file} {self.where}: `{self.before}` -> `{self.after}`"


class Place(NamedTuple):
    """A statement, and where it stands."""

    block: list[ast.stmt]
    index: int
    where: str

    def shown(self) -> str:
        statement = self.block[self.index]
        text = ast.unparse(statement)
        return " ".join((text.partition("\n")[0] if hasattr(statement, "body") else text).split())

    def lines(self) -> tuple[int, int]:
        """Of a compound statement its head."""
        statement = self.block[self.index]
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
        return statement.lineno, max(statement.lineno, last)


Set = Callable[[object], None]


class Change(NamedTuple):
    """`set(new)` makes it, `set(old)` takes it back."""

    place: Place
    set: Set
    old: object
    new: object


def mutants(source: str, file: str) -> list[Mutant]:
    found = []
    for number, change in enumerate(list(_changes(ast.parse(source)))):
        first, last = change.place.lines()
        before = change.place.shown()
        change.set(change.new)
        after = change.place.shown()
        change.set(change.old)
        found.append(Mutant(file, number, first, last, change.place.where, before, after))
    return found


def mutated(source: str, number: int) -> ast.Module:
    tree = ast.parse(source)
    change = list(_changes(tree))[number]
    change.set(change.new)
    return ast.fix_missing_locations(tree)


def all_mutants(root: Path, files: list[Path]) -> list[Mutant]:
    return [each for file in sorted(files) for each in mutants(file.read_text(), str(file.relative_to(root)))]


# --- where something can be changed ----------------------------------------------------------------------------------


def _changes(tree: ast.Module) -> Iterator[Change]:
    """Always in the same order."""
    yield from _in_block(tree.body, "")


def _in_block(block: list[ast.stmt], where: str) -> Iterator[Change]:
    for index, statement in enumerate(block):
        place = Place(block, index, where)
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if statement.name not in SHOWN_ONLY:
                    yield from _in_definition(statement, place._replace(where=f"{where}.{statement.name}".lstrip(".")))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
                pass
            case _:
                yield from _in_statement(statement, place)


def _in_definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, place: Place) -> Iterator[Change]:
    if not isinstance(node, ast.ClassDef):
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield from _in_expression(default, place)
    yield from _in_block(node.body, place.where)


def _in_statement(statement: ast.stmt, place: Place) -> Iterator[Change]:
    if not isinstance(statement, ast.Raise):  # what an error says is a text
        for part in _expressions_of(statement):
            yield from _in_expression(part, place)
    match statement:
        case ast.AugAssign() if type(statement.op) in COUNTED:
            yield _field(place, statement, "op", COUNTED[type(statement.op)]())
        case ast.If() | ast.While():
            yield _field(place, statement, "test", _not(statement.test))
    if isinstance(statement, DROPPED) and place.where and not _is_needed_further_down(statement):
        nothing = ast.copy_location(ast.Pass(), statement)
        yield Change(place, lambda new: place.block.__setitem__(place.index, new), statement, nothing)  # type: ignore[call-overload]
    for block in _blocks_of(statement):
        yield from _in_block(block, place.where)


def _expressions_of(statement: ast.stmt) -> Iterator[ast.expr]:
    for name, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else [value]:
            if name not in NOT_RUN and isinstance(part, ast.expr | ast.withitem):
                yield part.context_expr if isinstance(part, ast.withitem) else part


def _blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for part in [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
        yield part.body


def _in_expression(top: ast.expr, place: Place) -> Iterator[Change]:
    for node in ast.walk(top):
        match node:
            case ast.Compare(ops=[op]) if type(op) in TURNED:
                yield _field(place, node, "ops", [TURNED[type(op)]()])
            case ast.BoolOp():
                yield _field(place, node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
            case ast.BinOp() if type(node.op) in COUNTED and not _is_text(node):
                yield _field(place, node, "op", COUNTED[type(node.op)]())
            case ast.Constant(value=bool() as value):
                yield _field(place, node, "value", not value)
            case ast.Constant(value=int() | float() as value):
                yield _field(place, node, "value", value + 1 if abs(value) <= SMALL else value * 2)
            case ast.IfExp():
                yield _field(place, node, "test", _not(node.test))
            case ast.comprehension(ifs=[test]):
                yield _field(place, node, "ifs", [_not(test)])
            case ast.Call(func=ast.Name(id=name) as function) if name in OTHER_WAY:
                yield _field(place, function, "id", OTHER_WAY[name])


def _field(place: Place, node: ast.AST, name: str, new: object) -> Change:
    return Change(place, lambda value: setattr(node, name, value), getattr(node, name), new)


def _not(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str | bytes) for each in ast.walk(node))


def _is_needed_further_down(statement: ast.stmt) -> bool:
    """Names: without them there is only a NameError. And what says nothing: docstrings, ellipses."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name | ast.Tuple) for target in statement.targets)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
