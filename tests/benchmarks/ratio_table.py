"""The table of ratios: what is claimed of the runs, how far it holds, and what to know of it."""

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
    HTA_USUAL_BEST,
    MANY_FILES,
    MANY_FILES_INPUT,
    QUESTIONS_OF,
    WHOLE_PROCESS_MB,
    Bench,
    best_backend,
)

EXACT_READERS = {"load", "load-pure", "scan-gz", "scan-raw", "scan-pure", "orjson", "simdjson"}
"""Must find the same kernels. HTA leaves out the last step, Perfetto drops overlapping slices."""


QUESTIONS = "load, GPU breakdown, kernel summary"

CALM = 1.2
"""Wall seconds per CPU second up to which a run counts as undisturbed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `limit` None: only reported; `at_least` False: an upper limit.

    `ratio` is of wall times. If the runs behind it were disturbed, the ratio of CPU times counts as
    well, and the worse of the two is judged: a long run finds no quiet moment on a busy machine, a
    short one does, and would look better than it is.
    """

    claim: str
    against: str
    input: str
    ours: str
    peer: str
    ratio: float | None
    limit: float | None
    n: str
    at_least: bool = True
    cpu_ratio: float | None = None
    disturbed: bool = False

    @property
    def judged(self) -> float | None:
        """The ratio that is held against the limit."""
        if self.ratio is None or self.cpu_ratio is None or not self.disturbed:
            return self.ratio
        return (min if self.at_least else max)(self.ratio, self.cpu_ratio)

    @property
    def margin(self) -> float | None:
        """How far beyond the limit: 1.25 is a quarter better than required."""
        if not self.judged or self.limit is None:
            return None
        return self.judged / self.limit if self.at_least else self.limit / self.judged

    @property
    def verdict(self) -> str:
        """Whether the claim holds, or why that cannot be said."""
        if self.limit is None:
            return "for information"
        if self.margin is None:
            return "not measured"
        return ("pass" if self.margin >= 1 else "MISSED") + (" (by CPU)" if self.by_cpu else "")

    @property
    def by_cpu(self) -> bool:
        """Whether the ratio of CPU times was judged instead of wall times."""
        return self.judged != self.ratio


def text_of(value: float | None, unit: str) -> str:
    """A figure with three digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _counts(bench: Bench, *measured: tuple[str, str, str]) -> str:
    """The numbers of runs behind the figures of a row."""
    return " / ".join(str(len(bench.values(*each))) for each in measured)


def compared(
    bench: Bench,
    claim: str,
    against: str,
    trace: str,
    pair: tuple[str, str],
    limit: float | None,
    *,
    at_least: bool = True,
    process: bool = False,
) -> Row:
    """The row of two candidates' fastest runs: peer / tracekit, or inverse if not `at_least`."""
    seconds, cpu = ("process_seconds", "process_cpu") if process else ("seconds", "cpu")
    wall_times = [bench.best(candidate, trace, seconds) for candidate in pair]
    cpu_times = [bench.best(candidate, trace, cpu) for candidate in pair]
    # Workers' CPU time is not all told, and on two cores it is not what one waits for.
    cpu_known = trace != MANY_FILES_INPUT
    return Row(
        claim,
        against,
        trace,
        text_of(wall_times[0], "s"),
        text_of(wall_times[1], "s"),
        ratio_of(wall_times, at_least=at_least),
        limit,
        _counts(bench, *((candidate, trace, seconds) for candidate in pair)),
        at_least,
        ratio_of(cpu_times, at_least=at_least) if cpu_known else None,
        disturbed(wall_times, cpu_times),
    )


def ratio_of(times: list[float | None], *, at_least: bool = True) -> float | None:
    """Of (tracekit, peer): how many times faster tracekit is, or how many times slower."""
    mine, theirs = times
    if not mine or not theirs:
        return None
    return theirs / mine if at_least else mine / theirs


