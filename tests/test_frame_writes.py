"""No line writes into an array that belongs to a frame: pandas 3 hands these out read-only, pandas 2 lets the frame change."""

import ast
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PACKAGE = Path(__file__).parents[1] / "tracekit"

SHARING = {"to_numpy", "view", "ravel", "reshape", "transpose", "swapaxes", "squeeze"}
"""Methods that may give the memory they are asked of; a copy is made by `.copy()`, `.astype()`, arithmetic, or an index of rows."""
OF_FRAMES = {"values", "array"}
"""Attributes of a series that are its memory."""
SHARING_CALLS = {"asarray", "broadcast_to", "atleast_1d", "cast"}
WRITING = {"sort", "fill", "put", "partition", "itemset"}
"""Methods of an array that change it in place."""
OWNED = [("readers/chrome/scanner_c.py", "values[is_text] = of_texts")]
"""Writes into `.values` of something else than a series: a column that the scanner has just made."""


def shares_a_frame(value, shared):
    """Whether an expression may be the memory of a frame: `shared` are the names of which that is known."""
    match value:
        case ast.Name(id=name):
            return name in shared
        case ast.Attribute(value=inner, attr=name):
            return name in OF_FRAMES or (name == "T" and shares_a_frame(inner, shared))
        case ast.Call(func=ast.Attribute(attr="to_numpy")) as call:
            return not any(key.arg == "copy" for key in call.keywords)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in SHARING:
            return shares_a_frame(inner, shared)
        case ast.Call(func=ast.Attribute(attr=name), args=[*_, last]) if name in SHARING_CALLS:
            return shares_a_frame(last, shared)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return shares_a_frame(inner, shared)
        case ast.IfExp(body=one, orelse=other):
            return shares_a_frame(one, shared) or shares_a_frame(other, shared)
    return False


def assignments(function):
    """(name, value) of every plain assignment; of a tuple its parts, or the one expression that gives them all."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value
            elif isinstance(target, ast.Tuple):
                each = value.elt if isinstance(value, ast.GeneratorExp | ast.ListComp) else value
                values = value.elts if isinstance(value, ast.Tuple) else [each] * len(target.elts)
                for part, of_part in zip(target.elts, values, strict=False):
                    if isinstance(part, ast.Name):
                        yield part.id, of_part


def written(function):
    """(line, the expression that is changed in place) of every write."""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign):
            inner = node.target
            yield node.lineno, inner.value if isinstance(inner, ast.Subscript) else inner
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    yield node.lineno, target.value
        elif isinstance(node, ast.Call):
            yield from _written_by_call(node)


def _written_by_call(node):
    for key in node.keywords:
        if key.arg == "out":
            yield node.lineno, key.value
    if not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr == "at" and node.args and isinstance(node.func.value, ast.Attribute):
        yield node.lineno, node.args[0]
    if node.func.attr in ("copyto", "put_along_axis", "place", "putmask") and node.args:
        yield node.lineno, node.args[0]
    if node.func.attr in WRITING:
        yield node.lineno, node.func.value


def functions_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def shared_names(function):
    """The names of a function that may be the memory of a frame."""
    attributes = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    if attributes.isdisjoint({"to_numpy", *OF_FRAMES}):
        return set()
    values = list(assignments(function))
    shared: set[str] = set()
    for _ in values:
        more = {name for name, value in values if shares_a_frame(value, shared)}
        if more == shared:
            break
        shared = more
    return shared


def changed_parameters(trees):
    """Name of function -> positions of the parameters that it writes into."""
    changed: dict[str, set[int]] = {}
    for tree in trees:
        for function in functions_of(tree):
            names = [each.arg for each in function.args.args]
            rebound = {name for name, _ in assignments(function)}
            for _, value in written(function):
                if isinstance(value, ast.Name) and value.id in names and value.id not in rebound:
                    changed.setdefault(function.name, set()).add(names.index(value.id))
    return changed


def writes_into_frames(trees):
    """(file, line) of every write into what may be the memory of a frame, there or in the function it is passed to."""
    changed = changed_parameters(trees.values())
    for path, tree in trees.items():
        for function in functions_of(tree):
            shared = shared_names(function)
            for line, value in written(function):
                # `frame["x"] = …` sets a column; `frame.values[…] = …` and names known to be arrays do not.
                if shares_a_frame(value, shared):
                    yield path, line
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    for position in changed.get(node.func.id, ()):
                        if position < len(node.args) and shares_a_frame(node.args[position], shared):
                            yield path, node.lineno


def test_no_line_writes_into_the_memory_of_a_frame():
    trees = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    found = [
        (path, (PACKAGE / path).read_text(encoding="utf-8").splitlines()[line - 1].strip())
        for path, line in sorted(set(writes_into_frames(trees)))
    ]
    assert found == OWNED


@pytest.mark.parametrize(
    "text",
    [
        "a = f['x'].to_numpy(np.bool_)\na |= b",
        "a = f['x'].isin(c).to_numpy()\na[b] = 1",
        "a = f['x'].values\nnp.add.at(a, b, 1)",
        "a = f['x'].to_numpy()[1:]\na.sort()",
        "a, c = (f[name].to_numpy() for name in names)\nc[b] = 0",
        "a = f['x'].to_numpy()\nd = a.reshape(2, 3)\nd += 1",
        "f['x'].to_numpy()[b] = 1",
        "a = np.asarray(f['x'].array)\nnp.minimum(a, b, out=a)",
        "a = f['x'].to_numpy() if c else b\na[:] = 2",
        "fill_in(f['x'].to_numpy(), 3)",
    ],
)
def test_a_write_is_noticed(text):
    helper = "def fill_in(values, number):\n    values[0] = number\n"
    tree = ast.parse(helper + "def g(f, b):\n" + textwrap.indent(text, "    "))
    assert [*writes_into_frames({"g.py": tree})]


@pytest.mark.parametrize(
    "text",
    [
        "a = f['x'].to_numpy(np.bool_)\na = a | b",
        "a = f['x'].to_numpy(copy=True)\na[b] = 1",
        "a = f['x'].to_numpy()[b]\na[c] = 1",
        "a = f['x'].to_numpy() + 1\na += 1",
        "a = f['x'].to_numpy().astype(float)\na += 1",
        "f['y'] = f['x'].to_numpy()",
    ],
)
def test_a_write_into_a_copy_is_fine(text):
    tree = ast.parse("def g(f, b):\n" + textwrap.indent(text, "    "))
    assert not [*writes_into_frames({"g.py": tree})]


def test_what_the_two_lines_of_pandas_hand_out():
    """Of pandas 3 a mask of `isin` cannot be written to: a test with pandas 2 alone does not see such a write fail."""
    mask = pd.Series(["a", "b"]).isin(["a"]).to_numpy(np.bool_)
    assert mask.flags.writeable == (int(pd.__version__.split(".")[0]) < 3)
