"""The measured table of exclusive time: each nanosecond of a step assigned once, with the cause of idle time."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.model.tables.columns import DEVICE, KEYS, STEP
from tracekit.model.tables.table import Column, Table

CAUSES = (
    "host_start_up",
    "host_loader",
    "host_gc",
    "host_sync",
    "host_overhead",
    "host_op",
    "host_code",
    "host_none",
    "host_silent",
    "sync",
    "kernel_wait",
    "other",
    "unknown",
    "after_last",
)
"""Causes of idle time. `host_*`: the next op was not launched yet, by what the host did meanwhile."""

CAUSE_TITLES: Mapping[str, tuple[str, str]] = {
    "host_start_up": (
        "start-up",
        "The host created a context, loaded or compiled code, or made another first call: see rule start-up.",
    ),
    "host_loader": ("data loader", "The host was in the data loader; the next op was not launched yet."),
    "host_gc": ("garbage collection", "The host collected garbage; the next op was not launched yet."),
    "host_sync": ("synchronizing call", "The host was in a call that waits for the device, or in a blocking copy."),
    "host_overhead": ("profiler", "The profiler or the driver's module loading delayed the host."),
    "host_op": ("host op", "The host ran an op or a runtime call; the next op was not launched yet."),
    "host_code": (
        "host code",
        "The host ran Python functions, or was in a range without ops, for long: see the GPU idle time by call path.",
    ),
    "host_none": ("between ops", "The host was in no op and no call, but not for long: Python between ops."),
    "host_silent": (
        "no host activity",
        "A long time without any recorded host activity: see rule host-silence.",
    ),
    "sync": ("stream wait", "The next op was launched; its stream waited for another stream."),
    "kernel_wait": ("launch latency", "The next op was launched and started soon: see the threshold idle-causes."),
    "other": ("other", "The next op was launched but not started, for a cause that was not recorded."),
    "unknown": ("launch unknown", "The launch of the next op was not recorded."),
    "after_last": ("after the last op", "No device op followed in this recording."),
}
"""Title and meaning of each cause."""

HOLDERS = (
    "python",
    "op",
    "call",
    "first_call",
    "sync",
    "gc",
    "range",
    "system",
    "sample",
    "off_cpu",
    "profiler",
    "device",
    "nothing",
)
"""Kinds of the deepest recorded activity on the thread that launched the next op, while a device was idle."""

HOLDER_TITLES: Mapping[str, tuple[str, str]] = {
    "python": ("Python", "A Python function."),
    "op": ("op", "An op of the framework."),
    "call": ("runtime call", "A call of the GPU's runtime or driver."),
    "first_call": (
        "first call",
        "The first call of its name, or the first launch of a kernel, far longer than later ones: start-up, loading code.",
    ),
    "sync": ("synchronizing call", "A call that waits for the device, or a blocking copy."),
    "gc": ("garbage collection", "Recorded garbage collection."),
    "range": ("range", "An annotated range with nothing recorded inside it."),
    "system": ("system call", "A call of the operating system, or an event of an unknown kind."),
    "sample": ("CPU sample", "Only CPU samples cover the thread: the function of the last sample."),
    "off_cpu": ("off the CPU", "The thread was descheduled; nothing else was recorded."),
    "profiler": ("profiler", "The profiler or the driver's module loading."),
    "device": ("launched", "The launch had returned, but the device had not started the op."),
    "nothing": ("nothing recorded", "Nothing was recorded: the host's activity is unknown."),
}
"""Title and meaning of each kind."""

CLASSES = ("compute", "collective", "memcpy", "memset", "idle", "host", "no_op")
"""Classes of exclusive time. On a device the first four, in order of priority, and `idle`.

