"""Measures tracekit against `nsys stats` on an export of two million kernels, and prints a table of ratios.

    python tests/benchmarks/nsys_run.py [--nsys PROGRAM] [--folder FOLDER] [--rounds 3]

The export (0.8 GB, `nsys_replicated.py`) is made in FOLDER first if it is missing, and nsys gets a copy
of its own: it may write to what it reads. Whole processes are compared, imports included; candidates
take turns, and each counts with its fastest run. A report of nsys that takes longer than the limit is
stopped, and the limit stands for it: a lower bound. Exit status 1: a required ratio was missed, a run
failed, or the two counted kernels differently.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import make_traces
import nsys_replicated
from bench_runs import Bench, Run, children_cpu, figures_of
from ratio_table import Row, disturbed, markdown, ratio_of, text_of

HERE = Path(__file__).resolve().parent

KERNELS = "cuda_gpu_kern_sum"
REPORTS = (KERNELS, "cuda_api_sum", "nvtx_sum", "nvtx_gpu_proj_sum")
BEFORE_2023 = {
    KERNELS: "gpukernsum",
    "cuda_api_sum": "cudaapisum",
    "nvtx_sum": "nvtxsum",
    "nvtx_gpu_proj_sum": "nvtxgpuproj",
}
"""What the reports were called before they got the names by which they are known here."""
SLOW_REPORT = "nvtx_gpu_proj_sum"
LIMIT_S = 600
MOST_MB = 250
OURS, EVERYTHING = "kernels", "analyze"


@cache
def name_of(report: str, program: Path) -> str:
    """What this nsys calls a report."""
    command = [str(program), "stats", "--help-reports"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    is_new = re.search(rf"^ *{report}\b", done.stdout + done.stderr, re.MULTILINE) is not None
    return report if is_new else BEFORE_2023[report]


def report_of_nsys(program: Path, report: str, export: Path, folder: Path) -> tuple[dict, str]:
    """(seconds and CPU seconds of one report of nsys, and what it counted; its error)."""
    prefix, name = folder / "figures", name_of(report, program)
    command = [program, "stats", "-q", "-r", name, "--format", "csv", "--output", prefix, export]
    start, before = time.perf_counter(), children_cpu()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {"process_seconds": float(LIMIT_S), "stopped": True}, ""
    seconds, cpu = time.perf_counter() - start, children_cpu() - before
    figures = {"process_seconds": round(seconds, 3), "process_cpu": round(cpu, 3)}
    written = folder / f"{prefix.name}_{name}.csv"
    if not written.exists():  # its exit status is 0 whatever happens
        return {}, said.decode(errors="replace").strip() or "nsys printed nothing"
    with written.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    written.unlink()
    if report == KERNELS:
        figures["kernels"] = sum(int(row["Instances"]) for row in rows)
        figures["kernel_ns"] = sum(int(row["Total Time (ns)"]) for row in rows)
    return figures, ""


def measure_all(bench: Bench, program: Path, export: Path, copy: Path, rounds: int) -> None:
    """Let all candidates take turns; the slow ones run once."""
    cli = Path(sys.executable).with_name("tracekit")
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        for number in range(rounds):
            for report in REPORTS:
                if report != SLOW_REPORT or number == 0:
                    figures, error = report_of_nsys(program, report, copy, Path(folder))
                    note(bench, Run(report, export.stem, number, figures, error))
                question = [sys.executable, HERE / "nsys_questions.py", export]
                if report == KERNELS:
                    note(bench, Run(OURS, export.stem, number, *figures_of(question)))
            if number == 0:
                everything = [cli, "analyze", export, "-o", Path(folder) / "report.json"]
                note(bench, Run(EVERYTHING, export.stem, number, *figures_of(everything)))


def note(bench: Bench, run: Run) -> None:
    """Keep a run and say on standard error how it went."""
    bench.runs.append(run)
    told = run.error or json.dumps(run.figures)
    print(f"round {run.round + 1}  {run.candidate:18} {told}", file=sys.stderr, flush=True)


def rows_of(bench: Bench, export: str) -> list[Row]:
    """What is claimed: the kernels alone, their memory, and every question."""

    def times(candidate: str, figure: str) -> float | None:
        return bench.best(candidate, export, figure)

    def row(claim: str, against: str, ours: str, reports: tuple[str, ...]) -> Row:
        sums = []
        for figure in ("process_seconds", "process_cpu"):
            theirs = [times(report, figure) for report in reports]
            known = [each for each in theirs if each is not None]
            sums.append([times(ours, figure), sum(known) if len(known) == len(theirs) else None])
        (mine, peer), cpu = sums
        # Of what was stopped, or works on all cores, only the wall time can be compared.
        cpu_ratio = ratio_of(cpu) if ours == OURS else None
        runs = [len(bench.values(each, export, "process_seconds")) for each in (ours, *reports)]
        told = (text_of(mine, "s"), text_of(peer, "s"), ratio_of([mine, peer]), 1.0)
        counts = " / ".join(map(str, runs))
        return Row(
            claim,
            against,
            export,
            *told,
            counts,
            cpu_ratio=cpu_ratio,
            disturbed=disturbed([mine, peer], cpu) and cpu_ratio is not None,
        )

    peaks = bench.values(OURS, export, "peak_mb_net_of_imports")
    peak = max(peaks, default=None)
    memory = Row(
        "kernels alone: peak memory net of imports",
        f"{MOST_MB} MB",
        export,
        text_of(peak, "MB"),
        f"{MOST_MB} MB",
        peak / MOST_MB if peak else None,
        1.0,
        str(len(peaks)),
        at_least=False,
    )
    stopped = [run.candidate for run in bench.runs if run.figures.get("stopped")]
    told = "sum of four reports" + (f" ({', '.join(stopped)} stopped)" if stopped else "")
    return [
        row("kernels alone, whole process", f"nsys stats -r {KERNELS}", OURS, (KERNELS,)),
        memory,
        row("tracekit analyze, whole process", told, EVERYTHING, REPORTS),
    ]


def main() -> int:
    """Exit status: 0 if all that was measured holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsys", type=Path, default=shutil.which("nsys"))
    parser.add_argument("--folder", type=Path, default=make_traces.BENCH_DATA)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=nsys_replicated.COPIES)
    options = parser.parse_args()
    if options.nsys is None:
        parser.error("no nsys on the PATH: name one with --nsys")
    name = f"nsys{options.copies}"
    export = nsys_replicated.build(options.folder / f"{name}.sqlite", options.copies)
    bench = Bench()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        copy = Path(folder) / export.name
        shutil.copyfile(export, copy)
        measure_all(bench, options.nsys, export, copy, options.rounds)

    rows = rows_of(bench, name)
    told = subprocess.run([options.nsys, "--version"], capture_output=True, text=True, check=False)
    print(f"{markdown(rows)}\n\n- {told.stdout.strip()}; load average {os.getloadavg()[0]:.1f}.")
    counted = {(run.figures["kernels"], run.figures["kernel_ns"]) for run in bench.runs if "kernels" in run.figures}
    if len(counted) > 1:
        print(f"- The two counted differently: {sorted(counted)}.")
    failed = [run for run in bench.runs if run.error]
    missed = [row for row in rows if "pass" not in row.verdict]
    return int(bool(missed or failed) or len(counted) != 1)


if __name__ == "__main__":
    sys.exit(main())
