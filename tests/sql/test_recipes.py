"""Every recipe answers what it says, equal to what the recorded rows themselves come to, or other tools and the truth say.

`test_<recipe>` is the test of each. Traces are summed up again from their JSON; the simulated ones from their `truth.json`.
"""

import csv
import json
import os
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

import pytest
from recorded import PAIRS
from sql_answers import CALLS, DEVICE, answer, events, of, recipe, session

from tracekit.sql import recipes

ROOT = Path(__file__).parents[2]
SIMULATED = ROOT / "examples/simulated_gpu/outputs/profile"
RANK0, RANK1 = (SIMULATED / f"simulated_rank{rank}.pt.trace.json.gz" for rank in (0, 1))
LEAKING = ROOT / "examples/simulated_memory/leaking"
CPU = ROOT / "examples/verl_cpu/outputs/profile"
TRUTH = json.loads((ROOT / "examples/simulated_gpu/truth.json").read_text())["ranks"]
REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_real = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

CHROME = Path(REAL or "") / "chrome"
H100 = CHROME / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
NCCL = CHROME / "hta/nccl_parser_config/nccl_data.json.gz"
MI300 = CHROME / "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
FIGURES = Path(REAL or "").parent / "figures/tracelens"

OF_H200 = ("wait_side_sync_events", "pageable", "launch_bound")
TRACES = [
    pytest.param(RANK0, id="simulated"),
    *(pytest.param(p, id=p.parent.name) for p in (H100, NCCL, MI300) if REAL),
    *(pytest.param(PAIRS / f"{name}.pt.trace.json.xz", id=name) for name in OF_H200 if not REAL),
]
traces = pytest.mark.parametrize("trace", TRACES)


@cache
def rows(name, *paths):
    """The rows of a recipe."""
    return recipe(name, *paths)


def statistics(values):
    """What `nsys stats` says of some lengths."""
    return {
        "total": sum(values),
        "count": len(values),
        "avg": mean(values),
        "med": median(values),
        "min": min(values),
        "max": max(values),
        "std": stdev(values) if len(values) > 1 else 0,
    }


def grouped(pairs):
    """The values of each key."""
    values = defaultdict(list)
    for key, value in pairs:
        values[key].append(value)
    return values


def summed(pairs):
    """The statistics of the values of each key."""
    return {key: pytest.approx(statistics(values)) for key, values in grouped(pairs).items()}


def shown(given, *keys, unit="ns"):
    """The same statistics as a recipe gives them, by its key columns."""
    names = ("total", "avg", "med", "min", "max", "std")
    by_key = {}
    for row in given:
        of_row = {name: float(row[f"{name}_{unit}"]) for name in names}
        by_key[tuple(row[k] for k in keys)] = {**of_row, "count": row["count"]}
    assert len(by_key) == len(given)
    return by_key


def operation(event):
    """The kind of a copy or fill, without its two ends."""
    return event["name"].split(" (")[0]


def category(event):
    """`kernel` or `memory`."""
    return "kernel" if event["cat"] == "kernel" else "memory"


def title(event):
    """A kernel's name, or the kind of a copy."""
    return event["name"] if event["cat"] == "kernel" else operation(event)


