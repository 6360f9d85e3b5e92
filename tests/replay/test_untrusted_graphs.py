"""Packed graphs with damage: each is refused, or can be replayed whole; nothing else is raised."""

import io
import json
import random
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from chrome_builder import annotation, step, write
from replay.graphs import issue, meet, read_graphs, runtime
from replay.rules import aten, gloo_rank
from replay.whole import replay_graphs

from tracekit.model.errors import TracekitError
from tracekit.model.inputs.graph_columns import GraphColumns
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import ask_what_if, replay_measured
from tracekit.pipeline.wire_format.column_coding import DamagedGraphError
from tracekit.pipeline.wire_format.packed_graphs import pack_graph, unpack_graph


def write_ranks(folder):
    """Two ranks with steps, stages, copies, waits and collectives."""
    for rank in (0, 1):
        rows = [
            step(1, 0, 900), annotation("gen", 5, 400), annotation("update_actor", 420, 400),
            aten("aten::mm", 6, 30), *issue("k", 10, 17, 20, 1), *issue("j", 20, 45, 20, 2, stream=9),
            *issue("Memcpy DtoH (Device -> Pageable)", 60, 70, 20, 3), runtime("cudaStreamSynchronize", 85, 60, 4),
            *meet(440, 450 + rank, 40 - rank, 5, 1), runtime("cudaDeviceSynchronize", 470, 60, 6), step(2, 910, 90),
        ]  # fmt: skip
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=2)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Packed graphs of several kinds, with a partner each."""
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder)
    host = tmp_path_factory.mktemp("gloo")
    for rank, late in ((0, 100), (1, 455)):
        write(host / f"rank{rank}.json", gloo_rank(late, 600), rank=rank, world_size=2)
    return [[pack_graph(graph) for graph in read_graphs(path)] for path in (folder, host)]


VALUES = (-(2**63), -(2**62), -(2**31), -2, -1, 0, 1, 2, 3, 7, 63, 255, 2**16, 2**31 - 1, 2**31, 2**61, 2**63 - 1)


def damage(columns, rng):
    """The columns with some values, lengths, types or texts changed."""
    numbers, texts = dict(columns.numbers), dict(columns.texts)
    for _ in range(rng.choice((1, 1, 2, 5))):
        name = rng.choice(sorted(numbers))
        array = numbers[name]
        way = rng.randrange(8)
        if way < 5 and len(array) and array.dtype.kind != "f":
            changed = array.astype(np.int64)
            place = rng.randrange(len(changed))
            near = int(changed[place]) + rng.randint(-3, 3)
            changed[place] = max(min(near if rng.random() < 0.6 else rng.choice(VALUES), 2**63 - 1), -(2**63))
            fits = np.iinfo(array.dtype)
            numbers[name] = changed.astype(array.dtype) if fits.min <= changed[place] <= fits.max else changed
        elif way == 5:
            numbers[name] = rng.choice((array[:-1], np.append(array, array[:1]), array.astype(np.float64), array[:0]))
        elif way == 6:
            del numbers[name]
            numbers[rng.choice(("x", name))] = array
        else:
            text = rng.choice(sorted(texts))
            texts[text] = rng.choice(((), texts[text][::-1], texts[text][:1], (*texts[text], "more"), ("a", "a")))
    return GraphColumns(columns.source, numbers, texts)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_columns_are_refused_or_replayed(packed, seed):
    refused = replayed = 0
    for case in range(150):
        rng = random.Random(f"{seed} {case}")
        first, second = packed[case % len(packed)]
        try:
            graph = unpack_graph(damage(first, rng))
        except DamagedGraphError:
            refused += 1
            continue
        replay_graphs([graph, unpack_graph(second)])
        replayed += 1
    assert refused > 40
    assert replayed > 40


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saved measurements with graphs: the bytes of the file."""
    folder = tmp_path_factory.mktemp("saved")
    write_ranks(folder)
    measured = pipeline.measure(pipeline.discover_sources(folder), Options(jobs=1, cache=False, graphs=True))
    saved_measurements.save(measured, folder / "run.tkm")
    return (folder / "run.tkm").read_bytes()


