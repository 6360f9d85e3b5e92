"""The tables made of memory snapshots: levels, what is in use at the peak, free space, what the allocator asked for."""

from __future__ import annotations

from tracekit.model.tables.columns import DEVICE, KEYS, OCCURRENCE, STAGE, STEP, STREAM
from tracekit.model.tables.snapshots import MEMORY, POOL
from tracekit.model.tables.table import Column, Table

MOMENTS = ("peak", "grown", "end")
"""When: most was requested | right before the segment with which most was reserved | the snapshot was taken."""

ORIGINS = ("recorded", "before", "freed", "rest")
"""recorded: allocated in the history | before: earlier, and in use at the end, so that its block tells the
stack | freed: earlier, and freed in the history, which tells only who freed it | rest: beyond the cap."""

SITE_KINDS = ("user", "library", "native", "empty", "unknown")
"""The frame that names a stack: the program's Python | an installed package's | no Python frame at all |
a stack without frames | no stack was recorded."""

UNTOLD = ("none", "before", "freed", "empty", "unknown", "rest")
"""nothing is missing | before the history, without a stack | before it, freed in it | a stack without frames | no stack | beyond the cap."""

BASES = ("recorded", "metadata", "compiled", "stage", "none")
"""How a category is known: by a profiler | text that the program attached | what was being compiled |
the annotated range in which it was allocated | not at all."""

OOM_CLASSES = ("capacity", "fragmentation", "outside", "unknown")
"""Why memory ran out: too much in use | free pieces too small | others hold the device | not told."""

PLACES = ("active", "pending", "inactive")
"""in use | freed, but another stream may still use it | free."""

_WHERE = {**KEYS, "memory": MEMORY, "device": DEVICE}
_MOMENT = Column(
    "category",
    "peak: most requested | grown: before the segment with which most was reserved | end.",
    MOMENTS,
)
_STEP_OF = {"step": STEP, "stage": STAGE}
_POOL = {
    "pool": POOL,
    "stream": STREAM,
    "kind": Column("category", "small (for blocks to 1 MiB) | large, as recorded."),
}

