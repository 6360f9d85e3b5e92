"""Every question asked of one trace, against reading it alone: CPU seconds in one process.

python all_questions.py TRACE.json.gz

Both read what `tracekit analyze` reads; imports and rendering are excluded. Prints one line of JSON:
the CPU seconds of both (the fastest of three), their ratio, and the seconds of each question.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tracekit.analyses import ANALYSES
from tracekit.model.trace import Trace
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options

ROUNDS = 3


def cpu_of(call: Callable[[], object]) -> float:
    """CPU seconds of all threads of this process during the call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    """Measure the file that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    found = pipeline.discover_sources(path)
    (source,), want = found.sources, pipeline.list_wanted_inputs()

    def read() -> tuple[Trace, ...]:
        return tuple(pipeline.read_source(source, _ignore, want))

    measured = pipeline.measure(found, Options(jobs=1))
    reading = min(cpu_of(read) for _ in range(ROUNDS))
    measuring = min(cpu_of(lambda: pipeline.measure_source(source, _ignore)) for _ in range(ROUNDS))
    # Judged anew each time, with nothing kept from the time before; the first time imports as well.
    judging = min(cpu_of(lambda: pipeline.judge(replace(measured))) for _ in range(ROUNDS))
    (trace,) = read()
    by_question = {a.id: round(cpu_of(partial(a.measure, trace)), 3) for a in ANALYSES}
    slowest = dict(sorted(by_question.items(), key=lambda item: -item[1])[:14])
    every = measuring + judging
    told = {"read_s": reading, "all_s": every, "judge_s": judging, "ratio": every / reading}
    told = {name: round(value, 2) for name, value in told.items()}
    sys.stdout.write(json.dumps({**told, "slowest": slowest}) + "\n")


def _ignore(_: int) -> None:
    pass


if __name__ == "__main__":
    main()
