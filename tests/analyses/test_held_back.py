"""What held the GPU back: in claims, in the sheet and in the picture; no pause lies between two rules."""

import nsys_builder as nsys
import pytest
from chrome_builder import annotation, kernel, launch, launched, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st
from process.blame_traces import python
from rules.firing import write_sources
from rules.idle_report import result, rows_of

QUESTIONS = (
    "steps",
    "gpu-time",
    "idle",
    "start-up",
    "garbage-collection",
    "syncs",
    "stage-edges",
    "host",
    "data-loading",
    "data-quality",
)
MS = 1_000


def asked(tmp_path, rows):
    return result(write(tmp_path / "rank0.json", rows), QUESTIONS).report


def found(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


def reasons(report):
    """What R01 says where it is no finding."""
    sheet = next(section for section in report.sections if section.id == "rules")
    rows = [row for row in rows_of(sheet, "rules") if row["rule"] == "low-gpu-utilization"]
    return [row["reason"] for row in rows if row["reason"]]


def paused(*pauses, whole=100 * MS, host=()):
    """A step of an update in which the GPU waits for each of the pauses, and works for the rest of the step."""
    rows = [step(1, 0, whole), annotation("update_actor", 0, whole), *host]
    work = (whole - sum(pauses)) // (len(pauses) + 1)
    at = 0
    for number, pause in enumerate((*pauses, None)):
        length = work if pause is not None else whole - at
        rows += launched("gemm", at, at, length, number + 1)
        at += length + (pause or 0)
    return rows


@pytest.mark.parametrize(("work", "answer"), [(10, "insufficient data"), (45, "clear")], ids=["idle", "busy"])
def test_of_a_capture_that_idles_while_nothing_is_recorded_nothing_is_clear(tmp_path, work, answer):
    """Kernels of 10 (45) of 50 ms, launched one by one with nothing between the launches."""
    rows = []
    for number in range(9):
        at = 50 * MS * number
        rows += launched("gemm", at, at + 2, work * MS, number + 1)
    report = asked(tmp_path, rows)
    sheet = next(section for section in report.sections if section.id == "rules")
    (row,) = [row for row in rows_of(sheet, "rules") if row["rule"] == "low-gpu-utilization"]
    assert row["answer"] == answer
    assert "of the capture outside other findings" in row["reason"]


def test_the_claim_names_the_function_of_the_program_that_most_of_it_was_spent_in(tmp_path):
    """40 of 100 ms: 38 in prep, of which a function of torch has 30."""
    host = [
        python("train.py(3): main", 0, 100 * MS), python("data.py(9): prep", 31 * MS, 38 * MS),
        python("torch/functional.py(4): stft", 32 * MS, 30 * MS),
    ]  # fmt: skip
    (finding,) = found(asked(tmp_path, paused(40 * MS, host=host)), "host-silence")
    assert finding.claim == "GPUs wait 40.0 ms of 100 ms per step while the host is in prep, data.py:9"
    assert finding.cost_ns == 40_000_000
    assert "garbage" not in finding.claim + finding.advice


def test_where_nothing_is_recorded_the_claim_says_between_what_and_guesses_nothing(tmp_path):
    host = [op("aten::first", 29 * MS, MS), op("aten::second", 70 * MS, 10)]
    (finding,) = found(asked(tmp_path, paused(40 * MS, host=host)), "host-silence")
    assert finding.claim == (
        "GPUs wait 40.0 ms of 100 ms per step while no host activity is recorded between aten::first and aten::second"
    )
    assert "gc." not in finding.advice
    assert "with_stack" in finding.advice


def profiled(tmp_path, *rows):
    """A report of nsys: a step of 100 ms in which the GPU waits from 30 to 70 ms for the host, of which that is recorded."""
    steps = nsys.nvtx("step 1", 0, 100_000_000)
    path = nsys.write(
        tmp_path / "rank0.sqlite",
        [
            steps, *nsys.launched("gemm", 0, 10_000, 30_000_000, 1),
            *nsys.launched("gemm", 69_998_000, 70_000_000, 100_000_000, 2), *rows,
        ],
        schema="3.25",
    )  # fmt: skip
    return result(path, QUESTIONS).report


def test_the_claim_names_what_samples_of_the_cpu_found_where_they_alone_tell(tmp_path):
    """A sample each millisecond, 25 of 40 in one function."""
    samples = [
        row for n in range(40) for row in nsys.sampled(n, (30 + n) * 1_000_000, "tokenize" if n < 25 else "sort")
    ]
    (finding,) = found(profiled(tmp_path, *samples), "host-silence")
    assert finding.claim == (
        "GPUs wait 40.0 ms of 100 ms per step while the host is in tokenize (62 % of that time), according to CPU samples"
    )
    assert "NVTX" in finding.advice
    assert not finding.caveats


@pytest.mark.parametrize(("state", "said"), [(7, "off the CPU: waiting"), (1, "off the CPU: wants to run")])
def test_the_claim_says_that_a_host_was_off_the_cpu(tmp_path, state, said):
    times = nsys.off_cpu(30_500_000, 69_500_000, state=state)
    (finding,) = found(profiled(tmp_path, *times), "host-silence")
    assert finding.claim.endswith(f" while the host is {said}")


def test_a_place_off_the_cpu_keeps_its_name_and_a_first_call_too(tmp_path):
    """Of 40 ms a first call has 39, 38 of them off the CPU."""
    report = profiled(
        tmp_path, nsys.api("cudaFree", 30_500_000, 69_500_000),
        *nsys.off_cpu(31_000_000, 69_000_000, state=7),
    )  # fmt: skip
    idle = next(section for section in report.sections if section.id == "idle")
    rows = [(row["frame"], row["idle_ns"]) for row in rows_of(idle, "idle_blame")]
    assert rows[1:3] == [("· cudaFree", 39_000_000), ("· · (off the CPU: waiting)", 38_000_000)]
    assert not found(report, "low-gpu-utilization")
    (finding,) = found(report, "start-up")
    assert finding.claim.endswith("(cudaFree)")
    assert finding.advice.startswith("record later: nsys profile --capture-range=cudaProfilerApi")
    assert "torch.profiler.schedule" not in finding.advice


def ranks_in_a_host_s_collective(*late, unit=100, calls=10):
    """Per rank a step of 10 collectives of the host; `late[k]` comes last to the k-th, by 80 of each 100, while GPUs wait."""
    rows = {}
    for rank in range(3):
        whole = 100 * calls * unit
        rows[rank] = [step(1, 0, whole), annotation("update_actor", 0, whole)]
        for k in range(calls):
            at, last = 100 * k, late[k % len(late)]
            came = at + (85 if rank == last else 5)
            rows[rank] += [
                *launched("gemm", at * unit, at * unit, 3 * unit, k + 1),
                op("c10d::allreduce_", came * unit, (at + 99 - came) * unit),
                annotation("gloo:all_reduce", came * unit, (at + 95 - came) * unit, tid=102),
            ]
    return rows


@pytest.mark.parametrize(
    ("late", "said"), [((2,), ", waiting for rank 2"), ((0, 1), ""), ((1, *[2] * 9), ", waiting for rank 2")]
)
@pytest.mark.parametrize(("unit", "rule"), [(100, "low-gpu-utilization"), (1, "launch-bound")], ids=["long", "short"])
def test_idle_time_in_a_collective_of_the_host_is_waiting_for_the_rank_that_came_last(tmp_path, late, said, unit, rule):
    sources = write_sources(tmp_path, ranks_in_a_host_s_collective(*late, unit=unit))
    (finding,) = found(result(sources, QUESTIONS).report, rule)
    # A claim that begins with the stage does not end with it.
    place = {"launch-bound": "c10d::allreduce_"}.get(rule, "c10d::allreduce_ in update_actor")
    assert finding.claim.endswith(f" in {place}{said}")


def test_idle_time_elsewhere_is_no_wait_for_a_rank(tmp_path):
    rows = ranks_in_a_host_s_collective(2)
    for of_rank in rows.values():
        of_rank += [op("aten::mm", 100 * 100 * k + 310, 9_600) for k in range(10)]
        of_rank[:] = [row for row in of_rank if row["name"] != "c10d::allreduce_"]
    (finding,) = found(result(write_sources(tmp_path, rows), QUESTIONS).report, "low-gpu-utilization")
    assert "aten::mm" in finding.claim
    assert "waiting for" not in finding.claim


def test_recorded_collection_is_named(tmp_path):
    host = [annotation("gc", 30 * MS, 40 * MS)]
    (finding,) = found(asked(tmp_path, paused(40 * MS, host=host)), "garbage-collection")
    assert "collects garbage" in finding.claim
    assert "gc.freeze()" in finding.advice


@pytest.mark.parametrize("pauses", [(8 * MS,), (2 * MS,) * 4, (14_400,), (1_000,) * 8])
def test_pauses_of_any_length_count_by_their_sum(tmp_path, pauses):
    (finding,) = found(asked(tmp_path, paused(*pauses)), "host-silence")
    assert finding.cost_ns == sum(pauses) * 1_000


def one_by_one(gap, count=40, length=20):
    """A step of kernels of 20 µs, each launched by an op as long as the gap before it."""
    rows, at = [], 0
    for number in range(count):
        rows += [op("aten::mul", at, gap), *launched("k", at + gap - 2, at + gap, length, number + 1)]
        at += gap + length
    return [step(1, 0, at), annotation("update_actor", 0, at), *rows]


@pytest.mark.parametrize("gap", [20, 200, 999])
def test_gaps_up_to_a_millisecond_that_add_up_are_launches_one_by_one(tmp_path, gap):
    report = asked(tmp_path, one_by_one(gap))
    (finding,) = found(report, "launch-bound")
    assert finding.cost_ns == gap * 39 * 1_000
    assert not found(report, "host-silence")
    assert "most in aten::mul" in finding.claim


def stages_one_by_one(*stages):
    """A step of 20 kernels of 20 µs a stage, each launched by an op of 200 µs; (stage, op) each."""
    rows, at = [], 0
    for place, (stage, name) in enumerate(stages):
        rows.append(annotation(stage, at, 20 * 220))
        for number in range(20):
            correlation = 20 * place + number + 1
            rows += [op(name, at, 200), *launched("k", at + 198, at + 200, 20, correlation)]
            at += 220
    return [step(1, 0, at), *rows]


def test_stages_whose_launches_one_place_holds_up_are_one_finding(tmp_path):
    rows = stages_one_by_one(("forward", "aten::mul"), ("backward", "aten::mul"))
    (finding,) = found(asked(tmp_path, rows), "launch-bound")
    assert finding.claim == (
        "forward and backward launch 40 kernels of 20.0 µs on average one by one, most in aten::mul"
    )
    # The gap before the first kernel of the step, and that at the edge of the stages, are of other rules.
    assert finding.cost_ns == 2 * 19 * 200 * 1_000
    assert [place.stage for place in finding.places] == ["forward", "backward"]


def test_stages_whose_launches_other_places_hold_up_are_parts_of_one_finding(tmp_path):
    rows = stages_one_by_one(("forward", "aten::mul"), ("backward", "aten::add"))
    (finding,) = found(asked(tmp_path, rows), "launch-bound")
    causes = [part.claim.rpartition(" ")[2] for part in finding.parts]
    assert sorted(causes) == ["aten::add", "aten::mul"]
    assert finding.cost_ns == 2 * 19 * 200 * 1_000


def test_no_length_of_a_pause_is_lost_between_the_rules(tmp_path):
    """With kernels of 9 ms they are no launches one by one; with those of 20 µs they are, and each gap is claimed once."""
    for gap in (100, 998, 1_000, 1_001):
        report = asked(tmp_path / str(gap), paused(*(gap,) * (10_000 // gap)))
        claimed = sum(f.cost_ns for f in report.findings)
        assert claimed == gap * (10_000 // gap) * 1_000


def test_first_calls_are_start_up_and_no_cause_of_idle_time(tmp_path):
    """60 of 100 ms in the first call of the runtime, 10 in the first launch."""
    rows = [
        step(1, 0, 100 * MS), annotation("update_actor", 0, 100 * MS), *launched("a", 0, 0, 10, 1),
        launch(10, 2, 60 * MS, name="cudaFree"), launch(62 * MS, 3, 10 * MS),
        kernel("b", 72 * MS, 28 * MS, 3),
    ]  # fmt: skip
    report = asked(tmp_path, rows)
    assert not found(report, "low-gpu-utilization")
    (finding,) = found(report, "start-up")
    assert finding.claim == (
        "GPUs wait 70.0 ms of 100 ms per step for first calls:"
        " other first calls 60.0 ms (cudaFree), module loading 10.0 ms (cudaLaunchKernel)"
    )
    assert finding.advice.startswith("record later: torch.profiler.schedule(wait=")
    assert finding.cost_ns == 70 * MS * 1_000


def test_idle_time_of_a_busy_stage_has_a_reason(tmp_path):
    """Of 100 ms 5 wait in ops, between kernels of 10 ms: too long for launches, and no silence."""
    host = [op("aten::nonzero", 47_500, 5 * MS)]
    report = asked(tmp_path, paused(5 * MS, host=host))
    assert not report.findings
    (reason,) = reasons(report)
    assert (
        reason == "GPUs are idle 5.0 % of the step in update_actor outside other findings; idle time by kind: op 100 %"
    )


def test_the_tree_and_its_kinds_are_shown(tmp_path):
    host = [
        python("train.py(3): main", 0, 100 * MS), python("data.py(9): prep", 30 * MS, 30 * MS),
        python("log.py(2): write", 60 * MS, 10 * MS),
    ]  # fmt: skip
    report = asked(tmp_path, paused(40 * MS, host=host))
    section = next(section for section in report.sections if section.id == "idle")
    rows = rows_of(section, "idle_blame")
    assert [(row["frame"], row["idle_ns"], row["own_ns"]) for row in rows] == [
        ("update_actor", 40_000_000, 0), ("· prep, data.py:9", 30_000_000, 30_000_000),
        ("· write, log.py:2", 10_000_000, 10_000_000),
    ]  # fmt: skip
    (kinds,) = rows_of(section, "idle_blame_kinds")
    assert (kinds["python"], kinds["idle_ns"]) == (1.0, 40_000_000)
    picture = next(chart for chart in section.charts if chart.id == "idle-blame")
    assert picture.kind == "icicle"
    widths = {picture.series[name]: high - low for _, name, low, high in picture.marks}
    assert widths == {
        "ProfilerStep#1": 40_000_000, "update_actor": 40_000_000, "train.py(3): main": 40_000_000, "data.py(9): prep": 30_000_000, "log.py(2): write": 10_000_000,
    }  # fmt: skip


def test_the_loaders_wait_names_what_it_waits_in(tmp_path):
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    host = [
        python("train.py(3): main", 0, 100 * MS), annotation(name, 30 * MS, 40 * MS),
        python("data.py(9): decode", 30 * MS + 1, 39 * MS),
    ]  # fmt: skip
    first = [step(0, -100 * MS, 100 * MS), *launched("gemm", -100 * MS, -100 * MS, 100 * MS, 99)]
    (finding,) = found(asked(tmp_path, first + paused(40 * MS, host=host)), "data-loader-wait")
    assert finding.claim.endswith("waiting for the data loader, most in decode, data.py:9")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(5, 4_000), st.sampled_from("opsn")), min_size=1, max_size=12)
)
def test_idle_time_above_three_percent_has_a_finding_or_a_reason(tmp_path_factory, pieces):
    """Whatever the host is in, whatever the lengths: what is idle is claimed, or told of."""
    rows, at = [], 0
    for number, (work, idle, what) in enumerate(pieces):
        rows += launched("k", at, at, work, number + 1)
        at += work
        if what == "o":
            rows.append(op("aten::x", at, idle))
        elif what == "p":
            rows.append(python("a.py(1): f", at, idle))
        elif what == "s":
            rows.append(launch(at, 500 + number, idle, name="cudaStreamSynchronize"))
        at += idle
    rows += launched("k", at, at, 50, 400)
    rows += [step(1, 0, at + 50), annotation("gen", 0, at + 50)]
    report = asked(tmp_path_factory.mktemp("idle"), rows)
    idle_ns = sum(idle for _, idle, _ in pieces) * 1_000
    claimed = sum(f.cost_ns for f in report.findings)
    if idle_ns - claimed >= 0.03 * (at + 50) * 1_000:
        assert reasons(report)
