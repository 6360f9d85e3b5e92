"""The first screen: only what was recorded, and what was not is never a zero."""

import os
from pathlib import Path

import pytest
from chrome_builder import annotation, kernel, launched, memcpy, memset, op, step, write
from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.units import format_ranges
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.summary.screen import MAX_UNSEEN
from tracekit.render import render

QUESTIONS = ("attribution", "copies", "gpu-time", "idle", "kernels", "stage-edges", "syncs")

REAL = os.environ.get("TRACEKIT_REAL_DATA")
EXAMPLES = Path(__file__).parents[2] / "examples"


def report_on(path, questions=QUESTIONS):
    return analyze_uncached(path, Options(jobs=1, questions=questions)).report


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def verl(number, rank, role="actor-rollout-ref"):
    return f"{role}_train_step{number}_rank{rank}-of-2_pid{7 + rank}_20260101000000000.json"


def test_the_first_line_says_who_ran_on_what(tmp_path):
    meta = {
        "world_size": 8, "deviceProperties": [{"name": "H100"}], "cuda_runtime_version": 12040,
        "cuda_driver_version": 12040,
    }  # fmt: skip
    rows = [step(4, 0, 50), step(5, 50, 50), *launched("k", 1, 2, 30, 1)]
    for rank in (0, 1, 2, 5):
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, **meta)
    identity = report_on(tmp_path, None).identity
    assert identity[1:-1] == ("ranks 0–2, 5 of 8", "steps 4, 5", "CUDA 12.4", "4 × H100")
    assert identity[0] == str(tmp_path)
    assert identity[-1].startswith("4 files, ")


def test_facts_that_were_not_recorded_are_left_out(tmp_path):
    report = report_on(write(tmp_path / "trace.json", [op("a", 0, 50)]), None)
    assert report.identity[1:-1] == (
        "ranks unknown", "1 capture without a step number", "no GPU activity recorded",
    )  # fmt: skip
    assert dict(report.fingerprint) == {}


def test_roles_are_named_while_they_are_few(tmp_path):
    for role in ("actor-rollout-ref", "value-model"):
        write(tmp_path / verl(3, 0, role), [op("a", 100 * len(role), 50)])
    assert "actor-rollout-ref, value-model" in report_on(tmp_path).identity


def test_ranks_that_disagree_on_the_world_have_none_in_common(tmp_path):
    for rank, world in ((0, 2), (1, 4)):
        write(tmp_path / f"rank{rank}.json", [op("a", 0, 50)], rank=rank, world_size=world)
    assert "ranks 0, 1" in report_on(tmp_path).identity


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("H100", "H100"), "2 × H100"), ((None, None), "2 × GPU"), (("H100", "A100"), "2 × mixed GPUs")],
)  # fmt: skip
def test_gpus_are_counted_as_they_were_seen(tmp_path, names, expected):
    for rank, name in enumerate(names):
        meta = {} if name is None else {"deviceProperties": [{"name": name}] * 8}
        write(tmp_path / f"rank{rank}.json", [kernel("k", 0, 5)], rank=rank, world_size=2, **meta)
    assert expected in report_on(tmp_path).identity


def test_versions_that_sources_contradict_are_left_out(tmp_path):
    for rank, version in ((0, 12040), (1, 12080)):
        write(tmp_path / f"rank{rank}.json", [op("a", 0, 5)], rank=rank, cuda_runtime_version=version)
    assert not [fact for fact in report_on(tmp_path).identity if "CUDA" in fact]


def test_the_headline_is_the_step_and_what_the_gpus_did_of_it(tmp_path):
    """Steps of 100 and 140; of these 240 compute 60, collectives alone 24, copies 12, fills 12, the rest idle."""
    rows = [
        step(1, 0, 100), step(2, 100, 140), annotation("gen", 0, 90), annotation("gen", 100, 90),
        *launched("gemm", 1, 10, 60, 1), *launched("ncclDevKernel", 2, 60, 34, 2, stream=9),
        memcpy("Memcpy HtoD (Pinned -> Device)", 110, 12, 10), memset(130, 12, 10),
    ]  # fmt: skip
    report = report_on(write(tmp_path / "rank0.json", rows))
    assert headline(report) == pytest.approx({
        "step_wall": 120_000, "compute_ratio": 60 / 240, "exposed_comm_ratio": 24 / 240,
        "copy_ratio": 24 / 240, "idle_ratio": 132 / 240, "unattributed_ratio": 60 / 240,
    })  # fmt: skip
    assert (report.headline[0].low, report.headline[0].high) == (100_000, 140_000)


def test_shares_are_sums_over_gpus_not_means_of_shares(tmp_path):
    """Rank 0 is busy 90 of 100, rank 1 30 of 300: 120 of 400, not half of 90 % + 10 %."""
    for rank, whole, busy in ((0, 100, 90), (1, 300, 30)):
        rows = [step(1, 0, whole), *launched("k", 1, 2, busy, 1)]
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=2)
    assert headline(report_on(tmp_path))["compute_ratio"] == 0.3


def test_one_step_has_no_range(tmp_path):
    report = report_on(write(tmp_path / "rank0.json", [step(1, 0, 100)]))
    assert (report.headline[0].low, report.headline[0].high) == (None, None)


