"""Bare columns of a pandas frame, for tests that write their rows as a frame."""

from tracekit.model.tables.arrays import Columns, make_bare


def columns_of(frame):
    return Columns(len(frame), {str(name): make_bare(column.array) for name, column in frame.items()})
