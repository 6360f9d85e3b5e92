"""Measures many ranks, and prints a table of what is claimed of them.

    python tests/benchmarks/scale_run.py [--parts ranks,cores,saved] [--counts 8,64,256,1000] [--files 64]
                                         [--file-mb 60] [--engines local,ray] [--folder FOLDER]

`ranks`: small simulated traces (`examples/scale/make_ranks.py`), more and more of them, on two cores by each engine:
CPU per file against that of the fewest, run before and after each; memory of the driver; CPU from measured frames
to reports in four formats.
`cores`: large files on two cores against one, and HTA's questions of them against HTA. `saved`: what `--save` writes against the JSON
it came from, and judging it against `analyze`. Inputs are made in FOLDER (bench-data) where they are
missing. Exit status 1: something required was missed, or a run failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import make_traces
import peers
from bench_runs import Bench, Command, Run, figures_of
from nsys_run import note
from ratio_table import Row, markdown, ratio_of, text_of

HERE = Path(__file__).resolve().parent
MAKE_RANKS = HERE.parents[1] / "examples" / "scale" / "make_ranks.py"
HTA_FILES = 8
ROUNDS = 2
LOADED, ONE, TWO, HTA = "loaded", "one", "two", "hta"
SAME_ONE, SAME = "same questions, one", "same questions, two"
MOST_CPU, MOST_SECONDS, MOST_MB, MOST_HTML_MB = 1.3, 10.0, 1000.0, 5.0
MOST_SHARE, LEAST_LOADED, LEAST_CORES, LEAST_HTA = 0.03, 20.0, 1.5, 20.0


def made(folder: Path, ranks: int) -> Path:
    """The directory of so many simulated ranks, written if it is missing."""
    target = folder / f"scale{ranks}"
    if not (target / "complete").exists():
        subprocess.run([sys.executable, MAKE_RANKS, str(ranks), target], check=True)
        (target / "complete").touch()
    return target


def add(bench: Bench, candidate: str, name: str, number: int, command: Command) -> None:
    """Run a command and keep what it printed."""
    note(bench, Run(candidate, name, number, *figures_of(command)))


def measure_ranks(bench: Bench, folder: Path, counts: list[int], engine: str) -> None:
    """Run every number of ranks once, the smallest before and after each."""
    few, *more = counts
    for number, count in enumerate(more):
        for ranks, turn in ((few, 2 * number), (count, 0), (few, 2 * number + 1)):
            steps: Command = [sys.executable, HERE / "scale_steps.py", made(folder, ranks)]
            add(bench, engine, str(ranks), turn, [*steps, "--engine", engine])


def worst(bench: Bench, engine: str, ranks: str, figure: str) -> float | None:
    """The largest value of all runs."""
    return max(bench.values(engine, ranks, figure), default=None)


def upper(claim: str, name: str, value: float | None, limit: float, unit: str, n: int) -> Row:
    """What must stay below a limit."""
    told = (text_of(value, unit), text_of(limit, unit), value / limit if value else None)
    return Row(claim, "the limit", name, *told, 1.0, str(n), at_least=False)


def rows_of_ranks(bench: Bench, counts: list[int], engine: str) -> list[Row]:
    """CPU per file against the fewest ranks; memory, time and size by their number."""
    rows = []
    few = str(counts[0])
    usual = bench.values(engine, few, "cpu_per_file")
    base = median(usual) if usual else None
    for name in map(str, counts):
        every = bench.values(engine, name, "cpu_per_file")
        n, mine = len(every), median(every) if every else None
        ratio = ratio_of([mine, base], at_least=False)
        told = (text_of(mine, "s"), text_of(base, "s"), ratio, MOST_CPU)
        against, of_engine = f"{few} ranks", f"{name} ranks, {engine}"
        rows.append(Row("CPU per file", against, of_engine, *told, str(n), at_least=False))
        for what, figure in (("reduce, render", "frame_cpu"), ("reduce, judge, render", "after_cpu")):
            took = bench.best(engine, name, figure)
            rows.append(upper(f"{what}: CPU", of_engine, took, MOST_SECONDS, "s", n))
        peak = worst(bench, engine, name, "driver_mb")
        rows.append(upper("peak memory of the driver", of_engine, peak, MOST_MB, "MB", n))
        html = worst(bench, engine, name, "html_mb")
        rows.append(upper("HTML", of_engine, html, MOST_HTML_MB, "MB", n))
    return rows


FIGURES = (
    ("cpu_per_file", "CPU a file, s"),
    ("seconds", "measuring, s"),
    ("driver_cpu", "of it CPU of the driver, s"),
    ("measuring_mb", "memory of the driver until then, MB"),
    ("after_cpu", "reduce, judge, render: CPU, s"),
    ("driver_mb", "memory of the driver, MB"),
    ("html_mb", "HTML, MB"),
)


def by_count(bench: Bench, counts: list[int], engines: list[str]) -> str:
    """A table of what each number of ranks took, the median of its runs."""
    heads = ["engine", "ranks", *(title for _, title in FIGURES)]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for engine in engines:
        for count in counts:
            values = [bench.values(engine, str(count), figure) for figure, _ in FIGURES]
            cells = [f"{median(of):,.4g}" if of else "–" for of in values]
            lines.append([engine, f"{count:,}", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure_cores(bench: Bench, target: Path) -> None:
    """`analyze` on one core and on two; HTA on the first files on all cores, and its questions of all files."""
    cli = Path(sys.executable).with_name("tracekit")
    files = sorted(target.glob("*.gz"))
    same: Command = [sys.executable, HERE / "peer_tracekit.py", "ranks", *files, "--jobs"]
    for number in range(ROUNDS):
        for jobs, whole, questions in ((1, ONE, SAME_ONE), (2, TWO, SAME)):
            add(bench, whole, target.name, number, [cli, "analyze", target, "-q", "-j", str(jobs)])
            add(bench, questions, target.name, number, [*same, str(jobs)])
    hta: Command = [peers.set_up("hta"), HERE / "peer_hta.py", "json", *files[:HTA_FILES]]
    add(bench, HTA, target.name, 0, hta)


def rows_of_cores(bench: Bench, target: Path) -> list[Row]:
    """Two cores against one, and against HTA on as many files, scaled from those that it read.

    HTA answers two questions: that is compared; how long all questions of `analyze` take beside it is only told.
    """
    name = target.name
    files = len(list(target.glob("*.gz")))
    few = min(files, HTA_FILES)
    read = bench.best(HTA, name, "process_seconds")
    hta = read * files / few if read else None
    rows = []
    for claim, two, one, limit in (
        ("analyze on two cores", TWO, ONE, None),
        ("load, GPU breakdown, kernel summary on two cores", SAME, SAME_ONE, LEAST_HTA),
    ):
        mine = bench.best(two, name, "process_seconds")
        for against, peer, least, n in (
            ("one core", bench.best(one, name, "process_seconds"), LEAST_CORES, ROUNDS),
            (f"HTA (load, breakdown, kernels) on {few} files, scaled", hta, limit, 1),
        ):
            told = (text_of(mine, "s"), text_of(peer, "s"), ratio_of([mine, peer]), least)
            rows.append(Row(claim, against, name, *told, f"{ROUNDS} / {n}"))
    return rows


def json_mb(target: Path) -> float:
    """The size of all traces as JSON: the last four bytes of a gzip file tell it."""
    ends = (path.read_bytes()[-4:] for path in target.rglob("*.gz"))
    return sum(int.from_bytes(end, "little") for end in ends) / 1e6


def measure_saved(bench: Bench, target: Path) -> None:
    """Analyse and save, then load and judge what was saved."""
    path = target.with_suffix(".tkm")
    command: Command = [sys.executable, HERE / "scale_steps.py", target, "--save", path]
    add(bench, "local", target.name, 0, command)
    for number in range(3):
        command = [sys.executable, HERE / "scale_steps.py", path]
        add(bench, LOADED, target.name, number, command)


def rows_of_saved(bench: Bench, target: Path) -> list[Row]:
    """The saved file against the JSON, and judging it against `analyze`, imports excluded."""
    name = target.name
    size, whole = bench.best(LOADED, name, "size_mb"), json_mb(target)
    share = size / whole if size else None
    told = (text_of(size, "MB"), text_of(whole, "MB"), share, MOST_SHARE)
    rows = [Row("saved measurements", "the JSON", name, *told, "1", at_least=False)]
    every = bench.best("local", name, "analyze_cpu")
    loaded = bench.best(LOADED, name, "cpu")
    told = (text_of(loaded, "s"), text_of(every, "s"), ratio_of([loaded, every]), LEAST_LOADED)
    n = f"{len(bench.values(LOADED, name, 'cpu'))} / 1"
    return [*rows, Row("load and judge what was saved, CPU", "analyze", name, *told, n)]


def main() -> int:
    """Exit status: 0 if all that was measured holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="ranks,cores,saved")
    parser.add_argument("--counts", default="8,64,256,1000")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--file-mb", type=int, default=60)
    parser.add_argument("--engines", default="local,ray")
    parser.add_argument("--folder", type=Path, default=make_traces.BENCH_DATA)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    parts, bench, rows = options.parts.split(","), Bench(), list[Row]()
    if "ranks" in parts:
        counts = sorted(map(int, options.counts.split(",")))
        engines = options.engines.split(",")
        for engine in engines:
            measure_ranks(bench, options.folder, counts, engine)
            rows += rows_of_ranks(bench, counts, engine)
        print(f"{by_count(bench, counts, engines)}\n")
    if {"cores", "saved"} & set(parts):
        target = make_traces.build_ranks(options.files, options.file_mb, options.folder)
        if "cores" in parts:
            measure_cores(bench, target)
            rows += rows_of_cores(bench, target)
        if "saved" in parts:
            measure_saved(bench, target)
            rows += rows_of_saved(bench, target)
    print(f"{markdown(rows)}\n\n- Load average {os.getloadavg()[0]:.1f}, our own run included.")
    missed = [row for row in rows if row.limit is not None and "pass" not in row.verdict]
    return int(bool(missed) or any(run.error for run in bench.runs))


if __name__ == "__main__":
    sys.exit(main())
