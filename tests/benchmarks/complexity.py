"""How the cost of `analyze` grows with what a run has many of, question by question; prints a table.

    python tests/benchmarks/complexity.py [--of steps streams …] [--scale 1.0] [--rounds 2] [--all]

For each of steps, streams, threads, names, groups, stages and files, runs of n, 2n and 4n of them are made
(**simulated**: nothing was measured) and analysed in this process: discovered, read, measured, folded, judged and
rendered. Seconds are of CPU, the best of several rounds, of more where a part grows too fast. Exit status 1: a part takes at 4n more than five times
what it takes at n. A part that takes less than `FLOOR` seconds at 4n is not held to it: that is noise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracekit.analyses import ANALYSES, Analysis
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options
from tracekit.render import render

MOST_TIMES, FLOOR = 5.0, 0.1
AGAIN, NEVER = 3, float("inf")
FORMATS = ("text", "html", "json")
NOTICE = "SIMULATED: written by tests/benchmarks/complexity.py; nothing ran, nothing was measured"
BASE_NS = 1_795_160_500_000_000_000
HOST, THREAD = 4100, 4100

Row = dict[str, Any]
Rows = Iterator[Row]
Seconds = dict[str, float]
WHOLE = "analyze"


def event(cat: str, name: str, ts: float, dur: float, pid: int = HOST, tid: int = THREAD, **args: Any) -> Row:  # fmt: skip
    row = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**row, "args": args} if args else row


def step(number: int, begin: float, dur: float, stage: str = "update_actor") -> Rows:
    """The marks of a step, and of the one stage in it."""
    yield event("user_annotation", f"ProfilerStep#{number}", begin, dur)
    yield event("user_annotation", stage, begin + 1, dur - 2)


def work(number: int, begin: float, name: str = "gemm", stream: int = 7, thread: int = THREAD, **args: Any) -> Rows:
    """An operator of 20 µs that launches a kernel of 10 µs, which begins 15 µs after the operator."""
    link = {"correlation": number + 1}
    yield event("cpu_op", f"aten::{name}", begin, 20, tid=thread, **{"External id": number + 1})
    yield event("cuda_runtime", "cudaLaunchKernel", begin + 5, 5, tid=thread, **link)
    place = {"device": 0, "stream": stream, "External id": number + 1}
    yield event("kernel", name, begin + 15, 10, 0, stream, **place, **link, **args)


def steps(n: int) -> Rows:
    for number in range(n):
        yield from step(number, number * 100, 90)
        yield from work(number, number * 100 + 10)


def bare_steps(n: int) -> Rows:
    """Steps of which nothing but the marks was recorded."""
    for number in range(n):
        yield event("user_annotation", f"ProfilerStep#{number}", number * 100, 90)


def bare_streams(n: int) -> Rows:
    """Kernels of streams of their own, without anything of the host."""
    for number in range(n):
        name = f"gemm_{number % 7}"
        yield event("kernel", name, number * 3, 10, 0, 7 + number, device=0, stream=7 + number)


def _one_step(n: int) -> Rows:
    yield from step(1, 0, n * 50 + 1000)


def streams(n: int) -> Rows:
    yield from _one_step(n)
    for number in range(n):
        yield from work(number, 100 + number * 50, stream=7 + number)


def threads(n: int) -> Rows:
    yield from _one_step(n)
    for number in range(n):
        yield from work(number, 100 + number * 50, thread=THREAD + number)


def names(n: int) -> Rows:
    yield from _one_step(n)
    for number in range(n):
        yield from work(number, 100 + number * 50, name=f"gemm_of_{number}x128")


def groups(n: int) -> Rows:
    """Each collective in a process group of its own."""
    yield from _one_step(n)
    for number in range(n):
        facts = {
            "Collective name": "allreduce",
            "Process Group Name": f"{number}",
            "Process Group Ranks": "[0, 1]",
            "Group size": 2,
            "In msg nelems": 4096,
            "dtype": "Float",
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        yield from work(number, 100 + number * 50, name=name, stream=20, **facts)


def stages(n: int) -> Rows:
    """Stages one after the other in one step, each of another name."""
    yield event("user_annotation", "ProfilerStep#1", 0, n * 100 + 1000)
    for number in range(n):
        yield event("user_annotation", f"stage_{number}", 100 + number * 100, 90)
        yield from work(number, 110 + number * 100)


def files_of_a_rank(n: int) -> Rows:
    for number in range(4):
        yield from step(number, number * 1000, 900)
        for launch in range(10):
            yield from work(number * 10 + launch, number * 1000 + 10 + launch * 50)


@dataclass(frozen=True, slots=True)
class Kind:
    """What there is many of: the rows of a trace of n of them, n, and how many files they are in."""

    rows: Callable[[int], Rows]
    least: int
    files: bool = False


KINDS = {
    "steps": Kind(steps, 2500),
    "bare_steps": Kind(bare_steps, 5000),
    "streams": Kind(streams, 2500),
    "bare_streams": Kind(bare_streams, 2500),
    "threads": Kind(threads, 2500),
    "names": Kind(names, 2500),
    "groups": Kind(groups, 1250),
    "stages": Kind(stages, 1250),
    "files": Kind(files_of_a_rank, 12, files=True),
}


def write(folder: Path, kind: Kind, n: int) -> Path:
    """The profiles of a run of n of this kind."""
    folder.mkdir(exist_ok=True)
    ranks = n if kind.files else 1
    for rank in range(ranks):
        document = {
            "schemaVersion": 1,
            "simulated": NOTICE,
            "baseTimeNanoseconds": BASE_NS,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
            "deviceProperties": [{"id": 0, "name": "Simulated GPU", "numSms": 132}],
            "traceEvents": [{**row, "pid": row["pid"] + rank * (row["pid"] == HOST)} for row in kind.rows(n)],
        }
        path = folder / f"rank{rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1, mtime=0))
    return folder


def timed(analysis: Analysis, taken: Seconds) -> Analysis:
    """The same question, its CPU seconds added to `taken` as `measure ID`, `fold ID` and `judge ID`."""

    def clocked(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            started = time.process_time()
            try:
                return call(*given)
            finally:
                taken[f"{what} {analysis.id}"] += time.process_time() - started

        return run

    fold = analysis.fold
    return replace(
        analysis,
        measure=clocked("measure", analysis.measure),
        judge=clocked("judge", analysis.judge),
        fold=None if fold is None else clocked("fold", fold),
    )


def seconds_of(folder: Path) -> Seconds:
    """The CPU seconds of every part of analysing a directory, and of the whole."""
    taken: Seconds = defaultdict(float)
    pipeline.ANALYSES = tuple(timed(analysis, taken) for analysis in ANALYSES)
    began = time.process_time()

    def part(name: str, call: Callable[[], Any]) -> Any:
        started, inner = time.process_time(), sum(taken.values())
        result = call()
        taken[name] = time.process_time() - started - (sum(taken.values()) - inner)
        return result

    try:
        sources = part("discover", lambda: pipeline.discover_sources(folder))
        measured = part("read and join", lambda: pipeline.measure(sources, Options(jobs=1)))
        report = part("report", lambda: pipeline.judge(measured))
        for name in FORMATS:
            part(f"render {name}", lambda name=name: render(report, name))
    finally:
        pipeline.ANALYSES = ANALYSES
    return {**taken, WHOLE: time.process_time() - began}


def growth(kind: Kind, scale: float, rounds: int) -> tuple[list[int], dict[str, list[float]]]:
    """(n, 2n and 4n; the least seconds of every part at each of them).

    Where a part grows too fast, all is measured again, up to `AGAIN` times: other work on the machine can only add.
    """
    counts = [max(int(kind.least * scale), 1) * times for times in (1, 2, 4)]
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = [write(Path(folder, str(count)), kind, count) for count in counts]
        for _ in range(1 + AGAIN):
            for place, run in enumerate(runs):
                for _ in range(rounds):
                    _keep_least(seconds, place, seconds_of(run))
            if not any(map(is_too_steep, seconds.values())):
                break
    return counts, {part: [one if one < NEVER else 0.0 for one in taken] for part, taken in seconds.items()}


def _keep_least(seconds: dict[str, list[float]], place: int, taken: Seconds) -> None:
    """Nothing; `seconds` has the least of what each part has taken so far."""
    for part, second in taken.items():
        least = seconds.setdefault(part, [NEVER] * 3)
        least[place] = min(least[place], second)


def is_too_steep(seconds: Sequence[float]) -> bool:
    """Whether a part takes at 4n more than it may by what it takes at n."""
    return seconds[-1] >= FLOOR and seconds[-1] > MOST_TIMES * max(seconds[0], FLOOR / 4)


def table(name: str, counts: list[int], seconds: dict[str, list[float]], *, everything: bool) -> list[str]:  # fmt: skip
    """Lines of Markdown: the whole, and the parts that count or grow too fast."""
    lines = [f"| {name} | {' | '.join(f'{count:,}' for count in counts)} | 4n / n | |", "|---|--:|--:|--:|--:|---|"]  # fmt: skip
    for part, taken in sorted(seconds.items(), key=lambda row: -row[1][-1]):
        steep = is_too_steep(taken)
        if not (everything or steep or part == WHOLE):
            continue
        times = taken[-1] / taken[0] if taken[0] else float("nan")
        cells = " | ".join(f"{second:.2f}" for second in taken)
        verdict = "MISSED" if steep else "pass" if taken[-1] >= FLOOR else "too short to say"
        lines.append(f"| {part} | {cells} | {times:.1f} | {verdict} |")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line names; how many parts grow too fast is the status, at most 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    parser.add_argument("--scale", type=float, default=1.0, help="times so many of everything")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="show every part")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:  # what is imported and compiled counts nowhere
        seconds_of(write(Path(folder), KINDS["steps"], 10))
    missed = 0
    for name in options.of:
        counts, seconds = growth(KINDS[name], options.scale, options.rounds)
        missed += sum(map(is_too_steep, seconds.values()))
        print("\n".join([*table(name, counts, seconds, everything=options.all), ""]), flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