def disturbed(wall_times: list[float | None], cpu_times: list[float | None]) -> bool:
    """Whether even the fastest of some candidate's runs had to wait for others."""
    both = zip(wall_times, cpu_times, strict=True)
    return any(wall > CALM * used for wall, used in both if wall and used)


def size_mb_of(trace: str) -> float:
    """The size of a trace's JSON in MB, 0 if it has not been made."""
    path = make_traces.BENCH_DATA / f"{trace}.json"
    return path.stat().st_size / 1e6 if path.exists() else 0.0


def memory(bench: Bench, claim: str, trace: str, candidate: str, limit: float) -> Row:
    """Peak memory as a multiple of the JSON's size, `limit` at most; the largest run counts."""
    figure = "peak_mb_net_of_imports"
    mine = max(bench.values(candidate, trace, figure), default=None)
    size_mb = size_mb_of(trace)
    ratio = mine / size_mb if mine and size_mb else None
    n = _counts(bench, (candidate, trace, figure))
    ours, json_size = text_of(mine, "MB"), text_of(size_mb, "MB")
    return Row(claim, "size of the JSON", trace, ours, json_size, ratio, limit, n, at_least=False)


def rows_of_trace(bench: Bench, trace: str, size_mb: int) -> Iterator[Row]:
    """What is claimed of a trace; nothing is required below 200 MB."""
    best = best_backend(bench, trace)
    best_told = f"HTA's best ({best.removeprefix('hta-')})"
    for peer, told, limit in (
        (HTA_DEFAULT, "HTA default", 40),
        (best, best_told, 20),
        ("perfetto", "Perfetto (WASM)", 6),
        ("orjson", "orjson + pandas", None),
    ):
        required = limit if size_mb >= 200 else None
        yield compared(bench, QUESTIONS, told, trace, ("load", peer), required)
    if size_mb < 200:
        return
    claim, against = ".gz to columns", "zlib inflate alone"
    yield compared(bench, claim, against, trace, ("scan-gz", "zlib"), 1.4, at_least=False)
    pair = ("scan-raw", "simdjson")
    yield compared(bench, "raw scan", "simdjson On-Demand", trace, pair, 2)
    yield memory(bench, "peak memory of the scan of .gz", trace, "scan-gz", 0.5)
    yield memory(bench, "peak memory of the raw scan", trace, "scan-raw", 0.5)
    yield memory(bench, "peak memory with frames", trace, "load", 0.8)
    if size_mb == 200:
        pair = ("load-pure", HTA_DEFAULT)
        yield compared(bench, f"pure Python: {QUESTIONS}", "HTA default", trace, pair, 3)
        yield memory(bench, "pure Python: peak memory of the scan", trace, "scan-pure", 0.6)


def row_of_scaling(bench: Bench, letter: str) -> Row:
    """Whether a file five times as large takes about five times as long."""
    traces = (f"{letter}1000", f"{letter}200")
    wall_times = [bench.best("load", trace) for trace in traces]
    cpu_times = [bench.best("load", trace, "cpu") for trace in traces]
    size_ratio = size_mb_of(traces[0]) / size_mb_of(traces[1])
    speeds = [size_mb_of(trace) / time if time else None for trace, time in zip(traces, wall_times, strict=True)]
    ratio, cpu_ratio = ratio_of(wall_times), ratio_of(cpu_times)
    return Row(
        QUESTIONS,
        "speed at 200 MB",
        traces[0],
        text_of(speeds[0], "MB/s"),
        text_of(speeds[1], "MB/s"),
        size_ratio * ratio if ratio else None,
        0.7,
        _counts(bench, *(("load", trace, "seconds") for trace in traces)),
        cpu_ratio=size_ratio * cpu_ratio if cpu_ratio else None,
        disturbed=disturbed(wall_times, cpu_times),
    )


