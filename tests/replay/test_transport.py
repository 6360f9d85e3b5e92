"""Graphs built while measuring: they are those of a reading of their own, follow their sources, and are lost alone."""

import gzip
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chrome_builder import write
from replay.graphs import issue, meet, read_graphs
from replay.rules import aten, gloo_rank
from replay.same import list_differences

from tracekit.engine.ray_worker import compress_value, decompress_value
from tracekit.model.errors import TracekitError
from tracekit.model.trace import Trace
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
from tracekit.pipeline.prediction import run_graphs
from tracekit.pipeline.replaying import replay_measured, replay_run
from tracekit.pipeline.run_grouping import merge as merging
from tracekit.pipeline.wire_format import packed_graphs
from tracekit.pipeline.wire_format.column_coding import DamagedGraphError
from tracekit.pipeline.wire_format.packed_graphs import pack_graph, unpack_graph
from tracekit.replay.job_graph import join_processes

EXAMPLES = Path(__file__).parents[2] / "examples"
GPU = EXAMPLES / "simulated_gpu" / "outputs" / "profile"
DATA = Path(__file__).parents[1] / "data"
PROFILES = {
    "gpu": GPU,
    "verl on CPUs": EXAMPLES / "verl_cpu" / "outputs" / "profile",
    "gloo": DATA / "gloo_faults",
    "recorded": DATA / "gpu" / "no_marks",
}
ASKED = Options(jobs=1, cache=False, graphs=True)


def measure(path, options=ASKED):
    """The measurements of a path."""
    return pipeline.measure(pipeline.discover_sources(path, options), options)


@pytest.fixture
def ranks(tmp_path):
    """Two ranks that meet in a collective."""
    for rank in (0, 1):
        rows = [aten("aten::mm", 0, 10), *issue("k", 2, 9, 20, 1), *meet(40, 50 + rank, 20 - rank, 2, 1)]
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return tmp_path


@pytest.mark.parametrize("name", PROFILES)
def test_a_graph_that_comes_with_measurements_is_that_of_its_file(name):
    known = {(graph.source.name, graph.source.pid, graph.source.rank): graph for graph in read_graphs(PROFILES[name])}
    measured = measure(PROFILES[name])
    assert {graph.key for graph in measured.graphs if graph.numbers} == known.keys()
    assert len(measured.graphs) == len(known)
    for columns in measured.graphs:
        assert list_differences(known[columns.key], unpack_graph(columns)) == []
        assert columns.source in measured.sources


@pytest.mark.parametrize("name", PROFILES)
def test_a_packed_graph_takes_a_third_of_the_promised_memory(name):
    """100 bytes per row of the trace are promised."""
    measured = measure(PROFILES[name])
    counts = measured.frame("captures")
    rows = int(counts["host_op_count"].sum() + counts["device_op_count"].sum())
    sizes = [array.nbytes for graph in measured.graphs for array in graph.numbers.values()]
    assert sum(sizes) == sum(graph.size_bytes for graph in measured.graphs) <= 100 / 3 * rows


def test_graphs_survive_pickling_and_the_transport_of_ray():
    measured = measure(GPU)
    for columns, *others in zip(
        measured.graphs,
        pickle.loads(pickle.dumps(measured)).graphs,
        decompress_value(compress_value(measured.graphs)),
        strict=True,
    ):
        for other in others:
            assert (other.source, other.texts) == (columns.source, columns.texts)
            assert other.numbers.keys() == columns.numbers.keys()
            assert all(np.array_equal(other.numbers[name], columns.numbers[name]) for name in columns.numbers)


def test_without_being_asked_for_no_graph_is_built(ranks, monkeypatch):
    monkeypatch.setattr(packed_graphs, "build_process_graph", None)
    measured = measure(ranks, replace(ASKED, graphs=False))
    assert measured.graphs == ()
    with pytest.raises(TracekitError, match="contain no dependency graphs"):
        replay_measured(measured)


def test_a_graph_that_cannot_be_built_is_lost_alone(ranks, monkeypatch):
    def explode(trace):
        raise RuntimeError("no")

    whole = measure(ranks)
    monkeypatch.setattr(packed_graphs, "build_process_graph", explode)
    measured = measure(ranks)
    assert measured.graphs == ()
    assert {(fault.question, fault.error) for fault in measured.faults} == {("replay", "RuntimeError: no")}
    assert {name: len(rows) for name, rows in measured.arrays.items()} == {
        name: len(rows) for name, rows in whole.arrays.items()
    }
    assert "replay could not be measured" in " ".join(pipeline.judge(measured).cautions)


