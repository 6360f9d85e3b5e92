"""Logs of memory: what is one, in which unit, of which rank; what nothing can break; which growth is a leak."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model.errors import TraceFormatError
from tracekit.model.trace import Source, Want
from tracekit.pipeline import run as pipeline
from tracekit.process.memory.names import parse_memory_quantity
from tracekit.readers import driver_log, memory_log
from tracekit.readers.lines import MAX_LINE_BYTES
from tracekit.readers.loading import sniff as claimed

GIB = 2**30
QUESTIONS = ("data-quality", "driver-log", "memory-growth")


def read(path, name=None):
    return memory_log.read(Source(path, name or path.name, "memory_log", "log"), Want(frozenset({"memory_log"})))


def put(tmp_path, text, name="memory.jsonl"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def values(trace):
    rows = trace["memory_log"]
    return list(zip(rows["step"], rows["quantity"], rows["size_bytes"], strict=True))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allocated_gb", ("allocated", 10**9)),
        ("memory/allocated_mb", ("allocated", 10**6)),
        ("allocated (MiB)", ("allocated", 2**20)),
        ("max_memory_allocated", ("peak allocated", None)),
        ("perf/max_memory_allocated_gb", ("peak allocated", GIB)),
        ("perf/max_memory_reserved_gb", ("peak reserved", GIB)),
        ("gpu_memory_cached_gb", ("reserved", 10**9)),
        ("cached", ("reserved", None)),
        ("max_cached", ("peak reserved", None)),
        ("requested_bytes.all.current", ("requested", 1)),
        ("allocated_bytes.all.peak", ("peak allocated", 1)),
        ("allocated_bytes.all.allocated", None),
        ("allocated_bytes.all.freed", None),
        ("allocated_bytes.small_pool.current", None),
        ("cached_tokens", None),
        ("cached_mb_of_tokens", None),
        ("perf/cpu_memory_used_gb", None),
        ("kv_cache/allocated_blocks", None),
        ("throughput", None),
        ("", None),
    ],
)
def test_names_tell_what_an_amount_is_of_and_its_unit(name, expected):
    assert parse_memory_quantity(name) == expected


def test_json_lines_are_read_in_bytes_by_rank(tmp_path):
    rows = [
        {"step": n, "rank": r, "memory": {"allocated_mb": 10 * n + r, "reserved_mb": 500}}
        for n in range(2)
        for r in (1, 0)
    ]
    zero, one = read(put(tmp_path, jsonl(rows)))
    assert (zero.source.rank, one.source.rank) == (0, 1)
    assert values(zero) == [
        (0, "allocated", 0), (0, "reserved", 500_000_000),
        (1, "allocated", 10_000_000), (1, "reserved", 500_000_000),
    ]  # fmt: skip
    assert values(one)[2] == (1, "allocated", 11_000_000)


def test_csv_is_read_with_any_usual_delimiter_and_quotes(tmp_path):
    for delimiter in ",;\t":
        text = delimiter.join(["step", '"allocated_gb"', "note"]) + "\r\n"
        text += delimiter.join(["3", "1.5", '"a, b; c"']) + "\r\n"
        (trace,) = read(put(tmp_path, text, "memory.csv"))
        assert values(trace) == [(3, "allocated", 1_500_000_000)]


def test_rows_as_the_guide_logs_them_are_billions_of_bytes_at_named_points(tmp_path):
    rows = [{"step": 7, "description": "after update", "allocated": 12.5, "cached": 20.0, "max_allocated": 15.0, "max_cached": 20.0}]  # fmt: skip
    (trace,) = read(put(tmp_path, jsonl(rows)))
    assert trace["memory_log"]["size_bytes"].tolist() == [12_500_000_000, 20_000_000_000, 15_000_000_000, 20_000_000_000]  # fmt: skip
    assert set(trace["memory_log"]["point"]) == {"after update"}


def test_whole_large_numbers_without_a_unit_are_bytes_and_others_are_left_out_and_said(tmp_path):
    (trace,) = read(put(tmp_path, jsonl([{"step": 1, "memory_allocated": 12 * GIB}])))
    assert values(trace) == [(1, "allocated", 12 * GIB)]
    (trace,) = read(put(tmp_path, jsonl([{"step": 1, "memory_allocated": 12.5}])))
    assert values(trace) == []
    assert [n.code for n in trace.notes] == ["log-unit", "log-empty"]
    assert "memory_allocated" in trace.notes[0].message


def test_the_rank_may_be_told_by_the_name_of_the_file(tmp_path):
    text = jsonl([{"step": 1, "allocated_gb": 1}])
    (trace,) = read(put(tmp_path, text), "run/memory_rank3.jsonl")
    assert trace.source.rank == 3


def test_damage_is_passed_over_and_counted(tmp_path):
    text = jsonl([{"step": 1, "allocated_gb": 1}])
    text += '{"step": 2, "allocated_gb"\n{"step": 3, "allocated_gb": NaN}\n'
    text += '{"step": 4, "x": "' + "y" * MAX_LINE_BYTES + '"}\n'
    text += jsonl([{"step": 5, "allocated_gb": -1}, {"step": 6, "allocated_gb": 1e300}])
    (trace,) = read(put(tmp_path, text))
    assert values(trace) == [(1, "allocated", 10**9)]
    assert {n.code: n.count for n in trace.notes} == {
        "log-line": 1, "log-long-line": 1, "log-not-finite": 3,
    }  # fmt: skip


def test_gzip_is_inflated_and_a_cut_stream_is_said(tmp_path):
    whole = gzip.compress(jsonl([{"step": n, "allocated_gb": n} for n in range(2000)]).encode())
    assert len(read(put(tmp_path, whole, "m.jsonl.gz"))[0]["memory_log"]) == 2000
    (trace,) = read(put(tmp_path, whole[: len(whole) // 2], "m.jsonl.gz"))
    assert 0 < len(trace["memory_log"]) < 2000
    assert trace.notes[0].severity == "data_loss"


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        (jsonl([{"step": 1, "allocated_gb": 2}]), "memory_log"),
        (jsonl([{"event": "start"}, {"global_step": 1, "memory": {"reserved_mib": 2}}]), "memory_log"),
        ("step,allocated_mb\n1,2\n", "memory_log"),
        ("\ufeffstep;rank;allocated_mb\n1;0;2\n", "memory_log"),
        (jsonl([{"step": 1, "data": {"timing_s/gen": 1.5, "perf/max_memory_allocated_gb": 2}}]), "driver_log"),
        (jsonl([{"allocated_gb": 2}]), None),
        (jsonl([{"step": 1, "loss": 2}]), None),
        ("step,loss\n1,2\n", None),
        ("allocated_mb of step 1: 2\n", None),
        ("{}\n", None),
        ("", None),
        ("\0step,allocated_mb\n", None),
    ],
)  # fmt: skip
def test_a_log_is_told_by_its_content(tmp_path, text, reader):
    assert claimed(put(tmp_path, text, "x.log")).reader == reader
    assert not (memory_log.sniff(text.encode()) and driver_log.sniff(text.encode()))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_traces_or_the_error(tmp_path_factory, data, behind):
    start = b'step,allocated_mb\n1,2\n{"step": 1, "allocated_gb": 3}\n' if behind else b""
    path = put(tmp_path_factory.mktemp("x"), start + data, "x.csv")
    memory_log.sniff(start + data)
    try:
        traces = read(path)
    except TraceFormatError:
        return
    assert len(traces) >= 1


def test_mutated_logs_give_traces(tmp_path):
    rng = random.Random(0)
    good = bytearray(jsonl([{"step": n, "rank": n % 3, "m": {"allocated_gb": 1.5}} for n in range(30)]).encode())  # fmt: skip
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        assert read(put(tmp_path, bytes(data)))


def test_hostile_nesting_and_keys_are_bounded(tmp_path):
    deep = '{"step":1,' + '"a":{' * 5000 + '"allocated_gb":1' + "}" * 5001
    wide = json.dumps({"step": 1, **{f"x{n}/allocated_gb": 1 for n in range(5000)}})
    lone = '{"step": 1, "\\ud800allocated_gb": 1, "tag": "\\ud800"}'
    (trace,) = read(put(tmp_path, f"{deep}\n{wide}\n{lone}\n"))
    assert len(trace["memory_log"]) <= 1000


def test_a_missing_file_is_the_error(tmp_path):
    with pytest.raises(TraceFormatError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


# --- growth ---------------------------------------------------------------------------------------


@pytest.fixture
def growth():
    """A function that gives the section on growth of a run's folder."""

    def of(folder):
        report = pipeline.analyze_uncached(folder, pipeline.Options(jobs=1, questions=QUESTIONS)).report
        return next(s for s in report.sections if s.id == "memory-growth")

    return of


