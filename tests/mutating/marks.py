"""Which test reaches which line, without a tracer: that would take three times as long.

Each run of plain statements in a function begins with `MARKS[n] = 1`, an assignment of some nanoseconds. Lines outside
of functions have no mark: they run when the module is loaded.
"""

from __future__ import annotations

import ast
import builtins

NAME = "softmutex_marks_of_mutants"
MOST = 1 << 17

Blocks = list[list[ast.stmt]]


def marks() -> bytearray:
    """One for all modules of this process."""
    if not hasattr(builtins, NAME):
        setattr(builtins, NAME, bytearray(MOST))
    found: bytearray = getattr(builtins, NAME)
    return found


def with_marks(source: str, first: int) -> tuple[ast.Module, dict[int, int]]:
    """The marked tree, and line -> mark; the marks count from `first`."""
    tree = ast.parse(source)
    lines: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = _mark(node.body, first, lines)
    return ast.fix_missing_locations(tree), lines


def _mark(block: list[ast.stmt], number: int, lines: dict[int, int]) -> int:
    marked: list[ast.stmt] = []
    fresh = True
    for statement in block:
        if _is_text(statement):
            marked.append(statement)
            continue
        if fresh:
            mark = ast.parse(f"{NAME}[{number}] = 1").body[0]
            marked.append(ast.copy_location(mark, statement))
            number, fresh = number + 1, False
        marked.append(statement)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
            lines[line] = number - 1
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue  # `with_marks` comes by
        for inner in _blocks_of(statement):
            number, fresh = _mark(inner, number, lines), True
    block[:] = marked
    return number


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _blocks_of(statement: ast.stmt) -> Blocks:
    found: Blocks = [block for name in ("body", "orelse", "finalbody") if (block := getattr(statement, name, None))]
    return found + [part.body for name in ("handlers", "cases") for part in getattr(statement, name, ())]
