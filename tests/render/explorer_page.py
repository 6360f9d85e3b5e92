"""Traces of a profile, and the data of their processes as a worker builds it, for tests of the page."""

from __future__ import annotations

import sys
from pathlib import Path

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.process.page_blocks.build import build_page_blocks

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