def cells(section, name="memory_trend"):
    sheet = next(s for s in section.sheets if s.name == name)
    names = [h.name for h in sheet.headings]
    return [dict(zip(names, row, strict=True)) for row in sheet.rows]


def made(kind, steps, rng):
    """Levels in MB around 40 GB."""
    noise = rng.normal(0, 1, steps)
    at = np.arange(steps)
    return (
        40_000
        + {
            "leak": at + noise,
            "flat": 50 * noise,
            "warm-up": np.where(at < 3, -8000 / 2.0 ** (3 * at), 0) + 5 * noise,
            "sawtooth": 20 * (at % 6) + 5 * noise,
        }[kind]
    )


@pytest.mark.parametrize("steps", [20, 30])
@pytest.mark.parametrize(("kind", "leaks"), [("leak", True), ("flat", False), ("warm-up", False), ("sawtooth", False)])  # fmt: skip
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_leak_of_1_mb_a_step_is_one_and_noise_warm_up_and_sawtooth_are_none(
    tmp_path, growth, kind, leaks, steps, form
):
    """At lengths at which the leak is always found; noise is called growth in 2 of 100 series, not in these."""
    levels = made(kind, steps, np.random.default_rng(0))
    if form == "json":
        rows = [{"step": n, "rank": 0, "allocated_mb": level, "reserved_mb": 60_000} for n, level in enumerate(levels)]  # fmt: skip
        put(tmp_path, jsonl(rows))
    else:
        lines = [f"{n},{level / 1000:.6f}\n" for n, level in enumerate(levels)]
        put(tmp_path, "step,allocated_gb\n" + "".join(lines), "memory.csv")
    section = growth(tmp_path)
    assert bool(section.findings) == leaks
    row = cells(section)[0]
    assert (row["answer"] in ("grows", "grows (likely)")) == leaks
    assert (row["quantity"], row["steps"], row["warm_up"]) == ("allocated", steps, 3)
    assert row["detectable"] > 0
    assert row["low"] <= row["slope"] <= row["high"]
    if leaks:
        assert section.findings[0].evidence[0].value == pytest.approx(1_000_000, rel=0.1)