TABLES: tuple[Table, ...] = (
    Table(
        "snapshot_levels",
        "the memory of one device as one snapshot tells it",
        {
            **_WHERE,
            "entry_count": Column("int64", "Entries of the history; 0: none was recorded."),
            "window_ns": Column("Int64", "From the first entry to the last."),
            "unsound_count": Column("int64", "Entries without a size or with an impossible one."),
            "base_bytes": Column("int64", "Requested before the history and not freed then."),
            "peak_bytes": Column(
                "int64", "Most requested at one time; without a history at the end."
            ),
            "peak_ts_ns": Column("Int64", "When first; <NA>: before the history, or not recorded."),
            "peak_step": Column("Int64", "Step of the peak."),
            "peak_stage": Column("category", "Outermost annotated range then, as recorded."),
            "peak_allocated_bytes": Column(
                "Int64",
                "Most allocated at one time, at least: as rounded up; what was freed may have held a little more.",
            ),
            "peak_reserved_bytes": Column("Int64", "Reserved at that time."),
            "reserved_peak_bytes": Column("Int64", "Most reserved at one time."),
            "end_requested_bytes": Column("int64", "Requested and in use at the end."),
            "end_allocated_bytes": Column("Int64", "The same as the allocator rounds it up."),
            "end_reserved_bytes": Column("Int64", "Reserved at the end."),
            "pending_bytes": Column(
                "int64", "Rounded bytes that wait for other streams at the end."
            ),
            "off_bytes": Column("int64", "By how much the history misses the blocks at the end."),
            "alloc_count": Column("int64", "Allocations of the history."),
            "alloc_bytes": Column("int64", "Σ of what they requested."),
            "largest_bytes": Column("Int64", "The largest of them."),
            "expandable": Column("bool", "Whether any segment grows in place."),
        },
    ),
    Table(
        "live_sites",
        "what one place in the program holds at the peak or at the end: the largest 200 of a snapshot",
        {
            **_WHERE,
            "moment": _MOMENT,
            "origin": Column("category", " | ".join(ORIGINS) + ".", ORIGINS),
            "kind": Column("category", " | ".join(SITE_KINDS) + ".", SITE_KINDS),
            "site": Column("category", "The frame that names the stack; <NA>: not known."),
            "place": Column(
                "category",
                "File and function of that frame, without line and folders; <NA>: not known.",
            ),
            "category": Column("category", "What for, as far as something tells."),
            "basis": Column("category", " | ".join(BASES) + ".", BASES),
            "stack": Column("Int64", "The stack with most of it, by content."),
            "stack_count": Column("int64", "Different stacks."),
            "block_count": Column("int64", "Blocks."),
            "size_bytes": Column("int64", "Requested bytes."),
            "oldest_ns": Column("Int64", "Age of the oldest that was allocated in the history."),
        },
    ),
    Table(
        "live_steps",
        "what one place in the program holds when a step ends: the largest 60 of a snapshot, and the rest",
        {
            **_WHERE,
            "step": STEP,
            "position": Column("int64", "Which end of a step in the snapshot, from 0."),
            "at_ns": Column("Int64", "When it ended, ns since the Unix epoch."),
            "site": Column("category", "The frame that names the stack; <NA>: not known."),
            "kind": Column("category", " | ".join(SITE_KINDS) + ".", SITE_KINDS),
            "untold": Column("category", " | ".join(UNTOLD) + ": why there is no site.", UNTOLD),
            "size_bytes": Column("int64", "Requested bytes."),
            "block_count": Column("int64", "Blocks."),
        },
    ),
    Table(
        "live_frames",
        "a frame of the tree of stacks at the peak, outermost first: the largest 300 of a snapshot",
        {
            **_WHERE,
            "depth": Column("int32", "0 outermost."),
            "start_bytes": Column("int64", "Where it begins in the row of its depth."),
            "size_bytes": Column("int64", "Requested bytes below it."),
            "name": Column("category", "The frame."),
        },
    ),
    Table(
        "lifetimes",
        "how much of what was allocated lived so long",
        {
            **_WHERE,
            "low_ns": Column("Int64", "From here on; <NA>: not freed in the history."),
            "high_ns": Column("Int64", "To below this."),
            "block_count": Column("int64", "Allocations."),
            "size_bytes": Column("int64", "What they requested."),
        },
    ),
    Table(
        "allocator_steps",
        "what the allocator did in one step",
        {
            **_WHERE,
            "step": STEP,
            "occurrence": OCCURRENCE,
            "alloc_count": Column("int64", "Allocations."),
            "alloc_bytes": Column("int64", "What they requested."),
            "driver_alloc_count": Column("int64", "Times that it got memory from the driver."),
            "driver_alloc_bytes": Column("int64", "How much."),
            "driver_free_count": Column("int64", "Times that it gave memory back."),
            "driver_free_bytes": Column("int64", "How much."),
            "retry_count": Column(
                "int64",
                "Times that it gave its cache back in order to get a segment for a request.",
            ),
            "needless_count": Column(
                "Int64",
                "Segments got for a request while free pieces added up to it; <NA>: not told.",
            ),
        },
    ),
    Table(
        "free_space",
        "the parts of what is reserved in one pool, stream and kind of segment",
        {
            **_WHERE,
            "moment": _MOMENT,
            **_POOL,
            "segment_count": Column("int64", "Segments."),
            "expandable_count": Column("int64", "Of these such that grow in place."),
            "reserved_bytes": Column("int64", "Bytes of them."),
            "requested_bytes": Column("int64", "Requested bytes in use in them."),
            "internal_bytes": Column(
                "Int64",
                "By how much blocks in use are larger than requested; <NA>: only told at the end.",
            ),
            "free_bytes": Column("int64", "In no block in use."),
            "releasable_bytes": Column("int64", "Of segments without any block in use."),
            "stranded_bytes": Column("int64", "Free beside blocks in use, in segments with such."),
            "largest_free_bytes": Column("int64", "The largest free piece."),
            "largest_request_bytes": Column("Int64", "The largest request of the history."),
        },
    ),
    Table(
        "requests",
        "a size that was requested in the history, of the largest ones, and whether it would fit at the end",
        {
            **_WHERE,
            **_POOL,
            "size_bytes": Column("int64", "As requested."),
            "request_count": Column("int64", "How often."),
            "site": Column("category", "Where in the program, the last time."),
            "fits": Column("bool", "Whether a free piece of its pool and stream is large enough."),
        },
    ),
    Table(
        "segment_map",
        "a run of blocks of one state in a segment at the end: the largest 400 of a snapshot",
        {
            **_WHERE,
            **_POOL,
            "segment": Column("int32", "Which, the largest first."),
            "segment_bytes": Column("int64", "Bytes of the segment."),
            "state": Column("category", "active | pending | inactive.", PLACES),
            "start_bytes": Column("int64", "Where it begins in the segment."),
            "end_bytes": Column("int64", "Where it ends."),
            "omitted_count": Column("int64", "Runs of the snapshot beyond the cap."),
        },
    ),
    Table(
        "out_of_memory",
        "a request that could not be met",
        {
            **_WHERE,
            **_STEP_OF,
            "ts_ns": Column("Int64", "When."),
            "entry": Column("int64", "Its place in the history."),
            "cause": Column("category", " | ".join(OOM_CLASSES) + ".", OOM_CLASSES),
            "asked_bytes": Column("int64", "What was requested."),
            "device_free_bytes": Column("Int64", "Free on the device, as the driver told."),
            "reserved_bytes": Column("Int64", "Reserved then."),
            "requested_bytes": Column("int64", "In use then, as requested."),
            "free_bytes": Column(
                "Int64", "Reserved in the pool and stream of the request and in no block in use."
            ),
            "largest_free_bytes": Column(
                "Int64", "The largest free piece of these; <NA>: segments grow in place."
            ),
            "given_back_bytes": Column(
                "int64", "Cache that it gave back to the driver just before."
            ),
            "site": Column("category", "Where in the program."),
        },
    ),
    Table(
        "last_actions",
        "one of the 20 entries before a request that could not be met, the last first",
        {
            **_WHERE,
            "entry": Column("int64", "Place of the request in the history."),
            "before": Column("int32", "1: the entry before it."),
            "action": Column("category", "As in allocations."),
            "size_bytes": Column("Int64", "As recorded."),
            "site": Column("category", "Where in the program."),
        },
    ),
)
