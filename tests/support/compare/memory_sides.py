"""Sides made of memory snapshots of our own making, measured without the rest of the pipeline."""

from memory_builder import Allocator, frame, pickled, snapshot

from tracekit.analyses.memory import memory, memory_peak
from tracekit.compare.changes import ComparisonChoices
from tracekit.compare.judge import compare_sides
from tracekit.compare.sides import ComparedInput, build_side
from tracekit.model.report import Report
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.trace import Measurements, Source, Want, add_key_columns
from tracekit.pipeline.summary import notes as appendix
from tracekit.readers import torch_memory

QUESTIONS = (memory, memory_peak)
"""What is measured of every snapshot; tests that are about more name it."""

TRAIN = "/job/train.py"


def holding(*sizes, device=0, capacity=None):
    """An allocator that holds `size` bytes for each (size, function), or for (size, function, file, line)."""
    made = Allocator(device, capacity)
    for size, *where in sizes:
        made.alloc(size, frames(*where))
    return made


def frames(name=None, file=TRAIN, line=10):
    """The stack of one function; none without a name."""
    return [] if name is None else [frame(name, file, line)]


def measured(folder, made, *more):
    """The measured tables of snapshots: `made` by file name, each (allocator or snapshot, what its source says)."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = []
    for name, (held, facts) in made.items():
        path = folder / name
        path.write_bytes(pickled(held if isinstance(held, dict) else snapshot(held)))
        known = {"run": folder.name, **facts}
        sources.append(Source(path, name, "torch_memory", "torch_memory", **known))
    return measured_sources(sources, *more)


def measured_sources(sources, *more):
    """The measured tables of these snapshots, by `QUESTIONS` and `more` of them."""
    tables, read = {}, []
    for source in sources:
        (trace,) = torch_memory.read(source, Want())
        read.append(trace.source)
        for question in (*QUESTIONS, *more):
            for table, columns in question.measure(trace).items():
                part = add_key_columns(TABLES[table], columns, trace.source)
                tables.setdefault(table, []).append(part)
    found = {name: concatenate_table_parts(TABLES[name], parts) for name, parts in tables.items()}
    return Measurements(found, tuple(read))


def memory_side(folder, made, *more, kept=True):
    """A side of these snapshots; without `kept` one of the report that was saved of them."""
    return side_of(folder.name, measured(folder, made, *more), kept=kept)


def side_of(name, found, *, kept=True):
    """A side of measurements, or of the report that was saved of them."""
    report = Report("made", "0", values=appendix.make_value_table(found))
    return build_side(name, [ComparedInput(name, report, found if kept else None)])


def of_one(folder, held, *more, **facts):
    """A side of one snapshot."""
    return memory_side(folder, {"a.pickle": (held, facts)}, *more)


def memory_of(base, opt, **choices):
    """What a comparison of two sides says of memory."""
    return compare_sides(base, opt, ComparisonChoices(**choices)).memory


def told(rows):
    """(site, state, before, after, change) of rows."""
    return [(r.site, r.state, r.base_bytes, r.opt_bytes, r.difference) for r in rows]
