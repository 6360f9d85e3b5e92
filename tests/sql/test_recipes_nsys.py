"""Recipes on Nsight Systems' files equal what the rows of the SQLite file come to, and what `nsys stats` prints of it."""

import json
import os
import re
from collections import Counter, defaultdict
from pathlib import Path

import nsys_tool
import pytest
from sql_answers import answer, recipe, rows

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
NSYS = Path(REAL or "") / "nsys"
TWO_GPUS = NSYS / "GindaChen_nsys-ai/mfu_2gpu_before.sqlite"
HOST = ("real_cpu/steps_nsys24.sqlite", "real_cpu/sampled_nsys24.sqlite", "real_cpu/spawn_nsys23.sqlite")

KERNELS = """
    SELECT s.value, k.start, k.end, k.correlationId, k.globalPid, k.deviceId, k.streamId
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"""
CALLS = """
    SELECT s.value, r.start, r.end, r.correlationId, r.globalTid
    FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId"""


def totals(pairs):
    """(count, sum, least, greatest) of the values of each key."""
    values = defaultdict(list)
    for key, value in pairs:
        values[key].append(value)
    return {key: (len(v), sum(v), min(v), max(v)) for key, v in values.items()}


def given(found, name, unit="ns"):
    """The same of the rows of a recipe."""
    names = (f"total_{unit}", f"min_{unit}", f"max_{unit}")
    return {row[name]: (row["count"], *(row[n] for n in names)) for row in found}


def without_version(name):
    """The name of a call without the version of its API."""
    return name.rpartition("_v")[0] if name.rpartition("_v")[2].isdecimal() else name


def test_sums_of_kernels_and_calls_are_those_of_the_sqlite_rows():
    kernels = totals((name, end - start) for name, start, end, *_ in rows(TWO_GPUS, KERNELS))
    assert given(recipe("cuda_gpu_kern_sum", TWO_GPUS), "name") == kernels
    calls = totals((without_version(name), end - start) for name, start, end, *_ in rows(TWO_GPUS, CALLS))
    assert given(recipe("cuda_api_sum", TWO_GPUS), "name") == calls
    assert (len(kernels), len(calls)) > (10, 10)


def test_sums_by_grid_and_block_are_those_of_the_sqlite_rows():
    sizes = "gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ"
    launched = rows(TWO_GPUS, KERNELS.replace("k.correlationId", f"k.{sizes}"))
    kernels = totals(((name, *row[:6]), end - start) for name, start, end, *row in launched)
    found = recipe("cuda_gpu_kern_gb_sum", TWO_GPUS)
    keyed = [{**row, "key": (row["name"], *json.loads(row["grid"]), *json.loads(row["block"]))} for row in found]
    assert given(keyed, "key") == kernels
    assert len(kernels) > len(recipe("cuda_gpu_kern_sum", TWO_GPUS)) > 10


def test_execution_of_kernels_is_that_of_the_sqlite_rows():
    launches = {(row[3], row[4] >> 24): row for row in rows(TWO_GPUS, CALLS)}
    expected, queued = Counter(), Counter()
    for name, start, end, correlation, pid, device, _ in rows(TWO_GPUS, KERNELS):
        if (correlation, pid >> 24) not in launches:
            continue
        api, began, returned, *_ = launches[correlation, pid >> 24]
        key = device, without_version(api), name
        expected[(*key, "count")] += 1
        expected[(*key, "total")] += max(returned, end) - began
        queued[key] += start > returned
    found = recipe("cuda_kern_exec_sum", TWO_GPUS)
    for row in found:
        key = row["device"], row["api"], row["kernel"]
        assert row["count"] == expected[(*key, "count")]
        assert row["total_avg_ns"] == pytest.approx(expected[(*key, "total")] / row["count"])
        assert row["queued_count"] == queued[key]
    counts = [count for key, count in expected.items() if key[-1] == "count"]
    assert sum(row["count"] for row in found) == sum(counts) > 3900


@pytest.mark.parametrize("name", HOST)
def test_osrt_sum(name):
    path = NSYS / name
    expected = {}
    if has(path, "OSRT_API"):
        # Calls alone, of the processes that are read: helpers of Python's without any range are not.
        processes = {row["pid"] for row in answer("SELECT DISTINCT pid FROM host_ops", path)}
        calls = rows(
            path,
            """SELECT s.value, o.end - o.start, (o.globalTid >> 24) & 0xFFFFFF
            FROM OSRT_API o JOIN StringIds s ON s.id = o.nameId WHERE o.eventClass = 27""",
        )
        expected = totals((call, time) for call, time, pid in calls if pid in processes)
    assert given(recipe("osrt_sum", path), "name") == expected


