"""Measures tracekit against its peers, and prints one Markdown table of ratios.

    python tests/benchmarks/run.py [--sizes 20,200,1000] [--rounds 3] [--only load,hta-json]

Traces (`make_traces.py`) and peers (`peers.py`) are made first if they are missing. Every run is a
fresh process, imports excluded from its seconds; candidates take turns within each round, and each
counts with its fastest run, so that what else the machine does falls on all alike. Quick candidates
run again after every slow one: a short run suffers more from a disturbance than a long one. Only
ratios from one call of this script mean anything.

`--only peers` leaves tracekit out. Exit status 1: a required ratio was missed or could not be
measured, a run failed, or two exact readers disagreed on a trace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import make_traces
from bench_runs import WHOLE_PROCESS_MB, Bench, measure_many_files, measure_questions, measure_start, measure_traces
from ratio_table import disagreements, markdown, notes_of, rows_of

RESULTS = make_traces.BENCH_DATA / "results.json"


def main() -> int:
    """Exit status: 0 if all that was measured holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="20,200,1000", help="MB of JSON, comma separated")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every candidate")
    parser.add_argument("--only", default="", help="candidates, comma separated; `peers`: no tracekit")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where all runs and rows go")
    options = parser.parse_args()
    sizes = sorted({int(size) for size in options.sizes.split(",")})
    bench = Bench(tuple(filter(None, options.only.split(","))))

    start, load_before = time.monotonic(), os.getloadavg()[0]
    measure_start(bench, options.rounds)
    measure_traces(bench, [WHOLE_PROCESS_MB, *sizes], options.rounds)
    measure_many_files(bench, options.rounds)
    measure_questions(bench)
    minutes = (time.monotonic() - start) / 60

    rows, notes = rows_of(bench, sizes), notes_of(bench, options.rounds)
    load = f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} at the end"
    notes.append(f"Took {minutes:.0f} minutes; load average {load} (our own run included).")
    print("\n".join((markdown(rows), "", *(f"- {note}" for note in notes))))
    told_rows = [asdict(row) | {"judged": row.judged, "margin": row.margin, "verdict": row.verdict} for row in rows]
    told = {"rows": told_rows, "notes": notes, "runs": [asdict(run) for run in bench.runs]}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(told, indent=1, ensure_ascii=False), encoding="utf-8")

    verdicts = {row.verdict for row in rows}
    missed = any("MISSED" in verdict for verdict in verdicts)
    missed |= "not measured" in verdicts and not bench.only
    return int(missed or any(run.error for run in bench.runs) or bool(disagreements(bench)))


if __name__ == "__main__":
    sys.exit(main())