def rows_of_processes(bench: Bench) -> Iterator[Row]:
    """What is claimed of whole processes, imports included, and of many files."""
    claim = f"whole process: {QUESTIONS}"
    for letter in make_traces.SOURCES:
        trace = f"{letter}{WHOLE_PROCESS_MB}"
        pair = ("load", HTA_DEFAULT)
        yield compared(bench, claim, "HTA default", trace, pair, 3, process=True)
        pair = ("load", HTA_USUAL_BEST)
        yield compared(bench, claim, "HTA's best", trace, pair, None, process=True)
    two, trace = f"{MANY_FILES} files on two cores", MANY_FILES_INPUT
    claim = f"{two}: {QUESTIONS}"
    yield compared(bench, claim, "one core", trace, ("ranks-2", "ranks-1"), 1.5)
    yield compared(bench, claim, "HTA default, two cores", trace, ("ranks-2", "ranks-hta"), 20)
    claim = f"{two}: `tracekit analyze`, all analyses"
    pair = ("analyze-2", "analyze-1")
    yield compared(bench, claim, "one core", trace, pair, None, process=True)
    pair = ("analyze-2", "ranks-hta")
    yield compared(bench, claim, "HTA default, two cores", trace, pair, None, process=True)
    mine = bench.best("version", "", "process_cpu")
    n = _counts(bench, ("version", "", "process_cpu"))
    claim = "`tracekit --version`"
    yield Row(claim, "CPU seconds", "–", text_of(mine, "s"), "–", mine, 0.15, n, at_least=False)


def row_of_questions(bench: Bench) -> Row:
    """What all questions cost beside the reading, by CPU time in one process."""
    trace = "".join(map(str, QUESTIONS_OF))
    every, read = (bench.best("questions", trace, name) for name in ("all_s", "read_s"))
    return Row(
        "all questions of `tracekit analyze`, CPU",
        "its read alone",
        trace,
        text_of(every, "s"),
        text_of(read, "s"),
        ratio_of([every, read], at_least=False),
        3,
        _counts(bench, ("questions", trace, "all_s")),
        at_least=False,
    )


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
    rows += [*rows_of_processes(bench), row_of_questions(bench)]
    return [row for row in rows if set(row.n.split(" / ")) != {"0"}] if bench.only else rows


def markdown(rows: list[Row]) -> str:
    """The rows as a table."""

    def told(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    lines = [
        "| claim | against | input | tracekit | peer | ratio | of CPU | required | margin | n | |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        cells = (
            *(row.claim, row.against, row.input, row.ours, row.peer),
            *(told(row.ratio, ".3g"), told(row.cpu_ratio, ".3g")),
            "–" if row.limit is None else f"{'≥' if row.at_least else '≤'} {row.limit:g}",
            *(told(row.margin, ".2f"), row.n, row.verdict),
        )
        lines.append("| " + " | ".join(cells) + " |")
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
    return f"{len(os.sched_getaffinity(0))} cores of {', '.join(models)}, {memory_gb:.0f} GB, {python}"


def notes_of(bench: Bench, rounds: int) -> list[str]:
    """What one must know to read the table: machine, versions, rounds, failures."""
    told = "; ".join(f"{name} {version}" for name, version in sorted(versions(bench).items()))
    notes = [
        f"Machine: {machine()}.",
        f"{rounds} rounds, candidates in turn; the fastest of n runs (tracekit / peer) counts.",
        "HTA and orjson run once at 1 GB, two more backends of HTA once at 200 MB.",
        "A margin is how far beyond the requirement a figure is. 1 MB = 1e6 bytes.",
        "Memory is net of imports; the largest of n runs counts.",
        "Where even a fastest run waited for other work (wall > 1.2 CPU), the worse ratio counts.",
        f"Versions: {told}.",
    ]
    wrong = disagreements(bench)
    failed = sorted({f"{run.candidate} {run.input}: {run.error}" for run in bench.runs if run.error})
    notes += [f"FAILED: {each}" for each in failed]
    notes += [f"DISAGREE on kernels or their time: {each}" for each in wrong]
    return notes
