"""Start-up of a process: one-time work before it runs at its usual pace.

The runtime creates its context, code is loaded or compiled, libraries create handles and search for
algorithms, graphs are captured. Calls are recognized by name, or as the first of their kind that is far
longer than all others; a lone call counts. Before its first device call, a program that starts may record
nothing at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tracekit.model.intervals import Intervals, compute_running_max, measure_coverage, merge_intervals
from tracekit.model.records import dataclass
from tracekit.model.tables.arrays import Coded, concatenate_like_arrays, select_rows
from tracekit.model.tables.keys import find_distinct
from tracekit.model.trace import Trace
from tracekit.process.calls.launches import Launches, find_launches
from tracekit.process.calls.nesting import CallTree, build_call_tree, measure_exclusive_host_times
from tracekit.process.name_filters import mark_rows_of_kind, mark_wanted_names

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KINDS = ("context", "code", "library", "compile", "graph", "memory", "other", "program")
"""Kinds of start-up calls."""

KIND_TITLES = {
    "context": "context creation",
    "code": "module loading",
    "library": "library set-up",
    "compile": "JIT compilation",
    "graph": "graph capture",
    "memory": "first allocations",
    "other": "other first calls",
    "program": "start of the program",
}
"""Title of each kind."""

CONTEXT, CODE, LIBRARY, COMPILE, GRAPH, MEMORY, OTHER, PROGRAM = range(len(KINDS))

NO_CALLS = "no calls"
"""Name of time in which a starting program records nothing."""

NAMED_NS = 100_000
"""Shortest call that counts as start-up by its name: handles and attributes are also queried in every step."""

FIRST_CALL_NS, FIRST_CALL_TIMES = 1_000_000, 20
"""A call with an ordinary name must last this long, and this many times the median of others with its name."""

JIT_NS = 10_000_000
"""Shortest op that counts as compiling the code it runs."""

LEAST_SILENCE = 0.5
"""Share of the time before its first device call in which a starting program records nothing, at least."""

MAX_FIRST_CALLS = 1_000
"""Long calls examined one by one at most, in order of time."""

COMPILING = re.compile(
    r".*(\(dynamo_timed\)|compile_fx|compile_inner|TorchInductor|async_compile|CachingAutotuner"
    r"|[Tt]riton\S{0,80}[ .:]+(compile|jit)|JITFunction|(nv|hip)rtc"
    r"|(cu|cuda|hip)(Module|Library)Load|cuLink(Create|Add|Complete)|Lazy Function Loading)",
    re.DOTALL,
)
"""Names of ops, ranges and calls that compile or load code."""

CAPTURING_GRAPH = re.compile(r"(cuda|cu|hip)(GraphInstantiate|StreamBeginCapture|StreamEndCapture)")

_LOADS = re.compile(
    r"(cu|cuda|hip)(Module|Library|Func|Kernel|Occupancy|GetFuncBySymbol|GetSymbol)|Lazy Function Loading"
)
_CREATES_CONTEXT = re.compile(
    r"(cu|cuda|hip)(Init|CtxCreate|CtxSetCurrent|DevicePrimaryCtx|SetDevice|InitDevice|DeviceReset"
    r"|GetDevice|DeviceGet|DriverGetVersion|RuntimeGetVersion|GetExportTable)"
)
_CREATES_HANDLE = re.compile(
    r"(cu|cuda|hip)(StreamCreate|EventCreate|StreamGetPriority)|(cudnn|cublas\w*|hipblas\w*|rocblas|miopen|nccl)_?\w*(Create|CommInit)"
)
_ALLOCATES = re.compile(r"(cu|cuda|hip)(Mem)?(Malloc|Alloc|Create|HostAlloc|HostMalloc|HostRegister)")
_LAUNCHES = re.compile(r"(cu|cuda|hip)\w*(Launch|Memset)")
_DRIVER_LAUNCH = re.compile(r"cuLaunchKernel|hipModuleLaunchKernel|hipExtModuleLaunchKernel")
_COPIES_OR_WAITS = re.compile(r"memcpy|synchronize|wait|query|peer|prefetch", re.IGNORECASE)
_NO_JIT = re.compile(r"aten::|Torch-Compiled Region|CompiledF|## Call|triton_")
"""Ops that run prebuilt code, or code compiled elsewhere."""

_JIT_OP = re.compile(r"fused_|fallback_function|TensorExpr|(Cuda|NvFuser)\w*Fusion|prim::|triton")
_COMPILE_FRAME = re.compile(
    r"(?:.*/)?(?:torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|compile_inner)"
    r"|torch/_inductor/(?:compile_fx|async_compile)\.py\(\d+\): "
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)"
    r"|triton/(?:compiler/compiler\.py\(\d+\): compile|runtime/jit\.py\(\d+\): _do_compile))"
)
_DRIVER_CALL = re.compile(r"ioctl$")
_ALLOCATING_OP = re.compile(r"aten::(new_)?empty(_strided|_like|_permuted)?$")


@lru_cache(4096)
def _classify_start_up_name(name: str) -> int:
    """Classify a start-up call by name alone; -1 for other names."""
    start = name[:300]
    patterns = (
        (_LOADS, CODE),
        (CAPTURING_GRAPH, GRAPH),
        (COMPILING, COMPILE),
        (_CREATES_CONTEXT, CONTEXT),
        (_CREATES_HANDLE, LIBRARY),
    )
    return next((kind for pattern, kind in patterns if pattern.match(start)), -1)


@dataclass(frozen=True, slots=True, eq=False)
class StartUpCalls:
    """Start-up calls in order of start, none inside another.

    `row` is that of `host_ops`, -1 for a Python function and for time without any row. `usual_ns` is the
    median of other calls with the name, -1 for a lone call or one recognized by its name.
    """

    row: Ints
    kind: Ints
    name: Coded
    thread: Ints
    ts_ns: Ints
    dur_ns: Ints
    usual_ns: Ints

    @property
    def end_ns(self) -> Ints:
        """End of each call."""
        return self.ts_ns + self.dur_ns

    @property
    def time(self) -> Intervals:
        """Union of the calls."""
        return merge_intervals(self.ts_ns, self.end_ns)


def find_start_up_calls(trace: Trace) -> StartUpCalls:
    """Find the start-up calls of a process with recorded device work."""
    size = len(trace.numbers("host_ops", "ts_ns"))
    kind, usual = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    if len(trace.numbers("device_ops", "ts_ns")) and size:
        for rows, kinds, usual_ns in _recognize_start_up_calls(trace):
            is_new = kind[rows] < 0
            kind[rows[is_new]], usual[rows[is_new]] = kinds[is_new], usual_ns[is_new]
    before = trace.numbers("host_ops", "ts_ns") < _find_last_device_begin(trace)
    rows = ((kind >= 0) & before).nonzero()[0]
    names = trace.texts("host_ops", "name")
    thread, start, dur = (trace.numbers("host_ops", name)[rows] for name in ("thread", "ts_ns", "dur_ns"))
    named = Coded(names.codes[rows], names.texts)
    calls = _add_compile_frames(trace, StartUpCalls(rows, kind[rows], named, thread, start, dur, usual[rows]))
    return _add_start_silence(trace, calls)


def _recognize_start_up_calls(trace: Trace) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (rows, kind of each, usual duration of each or -1), the most certain first."""
    names, dur = trace.texts("host_ops", "name"), trace.numbers("host_ops", "dur_ns")
    by_name = np.array([*map(_classify_start_up_name, names.texts), -1], np.int64)[names.codes]
    is_call = mark_rows_of_kind(trace, "host_ops", "runtime")
    timed = is_call | mark_rows_of_kind(trace, "host_ops", "op", "range", "overhead")
    compiles = timed & ((by_name == COMPILE) | (by_name == CODE))
    named = (compiles | (is_call & (by_name >= 0)) | (timed & (by_name == LIBRARY))) & (dur >= NAMED_NS)
    rows = named.nonzero()[0]
    yield rows, by_name[rows], np.full(len(rows), -1)
    waits = mark_wanted_names(names, _COPIES_OR_WAITS.search)
    plain = is_call & ~waits
    rows = _find_calls_before_work(trace, plain)
    yield rows, _classify_ordinary_calls(trace, rows, CONTEXT), np.full(len(rows), -1)
    ops, usual = _find_long_first_calls(trace, mark_rows_of_kind(trace, "host_ops", "op"))
    rows = _find_rows_inside(trace, plain & (dur >= FIRST_CALL_NS), ops)
    rows = rows[_mark_rows_with_idle_device(trace, rows)]
    yield rows, _classify_ordinary_calls(trace, rows, LIBRARY), np.full(len(rows), -1)
    is_jit = _mark_compiling_ops(trace, ops)
    yield ops[is_jit], np.full(int(is_jit.sum()), COMPILE), usual[is_jit]
    is_allocation = _mark_first_allocations(trace, ops)
    yield ops[is_allocation], np.full(int(is_allocation.sum()), MEMORY), usual[is_allocation]
    rows, usual = _find_long_first_calls(trace, plain)
    idle = _mark_rows_with_idle_device(trace, rows)
    yield rows[idle], _classify_ordinary_calls(trace, rows[idle], OTHER), usual[idle]


