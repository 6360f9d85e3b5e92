"""Page data built while measuring: it is that of a reading of its own, follows its source, and is lost alone."""

import contextlib
import json
import pickle
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chrome_builder import annotation, kernel, launched, op, step, write

import tracekit
from tracekit.job.idle_time.causes import make_idle_time_measurement
from tracekit.model.errors import TraceFormatError
from tracekit.model.inputs.page_blocks import (
    MAGIC,
    DamagedPageError,
    PackedPage,
    PageBlocks,
    pack_page_blocks,
    unpack_page_blocks,
)
from tracekit.model.tables.slots import PAGE_CAUSES
from tracekit.pipeline import report_cache
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.cache.page_checks import check_page_blocks
from tracekit.pipeline.options import Options
from tracekit.pipeline.run_grouping import merge as merging
from tracekit.process.page_blocks import build as building
from tracekit.process.page_blocks.build import build_page_blocks
from tracekit.render.explorer.page import write_explorer_page
from tracekit.render.explorer.template import PageAssets
from tracekit.render.json import read_report_json

ROOT = Path(__file__).parents[2]
GPU = ROOT / "examples" / "simulated_gpu" / "outputs" / "profile"
PROFILES = {
    "gpu": GPU,
    "verl on CPUs": ROOT / "examples" / "verl_cpu" / "outputs" / "profile",
    "gloo": ROOT / "tests" / "data" / "gloo_faults",
}
ASKED = Options(jobs=1, cache=False, timeline=True)
ASSETS = PageAssets("{{head}}", "", "")


def measure(path, options=ASKED):
    """The measurements of a path."""
    return pipeline.measure(pipeline.discover_sources(path, options), options)


def build(trace):
    """The page data of a trace, as a worker builds it."""
    devices = trace.derived(make_idle_time_measurement()) if trace.has("device_ops") else ()
    return build_page_blocks(trace, devices)


def is_equal(one, other):
    """Whether the page data of two processes is the same, source aside."""
    same = (one.base_ns, one.names, one.threads) == (other.base_ns, other.names, other.threads)
    same = same and one.numbers.keys() == other.numbers.keys()
    return same and all(np.array_equal(one.numbers[name], other.numbers[name]) for name in one.numbers)