def united(intervals):
    """The intervals without overlaps, in order."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def spans(found):
    """(start, end) of events."""
    return [(event["ts"], event["ts"] + event["dur"]) for event in found]


def by_correlation(path):
    """The call of the API with each correlation."""
    return {c["args"]["correlation"]: c for c in of(path, *CALLS) if "correlation" in c["args"]}


@cache
def ranges_by_thread(path):
    """The annotated ranges of each thread."""
    return grouped((event["thread"], event) for event in of(path, "user_annotation"))


def ranges_around(path, call):
    """The annotated ranges that hold a call on its thread."""
    start, end = call["ts"], call["ts"] + call["dur"]
    on_thread = ranges_by_thread(path)[call["thread"]]
    return [r for r in on_thread if r["ts"] <= start and r["ts"] + r["dur"] >= end]


def test_every_recipe_says_what_it_answers_and_is_tested_here():
    assert len(recipes.list_recipes()) >= 30
    for name in recipes.list_recipes():
        first = recipes.read_recipe(name).splitlines()[0]
        assert first == f"-- {recipes.read_recipe_question(name)}"
        assert recipes.read_recipe_question(name).endswith((".", "`).", ")."))
        assert f"test_{name}" in globals(), name


def test_every_recipe_runs_where_nothing_of_it_was_recorded():
    opened = session(min(CPU.glob("*.gz")))
    for name in recipes.list_recipes():
        assert isinstance(opened.run(recipes.read_recipe(name)).rows(1), list)


# --- what nsys stats reports ----------------------------------------------------------------------


@traces
def test_cuda_gpu_kern_sum(trace):
    expected = summed(((e["name"],), e["dur"]) for e in of(trace, "kernel"))
    given = rows("cuda_gpu_kern_sum", trace)
    assert shown(given, "name") == expected
    assert sum(row["time_ratio"] for row in given) == pytest.approx(1)
    totals = [row["total_ns"] for row in given]
    assert totals == sorted(totals, reverse=True)


@traces
def test_cuda_gpu_kern_gb_sum(trace):
    def key(event):
        return *(numbers(event["args"].get(name)) for name in ("grid", "block")), event["name"]

    expected = summed((key(e), e["dur"]) for e in of(trace, "kernel"))
    given = rows("cuda_gpu_kern_gb_sum", trace)
    in_numbers = [{**row, "grid": numbers(row["grid"]), "block": numbers(row["block"])} for row in given]
    assert shown(in_numbers, "grid", "block", "name") == expected
    assert len(expected) > 2


def numbers(recorded):
    """Three numbers, however they were recorded."""
    if recorded is None:
        return None
    return tuple(json.loads(recorded) if isinstance(recorded, str) else recorded)


@traces
def test_every_argument_is_a_row_of_its_event(trace):
    expected = Counter()
    for event in of(trace, *DEVICE, "cpu_op"):
        for name, value in event["args"].items():
            expected[event["ts"], event["name"], name, written(value)] += 1
    statement = """
        SELECT ts_ns, name, key, value FROM args JOIN {} AS ops USING (process, id) WHERE {}"""
    found = Counter()
    for table, some in (("device_ops", "true"), ("host_ops", "cat = 'cpu_op'")):
        for row in answer(statement.format(table, some), trace):
            found[row["ts_ns"], row["name"], row["key"], row["value"]] += 1
    assert found == expected
    assert len(expected) > 500


def written(value):
    """A value of JSON as text: numbers as Python writes them."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    return json.dumps(value, separators=(",", ":"), default=float)


@traces
def test_cuda_api_sum(trace):
    expected = summed(((e["name"],), e["dur"]) for e in of(trace, *CALLS))
    assert shown(rows("cuda_api_sum", trace), "name") == expected


@traces
def test_cuda_gpu_mem_time_sum(trace):
    expected = summed(((operation(e),), e["dur"]) for e in of(trace, "gpu_memcpy", "gpu_memset"))
    assert shown(rows("cuda_gpu_mem_time_sum", trace), "operation") == expected


@traces
def test_cuda_gpu_mem_size_sum(trace):
    sized = [e for e in of(trace, "gpu_memcpy", "gpu_memset") if "bytes" in e["args"]]
    expected = summed(((operation(e),), e["args"]["bytes"]) for e in sized)
    given = shown(rows("cuda_gpu_mem_size_sum", trace), "operation", unit="bytes")
    assert given == expected


@traces
def test_cuda_gpu_sum(trace):
    expected = summed(((category(e), title(e)), e["dur"]) for e in of(trace, *DEVICE))
    assert shown(rows("cuda_gpu_sum", trace), "category", "operation") == expected


@traces
def test_cuda_api_gpu_sum(trace):
    work = [((category(e), title(e)), e["dur"]) for e in of(trace, *DEVICE)]
    calls = [(("api", e["name"]), e["dur"]) for e in of(trace, *CALLS)]
    given = shown(rows("cuda_api_gpu_sum", trace), "category", "operation")
    assert given == summed([*work, *calls])


@traces
def test_cuda_kern_exec_sum(trace):
    calls = by_correlation(trace)
    parts = defaultdict(list)
    for kernel in of(trace, "kernel"):
        call = calls.get(kernel["args"].get("correlation"))
        if call is None:
            continue
        returned, end = call["ts"] + call["dur"], kernel["ts"] + kernel["dur"]
        queued = kernel["ts"] - returned if kernel["ts"] > returned else None
        total = max(returned, end) - call["ts"]
        key = call["name"], kernel["name"], kernel["args"]["device"]
        parts[key].append((total, call["dur"], queued, kernel["dur"]))
    assert parts
    given = rows("cuda_kern_exec_sum", trace)
    assert len(given) == len(parts)
    for row in given:
        total, api, queued, kernel = zip(*parts[row["api"], row["kernel"], row["device"]], strict=True)
        waits = [q for q in queued if q is not None]
        assert (row["count"], row["queued_count"]) == (len(total), len(waits))
        assert row["total_avg_ns"] == pytest.approx(mean(total))
        assert row["api_avg_ns"] == pytest.approx(mean(api))
        assert row["kernel_avg_ns"] == pytest.approx(mean(kernel))
        assert row["queue_avg_ns"] == (pytest.approx(mean(waits)) if waits else None)