For a source without a device: `host` (in an op of the step thread), `collective`, `no_op` (in neither).
"""

CLASS_TITLES: Mapping[str, tuple[str, str]] = {
    "compute": ("compute", "Kernels; where several run at once they share the time."),
    "collective": ("communication", "Collectives while nothing computes, or that the host waits for."),
    "memcpy": ("copies", "Copies while neither kernels nor collectives run."),
    "memset": ("fills", "Fills while nothing else runs."),
    "idle": ("idle", "Nothing ran."),
    "host": ("host ops", "The innermost op of the step thread at each instant."),
    "no_op": ("no op (Python)", "The step thread was in no recorded op: Python, or a wait that is not recorded."),
}
"""Title and meaning of each class."""

CPU_ACTIVITIES = ("gc", "loader", "wait", "op", "python", "between", "silent")
"""Activities of the host in a process without a device; the first that applies counts."""

CPU_ACTIVITY_TITLES: Mapping[str, tuple[str, str]] = {
    "gc": ("garbage collection", "Recorded garbage collection of Python."),
    "loader": ("data loader", "Waiting for the data loader."),
    "wait": ("collective wait", "Waiting for a collective of this process to end."),
    "op": ("ops", "Any thread is in an op or a runtime call."),
    "python": ("Python", "Python functions or leaf ranges, without an op."),
    "between": ("between ops", "Nothing was recorded, but not for long."),
    "silent": ("no host activity", "Nothing was recorded on any thread for long."),
}
"""Title and meaning of each activity."""

PAGE_CAUSES: tuple[tuple[str, str, str], ...] = (
    *((cause, *CAUSE_TITLES[cause]) for cause in CAUSES),
    ("host_gc", "garbage collection", "No op ran on the thread: Python collected garbage."),
    ("host_loader", "data loader", "No op ran on the thread: it waited for the data loader."),
    ("host_sync", "collective wait", "No op ran on the thread: it waited for a collective to end."),
    ("host_op", "op on another thread", "No op ran on the thread: another thread of the process ran one."),
    ("host_code", "Python", "No op ran on the thread: Python functions or leaf ranges did."),
    ("host_none", "between ops", "Nothing was recorded, but not for long."),
    ("host_silent", "no host activity", "Nothing was recorded on any thread for long."),
)
"""Color key, title and meaning of the causes on a page: idle time of devices by `CAUSES`, then of threads by `CPU_ACTIVITIES`."""

NO_OP, UNLINKED, OTHER = "(no op)", "(unlinked)", "(other)"
"""Values in place of an op path: in no op, launch not recorded, and the sum of a source's many small rows."""


def get_class_title(kind: str, cause: str = "") -> str:
    """Get the title of a class; idle time includes its cause.

    >>> get_class_title("idle", "sync"), get_class_title("host")
    ('idle: stream wait', 'host ops')
    """
    title = CLASS_TITLES.get(kind, (kind,))[0]
    if not cause:
        return title
    return f"{title}: {CAUSE_TITLES.get(cause, (cause,))[0]}"


TABLES: tuple[Table, ...] = (
    Table(
        "slots",
        "exclusive time of one step on one device, or on the step thread of a source without a device, by"
        " stage, class, op path and kernel: over rows it is the length of the step",
        {
            **KEYS,
            "step": STEP,
            "occurrence": Column("int32", "As in steps: 0 for the first step of that number, 1 for the next …"),
            "device": DEVICE,
            "stage": Column(
                "category",
                "Outermost stage as recorded: of device ops the one they belong to by launch, of idle and host"
                " time the one at that time; `(other)` past a cap.",
            ),
            "class": Column(
                "category", "compute | collective | memcpy | memset | idle (of devices) | host | no_op.", CLASSES
            ),
            "cause": Column("category", "Cause of idle time, as in idle; otherwise <NA>."),
            "op": Column(
                "category",
                "Ops on the host from outermost to innermost, ` > ` between, `…` for those left out; (no op),"
                " (unlinked), (other); <NA> for idle time.",
            ),
            "kernel": Column("category", "Device op as recorded; (other); <NA> for idle and host time."),
            "count": Column(
                "int64", "Ops, waits or idle parts of that kind that begin in the step, overlapped ones too."
            ),
            "exclusive_ns": Column("int64", "Their exclusive time, or their share of time with equal ones."),
        },
    ),
)