def test_where_it_goes_is_stages_by_wall_with_how_busy_their_gpus_were(tmp_path):
    """gen 20 of 100, of which 5 busy; update 60, all busy."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 20), annotation("actor_update", 30, 60),
        *launched("k", 1, 10, 5, 1), *launched("k", 25, 30, 60, 2),
    ]  # fmt: skip
    sheet = report_on(write(tmp_path / "rank0.json", rows, rank=0, world_size=1)).overview
    columns = [heading.name for heading in sheet.headings]
    assert [dict(zip(columns, cells, strict=True)) for cells in sheet.rows] == [
        {"canonical": "update_actor", "wall_ns": 60_000, "share_ratio": 0.6, "busy_ratio": 1, "ranks": 1},
        {"canonical": "gen", "wall_ns": 20_000, "share_ratio": 0.2, "busy_ratio": 0.25, "ranks": 1},
    ]  # fmt: skip


CPU_ONLY = [
    step(1, 0, 100), annotation("actor_update", 0, 90), op("aten::mm", 0, 50),
    annotation("gloo:all_reduce", 60, 20),
]  # fmt: skip


def test_a_run_without_a_gpu_never_speaks_of_how_busy_one_was(tmp_path):
    report = report_on(write(tmp_path / "rank0.json", CPU_ONLY), None)
    assert set(headline(report)) == {
        *("step_wall", "unattributed_ratio", "unexplained_ratio"),
        *("host_op_ratio", "host_collective_ratio", "host_no_op_ratio"),
    }
    assert "busy_ratio" not in [heading.name for heading in report.overview.headings]
    skipped = {s.id: s.reason for s in report.sections if s.status == "skipped"}
    for id_ in ("gpu-time", "idle", "stage-edges", "syncs", "kernels", "copies", "attribution"):
        assert skipped[id_] == "no GPU activity was recorded"
    at = [heading.name for heading in report.values.headings].index("name")
    names = {cells[at] for cells in report.values.rows}
    assert {"step_time", "stage_time"} <= names
    assert not [name for name in names if "gpu" in name or "device" in name or "idle" in name]


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_no_output_of_a_run_without_a_gpu_has_a_gpu_number(tmp_path, form):
    text = str(render(report_on(write(tmp_path / "rank0.json", CPU_ONLY)), form))
    body = text.rpartition("</style>")[2]
    assert "no GPU activity" in body
    for word in ("GPU busy", "compute 0", "idle 0", "idle 100", "0 × "):
        assert word not in body


def test_what_was_not_seen_is_named(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 9)])
    body = write(tmp_path / "rank1.json", [op("a", 0, 9), op("b", 9, 9)]).read_bytes()
    (tmp_path / "rank1.json").write_bytes(body[:-10])
    (tmp_path / "snapshot.pickle").write_bytes(b"\x80\x04N.")
    unseen = report_on(tmp_path).unseen
    assert any(line.startswith("rank1.json (") for line in unseen)
    assert any("1 file: pickle" in line for line in unseen)


def test_many_damaged_sources_are_counted_past_the_first(tmp_path):
    count = MAX_UNSEEN + 3
    for rank in range(count):
        body = write(tmp_path / f"rank{rank}.json", [op(f"a{rank}", 0, 9), op("b", 9, 9)]).read_bytes()
        (tmp_path / f"rank{rank}.json").write_bytes(body[:-10])
    unseen = report_on(tmp_path).unseen
    assert len(unseen) == MAX_UNSEEN + 1
    assert unseen[-1] == "3 more such sources"


def test_a_clean_run_has_nothing_unseen(tmp_path):
    assert report_on(write(tmp_path / "rank0.json", [op("a", 0, 9)])).unseen == ()


def test_the_fingerprint_is_what_two_runs_must_share(tmp_path):
    rows = [annotation("actor_update", 0, 50), *launched("k", 1, 2, 9, 1)]
    meta = {"deviceProperties": [{"name": "H100"}], "cuda_runtime_version": 12040}
    for rank in (0, 1):
        write(tmp_path / verl(3, rank), rows, rank=rank, world_size=2, **meta)
    assert dict(report_on(tmp_path).fingerprint) == {
        "gpu": "H100", "world_size": "2", "ranks": "0, 1", "roles": "actor-rollout-ref",
        "backend": "nccl", "stages": "update_actor", "versions": "CUDA 12.4",
    }  # fmt: skip


def test_simulated_data_says_so_and_a_real_run_does_not():
    simulated = report_on(EXAMPLES / "simulated_gpu" / "outputs" / "profile")
    assert "SIMULATED DATA" in simulated.identity
    real = report_on(EXAMPLES / "verl_cpu" / "outputs" / "profile")
    assert "SIMULATED DATA" not in real.identity
    assert "no GPU activity recorded" in real.identity
    assert set(headline(real)) == {"step_wall", "unattributed_ratio"}


@given(st.sets(st.integers(0, 60), min_size=1))
def test_numbers_in_short_say_the_same_numbers(values):
    told = set()
    for part in format_ranges(values, limit=len(values)).split(", "):
        low, _, high = part.partition("–")
        told |= set(range(int(low), int(high or low) + 1))
    assert told == values


@pytest.mark.parametrize("name", ["hta/cpu_only", "hta/rank_non_gpu"])
def test_real_captures_without_a_gpu_have_no_gpu_number(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    report = report_on(Path(REAL) / "chrome" / name)
    assert "no GPU activity recorded" in report.identity
    assert not {"compute_ratio", "idle_ratio"} & set(headline(report))
    assert all(f.rule not in ("low-gpu-utilization", "exposed-communication") for f in report.findings)  # fmt: skip