def has(path, table):
    """Whether an SQLite file has a table."""
    return bool(rows(path, f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"))


# --- nsys itself ----------------------------------------------------------------------------------

SAME = {
    "cuda_gpu_sum": ("Operation", "operation", "Instances"),
    "cuda_api_gpu_sum": ("Operation", "operation", "Instances"),
    "cuda_api_sum": ("Name", "name", "Num Calls"),
    "cuda_gpu_mem_time_sum": ("Operation", "operation", "Count"),
    "osrt_sum": ("Name", "name", "Num Calls"),
    "nvtx_sum": ("Range", "range_name", "Instances"),
}
FILES = {
    "cuda_gpu_sum": TWO_GPUS,
    "cuda_api_gpu_sum": TWO_GPUS,
    "cuda_api_sum": TWO_GPUS,
    "cuda_gpu_mem_time_sum": TWO_GPUS,
    "osrt_sum": NSYS / HOST[1],
    "nvtx_sum": NSYS / HOST[1],
}
NUMBERS = {"Total Time (ns)": "total", "Avg (ns)": "avg", "Med (ns)": "med", "Min (ns)": "min"}
NUMBERS |= {"Max (ns)": "max", "StdDev (ns)": "std"}


def printed_name(name):
    """A name in our words: nsys writes copies as `[CUDA memcpy HtoD]`."""
    if name.startswith("[CUDA mem"):
        return f"M{name[len('[CUDA m') : -1]}"
    return without_version(name)


if nsys_tool.found():  # else not even collected: no parameters would count as a skipped test

    @pytest.mark.parametrize("program", nsys_tool.found(), ids=nsys_tool.version)
    @pytest.mark.parametrize("name", SAME)
    def test_a_recipe_gives_what_the_installed_nsys_prints(name, program, tmp_path):
        title, key, count = SAME[name]
        header, *printed = nsys_tool.stats(program, FILES[name], tmp_path, (name,))[name]
        expected = {}
        for line in printed:
            row = dict(zip(header, line, strict=True))
            numbers = {ours: float(row[theirs]) for theirs, ours in NUMBERS.items()}
            expected[printed_name(row[title])] = {**numbers, "count": int(row[count])}
        found = {}
        for row in recipe(name, FILES[name]):
            numbers = {ours: round(float(row[f"{ours}_ns"]), 1) for ours in NUMBERS.values()}
            found[row[key]] = {**numbers, "count": row["count"]}
        assert set(found) == set(expected)
        assert len(expected) > 2
        for each, numbers in expected.items():
            assert found[each] == pytest.approx(numbers, abs=0.11), each

    @pytest.mark.parametrize("program", nsys_tool.found(), ids=nsys_tool.version)
    def test_sizes_of_copies_are_those_that_the_installed_nsys_prints(program, tmp_path):
        name = "cuda_gpu_mem_size_sum"
        header, *printed = nsys_tool.stats(program, TWO_GPUS, tmp_path, (name,))[name]
        lines = [dict(zip(header, line, strict=True)) for line in printed]
        found = {row["operation"]: row for row in recipe(name, TWO_GPUS)}
        assert {printed_name(line["Operation"]) for line in lines} == set(found)
        for line in lines:
            row = found[printed_name(line["Operation"])]
            assert row["count"] == int(line["Count"])
            assert float(row["total_bytes"]) / 1e6 == pytest.approx(float(line["Total (MB)"]), abs=6e-4)
            assert float(row["max_bytes"]) / 1e6 == pytest.approx(float(line["Max (MB)"]), abs=6e-4)

    @pytest.mark.parametrize("program", nsys_tool.found(), ids=nsys_tool.version)
    def test_kernels_by_grid_and_block_are_those_that_the_installed_nsys_prints(program, tmp_path):
        name = "cuda_gpu_kern_gb_sum"
        header, *printed = nsys_tool.stats(program, TWO_GPUS, tmp_path, (name,))[name]
        lines = [dict(zip(header, line, strict=True)) for line in printed]
        columns = ("GridXYZ", "BlockXYZ"), ("grid", "block")
        theirs, ours = (
            {
                (row[title], *(tuple(map(int, re.findall(r"\d+", row[size]))) for size in sizes)): (
                    int(row[count]),
                    int(row[total]),
                )
                for row in table
            }
            for table, title, sizes, count, total in (
                (lines, "Name", columns[0], "Instances", "Total Time (ns)"),
                (recipe(name, TWO_GPUS), "name", columns[1], "count", "total_ns"),
            )
        )
        assert ours == theirs
        assert len(ours) > 10
