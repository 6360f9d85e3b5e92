"""The table of ratios: what is claimed of the runs, how far each claim holds, and what to know of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import make_traces
import peers
from bench_runs import (
    HTA_DEFAULT,
    MANY_FILES,
    MANY_FILES_INPUT,
    WHOLE_PROCESS_MB,
    Bench,
    best_backend,
)

EXACT_READERS = {
    "load",
    "load-pure",
    "scan-gz",
    "scan-raw",
    "scan-pure",
    "orjson",
    "simdjson",
}
"""Must find the same kernels. HTA leaves out the last step and rounds, Perfetto drops overlapping slices."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `limit` None: reported, not required; `at_least` False: an upper limit."""

    claim: str
    input: str
    ours: str
    peer: str
    ratio: float | None
    limit: float | None
    n: str
    at_least: bool = True

    @property
    def margin(self) -> float | None:
        """How far beyond the limit: 1.25 is a quarter better than required."""
        if not self.ratio or self.limit is None:
            return None
        return self.ratio / self.limit if self.at_least else self.limit / self.ratio

    @property
    def verdict(self) -> str:
        """Whether the claim holds, or why that cannot be said."""
        if self.limit is None:
            return "for information"
        if self.margin is None:
            return "not measured"
        return "pass" if self.margin >= 1 else "MISSED"


def text_of(value: float | None, unit: str) -> str:
    """A figure with three digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _counts(bench: Bench, *measured: tuple[str, str, str]) -> str:
    """The numbers of runs behind the figures of a row."""
    return " / ".join(str(len(bench.values(*each))) for each in measured)


def compared(
    bench: Bench, claim: str, trace: str, pair: tuple[str, str], figure: str = "seconds"
) -> tuple[str, str, str, str, float | None, float | None, str]:
    """The cells of a row on (candidate, peer), with both figures: the fastest run of each."""
    mine, theirs = (bench.best(candidate, trace, figure) for candidate in pair)
    n = _counts(bench, *((candidate, trace, figure) for candidate in pair))
    return claim, trace, text_of(mine, "s"), text_of(theirs, "s"), mine, theirs, n


def faster(
    bench: Bench,
    claim: str,
    trace: str,
    pair: tuple[str, str],
    limit: float | None,
    figure: str = "seconds",
) -> Row:
    """How many times faster than the peer; `limit` at least."""
    claim, trace, ours, peer, mine, theirs, n = compared(bench, claim, trace, pair, figure)
    return Row(claim, trace, ours, peer, theirs / mine if mine and theirs else None, limit, n)


def at_most(bench: Bench, claim: str, trace: str, pair: tuple[str, str], limit: float) -> Row:
    """The time as a multiple of that of a peer that does less; `limit` at most."""
    claim, trace, ours, peer, mine, theirs, n = compared(bench, claim, trace, pair)
    ratio = mine / theirs if mine and theirs else None
    return Row(claim, trace, ours, peer, ratio, limit, n, at_least=False)


def size_mb_of(trace: str) -> float:
    """The size of a trace's JSON in MB, 0 if it has not been made."""
    path = make_traces.BENCH_DATA / f"{trace}.json"
    return path.stat().st_size / 1e6 if path.exists() else 0.0


def smaller(bench: Bench, claim: str, trace: str, candidate: str, limit: float) -> Row:
    """Peak memory as a multiple of the JSON's size, `limit` at most; the largest of all runs counts."""
    figure = "peak_mb_net_of_imports"
    mine = max(bench.values(candidate, trace, figure), default=None)
    size_mb = size_mb_of(trace)
    ratio = mine / size_mb if mine and size_mb else None
    n = _counts(bench, (candidate, trace, figure))
    ours, peer = text_of(mine, "MB"), text_of(size_mb, "MB")
    return Row(claim, trace, ours, peer, ratio, limit, n, at_least=False)


def rows_of_trace(bench: Bench, trace: str, size_mb: int) -> Iterator[Row]:
    """What is claimed of a trace; nothing is required below 200 MB."""

    def required(limit: float) -> float | None:
        return limit if size_mb >= 200 else None

    best, question = best_backend(bench, trace), "load + GPU breakdown + kernel summary"
    name = best.removeprefix("hta-")
    for peer, told, limit in (
        (HTA_DEFAULT, "HTA default", required(40)),
        (best, f"HTA's best ({name})", required(20)),
        ("perfetto", "Perfetto (WASM)", required(6)),
        ("orjson", "orjson + pandas", None),
    ):
        yield faster(bench, f"{question}, {told}", trace, ("load", peer), limit)
    if size_mb >= 200:
        claim = ".gz to columns, zlib inflate alone"
        yield at_most(bench, claim, trace, ("scan-gz", "zlib"), 1.4)
        claim = "raw scan, simdjson On-Demand"
        yield faster(bench, claim, trace, ("scan-raw", "simdjson"), 2)
        yield smaller(bench, "peak memory of the scan of .gz, JSON size", trace, "scan-gz", 0.5)
        yield smaller(bench, "peak memory of the raw scan, JSON size", trace, "scan-raw", 0.5)
        yield smaller(bench, "peak memory with frames, JSON size", trace, "load", 0.8)
    if size_mb == 200:
        claim = f"pure Python: {question}, HTA default"
        yield faster(bench, claim, trace, ("load-pure", HTA_DEFAULT), 3)
        claim = "pure Python: peak memory of the scan, JSON size"
        yield smaller(bench, claim, trace, "scan-pure", 0.6)


