"""The benchmark's traces are what they say, and its runners agree on them. No timings."""

import gzip
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

EVENTS = [
    {"ph": "M", "name": "process_name", "ts": 5.0, "pid": 7, "tid": 0, "args": {"name": "python"}},
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": "ProfilerStep#3",
        "pid": 7,
        "tid": 7,
        "ts": "100.001",
        "dur": "899.000",
        "args": {"External id": 1},
    },
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 7,
        "tid": 7,
        "ts": "1712195495519689.047",
        "dur": "3.250",
        "args": {"External id": 9, "correlation": 20, "Ev Idx": 4},
    },
    {"ph": "s", "id": 20, "pid": 7, "tid": 7, "ts": "1712195495519689.047", "cat": "ac2g", "name": "ac2g"},
    {
        "ph": "X",
        "cat": "kernel",
        "name": 'odd "name", "ts": 12 {',
        "pid": 0,
        "tid": 7,
        "ts": "1712195495519700.999",
        "dur": "1.001",
        "args": {"External id": 9, "correlation": 20, "stream": 7, "device": 0, "grid": [1, 2, 3]},
    },
    {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": "1712195495519600.500",
        "dur": "150.250",
    },
]


@pytest.fixture
def script(monkeypatch):
    """A script of the benchmark as a module, by its name."""
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module


def text_of(events, indent):
    """A trace file whose times are written as numbers, digit by digit as given."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "t"}, indent=indent)
    for key in ("ts", "dur"):
        for event in events:
            if isinstance(event.get(key), str):
                text = text.replace(f'"{key}": "{event[key]}"', f'"{key}": {event[key]}')
    return text


def repeated(script, indent, repetitions):
    """The events of the small trace above, repeated, with decimals for times."""
    make_traces = script("make_traces")
    text = text_of(EVENTS, indent)
    recording = make_traces.cut_up(text)
    size = len(text) + (repetitions - 1) * sum(len(event.text) + 10 for event in recording.work)
    made = "".join(make_traces.trace_texts(recording, size))
    return json.loads(made, parse_float=Decimal)["traceEvents"], made


@pytest.mark.parametrize("indent", [None, 2])
def test_repeated_events_move_by_whole_microseconds(script, indent):
    events, _ = repeated(script, indent, 30)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) > 20
    steps = {after["ts"] - before["ts"] for before, after in pairwise(kernels)}
    assert steps == {Decimal(12 + 1000 + 1)}
    assert {event["dur"] for event in kernels} == {Decimal("1.001")}
    assert {event["ts"] % 1 for event in kernels} == {Decimal("0.999")}


def test_repeated_events_keep_their_links(script):
    events, _ = repeated(script, None, 30)
    by_category = {}
    for event in events:
        number = event.get("id") or event.get("args", {}).get("correlation")
        by_category.setdefault(event.get("cat"), []).append(number)
    kernels, launches = by_category["kernel"], by_category["cuda_runtime"]
    assert len(set(kernels)) == len(kernels)
    assert set(kernels) <= set(launches) | {None}
    assert by_category["ac2g"][: len(kernels)] == kernels


def test_what_a_trace_has_once_stays_single(script):
    events, _ = repeated(script, 2, 30)
    names = [event["name"] for event in events]
    assert [names.count(name) for name in ("process_name", "ProfilerStep#3")] == [1, 1]
    (span,) = [event for event in events if event.get("cat") == "Trace"]
    assert span["dur"] > 20 * 1000
    assert span["ts"] == Decimal("1712195495519600.500")


def test_text_inside_names_does_not_move(script):
    events, made = repeated(script, None, 30)
    names = {event["name"] for event in events if event.get("cat") == "kernel"}
    assert names == {'odd "name", "ts": 12 {'}
    assert made.startswith('{"schemaVersion": 1, "traceEvents": [')
    assert made.endswith('], "traceName": "t"}')


def test_a_row_says_by_how_much_it_holds(script):
    ratio_table = script("ratio_table")
    row = ratio_table.Row("claim", "peer", "A200", "1 s", "50 s", 50.0, 40, "1 / 1")
    assert (row.margin, row.verdict) == (1.25, "pass")
    row = ratio_table.Row("claim", "peer", "A200", "1 MB", "2 MB", 0.55, 0.5, "1", at_least=False)
    assert (round(row.margin, 3), row.verdict) == (0.909, "MISSED")
    row = ratio_table.Row("claim", "peer", "A200", "–", "–", None, 0.5, "0")
    assert (row.margin, row.verdict) == (None, "not measured")
    assert ratio_table.Row("claim", "peer", "A20", "–", "–", 3.0, None, "1").verdict == "for information"


def test_the_fastest_run_counts_and_disagreement_shows(script):
    bench_runs, ratio_table = script("bench_runs"), script("ratio_table")
    bench = bench_runs.Bench()
    for candidate, seconds, kernels in (
        ("load", 0.5, 7),
        ("load", 0.25, 7),
        ("perfetto", 2.0, 6),
        ("perfetto", 3.0, 6),
        ("orjson", 5.0, 8),
    ):
        figures = {"seconds": seconds, "kernels": kernels, "kernel_ns": 1}
        bench.runs.append(bench_runs.Run(candidate, "A200", 0, figures))
    row = ratio_table.compared(bench, "claim", "Perfetto", "A200", ("load", "perfetto"), 6)
    assert (row.ratio, row.n, row.verdict) == (8.0, "2 / 2", "pass")
    assert len(ratio_table.disagreements(bench)) == 1


@pytest.mark.parametrize(
    ("cpu", "verdict"), [((0.25, 2.0), "pass"), ((0.25, 1.25), "MISSED (by CPU)"), ((0.15, 1.8), "pass")]
)
def test_a_disturbed_run_is_judged_by_cpu_as_well(script, cpu, verdict):
    bench_runs, ratio_table = script("bench_runs"), script("ratio_table")
    bench = bench_runs.Bench()
    for candidate, seconds, used in (("load", 0.25, cpu[0]), ("perfetto", 2.0, cpu[1])):
        figures = {"seconds": seconds, "cpu": used}
        bench.runs.append(bench_runs.Run(candidate, "A200", 0, figures))
    row = ratio_table.compared(bench, "claim", "Perfetto", "A200", ("load", "perfetto"), 6)
    assert row.verdict == verdict


def plain_json(path):
    """Kernels and their summed ns, by the standard library alone."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return {"kernels": len(kernels), "kernel_ns": sum(round(event["dur"] * 1000) for event in kernels)}