def _classify_ordinary_calls(trace: Trace, rows: Ints, otherwise: int) -> Ints:
    """Classify calls with ordinary names: launches load code, allocations are memory, others are `otherwise`."""
    names = select_rows(trace.texts("host_ops", "name"), rows)
    kinds = np.where(mark_wanted_names(names, _ALLOCATES.match), MEMORY, otherwise)
    return np.where(mark_wanted_names(names, _LAUNCHES.match), CODE, kinds)


def _find_last_device_begin(trace: Trace) -> int:
    """Find when the last device op begins: later host work is not start-up."""
    return int(trace.numbers("device_ops", "ts_ns").max(initial=np.iinfo(np.int64).min))


def _find_calls_before_work(trace: Trace, plain: Mask) -> Ints:
    """Find long calls that began before any device work, and the driver's system calls in that time."""
    start, dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    links: Launches = trace.derived(find_launches)
    early = start < _find_first_launch(trace)
    calls = (plain & early & (dur >= FIRST_CALL_NS)).nonzero()[0]
    system = mark_rows_of_kind(trace, "host_ops", "other")
    asks = system & early & mark_wanted_names(trace.texts("host_ops", "name"), _DRIVER_CALL.match)
    issued = links.call[links.call >= 0]
    asks &= np.isin(trace.numbers("host_ops", "thread"), trace.numbers("host_ops", "thread")[issued])
    is_much = int(dur[asks].sum()) >= FIRST_CALL_NS
    return np.concatenate((calls, asks.nonzero()[0])) if is_much else calls


