"""The section about exclusive time: the mean step of each role by stage, class and op, adding up to its wall."""

import pytest
from analyses.test_any_trace import FILES
from chrome_builder import annotation, launched, op, step, write
from hypothesis import given, settings

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.time import exclusive, steps
from tracekit.analyses.trust import data_quality
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.trace import Measurements, add_key_columns
from tracekit.pipeline import run as pipeline

QUESTIONS = ("exclusive",)


def measured(folder):
    """What this question and that about steps measure of a folder's files, nothing else."""
    frames, sources, notes = {}, [], []
    for source in pipeline.discover_sources(folder).sources:
        for trace in pipeline.read_source(source, lambda _: None, pipeline.list_wanted_inputs()):
            sources.append(trace.source)
            notes += trace.notes
            for question in (steps, exclusive, data_quality):
                for name, columns in question.measure(trace).items():
                    table = add_key_columns(TABLES[name], columns, trace.source)
                    frames.setdefault(name, []).append(table)
    tables = {name: concatenate_table_parts(TABLES[name], parts) for name, parts in frames.items()}
    return Measurements(tables, tuple(sources), notes=tuple(notes))


def section(folder):
    return exclusive.judge(measured(folder), load_default_thresholds())


def rows(found, name):
    (sheet,) = (s for s in found.sheets if s.name == name)
    columns = [heading.name for heading in sheet.headings]
    return [dict(zip(columns, row, strict=True)) for row in sheet.rows]


def test_the_mean_of_ranks_and_what_the_longest_takes_beyond_it(tmp_path):
    """Rank 0: gen 0–60 of a step of 100, 40 of it in an op. Rank 1: gen 0–80 of a step of 120, 60 in an op."""
    for rank, more in ((0, 0), (1, 20)):
        told = [step(1, 0, 100 + more), annotation("gen", 0, 60 + more), op("aten::mm", 10, 40 + more)]
        write(tmp_path / f"rank{rank}.json", told, rank=rank, world_size=2)
    found = section(tmp_path)
    stages = {row["stage"]: row for row in rows(found, "exclusive_stages")}
    assert {name: row["total_ns"] for name, row in stages.items()} == {
        "gen": 70_000, "(outside any stage)": 40_000, "(rest of the step)": 10_000, "(the step)": 120_000,
    }  # fmt: skip
    assert stages["gen"]["host"] == pytest.approx(50 / 120)
    assert stages["gen"]["no_op"] == pytest.approx(20 / 120)
    ops = {(row["stage"], row["what"], row["shown"]): row for row in rows(found, "exclusive_ops")}
    assert ops["gen", "host ops", "aten::mm"]["each_ns"] == 50_000
    assert ops["gen", "host ops", "aten::mm"]["each_count"] == 1
    assert sum(row["each_ns"] for row in ops.values()) == 110_000


def test_a_step_on_gpus_is_the_mean_of_them(tmp_path):
    """Two steps of 100 on two devices: a runs 30 on device 0, 50 on device 1, in either step."""
    told = []
    for n in range(2):
        at = 100 * n
        told += [step(n, at, 100), annotation("update_actor", at, 100)]
        told += launched("a", at, at + 10, 30, 2 * n + 1)
        told += launched("a", at + 2, at + 10, 50, 2 * n + 2, device=1)
    write(tmp_path / "rank0.json", told)
    stages = {row["stage"]: row for row in rows(section(tmp_path), "exclusive_stages")}
    assert stages["update_actor"]["compute"] == pytest.approx(0.4)
    assert stages["update_actor"]["idle"] == pytest.approx(0.6)
    assert stages["(rest of the step)"]["total_ns"] == 0


def test_stages_captured_one_by_one_are_the_step(tmp_path):
    """Two files of one process, stages of 40 and 60: no time between them was recorded."""
    name = "actor-rollout-ref_{}_step1_rank0-of-1_pid7_2026010100000{}000.json"
    for n, (stage, at, length) in enumerate((("actor-compute-log-prob", 0, 40), ("actor-update", 500, 60))):
        write(tmp_path / name.format(stage, n), [op("aten::mm", at, length)])
    stages = {row["stage"]: row for row in rows(section(tmp_path), "exclusive_stages")}
    assert {name: row["total_ns"] for name, row in stages.items()} == {
        "update_actor": 60_000, "old_log_prob": 40_000, "(rest of the step)": 0, "(the step)": 100_000,
    }  # fmt: skip


def test_a_step_that_one_process_recorded_twice_is_two_and_no_time_is_negative(tmp_path):
    """The same step number, 0–100 in one file and 7–127 in the other, 80 of it and 90 of it in an op."""
    for name, start, length, in_op in (("a", 0, 100, 80), ("b", 7, 120, 90)):
        rows_of = [step(1, start, length), op("aten::mm", start, in_op)]
        write(tmp_path / f"{name}_rank0.json", rows_of, rank=0, world_size=1)
    total_ns = {row["stage"]: row["total_ns"] for row in rows(section(tmp_path), "exclusive_stages")}
    assert total_ns == {
        "(outside any stage)": 110_000, "(rest of the step)": 10_000, "(the step)": 120_000,
    }  # fmt: skip


def test_nothing_recorded_is_a_reason(tmp_path):
    found = exclusive.judge(Measurements({}, ()), load_default_thresholds())
    assert (found.status, bool(found.reason)) == ("skipped", True)


def test_without_a_gpu_none_is_spoken_of(tmp_path):
    write(tmp_path / "rank0.json", [step(1, 0, 100), op("aten::mm", 10, 40)])
    found = section(tmp_path)
    said = repr((found.title, *((s.title, s.caption, s.headings, s.rows) for s in found.sheets)))
    assert "GPU" not in said
    assert "device" not in {heading.name for s in found.sheets for heading in s.headings}


@settings(max_examples=15, deadline=None)
@given(FILES)
def test_any_trace_has_an_answer_that_adds_up(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("any")
    for rank, (name, told, base_ns) in enumerate(files):
        write(folder / name.format(rank), told, base_ns=base_ns)
    try:
        found = section(folder)
    except pipeline.TraceFormatError:
        return
    for sheet in found.sheets:
        if sheet.name != "exclusive_stages":
            continue
        sums = {}
        for row in rows(found, sheet.name):
            part = sums.setdefault(row.get("role"), [0.0, None])
            if row["stage"] == "(the step)":
                part[1] = row["total_ns"]
            else:
                part[0] += row["total_ns"]
        for total, wall in sums.values():
            assert total == pytest.approx(wall, abs=1e-3)
