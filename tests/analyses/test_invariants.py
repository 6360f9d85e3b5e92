"""What must not change a result, and what must change it in proportion."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chrome_builder import (
    BACKWARD,
    BASE_NS,
    annotation,
    kernel,
    launch,
    launched,
    memcpy,
    memory,
    memset,
    op,
    step,
    write,
)
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import SMALL_TRACES, chrome_traces, name_of, open_text

import tracekit
from tracekit.analyses.ops import kernels
from tracekit.analyses.time import gpu_time
from tracekit.model.tables import TABLES
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.process.device import busy

REAL = os.environ.get("TRACEKIT_REAL_DATA")
SECOND_NS = 10**9


def rank_rows(late=0):
    """Two steps of a rank with a bit of everything; `late` µs are added to its work."""
    rows = []
    for number, at in ((1, 0), (2, 1000)):
        ids = [100 * number + i for i in range(8)]
        rows += [
            step(number, at, 1000), annotation("rollout_generate", at + 1, 300),
            annotation("actor_update", at + 350, 600), annotation("mini_batch0", at + 360, 200),
            op("aten::linear", at + 10, 50), op("aten::mm", at + 12, 40), op("aten::add", at + 400, 30),
            op("backward", at + 600, 100, tid=BACKWARD), memory(at + 20, 512, 512), memory(at + 410, -128, 384),
            *launched("gemm", at + 15, at + 30, 100 + late, ids[0]),
            *launched("add", at + 405, at + 420, 37, ids[1]),
            *launched("ncclDevKernel_AllReduce", at + 610, at + 620, 150, ids[2], tid=BACKWARD, stream=9),
            *launched("gemm", at + 500, at + 510, 200, ids[3]),
            launch(at + 700, ids[4], name="cudaMemcpyAsync"),
            memcpy("Memcpy HtoD (Pageable -> Device)", at + 780, 90, 4_000_000, ids[4]),
            memset(at + 900, 5, 4096), kernel("orphan", at + 930, 11, 9_000 + number),
        ]  # fmt: skip
    return rows


def shifted(rows, by):
    return [row | {"ts": row["ts"] + by} for row in rows]


def written(folder, ranks, base_ns=BASE_NS, prefixes="aaaa"):
    """The result for one file a rank, always in a directory of the same name."""
    folder = folder / "profile"
    for rank, rows in ranks.items():
        name = f"{prefixes[rank]}_rank{rank}.json"
        base = base_ns[rank] if isinstance(base_ns, dict) else base_ns
        write(folder / name, rows, rank=rank, world_size=len(ranks), base_ns=base)
    return analyze_uncached(folder, Options(jobs=1))


def concluded(result):
    """The report without the facts that tell where files lie, how large they are, and what bytes they hold."""
    report = result.report
    return replace(report, title="", identity=report.identity[1:-1], contents=())


def undated(finding):
    """The finding without the times of its places and instances."""
    places = tuple(replace(place, start_ns=None, end_ns=None) for place in finding.places)
    instances = tuple(replace(i, place=replace(i.place, start_ns=None, end_ns=None)) for i in finding.instances)
    return replace(finding, places=places, instances=instances, parts=tuple(map(undated, finding.parts)))


def timeless(result):
    """What is concluded without what says when, by whose clock: pictures, places in time, the clocks."""
    report = concluded(result)
    sections = []
    for part in report.sections:
        found = tuple(map(undated, part.findings))
        sheets = tuple(s for s in part.sheets if s.name != "clocks")
        sections.append(replace(part, findings=found, sheets=sheets, charts=()))
    return replace(report, sections=tuple(sections), spans=(), clocks=())


NOT_ASKED = {
    "driver-log", "syncs", "fleets", "forward-batches", "rollout", "data-loading", "optimizer", "matmuls",
    "unfused", "modules", "repeats", "links"}  # fmt: skip
"""Questions about what the usual run does not do or record."""


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return written(tmp_path_factory.mktemp("usual"), {0: rank_rows(), 1: rank_rows(late=25)})


def test_the_usual_run_has_an_answer_to_every_question(usual):
    skipped = {s.id: s.reason for s in usual.report.sections if s.status != "ok"}
    assert skipped.keys() == NOT_ASKED
    assert all(skipped.values())
    assert len(usual.report.findings) >= 3


def test_the_base_of_a_clock_and_its_readings_are_one_time(tmp_path, usual):
    """Base 1 s later, readings 1 s earlier: nothing happened at another time."""
    ranks = {0: shifted(rank_rows(), -1_000_000), 1: shifted(rank_rows(late=25), -1_000_000)}
    moved = written(tmp_path, ranks, BASE_NS + SECOND_NS)
    assert concluded(moved) == concluded(usual)
    for name in usual.measurements.tables:
        pd.testing.assert_frame_equal(usual.measurements[name], moved.measurements[name])


def test_one_rank_with_another_base_is_at_the_same_time(tmp_path, usual):
    ranks = {0: rank_rows(), 1: shifted(rank_rows(late=25), -1_000_000)}
    moved = written(tmp_path, ranks, {0: BASE_NS, 1: BASE_NS + SECOND_NS})
    assert concluded(moved) == concluded(usual)


@pytest.mark.parametrize("bases", [{0: SECOND_NS, 1: SECOND_NS}, {0: 0, 1: SECOND_NS}])
def test_a_run_at_another_time_or_with_one_clock_astray_gives_the_same_report(tmp_path, usual, bases):
    moved = written(tmp_path, {0: rank_rows(), 1: rank_rows(late=25)}, {r: BASE_NS + by for r, by in bases.items()})
    assert timeless(moved) == timeless(usual)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_the_order_of_events_in_a_file_does_not_matter(tmp_path, usual, seed):
    ranks = {0: rank_rows(), 1: rank_rows(late=25)}
    for rows in ranks.values():
        random.Random(seed).shuffle(rows)
    mixed = written(tmp_path, ranks)
    assert concluded(mixed) == concluded(usual)


def rows_without_source(result):
    """Every measured row but for the name of its file, in an order of its own."""
    tables = {}
    for name in result.measurements.tables:
        rows = result.measurements[name].drop(columns="source").itertuples(index=False, name=None)
        tables[name] = sorted(map(str, rows))
    return tables


@pytest.mark.parametrize("prefixes", [pytest.param(p, marks=pytest.mark.slow) for p in ("cba", "acb", "bca")])
def test_the_order_of_files_does_not_matter(tmp_path, prefixes):
    ranks = {rank: rank_rows(late=10 * rank) for rank in range(3)}
    expected = written(tmp_path / "sorted", ranks, prefixes="abc")
    found = written(tmp_path / "mixed", ranks, prefixes=prefixes)
    assert rows_without_source(found) == rows_without_source(expected)
    assert found.report.headline == expected.report.headline
    assert found.report.overview == expected.report.overview
    assert found.report.fingerprint == expected.report.fingerprint
    claims = [[(f.rule, f.claim, f.cost_ns) for f in r.report.findings] for r in (found, expected)]
    assert claims[0] == claims[1]


device_rows = st.lists(
    st.tuples(st.sampled_from(["gemm", "ncclKernel"]), st.integers(0, 60), st.integers(0, 20), st.integers(0, 1)),
    min_size=1, max_size=16,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(device_rows)
def test_two_gpus_of_a_file_are_each_what_they_would_be_alone(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("split")

    def ops(chosen, device=None):
        # On streams of their own: ops of one stream that overlap have late ends, which readers cut.
        rows = [
            kernel(n, t, d, device=g if device is None else device, stream=place)
            for place, (n, t, d, g) in enumerate(chosen)
        ]
        return tracekit.load(write(folder / "rank0.json", rows))["device_ops"]

    both = gpu_time.breakdown(columns_of(ops(drawn))).frame().set_index("device")
    one = gpu_time.breakdown(columns_of(ops(drawn, device=0))).frame().iloc[0]
    assert sorted(both.index) == sorted({g for *_, g in drawn})
    for device, row in both.iterrows():
        alone = gpu_time.breakdown(columns_of(ops([d for d in drawn if d[3] == device]))).frame().iloc[0]
        assert row.to_dict() == alone.drop("device").to_dict()
    assert both["busy_ns"].sum() >= one["busy_ns"]
    assert both["op_count"].sum() == one["op_count"] == len(drawn)
    split = kernels.summary(columns_of(ops(drawn))).frame()
    assert split["total_ns"].sum() == 1000 * sum(d for _, _, d, _ in drawn)
    assert not split.duplicated(["device", "kind", "name"]).any()


UNSCALED = {"ts_ns", "issue_ns", "longest_ts_ns", "max_ts_ns", "median_ts_ns", "peak_ts_ns", "work_end_ns"}
"""Instants: these do not grow with durations."""

ABSOLUTE = {"idle", "idle_blame", "idle_frames", "idle_gaps", "idle_histogram", "host_counts", "slots", "stage_edges"}
"""Tables whose causes are told apart by fixed lengths (30 µs, 1 ms, 20 ms) or by size."""


@pytest.mark.parametrize("k", [2, *(pytest.param(k, marks=pytest.mark.slow) for k in (7, 1000))])
def test_a_run_k_times_as_long_gives_times_k_times_as_long(tmp_path, usual, k):
    rows = {0: rank_rows(), 1: rank_rows(late=25)}
    slow = {
        rank: [r | {"ts": r["ts"] * k} | ({"dur": r["dur"] * k} if "dur" in r else {}) for r in mine]
        for rank, mine in rows.items()
    }
    found = written(tmp_path, slow)
    for name in usual.measurements.tables:
        frame, other = usual.measurements[name], found.measurements[name]
        if name in ABSOLUTE:
            continue
        for column in frame:
            before, after = frame[column], other[column]
            if column in UNSCALED:
                continue
            if column.endswith("_ns") or (name == "metrics" and column == "value"):
                factor = k if name != "metrics" else np.where(frame["unit"] == "ns", k, 1)
                np.testing.assert_allclose(
                    after.astype(float).to_numpy(float),
                    factor * before.astype(float).to_numpy(float),
                    rtol=1e-12,
                    err_msg=f"{name}.{column}",
                )
            elif column.endswith("gb_per_s"):
                pd.testing.assert_series_equal(after.astype(float), before.astype(float) / k)
            else:
                pd.testing.assert_series_equal(after, before)
    # What findings cover does not scale: a pause of 1 ms is one, whatever the step takes.
    before, after = (
        [m.value for m in each.report.headline if m.unit == "ratio" and m.name != "unexplained_ratio"]
        for each in (usual, found)
    )
    assert after == pytest.approx(before)


@pytest.mark.slow
def test_parts_and_idle_are_the_window_in_every_row_of_every_real_file():
    rows = files = 0
    for path in chrome_traces():
        trace = tracekit.load(path, tables=["device_ops", "host_ops", "windows"])
        found = gpu_time.measure(trace)
        if not found:
            continue
        frame = TABLES["gpu_time"].frame(found["gpu_time"])
        parts = frame[[*busy.PARTS, "idle_ns"]]
        assert (parts >= 0).all(axis=None)
        assert (parts.sum(axis=1) == frame["window_ns"]).all()
        assert (frame["overlap_ns"] <= frame["comm_ns"]).all()
        assert (frame["exposed_comm_ns"] == frame["comm_ns"] - frame["overlap_ns"]).all()
        files, rows = files + 1, rows + len(frame)
    assert files >= 20
    assert rows > 100


REAL_FILES = ["hta/nccl_parser_config/nccl_data.json.gz", "tracelens/b200/eager_trace.json.gz"]


@pytest.mark.parametrize(
    "path", [Path(REAL) / "chrome" / name for name in REAL_FILES] if REAL else SMALL_TRACES, ids=name_of
)
@pytest.mark.slow
def test_a_real_file_with_its_events_backwards_says_the_same(tmp_path, path):
    """Of ops that begin and end together the one written first is the outer one: their own times may swap."""
    document = json.loads(open_text(path))
    straight = written_as(tmp_path / "straight", document)
    document["traceEvents"].reverse()
    backwards = written_as(tmp_path / "backwards", document)
    for table in ("gpu_time", "steps", "kernels", "copies", "launches", "quality", "captures"):
        before, after = straight.measurements[table], backwards.measurements[table]
        order = [n for n in before.columns if not n.startswith(("std", "mean", "gb_per", "max_gb"))]
        texts = [sorted(map(str, f[order].itertuples(index=False))) for f in (before, after)]
        assert texts[0] == texts[1], table
    assert backwards.report.headline == straight.report.headline


def written_as(folder, document):
    folder = folder / "profile"
    folder.mkdir(parents=True)
    (folder / "rank0.json").write_text(json.dumps(document))
    return analyze_uncached(folder, Options(jobs=1))
