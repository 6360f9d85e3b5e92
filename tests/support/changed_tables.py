"""Measurements with some tables replaced by frames that a test has changed."""

from dataclasses import replace

from tracekit.model.tables import TABLES


def columns_of(name, frame):
    """The bare columns of a frame of this table."""
    return TABLES[name].cast({column: frame[column].array for column in frame}, len(frame))


def with_tables(measured, frames):
    """The measurements with these frames in the place of the tables of their names."""
    changed = {name: columns_of(name, frame) for name, frame in frames.items()}
    return replace(measured, arrays={**measured.arrays, **changed})