def row_of_scaling(bench: Bench, letter: str) -> Row:
    """Whether a file five times as large takes about five times as long."""
    traces = (f"{letter}1000", f"{letter}200")
    seconds = [bench.best("load", trace) for trace in traces]
    large, small = (
        size_mb_of(trace) / taken if taken else None
        for trace, taken in zip(traces, seconds, strict=True)
    )
    n = _counts(bench, *(("load", trace, "seconds") for trace in traces))
    ours, peer = text_of(large, "MB/s"), text_of(small, "MB/s")
    ratio = large / small if large and small else None
    return Row("speed at 1 GB, speed at 200 MB", f"{letter}1000", ours, peer, ratio, 0.7, n)


def rows_of_processes(bench: Bench) -> Iterator[Row]:
    """What is claimed of whole processes, imports included, and of many files."""
    wall = "process_seconds"
    for letter in make_traces.SOURCES:
        trace = f"{letter}{WHOLE_PROCESS_MB}"
        pair = ("load", best_backend(bench, trace))
        yield faster(bench, "whole process, HTA's best", trace, pair, 3, wall)
    for claim, pair, limit, figure in (
        ("two cores, one core", ("ranks-2", "ranks-1"), 1.5, "seconds"),
        ("two cores, HTA on two", ("ranks-2", "ranks-hta"), 20, "seconds"),
        ("`tracekit analyze -j 2`, `-j 1`", ("analyze-2", "analyze-1"), None, wall),
        ("`tracekit analyze -j 2`, HTA", ("analyze-2", "ranks-hta"), None, wall),
    ):
        claimed = f"{MANY_FILES} files: {claim}"
        yield faster(bench, claimed, MANY_FILES_INPUT, pair, limit, figure)
    mine = bench.best("version", "", "process_cpu")
    n = _counts(bench, ("version", "", "process_cpu"))
    claim = "`tracekit --version`, seconds of CPU"
    yield Row(claim, "–", text_of(mine, "s"), "–", mine, 0.15, n, at_least=False)


def rows_of(bench: Bench, sizes: list[int]) -> list[Row]:
    """The whole table; rows without a single run are left out when only some candidates ran."""
    rows = [
        row
        for size_mb in sizes
        for letter in make_traces.SOURCES
        for row in rows_of_trace(bench, f"{letter}{size_mb}", size_mb)
    ]
    if {200, 1000} <= set(sizes):
        rows += [row_of_scaling(bench, letter) for letter in make_traces.SOURCES]
    rows += rows_of_processes(bench)
    return [row for row in rows if set(row.n.split(" / ")) != {"0"}] if bench.only else rows


def markdown(rows: list[Row]) -> str:
    """The rows as a table; what follows the last comma of a claim is what it is held against."""
    lines = [
        "| claim | against | input | tracekit | peer | ratio | required | margin | n | |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        claim, _, against = row.claim.rpartition(", ")
        sign = "≥" if row.at_least else "≤"
        limit = "–" if row.limit is None else f"{sign} {row.limit:g}"
        margin = "–" if row.margin is None else f"{row.margin:.2f}×"
        ratio = "–" if row.ratio is None else f"{row.ratio:.3g}"
        figures = (row.ours, row.peer, ratio, limit, margin, row.n, row.verdict)
        lines.append("| " + " | ".join((claim, against, row.input, *figures)) + " |")
    return "\n".join(lines)


def disagreements(bench: Bench) -> list[str]:
    """Where exact readers counted or summed the kernels of one trace differently."""
    found: dict[str, dict[tuple[int, int], set[str]]] = {}
    for run in bench.runs:
        if run.candidate in EXACT_READERS and "kernels" in run.figures:
            values = (run.figures["kernels"], run.figures["kernel_ns"])
            found.setdefault(run.input, {}).setdefault(values, set()).add(run.candidate)
    return [f"{trace}: {values}" for trace, values in found.items() if len(values) > 1]


def versions(bench: Bench) -> dict[str, str]:
    """The version of each peer, as it told it itself, and of tracekit and what it stands on."""
    told: dict[str, str] = {}
    for run in bench.runs:
        if "version" in run.figures and run.candidate != "ranks-hta":
            told[run.candidate.partition("-")[0]] = str(run.figures["version"])
    if "perfetto" in told:
        engine = (peers.ENVIRONMENTS / "perfetto" / "version").read_text(encoding="ascii")
        told["perfetto"] = f"{engine} {told['perfetto']}"
    ours = []
    for name in ("tracekit", "isal", "numpy", "pandas"):
        try:
            ours.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return told | {"own environment:": ", ".join(ours)}


def machine() -> str:
    """Cores, processor, memory and interpreter in one line."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = sorted({line.partition(": ")[2] for line in lines if line.startswith("model name")})
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    python = f"Python {platform.python_version()}"
    return (
        f"{len(os.sched_getaffinity(0))} cores of {', '.join(models)}, {memory_gb:.0f} GB, {python}"
    )


def notes_of(bench: Bench, rounds: int) -> list[str]:
    """What one must know to read the table: machine, versions, rounds, failures."""
    told = "; ".join(f"{name} {version}" for name, version in sorted(versions(bench).items()))
    notes = [
        f"Machine: {machine()}.",
        f"{rounds} rounds, candidates in turn; the fastest of n runs (tracekit / peer) counts, of memory the largest.",
        "HTA and orjson run once at 1 GB, HTA's two slower backends once at 200 MB, HTA on many files once.",
        "1 MB = 1e6 bytes; memory is net of imports.",
        f"Versions: {told}.",
    ]
    wrong = disagreements(bench)
    failed = sorted(
        {f"{run.candidate} {run.input}: {run.error}" for run in bench.runs if run.error}
    )
    notes += [f"FAILED: {each}" for each in failed]
    notes += [f"DISAGREE on kernels or their time: {each}" for each in wrong]
    return notes
