"""What SQL gives of real files, and the same files' rows as they were recorded, read in another way."""

import gzip
import json
import lzma
import sqlite3
from contextlib import closing
from decimal import Decimal
from functools import cache
from pathlib import Path

from tracekit.pipeline import table_reading
from tracekit.pipeline.options import Options
from tracekit.sql import recipes
from tracekit.sql.session import SqlSession

WORK = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime"}
"""Categories of 2021 as they are called since."""

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")


def session(*paths, options=Options(), **more):
    """An open session over the tables of these paths."""

    def load(names, with_step):
        return table_reading.query_rows(names, list(map(str, paths)), options, with_step=with_step).tables

    return SqlSession(table_reading.list_queryable_tables(), load, table_reading.RAW_NAMES, **more)


def answer(statement, *paths):
    """The rows of a statement as dictionaries."""
    result = session(*paths).run(statement)
    return [dict(zip(result.names, row, strict=True)) for block in result.blocks() for row in block]


def recipe(name, *paths):
    """The rows of a recipe as dictionaries."""
    return answer(recipes.read_recipe(name), *paths)


@cache
def events(path):
    """The complete events of a Chrome trace: name, category, start and length in ns, thread, arguments."""
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(Path(path).suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        document = json.load(file, parse_float=Decimal)
    base = int(document.get("baseTimeNanoseconds", 0))
    complete = []
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        start, length = (round(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
        category = WORK.get(event.get("cat"), event.get("cat"))
        complete.append(
            {
                "name": event["name"],
                "cat": category,
                "ts": base + start,
                "dur": length,
                "thread": (event["pid"], event["tid"]),
                "args": event.get("args", {}),
            }
        )
    return complete


def of(path, *categories):
    """The events of these categories."""
    return [event for event in events(path) if event["cat"] in categories]


def rows(path, statement):
    """The rows of an SQLite file, as tuples."""
    with closing(sqlite3.connect(f"file:{Path(path)}?immutable=1", uri=True)) as connection:
        return connection.execute(statement).fetchall()
