"""Write the explorer page of a profile during development: `python tests/render/explorer_page.py DIRECTORY OUT.html [MB]`.

The data of the processes is built here, in one process, since no command does so yet. Prints sizes and CPU times.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.model.trace import Want
from tracekit.pipeline.measure_source import read_source
from tracekit.pipeline.replaying import replay_measured
from tracekit.pipeline.run import Options, discover_sources, judge, measure
from tracekit.process.page_blocks.build import build_page_blocks
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import read_page_assets
from tracekit.replay.ledger import list_path_pieces
from tracekit.replay.process_graph import READS

CAUSE_ROWS = PAGE_CAUSES
SUFFIXES = (".json", ".json.gz", ".sqlite", ".pickle")


def list_traces(directory):
    """Read the traces of a directory one by one."""
    folder = Path(directory)
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if path.name.endswith(SUFFIXES) and not path.name.endswith(("truth.json", "manifest.json")):
            try:
                yield from tracekit.load_all(path)
            except tracekit.TracekitError as error:
                print(f"skipped {path.name}: {error}", file=sys.stderr)


def build_blocks(trace):
    """Build the data of one process, or of one memory snapshot, as a worker would."""
    devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
    return build_page_blocks(trace, devices)


def analyze_directory(directory):
    """Analyze a directory, and read its traces again one by one: (report, traces with its labels, critical path)."""
    discovery = discover_sources(directory)
    measured = measure(discovery, Options(graphs=True))
    labels = {(source.name, source.pid, source.rank): source for source in measured.sources}

    def read():
        for source in discovery.sources:
            if source.tool not in ("torch", "nsys", "torch_memory"):
                continue
            tables = None if source.tool == "torch_memory" else READS
            for trace in read_source(source, lambda _: None, Want(tables=tables, python=True, modules=True)):
                label = labels.get((trace.source.name, trace.source.pid, trace.source.rank))
                if label is not None:
                    yield replace(trace, source=label)

    return judge(measured), read(), find_critical_pieces(measured)


def find_critical_pieces(measured):
    """Find the pieces of the critical path of the one run; None where it cannot be replayed."""
    try:
        replay = replay_measured(measured)
    except tracekit.TracekitError:
        return None
    path = list_path_pieces(replay.job, replay.steps)
    return SimpleNamespace(**{name: path.values(name) for name in ("source", "pid", "ts_ns", "dur_ns", "kind", "name")})


def main(directory, out, megabytes="3"):
    """Write the page, and print its size and CPU times."""
    report, traces, critical = analyze_directory(directory)
    processes, worker = [], []
    for trace in traces:
        trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
        begin = time.process_time()
        processes.append(build_blocks(trace))
        worker.append(time.process_time() - begin)
    begin = time.process_time()
    page = write_explorer_page(report, processes, read_page_assets(), CAUSE_ROWS, int(float(megabytes) * 1e6), critical)
    parent = time.process_time() - begin
    Path(out).write_text(page.text, encoding="utf-8")
    worker.sort()
    facts = {
        "bytes": len(page.text.encode()),
        "processes": len(processes),
        **asdict(page.kernels),
        "worker_ms": round(1e3 * worker[len(worker) // 2], 1) if worker else None,
        "worker_max_ms": round(1e3 * max(worker, default=0), 1),
        "parent_s": round(parent, 2),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