def printed(*command, **environment):
    """The line that a runner prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("letter", "size_mb"), [("A", 3), ("B", 10)])  # B: kernels start late
def test_runners_agree_on_a_built_trace(script, tmp_path, letter, size_mb):
    make_traces = script("make_traces")
    if not (make_traces.real_data() / make_traces.SOURCES[letter]).exists():
        pytest.skip("no real traces at hand")
    plain = make_traces.build_trace(letter, size_mb, tmp_path)
    packed = plain.with_name(plain.name + ".gz")
    assert abs(plain.stat().st_size / 1e6 - size_mb) < 0.1
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    truth = plain_json(packed)
    assert truth["kernels"] > 100

    runner = HERE / "peer_tracekit.py"
    found = {
        "scan of .gz": printed(runner, "scan", packed),
        "raw scan": printed(runner, "scan", plain),
        "pure scan": printed(runner, "scan", packed, TRACEKIT_PURE="1"),
        "load": printed(runner, "load", packed),
        "pure load": printed(runner, "load", packed, TRACEKIT_PURE="1"),
    }
    if importlib.util.find_spec("orjson"):  # a peer, and so no dependency of the tests
        found["orjson"] = printed(HERE / "peer_orjson.py", packed)
    assert {name: {key: each[key] for key in truth} for name, each in found.items()} == dict.fromkeys(found, truth)
    assert found["load"]["busy_ns"] == found["pure load"]["busy_ns"]
    assert all(each["seconds"] > 0 for each in found.values())


def test_a_run_tells_what_its_whole_tree_took(script):
    bench_runs = script("bench_runs")
    grown = "b = bytearray(80_000_000)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{grown}']); print('{{}}')"
    figures, error = bench_runs.figures_of([sys.executable, "-c", code])
    assert not error
    assert figures["process_peak_mb"] > 80
    assert 0 < figures["process_cpu"] < 60
    assert figures["process_seconds"] > 0


@pytest.mark.parametrize(
    ("code", "limit_s", "told"),
    [
        ("import sys; sys.exit('no such trace')", 60, "no such trace"),
        ("import os; os._exit(3)", 60, "status 3"),
        ("import time; time.sleep(60)", 0.5, "status -9"),
    ],
)
def test_a_run_that_failed_or_took_too_long_says_so(script, monkeypatch, code, limit_s, told):
    bench_runs = script("bench_runs")
    monkeypatch.setattr(bench_runs, "TIMEOUT_S", limit_s)
    assert bench_runs.figures_of([sys.executable, "-S", "-c", code]) == ({}, told)
    assert bench_runs.figures_of([Path("/no/such/program")])[1]