def _find_first_launch(trace: Trace) -> int:
    """Find when the first device op was launched; when it began, if no launch is known."""
    links: Launches = trace.derived(find_launches)
    known = links.ts_ns[links.linked]
    return int((known if len(known) else trace.numbers("device_ops", "ts_ns")).min())


def _find_long_first_calls(trace: Trace, chosen: Mask) -> tuple[Ints, Ints]:
    """Find first calls that are far longer than others of their name: (rows, usual length).

    A first call is the first of its name, or the first to launch its kernel. The usual length is the median
    of the others, -1 for a lone row. The launches at the very start of a process, each long, are not compared
    with each other.
    """
    start, dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    names = trace.texts("host_ops", "name").codes
    long = (chosen & (dur >= FIRST_CALL_NS)).nonzero()[0]
    is_first, rows_of = np.zeros(len(dur), np.bool_), {}
    for name in find_distinct(names[long]).tolist():
        rows_of[name] = (chosen & (names == name)).nonzero()[0]
        is_first[rows_of[name][start[rows_of[name]].argmin()]] = True
    is_first[_find_first_kernel_launches(trace)] = True
    opening = np.zeros(len(dur), np.bool_)
    opening[_find_opening_launches(trace)] = True
    rows, usual = [], []
    by_time = long[is_first[long]]
    for row in by_time[np.argsort(start[by_time], kind="stable")][:MAX_FIRST_CALLS].tolist():
        others = rows_of[int(names[row])]
        is_other = ~opening[others] if opening[row] else others != row
        other_durations = dur[others[is_other]]
        median = int(np.median(other_durations)) if len(other_durations) else -1
        if dur[row] >= FIRST_CALL_TIMES * median:
            rows.append(row)
            usual.append(median)
    return np.array(rows, np.int64), np.array(usual, np.int64)


def _find_first_kernel_launches(trace: Trace) -> Ints:
    """Find the calls that were the first to launch a kernel of their name."""
    links: Launches = trace.derived(find_launches)
    ops = (links.call >= 0).nonzero()[0]
    ops = ops[np.argsort(links.ts_ns[ops], kind="stable")]
    kernels = trace.texts("device_ops", "name").codes[ops]
    first: Ints = links.call[ops[np.unique(kernels, return_index=True)[1]]]
    return first


