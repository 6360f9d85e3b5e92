"""Measures what the HTML page costs `analyze`: CPU of all processes with and without `-o x.html`, and the size of the page.

    python tests/benchmarks/page_cost.py [--rounds 3] [--only 2-ranks,64-ranks,1000-ranks] [--write]

Every run is a process of its own with all its workers, without a cache. `screen` prints the first screen, `json` writes all
tables as JSON, `page` writes the page. Each figure is the least of all rounds. `render` is the part of the main process that
writes the page from the report and the data of the workers. Inputs are simulated ranks (`examples/scale`), made in
bench-data where they are missing. `--write` writes the table to `page_cost.txt`. Exit status 1: a limit was exceeded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import make_traces
import scale_run
from bench_runs import figures_of

TABLE = Path(__file__).with_suffix(".txt")
WAYS = ("screen", "json", "page")
TITLE = "CPU seconds of `tracekit analyze` on simulated ranks of 145 KB: all processes, then parts"
HEADINGS = ("ranks", "screen", "json", "page", "page - screen", "page - json", "ms/rank, workers", "render", "page MB")

CODE = """
import contextlib, io, json, resource, sys, time
from tracekit.cli import main
from tracekit.render import html
path, out = sys.argv[1:]
spent, render = [0.0], html.render_html
def timed(report, options):
    begin = time.process_time()
    text = render(report, options)
    spent[0] += time.process_time() - begin
    return text
html.render_html = timed
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["analyze", path, "-q", "--no-cache", *(["-o", out] if out else [])])
own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
seconds = {"driver": own.ru_utime + own.ru_stime, "workers": workers.ru_utime + workers.ru_stime}
print(json.dumps(seconds | {"render": spent[0]}))
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Ranks, and most CPU seconds that their page may take: beyond the first screen, per rank in workers, to render."""

    ranks: int
    beyond_s: float | None = None
    worker_s: float | None = None
    render_s: float | None = None


INPUTS = (Limits(2, beyond_s=0.3), Limits(64, worker_s=0.010), Limits(1000, worker_s=0.010, render_s=3.0))


def measure(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The least of each figure, by way."""
    least: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    with TemporaryDirectory() as folder:
        outputs = {"screen": "", "json": f"{folder}/x.json", "page": f"{folder}/x.html"}
        for _ in range(rounds):
            for way, best in least.items():
                # A pool of BLAS threads would make workers children of a fork server, whose CPU time is not counted.
                python: list[str | Path] = ["env", "OPENBLAS_NUM_THREADS=1", sys.executable, "-c", CODE]
                figures, error = figures_of([*python, path, outputs[way]])
                if error:
                    raise subprocess.SubprocessError(f"{path} {way}: {error}")
                for name, value in figures.items():
                    if isinstance(value, int | float):
                        best[name] = min(value, best.get(name, value))
        least["page"]["bytes"] = Path(outputs["page"]).stat().st_size
    return least


def describe(limits: Limits, least: dict[str, dict[str, float]]) -> tuple[list[str], list[str]]:
    """The cells of a line of the table, and the limits that were exceeded."""
    screen, tables, page = (least[way]["process_cpu"] for way in WAYS)
    of_page = least["page"]
    per_rank = (of_page["workers"] - least["json"]["workers"]) / limits.ranks
    kept = {
        f"{limits.ranks} ranks: page - screen": (page - screen, limits.beyond_s),
        f"{limits.ranks} ranks: workers": (per_rank, limits.worker_s),
        f"{limits.ranks} ranks: render": (of_page["render"], limits.render_s),
    }
    cells = [
        f"{limits.ranks:,}",
        *(f"{seconds:.2f}" for seconds in (screen, tables, page, page - screen, page - tables)),
    ]
    cells += [f"{per_rank * 1e3:.1f}", f"{of_page['render']:.2f}", f"{of_page['bytes'] / 1e6:.2f}"]
    exceeded = [
        f"{name} takes {value:.3f} s, the limit is {most:g} s"
        for name, (value, most) in kept.items()
        if most and value > most
    ]
    return cells, exceeded


def main() -> int:
    """Exit status: 0 if every limit is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of inputs, comma separated")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args()
    names = tuple(filter(None, options.only.split(",")))
    lines, exceeded = [f"{TITLE}; least of {options.rounds} rounds", "  ".join(HEADINGS)], []
    print(*lines, sep="\n")
    for limits in INPUTS:
        if not names or f"{limits.ranks}-ranks" in names:
            path = scale_run.made(make_traces.BENCH_DATA, limits.ranks)
            cells, missed = describe(limits, measure(path, options.rounds))
            exceeded += missed
            lines.append("  ".join(cell.rjust(len(title)) for cell, title in zip(cells, HEADINGS, strict=True)))
            print(lines[-1], flush=True)
    lines += exceeded or ["every limit is kept"]
    lines.append(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end"
    )
    print(*lines[-1 - len(exceeded or [0]) :], sep="\n")
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
