"""The tables of a snapshot of PyTorch's caching allocator: its history, what it held, who asked for it."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, STREAM
from tracekit.model.tables.table import Column, Table

ACTIONS = (
    *("alloc", "free_requested", "free_completed"),
    *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "annotate", "other"),
)
"""What an allocator records of itself."""

STATES = ("active", "pending_free", "inactive", "other")
"""What may be with a block: in use; freed, but another stream may still use it; free; anything else."""

MEMORY = Column("category", "device: memory of a device | host: pinned memory.", ("device", "host"))
ADDRESS = Column("Int64", "Address; from 2**63 on as the signed number of the same 64 bits.")
POOL = Column("category", "Pool as recorded, `0,0` the default one; others are of graphs or users.")
STACK = Column("Int64", "Joins `stacks`, by content; <NA>: not recorded; a stack may be empty.")
USER_METADATA = Column("category", "Text that the program attached; empty: none.")
CATEGORY = Column("category", "What for, as a profiler recorded it.")
SNAPSHOT_NS = Column("Int64", "ns since the Unix epoch; <NA>: not recorded, rows are in order.")

TABLES: tuple[Table, ...] = (
    Table(
        "allocations",
        "an action of the caching allocator, in the order recorded for each device",
        {
            "memory": MEMORY,
            "device": DEVICE,
            "ts_ns": SNAPSHOT_NS,
            "action": Column("category", " | ".join(ACTIONS) + ".", ACTIONS),
            "address": ADDRESS,
            "size_bytes": Column(
                "Int64", "Bytes: of alloc and free as requested, of segments as got; oom: asked."
            ),
            "device_free_bytes": Column("Int64", "Free on the device when memory ran out (oom)."),
            "stream": STREAM,
            "pool": POOL,
            "stack": STACK,
            "forward_stack": Column(
                "Int64", "Stack of the forward pass that led here, as `stack`."
            ),
            "compile_context": Column("category", "What was being compiled; `N/A`: nothing."),
            "user_metadata": USER_METADATA,
            "category": CATEGORY,
        },
    ),
    Table(
        "memory_segments",
        "a stretch of memory that the allocator had from the driver at the end",
        {
            "memory": MEMORY,
            "device": DEVICE,
            "address": ADDRESS,
            "size_bytes": Column("Int64", "Bytes of it."),
            "allocated_bytes": Column("Int64", "Rounded bytes of its blocks in use."),
            "active_bytes": Column("Int64", "The same with those that wait to be free."),
            "requested_bytes": Column("Int64", "Bytes that were asked for, of the active ones."),
            "stream": STREAM,
            "kind": Column("category", "small (for blocks to 1 MiB) | large, as recorded."),
            "pool": POOL,
            "expandable": Column("Int64", "1: grows in place by mapped pages; 0: does not."),
            "stack": STACK,
        },
    ),
    Table(
        "blocks",
        "a piece of a segment at the end, in use or free",
        {
            "segment": Column("int32", "Row in `memory_segments`."),
            "memory": MEMORY,
            "device": DEVICE,
            "address": ADDRESS,
            "size_bytes": Column("Int64", "Rounded bytes that it occupies."),
            "requested_bytes": Column(
                "Int64", "Bytes asked for; of a free block, by the last who had it."
            ),
            "state": Column("category", " | ".join(STATES) + ".", STATES),
            "stack": STACK,
            "forward_stack": Column(
                "Int64", "Stack of the forward pass that led here, as `stack`."
            ),
            "compile_context": Column("category", "What was being compiled; `N/A`: nothing."),
            "user_metadata": USER_METADATA,
            "category": CATEGORY,
        },
    ),
    Table(
        "stacks",
        "a frame of a stack; a stack without frames has no row",
        {
            "stack": Column("int64", "Hash of the frames: equal stacks of any file have one."),
            "depth": Column("int32", "0 innermost."),
            "name": Column("category", "Function, or whatever the frame was recorded as."),
            "file": Column("category", "File as recorded; of C++ mostly none."),
            "line": Column("Int64", "Line; 0 where C++ knows none."),
        },
    ),
    Table(
        "annotations",
        "the start or the end of a range that the program or the profiler named",
        {
            "ts_ns": SNAPSHOT_NS,
            "device": DEVICE,
            "stage": Column("category", "start | end | other.", ("start", "end", "other")),
            "name": Column("category", "Name as recorded."),
        },
    ),
)
