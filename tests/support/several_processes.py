"""Files that hold several processes: what a reader of such a format gives, made of traces of one each."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tracekit.model.trace import Trace
from tracekit.pipeline import measure_source as measuring
from tracekit.pipeline.run import Options, RunResult, analyze_uncached

TOGETHER = "all.json"


def alone_and_together(monkeypatch, folder: Path, spare: Path) -> tuple[RunResult, RunResult]:
    """The results of the files in `folder`, and of one file (in `spare`) that holds all their processes.

    Every process has its own pid in both, 1000, 1001 …
    """
    known = measuring.find_reader
    traces: list[Trace] = []

    def reader(name):
        chrome = known(name)

        def read(source, want, on_bytes):
            if source.path.parent == spare:
                return [replace(t, source=replace(t.source, path=source.path, name=TOGETHER)) for t in traces]
            (trace,) = chrome.read(source, want, on_bytes)
            traces.append(replace(trace, source=replace(trace.source, pid=1000 + len(traces))))
            return traces[-1:]

        def each(source, want, on_bytes):
            traces = read(source, want, on_bytes)
            return zip(traces, reversed(range(len(traces))), strict=True)

        return SimpleNamespace(each=each)

    monkeypatch.setattr(measuring, "find_reader", reader)
    apart = analyze_uncached(f"run={folder}", Options(jobs=1))
    shutil.copy(next(p for p in folder.rglob("*") if p.is_file()), spare / TOGETHER)
    return apart, analyze_uncached(f"run={spare / TOGETHER}", Options(jobs=1))
