"""Evaluation of SQL expressions over integer columns on arrays, with SQLite's semantics.

The few forms that the readers use are also valid Python, so `ast` parses them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MISSING = -(2**63)
"""Value of NULL."""

ROW_IDS = ("rowid", "_rowid_", "oid")
_LIMIT = 2**62
"""Bound below which sums cannot overflow."""

_BITS: Mapping[type[ast.operator], Callable[[Ints, Ints], Ints]] = {
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.LShift: np.left_shift,
    ast.RShift: np.right_shift,
}
_SUMS: Mapping[type[ast.operator], Callable[[Ints, Ints], Ints]] = {ast.Add: np.add, ast.Sub: np.subtract}


class NotPlainError(Exception):
    """An expression, or a value in it, that only SQLite can evaluate."""


@lru_cache(1024)
def parse_expression(sql: str) -> ast.expr:
    """Parse an expression. Raises `NotPlainError` if it has an unsupported form."""
    if "\\" in sql or not sql.isprintable():
        raise NotPlainError
    try:
        tree = ast.parse(sql, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPlainError from error
    for node in ast.walk(tree):
        _check_expression_node(node)
    return tree


def list_expression_columns(tree: ast.expr) -> frozenset[str]:
    """List the columns in an expression."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(name for name in constants if isinstance(name, str))


def evaluate_expression(tree: ast.expr, columns: Mapping[str, Ints], row: Ints) -> Ints:
    """Evaluate an expression over these columns and row ids."""
    if isinstance(tree, ast.Constant):
        if isinstance(tree.value, str):
            return columns[tree.value]
        return np.broadcast_to(np.int64(_get_constant(tree)), len(row))
    if isinstance(tree, ast.Name):
        return row if tree.id in ROW_IDS else np.broadcast_to(np.int64(MISSING), len(row))
    if isinstance(tree, ast.BinOp):
        left, right = (evaluate_expression(side, columns, row) for side in (tree.left, tree.right))
        return _apply_operator(type(tree.op), left, right)
    assert isinstance(tree, ast.Call), "other forms are not let in"
    return _evaluate_call(tree, columns, row)


def _check_expression_node(node: ast.AST) -> None:
    """Raise `NotPlainError` for an unsupported part of an expression."""
    if isinstance(node, ast.Constant):
        admitted = type(node.value) in (int, str) and node.value != MISSING
    elif isinstance(node, ast.Name):
        admitted = node.id in (*ROW_IDS, "NULL", "nullif", "coalesce", "iif")
    elif isinstance(node, ast.Call):
        admitted = isinstance(node.func, ast.Name) and len(node.args) == _ARGUMENTS.get(node.func.id, -1)
        admitted = admitted or (isinstance(node.func, ast.Name) and node.func.id == "coalesce")
    elif isinstance(node, ast.Compare):
        admitted = len(node.ops) == 1 and isinstance(node.ops[0], ast.Is)
    elif isinstance(node, ast.BinOp):
        admitted = type(node.op) in _BITS or type(node.op) in _SUMS
    else:
        admitted = isinstance(node, ast.operator | ast.expr_context | ast.Is)
    if not admitted:
        raise NotPlainError


_ARGUMENTS = {"nullif": 2, "iif": 3}


def _get_constant(tree: ast.expr) -> int:
    """Convert an integer constant. Raises `NotPlainError` for anything else."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int and abs(tree.value) < _LIMIT:
        return tree.value
    raise NotPlainError


def _apply_operator(operator: type[ast.operator], left: Ints, right: Ints) -> Ints:
    """Apply an operator; missing if either side is. Raises `NotPlainError` if a sum may overflow."""
    missing = (left == MISSING) | (right == MISSING)
    if operator in _BITS:
        values = _BITS[operator](left, right)
    else:
        for side in (left, right):
            sound = side if not missing.any() else side[~missing]
            if len(sound) and (int(sound.min()) <= -_LIMIT or int(sound.max()) >= _LIMIT):
                raise NotPlainError
        values = _SUMS[operator](left, right)
    return np.where(missing, MISSING, values) if missing.any() else values


def _evaluate_call(call: ast.Call, columns: Mapping[str, Ints], row: Ints) -> Ints:
    """Evaluate `nullif`, `coalesce` or `iif`."""
    assert isinstance(call.func, ast.Name), "admitted"
    if call.func.id == "iif":
        condition = call.args[0]
        if not isinstance(condition, ast.Compare):
            raise NotPlainError
        left = evaluate_expression(condition.left, columns, row)
        is_same = left == _get_constant(condition.comparators[0])
        return np.where(is_same, *(evaluate_expression(arm, columns, row) for arm in call.args[1:]))
    arguments = [evaluate_expression(argument, columns, row) for argument in call.args]
    values = arguments[0]
    if call.func.id == "nullif":
        return np.where(values == arguments[1], MISSING, values)
    for fallback in arguments[1:]:
        values = np.where(values == MISSING, fallback, values)
    return values
