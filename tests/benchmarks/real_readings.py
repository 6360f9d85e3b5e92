"""Does `tracekit analyze` say of real profiles what somebody reads from their raw rows?

    python tests/benchmarks/real_readings.py [FOLDER] [--only WORD]

FOLDER holds `data/` and `more/` (by default, what lies beside `TRACEKIT_REAL_DATA`). Window, shares of the GPU's time,
the class of kernels with most time and the largest idle time with what the host was in are read here from the rows
themselves, by json, sqlite3 and sorted lists; nothing of tracekit is imported. `READINGS` holds what a person said of
each profile: which cause comes first, where, and why. The exit status is 1 where one line fails.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

WITHIN = 0.01
"""By how much a headline may differ: of a length relatively, of a share absolutely."""


@dataclass(frozen=True)
class Reading:
    """What a person read of a profile: which steps count (none: the whole capture), the first cause and its place."""

    path: str
    steps: tuple[int, ...]
    rule: str
    place: str
    why: str
    begin: str = ""
    """Where a capture begins, unless with its first row and to its last: `device`, from the first device op to the last;
    `own`, where the device comes to what was launched in the capture."""
    argued: tuple[str, str] = ("", "")
    """(a difference as it is printed, or its beginning; why it is none)."""


HTA, LENS = "data/chrome/hta/", "data/chrome/tracelens/"
MORE, NSYS = "more/chrome/", "data/nsys/"
RESNET = "data/chrome/kineto_tb_plugin/samples/resnet50_num_workers_"
READINGS = (
    Reading(HTA + "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", (103, 104, 105), "no-tensor-cores", "convolutions",
            "V100, float32: scudnn and sgemm kernels take 60 % of a GPU that is never idle; the host ran ahead in 101 and 102"),
    Reading(HTA + "nccl_parser_config/nccl_data.json.gz", (5, 6), "launch-bound", "forward",
            "kernels of 43 µs, the GPU idle between them while the host is in ops of the forward pass"),
    Reading(HTA + "trace_diff/control/control.json.gz", tuple(range(1010, 1015)), "exposed-communication", "forward",
            "all-to-all alone for 20 % of the step, most while the host is in forward; idle is 15 %"),
    Reading(HTA + "negative_queue_length_values_check/rank0.json.gz", (551, 552, 553, 554), "low-gpu-utilization", "after a launch had returned",
            "63 of the 64 % in which the GPU idles come after the launch of what follows, 12 to 176 ms ahead: not the host"),
    Reading(HTA + "trace_filter/sampled_rank-0.json.gz", (551, 552), "low-gpu-utilization", "after a launch had returned",
            "idle 55 %, of which 32 % come after the launch; the file holds a sample of the rows"),
    Reading(RESNET + "0/worker0.1623143089861.pt.trace.json.gz", tuple(range(6, 11)), "data-loader-wait", "40 %",
            "the host is in the loader's __next__ for 40 % of the step, with no worker",
            argued=("in the largest idle time (62.34 ms) the host is in {('data loader', 'aten::copy_')}",
                    "the table says what it was in halfway: the copy of a batch inside the loader")),
    Reading(RESNET + "0/worker0.1623143566756.pt.trace.json.gz", tuple(range(17, 22)), "no-tensor-cores", "convolutions",
            "float32 on V100 takes 63 % of the GPU's work; the loader, 30 % of the step, partly hides behind it"),
    Reading(RESNET + "4/worker0.1623212756351.pt.trace.json.gz", tuple(range(6, 11)), "no-tensor-cores", "convolutions",
            "four workers: the loader is hidden, float32 on V100 remains"),
    Reading(LENS + "b200/eager_trace.json.gz", (), "launch-bound", "gpt_oss.py:276",
            "694 kernels of 12.6 µs in 87 ms, launched one by one under forward"),
    Reading(LENS + "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", (6,), "layout-copies", "",
            "busy 91 %; 2.77 ms of copies by contiguous(), summed from the raw rows; a quarter of the GPU's time was launched before the recording"),
    Reading(LENS + "h100/gaunernst_bert-small-uncased__1016001.json.gz", (6,), "launch-bound", "modeling_bert.py",
            "60 kernels of 5 µs in 4.4 ms"),
    Reading(LENS + "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", (6,), "layout-copies", "",
            "as on H100: busy 91 %, 1.45 ms of copies by contiguous(), a quarter launched before the recording"),
    Reading(LENS + "mi210/gpu_only_trace/gpu_only_trace.json.gz", (), "", "",
            "busy 89 %, gaps of a few µs: nothing to name", "device"),
    Reading(LENS + "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz", (), "low-gpu-utilization", "hipMemcpyWithStream",
            "463 of 474 ms in one blocking copy"),
    Reading(LENS + "inference/vllm_decode_full/graph_execution.json.gz", (), "", "", "one graph, the GPU is never idle", "device"),
    Reading(LENS + "torch_compile_triton/trace.json.gz", (), "", "", "busy 97 %"),
    Reading(HTA + "critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz", (), "low-gpu-utilization", "first calls",
            "41 s in which the driver starts and loads code, 0.05 s of work"),
    Reading(MORE + "tracelens/inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", (), "low-gpu-utilization", "hipMemcpyWithStream",
            "half of 987 ms in one blocking copy to the device"),
    Reading(MORE + "tracelens/inference/vllm_prefilldecode_piecewise/graph_execution.json.gz", (), "", "", "the GPU is never idle", "device"),
    Reading(MORE + "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz", (6,), "data-loader-wait", "pt_utils.py",
            "the GPU waits half of the step for the processing of images inside the loader, in this process"),
    Reading(MORE + "hta/df_index_resolver/df_index_resolver.json.gz", (3, 4, 5, 6), "launch-bound", "3,470 kernels of 35.8 µs on average one by one, most in CompiledFunctionBackward",
            "of 145 ms idle a step 107 are gaps below 1 ms that end with a launch made in them, 6 of those in Optimizer.step; the host is in the compiled backward for 77"),
    Reading(MORE + "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz", (100,), "low-gpu-utilization", "aten::empty",
            "a toy: 2.2 of 3.2 ms in the first allocation, four kernels"),
    Reading(NSYS + "GindaChen_nsys-ai/mfu_2gpu_before.sqlite", (), "", "", "two GPUs busy 90 %; gaps of 10 µs to 4 ms without one cause", "own"),
    Reading(NSYS + "GindaChen_nsys-ai/mfu_2gpu_after.sqlite", (), "", "",
            "one capture: that rank 0 comes later (13.6 ms, of which one cudaMemsetAsync 4.4) cannot be told from chance"),
    Reading(NSYS + "GindaChen_nsys-ai/healthy_1pct.sqlite", (), "", "", "busy 99 %", "device"),
    Reading(NSYS + "frasertajima_WeatherBench2/report1.sqlite", (), "low-gpu-utilization", "cudaFree",
            "119 of 131 ms in cudaFree, which starts the runtime; the work is one copy"),
)  # fmt: skip


@dataclass
class Rows:
    """The rows of a profile, all times in ns: device ops (start, end, name, kind, device, launch), host rows
    (start, end, name, thread), launches (start, end, thread) by number, and steps (start, end) by theirs.
    """

    ops: list[tuple[int, int, str, str, Any, Any]] = field(default_factory=list)
    host: list[tuple[int, int, str, Any]] = field(default_factory=list)
    launches: dict[Any, tuple[int, int, Any]] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)


DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
    "memcpy": "copy",
    "memset": "fill",
}
LAUNCHING = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")


def chrome(path: Path) -> Rows:
    """The rows of a trace of torch.profiler."""
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    rows = Rows()
    for event in events:
        if event.get("ph") != "X" or event.get("cat") in (None, "Trace", "gpu_user_annotation"):
            continue
        start = int(event["ts"] * 1000)
        end = start + int(event.get("dur", 0) * 1000)
        name, args, category = event["name"], event.get("args", {}), event["cat"].lower()
        if category in DEVICE:
            kind = DEVICE[category]
            rows.ops.append((start, end, name, kind, args.get("device"), args.get("correlation")))
            continue
        thread = event["pid"], event["tid"]
        rows.host.append((start, end, name, thread))
        if category in LAUNCHING and "correlation" in args:
            rows.launches[args["correlation"]] = start, end, thread
        step = re.fullmatch(r"ProfilerStep#(\d+)", name)
        if step:
            rows.steps[int(step[1])] = start, end
    return rows


def nsys(path: Path) -> Rows:
    """The rows of an export of nsys."""
    database = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    tables = {name for (name,) in database.execute("select name from sqlite_master")}
    texts = dict(database.execute("select id, value from StringIds"))
    rows = Rows()
    for kind, name in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "value")):
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        if table in tables:
            what = {"KERNEL": "kernel", "MEMCPY": "copy", "MEMSET": "fill"}[kind]
            columns = {column[1] for column in database.execute(f"pragma table_info({table})")}
            owner = "globalPid" if "globalPid" in columns else "0"
            query = f"select start, end, {name}, deviceId, correlationId, {owner} from {table}"
            for start, end, text, device, launch, process in database.execute(query):
                key = process >> 24, launch
                rows.ops.append((start, end, texts.get(text, what), what, device, key))
    for start, end, name, thread, launch in database.execute(
        "select start, end, nameId, globalTid, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        rows.host.append((start, end, re.sub(r"_v\d+$", "", texts[name]), thread))
        rows.launches[thread >> 24, launch] = start, end, thread
    if "NVTX_EVENTS" in tables:
        query = (
            "select start, end, coalesce(text, ''), globalTid from NVTX_EVENTS where end > start"
        )
        rows.host += database.execute(query)
    return rows


def union(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time in parts that do not touch, in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def inside(parts: list[tuple[int, int]], windows: list[tuple[int, int]]) -> int:
    """How much of the windows the parts, which do not touch, cover."""
    return sum(
        max(0, min(end, until) - max(start, begin))
        for begin, until in windows
        for start, end in parts
    )


COMMUNICATION = re.compile(r"nccl|rccl|multimem_all_reduce", re.IGNORECASE)
CLASSES = (
    ("communication", COMMUNICATION),
    ("attention", re.compile(r"flash|fmha|attention", re.IGNORECASE)),
    ("convolution", re.compile(r"scudnn|conv|wgrad|dgrad|winograd", re.IGNORECASE)),
    ("matmul", re.compile(r"gemm|gemv|Cijk|matmul|cutlass|moe|nvjet", re.IGNORECASE)),
    ("norm", re.compile(r"norm|bn_", re.IGNORECASE)),
    ("copy", re.compile(r"memcpy|^copy$", re.IGNORECASE)),
)


def class_of(name: str) -> str:
    """The class of a device op by its name; most others are element by element."""
    return next((kind for kind, pattern in CLASSES if pattern.search(name)), "other")


def windows_of(rows: Rows, reading: Reading) -> list[tuple[int, int]]:
    """The steps that count, or the capture."""
    if reading.steps:
        return [rows.steps[number] for number in reading.steps]
    parts = rows.ops if reading.begin == "device" else [*rows.ops, *rows.host]
    starts = parts
    if reading.begin == "own":
        starts = [op for op in rows.ops if op[5] in rows.launches]
    return [(min(part[0] for part in starts), max(part[1] for part in parts))]


def shares_of(rows: Rows, windows: list[tuple[int, int]]) -> dict[str, float]:
    """Compute, communication that nothing computes beside, copies that neither hides, and idle: shares of the windows."""
    whole = sum(end - start for start, end in windows)
    shares: Counter[str] = Counter()
    devices = {op[4] for op in rows.ops}
    for device in devices:
        of_device = [op for op in rows.ops if op[4] == device]
        reached, below = [], 0
        for name in ("compute", "exposed_comm", "copy"):
            reached += [(op[0], op[1]) for op in of_device if kind_of(op) == name]
            covered = inside(union(reached), windows)
            shares[name] += (covered - below) / whole / len(devices)
            below = covered
        busy = inside(union([(op[0], op[1]) for op in of_device]), windows)
        shares["idle"] += 1 / len(devices) - busy / whole / len(devices)
    return dict(shares)


def kind_of(op: tuple[Any, ...]) -> str:
    """What a device op counts as."""
    if op[3] != "kernel":
        return op[3]
    return "exposed_comm" if COMMUNICATION.search(op[2]) else "compute"


def largest_gap(rows: Rows, windows: list[tuple[int, int]]) -> tuple[int, int, set[str]]:
    """(start and end of the longest time within a window in which a device does nothing, what the host was in then).

    The host's thread is the one that launched what came next; what it was in for most of the time, and all around that.
    Empty where that launch had returned before: then it was not the host.
    """
    longest, after = (0, 0), None
    for device in {op[4] for op in rows.ops}:
        ops = sorted((op for op in rows.ops if op[4] == device), key=lambda op: op[0])
        for begin, until in windows:
            reached = begin
            for op in ops:
                if op[1] <= begin:
                    continue
                if op[0] >= until:
                    break
                if op[0] - reached > longest[1] - longest[0]:
                    longest, after = (reached, op[0]), op
                reached = max(reached, op[1])
            if until - reached > longest[1] - longest[0]:
                longest, after = (reached, until), None
    start, end = longest
    launch = rows.launches.get(after[5]) if after else None
    if launch is None or launch[1] <= start:
        return start, end, set()
    return start, end, host_in(rows, launch[2], start, end)


def host_in(rows: Rows, thread: Any, start: int, end: int) -> set[str]:
    """The names of what a thread was in, for most of this time in its deepest row, and of what that was in."""
    on_thread = [row for row in rows.host if row[3] == thread and row[0] < end and row[1] > start]
    edges = sorted(
        {start, end, *(edge for row in on_thread for edge in row[:2] if start < edge < end)}
    )
    time: Counter[tuple[int, int, str, Any]] = Counter()
    for begin, until in itertools.pairwise(edges):
        around = [row for row in on_thread if row[0] <= begin and row[1] >= until]
        if around:
            deepest = max(around, key=lambda row: (row[0], -row[1]))
            time[deepest] += until - begin
    if 2 * sum(time.values()) < end - start:
        return set()
    (deepest, _), *_ = time.most_common(1)
    return {
        row[2].partition(", seq = ")[0]
        for row in on_thread
        if row[0] <= deepest[0] and row[1] >= deepest[1]
    }


def reported(path: Path) -> dict[str, Any]:
    """What the command says, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "tracekit",
            "analyze",
            "--no-cache",
            "-q",
            str(path),
            "-o",
            str(file),
        ]
        subprocess.run(command, check=True, capture_output=True)
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report


