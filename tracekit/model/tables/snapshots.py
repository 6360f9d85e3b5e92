"""Raw tables of memory: the history of PyTorch's caching allocator, levels in a log, categories of a timeline."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, STEP, STREAM
from tracekit.model.tables.table import Column, Table

ACTIONS = (
    *("alloc", "free_requested", "free_completed"),
    *("segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "annotate", "other"),
)
"""Actions that an allocator records."""

STATES = ("active", "pending_free", "inactive", "other")
"""States of a block: in use; freed, but another stream may still use it; free; anything else."""

MOMENTS = ("peak", "grown", "end")
"""Moments: peak of requested bytes | right before the segment that set the reserved peak | the snapshot itself."""

ORIGINS = ("recorded", "before", "freed", "rest")
"""Origins of a block.

recorded: allocated within the history | before: allocated earlier and in use at the end, so its block has the stack |
freed: allocated earlier and freed within the history, which has only the freeing stack | rest: beyond the cap.
"""

SITE_KINDS = ("user", "library", "native", "empty", "unknown")
"""Kinds of the frame that names a stack.

The program's Python | an installed package's Python | no Python frame | a stack without frames | no recorded stack.
"""

BASES = ("recorded", "metadata", "stack", "compiled", "stage", "none")
"""Sources of a category.

A profiler | text attached by the program | the call stacks of the allocation and its free | the compile context |
the annotated range of the allocation | none.
"""

QUANTITIES = ("requested", "allocated", "reserved", "peak allocated", "peak reserved")
"""Quantities of a memory level: requested, rounded by the allocator, reserved from the device, and peaks of these."""

SLEEP_MARKS = ("none", "sleep", "wake")
"""Marks of a line: an engine or a trainer gives memory back (sleep, offload, pause), or takes it (wake, resume, onload); none: neither."""

CATEGORIES = (
    *("parameter", "optimizer_state", "input", "temporary"),
    *("activation", "gradient", "autograd_detail", "unknown"),
)
"""Tensor categories as guessed by torch, in the order of its own numbers; unknown: no guess."""

MEMORIES = ("device", "host")
MEMORY = Column("category", "device: memory of a device | host: pinned memory.", MEMORIES)
ADDRESS = Column("Int64", "Address; from 2**63 on as the signed number of the same 64 bits.")
POOL = Column("category", "Pool as recorded, `0,0` the default one; others are of graphs or users.")
STACK = Column("Int64", "Joins `stacks`, by content; <NA>: not recorded; a stack may be empty.")
SNAPSHOT_NS = Column("Int64", "ns since the Unix epoch; <NA>: not recorded, rows are in order.")

_CONTEXT = {
    "stack": STACK,
    "forward_stack": Column("Int64", "Stack of the forward pass that led here, as `stack`."),
    "compile_context": Column("category", "Code being compiled; `N/A`: none."),
    "user_metadata": Column("category", "Text that the program attached; empty: none."),
    "category": Column("category", "Category, as recorded by a profiler."),
}
"""Where and for what a block was allocated."""

DEVICE_KEYS = {**KEYS, "memory": MEMORY, "device": DEVICE}
"""Key columns of every measured row of a snapshot."""

MOMENT = Column(
    "category", "peak: most requested | grown: before the segment with which most was reserved | end.", MOMENTS
)
QUANTITY = Column("category", " | ".join(QUANTITIES) + ".", QUANTITIES)
POINT = Column("category", "Point of the step at which it was logged, as recorded.")
SLEEP_MARK = Column(
    "category",
    "By the name of the point: sleep (sleep, offload, pause) | wake (wake, resume, onload) | none.",
    SLEEP_MARKS,
)
TORCH_CATEGORY = Column("category", " | ".join(CATEGORIES) + ", as torch guessed it.", CATEGORIES)

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
                "Int64", "Bytes: of alloc and free as requested, of segments as reserved; oom: as requested."
            ),
            "device_free_bytes": Column("Int64", "Free on the device when memory ran out (oom)."),
            "stream": STREAM,
            "pool": POOL,
            **_CONTEXT,
        },
    ),
    Table(
        "memory_segments",
        "a segment that the allocator had from the driver at the end",
        {
            "memory": MEMORY,
            "device": DEVICE,
            "address": ADDRESS,
            "size_bytes": Column("Int64", "Bytes of it."),
            "allocated_bytes": Column("Int64", "Rounded bytes of its blocks in use."),
            "active_bytes": Column("Int64", "The same with those that wait to be free."),
            "requested_bytes": Column("Int64", "Requested bytes of active blocks."),
            "stream": STREAM,
            "kind": Column("category", "small (for blocks to 1 MiB) | large, as recorded."),
            "pool": POOL,
            "expandable": Column("Int64", "1: expandable (mapped pages); 0: not."),
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
            "requested_bytes": Column("Int64", "Requested bytes; of a free block, by its last user."),
            "state": Column("category", " | ".join(STATES) + ".", STATES),
            **_CONTEXT,
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
    Table(
        "memory_log",
        "one level of memory that a log gives for one step",
        {
            "line": Column("int64", "Line of the log, from 1."),
            "logged_ns": Column("Int64", "When, ns since the Unix epoch, if in the line."),
            "step": STEP,
            "device": DEVICE,
            "point": POINT,
            "quantity": QUANTITY,
            "size_bytes": Column("int64", "Bytes, by the unit in the name."),
        },
    ),
    Table(
        "device_memory_lines",
        "one line of a log about the memory of a whole GPU, other processes included",
        {
            "line": Column("int64", "Line of the log, from 1."),
            "logged_ns": Column(
                "Int64", "When, ns on the log's own clock as in `engine_log`: of this line or the last one with a time."
            ),
            "logged_pid": Column("Int64", "Process that printed it."),
            "logged_rank": Column("Int64", "Its rank."),
            "device": DEVICE,
            "point": POINT,
            "mark": SLEEP_MARK,
            "allocated_bytes": Column("Int64", "Allocated by PyTorch, unmapped memory included."),
            "reserved_bytes": Column("Int64", "Reserved by PyTorch, unmapped memory included."),
            "used_bytes": Column("Int64", "Used on the GPU by all processes, without unmapped memory."),
            "total_bytes": Column("Int64", "Memory of the GPU."),
            "freed_bytes": Column("Int64", "Freed by the sleep, as vLLM counts it."),
            "host_used_bytes": Column("Int64", "Used memory of the host, all processes included."),
        },
    ),
    Table(
        "memory_categories",
        "by how much the tensors of one category grew or shrank at one time, on the one device of the file",
        {
            "ts_ns": Column("Int64", "When, ns on the clock of ts_ns; <NA>: held before the recording began."),
            "category": TORCH_CATEGORY,
            "change_bytes": Column("int64", "Bytes added; negative: removed."),
            "level_bytes": Column("int64", "Bytes of the category after it."),
        },
    ),
)
