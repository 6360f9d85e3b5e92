"""Tables of the operator view in depth: by input shape, matrix products, modules, forward batches."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, NAME, OCCURRENCE, STAGE, STEP, TS
from tracekit.model.tables.table import Column, Table

_DIMS = Column("category", "Input Dims as recorded; <NA> for the pooled rest of the op.")
_TYPES = Column("category", "Input type as recorded.")
_SHAPES = Column("int64", "Distinct shapes in this row: 1, more for the pooled rest.")
_CALLS = Column("int64", "Calls.")
_SELF_DEVICE = Column("Int64", "Σ duration of the device ops it launched itself.")
_BUSY = Column("Int64", "The same as a union per device, Σ over devices.")
_LAUNCHES = Column("Int64", "Device ops it launched itself.")
_FLOPS = Column("Int64", "FLOPs of all calls by their shapes; <NA> where no formula is known.")
_WORK = {
    "device": DEVICE,
    "count": Column("int64", "Device ops; on the host, spans."),
    "busy_ns": Column("int64", "Union of their time; on the host, per thread."),
    "top": Column("category", "Name with most time in it."),
    "capability": Column("Int64", "Compute capability × 10 as recorded: 80 is 8.0."),
}

TABLES: tuple[Table, ...] = (
    Table(
        "operator_shapes",
        "one op name with one input shape in one source",
        {
            **KEYS,
            "name": NAME,
            "dims": _DIMS,
            "types": _TYPES,
            "shape_count": _SHAPES,
            "count": _CALLS,
            "total_ns": Column("int64", "Wall time on its threads; recursion counted once."),
            "self_ns": Column("int64", "Wall time less that of direct children."),
            "device_total_ns": Column("Int64", "Σ duration of device ops launched during it."),
            "device_ns": _SELF_DEVICE,
            "device_busy_ns": _BUSY,
            "launch_count": _LAUNCHES,
            "allocated_total_bytes": Column("Int64", "Bytes allocated during it."),
            "allocated_bytes": Column("Int64", "Bytes allocated while it was the innermost op."),
            "flop_count": _FLOPS,
        },
    ),
    Table(
        "operator_totals",
        "one op name in one source, with all that ran inside its calls",
        {
            **KEYS,
            "name": NAME,
            "count": _CALLS,
            "total_ns": Column("int64", "Wall time on its threads; recursion counted once."),
            "device_total_ns": Column("Int64", "Σ duration of device ops launched during it."),
            "launch_total_count": Column("Int64", "Device ops launched during it."),
            "allocated_total_bytes": Column("Int64", "Bytes allocated during it."),
            "freed_total_bytes": Column("Int64", "Bytes freed during it."),
        },
    ),
    Table(
        "matrix_products",
        "matrix products of one op, type and size in one stage of one source",
        {
            **KEYS,
            "stage": STAGE,
            "name": NAME,
            "kind": Column("category", "gemm | attention.", ("gemm", "attention")),
            "type": Column("category", "Type of the first factor, as recorded."),
            "batch": Column("Int64", "Products a call; attention: batch × heads."),
            "m": Column(
                "Int64", "Rows of the first factor; attention: queries. <NA>: pooled rest."
            ),
            "n": Column("Int64", "Columns of the second factor; attention: keys."),
            "k": Column("Int64", "Length of the sums; attention: head size."),
            "shape_count": _SHAPES,
            "count": _CALLS,
            "flop_count": Column("Int64", "FLOPs of all calls; <NA> beyond 2^63."),
            "rated_flop_count": Column(
                "Int64", "FLOPs of the calls whose device ops were seen: what a rate is made of."
            ),
            "host_ns": Column("int64", "Σ duration of the calls on the host."),
            "launch_count": Column("Int64", "Device ops launched during the calls."),
            "device_busy_ns": Column("Int64", "Their union per device, Σ over devices."),
        },
    ),
    Table(
        "work_classes",
        "one class of work that one stage launched, on one device",
        {
            **KEYS,
            "stage": STAGE,
            "class": Column(
                "category",
                "all | gemm | plain (gemm without tensor cores) | unaligned (gemm with a size that is"
                " no multiple of 8).",
                ("all", "gemm", "plain", "unaligned"),
            ),
            **_WORK,
        },
    ),
    Table(
        "unfused_work",
        "work of unfused operators that one stage launched, on one device (on the host where none is)",
        {
            **KEYS,
            "stage": STAGE,
            "class": Column(
                "category",
                "all | attention (what is launched between its two products) | loss (log-softmax over a"
                " vocabulary, and 32-bit copies of its width).",
                ("all", "attention", "loss"),
            ),
            **_WORK,
        },
    ),
    Table(
        "unfused_calls",
        "unfused operators of one stage of one source",
        {
            **KEYS,
            "stage": STAGE,
            "class": Column("category", "attention | loss | copy.", ("attention", "loss", "copy")),
            "count": Column(
                "int64", "Attention: softmax calls between two products; calls of the others."
            ),
            "size_bytes": Column("Int64", "Bytes written by the copies."),
        },
    ),
    Table(
        "graph_launches",
        "replays of graphs by one call in one stage of one source",
        {
            **KEYS,
            "stage": STAGE,
            "call": Column("category", "Launching call."),
            "launch_count": Column("int64", "Replays."),
            "empty_count": Column("int64", "Replays of which no device op was recorded."),
            "op_count": Column("int64", "Device ops of all replays."),
            "least": Column("int64", "Fewest device ops of a replay that has any."),
            "most": Column("int64", "Most device ops of a replay."),
            "dur_ns": Column("int64", "Σ duration of the device ops."),
            "busy_ns": Column("int64", "Their union per device, Σ over devices."),
        },
    ),
    Table(
        "forward_batches",
        "one micro-batch of one source, by the rows of its forward matrix products",
        {
            **KEYS,
            "step": STEP,
            "stage": STAGE,
            "batch": Column("category", "Range of the micro-batch, as recorded."),
            "occurrence": OCCURRENCE,
            "ts_ns": TS,
            "dur_ns": Column("int64", "Wall time on the host, ns."),
            "row_count": Column(
                "Int64", "M of the forward products with most FLOPs; <NA> without shapes."
            ),
        },
    ),
    Table(
        "modules",
        "one class of modules in one source",
        {
            **KEYS,
            "origin": Column(
                "category",
                "python (nn.Module rows) | range (annotations) | hierarchy (Module Hierarchy).",
                ("python", "range", "hierarchy"),
            ),
            "module": Column("category", "Class of the module, or the name of the range."),
            "instance_count": Column("int64", "Distinct modules of the class."),
            "count": Column("int64", "Calls; ops where only the hierarchy is recorded."),
            "total_ns": Column("Int64", "Wall time in its calls; nested calls counted once."),
            "self_ns": Column("int64", "The same outside modules that it calls."),
            "device_total_ns": Column("Int64", "Σ duration of device ops launched in its calls."),
            "device_ns": Column("Int64", "The same outside modules that it calls."),
            "launch_count": Column("Int64", "Device ops launched outside modules that it calls."),
        },
    ),
)