@traces
def test_cuda_gpu_trace(trace):
    expected = sorted(
        (e["ts"], e["dur"], e["name"], e["args"]["stream"], e["args"].get("bytes")) for e in of(trace, *DEVICE)
    )
    names = ("ts_ns", "dur_ns", "name", "stream", "size_bytes")
    given = [tuple(row[name] for name in names) for row in rows("cuda_gpu_trace", trace)]
    assert [row[0] for row in given] == sorted(row[0] for row in given)
    assert Counter(given) == Counter(expected)


@traces
def test_cuda_api_trace(trace):
    expected = Counter((e["ts"], e["dur"], e["name"], e["thread"][1]) for e in of(trace, *CALLS))
    given = rows("cuda_api_trace", trace)
    assert Counter((r["ts_ns"], r["dur_ns"], r["name"], r["tid"]) for r in given) == expected


@traces
def test_cuda_api_sync(trace):
    waits = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "CtxSynchronize")
    calls = [e for e in of(trace, *CALLS) if any(word in e["name"] for word in waits)]
    expected = sorted((e["dur"] for e in calls), reverse=True)[:50]
    assert [row["dur_ns"] for row in rows("cuda_api_sync", trace)] == expected


@traces
def test_pageable_copies(trace):
    copies = [e for e in of(trace, "gpu_memcpy") if "pageable" in e["name"].lower()]
    expected = {
        name: (len(found), sum(e["dur"] for e in found), sum(e["args"]["bytes"] for e in found))
        for name, found in grouped((e["name"], e) for e in copies).items()
    }
    given = rows("pageable_copies", trace)
    assert {r["name"]: (r["count"], r["total_ns"], r["total_bytes"]) for r in given} == expected


@traces
def test_nvtx_sum(trace):
    expected = summed(((e["name"],), e["dur"]) for e in of(trace, "user_annotation"))
    assert shown(rows("nvtx_sum", trace), "range_name") == expected


@traces
def test_nvtx_kern_sum(trace):
    calls = by_correlation(trace)
    kernels, held = defaultdict(list), defaultdict(set)
    for kernel in of(trace, "kernel"):
        call = calls.get(kernel["args"].get("correlation"))
        for outer in ranges_around(trace, call) if call else ():
            kernels[outer["name"], kernel["name"]].append(kernel["dur"])
            held[outer["name"], kernel["name"]].add(outer["ts"])
    given = rows("nvtx_kern_sum", trace)
    assert len(given) == len(kernels)
    for row in given:
        key = row["range_name"], row["kernel"]
        assert row["range_count"] == len(held[key])
        assert (row["kernel_count"], row["total_ns"]) == (len(kernels[key]), sum(kernels[key]))
        assert (row["min_ns"], row["max_ns"]) == (min(kernels[key]), max(kernels[key]))


@traces
def test_nvtx_gpu_proj_sum(trace):
    calls = by_correlation(trace)
    projected = {}
    for op in of(trace, *DEVICE):
        call = calls.get(op["args"].get("correlation"))
        for outer in ranges_around(trace, call) if call else ():
            key = outer["name"], outer["ts"], outer["dur"]
            start, end, ids = projected.get(key, (op["ts"], 0, frozenset()))
            ids |= {op["args"]["correlation"]}
            projected[key] = min(start, op["ts"]), max(end, op["ts"] + op["dur"]), ids
    expected = grouped((key[0], value) for key, value in projected.items())
    given = rows("nvtx_gpu_proj_sum", trace)
    assert {row["range_name"] for row in given} == set(expected)
    for row in given:
        lengths = [end - start for start, end, _ in expected[row["range_name"]]]
        assert (row["count"], row["total_ns"]) == (len(lengths), sum(lengths))
        assert row["op_count"] == sum(len(ids) for _, _, ids in expected[row["range_name"]])