@pytest.fixture
def ranks(tmp_path):
    """Two ranks with a step, a stage and two kernels each."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        rows = [
            step(1, 0, 300), annotation("gen", 5, 200), op("aten::mm", 8, 60),
            *launched("gemm", 10, 40, 30, 1), *launched("relu", 50, 90 + rank, 20, 2), kernel("free", 400, 5),
        ]  # fmt: skip
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return folder


@pytest.mark.parametrize("name", PROFILES)
def test_page_data_that_comes_with_measurements_is_that_of_its_file(name):
    measured = measure(PROFILES[name])
    assert len(measured.pages) == sum(source.tool != "log" for source in measured.sources)
    for page in measured.pages:
        assert page.source in measured.sources
        unpacked = unpack_page_blocks(page.source, page.data)
        check_page_blocks(unpacked)
        (trace,) = pipeline.read_source(
            page.source, lambda _: None, pipeline.add_graph_inputs(pipeline.list_wanted_inputs())
        )
        assert is_equal(unpacked, build(trace))


def test_packing_loses_nothing():
    (first, _) = tracekit.load_all(GPU)
    blocks = build(first)
    assert is_equal(blocks, unpack_page_blocks(None, pack_page_blocks(blocks)))
    odd = PageBlocks(
        first.source, -5, {"x": np.array([2**64 - 1], np.uint64), "y": np.empty(0, np.uint8)}, ("a\n\u202e",)
    )
    again = unpack_page_blocks(None, pack_page_blocks(odd))
    assert is_equal(odd, again)
    assert again.numbers["x"].tolist() == [2**64 - 1]


def test_without_being_asked_for_no_page_data_is_built(ranks, monkeypatch):
    monkeypatch.setattr(building, "build_page_blocks", None)
    for options in (replace(ASKED, timeline=False), replace(ASKED, timeline=False, graphs=True)):
        measured = measure(ranks, options)
        assert measured.pages == ()
        assert not measured.faults
        assert pipeline.judge(measured).timeline is None


def test_page_data_that_cannot_be_built_is_lost_alone(ranks, monkeypatch):
    def explode(*_):
        raise RuntimeError("no")

    whole = measure(ranks)
    monkeypatch.setattr(building, "build_page_blocks", explode)
    measured = measure(ranks)
    assert measured.pages == ()
    assert {(fault.question, fault.error) for fault in measured.faults} == {("timeline", "RuntimeError: no")}
    assert {name: len(rows) for name, rows in measured.arrays.items()} == {
        name: len(rows) for name, rows in whole.arrays.items()
    }
    assert "timeline could not be measured" in " ".join(pipeline.judge(measured).cautions)


def test_only_the_selected_ranks_and_steps_are_on_the_page(ranks):
    write(ranks / "rank1.json", [step(1, 0, 100), kernel("a", 10, 5), step(2, 100, 100), kernel("b", 110, 5)], rank=1)
    (page,) = measure(ranks, replace(ASKED, ranks="1", steps="2")).pages
    assert unpack_page_blocks(None, page.data).names.count("a") == 0
    assert page.source.rank == 1


def test_page_data_survives_pickling(ranks):
    measured = measure(ranks)
    assert pickle.loads(pickle.dumps(measured)).pages == measured.pages


def test_merged_runs_rename_the_sources_of_page_data(ranks):
    one = measure(ranks)
    both = merging.merge([one, one], ["a", "b"])
    assert [page.source.run for page in both.pages] == ["a", "a", "b", "b"]
    assert [page.source for page in both.pages] == list(both.sources)


# Caches


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


def test_an_entry_with_page_data_serves_those_without_but_not_the_other_way_round(ranks, measured_now):
    both, neither = replace(ASKED, cache=True, graphs=True), replace(ASKED, cache=True, timeline=False)
    only_page, only_graphs = replace(both, graphs=False), replace(both, timeline=False)
    for options, fresh in (
        *((neither, 2), (neither, 0), (only_graphs, 2), (only_page, 2), (both, 2)),
        *((both, 0), (only_page, 0), (only_graphs, 0), (neither, 0)),
    ):
        measured = measure(ranks, options)
        assert len(measured_now) == fresh
        assert len(measured.pages) == (2 if options.timeline else 0)
        assert not options.graphs or len(measured.graphs) == 2
        measured_now.clear()
    assert measure(ranks, only_page).pages == measure(ranks).pages


def test_an_entry_with_everything_serves_all(ranks, measured_now):
    both = replace(ASKED, cache=True, graphs=True)
    for options, fresh in ((both, 2), (replace(both, timeline=False), 0), (replace(both, graphs=False), 0)):
        measure(ranks, options)
        assert len(measured_now) == fresh
        measured_now.clear()


def test_a_cached_report_has_its_timeline_only_if_asked_for(ranks, measured_now):
    options = replace(ASKED, cache=True)
    fresh = report_cache.analyze_cached(ranks, options)
    measured_now.clear()
    cached = report_cache.analyze_cached(ranks, options)
    assert not measured_now
    assert isinstance(cached, report_cache.CachedResult)
    assert cached.report == fresh.report
    assert cached.report.timeline.critical.source
    without = report_cache.analyze_cached(ranks, replace(options, timeline=False))
    assert without.report.timeline is None
    assert replace(cached.report, timeline=None) == without.report


def test_no_other_output_has_the_timeline(ranks):
    report = tracekit.analyze(ranks, cache=False, jobs=1, timeline=True)
    assert len(report.timeline.processes) == 2
    bare = replace(report, timeline=None)
    for name in ("text", "md", "json", "openmetrics", "csv"):
        assert tracekit.render(report, name) == tracekit.render(bare, name)
    text = tracekit.render(report, "json")
    assert "timeline" not in json.loads(text)
    assert read_report_json(text) == bare


# Saved measurements


def test_saved_measurements_have_the_page_data(ranks, tmp_path):
    measured = measure(ranks)
    saved_measurements.save(measured, tmp_path / "a.tkm")
    loaded = saved_measurements.load(tmp_path / "a.tkm")
    assert [page.data for page in loaded.pages] == [page.data for page in measured.pages]
    assert [page.source.name for page in loaded.pages] == [page.source.name for page in measured.pages]
    assert pipeline.judge(loaded).timeline is not None
    assert tracekit.analyze(tmp_path / "a.tkm").timeline is None
    assert len(tracekit.analyze(tmp_path / "a.tkm", timeline=True).timeline.processes) == 2


def test_saved_page_data_of_another_version_is_left_out(ranks, tmp_path):
    measured = measure(ranks)
    first, second = measured.pages
    other = replace(first, data=MAGIC.replace(b"1", b"9") + first.data[len(MAGIC) :])
    saved_measurements.save(replace(measured, pages=(other, second)), tmp_path / "a.tkm")
    assert [page.data for page in saved_measurements.load(tmp_path / "a.tkm").pages] == [second.data]


@pytest.mark.parametrize(
    "index",
    [5, {}, [[0, 1, 2]], [["0", 1]], [[True, 4]], [[9, 4]], [[-1, 4]], [[0, -4]], [[0, 2**40]], [[0, 4]] * 3],
)
def test_a_malformed_index_of_page_data_is_refused(ranks, tmp_path, index):
    saved_measurements.save(measure(ranks), tmp_path / "a.tkm")
    with zipfile.ZipFile(tmp_path / "a.tkm") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries["pages/index.json"] = json.dumps(index).encode()
    with zipfile.ZipFile(tmp_path / "b.tkm", "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(TraceFormatError):
        saved_measurements.load(tmp_path / "b.tkm")


# Damaged data


VALUES = (0, 1, 2, 3, 7, 63, 255, 2**16, 2**31, 2**32 - 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def damage(blocks, rng):
    """The data with some values, lengths, columns or texts changed."""
    numbers, names, threads = dict(blocks.numbers), blocks.names, blocks.threads
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(sorted(numbers))
        array = numbers[name]
        way = rng.randrange(8)
        if way < 5 and len(array):
            changed = array.astype(np.uint64)
            place = rng.randrange(len(changed))
            near = max(int(changed[place]) + rng.randint(-3, 3), 0)
            changed[place] = min(near, 2**64 - 1) if rng.random() < 0.5 else rng.choice(VALUES)
            numbers[name] = changed
        elif way == 5:
            numbers[name] = rng.choice((array[:-1], np.append(array, array[:1]), array[:0]))
        elif way == 6:
            del numbers[name]
        else:
            names, threads = rng.choice(((names[:-1], threads), (names, threads[:-1]), ((), ()), (names * 2, threads)))
    base = blocks.base_ns if rng.random() < 0.9 else rng.choice((0, -(2**60), 2**60, 2**61, -(2**61), 2**63))
    return PageBlocks(blocks.source, base, numbers, names, threads)


@pytest.fixture(scope="module")
def sound():
    """The data of a process with devices, and of one without."""
    with_devices = next(iter(tracekit.load_all(GPU)))
    on_cpu = next(iter(tracekit.load_all(PROFILES["gloo"])))
    return [build(with_devices), build(on_cpu)]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_columns_are_refused_or_make_a_page(sound, seed):
    """Whatever passes the checks can be written: no other error, and no page beyond its budget."""
    rng, refused, written = random.Random(seed), 0, 0
    report = tracekit.Report("t", "0")
    for case in range(60):
        blocks = damage(sound[case % 2], rng)
        try:
            check_page_blocks(unpack_page_blocks(sound[0].source, pack_page_blocks(blocks)))
        except DamagedPageError:
            refused += 1
            continue
        page = write_explorer_page(report, [blocks, sound[1]], ASSETS, PAGE_CAUSES, 400_000)
        assert page.text
        written += 1
    assert refused > 10
    assert written > 3


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_refused_or_the_same(sound, seed):
    rng, data = random.Random(seed), pack_page_blocks(sound[0])
    for _ in range(60):
        wrong = bytearray(data)
        for _ in range(rng.choice((1, 3))):
            wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
        wrong = bytes(wrong[: rng.choice((len(wrong), len(wrong), rng.randrange(len(wrong))))])
        with contextlib.suppress(DamagedPageError):
            assert is_equal(unpack_page_blocks(None, wrong), sound[0])


def test_a_small_file_cannot_ask_for_much_memory(sound, monkeypatch):
    monkeypatch.setattr("tracekit.model.inputs.page_blocks.MAX_UNPACKED_BYTES", 1_000)
    with pytest.raises(DamagedPageError, match="memory limit"):
        unpack_page_blocks(None, pack_page_blocks(sound[0]))


def test_a_damaged_file_with_page_data_is_refused_whole(ranks, tmp_path):
    """Page data that passes the zip file's own checks, but not ours."""
    measured = measure(ranks)
    (first, second) = measured.pages
    blocks = unpack_page_blocks(first.source, first.data)
    wrong = PageBlocks(blocks.source, 0, dict(blocks.numbers) | {"kernel.name": np.full(3, 99, np.uint8)}, blocks.names)
    pages = (PackedPage(first.source, pack_page_blocks(wrong)), second)
    saved_measurements.save(replace(measured, pages=pages), tmp_path / "a.tkm")
    with pytest.raises(TraceFormatError, match="value outside its range"):
        saved_measurements.load(tmp_path / "a.tkm")
