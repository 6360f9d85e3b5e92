"""What a source holds, what is odd about it, and that what was not recorded is said to be unknown."""

import os
from dataclasses import replace
from pathlib import Path

import nsys_builder as nsys
import pandas as pd
import pytest
from chrome_builder import (
    BASE_NS,
    annotation,
    kernel,
    launch,
    launched,
    memcpy,
    op,
    step,
    write,
)  # fmt: skip
from made_tables import make_measured
from process.blame_traces import python

import tracekit
from tracekit.analyses import load_default_thresholds
from tracekit.analyses.trust.data_quality import judge, measure
from tracekit.model.inputs.facts import Facts
from tracekit.model.inputs.note_codes import FILTERED_ROWS, IMPOSSIBLE_TIMES, INTERLEAVED, LOST_KERNELS
from tracekit.model.tables import TABLES
from tracekit.model.trace import Failure, Note, Source
from tracekit.pipeline.run import Options, analyze_uncached

QUESTIONS = ("data-quality", "gpu-time")

REAL = os.environ.get("TRACEKIT_REAL_DATA")


def checks(tmp_path, rows, **meta):
    """(count, ns) of every check by name."""
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows, **meta)))["quality"]
    found = TABLES["quality"].frame(found)
    return {
        name: tuple(None if pd.isna(value) else int(value) for value in pair)
        for name, *pair in zip(found["name"], found["count"], found["dur_ns"], strict=True)
    }


def capture(tmp_path, rows, **meta):
    found = measure(tracekit.load(write(tmp_path / "rank0.json", rows, **meta)))["captures"]
    row = TABLES["captures"].frame(found).astype(object).iloc[0].to_dict()
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def sources(path):
    report = analyze_uncached(path, Options(jobs=1, questions=QUESTIONS)).report
    section = next(s for s in report.sections if s.id == "data-quality")
    columns = [heading.name for heading in section.sheets[0].headings]
    return [dict(zip(columns, cells, strict=True)) for cells in section.sheets[0].rows]


def test_a_capture_spans_from_the_first_start_to_the_last_end_of_anything(tmp_path):
    """Host 10-75, device 30-90."""
    rows = [op("a", 10, 65), *launched("k", 12, 30, 60, 1)]
    found = capture(tmp_path, rows, rank=3, world_size=8, deviceProperties=[{"name": "H100"}] * 2)
    assert found["ts_ns"] == BASE_NS + 10_000
    assert found["dur_ns"] == 80_000
    assert (found["host_op_count"], found["device_op_count"]) == (2, 1)
    assert (found["world_size"], found["backend"], found["device_name"]) == (8, "nccl", "H100")
    assert found["absolute_time"]


def test_an_op_that_cannot_be_true_does_not_stretch_the_capture(tmp_path):
    rows = [op("a", 0, 100), *launched("k", 1, 10, 5, 1), kernel("corrupt", 20, 2_500_000)]
    assert capture(tmp_path, rows)["dur_ns"] == 100_000
    assert checks(tmp_path, rows)["device_ops"] == (1, 5_000)


def test_what_is_not_recorded_is_unknown(tmp_path):
    found = capture(tmp_path, [op("a", 0, 1)], base_ns=None)
    assert [found[name] for name in ("device_name", "backend")] == [None, None]
    assert pd.isna(found["world_size"])
    assert not found["absolute_time"]


def test_gpus_of_two_models_have_no_common_name(tmp_path):
    properties = [{"name": "H100"}, {"name": "A100"}]
    assert capture(tmp_path, [kernel("k", 0, 1)], deviceProperties=properties)["device_name"] is None


def test_every_check_counts_what_it_says(tmp_path):
    """Of six ops: one without launch (7), one of no duration, one that begins before its launch at 60."""
    rows = [
        op("a", 0, 100), op("b", 3, 0), *launched("k", 1, 10, 20, 1), kernel("orphan", 40, 7, 404),
        *launched("empty", 2, 50, 0, 2), launch(60, 3), kernel("early", 59, 2, 3),
        *launched("ncclDevKernel", 5, 70, 10, 4, stream=9),
        *launched("ncclDevKernel", 6, 80, 11, 5, stream=9, **{"Collective name": "allreduce", "In msg nelems": 4}),
    ]  # fmt: skip
    assert checks(tmp_path, rows) == {
        "host_zero_duration": (1, None),
        "device_ops": (6, 50_000),
        "device_zero_duration": (1, None),
        "unlinked": (1, 7_000),
        "starts_before_launch": (1, None),
        "collectives_without_metadata": (1, 10_000),
        "ranges_beyond_cap": (0, None),
    }


def test_without_a_gpu_only_checks_of_the_host_are_made(tmp_path):
    assert set(checks(tmp_path, [op("a", 0, 1)])) == {"host_zero_duration", "ranges_beyond_cap"}


