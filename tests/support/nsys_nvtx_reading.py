"""The NVTX ranges of an export, as tests look at them."""

from nsys_builder import BASE_NS

from tracekit.model.tables import HOST_OP_KINDS
from tracekit.model.tables.arrays import select_rows
from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys.nvtx import ranges as nsys_nvtx
from tracekit.readers.nsys.sqlite.connection import open_export


def list_texts(coded):
    """The texts of a column, None where one is missing."""
    return [(*coded.texts, None)[code] for code in coded.codes.tolist()]


def of_file(file, args=None):
    with open_export(file) as db:
        clock, _ = nsys_content.read_export_clock(db)
        return nsys_nvtx.read_nvtx_ranges(db, clock, args)


def listed(rows):
    """(start from the capture's own, duration, name, category, kind, tid) of every row."""
    kinds = [HOST_OP_KINDS[code] for code in rows.kind.tolist()]
    return list(
        zip(
            (rows.ts_ns - BASE_NS).tolist(),
            rows.dur_ns.tolist(),
            list_texts(rows.name),
            list_texts(rows.cat),
            kinds,
            rows.tid.tolist(),
            strict=True,
        )
    )


def argument(rows, key):
    """{name of the range: value} of an argument."""
    column = rows.args[key]
    values = column.values.tolist()
    if column.categories is not None:
        values = [column.categories[code] for code in values]
    return dict(zip(list_texts(select_rows(rows.name, column.rows)), values, strict=True))
