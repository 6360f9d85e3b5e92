"""Snapshots of our own making as Traces, and what tests ask of the tables measured of them."""

import pandas as pd
from memory_builder import MIB, pickled, snapshot

from tracekit.model.trace import Source, Want
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.readers import torch_memory

FOLDER = "step{step}/torch_memory_rank{rank}_pid7.pickle"


def loaded(tmp_path, *allocators, step=None, **more):
    """The Trace of one snapshot of these allocators."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickled(snapshot(*allocators, **more)))
    source = Source(path, path.name, "torch_memory", "torch_memory", step=step)
    return torch_memory.read(source, Want())[0]


def table(measured, name):
    """A measured table as a frame with plain texts."""
    frame = pd.DataFrame({n: pd.Series(values) for n, values in measured[name].items()})
    return frame.astype({n: object for n in frame if isinstance(frame[n].dtype, pd.CategoricalDtype)})


def written(tmp_path, made, rank=0):
    """The folder with the snapshots of one rank, as verl names them: `made` by step."""
    for step, held in made.items():
        path = tmp_path / FOLDER.format(step=step, rank=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held if isinstance(held, bytes) else pickled(snapshot(held)))
    return tmp_path


def report(path):
    return analyze_uncached(path, Options(jobs=1)).report


def section(made, name):
    return next((s for s in made.sections if s.id == name), None)


def rows(of, name):
    """The rows of a sheet as dictionaries."""
    one = next(s for s in of.sheets if s.name == name)
    names = [heading.name for heading in one.headings]
    return [dict(zip(names, cells, strict=True)) for cells in one.rows]


__all__ = ["MIB", "loaded", "report", "rows", "section", "table", "written"]