@pytest.fixture
def measured_now(monkeypatch, tmp_path_factory):
    """The names of the sources that are measured, not taken from the cache."""
    monkeypatch.delenv("TRACEKIT_NO_CACHE")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
    names, really = [], pipeline.measure_source

    def note(source, advance, **chosen):
        names.append(source.name)
        return really(source, advance, **chosen)

    monkeypatch.setattr(pipeline, "measure_source", note)
    return names


def test_graphs_are_kept_in_the_cache(ranks, measured_now):
    """Their entries serve those who ask for no graphs as well, but not the other way round."""
    asked = replace(ASKED, cache=True)
    without = replace(asked, graphs=False)
    for options, fresh in ((without, 2), (without, 0), (asked, 2), (asked, 0), (without, 0)):
        measured = measure(ranks, options)
        assert len(measured_now) == fresh
        assert len(measured.graphs) == (2 if options.graphs else 0)
        measured_now.clear()
    for before, after in zip(measure(ranks).graphs, measure(ranks, asked).graphs, strict=True):
        assert list_differences(unpack_graph(before), unpack_graph(after)) == []
        assert before.source == after.source


def test_a_source_measured_without_a_graph_is_read_again(ranks):
    discovery = pipeline.discover_sources(ranks, ASKED)
    whole = measure(ranks)
    completed = run_graphs.add_missing_graphs(replace(whole, graphs=whole.graphs[1:]), discovery.sources, ASKED)
    assert sorted(graph.key for graph in completed.graphs) == sorted(graph.key for graph in whole.graphs)
    assert np.array_equal(replay_measured(completed).job.time, replay_measured(whole).job.time)


def test_a_copy_of_a_recording_brings_no_graph(tmp_path):
    """A truncated copy of a file is the same recording with less in it."""
    (source,) = GPU.glob("*rank0*.json.gz")
    shutil.copy(source, tmp_path / "whole.json.gz")
    (tmp_path / "less.json").write_bytes(gzip.decompress(source.read_bytes())[:-200_000])
    measured = measure(tmp_path)
    assert [graph.source.name for graph in measured.graphs] == ["whole.json.gz"]
    assert len(measured.sources) == 1


def test_graphs_follow_their_sources_to_other_names(ranks):
    measured = measure(ranks)
    merged = merging.merge([measured, measured], ["before", "after"])
    assert [graph.source for graph in merged.graphs] == list(merged.sources)
    assert {graph.source.run for graph in merged.graphs} == {"before", "after"}
    with pytest.raises(TracekitError, match="a replay needs one run, and 2 runs are here"):
        replay_measured(merged)


def test_selected_steps_are_chosen_from_the_whole_graph():
    """Unlike tables, a graph is not cut to steps."""
    whole, chosen = (replay_run(GPU, replace(ASKED, steps=steps)) for steps in (None, "6"))
    assert np.array_equal(whole.job.time, chosen.job.time)
    assert set(chosen.steps.number.tolist()) == {6}


def test_only_selected_ranks_are_replayed():
    replayed = replay_run(GPU, replace(ASKED, ranks="1"))
    assert [graph.source.rank for graph in replayed.job.processes] == [1]


def test_a_process_without_work_has_no_columns_and_takes_no_part(ranks):
    measured = measure(ranks)
    empty = packed_graphs.build_graph_columns(Trace(measured.sources[1], {}))
    assert (empty.source, empty.numbers, unpack_graph(empty)) == (measured.sources[1], {}, None)
    replayed = replay_measured(replace(measured, graphs=(measured.graphs[0], empty)))
    assert [graph.source.rank for graph in replayed.job.processes] == [0]


def test_a_graph_of_host_collectives_and_an_empty_one_are_packed(tmp_path):
    for rank, late in ((0, 100), (1, 455)):
        write(tmp_path / f"rank{rank}.json", gloo_rank(late, 600), rank=rank, world_size=2)
    graphs = read_graphs(tmp_path)
    again = [unpack_graph(pack_graph(graph)) for graph in graphs]
    assert [list_differences(*pair) for pair in zip(graphs, again, strict=True)] == [[], []]
    before, after = join_processes(graphs), join_processes(again)
    assert np.array_equal(before.edges.source, after.edges.source)
    assert all(map(np.array_equal, before.settled.residual, after.settled.residual))


def test_times_too_far_apart_are_not_packed(ranks):
    graph, _ = read_graphs(ranks)
    ops = replace(graph.ops, end=graph.ops.end + 2**61)
    with pytest.raises(DamagedGraphError, match="beyond all limits"):
        pack_graph(replace(graph, ops=ops))