def test_the_sheet_has_shares_per_source(tmp_path):
    """rank 0: 25 of 100 without launch; rank 1: none."""
    write(tmp_path / "rank0.json", [op("a", 0, 200), *launched("k", 1, 5, 75, 1), kernel("x", 90, 25)])
    rows = [op("a", 0, 200), *launched("k", 1, 5, 30, 1), *launched("k", 2, 25, 30, 2)]
    write(tmp_path / "rank1.json", rows)
    found = sources(tmp_path)
    assert [row["unlinked_ratio"] for row in found] == [0.25, 0]
    assert [row["device_op_count"] for row in found] == [2, 2]
    assert [row["source"] for row in found] == ["rank0.json", "rank1.json"]


def test_a_source_without_gpu_among_others_has_no_shares_rather_than_none(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 99), *launched("k", 1, 5, 9, 1)])
    write(tmp_path / "rank1.json", [op("a", 0, 99)])
    assert [row["unlinked_ratio"] for row in sources(tmp_path)] == [0, None]


def test_without_a_gpu_the_sheet_speaks_of_none(tmp_path):
    write(tmp_path / "rank0.json", [op("a", 0, 99)])
    (row,) = sources(tmp_path)
    assert not {"device_op_count", "unlinked_ratio"} & set(row)


def test_damage_is_counted_beside_its_source(tmp_path):
    body = write(tmp_path / "rank0.json", [op("a", 0, 9), op("b", 9, 9)]).read_bytes()
    (tmp_path / "rank0.json").write_bytes(body[:-10])
    write(tmp_path / "rank1.json", [op("a", 0, 9)])
    assert [row["notes"] > 0 for row in sources(tmp_path)] == [True, False]


def test_sizes_of_copies_do_not_matter_here(tmp_path):
    rows = [op("a", 0, 99), memcpy("Memcpy HtoD (Pinned -> Device)", 5, 9, 10**12, 1), launch(1, 1)]
    assert checks(tmp_path, rows)["unlinked"] == (0, 0)


