"""Summaries of what the reader read equal, digit by digit, what nsys itself prints of the same file.

`tests/data/nsys/nsys_stats.json` holds the printed figures; where an nsys is installed, it is asked again.
"""

import hashlib
import json
import os
import re
from decimal import Decimal
from functools import cache
from pathlib import Path

import nsys_tool
import pandas as pd
import pytest

from tracekit.model.trace import Source, Want
from tracekit.readers import nsys

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

FIGURES = Path(__file__).parents[1] / "data/nsys/nsys_stats.json"
STORED = {
    name: told for name, told in json.loads(FIGURES.read_text(encoding="utf-8"))["files"].items() if told["reports"]
}
ASKED_AGAIN = (
    "GindaChen_nsys-ai/mfu_2gpu_before.sqlite",
    "frasertajima_WeatherBench2/report1.sqlite",
    "real_cpu/spawn_nsys24.sqlite",
)
ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


@cache
def traces_of(name):
    """The Traces of a real export, one a process."""
    path = Path(REAL) / "nsys" / name
    source = Source(path, path.name, "nsys", tool="nsys", size_bytes=path.stat().st_size)
    return nsys.read(source, Want(), lambda _: None)


def of_kernels(trace):
    """(name, grid, block, ns) of every kernel; a whole graph is none to nsys."""
    ops = trace.get_or_empty("device_ops")
    ops = ops[ops["kind"].isin(["kernel", "collective"])]
    ops = ops[~ops["name"].astype(str).str.match(r"CUDA graph \d+$")]
    shape = {key: argument(trace, key, ops) for key in ("grid", "block")}
    return pd.DataFrame({"name": ops["name"].astype(str), **shape, "value": ops["dur_ns"]})


def of_calls(trace):
    """(name, ns) of every call of the CUDA runtime or driver."""
    ops = trace.get_or_empty("host_ops")
    ops = ops[ops["kind"] == "runtime"]
    names = ops["name"].astype(str).map(without_version)
    return pd.DataFrame({"name": names, "value": ops["dur_ns"]})


def of_copies(trace, column):
    """(operation in nsys's words, ns or bytes) of every copy and fill."""
    ops = trace.get_or_empty("device_ops")
    ops = ops[ops["kind"].isin(["memcpy", "memset"])]
    return pd.DataFrame({"name": ops["name"].astype(str).map(operation), "value": ops[column]})


def of_ranges(trace):
    """(`domain:name` as recorded, ns) of every NVTX range, also of those that the capture's end cut off."""
    ops, cut = trace.get_or_empty("host_ops"), trace.get("open_ranges")
    ranges = ops[ops["kind"].isin(["range", "op"])][[*cut.columns]]
    ranges = pd.concat([ranges, cut]) if len(cut) else ranges
    domains = ranges["cat"].astype(str)
    domains = (domains + ":").mask(domains.isin(["nvtx", "cpu_op"]), "")
    names = domains + ranges["name"].astype(str) + torch_tails(trace, ranges)
    return pd.DataFrame({"name": names, "value": ranges["dur_ns"]})


REPORTS = {
    "cuda_gpu_kern_sum": of_kernels,
    "cuda_api_sum": of_calls,
    "cuda_gpu_mem_time_sum": lambda trace: of_copies(trace, "dur_ns"),
    "cuda_gpu_mem_size_sum": lambda trace: of_copies(trace, "size_bytes"),
    "nvtx_sum": of_ranges,
}


def argument(trace, key, ops):
    """The texts of an argument for these rows, empty where there is none."""
    if key not in trace.sparse:
        return pd.Series("", ops.index, dtype=object)
    values = ops["id"].map(trace.arg(key))
    return values.astype(object).where(values.notna(), "").astype(str)


def torch_tails(trace, ranges):
    """What torch adds to the names of its ops, and the reader takes off again, in the form of `with_tail`."""
    tails = pd.Series("", ranges.index, dtype=object)
    for key, word in (("Sequence number", "seq"), ("op_id", "op_id"), ("Input Dims", "sizes")):
        values = argument(trace, key, ranges)
        tails = tails + (f", {word} = " + values.map(without_spaces)).mask(values == "", "")
    return tails


def with_tail(name):
    """A name with its tail, `, seq = 5, op_id = 7, sizes = [[2],[]]`, in that order and without inner spaces."""
    plain = re.split(r", (?:seq|op_id) = \d|, sizes = \[", name, maxsplit=1)[0]
    tail = dict(re.findall(r", (seq|op_id|sizes) = (\d+|\[.*\])", name))
    known = (word for word in ("seq", "op_id", "sizes") if word in tail)
    return plain + "".join(f", {word} = {without_spaces(tail[word])}" for word in known)


def without_spaces(text):
    """A text without spaces."""
    return text.replace(" ", "")