def sheet(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a table of the report."""
    for section in report["sections"]:
        for table in section["sheets"]:
            if table["name"] == name:
                names = [heading["name"] for heading in table["headings"]]
                return [dict(zip(names, row, strict=True)) for row in table["rows"]]
    return []


def first_cause(report: dict[str, Any]) -> tuple[str, str]:
    """(rule, all that is said) of the finding that stands first; nothing where there is none."""
    rank = {"high": 0, "medium": 1, "low": 2, "info": 3}
    findings = [finding for section in report["sections"] for finding in section["findings"]]
    findings.sort(key=lambda f: (-(f["recoverable_ns"] or 0), rank[f["severity"]]))
    if not findings:
        return "", ""
    return findings[0]["rule"], findings[0]["claim"]


def misses(reading: Reading, rows: Rows, report: dict[str, Any]) -> list[str]:
    """What the report says otherwise than the rows, or the reader."""
    windows = windows_of(rows, reading)
    wall = sum(end - start for start, end in windows) / len(windows)
    headline = {metric["name"]: metric["value"] for metric in report["headline"]}
    wrong = []
    if abs(headline["step_wall"] / wall - 1) > WITHIN:
        wrong.append(f"window {headline['step_wall'] / 1e6:.2f} ms, not {wall / 1e6:.2f}")
    for name, share in shares_of(rows, windows).items():
        if abs((headline[f"{name}_ratio"] or 0) - share) > WITHIN:
            wrong.append(f"{name} {headline[f'{name}_ratio']:.1%}, not {share:.1%}")
    time: Counter[str] = Counter()
    for start, end, name, *_ in rows.ops:
        time[class_of(name)] += end - start
    of_report: Counter[str] = Counter()
    for row in sheet(report, "kernels"):
        of_report[class_of(row["name"])] += row["total_ns"]
    if of_report.most_common(1)[0][0] != time.most_common(1)[0][0]:
        wrong.append(
            f"most time in {of_report.most_common(1)[0][0]}, not {time.most_common(1)[0][0]}"
        )
    wrong += gap_misses(rows, windows, report)
    wrong += launched_misses(rows, report)
    rule, claim = first_cause(report)
    if rule != reading.rule or reading.place not in claim:
        wrong.append(
            f"first is {rule or 'nothing'} ({claim}), not {reading.rule or 'nothing'} ({reading.place})"
        )
    return wrong


NO_HOST = (
    "other",
    "stream wait",
    "start-up",
    "launch unknown",
    "after the last op",
    "between ops",
    "host silent",
)


def gap_misses(rows: Rows, windows: list[tuple[int, int]], report: dict[str, Any]) -> list[str]:
    """What the report says otherwise of the largest idle time."""
    start, end, names = largest_gap(rows, windows)
    length = end - start
    if length < WITHIN * sum(end - start for start, end in windows):
        return []
    alike = [
        row for row in sheet(report, "idle_gaps") if abs(row["dur_ns"] - length) <= WITHIN * length
    ]
    if not alike:
        return [f"no idle time of {length / 1e6:.2f} ms"]
    cells = {(row["why"], row.get("host")) for row in alike}
    if any(host in names if host else (not names and why in NO_HOST) for why, host in cells):
        return []
    return [
        f"in the largest idle time ({length / 1e6:.2f} ms) the host is in {cells}, not {sorted(names)}"
    ]


ONCE_LAUNCHED = ("kernel_wait", "other", "sync")


def idle_once_launched(rows: Rows) -> tuple[int, int]:
    """(ns in which devices do nothing though the launch of what comes next has begun, ns of all windows).

    The window of a device is from its first op to its last; an op of unknown launch was not launched.
    """
    launched = whole = 0
    for device in {op[4] for op in rows.ops}:
        ops = sorted((op for op in rows.ops if op[4] == device), key=lambda op: op[0])
        reached = ops[0][0]
        for op in ops:
            launch = rows.launches.get(op[5])
            if launch is not None and op[0] > reached:
                launched += op[0] - min(op[0], max(reached, launch[0]))
            reached = max(reached, op[1])
        whole += reached - ops[0][0]
    return launched, whole


def launched_misses(rows: Rows, report: dict[str, Any]) -> list[str]:
    """What the report says otherwise of the idle time that the host has no part in."""
    if not rows.launches:
        return []
    launched, whole = idle_once_launched(rows)
    said = sum(
        row["window_ns"] * sum(row.get(name) or 0 for name in ONCE_LAUNCHED)
        for row in sheet(report, "idle_causes")
        if row["stage"].startswith("(first to last")
    )
    if abs(said - launched) <= WITHIN * whole:
        return []
    return [f"idle once launched {said / whole:.1%}, not {launched / whole:.1%}"]


def main() -> int:
    """1 where a profile fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(os.environ.get("TRACEKIT_REAL_DATA", ".")).parent,
    )
    parser.add_argument("--only", default="", help="only paths with this in them")
    options = parser.parse_args()
    failed = 0
    for reading in READINGS:
        if options.only not in reading.path:
            continue
        path = options.folder / reading.path
        rows = nsys(path) if path.suffix == ".sqlite" else chrome(path)
        differences = misses(reading, rows, reported(path))
        text, reason = reading.argued
        wrong = [each for each in differences if not text or not each.startswith(text)]
        failed += bool(wrong)
        windows = windows_of(rows, reading)
        shares = ", ".join(
            f"{name} {share:.1%}" for name, share in shares_of(rows, windows).items()
        )
        wall = sum(end - start for start, end in windows) / len(windows) / 1e6
        print(f"{'FAIL' if wrong else 'ok':5}{path.name[:44]:45}{wall:10.2f} ms  {shares}")
        print(f"     first: {reading.rule or 'nothing'} {reading.place} — {reading.why}")
        for each in differences:
            print(f"     WRONG: {each}" if each in wrong else f"     argued: {each}: {reason}")
    print(f"{failed} of {len(READINGS)} fail")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