def test_reserved_memory_and_peaks_are_shown_and_never_judged(tmp_path, growth):
    rows = [{"step": n, "reserved_mb": 40_000 + 10 * n, "max_allocated_mb": 30_000 + 10 * n} for n in range(20)]  # fmt: skip
    put(tmp_path, jsonl(rows))
    section = growth(tmp_path)
    assert section.findings == ()
    assert [row["answer"] for row in cells(section)] == ["cache growth: not judged", "peak drift: not judged"]  # fmt: skip
    assert [row["slope"] for row in cells(section)] == [10_000_000] * 2


def test_the_point_that_most_steps_have_is_compared(tmp_path, growth):
    """`after update` is flat; what is held during the rollout is not compared with it."""
    rows = []
    for n in range(20):
        rows.append({"step": n, "description": "after update", "allocated_gb": 40})
        if n % 2:
            rows.append({"step": n, "description": "rollout", "allocated_gb": 60 + n})
    put(tmp_path, jsonl(rows))
    (row,) = cells(growth(tmp_path))
    assert (row["phase"], row["steps"], row["answer"]) == ("after update", 20, "flat")


def test_ranks_are_corrected_for_their_number_and_their_median_is_tested_besides(tmp_path, growth):
    """Each of eight ranks alone goes up and down by far more than it leaks, but half of them when the others go down."""
    rows = [
        {"step": n, "rank": r, "allocated_mb": 40_000 + 10 * n + 100 * (-1) ** (n + r)}
        for r in range(8)
        for n in range(12)
    ]
    put(tmp_path, jsonl(rows))
    section = growth(tmp_path)
    *ranks, median = cells(section)
    assert len(ranks) == 8
    assert not any("grows" in row["answer"] for row in ranks)
    assert median["who"] == "median of 8"
    assert "grows" in median["answer"]
    (found,) = section.findings
    assert "all 8 devices together" in found.claim
    assert len(found.places) == 8


def test_what_the_guide_would_say_is_shown_and_is_no_finding(tmp_path, growth):
    """One jump of 1 GB: the least-squares slope is far above 1 MB a sample."""
    rows = [{"step": n, "allocated_mb": 40_000 + 1000 * (n >= 10) + n % 2} for n in range(20)]
    put(tmp_path, jsonl(rows))
    section = growth(tmp_path)
    assert section.findings == ()
    (row,) = cells(section, "guide_rule")
    assert (row["guide"], row["freed"], row["net"]) == ("leak", "leak", 1_001_000_000)
    assert row["answer"] == "one jump"


def test_amounts_in_the_log_of_an_rl_driver_are_series_too(tmp_path, growth):
    rows = [{"step": n, "data": {"timing_s/step": 1.5, "perf/max_memory_allocated_gb": 40 + n}} for n in range(8)]  # fmt: skip
    put(tmp_path, jsonl(rows), "driver.jsonl")
    (row,) = cells(growth(tmp_path))
    assert (row["quantity"], row["slope"], row["answer"]) == ("peak allocated", GIB, "peak drift: not judged")  # fmt: skip


def test_fewer_than_six_steps_are_insufficient(tmp_path, growth):
    put(tmp_path, jsonl([{"step": n, "allocated_gb": 40 + n} for n in range(5)]))
    section = growth(tmp_path)
    assert section.findings == ()
    assert section.verdicts[0].answer == "insufficient data"


def test_nothing_is_written_beside_the_log(tmp_path, growth):
    path = put(tmp_path, jsonl([{"step": n, "allocated_gb": 40} for n in range(8)]))
    before = path.read_bytes()
    growth(tmp_path)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["memory.jsonl"]
    assert path.read_bytes() == before
