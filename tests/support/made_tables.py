"""Measurements from rows made by hand, for tests of judges."""

from tracekit.analyses import ANALYSES
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements

ZEROS = {"int32": 0, "int64": 0, "bool": False}


def make_measured(sources=(), *, notes=(), failures=(), facts=None, **tables):
    """Measurements of these sources with these tables, each a list of rows.

    What a row lacks is missing; where a column cannot be, it is 0, false, or the first value of its closed set.
    """
    assert ANALYSES, "their tables are known once they are loaded"
    arrays = {name: make_table(name, rows) for name, rows in tables.items()}
    more = {} if facts is None else {"facts": facts}
    return Measurements(arrays, tuple(sources), tuple(failures), tuple(notes), **more)


def make_table(name, rows):
    """The columns of one table."""
    columns = {}
    for key, column in TABLES[name].columns.items():
        default = None if column.nullable else ZEROS.get(column.dtype, next(iter(column.values), None))
        columns[key] = [row.get(key, default) for row in rows]
    unknown = {key for row in rows for key in row} - set(columns)
    assert not unknown, f"{name} has no columns {unknown}"
    return TABLES[name].cast(columns, len(rows))
