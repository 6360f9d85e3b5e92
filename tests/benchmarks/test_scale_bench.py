"""The benchmark of many ranks: its ranks are what they say, and its rows are judged as they should be. No timings."""

import gzip
import importlib
import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
MAKE_RANKS = HERE.parents[1] / "examples" / "scale" / "make_ranks.py"


@pytest.fixture(scope="module")
def make_ranks():
    spec = importlib.util.spec_from_file_location("make_ranks", MAKE_RANKS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scale_run(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return importlib.import_module("scale_run")


@pytest.fixture(scope="module")
def traces(make_ranks, tmp_path_factory):
    """What four ranks of two steps hold, by rank."""
    folder = make_ranks.write(tmp_path_factory.mktemp("ranks"), 4, steps=2)
    found = [json.loads(gzip.decompress(p.read_bytes())) for p in folder.rglob("*.gz")]
    return {trace["distributedInfo"]["rank"]: trace for trace in found}


def ends(trace):
    """The end of every collective in ns since 1970, by its sequence number."""
    return {
        event["args"]["Seq"]: round((event["ts"] + event["dur"]) * 1000) + trace["baseTimeNanoseconds"]
        for event in trace["traceEvents"]
        if "Seq" in event["args"]
    }


def test_every_rank_says_that_it_is_simulated_and_who_it_is(traces):
    assert sorted(traces) == [0, 1, 2, 3]
    assert all(trace["simulated"].startswith("SIMULATED") for trace in traces.values())
    pids = [{e["pid"] for e in trace["traceEvents"]} for trace in traces.values()]
    assert all(len(each) == 2 for each in pids)
    assert len(set.union(*pids)) == 8


def test_all_ranks_leave_a_collective_at_the_same_moment(traces):
    first, *others = map(ends, traces.values())
    assert sorted(first) == list(range(1, len(first) + 1))
    for other in others:
        assert first.keys() == other.keys()
        assert max(abs(first[seq] - other[seq]) for seq in first) <= 1


def test_no_two_pieces_of_work_of_a_stream_run_at_once(traces):
    for trace in traces.values():
        streams = {}
        for event in trace["traceEvents"]:
            if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
                streams.setdefault(event["tid"], []).append((event["ts"], event["dur"]))
        for work in streams.values():
            work.sort()
            assert all(a + d <= b + 1e-3 for (a, d), (b, _) in pairwise(work))


def test_planted_stragglers_and_slow_hosts_are_of_the_run(make_ranks):
    assert make_ranks.stragglers(8) == [5]
    assert make_ranks.slow_hosts(8) == []
    assert make_ranks.stragglers(1000) == [5, 336, 667, 998]
    assert make_ranks.slow_hosts(1000) == [2, 66]


def test_a_share_above_the_limit_is_missed(scale_run, tmp_path):
    (tmp_path / "ranks").mkdir()
    packed = gzip.compress(b" " * 1_000_000)
    (tmp_path / "ranks" / "a.gz").write_bytes(packed)
    bench = scale_run.Bench()
    run = sys.modules["bench_runs"].Run
    for candidate, figures in (("loaded", {"size_mb": 0.04, "cpu": 1.0}), ("local", {"analyze_cpu": 25.0})):
        bench.runs.append(run(candidate, "ranks", 0, figures))
    share, ratio = scale_run.rows_of_saved(bench, tmp_path / "ranks")
    assert (share.ratio, share.verdict) == (0.04, "MISSED")
    assert (ratio.ratio, ratio.verdict) == (25.0, "pass")


def test_cpu_per_file_is_held_against_the_fewest_ranks(scale_run):
    bench = scale_run.Bench()
    run = sys.modules["bench_runs"].Run
    for ranks, cpu in (("8", 0.5), ("8", 0.4), ("64", 0.6)):
        bench.runs.append(run("ray", ranks, 0, {"cpu_per_file": cpu}))
    rows = scale_run.rows_of_ranks(bench, [8, 64], "ray")
    row = next(r for r in rows if r.input == "64 ranks, ray")
    assert (round(row.ratio, 2), row.verdict) == (1.33, "MISSED")
    table = scale_run.by_count(bench, [8, 64], ["ray"]).splitlines()
    assert table[2].startswith("| ray | 8 | 0.45 | – |")
    assert table[3].startswith("| ray | 64 | 0.6 | – |")
