"""Which questions have to be measured where few are judged, and a stop wherever that turns out to be too few.

Measuring all questions is most of what a small analysis takes. A module that names those it asks (`ASKED`)
has only their tables and those that they read; whatever else looks at a table that was left out fails.
"""

import pytest

from tracekit.trace import Measurements

TABLES_OF = {
    "steps": {"metrics", "stages", "steps"},
    "driver-log": {"logged"},
    "stragglers": {"arrivals", "quality", "segments"},
    "exclusive": {"slots"},
    "gpu-time": {"busy_bins", "gpu_time", "metrics"},
    "idle": {"idle", "idle_gaps", "idle_histogram", "metrics"},
    "stage-edges": {"stage_edges"},
    "syncs": {"sync_stalls"},
    "launch-queues": {"launch_delays", "queues"},
    "communication": {"collectives", "metrics", "quality"},
    "transfers": {"transfers"},
    "fleets": {"busy_spans"},
    "micro-batches": {"micro_batches"},
    "forward-batches": {"forward_batches"},
    "rollout": {"generations", "iterations", "metrics"},
    "host": {"host_counts", "metrics"},
    "data-loading": {"loader_waits"},
    "optimizer": {"optimizer_steps"},
    "interruptions": {"interruptions"},
    "kernels": {"kernels"},
    "matmuls": {"matrix_products", "work_classes"},
    "unfused": {"unfused_calls", "unfused_work"},
    "operators": {"operators"},
    "shapes": {"operator_shapes", "operator_totals"},
    "modules": {"modules"},
    "copies": {"copies"},
    "attribution": {"graph_launches", "launches"},
    "memory": {"device_sizes", "memory_curve", "memory_peaks", "memory_stages", "memory_steps", "metrics"},
    "memory-growth": {"step_levels"},
    "memory-peak": {"live_frames", "live_sites", "metrics", "snapshot_levels"},
    "live-steps": {"live_steps"},
    "memory-categories": {"category_curve", "category_levels", "category_peaks"},
    "fragmentation": {"free_space", "metrics", "requests", "segment_map"},
    "allocator": {"allocator_steps", "lifetimes"},
    "out-of-memory": {"last_actions", "out_of_memory"},
    "leaks": {"snapshot_windows", "survivor_blocks", "survivors"},
    "counters": {"counter_curve", "counter_levels", "metrics"},
    "data-quality": {"captures", "quality"},
}  # fmt: skip
"""The tables that each question measures."""

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
    "cross-check": {"exclusive", "gpu-time"},
    "data-quality": QUALITY,
    "fragmentation": {"allocator", "memory-peak"},
    "gpu-time": {"communication", "data-loading", "host", "idle", "stage-edges", "syncs"},
    "idle": {"gpu-time"},
    "imbalance": QUALITY,
    "launch-queues": {"gpu-time"},
    "memory-growth": {"leaks", "memory", "memory-peak"},
    "memory-peak": {"memory"},
    "micro-batches": {"driver-log"},
    "modules": {"attribution"},
    "out-of-memory": {"memory", "memory-peak"},
    "repeats": {*COMPARED, "driver-log", "interruptions", "out-of-memory"},
    "rl-matrix": {"driver-log"},
    "stage-edges": {"gpu-time", "syncs"},
    "steps": {"communication"},
    "stragglers": QUALITY,
    "syncs": {"gpu-time"},
    "transfers": {"communication", "driver-log"},
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

    def few(trace, analyses):
        part = measured(trace, [a for a in analyses if a.id in questions])
        for id_, frames in part.frames.items():
            assert frames.keys() <= TABLES_OF.get(id_, set()), (
                f"{id_}: a table that TABLES_OF lacks"
            )
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