def rewrite(data, change):
    """The file with its entries changed by `change(name, content)`; None drops one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.infolist():
            content = change(entry.filename, before.read(entry))
            if content is not None:
                kind = zipfile.ZIP_STORED if entry.filename == "manifest.json" else zipfile.ZIP_DEFLATED
                after.writestr(entry.filename, content, kind)
    return buffer.getvalue()


def test_graphs_are_saved_and_loaded(tmp_path, saved):
    (tmp_path / "run.tkm").write_bytes(saved)
    loaded = saved_measurements.load(tmp_path / "run.tkm")
    saved_measurements.save(loaded, tmp_path / "again.tkm")
    assert (tmp_path / "again.tkm").read_bytes() == saved
    assert [graph.source for graph in loaded.graphs] == list(loaded.sources)
    assert len(replay_measured(loaded).steps) == 2


def test_a_damaged_file_is_refused_or_replayed(tmp_path, saved):
    """Single bytes of the graphs in it differ."""
    path = tmp_path / "run.tkm"
    refused = 0
    for case in range(60):
        rng = random.Random(case)

        def change(name, content, rng=rng):
            if not name.startswith("graphs/") or not content or rng.random() < 0.9:
                return content
            changed = bytearray(content)
            changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)

        path.write_bytes(rewrite(saved, change))
        try:
            ask_what_if([path], ["scale host factor=0.5"], Options(cache=False))
        except TracekitError:
            refused += 1
    assert 10 < refused < 60


def edit(content, *keys_and_value):
    """JSON with one value replaced."""
    *keys, last, value = keys_and_value
    index = json.loads(content)
    place = index
    for key in keys:
        place = place[key]
    place[last] = value
    return json.dumps(index)


@pytest.mark.parametrize(
    "change",
    [
        ("sources", [0, 0]), ("sources", [0, 2]), ("sources", [0, -1]), ("sources", {}), ("sources", [0, True]),
        ("numbers", []), ("numbers", "counts", 0, "O"), ("numbers", "counts", 0, "f4"), ("numbers", "counts", 1, [11]),
        ("numbers", "counts", 1, [11, 2**40]), ("numbers", "counts", 1, [-11, 33]), ("numbers", "counts", 1, 0, 10),
        ("texts", "op.name", 0, [["a"], 3]), ("texts", "op.name", 1, [0, 9]), ("texts", "op.name", [[]]),
        ("texts", "op.name", 0, 0, ["\ud800"]), ("more", 1),
    ],
)  # fmt: skip
def test_an_index_that_does_not_fit_is_refused(tmp_path, saved, change):
    path = tmp_path / "run.tkm"
    path.write_bytes(rewrite(saved, lambda name, text: edit(text, *change) if name == "graphs/index.json" else text))
    with pytest.raises(TracekitError):
        saved_measurements.load(path)


def test_a_missing_and_an_unknown_column_are_refused(tmp_path, saved):
    path = tmp_path / "run.tkm"
    path.write_bytes(rewrite(saved, lambda name, content: None if name == "graphs/counts.data" else content))
    with pytest.raises(TracekitError, match=r"graphs/counts\.data"):
        saved_measurements.load(path)
    path.write_bytes(
        rewrite(saved, lambda name, text: edit(text, "graphs", False) if name == "manifest.json" else text)
    )
    with pytest.raises(TracekitError, match="unknown entry"):
        saved_measurements.load(path)


def test_a_column_that_is_no_graph_is_named(tmp_path, saved):
    (tmp_path / "run.tkm").write_bytes(saved)
    measured = saved_measurements.load(tmp_path / "run.tkm")
    graph = measured.graphs[0]
    bad = GraphColumns(graph.source, {**graph.numbers, "op.stream": graph.numbers["op.stream"][:1]}, graph.texts)
    with pytest.raises(TracekitError, match=r"rank0.json: not readable as a graph: op.stream: 1 values instead of 4"):
        replay_measured(replace(measured, graphs=(bad, *measured.graphs[1:])))