@traces
def test_gpu_gaps(trace):
    busy = united(spans(of(trace, *DEVICE)))
    gaps = sorted((after[0] - before[1] for before, after in pairwise(busy)), reverse=True)
    gaps = [gap for gap in gaps if gap > 0]
    assert [row["gap_ns"] for row in rows("gpu_gaps", trace)] == gaps[:50]
    assert gaps


@traces
def test_gpu_time_util(trace):
    busy = united(spans(of(trace, *DEVICE)))
    first, last = busy[0][0], busy[-1][1]
    given = rows("gpu_time_util", trace)
    assert len(given) == 30
    for part, row in enumerate(given):
        low, high = (first + (last - first) * n // 30 for n in (part, part + 1))
        inside = sum(max(0, min(end, high) - max(start, low)) for start, end in busy)
        assert (row["from_ts_ns"], row["part_ns"], row["busy_ns"]) == (low, high - low, inside)
        assert row["busy_ratio"] == pytest.approx(inside / (high - low))


# --- what TraceLens' sheets answer ----------------------------------------------------------------


def figures(folder, sheet):
    """The rows of one of TraceLens' own tables."""
    with (FIGURES / folder / f"{sheet}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


TRACELENS = {"h100_Qwen_Qwen1.5-0.5B-Chat__1016005": H100, "mi300_Qwen_Qwen1.5-0.5B-Chat__1016005": MI300}
tracelens = pytest.mark.parametrize("folder", TRACELENS)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_gpu_timeline(rank):
    (row,) = [row for row in rows("gpu_timeline", SIMULATED) if row["rank"] == int(rank)]
    truth = TRUTH[rank]["window"]
    names = ("compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "exposed_memset_ns", "busy_ns")
    assert {name: row[name] for name in names} == {name: truth[name] for name in names}
    assert (row["window_ns"], row["idle_ns"]) == (truth["wall_ns"], truth["idle_ns"])
    assert row["compute_ratio"] == truth["compute_ns"] / truth["wall_ns"]


@needs_real
@pytest.mark.parametrize("path", [H100, NCCL, MI300], ids=lambda path: path.parent.name)
def test_gpu_timeline_of_real_traces_is_the_golden_one(path):
    golden = json.loads((CHROME / "golden_gpu_breakdown.json").read_text())
    expected = golden[path.relative_to(CHROME).as_posix()]
    (row,) = rows("gpu_timeline", path)
    for name in ("window", "busy", "compute", "exposed_comm", "exposed_memcpy", "idle"):
        assert row[f"{name}_ns"] == pytest.approx(expected[f"{name}_us"] * 1000, abs=1), name


@needs_real
@tracelens
def test_ops_summary(folder):
    expected = figures(folder, "ops_summary")
    given = {row["name"]: row for row in rows("ops_summary", TRACELENS[folder])}
    assert len(expected) >= 20
    assert {row["name"] for row in expected} == set(given)
    for row in expected:
        ours = given[row["name"]]
        assert ours["count"] >= int(row["Count"])
        # Their times are differences of floating microseconds: each is off by up to a quarter of one.
        time_ns = float(row["total_direct_kernel_time_sum"]) * 1000
        assert float(ours["device_ns"]) == pytest.approx(time_ns, abs=ours["launch_count"])


@traces
def test_ops_unique_args(trace):
    given = rows("ops_unique_args", trace)
    counts = Counter()
    for event in of(trace, "cpu_op"):
        dims = event["args"].get("Input Dims", event["args"].get("Input dims"))
        if dims is not None:
            counts[event["name"], json.dumps(dims)] += 1
    ours = Counter()
    for row in given:
        if row["dims"] is not None:
            ours[row["name"], json.dumps(json.loads(row["dims"]))] += row["count"]
    assert bool(ours) is bool(counts)
    assert all(counts[key] == count for key, count in ours.items())
    # What is not told apart is pooled, and not lost.
    assert sum(row["count"] for row in given) >= sum(ours.values())


@needs_real
@tracelens
def test_gemms(folder):
    expected = {}
    for row in figures(folder, "GEMM"):
        key = row["name"], int(row["param: M"]), int(row["param: N"]), int(row["param: K"])
        count, time = int(row["name_count"]), float(row["Kernel Time (µs)_sum"]) * 1000
        before = expected.get(key, (0, 0, 0))
        flops = round(float(row["GFLOPS_first"]) * 1e9) * count
        expected[key] = before[0] + count, before[1] + time, before[2] + flops
    given = defaultdict(lambda: (0, 0, 0))
    for row in rows("gemms", TRACELENS[folder]):
        key = row["name"], row["m"], row["n"], row["k"]
        before = given[key]
        given[key] = (before[0] + row["count"], before[1] + row["device_busy_ns"], before[2] + row["flop_count"])
    assert len(expected) >= 3
    for key, (count, time, _) in expected.items():
        assert given[key][0] == count
        assert float(given[key][1]) == pytest.approx(time, rel=1e-3)


@traces
def test_kernel_launchers(trace):
    ops = {e["args"]["External id"]: e["name"] for e in of(trace, "cpu_op") if "External id" in e["args"]}
    expected = grouped(
        ((ops.get(e["args"]["External id"]), e["name"]), e["dur"])
        for e in of(trace, "kernel")
        if e["args"].get("External id")
    )
    given = rows("kernel_launchers", trace)
    assert {(r["op"], r["kernel"]): (r["count"], r["total_ns"]) for r in given} == {
        key: (len(values), sum(values)) for key, values in expected.items()
    }
    assert expected


@traces
def test_short_kernels(trace):
    bounds = {"below 2 us": 0, "2 to 5 us": 2000, "5 to 10 us": 5000, "10 to 100 us": 10_000, "100 us or more": 100_000}
    lengths = [e["dur"] for e in of(trace, "kernel") if not e["name"].startswith("nccl")]
    ends = [*list(bounds.values())[1:], float("inf")]
    expected = {}
    for (name, low), high in zip(bounds.items(), ends, strict=True):
        inside = [length for length in lengths if low <= length < high]
        if inside:
            expected[name] = len(inside), sum(inside)
    given = rows("short_kernels", trace)
    assert {r["length"]: (r["count"], r["total_ns"]) for r in given} == expected
    assert sum(r["time_ratio"] for r in given) == pytest.approx(1)


@traces
def test_streams(trace):
    kinds = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}

    def kind(event):
        return "collective" if event["name"].startswith("nccl") else kinds[event["cat"]]

    found = grouped(((e["args"]["stream"], kind(e)), e) for e in of(trace, *DEVICE))
    expected = {}
    for key, work in found.items():
        ends = [e["ts"] + e["dur"] for e in work]
        span = max(ends) - min(e["ts"] for e in work)
        expected[key] = len(work), sum(e["dur"] for e in work), span
    given = rows("streams", trace)
    assert {(r["stream"], r["kind"]): (r["count"], r["total_ns"], r["span_ns"]) for r in given} == expected


@needs_real
def test_collectives_by_group():
    sizes = {"BFloat16": 2, "Float": 4, "Long": 8, "Int": 4, "Byte": 1}
    found = grouped(
        ((e["args"]["Collective name"], int(e["args"]["Group size"]), e["args"]["dtype"]), e)
        for e in of(NCCL, "kernel")
        if "Collective name" in e["args"]
    )
    expected = Counter()
    for (_, size, dtype), work in found.items():
        assert dtype in sizes
        expected[size, dtype, "count"] += len(work)
        expected[size, dtype, "ns"] += sum(e["dur"] for e in work)
    given, bytes_of = Counter(), defaultdict(set)
    for row in rows("collectives_by_group", NCCL):
        dtype = row["dtype"]
        given[row["group_size"], dtype, "count"] += row["count"]
        given[row["group_size"], dtype, "ns"] += row["total_ns"]
        bytes_of[row["op"]].add(row["size_bytes"])
    torch_names = {"BFloat16": "bfloat16", "Float": "float32", "Long": "int64", "Int": "int32", "Byte": "uint8"}
    assert given == {(size, torch_names[dtype], what): count for (size, dtype, what), count in expected.items()}
    reduced = {
        int(e["args"]["In msg nelems"]) * sizes[e["args"]["dtype"]]
        for e in of(NCCL, "kernel")
        if e["args"].get("Collective name") == "allreduce"
    }
    assert bytes_of.get("all_reduce", set()) == reduced


def test_collectives_by_group_of_the_simulated_ranks_add_up_to_the_truth():
    truth = sum(TRUTH[rank]["window"]["comm_ns"] for rank in TRUTH)
    assert sum(row["total_ns"] for row in rows("collectives_by_group", SIMULATED)) == truth
    exposed = sum(TRUTH[rank]["window"]["exposed_comm_ns"] for rank in TRUTH)
    assert sum(row["exposed_ns"] for row in rows("collectives_by_group", SIMULATED)) == exposed


def test_collectives_last_rank():
    starts = []
    for path in (RANK0, RANK1):
        found = [e for e in of(path, "kernel") if e["name"].startswith("nccl")]
        by_kind = grouped((e["args"].get("Collective name", e["name"]), e["ts"]) for e in found)
        starts.append({key: sorted(times) for key, times in by_kind.items()})
    last, late, waited = Counter(), Counter(), Counter()
    for kind, times in starts[0].items():
        for pair in zip(times, starts[1][kind], strict=True):
            for rank, start in enumerate(pair):
                waited[rank] += max(pair) - start
                if start == max(pair):
                    last[rank] += 1
                    late[rank] += max(pair) - min(pair)
    given = {row["rank"]: row for row in rows("collectives_last_rank", SIMULATED)}
    for rank in (0, 1):
        assert given[rank]["last_count"] == last[rank]
        assert (given[rank]["late_ns"] or 0, given[rank]["waited_ns"]) == (late[rank], waited[rank])
    assert sum(waited.values()) > 0


# --- steps, stages, ranks -------------------------------------------------------------------------


def test_exposed_comm():
    given = {(row["rank"], row["step"]): row for row in rows("exposed_comm", SIMULATED)}
    assert len(given) == 6
    for rank, truth in TRUTH.items():
        for step, told in truth["steps"].items():
            row, by_time = given[int(rank), int(step)], told["by_time"]
            assert row["window_ns"] == by_time["wall_ns"]
            assert row["comm_ns"] == by_time["comm_ns"]
            assert row["exposed_comm_ns"] == by_time["exposed_comm_ns"]
            assert row["overlap_ns"] == by_time["comm_hidden_by_compute_ns"]


def stages_of_truth(rank):
    """(stage, what the truth says of it by time) of every step of a rank."""
    for step in TRUTH[rank]["steps"].values():
        for stage, told in step["stages"].items():
            yield stage, told["by_time"]


def test_comm_overlap():
    expected = Counter()
    for rank in TRUTH:
        for stage, told in stages_of_truth(rank):
            expected[int(rank), stage, "comm"] += told["comm_ns"]
            expected[int(rank), stage, "overlap"] += told["comm_hidden_by_compute_ns"]
    given = [row for row in rows("comm_overlap", SIMULATED) if (row["rank"], row["stage"], "comm") in expected]
    assert len(given) >= 4
    for row in given:
        assert row["comm_ns"] == expected[row["rank"], row["stage"], "comm"]
        assert row["overlap_ns"] == expected[row["rank"], row["stage"], "overlap"]


def test_idle_by_stage():
    expected = Counter()
    for rank in TRUTH:
        for stage, told in stages_of_truth(rank):
            expected[int(rank), stage, "wall"] += told["wall_ns"]
            expected[int(rank), stage, "idle"] += told["idle_ns"]
    given = {(row["rank"], row["stage"]): row for row in rows("idle_by_stage", SIMULATED)}
    assert {(rank, stage) for rank, stage, _ in expected} <= set(given)
    for rank, stage, _ in expected:
        row = given[rank, stage]
        assert row["window_ns"] == expected[rank, stage, "wall"]
        assert row["idle_ns"] == expected[rank, stage, "idle"]


def test_idle_by_cause():
    given = rows("idle_by_cause", SIMULATED)
    for rank, truth in TRUTH.items():
        of_rank = [row for row in given if row["rank"] == int(rank)]
        assert sum(row["idle_ns"] for row in of_rank) == truth["window"]["idle_ns"]
        assert sum(row["idle_ratio"] for row in of_rank) == pytest.approx(1)


def test_longest_idle():
    expected = []
    for path in (RANK0, RANK1):
        busy = united(spans(of(path, *DEVICE)))
        expected += [after[0] - before[1] for before, after in pairwise(busy)]
    given = [row["dur_ns"] for row in rows("longest_idle", SIMULATED)]
    assert given == sorted(expected, reverse=True)[: len(given)]
    assert len(given) >= 20


def test_sync_stalls():
    measured = answer(
        "SELECT op, call, count, call_ns, stall_count, idle_ns FROM sync_stalls WHERE \"window\" = 'step'", SIMULATED
    )
    totals = defaultdict(Counter)
    for row in measured:
        totals[row["op"], row["call"]].update({n: row[n] for n in ("count", "call_ns", "idle_ns")})
    given = rows("sync_stalls", SIMULATED)
    assert {(r["op"], r["call"]): {n: r[n] for n in ("count", "call_ns", "idle_ns")} for r in given} == totals
    calls = Counter()
    for path in (RANK0, RANK1):
        steps = [e for e in of(path, "user_annotation") if e["name"].startswith("ProfilerStep")]
        for call in of(path, *CALLS):
            if any(s["ts"] <= call["ts"] < s["ts"] + s["dur"] for s in steps):
                calls[call["name"]] += call["dur"]
    for name in {row["call"] for row in given}:
        assert sum(row["call_ns"] for row in given if row["call"] == name) <= calls[name]
    assert given


def test_step_by_rank():
    lengths = defaultdict(dict)
    for rank, path in enumerate((RANK0, RANK1)):
        for event in of(path, "user_annotation"):
            if event["name"].startswith("ProfilerStep#"):
                lengths[int(event["name"].partition("#")[2])][rank] = event["dur"]
    given = rows("step_by_rank", SIMULATED)
    assert [row["step"] for row in given] == sorted(lengths)
    for row in given:
        of_ranks = lengths[row["step"]]
        assert (row["rank_count"], row["min_ns"], row["max_ns"]) == (2, min(of_ranks.values()), max(of_ranks.values()))
        assert of_ranks[row["slowest_rank"]] == row["max_ns"]
        assert row["spread_ns"] == row["max_ns"] - row["min_ns"]


def test_stage_by_rank():
    lengths = defaultdict(dict)
    for rank, truth in TRUTH.items():
        for step, told in truth["steps"].items():
            for stage, of_stage in told["stages"].items():
                lengths[int(step), stage][int(rank)] = of_stage["by_time"]["wall_ns"]
    given = {(row["step"], row["stage"]): row for row in rows("stage_by_rank", SIMULATED)}
    assert set(lengths) <= set(given)
    for key, of_ranks in lengths.items():
        assert given[key]["max_ns"] == max(of_ranks.values())
        assert given[key]["avg_ns"] == mean(of_ranks.values())
        assert of_ranks[given[key]["slowest_rank"]] == given[key]["max_ns"]


def test_kernels_by_step():
    given = Counter()
    for row in rows("kernels_by_step", SIMULATED):
        if row["step"] is not None:
            given[row["rank"], row["step"], row["kind"], "count"] += row["count"]
            given[row["rank"], row["step"], row["kind"], "sum_ns"] += row["total_ns"]
    names = {"comm": "collective", "compute": "kernel", "memcpy": "memcpy", "memset": "memset"}
    expected = Counter()
    for rank, truth in TRUTH.items():
        for step, told in truth["steps"].items():
            for kind, name in names.items():
                for what in ("count", "sum_ns"):
                    key = int(rank), int(step), name, what
                    expected[key] = told["by_launch"].get(f"{kind}_{what}", 0)
    assert given == expected


# --- host, copies, memory -------------------------------------------------------------------------


@traces
def test_copies_by_direction(trace):
    found = grouped((e["name"].removeprefix("Memcpy ")[:4], e) for e in of(trace, "gpu_memcpy"))
    expected = {
        direction: (len(copies), sum(e["dur"] for e in copies), sum(e["args"]["bytes"] for e in copies))
        for direction, copies in found.items()
    }
    given = defaultdict(lambda: (0, 0, 0))
    for row in rows("copies_by_direction", trace):
        if row["direction"] != "memset":
            before = given[row["direction"]]
            now = row["count"], row["total_ns"], row["size_bytes"]
            given[row["direction"]] = tuple(a + b for a, b in zip(before, now, strict=True))
    assert given == expected


def self_times(found):
    """(name, its own time) of nested events: less that of what lies directly inside on the thread."""
    own = {id(event): event["dur"] for event in found}
    for on_thread in grouped((event["thread"], event) for event in found).values():
        stack = []
        for event in sorted(on_thread, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if stack:
                own[id(stack[-1])] -= event["dur"]
            stack.append(event)
    return [(event["name"], own[id(event)]) for event in found]


def test_cpu_ops():
    path = min(CPU.glob("*.gz"))
    host = of(path, "cpu_op", "user_annotation", "cuda_runtime")
    ops = {e["name"] for e in of(path, "cpu_op")}
    expected = Counter()
    for name, time in self_times(host):
        if name in ops:
            expected[name] += time
    given = rows("cpu_ops", path)
    assert {row["name"]: row["self_ns"] for row in given} == expected
    counts = Counter(e["name"] for e in of(path, "cpu_op"))
    assert {row["name"]: row["count"] for row in given} == counts
    assert sum(row["self_ratio"] for row in given) == pytest.approx(1)


@needs_real
def test_modules():
    calls = [e for e in events(H100) if e["cat"] == "python_function" and e["name"].startswith("nn.Module: ")]
    counts = Counter(e["name"].removeprefix("nn.Module: ").rpartition("_")[0] for e in calls)
    times = grouped(
        (e["name"].removeprefix("nn.Module: ").rpartition("_")[0], (e["ts"], e["ts"] + e["dur"])) for e in calls
    )
    given = {row["module"]: row for row in rows("modules", H100)}
    assert {name: row["count"] for name, row in given.items()} == counts
    for name, intervals in times.items():
        assert given[name]["total_ns"] == sum(end - start for start, end in united(intervals))


@traces
def test_launch_calls(trace):
    calls = by_correlation(trace)
    expected = Counter()
    for op in of(trace, *DEVICE):
        call = calls.get(op["args"].get("correlation"))
        if call is not None:
            expected[call["name"], "count"] += 1
            expected[call["name"], "ns"] += op["dur"]
    given = Counter()
    for row in rows("launch_calls", trace):
        if row["link"] == "correlation":
            given[row["call"], "count"] += row["count"]
            given[row["call"], "ns"] += row["total_ns"]
    assert given == expected


@traces
def test_launch_delays(trace):
    calls = by_correlation(trace)
    first = {}
    for op in of(trace, *DEVICE):
        call = calls.get(op["args"].get("correlation"))
        if call is not None:
            number = op["args"]["correlation"]
            first[number] = min(first.get(number, op["ts"]), op["ts"])
    delays = [ts - calls[n]["ts"] - calls[n]["dur"] for n, ts in first.items()]
    (row,) = [row for row in rows("launch_delays", trace) if row["stage"] is None]
    assert (row["count"], row["max_ns"]) == (len(delays), max(delays))
    assert row["p50_ns"] == pytest.approx(median(delays))
    assert row["negative_count"] == sum(delay < 0 for delay in delays)


def test_memory_peaks():
    given = {row["rank"]: row for row in rows("memory_peaks", SIMULATED)}
    for rank, truth in TRUTH.items():
        assert given[int(rank)]["peak_bytes"] == truth["memory"]["peak_allocated_bytes"]
        assert given[int(rank)]["reserved_peak_bytes"] == truth["memory"]["peak_reserved_bytes"]


def test_memory_by_stage():
    given = [row for row in rows("memory_by_stage", SIMULATED) if row["rank"] == 0]
    raw = answer("SELECT ts_ns, allocated_bytes FROM memory_ops WHERE device_type = 1 ORDER BY ts_ns, id", RANK0)
    expected = {}
    for step in TRUTH["0"]["steps"].values():
        for stage, told in step["stages"].items():
            start, end = told["start_ns"], told["start_ns"] + told["by_time"]["wall_ns"]
            before = [row["allocated_bytes"] for row in raw if row["ts_ns"] < start][-1:]
            inside = [row["allocated_bytes"] for row in raw if start <= row["ts_ns"] < end]
            levels = before + inside
            if levels:
                expected[stage] = max(expected.get(stage, 0), *levels)
    assert {row["stage"]: row["peak_bytes"] for row in given if row["stage"] in expected} == expected
    assert expected


def test_live_memory():
    given = {(row["rank"], row["source"].partition("/")[0], row["site"]): row for row in rows("live_memory", LEAKING)}
    # The README's first screen: what is in use at the peak of rank 1 in the last step.
    assert given[1, "step2", "job/engine.py:54 allocate_kv_cache"]["size_bytes"] == 232 << 20
    assert given[1, "step2", "job/train.py:71 update_actor"]["size_bytes"] == 108 << 20
    assert given[1, "step2", "job/model.py:21 __init__"]["size_bytes"] == 54 << 20
    leaks = [given[0, f"step{n}", "job/train.py:88 log_metrics"]["size_bytes"] for n in range(2, 7)]
    assert leaks == [n * 3 << 19 for n in range(1, 6)]


@traces
def test_files(trace):
    (row,) = rows("files", trace)
    assert row["device_op_count"] == len(of(trace, *DEVICE))
    assert row["source"] == trace.name


@needs_real
def test_osrt_sum():
    """The names of three files of nsys are summed up in test_recipes_nsys; here that there are any."""
    path = Path(REAL) / "nsys/real_cpu/sampled_nsys24.sqlite"
    given = rows("osrt_sum", path)
    assert {"pthread_cond_timedwait", "clock_nanosleep"} <= {row["name"] for row in given}
    assert sum(row["count"] for row in given) == 356
