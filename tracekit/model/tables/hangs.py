"""Raw tables of a job that hangs: flight recorders, stacks of threads, lines of watchdogs, communicators by RAS."""

from __future__ import annotations

from tracekit.model.tables.table import Column, Table

RECORD = {
    "record_id": Column("Int64", "Number of the record in its process, from 0; a ring drops the first ones."),
    "group": Column("category", "Name of the process group."),
    "group_desc": Column("category", "Description of the process group, such as default_pg."),
    "seq": Column("Int64", "Sequence number of the collective in its group (collective_seq_id)."),
    "p2p_seq": Column("Int64", "Sequence number of the send or receive in its group."),
    "backend": Column("category", "Library: nccl | gloo | xccl …"),
    "op": Column("category", "Operation without its library, such as _all_gather_base or send 1->2."),
    "is_p2p": Column("bool", "Whether it is a send or a receive."),
    "input_sizes": Column("category", "Shapes of the inputs, as [[1024]]."),
    "output_sizes": Column("category", "Shapes of the outputs."),
    "dtypes": Column("category", "Types of inputs and outputs, as Float → Float."),
    "state": Column(
        "category", "scheduled | started | completed, as the watchdog saw it; gloo leaves it at scheduled."
    ),
    "retired": Column("bool", "Whether the watchdog stopped watching it."),
    "created_ns": Column("Int64", "When the host enqueued it, Unix ns."),
    "started_ns": Column("Int64", "When the watchdog saw it started, Unix ns: late."),
    "completed_ns": Column("Int64", "When the watchdog saw it completed, Unix ns: late."),
    "dur_ns": Column(
        "Int64", "Time on the GPU from its start to its end, ns; <NA> without TORCH_NCCL_ENABLE_TIMING=1."
    ),
    "timeout_ns": Column("Int64", "Time after which the watchdog gives up, ns."),
    "frame": Column("category", "Innermost Python frame outside libraries: function (file:line)."),
    "stack": Column("category", "Python stack at the call, innermost frame first, one frame per line."),
}
"""Columns of one record, shared with the measured table of the question about hangs."""

GROUP_STATUS = {
    "group": Column("category", "Name of the process group."),
    "group_desc": Column("category", "Description of the process group."),
    "members": Column("category", "Its global ranks, as 0,1,2; empty if not recorded."),
    "last_enqueued": Column("Int64", "Sequence number of the last collective that was enqueued; 0 for none."),
    "last_started": Column("Int64", "Sequence number of the last collective that was seen started."),
    "last_completed": Column("Int64", "Sequence number of the last collective that completed; 0 for none."),
    "written_ns": Column("Int64", "When the file was written or last copied, Unix ns."),
}

STACK = {
    "thread": Column("category", "Name or number of the thread."),
    "is_main": Column("bool", "Whether it is the main thread, as far as the tool names it."),
    "state": Column("category", "idle | active | active+gil, as py-spy says; <NA> if not recorded."),
    "frame": Column("category", "Innermost Python frame outside libraries: function (file:line)."),
    "stack": Column("category", "Stack, innermost frame first, one frame per line."),
}

WATCHDOG_LINE = {
    "line": Column("int64", "Line of the log, from 1."),
    "printed_by": Column("Int64", "Global rank that printed it."),
    "kind": Column(
        "category",
        "timeout: a collective ran out of time | status: last works of the group | heartbeat: the watchdog itself was "
        "stuck | signal: another rank asked for a dump | no-recorder: the flight recorder was off.",
        ("timeout", "status", "heartbeat", "signal", "no-recorder"),
    ),
    "group": Column("category", "Name of the process group."),
    "group_desc": Column("category", "Description of the process group."),
    "seq": Column("Int64", "Sequence number of the collective in its group."),
    "op": Column("category", "Operation, as printed, such as _ALLGATHER_BASE."),
    "elements_in": Column("Int64", "Elements of the input."),
    "elements_out": Column("Int64", "Elements of the output."),
    "timeout_ns": Column("Int64", "Time after which the watchdog gives up, ns."),
    "waited_ns": Column("Int64", "Time that it ran, ns."),
    "last_enqueued": Column("Int64", "Last work that the group enqueued."),
    "last_completed": Column("Int64", "Last work that the group completed."),
}

COMMUNICATOR = {
    "sample": Column("int64", "Number of the report in the file, from 0."),
    "communicator": Column("category", "Communicator, as RAS names it."),
    "status": Column("category", "Error that RAS reports: MISMATCH | INCOMPLETE …"),
    "op": Column("category", "Collective whose counts differ."),
    "launched": Column("Int64", "Operations of this kind that these ranks launched."),
    "rank_count": Column("Int64", "Number of ranks with this count."),
    "ranks": Column("category", "Ranks that the report lists, as 3,12; empty if it lists none."),
}

TABLES: tuple[Table, ...] = (
    Table("collective_records", "one collective, send or receive that a flight recorder kept", RECORD),
    Table("collective_groups", "one process group, by the status that a flight recorder gives", GROUP_STATUS),
    Table("thread_stacks", "one thread of a process at one moment, by py-spy or faulthandler", STACK),
    Table("watchdog_lines", "one line that the watchdog of a process group printed", WATCHDOG_LINE),
    Table("communicator_counts", "ranks of a communicator with one count of operations, by NCCL RAS", COMMUNICATOR),
)
