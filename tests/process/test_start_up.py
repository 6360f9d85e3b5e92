"""Start-up of a process, and where the work of a recording without marks begins: times in microseconds, by hand."""

import pytest
from chrome_builder import annotation, kernel, launch, launched, op, step, write
from process.blame_traces import python

import tracekit
from tracekit.process.slice_trace import drop_start_up
from tracekit.process.steps.recording_start import find_early_collective, find_early_wait
from tracekit.process.steps.start_up import KINDS, find_start_up_calls
from tracekit.process.steps.windows import find_steps_and_stages

MS, NS = 1_000, 1_000
TABLES = ("host_ops", "device_ops", "python_calls", "syncs", "threads")
ALL_REDUCE = "void vllm::cross_device_reduce_1stage<half, 4>(vllm::RankData*)"


def loaded(tmp_path, rows, name="rank0.json"):
    return tracekit.load(write(tmp_path / name, rows), tables=TABLES)


def calls(tmp_path, rows):
    """(kind, name, duration in µs) of every call of start-up."""
    found = loaded(tmp_path, rows).derived(find_start_up_calls)
    names = [found.name.texts[code] for code in found.name.codes.tolist()]
    kinds = [KINDS[kind] for kind in found.kind.tolist()]
    return list(zip(kinds, names, (found.dur_ns // NS).tolist(), strict=True))


def window(tmp_path, rows):
    """(start of the one step after the first row, its length, start-up before it, skew), in µs."""
    trace = loaded(tmp_path, rows)
    steps = trace.derived(find_steps_and_stages).step_rows
    assert len(steps) == 1
    first = min(row["ts"] for row in rows)
    zero = int(trace.numbers("host_ops", "ts_ns").min()) - first * NS
    before = [int(length[0]) // NS for length in steps.before.values()]
    return ((int(steps.ts_ns[0]) - zero) // NS, int(steps.dur_ns[0]) // NS, *before)


def steady(at, count=20, first=100):
    """Kernels `a` of 90 µs, one launched every 100 µs from `at` on."""
    return [row for k in range(count) for row in launched("a", at + 100 * k, at + 100 * k + 5, 90, first + k)]


BY_NAME = {
    "cuInit": "context", "cuDevicePrimaryCtxRetain": "context", "cudaSetDevice": "context", "hipInit": "context",
    "cudaGetDeviceProperties": "context", "cuModuleLoadData": "code", "cuLibraryLoadData": "code", "hipModuleLoad": "code",
    "cudaFuncGetAttributes": "code", "cudaOccupancyMaxActiveBlocksPerMultiprocessor": "code",
    "cudaStreamCreateWithFlags": "library", "hipStreamCreate": "library", "cudaEventCreateWithFlags": "library",
    "cublasCreate_v2": "library", "cudnnCreate": "library", "ncclCommInitRank": "library", "nvrtcCompileProgram": "compile",
    "hiprtcCompileProgram": "compile", "cudaGraphInstantiate": "graph", "hipStreamEndCapture": "graph",
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_a_name_alone_tells_from_a_tenth_of_a_millisecond_on(tmp_path, name):
    rows = [launch(0, 1), kernel("a", 5, 90, 1), launch(200, 50, 100, name=name), *steady(400)]
    assert calls(tmp_path, rows) == [(BY_NAME[name], name, 100)]
    rows[2]["dur"] = 99
    assert calls(tmp_path, rows) == []


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "hipFree", "cudaLaunchKernel"])
def test_a_lone_call_of_any_name_counts(tmp_path, name):
    """34: one launch of 300 ms, no other to compare with."""
    rows = [launch(0, 1), *steady(2 * MS)]
    rows[0] |= {"name": name, "dur": 1_000}
    assert [call[1:] for call in calls(tmp_path, rows)] == [(name, 1_000)]
    rows[0]["dur"] = 999
    assert calls(tmp_path, rows) == []


def test_a_call_that_copies_or_waits_is_no_first_call(tmp_path):
    rows = [launch(0, 1, 5 * MS, name="cudaMemcpyAsync"), *steady(6 * MS)]
    assert calls(tmp_path, rows) == []
    rows[0]["name"] = "cudaDeviceSynchronize"
    assert calls(tmp_path, rows) == []


@pytest.mark.parametrize(("usual", "is_first"), [(50, True), (51, False)])
def test_the_first_launch_of_a_kernel_takes_twenty_times_the_median(tmp_path, usual, is_first):
    rows = steady(0)
    for row in rows:
        if row["name"] == "cudaLaunchKernel":
            row["dur"] = usual
    rows += [launch(3 * MS, 900, 1_000), kernel("late", 4 * MS, 10, 900), *steady(5 * MS, 3, 500)]
    assert calls(tmp_path, rows) == ([("code", "cudaLaunchKernel", 1_000)] if is_first else [])


def test_a_launch_that_waits_for_a_full_queue_is_no_first_call(tmp_path):
    """The device works meanwhile: of 2 ms more than one, then half."""
    full = [*steady(0), kernel("b", 3_000, 1_001, 40), launch(2_990, 40), launch(3_000, 900, 2 * MS)]
    rows = [*full, kernel("late", 5 * MS, 10, 900), *steady(6 * MS, 3, 500)]
    assert calls(tmp_path, rows) == []
    rows[len(steady(0))]["dur"] = 1_000
    assert calls(tmp_path, rows) == [("code", "cudaLaunchKernel", 2 * MS)]


def cold(*lengths, late=0):
    """A launch of each length after the other, each of a kernel of its own that begins `late` after it returns."""
    rows, at = [], 0
    for number, length in enumerate(lengths):
        rows += [launch(at, 40 + number, length), kernel(f"k{number}", at + length + 5 + late, 2, 40 + number)]
        at += length + late + 50
    return rows  # fmt: skip


def test_the_launches_by_which_a_process_begins_are_not_compared_with_each_other(tmp_path):
    """Two launches of 17 and 18 ms: each is 20 times the median of the short ones, or nothing else was launched."""
    both = [("code", "cudaLaunchKernel", 17 * MS), ("code", "cudaLaunchKernel", 18 * MS)]
    later = [launch(40 * MS, 90, 3_000, name="cudaMemcpyAsync"), {**kernel("copy", 43 * MS, 2, 90)}]
    assert calls(tmp_path, [*cold(17 * MS, 18 * MS), *later]) == both
    assert calls(tmp_path, [*cold(17 * MS, 18 * MS), *steady(40 * MS)]) == both
    assert calls(tmp_path, [*cold(17 * MS, 18 * MS, 850), *later]) == both
    assert calls(tmp_path, [*cold(17 * MS, 18 * MS, 901), *later]) == []
    # Of one kernel, the second launch has no code to load: launches take that long there.
    rows = [{**row, "name": "k0"} if row["cat"] == "kernel" else row for row in cold(17 * MS, 18 * MS)]
    assert calls(tmp_path, [*rows, *later]) == []


def test_launches_behind_a_full_queue_are_no_first_ones(tmp_path):
    """What was launched before the recording runs first: the kernels begin more than 1 ms after their launches return."""
    later = [launch(40 * MS, 90, 3_000, name="cudaMemcpyAsync"), kernel("copy", 43 * MS, 2, 90)]
    assert len(calls(tmp_path, [*cold(5 * MS, 5 * MS, late=900), *later])) == 2
    assert calls(tmp_path, [*cold(5 * MS, 5 * MS, late=1_000), *later]) == []
    # A short launch first: the process has begun.
    rows = [*launched("a", -1_000, -900, 5, 9), *cold(5 * MS, 5 * MS), *later]
    assert calls(tmp_path, rows) == []


def test_a_program_that_starts_records_nothing(tmp_path):
    """A query, 150 ms without any row, a launch that loads code for 10 ms: 160 ms of start-up."""
    rows = [launch(0, 1, 5, name="cudaPeekAtLastError"), launch(150 * MS, 2, 10 * MS), kernel("a", 160 * MS, 5, 2),
            *steady(161 * MS)]  # fmt: skip
    assert calls(tmp_path, rows) == [
        ("program", "no calls", 150 * MS - 5), ("code", "cudaLaunchKernel", 10 * MS),
    ]  # fmt: skip
    assert window(tmp_path, rows)[::2] == (160 * MS, 160 * MS)
    # An op for more than half of that time, or Python: the program does something.
    busy = op("aten::randn", 10, 76 * MS)
    assert [call[0] for call in calls(tmp_path, [*rows, busy])] == ["code"]
    busy["dur"] = 74 * MS
    assert [call[0] for call in calls(tmp_path, [*rows, busy])] == ["program", "code"]
    assert [call[0] for call in calls(tmp_path, [*rows, python("load", 10, 140 * MS)])] == ["program", "code"][1:]


def test_a_silence_is_start_up_only_before_a_cold_call_and_before_any_work(tmp_path):
    """A process whose first launch is short has begun before: it may wait for data."""
    begin = launch(0, 1, 5, name="cudaPeekAtLastError")
    assert calls(tmp_path, [begin, *steady(150 * MS)]) == []
    rows = [begin, launch(150 * MS, 2, 10 * MS), kernel("a", 160 * MS, 5, 2), *steady(161 * MS)]
    # Work that was launched before the recording.
    assert [call[0] for call in calls(tmp_path, [*rows, kernel("b", 10, 5, 3)])] == ["code"]


@pytest.mark.parametrize("name", ["aten::empty", "aten::empty_strided"])
def test_the_first_memory_of_a_device_waits_for_its_context(tmp_path, name):
    """2 ms in an op without a call, before the first launch; the same later, or in another op, is something else."""
    first = [op("aten::ones", 0, 2_100), op(name, 10, 2_000)]
    assert calls(tmp_path, [*first, *steady(2_200)]) == [("memory", name, 2_000)]
    assert calls(tmp_path, [*first, *launched("a", -100, -50, 5, 1), *steady(2_200)]) == []
    first[1]["name"] = "aten::randperm"
    assert calls(tmp_path, [*first, *steady(2_200)]) == []
    first[1] |= {"name": name, "dur": 999}
    assert calls(tmp_path, [*first, *steady(2_200)]) == []


def test_memory_without_any_device_is_no_start_up(tmp_path):
    assert calls(tmp_path, [op("aten::empty", 0, 5 * MS), op("aten::mm", 6 * MS, 100)]) == []


def test_calls_after_the_last_device_op_are_no_start_up(tmp_path):
    assert calls(tmp_path, [*steady(0), launch(5 * MS, 900, 9 * MS, name="cudaFree")]) == []


def test_long_calls_inside_the_first_op_of_its_name_are_of_its_library(tmp_path):
    """Three cudaFree of about the same length: none is rare by its name, two lie in the first convolution."""
    rows = [
        *launched("warm", 0, 5, 9, 1), op("aten::conv2d", 100, 9 * MS),
        launch(200, 50, 4 * MS, name="cudaFree"), launch(5_000, 51, 3 * MS, name="cudaFree"),
        op("aten::conv2d", 10 * MS, 40), op("aten::conv2d", 11 * MS, 40),
        launch(12 * MS, 52, 4 * MS, name="cudaFree"), *steady(20 * MS),
    ]  # fmt: skip
    assert calls(tmp_path, rows) == [
        ("library", "cudaFree", 4 * MS), ("library", "cudaFree", 3 * MS),
    ]  # fmt: skip


def compiled(length, inside, name="delta_r2"):
    """An op of `length` that runs a kernel of its own by the driver's call, with `inside` of it in an op."""
    return [
        *launched("warm", 0, 5, 9, 1), op(name, 100, length), op("aten::add", 200, inside),
        {**launch(length, 60, 20), "name": "cuLaunchKernel"}, kernel("fused_mul_add", length + 50, 9, 60),
        *steady(length + 5_000),
    ]  # fmt: skip


def test_an_op_that_makes_the_code_that_it_runs_compiles(tmp_path):
    """10 ms, 4.98 of it in nothing that was recorded; 20 µs in the driver's launch."""
    assert calls(tmp_path, compiled(10 * MS, 4_900)) == [("compile", "delta_r2", 10 * MS)]
    assert calls(tmp_path, compiled(10 * MS, 5_100)) == []
    assert calls(tmp_path, compiled(10 * MS - 1, 4_900)) == []
    assert calls(tmp_path, compiled(10 * MS, 4_900, "aten::mm")) == []


def test_python_functions_that_compile_count_once(tmp_path):
    frames = [
        python("torch/_dynamo/convert_frame.py(700): _compile", 1_000, 8 * MS),
        python("torch/_inductor/compile_fx.py(1500): compile_fx", 2_000, 5 * MS),
        python("torch/_dynamo/eval_frame.py(500): _fn", 900, 9 * MS),
    ]
    rows = [*launched("warm", 0, 5, 9, 1), *frames, *steady(11 * MS)]
    assert [call[::2] for call in calls(tmp_path, rows)] == [("compile", 8 * MS)]


# Where the work begins


def test_a_capture_begins_when_its_last_first_call_returns(tmp_path):
    """34: 30 µs, a launch of 300 ms, 2 ms of work."""
    rows = [op("aten::add", 0, 300_060), launch(30, 1, 300_000), kernel("a", 300_034, 50, 1), *steady(300_100)]
    start, length, before, skew = window(tmp_path, rows)
    # The last kernel ends 1,900 + 95 after 300,100.
    assert (start, start + length, before, skew) == (300_030, 302_095, 300_030, 0)


def test_a_marked_step_keeps_its_length(tmp_path):
    rows = [step(1, 0, 400_000), launch(30, 1, 300_000), kernel("a", 300_034, 50, 1), *steady(300_100)]
    assert window(tmp_path, rows) == (0, 400_000, 0, 0)


@pytest.mark.parametrize(("pause", "end"), [(11_000, 22_000), (11_001, 10_000)])
def test_start_up_takes_half_of_the_time_until_its_last_call(tmp_path, pause, end):
    """10 ms, a pause, 1 ms: with 11 ms between them they are 11 of 22."""
    rows = [
        launch(0, 1, 10 * MS, name="cudaMalloc"), *launched("warm", 10 * MS + 5, 10 * MS + 10, 9, 2),
        launch(10 * MS + pause, 50, MS, name="cuModuleLoadData"), *steady(40 * MS, 40),
    ]  # fmt: skip
    assert window(tmp_path, rows)[0] == end


def test_a_device_that_worked_before_had_started_up(tmp_path):
    """Of 20 kernels two ran before the call, then three."""
    for before, begin in ((2, 1_300), (3, 0)):
        rows = [*steady(0, before), launch(300, 50, MS, name="cuModuleLoadData"), *steady(2 * MS, 20 - before, 400)]
        assert window(tmp_path, rows)[0] == begin


def test_rows_before_the_work_are_left_out_of_questions(tmp_path):
    rows = [
        op("aten::empty", 0, 20), *launched("early", 30, 35, 9, 1), launch(100, 2, 300_000), kernel("a", 300_104, 50, 2),
        op("aten::mul", 300_200, 10), *steady(300_300, 30),
    ]  # fmt: skip
    part = drop_start_up(loaded(tmp_path, rows))
    assert "aten::empty" not in set(part["host_ops"]["name"])
    assert "aten::mul" in set(part["host_ops"]["name"])
    assert "early" not in set(part["device_ops"]["name"])
    # The call that loaded the code launched the first kernel: the link stays.
    assert int((part["host_ops"]["dur_ns"] == 300_000 * NS).sum()) == 1
    assert len(part["device_ops"]) == 31
    assert part.derived(find_start_up_calls).dur_ns.tolist() == [300_000 * NS]


def waiting(at, length, work=0, name="hipMemcpyWithStream"):
    """A capture whose host is in a call `at` after its start, while the device works for `work`; 2 ms of work follow."""
    rows = [op("aten::item", 0, at + length + 10), *launched("a", 1, 3, max(work, 1), 1)]
    return [*rows, launch(at, 50, length, name=name), *steady(at + length + 100)]


def test_a_call_in_progress_when_the_recording_began_is_no_cause(tmp_path):
    """It waits for work that was launched before: it begins 0.3 ms after the recording and lasts 463 ms."""
    start, _, before, _ = window(tmp_path, waiting(300, 463_000))
    assert (start, before) == (463_300, 463_300)
    assert loaded(tmp_path, waiting(300, 463_000)).derived(find_early_wait).dur_ns == 463_000 * NS


@pytest.mark.parametrize(
    ("at", "length", "work", "is_wait"),
    [(900, 9_000, 1, True), (901, 9_000, 1, False), (30, 999, 1, False), (30, 1_000, 1, True), (0, 9_000, 950, False)],
)  # fmt: skip
def test_a_wait_at_the_start_is_long_soon_and_for_nothing_that_was_recorded(tmp_path, at, length, work, is_wait):
    found = loaded(tmp_path, waiting(at, length, work)).derived(find_early_wait)
    assert (found is not None) == is_wait


def reducing(first, usual=14, others=19, work=50):
    """An all-reduce of `first` after some work, then others, 300 µs apart, each behind a kernel of 200."""
    begin = max(100, 10 + work)
    rows = [*launched("gemm", 0, 10, work, 1), *launched(ALL_REDUCE, 20, begin, first, 2)]
    for k in range(others):
        at = begin + first + 300 * k
        rows += launched("gemm", at, at + 10, 200, 10 + 2 * k)
        rows += launched(ALL_REDUCE, at + 1, at + 250, usual, 11 + 2 * k)
    return rows


def test_a_first_collective_that_waits_for_a_recording_is_cut_away(tmp_path):
    """04: 8.0 s, the others 14 µs: the capture begins when it ends."""
    start, _, before, skew = window(tmp_path, reducing(8_000_014))
    assert (start, before, skew) == (8_000_114, 0, 8_000_114)
    found = loaded(tmp_path, reducing(8_000_014)).derived(find_early_collective)
    assert (found.dur_ns, found.usual_ns) == (8_000_014 * NS, 14 * NS)


@pytest.mark.parametrize("change", [{"first": 1_399}, {"others": 2}, {"work": 500, "first": 9_000}])
def test_a_first_collective_like_others_is_part_of_the_capture(tmp_path, change):
    """A hundred times 14 µs; three others to compare with; at most a tenth of the other work (19 × 214) before it."""
    assert loaded(tmp_path, reducing(**{"first": 1_400, **change})).derived(find_early_collective) is None
    assert loaded(tmp_path, reducing(1_400), "b.json").derived(find_early_collective) is not None


def test_a_host_alone_has_no_start_up(tmp_path):
    rows = [op("aten::addmm", 0, 50 * MS), annotation("gen", 0, 60 * MS), launch(50 * MS, 1, 9 * MS)]
    assert calls(tmp_path, rows) == []
