"""The modules of a model as a trace tells of them, and which module each host op runs in."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.derived.shapes import nearest_or_self
from tracekit.trace import SparseColumn, Trace

Ints = npt.NDArray[np.int64]

HIERARCHY = "Module Hierarchy"

_PYTHON = re.compile(r"nn\.Module: (.+?)(?:_(\d+))?\Z", re.DOTALL)
_WRAPPER = re.compile(
    r"((?:FullyShardedDataParallel|FSDP|DistributedDataParallel)[\w.:]*)", re.IGNORECASE
)


def module_class(name: str) -> str | None:
    """The class of module, or the kind of range, that a recorded name stands for; None for any other name.

    >>> module_class("nn.Module: Linear_12"), module_class("FSDP::pre_forward (layers.3)")
    ('Linear', 'FSDP::pre_forward')
    """
    python, wrapper = _PYTHON.match(name), _WRAPPER.match(name)
    if python:
        return python[1]
    return wrapper[1] if wrapper else None


def innermost_class(hierarchy: str) -> str | None:
    """The class of the innermost module of a recorded hierarchy; None for an empty one.

    >>> innermost_class("SELF(Net)::forward.fc(Linear)::forward"), innermost_class("")
    ('Linear', None)
    """
    found = re.findall(r"\(([^()]*)\)", hierarchy)
    if found:
        return str(found[-1]) or None
    return hierarchy.strip() or None


@dataclass(frozen=True, slots=True)
class Modules:
    """One way in which modules are recorded.

    `origin` is python (rows of nn.Module), range (annotations) or hierarchy (an argument of ops). `owner` is per
    host row the class of the innermost module around it, an index of `classes`, -1 outside; `calls` the rows that
    are calls of modules, `instance` the recorded name of each as a number.
    """

    origin: str
    classes: list[str]
    owner: Ints
    calls: Ints
    instance: Ints


def modules(trace: Trace) -> tuple[Modules, ...]:
    """Every way in which this trace tells of modules; empty where it does not."""
    found = [
        _called(trace, "python", "python"),
        _called(trace, "range", "range"),
        _by_hierarchy(trace),
    ]
    return tuple(one for one in found if one is not None)


def _called(trace: Trace, origin: str, kind: str) -> Modules | None:
    """Modules that are rows of a kind."""
    host = trace.get("host_ops")
    told = [module_class(str(name)) for name in host["name"].cat.categories]
    if not any(told):
        return None
    codes = host["name"].cat.codes.to_numpy().astype(np.int64)
    known = np.array([*(name is not None for name in told), False], np.bool_)[codes]
    chosen = known & (host["kind"] == kind).to_numpy()
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return None
    classes = sorted({name for name in told if name is not None})
    number = {name: at for at, name in enumerate(classes)}
    of_code = np.array([*(-1 if name is None else number[name] for name in told), -1], np.int64)
    inside = nearest_or_self(trace, chosen, np.arange(len(host)))
    owner = np.where(inside >= 0, of_code[codes[inside]], -1)
    return Modules(origin, classes, owner, rows, codes[rows])


def _by_hierarchy(trace: Trace) -> Modules | None:
    """Modules that an argument of every op names."""
    host = trace.get("host_ops")
    column: SparseColumn | None = trace.sparse.get(HIERARCHY)
    if column is None or column.categories is None or not len(host) or not len(column.rows):
        return None
    told = [innermost_class(text) if isinstance(text, str) else None for text in column.categories]
    if not any(told):
        return None
    classes = sorted({name for name in told if name is not None})
    number = {name: at for at, name in enumerate(classes)}
    of_text = np.array([-1 if name is None else number[name] for name in told], np.int64)
    ids = host["id"].to_numpy()
    at = np.minimum(np.searchsorted(column.rows, ids), len(column.rows) - 1)
    codes = column.values[at].astype(np.int64)
    hit = (column.rows[at] == ids) & (host["kind"] == "op").to_numpy()
    owner = np.where(hit, of_text[codes], -1)
    rows = np.flatnonzero(owner >= 0)
    return Modules("hierarchy", classes, owner, rows, codes[rows]) if len(rows) else None