def _find_opening_launches(trace: Trace) -> Ints:
    """Find the launches up to the first short one, each of a new kernel that begins at once (no full queue)."""
    links: Launches = trace.derived(find_launches)
    start, dur = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns"))
    ops = (links.call >= 0).nonzero()[0]
    short = dur[links.call[ops]] < FIRST_CALL_NS
    until = int(links.ts_ns[ops[short]].min(initial=np.iinfo(np.int64).max))
    ops = ops[links.ts_ns[ops] < until]
    late = trace.numbers("device_ops", "ts_ns")[ops] - (start + dur)[links.call[ops]]
    until = int(links.ts_ns[ops[late > FIRST_CALL_NS]].min(initial=until))
    rows = find_distinct(links.call[ops])
    opening: Ints = rows[(start[rows] < until) & np.isin(rows, _find_first_kernel_launches(trace))]
    return opening


def _mark_first_allocations(trace: Trace, ops: Ints) -> Mask:
    """Mark ops that allocate memory before the first launch, on a launching thread, and are long by themselves.

    Host memory is handed out at once, while the first device memory waits for its context.
    """
    names = trace.texts("host_ops", "name")
    is_first = mark_wanted_names(select_rows(names, ops), _ALLOCATING_OP.match)
    if not is_first.any():
        return is_first
    start, dur, thread = (trace.numbers("host_ops", name) for name in ("ts_ns", "dur_ns", "thread"))
    links: Launches = trace.derived(find_launches)
    own = trace.derived(measure_exclusive_host_times)[ops]
    is_first &= start[ops] < _find_first_launch(trace)
    is_first &= np.isin(thread[ops], thread[links.call[links.call >= 0]])
    return np.asarray(is_first & (own >= FIRST_CALL_NS) & (2 * own >= dur[ops]), np.bool_)


def _mark_rows_with_idle_device(trace: Trace, rows: Ints) -> Mask:
    """Mark rows during which no device worked for most of the time: other rows may wait for a full queue."""
    start, dur = (trace.numbers("host_ops", name)[rows] for name in ("ts_ns", "dur_ns"))
    is_idle: Mask = 2 * measure_coverage(unite_device_time(trace), start, start + dur) <= dur
    return is_idle


def unite_device_time(trace: Trace) -> Intervals:
    """Find when any device runs anything."""
    start = trace.numbers("device_ops", "ts_ns")
    return merge_intervals(start, start + trace.numbers("device_ops", "dur_ns"))


def _find_rows_inside(trace: Trace, chosen: Mask, around: Ints) -> Ints:
    """Find the chosen rows inside any of the rows `around`."""
    rows = chosen.nonzero()[0]
    if not len(rows) or not len(around):
        return np.empty(0, np.int64)
    mask = np.zeros(len(chosen), np.bool_)
    mask[around] = True
    return rows[trace.derived(build_call_tree).nearest(mask, rows) >= 0]


def _mark_compiling_ops(trace: Trace, ops: Ints) -> Mask:
    """Mark ops that run compiled code and spend most of their time outside inner rows: they compiled it.

    Compiled code is launched by a driver call, or by an op with a telling name.
    """
    names, dur = trace.texts("host_ops", "name"), trace.numbers("host_ops", "dur_ns")
    runs = mark_rows_of_kind(trace, "host_ops", "runtime") & mark_wanted_names(names, _DRIVER_LAUNCH.match)
    runs |= mark_rows_of_kind(trace, "host_ops", "op") & mark_wanted_names(names, _JIT_OP.match)
    rows = runs.nonzero()[0]
    if not len(rows) or not len(ops):
        return np.zeros(len(ops), np.bool_)
    is_long = (dur[ops] >= JIT_NS) & ~mark_wanted_names(select_rows(names, ops), _NO_JIT.match)
    mask = np.zeros(len(dur), np.bool_)
    mask[ops] = True
    tree: CallTree = trace.derived(build_call_tree)
    around = np.isin(ops, tree.nearest(mask, rows))
    is_made: Mask = is_long & around & (2 * trace.derived(measure_exclusive_host_times)[ops] >= dur[ops])
    return is_made


def renumber_start_up_calls(calls: StartUpCalls, is_left: Mask) -> StartUpCalls:
    """Renumber the calls for a trace with only some rows of `host_ops`; -1 for a dropped row."""
    place = np.append(np.where(is_left, np.cumsum(is_left) - 1, -1), -1)
    return replace(calls, row=place[calls.row])


