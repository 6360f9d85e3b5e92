"""The benchmark of what users run: its files are what they say, and its ratios are judged as they should be. No timings."""

import gzip
import importlib
import re
from pathlib import Path

import pytest

from tracekit.pipeline import run as pipeline

HERE = Path(__file__).resolve().parent


@pytest.fixture
def analyze_run(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("analyze_run")


RECORDED = (
    '{"baseTimeNanoseconds": 1000, "distributedInfo": {"rank": 0, "world_size": 2, '
    '"pg_config": [{"pg_size": 2, "ranks": [0, 1]}]}, '
    '"traceEvents": [{"pid": 77, "tid": 77, "ts": 1}]}'
)
NAME = "actor_update_step3_rank0-of-2_pid77_20261120.json.gz"


def test_a_recorded_file_becomes_that_of_another_rank_and_step(analyze_run):
    name, text = analyze_run.another(NAME, RECORDED, rank=5, ranks=8, step=2)
    assert name == "actor_update_step5_rank5-of-8_pid100127_20261120.json.gz"
    assert '"rank": 5, "world_size": 8' in text
    assert '"pg_size": 8, "ranks": [0, 1, 2, 3, 4, 5, 6, 7]' in text
    assert '"pid": 100127, "tid": 100127' in text
    assert '"baseTimeNanoseconds": 20000001000' in text


def test_as_many_files_are_written_as_ranks_and_steps_ask_for(analyze_run, tmp_path, monkeypatch):
    recorded = tmp_path / "data" / analyze_run.DISCRETE
    recorded.mkdir(parents=True)
    (recorded / NAME).write_bytes(gzip.compress(RECORDED.encode()))
    monkeypatch.setenv("TRACEKIT_REAL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(analyze_run.make_traces, "BENCH_DATA", tmp_path / "bench")
    folder = analyze_run.discrete(3, 2)
    files = sorted(folder.iterdir())
    assert len(files) == 6
    assert len({path.read_bytes() for path in files}) == 6
    assert {re.search(r"rank(\d)", path.name)[1] for path in files} == {"0", "1", "2"}
    assert len(pipeline.discover_sources(folder).sources) == 6


def test_a_ratio_is_of_the_least_cpu_seconds_and_missed_below_what_is_required(analyze_run):
    bench = analyze_run.Bench()
    item = analyze_run.Input("few", "some ranks", Path, least=5.0)
    for candidate, cpu in ((analyze_run.FIRST, 2.0), (analyze_run.FIRST, 1.0), (analyze_run.HTA, 4.0)):
        figures = {"process_cpu": cpu, "process_seconds": cpu, "process_peak_mb": 100 * cpu}
        bench.runs.append(analyze_run.Run(candidate, "few", 0, figures))
    assert analyze_run.ratio(bench, item) == 4.0
    row = "| some ranks | 1.00 (1.00) | – | – | – | 4.00 (4.00) | 4.0 | 5 | 200 |"
    assert row in analyze_run.table(bench, [item])
    assert analyze_run.ratio(bench, analyze_run.Input("none", "", Path)) is None


def test_every_candidate_of_ours_is_the_bare_command_and_keeps_nothing_elsewhere(analyze_run):
    item = analyze_run.Input("few", "some ranks", Path, is_for_hta=False)
    commands = analyze_run.commands_of(item, Path("ranks"), 0, Path("tracekit"))
    assert [list(map(str, c))[-2:] for c in commands.values()][1:] == [["analyze", "ranks"]] * 2
    assert commands["alone"][-1] == "--no-cache"
    assert all(f"TRACEKIT_CACHE={analyze_run.CACHE}" in commands[name] for name in ("first", "again"))
