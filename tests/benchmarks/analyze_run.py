"""Measures what users run, `tracekit analyze` with all questions, against HTA's eight analyses.

    python tests/benchmarks/analyze_run.py [--rounds 3] [--only 64-ranks,A15] [--json FILE]

Both as their users install them, each in an environment of its own; tracekit is that of this checkout.
Whole processes with all their workers, imports included: CPU and wall seconds, each the least of all rounds.
`first` keeps what it measures in an empty folder, `again` finds it there, `alone` keeps nothing, and `read` is what
`tracekit.load` takes alone of a long trace. Candidates take turns
within each round, so that what else the machine does falls on all alike: only ratios from one call of this script mean
anything. HTA's analyses of traces above 100 MB are run once: they take minutes.

Inputs are made in bench-data where they are missing: recorded events repeated (A, B and `discrete`, which need
TRACEKIT_REAL_DATA), and simulated ranks (`examples/scale`). Exit status 1: a required ratio was missed, or a run failed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import make_traces
import peers
import scale_run
from bench_runs import Bench, Command, Run, figures_of
from nsys_run import note

HERE = Path(__file__).resolve().parent
CACHE = make_traces.BENCH_DATA / "cache"
DISCRETE = "chrome/verl_cpu/v091_discrete/outputs/profile"
RECORDED_FILE = "chrome/verl_cpu/v091_e2e_all_ranks/outputs/profile/*_train_step2_rank0-*.json.gz"
FIRST, AGAIN, ALONE, READ, HTA = "first", "again", "alone", "read", "hta"
READING = "import sys, tracekit; tracekit.load(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Input:
    """What is analyzed: how it is made, whether HTA is asked as well, how often, and the least ratio to its CPU time.

    Of a long trace it is also measured what its reading alone takes, all columns to frames.
    """

    name: str
    what: str
    build: Callable[[], Path]
    is_for_hta: bool = True
    hta_rounds: int = 3
    least: float | None = None
    is_long: bool = False


def packed(letter: str, size_mb: int) -> Path:
    """A long trace as the profiler writes it."""
    plain = make_traces.build_trace(letter, size_mb)
    return plain.with_name(plain.name + ".gz")


def simulated(ranks: int) -> Path:
    """So many simulated ranks of one trace each."""
    return scale_run.made(make_traces.BENCH_DATA, ranks)


def one_rank() -> Path:
    """The trace of one simulated rank."""
    return next(simulated(64).rglob("*.gz"))


def recorded_file() -> Path:
    """One trace of 90 KB, as verl wrote it on CPUs."""
    return next(Path(os.environ["TRACEKIT_REAL_DATA"]).glob(RECORDED_FILE))


def discrete(ranks: int, steps: int) -> Path:
    """The files that verl writes a rank, step and stage, those of one recording repeated with other numbers."""
    target = make_traces.BENCH_DATA / f"discrete{ranks}x{steps}"
    if (target / "complete").exists():
        return target / "profile"
    shutil.rmtree(target, ignore_errors=True)
    (target / "profile").mkdir(parents=True)
    recorded = Path(os.environ["TRACEKIT_REAL_DATA"]) / DISCRETE
    for path in sorted(recorded.glob("*.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        for rank in range(ranks):
            for step in range(steps):
                name, content = another(path.name, text, rank, ranks, step)
                data = gzip.compress(content.encode(), 6, mtime=0)
                (target / "profile" / name).write_bytes(data)
    (target / "complete").touch()
    return target / "profile"


def another(name: str, text: str, rank: int, ranks: int, step: int) -> tuple[str, str]:
    """(name, text) of a recorded file as another rank and step would have written it, ten seconds a step later."""
    recorded = re.search(r"_step(\d+)_rank(\d+)-of-(\d+)_pid(\d+)_", name)
    assert recorded is not None, f"{name}: not a file of one stage"
    first_step, old_rank, old_ranks, old_pid = recorded.groups()
    pid = str(int(old_pid) + 100_000 + 10 * rank)
    start = re.search(r'"baseTimeNanoseconds": (\d+)', text)
    assert start is not None, f"{name}: no start of its clock"
    members = ", ".join(map(str, range(ranks)))
    for old, new in (
        (f'"pid": {old_pid}', f'"pid": {pid}'),
        (f'"tid": {old_pid}', f'"tid": {pid}'),
        (f'"rank": {old_rank}', f'"rank": {rank}'),
        (f'"world_size": {old_ranks}', f'"world_size": {ranks}'),
        (f'"pg_size": {old_ranks}, "ranks": [0, 1]', f'"pg_size": {ranks}, "ranks": [{members}]'),
        (start[0], f'"baseTimeNanoseconds": {int(start[1]) + step * 10**10}'),
    ):
        text = text.replace(old, new)
    new_name = f"_step{int(first_step) + step}_rank{rank}-of-{ranks}_pid{pid}_"
    return name.replace(recorded[0], new_name), text


INPUTS = (
    Input("verl-file", "one recorded file of verl, 90 KB", recorded_file, is_for_hta=False),
    Input("one-rank", "one simulated rank", one_rank),
    Input("two-ranks", "two simulated ranks", lambda: simulated(2), is_for_hta=False),
    Input("A15", "15 MB training trace", lambda: packed("A", 15), least=2.5),
    Input("64-ranks", "64 simulated ranks", lambda: simulated(64), least=5.0),
    Input("A1000", "1 GB training trace", lambda: packed("A", 1000), hta_rounds=1, is_long=True),
    Input(
        "A1000-plain",
        "the same, not packed",
        lambda: make_traces.build_trace("A", 1000),
        is_for_hta=False,
        is_long=True,
    ),
    Input("B1000", "1 GB with Python stacks", lambda: packed("B", 1000), hta_rounds=1, is_long=True),
    Input("504-files", "504 files of verl, discrete", lambda: discrete(14, 6), is_for_hta=False),
    Input("1000-ranks", "1,000 simulated ranks", lambda: simulated(1000), is_for_hta=False),
)


def commands_of(item: Input, path: Path, number: int, tracekit: Path) -> dict[str, Command]:
    """The candidates of one round on an input, in turn."""
    ours: Command = [tracekit, "analyze", path]
    kept: Command = ["env", f"TRACEKIT_CACHE={CACHE}"]
    commands = {ALONE: [*ours, "--no-cache"], FIRST: [*kept, *ours], AGAIN: [*kept, *ours]}
    if item.is_long:
        commands[READ] = [tracekit.with_name("python"), "-c", READING, path]
    if item.is_for_hta and number < item.hta_rounds:
        files = sorted(path.rglob("*.gz")) if path.is_dir() else [path]
        commands[HTA] = [peers.set_up("hta"), HERE / "peer_hta_eight.py", *files]
    return commands


def measure_all(bench: Bench, inputs: list[Input], rounds: int) -> None:
    """Every candidate of every input once a round."""
    tracekit = peers.installed_tracekit()
    for number in range(rounds):
        for item in inputs:
            path = item.build()
            for candidate, command in commands_of(item, path, number, tracekit).items():
                if candidate == FIRST:
                    shutil.rmtree(CACHE, ignore_errors=True)
                note(bench, Run(candidate, item.name, number, *figures_of(command)))
    shutil.rmtree(CACHE, ignore_errors=True)


def ratio(bench: Bench, item: Input) -> float | None:
    """How many times the CPU seconds of a first look HTA takes."""
    ours = bench.best(FIRST, item.name, "process_cpu")
    theirs = bench.best(HTA, item.name, "process_cpu")
    return theirs / ours if ours and theirs else None


def table(bench: Bench, inputs: list[Input]) -> str:
    """The least CPU and wall seconds of every candidate, the ratio to HTA, and the highest peak of a first look."""
    lines = [
        "| CPU seconds (wall) | first look | nothing kept | again | read alone | HTA's eight | times | required | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for item in inputs:
        cells = [item.what]
        for candidate in (FIRST, ALONE, AGAIN, READ, HTA):
            cpu, wall = (bench.best(candidate, item.name, f"process_{figure}") for figure in ("cpu", "seconds"))
            cells.append("–" if cpu is None else f"{cpu:.2f} ({wall:.2f})")
        times = ratio(bench, item)
        cells.append("–" if times is None else f"{times:.1f}")
        cells.append("" if item.least is None else f"{item.least:g}")
        peaks = bench.values(FIRST, item.name, "process_peak_mb")
        cells.append(f"{max(peaks):.0f}" if peaks else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Exit status: 0 if all that was measured holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of inputs, comma separated")
    parser.add_argument("--json", type=Path, help="where all runs go")
    options = parser.parse_args()
    names = tuple(filter(None, options.only.split(",")))
    unknown = set(names) - {item.name for item in INPUTS}
    if unknown:
        parser.error(f"no input {', '.join(sorted(unknown))}")
    inputs = [item for item in INPUTS if not names or item.name in names]
    bench = Bench()
    measure_all(bench, inputs, options.rounds)
    print(f"{table(bench, inputs)}\n\n- load average {os.getloadavg()[0]:.1f} at the end.")
    for run in bench.runs:
        if run.figures.get("broken"):
            print(f"- HTA on {run.input}: {', '.join(run.figures['broken'])}")
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in bench.runs]), encoding="utf-8")
    missed = [item for item in inputs if item.least and (ratio(bench, item) or 0) < item.least]
    return int(bool(missed) or any(run.error for run in bench.runs))


if __name__ == "__main__":
    sys.exit(main())