KNOWN = {
    # (unlinked, collectives known by their name alone); None: not known.
    "tracelens/b200/eager_trace.json.gz": (None, 73),
    "hta/negative_queue_length_values_check/rank0.json.gz": (872, 80),
    "hta/nccl_parser_config/nccl_data.json.gz": (None, 0),
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (509, 0),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_real_files_have_the_known_oddities(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    trace = tracekit.load(Path(REAL) / "chrome" / name)
    assert trace.notes == ()
    found = TABLES["quality"].frame(measure(trace)["quality"])
    counts = dict(zip(found["name"], found["count"], strict=True))
    unlinked, bare = KNOWN[name]
    assert unlinked is None or counts["unlinked"] == unlinked
    assert counts["collectives_without_metadata"] == bare


def test_what_a_cut_file_lacks_does_not_count_as_idle_gpu_time(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 100), *launched("k", 1, 2, 3, 1)]
    whole = write(tmp_path / "whole" / "rank0.json", rows).read_bytes()
    cut = tmp_path / "cut" / "rank0.json"
    cut.parent.mkdir()
    cut.write_bytes(whole.removesuffix(b"]}"))
    report = analyze_uncached(cut.parent, Options(questions=QUESTIONS)).report
    assert not [f for f in report.findings if f.rule == "low-gpu-utilization"]
    assert "idle_ratio" not in {metric.name for metric in report.headline}
    section = next(s for s in report.sections if s.id == "gpu-time")
    assert (section.status, "damaged" in section.reason) == ("skipped", True)


def test_python_functions_do_not_stretch_a_capture_nor_count(tmp_path):
    """They reach from 0 to 500, the op from 10 to 75."""
    rows = [op("a", 10, 65), python("main", 0, 500), python("nothing", 20, 0)]
    measured = measure(tracekit.load(write(tmp_path / "rank0.json", rows), python=True))
    found = TABLES["captures"].frame(measured["captures"]).iloc[0]
    assert (found["ts_ns"], found["dur_ns"], found["host_op_count"]) == (BASE_NS + 10_000, 65_000, 1)
    counts = TABLES["quality"].frame(measured["quality"]).set_index("name")["count"]
    assert counts["host_zero_duration"] == 0


def test_what_the_reader_does_not_tell_is_no_element(tmp_path):
    trace = tracekit.load(write(tmp_path / "rank0.json", [op("a", 0, 1)]))
    assert measure(trace)["captures"]["row_count"].tolist() == [1]
    assert measure(replace(trace, meta={}))["captures"]["row_count"].tolist() == [0]


def test_work_that_begins_with_its_launch_is_not_before_it(tmp_path):
    rows = [*launched("k", 5, 5, 9, 1), *launched("k", 20, 19, 9, 2)]
    assert checks(tmp_path, rows)["starts_before_launch"] == (1, None)


def test_a_source_without_rows_has_no_extent(tmp_path):
    found = capture(tmp_path, [python("main", 5, 10)])
    assert (found["ts_ns"], found["dur_ns"], found["host_op_count"]) == (0, 0, 0)


def test_the_rows_of_an_nsys_recording_are_counted_by_kind(tmp_path):
    """Two ranges, two calls, one kernel and one copy, and two samples of a counter: 8 rows, of the system's calls none."""
    rows = [nsys.nvtx("a", 0, 50), nsys.nvtx("b", 10, 20), *nsys.launched("gemm", 12, 15, 30, 1)]
    rows += [nsys.api("cudaMemcpyAsync", 31, 33, 2), nsys.memcpy(34, 40, 8, 2), nsys.os_call("poll", 2, 9)]
    rows += [nsys.metric_name("SMs Active [Throughput %]", 0), nsys.metric(20, 0, 5), nsys.metric(30, 0, 5)]
    found = measure(tracekit.load(nsys.write(tmp_path / "x.sqlite", rows)))["quality"]
    counts = TABLES["quality"].frame(found).set_index("name")["count"]
    assert counts[["recorded", "cuda_calls", "kernels"]].tolist() == [8, 2, 1]


def captured(source, host_ops=9, device_ops=5, tool="torch", unlinked_ns=None, gpu_ns=None, kind=None, **more):
    """The rows of one source in each table."""
    who = {"run": "r", "source": source, "tool": tool, "pid": 1}
    capture = {**who, "host_op_count": host_ops, "device_op_count": device_ops, "row_count": 20, "dur_ns": 100} | more
    quality = [{**who, "name": name, "dur_ns": ns} for name, ns in (("unlinked", unlinked_ns), ("device_ops", gpu_ns))]
    return {
        "captures": [capture],
        "quality": [row for row in quality if row["dur_ns"] is not None],
        "recordings": [] if kind is None else [{**who, "kind": kind, "name": "rows", "count": 1}],
    }


def judged(*captures, notes=(), **more):
    tables = {name: [row for rows in captures for row in rows[name]] for name in captures[0]}
    sources_of = [Source(Path(row["source"]), row["source"], "chrome", pid=1) for row in tables["captures"]]
    return judge(make_measured(sources_of, notes=notes, **tables, **more), load_default_thresholds())


def noted(source, code, severity="data_loss"):
    return Note(severity, code, f"{code} in words", source)


def artefacts(section):
    """Severity and beginning of the claim of each finding, and its sources."""
    assert {found.rule for found in section.findings} <= {"profiling-artefact"}
    return [(f.severity, f.claim, [place.source for place in f.places]) for f in section.findings]


def test_sources_are_counted_with_all_that_was_read():
    section = judged(captured("a"), captured("b", device_ops=0), notes=[noted("b", "odd", "info")] * 2)
    assert {metric.name: metric.value for metric in section.metrics} == {"sources": 2, "elements": 40}
    sheet = section.sheets[0]
    names = [heading.name for heading in sheet.headings]
    rows_of_sheet = [dict(zip(names, row, strict=True)) for row in sheet.rows]
    assert [(row["source"], row["notes"], row["device_op_count"]) for row in rows_of_sheet] == [
        ("a", 0, 5),
        ("b", 2, 0),
    ]
    assert judge(make_measured(), load_default_thresholds()).reason == "no source could be read"


def test_logs_and_snapshots_have_no_ops_rather_than_none():
    section = judged(captured("a"), captured("b", tool="nsys"), captured("c", tool="log", host_ops=0, device_ops=0))
    names = [heading.name for heading in section.sheets[0].headings]
    rows_of_sheet = [dict(zip(names, row, strict=True)) for row in section.sheets[0].rows]
    assert [row["host_op_count"] for row in rows_of_sheet] == [9, 9, None]
    assert [row["dur_ns"] for row in rows_of_sheet] == [100, 100, None]


def test_gpu_time_without_its_launch_is_told_from_more_than_a_twentieth_on():
    section = judged(captured("a", unlinked_ns=5, gpu_ns=100), captured("b", unlinked_ns=6, gpu_ns=100), captured("c"))
    (found,) = artefacts(section)
    assert (found[0], found[2]) == ("info", ["b"])
    assert found[1].startswith("1 of 3 sources has over 5.0 % of GPU time without a recorded launch")


def test_each_kind_of_damage_is_a_finding_with_its_sources():
    notes = [
        noted("a", "truncated"), noted("b", INTERLEAVED), noted("b", "truncated"), noted("c", IMPOSSIBLE_TIMES),
        noted("d", LOST_KERNELS, "warning"), noted("e", FILTERED_ROWS, "warning"), noted("c", "odd", "warning"),
    ]  # fmt: skip
    failures = [Failure("z", "broken"), Failure("y", "broken")]
    section = judged(*(captured(name) for name in "abcde"), notes=notes, failures=failures)
    begins = [
        ("2 of 7 sources could not be read", ["y", "z"]),
        ("1 of 7 sources was written by two processes", ["b"]),
        ("1 of 7 sources is damaged", ["a"]),
        ("1 of 7 sources has rows with impossible times", ["c"]),
        ("1 of 7 sources lacks usable kernels", ["d"]),
        ("1 of 7 sources is a sample", ["e"]),
    ]
    found = artefacts(section)
    assert [(severity, places) for severity, _, places in found] == [("high", places) for _, places in begins]
    for (_, claim, _), (begin, _) in zip(found, begins, strict=True):
        assert claim.startswith(begin)
    assert [found.evidence[0].value for found in section.findings] == [2, 1, 1, 1, 1, 1]


def test_a_kind_of_recording_that_says_itself_what_it_lost_is_not_damaged_as_well():
    notes = [noted(name, "truncated") for name in "ab"]
    found = artefacts(judged(captured("a", kind="unusable"), captured("b", kind="gpu"), notes=notes))
    assert [places for *_, places in found] == [["b"]]


def test_sources_without_gpu_work_are_told_where_others_have_some_and_were_to():
    cpu = captured("b", device_ops=0)
    (found,) = artefacts(judged(captured("a"), cpu))
    assert found == ("info", "1 of 2 sources has no GPU activity while others do", ["b"])
    assert artefacts(judged(captured("a"), captured("b", device_ops=0, kind="front-end"))) == []
    assert artefacts(judged(cpu)) == []


def test_at_most_fifty_places_are_named():
    section = judged(*(captured(f"{n:02}", unlinked_ns=6, gpu_ns=100) for n in range(51)))
    ((_, claim, places),) = artefacts(section)
    assert len(places) == 50
    assert claim.startswith("51 of 51 sources")


def diagnoses(section):
    """Rows of what went wrong: what, and the files."""
    found = [sheet for sheet in section.sheets if sheet.name == "diagnoses"]
    return [row[:2] for sheet in found for row in sheet.rows]


def test_the_files_of_a_problem_are_named_up_to_five():
    def named(count):
        names = [f"f{n}" for n in range(count)]
        section = judged(*(captured(name) for name in names), notes=[noted(name, "truncated") for name in names])
        ((_, places),) = diagnoses(section)
        return places

    assert named(5) == "f0, f1, f2, f3, f4"
    assert named(6) == "f0, f1, f2, f3, f4 …"


def test_what_is_only_information_is_no_problem_of_the_capture():
    assert diagnoses(judged(captured("a", device_ops=0, kind="front-end"))) == []
    assert len(diagnoses(judged(captured("a"), notes=[noted("a", "late-ends", "info")]))) == 1


def ranks(*, absolute=True, **facts):
    """Ranks 0 and 3 of a world of four."""
    rows = [captured(f"rank{rank}", rank=rank, world_size=4, absolute_time=absolute) for rank in (0, 3)]
    tables = {name: [row for of in rows for row in of[name]] for name in rows[0]}
    files = [
        Source(Path(f"rank{rank}"), f"rank{rank}", "chrome", rank=rank, world_size=4, pid=1, run="r") for rank in (0, 3)
    ]
    return files, {**tables, "facts": Facts(**facts)}


def test_ranks_that_are_missing_are_a_problem_unless_a_part_was_chosen():
    def problems(notes=(), **more):
        files, tables = ranks(**more)
        return diagnoses(judge(make_measured(files, notes=notes, **tables), load_default_thresholds()))

    assert len(problems()) == 1
    assert problems(excluded_count=1) == []
    assert problems(notes=[noted("rank0", "left-out", "info")]) == []
    assert len(problems(notes=[noted("rank0", "late-ends", "info")])) == 2


def test_files_on_clocks_of_their_own_are_a_problem():
    files, tables = ranks(absolute=False, excluded_count=1)
    found = diagnoses(judge(make_measured(files, **tables), load_default_thresholds()))
    assert found == [("2 of 2 files have their own clock", "rank0, rank3")]


def test_a_step_that_one_rank_lacks_is_a_problem():
    files, tables = ranks()
    steps = [{**tables["captures"][place], "step": number} for place, number in ((0, 1), (0, 2), (1, 1), (0, None))]
    keys = ("run", "source", "pid", "rank", "step")
    tables["steps"] = [{key: row[key] for key in keys} for row in steps]
    found = diagnoses(judge(make_measured(files, **tables), load_default_thresholds()))
    assert len(found) == 2
    assert [what for what, _ in found if "step" in what] == ["rank 3 lacks step 2, which other ranks have"]
