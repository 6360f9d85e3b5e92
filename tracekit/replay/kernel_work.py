"""Kernels that do the same work: one name, one grid, and the same input shapes of the op that launched them."""

from __future__ import annotations

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Array
from tracekit.model.tables.keys import group_arrays, look_up_keys
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.name_filters import mark_rows_of_kind
from tracekit.process.ops.shapes import InputShapes, collect_input_shapes
from tracekit.replay.edges import Ints, Numbers


@dataclass(frozen=True, slots=True, eq=False)
class KernelWork:
    """Per device op of a graph: number of its device, and of the work that it does (-1: not recorded, or not a kernel)."""

    device: Numbers
    number: Numbers


def number_kernel_work(trace: Trace, rows: Ints) -> KernelWork:
    """Number the work of the device ops at these rows. Kernels without a grid and without shapes are not comparable."""
    if not len(rows):
        return KernelWork(np.empty(0, np.int32), np.empty(0, np.int32))
    grid, shape = _look_up_grids(trace), _look_up_shapes(trace)
    columns: list[Array] = [trace.texts("device_ops", "name"), grid, shape]
    number, _ = group_arrays(columns)
    is_known = mark_rows_of_kind(trace, "device_ops", "kernel") & ((grid >= 0) | (shape >= 0))
    device, _ = group_arrays([trace.nullable("device_ops", "device")])
    return KernelWork(device[rows].astype(np.int32), np.where(is_known, number, -1)[rows].astype(np.int32))


def _look_up_grids(trace: Trace) -> Ints:
    """Look up the code of the grid of each device op; -1 without one."""
    ids = trace.numbers("device_ops", "id")
    code = np.full(len(ids), -1, np.int64)
    column = trace.sparse.get("grid")
    if column is None or column.categories is None or not len(column.rows):
        return code
    place, is_recorded = look_up_keys(column.rows, ids)
    code[is_recorded] = column.values[place[is_recorded]]
    return code


def _look_up_shapes(trace: Trace) -> Ints:
    """Look up the number of the input shapes of the op that launched each device op; -1 without any."""
    links: Launches = trace.derived(find_launches)
    if not trace.has("host_ops"):
        return np.full(len(links.op), -1, np.int64)
    shapes: InputShapes = trace.derived(collect_input_shapes)
    numbers: Ints = np.append(shapes.number, -1)[links.op]
    return numbers
