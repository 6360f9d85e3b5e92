"""Which questions have to be measured where few are judged, and a stop wherever that turns out to be too few.

Measuring all questions is most of what a small analysis takes. A module that names those it asks (`ASKED`)
has only their tables and those that they read; whatever else looks at a table that was left out fails.
"""

import pytest

from tracekit.analyses import ANALYSES
from tracekit.model.tables.arrays import texts_of
from tracekit.model.trace import Measurements

TABLES_OF = {a.id: {*a.writes} for a in ANALYSES if a.writes}
"""The tables that each question measures."""

METRICS_OF = {a.id: a.metrics for a in ANALYSES}

COMPARED = frozenset(id_ for id_, tables in TABLES_OF.items() if "metrics" in tables)
"""The questions of whose values a later compare is made."""

EVERYWHERE = frozenset({"data-quality", "steps"})
"""What nearly every judgement looks at."""

FIRST_SCREEN = COMPARED | {"driver-log", "interruptions", "matmuls", "memory-categories", "out-of-memory", "stragglers"}  # fmt: skip
"""The questions whose tables the first screen and the values for a later compare are made of."""

COMPARISON = frozenset({"exclusive", "kernels", "leaks", "operators"})
"""The questions of which a comparison of two sides reads tables, besides those of the first screen."""

QUALITY = frozenset({"communication", "data-quality", "stragglers"})

ALSO_READ = {
    "allocator": {"memory-peak"},
    "communication": {"gpu-time"},
    "copies": {"gpu-time"},
    "cross-check": {"exclusive", "gpu-time"},
    "data-quality": QUALITY,
    "fragmentation": {"allocator", "memory-peak"},
    "gpu-time": {"communication", "data-loading", "host", "idle", "stage-edges", "syncs"},
    "host": {"gpu-time"},
    "idle": {"gpu-time"},
    "imbalance": QUALITY,
    "launch-queues": {"gpu-time"},
    "matmuls": {"gpu-time"},
    "memory-growth": {"leaks", "memory", "memory-peak"},
    "memory-peak": {"memory"},
    "micro-batches": {"driver-log", "gpu-time"},
    "modules": {"attribution"},
    "optimizer": {"gpu-time"},
    "out-of-memory": {"memory", "memory-peak"},
    "repeats": {*COMPARED, "driver-log", "interruptions", "out-of-memory"},
    "rl-matrix": {"driver-log"},
    "stage-edges": {"gpu-time", "syncs"},
    "steps": {"communication"},
    "stragglers": QUALITY,
    "syncs": {"gpu-time"},
    "transfers": {"communication", "driver-log", "gpu-time"},
    "unfused": {"gpu-time"},
}
"""Questions that measure tables which another one judges from, besides its own and those of `EVERYWHERE`."""

EVERYTHING = frozenset(TABLES_OF)
"""For modules whose tests look at all tables."""

OWN_ROWS = {("communication", "quality"), ("stragglers", "quality")}
"""Judgements that look only at their own rows of a table which several questions fill."""


def needed(asked):
    """The questions to measure so that these can be judged."""
    return EVERYWHERE.union(asked, *(ALSO_READ.get(id_, ()) for id_ in asked))


def owners(table):
    """The questions that measure rows of a table."""
    return {id_ for id_, tables in TABLES_OF.items() if table in tables}


def measuring(measured, questions):
    """`measuring.measured` for these questions alone."""

    def few(trace, analyses, *on_question):
        part = measured(trace, [a for a in analyses if a.id in questions], *on_question)
        for id_, frames in part.tables.items():
            assert frames.keys() <= TABLES_OF.get(id_, set()), (
                f"{id_}: a table that its WRITES lack"
            )
            if "metrics" in frames:
                unknown = {*texts_of(frames["metrics"]["name"])} - {*METRICS_OF[id_]}
                assert not unknown, f"{id_}: a metric that its METRICS lack"
        return part

    return few


HAS, GET = Measurements.has, Measurements.__getitem__


def watch(monkeypatch, questions, judging, own_rows):
    """Make every look at a table fail that is not there because these questions alone were measured.

    `judging` holds the id of the question that is judged at the moment; `own_rows` says more than `OWN_ROWS`.
    """

    def look(measurements, name):
        unmeasured = owners(name) - questions
        gone = name not in measurements.tables or len(owners(name)) > 1
        who = judging[-1] if judging else None
        if unmeasured and gone and (who, name) not in OWN_ROWS | own_rows:
            who = who or "a test or the first screen"
            pytest.fail(f"{who} reads {name}, which {sorted(unmeasured)} would have measured: name them in MEASURED or ALSO_READ")  # fmt: skip

    def watched_has(measurements, *names):
        for name in names:
            look(measurements, name)
        return HAS(measurements, *names)

    def watched_get(measurements, name):
        look(measurements, name)
        return GET(measurements, name)

    monkeypatch.setattr(Measurements, "has", watched_has)
    monkeypatch.setattr(Measurements, "__getitem__", watched_get)
