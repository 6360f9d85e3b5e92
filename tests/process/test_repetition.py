"""Windows of recordings without step marks: they hold the device work, and say how they are known."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, kernel, launch, launched, op, projected, step, write

import tracekit
from tracekit.process.steps.windows import find_steps_and_stages

REAL = os.environ.get("TRACEKIT_REAL_DATA")
US = 1000


def found(tmp_path, rows, name="rank0.json"):
    return find_steps_and_stages(tracekit.load(write(tmp_path / name, rows)))


def told(found_windows):
    """The steps as (origin, name, from, to in µs)."""
    steps = found_windows.step_rows
    base = int(steps.ts_ns.min())
    spans = [
        ((b - base) // US, (e - base) // US) for b, e in zip(steps.ts_ns.tolist(), steps.end_ns.tolist(), strict=True)
    ]
    return steps.origin, steps.name, spans


def iterations(name, count, *, every=100, lasting=40, begin=0, work=30):
    """Ranges `name` with their number, each with a kernel that runs while it lasts."""
    rows = []
    for n in range(count):
        at = begin + n * every
        rows.append(annotation(name.format(n), at, lasting))
        rows += launched("gemm", at + 2, at + 5, work, 1000 + begin + n)
    return rows


def test_a_capture_lasts_until_the_work_that_was_launched_in_it_has_ended(tmp_path):
    rows = [
        annotation("execute_context_1(8)_generation_0(0)", 0, 26),
        *launched("gemm", 5, 151, 100, 1),
        *launched("gemm", 8, 251, 56, 2),
    ]
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 307)])


def test_a_capture_whose_host_ends_last_ends_with_the_host(tmp_path):
    rows = [op("aten::loop", 0, 500), *launched("gemm", 5, 10, 20, 1)]
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 500)])


def test_work_that_was_launched_before_the_capture_does_not_lengthen_it(tmp_path):
    """A kernel without a launch that began before all others runs on for a second."""
    rows = [op("aten::loop", 0, 100), kernel("old", 2, 1_000_000, 1, stream=9)]
    rows += launched("gemm", 5, 10, 20, 50)
    rows.append(op("aten::late", 200, 1_000_000))  # so long that the old kernel's length is plausible
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 1_000_200)])


def test_profiler_steps_stay_windows_by_time(tmp_path):
    rows = [step(1, 0, 20), step(2, 20, 20), *launched("gemm", 25, 60, 500, 1)]
    assert told(found(tmp_path, rows)) == ("profiler", None, [(0, 20), (20, 40)])


def test_iterations_of_an_engine_last_from_one_to_the_next(tmp_path):
    rows = [op("aten::warm", 0, 4), *iterations("execute_context_0(0)_generation_{}(8)", 4, begin=10)]
    rows += launched("sample", 345, 350, 25, 7)  # of the last iteration: the range ends at 350, its work at 375
    origin, name, spans = told(found(tmp_path, rows))
    assert (origin, name) == ("iteration", "execute_context_#(#)_generation_#(#)")
    assert spans == [(0, 100), (100, 200), (200, 300), (300, 365)]


def test_an_engine_with_one_iteration_is_a_capture(tmp_path):
    rows = iterations("execute_context_0(0)_generation_{}(8)", 1)
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 40)])


def test_of_iterations_in_one_another_the_outermost_count(tmp_path):
    rows = iterations("execute_context_0(0)_generation_{}(8)", 3)
    rows += [annotation("step[DECODE bs=8]", 100 * n + 1, 30) for n in range(3)]
    assert len(told(found(tmp_path, rows))[2]) == 3


def test_what_was_recorded_of_a_host_alone_stays_one_piece(tmp_path):
    rows = [annotation(f"execute_context_0(0)_generation_{n}(8)", 100 * n, 40) for n in range(4)]
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 340)])


def test_iterations_without_most_of_the_work_divide_nothing(tmp_path):
    rows = [*iterations("execute_context_0(0)_generation_{}(8)", 3)]
    rows += [op("aten::train", 1000, 900), *launched("train", 1000, 1010, 800, 7)]
    assert told(found(tmp_path, rows)) == ("file", None, [(0, 1900)])


def test_iterations_of_a_file_that_is_a_step_are_pieces_of_it(tmp_path):
    name = "rollout_generate_step7_rank1-of-2_pid9_20260101000000000.json"
    steps = found(tmp_path, iterations("execute_context_0(0)_generation_{}(8)", 3), name).step_rows
    assert (steps.step.values.tolist(), len(steps)) == ([7], 1)


def test_a_range_that_repeats_and_covers_its_time_divides_a_recording(tmp_path):
    rows = iterations("batch {}", 5, lasting=80)
    rows += [annotation("head_part", 100 * n + 10, 20) for n in range(5)]
    recorded = found(tmp_path, rows)
    origin, name, spans = told(recorded)
    assert (origin, name, spans[:2]) == ("repeat", "batch #", [(0, 100), (100, 200)])
    assert spans[-1] == (400, 480)
    assert recorded.stages["stage"].unique().tolist() == ["head_part"]  # the range itself is the step


@pytest.mark.parametrize("name", ["layer {}", "aten::linear, op_id = {}"])
def test_layers_and_single_ops_divide_nothing(tmp_path, name):
    """Layers cover all of one pass; an op comes often, but covers little of its time."""
    rows = iterations(name, 24, lasting=99 if name.startswith("layer") else 30)
    assert told(found(tmp_path, rows))[0] == "file"


def test_a_range_that_comes_twice_may_be_anything(tmp_path):
    assert told(found(tmp_path, iterations("batch {}", 2, lasting=90)))[0] == "file"


def test_ranges_that_take_turns_divide_a_recording_and_stay_its_stages(tmp_path):
    rows = []
    for n in range(3):
        at = 100 * n
        rows += [annotation("forward", at, 40), annotation("backward", at + 45, 40)]
        rows += launched("gemm", at + 2, at + 5, 30, 1 + n)
    recorded = found(tmp_path, rows)
    assert told(recorded) == ("repeat", "forward", [(0, 100), (100, 200), (200, 285)])
    assert recorded.stages["stage"].tolist() == ["forward", "backward"] * 3


def training_steps(count, *, stages=("generate_sequences", "update_actor"), every=(), marks=(), begin=0):
    """Steps of 100 µs: three iterations of an engine of 6 µs, then an update of 60 µs; ranges of both, and `marks` at the start.

    `every` has ranges of 10 µs at the end of some steps, as (name, period).
    """
    rows = []
    for n in range(begin, count):
        at = 100 * n
        rows += [annotation(mark, at, 1) for mark in marks]
        for part in range(3):
            inner = at + 2 + 8 * part
            rows.append(annotation("execute_context_0(0)_generation_8(8)", inner, 6))
            rows += launched("decode", inner + 1, inner + 2, 5, 1000 + 10 * n + part)
        rows += launched("gemm", at + 31, at + 32, 55, 2000 + n)
        if stages:
            rows += [annotation(stages[0], at + 1, 28), annotation(stages[1], at + 30, 58)]
        rows += [annotation(name, at + 89, 10) for name, period in every if n % period == 0]
    return rows


def test_stages_divide_a_training_loop_and_not_the_iterations_of_its_engine(tmp_path):
    """Twelve iterations hold 60 of 280 µs of device work: a window from one to the next would last 8 µs or 84."""
    recorded = found(tmp_path, training_steps(4))
    spans = [(0, 100), (100, 200), (200, 300), (300, 387)]
    assert told(recorded) == ("repeat", "generate_sequences", spans)
    outer = recorded.stages[recorded.stages["parent"].isna()]
    assert outer["stage"].tolist() == ["generate_sequences", "update_actor"] * 4


def test_stages_divide_it_even_where_the_engine_does_most_of_the_work(tmp_path):
    rows = training_steps(4)
    for row in rows:
        if row.get("cat") == "kernel" and row["name"] == "gemm":
            row["dur"] = 5
    assert told(found(tmp_path, rows))[:2] == ("repeat", "generate_sequences")


def test_a_stage_of_some_steps_does_not_matter(tmp_path):
    """A validation in three of six steps, a checkpoint in two."""
    rows = training_steps(6, every=[("validation", 2), ("save_checkpoint", 3)])
    origin, name, spans = told(found(tmp_path, rows))
    assert (origin, name) == ("repeat", "generate_sequences")
    assert [end - begin for begin, end in spans[:-1]] == [100] * 5


def test_a_recording_that_begins_within_a_step_has_whole_windows(tmp_path):
    """Of the first step the update alone: windows begin with what it lacks."""
    rows = [row for row in training_steps(5) if row["ts"] >= 30]
    _, name, spans = told(found(tmp_path, rows))
    assert name == "generate_sequences"
    assert [end - begin for begin, end in spans[:-1]] == [100] * 3


def test_unlike_ranges_that_come_in_no_order_divide_nothing(tmp_path):
    """a b c, a c b, b a c, d: no turns, and none of them covers half of the time."""
    names = iter("abcacbbacd")
    rows = [annotation(next(names), 40 * n, 30) for n in range(10)]
    rows += [row for n in range(10) for row in launched("gemm", 40 * n + 1, 40 * n + 2, 20, 1 + n)]
    assert told(found(tmp_path, rows))[0] == "file"


LOADER, STEP = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#AdamW.step")


def test_calls_of_the_data_loader_divide_a_loop_without_ranges_of_its_own(tmp_path):
    origin, name, spans = told(found(tmp_path, training_steps(4, stages=(), marks=[LOADER])))
    assert (origin, name) == ("repeat", LOADER)
    assert spans == [(0, 100), (100, 200), (200, 300), (300, 387)]


def test_the_rarer_of_loader_and_optimizer_divides_the_loop(tmp_path):
    """Gradients of two batches are accumulated: steps of 200 µs, from the first update on."""
    rows = training_steps(8, stages=(), marks=[LOADER])
    rows += [annotation(STEP, 200 * n + 188, 5) for n in range(4)]
    _, name, spans = told(found(tmp_path, rows))
    assert name == STEP
    assert [end - begin for begin, end in spans[:-1]] == [200] * 3


def test_two_calls_of_a_loader_may_be_anything(tmp_path):
    assert told(found(tmp_path, training_steps(2, stages=(), marks=[LOADER])))[0] == "file"


def test_ranges_around_everything_hide_nothing(tmp_path):
    """One around all, one in it around two parts: the parts are the stages."""
    rows = [annotation("[param|cuda]", 0, 1000), annotation("[param|model]", 500, 490)]
    rows += [annotation("warmup", 505, 300), annotation("measure", 810, 150)]
    rows += launched("gemm", 520, 530, 30, 1)
    recorded = found(tmp_path, rows)
    assert recorded.stages["stage"].tolist() == ["warmup", "measure"]
    assert recorded.stages["parent"].isna().all()


def test_a_known_stage_around_everything_stays_one(tmp_path):
    rows = [annotation("update_actor", 0, 1000), annotation("part a", 5, 300)]
    rows += [annotation("part b", 310, 650), *launched("gemm", 20, 30, 30, 1)]
    stages = found(tmp_path, rows).stages
    assert stages[stages["parent"].isna()]["stage"].tolist() == ["update_actor"]


def graphs(count, ops, every=100):
    """Launches of a graph, each of so many kernels."""
    rows = []
    for n in range(count):
        at = n * every
        rows.append(launch(at, 1 + n, name="cudaGraphLaunch"))
        rows += [kernel("gemm", at + 5 + i * 0.5, 0.4, 1 + n) for i in range(ops[n % len(ops)])]
    return rows


def test_launches_of_a_graph_divide_a_recording_where_nothing_is_annotated(tmp_path):
    origin, _, spans = told(found(tmp_path, graphs(4, [60])))
    assert (origin, spans[0], len(spans)) == ("graph", (0, 100), 4)


def test_several_graphs_in_turn_are_one_window(tmp_path):
    origin, _, spans = told(found(tmp_path, graphs(6, [60, 7])))
    assert (origin, spans[0], len(spans)) == ("graph", (0, 200), 3)


@pytest.mark.parametrize("ops", [[16], [60, 61, 62, 63, 64, 65]])
def test_small_graphs_and_graphs_that_never_come_again_divide_nothing(tmp_path, ops):
    assert told(found(tmp_path, graphs(6, ops)))[0] == "file"


def test_annotations_on_a_stream_tell_where_those_of_the_host_were_not_recorded(tmp_path):
    rows = [op("aten::loop", 0, 500)]
    for n in range(4):
        rows += launched("gemm", 100 * n, 100 * n + 5, 80, 1 + n)
        rows.append(projected(f"batch {n}", 100 * n + 5, 80))
    origin, name, spans = told(found(tmp_path, rows))
    assert (origin, name, len(spans)) == ("repeat", "batch #", 4)


@pytest.mark.skipif(REAL is None, reason="TRACEKIT_REAL_DATA is not set")
@pytest.mark.parametrize(
    ("file", "length_us"),
    [
        ("more/chrome/tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz", 156_466),
        ("more/chrome/tracelens/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", 987_367),
        ("data/chrome/tracelens/inference/vllm_decode_full/graph_execution.json.gz", 10_743),
        ("data/chrome/tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz", 473_831),
        ("data/chrome/tracelens/b200/eager_trace.json.gz", 87_413),
    ],
)  # fmt: skip
def test_windows_of_real_captures_hold_their_work(file, length_us):
    """By an own reading of the rows: from the first host activity to the last end of host or device.

    From the first device op on, where it had been launched long before: the device was busy with earlier work.
    """
    trace = tracekit.load(Path(str(REAL)).parent / file)
    steps = find_steps_and_stages(trace).step_rows
    device_end = trace["device_ops"]["ts_ns"] + trace["device_ops"]["dur_ns"]
    assert len(steps) == 1
    # Their work begins after what was in progress when they began; the capture is both.
    whole_ns = int(steps.dur_ns[0] + steps.before["start_up_ns"][0])
    assert abs(whole_ns / US - length_us) < 1
    assert int(steps.end_ns[0]) >= int(device_end.max())