def operation(name):
    """A copy or a fill in nsys's words of 2023 and later: from Kineto's words, or from nsys's older ones."""
    ends = re.search(r"(?:Memcpy |memcpy )(\w)to(\w)\b", name)
    if ends:
        return f"[CUDA memcpy {ENDS[ends[1]]}-to-{ENDS[ends[2]]}]"
    return "[CUDA memset]" if name.startswith("Memset") else name


def without_version(name):
    """The name of an API call without the version of its interface, which nsys removes from some of them."""
    return re.sub(r"_v\d{4,}(_ptsz)?$", "", name)


def figure(number, of, digits):
    """`number / of`, whole numbers, as nsys prints it: halves are rounded up."""
    scaled = (2 * number * 10**digits + of) // (2 * of)
    whole, fraction = divmod(scaled, 10**digits)
    return f"{whole}.{fraction:0{digits}}" if digits else str(whole)


def summary(frame, keys, *, sizes):
    """The rows that nsys would print: share (of times), total, count, mean, median, least, most, deviation, keys."""
    groups = frame.groupby(keys, sort=False)["value"]
    told = groups.agg(["sum", "count", "median", "min", "max", "std"]).fillna({"std": 0})
    unit, digits, of_ones = (1_000_000, 3, 3) if sizes else (1, 1, 0)
    all_of_it = int(told["sum"].sum())
    rows = []
    for key, total, count, median, least, most, deviation in told.itertuples():
        share = [] if sizes else [figure(100 * int(total), all_of_it, 1)]
        ones = [figure(int(each), unit, of_ones) for each in (total, least, most)]
        exact = Decimal(repr(float(deviation))).as_integer_ratio()
        parts = ((int(total), count), (round(2 * median), 2), exact)
        mean, middle, spread = (figure(one, of * unit, digits) for one, of in parts)
        names = (key,) if isinstance(key, str) else key
        rows.append([*share, ones[0], str(count), mean, middle, *ones[1:], spread, *names])
    return rows


def summarised(traces, report, columns):
    """What we say to a report of nsys with these columns: rows in the form in which they are stored."""
    frame = pd.concat([REPORTS[report](trace) for trace in traces], ignore_index=True)
    # nsys 2022 tells launches of one kernel apart by their shape.
    keys = ["grid", "block", "name"] if "GridXYZ" in columns else ["name"]
    rows = summary(frame.dropna(subset="value"), keys, sizes="Total (MB)" in columns)
    return nsys_tool.shown([columns, *rows])[1]


def normal(rows, report, columns):
    """Printed rows with what nsys words differently from version to version in one way."""
    if report == "cuda_api_sum":
        return [[*row[:-1], without_version(row[-1])] for row in rows]
    if report == "nvtx_sum":
        return [[*row[:-1], with_tail(row[-1])] for row in rows]
    if report.startswith("cuda_gpu_mem"):
        return [[*row[:-1], operation(row[-1])] for row in rows]
    if "GridXYZ" in columns:
        return [[*row[:-3], *(str([*map(int, n.split())]) for n in row[-3:-1]), row[-1]] for row in rows]
    return rows


@pytest.mark.parametrize(
    ("name", "report"), [(name, report) for name, told in STORED.items() for report in told["reports"]]
)
def test_a_summary_equals_what_nsys_printed(name, report):
    content = (Path(REAL) / "nsys" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == STORED[name]["sha256"]
    told = STORED[name]["reports"][report]
    expected = normal(told["rows"], report, told["columns"])
    found = summarised(traces_of(name), report, told["columns"])
    if "digest" not in told:
        assert sorted(found) == sorted(expected)
        return
    found_rows = {tuple(row) for row in found}
    assert [row for row in expected if tuple(row) not in found_rows] == []
    assert len(found) == told["row_count"]
    assert nsys_tool.digest_of(found) == told["digest"]


def test_all_five_reports_are_compared_and_most_files_have_one():
    reports = [report for told in STORED.values() for report in told["reports"]]
    assert set(reports) == set(REPORTS) == set(nsys_tool.REPORTS)
    assert len(STORED) == 34
    rows = sum(told["reports"][r]["row_count"] for told in STORED.values() for r in told["reports"])
    assert rows > 35_000


if nsys_tool.found():  # else not even collected: no parameters would count as a skipped test

    @pytest.mark.slow
    @pytest.mark.parametrize("program", nsys_tool.found(), ids=nsys_tool.version)
    @pytest.mark.parametrize("name", ASKED_AGAIN)
    def test_a_summary_equals_what_the_installed_nsys_prints(name, program, tmp_path):
        printed = nsys_tool.stats(program, Path(REAL) / "nsys" / name, tmp_path)
        assert set(printed) == set(STORED[name]["reports"])
        for report, lines in printed.items():
            columns, rows = nsys_tool.shown(lines)
            found = summarised(traces_of(name), report, columns)
            assert sorted(found) == sorted(normal(rows, report, columns)), report