def _add_compile_frames(trace: Trace, calls: StartUpCalls) -> StartUpCalls:
    """Add recorded Python functions that compile, and keep only outermost calls."""
    names = trace.texts("python_calls", "name")
    chosen = mark_wanted_names(names, _COMPILE_FRAME.match)
    chosen &= trace.numbers("python_calls", "dur_ns") >= NAMED_NS
    frames = chosen.nonzero()[0]
    if not len(frames):
        return _keep_outermost_start_up_calls(calls)
    start, dur, thread = (trace.numbers("python_calls", name)[frames] for name in ("ts_ns", "dur_ns", "thread"))
    of_frames = StartUpCalls(
        np.full(len(frames), -1),
        np.full(len(frames), COMPILE),
        Coded(names.codes[frames], names.texts),
        thread,
        start,
        dur,
        np.full(len(frames), -1),
    )
    return _keep_outermost_start_up_calls(_concatenate_start_up_calls(calls, of_frames))


def _add_start_silence(trace: Trace, calls: StartUpCalls) -> StartUpCalls:
    """Add the silent time before the calls, if the process had not used a device yet.

    Only a process whose first calls are cold has just begun; another one may wait for data.
    """
    launched = _find_first_launch(trace) if len(calls.ts_ns) else 0
    if not len(calls.ts_ns) or int(calls.ts_ns[0]) > launched:
        return calls
    until = min(int(calls.ts_ns[0]), int(trace.numbers("device_ops", "ts_ns").min()))
    start, end, first = _find_host_silences(trace, until)
    length = end - start
    if not len(start) or int(length.sum()) < LEAST_SILENCE * (until - first):
        return calls
    size = len(start)
    of_silence = StartUpCalls(
        np.full(size, -1),
        np.full(size, PROGRAM),
        Coded(np.zeros(size, np.int8), (NO_CALLS,)),
        np.full(size, calls.thread[0]),
        start,
        length,
        np.full(size, -1),
    )
    return _keep_outermost_start_up_calls(_concatenate_start_up_calls(of_silence, calls))


def _find_host_silences(trace: Trace, until: int) -> tuple[Ints, Ints, int]:
    """Find the long gaps between host rows of all threads before an instant: (starts, ends, start of the first row)."""
    counted = ~mark_rows_of_kind(trace, "host_ops", "overhead", "python", "other")
    starts, ends = [], []
    for table, chosen in (("host_ops", counted), ("python_calls", slice(None))):
        start, dur = (trace.numbers(table, name)[chosen] for name in ("ts_ns", "dur_ns"))
        is_before = start < until
        starts.append(start[is_before])
        ends.append((start + dur)[is_before])
    rows = merge_intervals(np.concatenate(starts), np.concatenate(ends))
    following = np.append(rows.start, until)[1:]
    is_long = following - rows.end >= FIRST_CALL_NS
    first = int(rows.start[0]) if len(rows.start) else until
    return rows.end[is_long], following[is_long], first


def _concatenate_start_up_calls(first: StartUpCalls, second: StartUpCalls) -> StartUpCalls:
    """Concatenate start-up calls."""
    columns = [
        np.concatenate((getattr(first, name), getattr(second, name)))
        for name in ("row", "kind", "thread", "ts_ns", "dur_ns", "usual_ns")
    ]
    names = concatenate_like_arrays([first.name, second.name])
    assert isinstance(names, Coded), "names are texts"
    return StartUpCalls(columns[0], columns[1], names, *columns[2:])


def _keep_outermost_start_up_calls(calls: StartUpCalls) -> StartUpCalls:
    """Keep the calls that no other call of their thread contains, in order of start."""
    if len(calls.ts_ns) < 2:
        return calls
    order = np.lexsort((-calls.dur_ns, calls.ts_ns, calls.thread))
    ordered = _select_start_up_calls(calls, order)
    end, thread = ordered.end_ns, ordered.thread
    _, group = np.unique(thread, return_inverse=True)
    reach = compute_running_max(end, group)
    is_outer = np.append(True, (end[1:] > reach[:-1]) | (group[1:] != group[:-1]))
    outer = _select_start_up_calls(ordered, is_outer.nonzero()[0])
    return _select_start_up_calls(outer, np.argsort(outer.ts_ns, kind="stable"))


def _select_start_up_calls(calls: StartUpCalls, rows: Ints) -> StartUpCalls:
    """Select rows."""
    return StartUpCalls(
        calls.row[rows],
        calls.kind[rows],
        select_rows(calls.name, rows),
        calls.thread[rows],
        calls.ts_ns[rows],
        calls.dur_ns[rows],
        calls.usual_ns[rows],
    )
