"""Each nanosecond of a step goes to one op, wait or cause: hand-made traces, numbers worked by hand."""

import pandas as pd
from chrome_builder import BACKWARD, annotation, kernel, launched, op, step
from process.idle_traces import LIMITS, frame_of, load

from tracekit.process import exclusive_time as slots
from tracekit.process.exclusive_time import compute_exclusive_slots

# Traces with a device


def table(trace, limits=LIMITS):
    return frame_of(compute_exclusive_slots(trace, trace.derived(limits)))


def told(frame, *columns):
    """{(columns): (count, µs)} of a frame of slots, whose steps add up."""
    rows = frame.astype(dict.fromkeys(columns, object))
    keys = [
        tuple(None if pd.isna(v) else v for v in key) for key in rows[list(columns)].itertuples(index=False, name=None)
    ]
    values = zip(rows["count"], rows["exclusive_ns"] / 1000, strict=True)
    return dict(zip(keys, values, strict=True))


def test_a_step_by_stage_class_op_and_kernel(tmp_path):
    """Step 0–100. gen 0–60: mm launched at 2 runs 5–25; upd 60–100: a collective 50–80 and add 70–75.

    Idle 0–5: the host until the launch at 2 (in an op from 1 on), then start-up. 25–50: the host until 35, in
    an op from 30 on, then start-up. 80–100: nothing comes any more.
    """
    rows = [
        step(3, 0, 100), annotation("gen", 0, 60), annotation("update_actor", 60, 40),
        op("aten::linear", 1, 8), op("aten::mm", 1, 6), *launched("gemm", 2, 5, 20, 1),
        op("c10d::allreduce_", 30, 10), *launched("ncclAllReduce", 35, 50, 30, 2, stream=9),
        op("aten::add", 62, 5), *launched("add_kernel", 63, 70, 5, 3),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    assert frame["exclusive_ns"].sum() == 100_000
    assert set(frame["device"]) == {0}
    work = frame[frame["class"] != "idle"]
    assert told(work, "stage", "class", "op", "kernel") == {
        ("gen", "compute", "aten::linear > aten::mm", "gemm"): (1, 20),
        ("gen", "collective", "c10d::allreduce_", "ncclAllReduce"): (1, 25),
        ("update_actor", "compute", "aten::add", "add_kernel"): (1, 5),
    }
    idle = frame[frame["class"] == "idle"]
    assert told(idle, "stage", "cause") == {
        ("gen", "host_op"): (2, 1 + 5),
        ("gen", "host_none"): (2, 1 + 5),
        ("gen", "kernel_wait"): (2, 3 + 15),
        ("update_actor", "after_last"): (1, 20),
    }


def test_the_causes_of_idle_time_are_split_at_steps_and_stages(tmp_path):
    """Idle 10–90 until a kernel launched at 90: host all along; two steps of 50, a stage 20–70 over their edge."""
    rows = [
        step(1, 0, 50), step(2, 50, 50), annotation("gen", 20, 50),
        *launched("a", 0, 0, 10, 1), *launched("b", 90, 90, 10, 2),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    idle = frame[frame["class"] == "idle"]
    assert told(idle, "step", "stage", "cause") == {
        (1, None, "host_none"): (1, 10),
        (1, "gen", "host_none"): (0, 30),
        (2, "gen", "host_none"): (0, 20),
        (2, None, "host_none"): (0, 20),
    }


def calm_steps(number, ts):
    """Five steps in which all that is launched runs: a host that runs ahead in few steps leaves the windows as they are."""
    return [
        row
        for k in range(5)
        for row in (step(number + k, ts + 100 * k, 100), *launched("calm", ts + 100 * k + 1, ts + 100 * k + 10, 20, 90 + k))
    ]  # fmt: skip


def test_a_kernel_over_the_edge_of_a_step_keeps_the_stage_that_launched_it(tmp_path):
    """Launched in step 1 at 5, runs 80–120: 20 in either step, begun in the first."""
    rows = [
        step(1, 0, 100), step(2, 100, 50), annotation("gen", 0, 50), *calm_steps(3, 150),
        *launched("k", 5, 80, 40, 1), *launched("late", 110, 125, 5, 2),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    work = frame[(frame["class"] == "compute") & (frame["step"] < 3)]
    assert told(work, "step", "stage", "kernel") == {
        (1, "gen", "k"): (1, 20), (2, "gen", "k"): (0, 20), (2, None, "late"): (1, 5),
    }  # fmt: skip


def test_two_devices_are_two_times_the_whole_step(tmp_path):
    rows = [
        step(1, 0, 100),
        *launched("a", 0, 10, 30, 1), *launched("b", 5, 10, 60, 2, device=1),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    assert frame.groupby("device")["exclusive_ns"].sum().to_dict() == {0: 100_000, 1: 100_000}
    work = frame[frame["class"] == "compute"]
    assert told(work, "device", "kernel") == {(0, "a"): (1, 30), (1, "b"): (1, 60)}
    assert frame.index.tolist() == list(range(len(frame)))


def test_a_collective_hidden_by_compute_is_counted_and_takes_no_time(tmp_path):
    rows = [
        step(1, 0, 100),
        *launched("k", 0, 10, 60, 1), *launched("nccl_x", 5, 20, 30, 2, stream=9),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    work = frame[frame["class"] != "idle"]
    assert told(work, "class", "kernel") == {
        ("compute", "k"): (1, 60), ("collective", "nccl_x"): (1, 0),
    }  # fmt: skip


def test_of_what_goes_on_over_an_edge_only_what_takes_time_there_is_told_in_the_next_step(tmp_path):
    """k runs a nanosecond into the second step; nccl_x goes on in the third, where j hides all of it."""
    rows = [
        step(1, 0, 100), step(2, 100, 100), step(3, 200, 100), *calm_steps(4, 300),
        *launched("k", 0, 10, 90.001, 1), *launched("j", 150, 190, 50, 2),
        *launched("nccl_x", 155, 195, 20, 3, stream=9),
    ]  # fmt: skip
    frame = table(load(tmp_path, rows))
    work = frame[(frame["class"] != "idle") & (frame["step"] < 4)]
    assert told(work, "step", "kernel") == {
        (1, "k"): (1, 90), (2, "k"): (0, 0.001), (2, "j"): (1, 10), (2, "nccl_x"): (1, 0), (3, "j"): (0, 40),
    }  # fmt: skip


def test_an_op_whose_launch_is_not_recorded_and_one_launched_by_no_op(tmp_path):
    rows = [
        step(1, 0, 100), annotation("gen", 0, 100),
        *launched("plain", 5, 10, 20, 1), kernel("lost", 40, 20),
    ]  # fmt: skip
    work = table(load(tmp_path, rows)).query("`class` == 'compute'")
    assert told(work, "op", "kernel") == {
        ("(no op)", "plain"): (1, 20), ("(unlinked)", "lost"): (1, 20),
    }  # fmt: skip


def test_a_long_path_tells_its_outermost_and_its_six_innermost_ops(tmp_path):
    """Nine ops within one another, o0 to o8; and seven, of which none is left out."""
    nine = [op(f"o{k}", 1 + k, 40 - 2 * k) for k in range(9)]
    seven = [op(f"p{k}", 51 + k, 40 - 2 * k) for k in range(7)]
    rows = [step(1, 0, 100), *nine, *launched("a", 15, 20, 5, 1), *seven, *launched("b", 60, 70, 5, 2)]
    work = table(load(tmp_path, rows)).query("`class` == 'compute'")
    assert set(work["op"]) == {
        "o0 > … > o3 > o4 > o5 > o6 > o7 > o8", "p0 > p1 > p2 > p3 > p4 > p5 > p6",
    }  # fmt: skip


def test_a_step_without_device_work_is_idle(tmp_path):
    rows = [step(1, 0, 50), step(2, 50, 50), *launched("k", 60, 65, 10, 1)]
    frame = table(load(tmp_path, rows)).query("step == 1")
    assert told(frame, "class", "cause") == {("idle", "host_none"): (1, 50)}


# Traces without a device


def host_table(tmp_path, rows):
    return frame_of(compute_exclusive_slots(load(tmp_path, rows), ()))


def test_without_a_device_the_innermost_op_counts(tmp_path):
    """linear 10–50 with addmm 20–40 in it, twice mm in that: 22–25, 30–35."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 60),
        op("aten::linear", 10, 40), op("aten::addmm", 20, 20), op("aten::mm", 22, 3), op("aten::mm", 30, 5),
    ]  # fmt: skip
    frame = host_table(tmp_path, rows)
    assert frame["device"].isna().all()
    assert told(frame, "stage", "class", "op") == {
        ("gen", "host", "aten::linear"): (1, 20),
        ("gen", "host", "aten::linear > aten::addmm"): (1, 12),
        ("gen", "host", "aten::linear > aten::addmm > aten::mm"): (2, 8),
        ("gen", "no_op", "(no op)"): (2, 20),  # 0–10, and 50–60 of 50–100
        (None, "no_op", "(no op)"): (0, 40),
    }


def test_a_collective_that_the_host_waits_for(tmp_path):
    """gloo runs 20–70 on its own thread; the step thread issues it 15–20, works 30–40, then waits until 70.

    The pause 20–30 holds no end of a collective: Python at work. 70–80 likewise.
    """
    rows = [
        step(1, 0, 90),
        op("c10d::allreduce_", 15, 5), annotation("gloo:all_reduce", 20, 50, tid=BACKWARD),
        op("aten::mul", 30, 10), op("aten::add", 80, 10),
    ]  # fmt: skip
    frame = host_table(tmp_path, rows)
    assert told(frame, "class", "op") == {
        ("collective", "c10d::allreduce_"): (1, 5),
        ("collective", "gloo:all_reduce"): (1, 30),
        ("host", "aten::mul"): (1, 10),
        ("host", "aten::add"): (1, 10),
        ("no_op", "(no op)"): (3, 15 + 10 + 10),
    }


def test_of_several_collectives_the_one_that_ends_next_is_waited_for(tmp_path):
    """In flight 10–40 and 10–60 while the step thread pauses 20–80: 20, 20, then Python for 20."""
    rows = [
        step(1, 0, 100), op("a", 0, 20), op("b", 80, 20),
        annotation("gloo:all_reduce", 10, 30, tid=BACKWARD), annotation("gloo:broadcast", 10, 50, tid=102),
    ]  # fmt: skip
    frame = host_table(tmp_path, rows)
    assert told(frame, "class", "op") == {
        ("host", "a"): (1, 20),
        ("collective", "gloo:all_reduce"): (1, 20),
        ("collective", "gloo:broadcast"): (1, 20),
        ("no_op", "(no op)"): (1, 20),
        ("host", "b"): (1, 20),
    }


def test_while_another_thread_runs_the_backward_pass_its_ops_count(tmp_path):
    back = "autograd::engine::evaluate_function: MmBackward0"
    rows = [step(1, 0, 100), op("aten::sum", 0, 30), op(back, 20, 50, tid=BACKWARD)]
    frame = host_table(tmp_path, rows)
    assert told(frame, "class", "op") == {
        ("host", "aten::sum"): (1, 30),
        ("host", back): (1, 40),
        ("no_op", "(no op)"): (1, 30),
    }


def test_a_file_that_is_a_stage_is_a_window_of_its_own(tmp_path):
    trace = load(tmp_path, [op("a", 0, 20), op("b", 30, 20)])
    frame = frame_of(compute_exclusive_slots(trace, ()))
    assert frame["step"].isna().all()
    assert told(frame, "class", "op") == {
        ("host", "a"): (1, 20), ("host", "b"): (1, 20), ("no_op", "(no op)"): (1, 10),
    }  # fmt: skip


def test_nothing_recorded_gives_no_rows(tmp_path):
    assert not len(host_table(tmp_path, [kernel("k", 0, 0) | {"ph": "i"}]))


# Bounds


def many_kernels():
    """In each of two steps kernels k0 … k9 of 1 to 10 µs."""
    rows = [step(1, 0, 500), step(2, 500, 500), annotation("gen", 0, 1000)]
    for n in range(2):
        for k in range(10):
            at = 500 * n + 40 * k
            rows += launched(f"k{k}", at + 1, at + 5, 1 + k, 10 * n + k + 1)
    return rows


def test_past_the_cap_the_same_small_ones_of_all_steps_are_put_together(tmp_path, monkeypatch):
    """Three may stay: k7, k8, k9; the others take 1 + … + 7 = 28 µs a step in 7 launches."""
    monkeypatch.setattr(slots, "MAX_KEYS", 3)
    frame = table(load(tmp_path, many_kernels()))
    for number in (1, 2):
        mine = frame[(frame["step"] == number) & (frame["class"] == "compute")]
        assert told(mine, "op", "kernel") == {
            ("(no op)", "k7"): (1, 8), ("(no op)", "k8"): (1, 9), ("(no op)", "k9"): (1, 10),
            ("(other)", "(other)"): (7, 28),
        }  # fmt: skip
    assert (frame.groupby("step")["exclusive_ns"].sum() == 500_000).all()


def test_with_many_steps_each_gets_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "MAX_ROWS", 8)
    monkeypatch.setattr(slots, "MIN_KEYS", 2)
    frame = table(load(tmp_path, many_kernels()))
    kept = set(frame.loc[frame["class"] == "compute", "kernel"])
    assert kept == {"k6", "k7", "k8", "k9", "(other)"}


def test_stages_past_the_cap_are_one(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "MAX_STAGES", 2)
    stages = [annotation(f"s{k}", 100 * k, 20 * (k + 1)) for k in range(4)]
    frame = host_table(tmp_path, [step(1, 0, 400), *stages, op("a", 0, 1)])
    sums = frame.astype({"stage": object}).groupby("stage", dropna=False)["exclusive_ns"].sum()
    assert sums[sums.index.isna()].tolist() == [200_000]
    assert sums[sums.index.notna()].to_dict() == {"s3": 80_000, "(other)": 120_000}
