"""Snapshots of our own making as Traces, and what tests ask of the tables measured of them."""

import numpy as np
import pandas as pd
from memory_builder import MIB, pickled, snapshot

from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Coded, convert_for_pandas
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


def frame_of(columns):
    """Bare columns as a frame with plain texts, None where missing."""
    plain = {
        name: np.array([*array.texts, None], object)[array.codes] if isinstance(array, Coded) else array
        for name, array in columns.items()
    }
    return pd.DataFrame({name: pd.Series(convert_for_pandas(array)) for name, array in plain.items()})


def table(measured, name):
    """A measured table without key columns as a frame with plain texts."""
    columns = measured[name]
    length = len(next(iter(columns.values()), ()))
    return frame_of(TABLES[name].cast_arrays(columns, length, tuple(KEYS)) if length else columns)


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


__all__ = ["MIB", "frame_of", "loaded", "report", "rows", "section", "table", "written"]
