"""A file that did not change is measured once: the second look gives the same bytes, whatever became of the cache."""

import json
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest
from chrome_builder import annotation, launched, op, step, write
from command_line import invoke
from hypothesis import given
from hypothesis import strategies as st
from nsys_programs import copies, install, put_export, put_report

from tracekit.discover.selection import SelectableParts
from tracekit.model.inputs.note_codes import Data
from tracekit.model.tables import SHARED, TABLES
from tracekit.model.trace import KeyLabels, Note, Source
from tracekit.pipeline import measure_source
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import measurement_cache, saved_measurements
from tracekit.pipeline.run import Options
from tracekit.pipeline.wire_format import packed_tables
from tracekit.pipeline.wire_format.worker_tables import MeasuredSource
from tracekit.readers.loading import find_reader

EXAMPLES = Path(__file__).parents[2] / "examples"
RANKS = 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACEKIT_NO_CACHE")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "measured"


def rows_of(rank, longer=0):
    return [
        step(1, 0, 100),
        annotation("gen", 5, 40),
        op("aten::mm", 6, 10),
        *launched("gemm", 8, 20, 10 + rank + longer, 11),
    ]


def write_rank(folder, rank, longer=0):
    return write(folder / f"rank{rank}.json", rows_of(rank, longer), rank=rank, world_size=RANKS)


@pytest.fixture
def profile(tmp_path):
    for rank in range(RANKS):
        write_rank(tmp_path / "run" / "profile", rank)
    return tmp_path / "run" / "profile"


@pytest.fixture
def measured_now(monkeypatch):
    """The names of the sources that are measured, not taken from the cache."""
    names = []
    really = pipeline.measure_source

    def noted(source, advance, **chosen):
        names.append(source.name)
        return really(source, advance, **chosen)

    monkeypatch.setattr(pipeline, "measure_source", noted)
    return names


def look(paths, tmp_path, **options):
    """The bytes of the measurements, and those of the report."""
    result = pipeline.analyze_uncached(paths, Options(**options))
    saved_measurements.save(result.measurements, tmp_path / "m.tkm")
    return (tmp_path / "m.tkm").read_bytes(), repr(asdict(result.report))


def test_the_second_look_measures_nothing_and_gives_the_same(profile, tmp_path, measured_now):
    uncached = look(profile, tmp_path, cache=False)
    first = look(profile, tmp_path)
    assert len(measured_now) == 2 * RANKS
    second = look(profile, tmp_path)
    assert len(measured_now) == 2 * RANKS
    assert uncached == first == second


@pytest.mark.parametrize(
    "example",
    [
        "verl_cpu/outputs/profile",
        *(
            pytest.param(example, marks=pytest.mark.slow)
            for example in ("simulated_gpu/outputs/profile", "simulated_memory/leaking", "compare_cpu/base")
        ),
    ],
)
def test_the_bytes_of_an_example_are_those_of_a_look_without_a_cache(example, tmp_path):
    uncached = look(EXAMPLES / example, tmp_path, cache=False)
    assert look(EXAMPLES / example, tmp_path) == uncached
    assert look(EXAMPLES / example, tmp_path) == uncached


def test_one_new_file_of_many_is_the_one_that_is_measured(profile, tmp_path, measured_now):
    look(profile, tmp_path)
    write(profile / "rank9.json", rows_of(9), rank=9, world_size=RANKS)
    measured_now.clear()
    look(profile, tmp_path)
    assert measured_now == ["rank9.json"]


def test_a_file_that_changed_is_measured_again_even_if_its_size_and_time_did_not(profile, tmp_path, measured_now):
    path = write_rank(profile, 2)
    before, status = look(profile, tmp_path), path.stat()
    write_rank(profile, 2, longer=7)
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    measured_now.clear()
    after = look(profile, tmp_path)
    assert measured_now == ["rank2.json"]
    assert after != before
    assert after == look(profile, tmp_path, cache=False)


def test_a_file_that_has_another_name_now_is_shown_by_it(profile, tmp_path):
    look(profile, tmp_path)
    (profile / "rank3.json").rename(profile / "another.json")
    assert look(profile, tmp_path) == look(profile, tmp_path, cache=False)


def test_what_was_chosen_is_part_of_the_question(profile, tmp_path, measured_now):
    look(profile, tmp_path)
    for options in ({"questions": ("kernels",)}, {"ranks": "0-1"}, {"steps": "1"}):
        measured_now.clear()
        first = look(profile, tmp_path, **options)
        assert measured_now != []
        measured_now.clear()
        assert look(profile, tmp_path, **options) == first
        assert measured_now == []
        assert first == look(profile, tmp_path, cache=False, **options)


def test_a_file_of_which_nothing_was_kept_is_not_read_to_know_that(profile, tmp_path, measured_now, monkeypatch):
    look(profile, tmp_path)
    write(profile / "rank9.json", rows_of(9), rank=9, world_size=RANKS)
    read = []
    really = measurement_cache.add_content_digest
    for module in (measurement_cache, measure_source):
        monkeypatch.setattr(module, "add_content_digest", lambda one: read.append(one.name) or really(one))
    look(profile, tmp_path)
    assert sorted(read) == [*(f"rank{rank}.json" for rank in range(RANKS)), "rank9.json"]


@pytest.mark.parametrize("cache", [True, False])
def test_a_digest_that_a_thread_makes_meanwhile_is_the_same(profile, tmp_path, monkeypatch, cache):
    before = look(profile, tmp_path, cache=False)
    digests = []
    really = measure_source.add_content_digest
    monkeypatch.setattr(measure_source, "LARGE_FILE_BYTES", 0)
    monkeypatch.setattr(measure_source, "count_own_cores", lambda: 2)
    monkeypatch.setattr(
        measure_source,
        "add_content_digest",
        lambda source: digests.append(threading.current_thread().name) or really(source),
    )
    assert look(profile, tmp_path, cache=cache) == before
    assert len(digests) == RANKS
    assert all(name.startswith("tracekit-digest") for name in digests)
    if cache:
        monkeypatch.setattr(measure_source, "add_content_digest", really)
        assert look(profile, tmp_path) == before


def test_a_file_that_is_gone_meanwhile_has_no_digest_and_is_not_kept(profile, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(measure_source, "LARGE_FILE_BYTES", 0)
    monkeypatch.setattr(measure_source, "count_own_cores", lambda: 2)

    def gone(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(measure_source, "digest_content", gone)
    report = pipeline.analyze_uncached(profile, Options())
    assert [source.content for source in report.measurements.sources] == [None] * RANKS
    assert not list(cache.rglob("*.measured"))


def test_other_code_measures_again(profile, tmp_path, measured_now, monkeypatch):
    look(profile, tmp_path)
    monkeypatch.setattr(measurement_cache, "_digest_measuring_code", lambda: "of another version")
    measured_now.clear()
    look(profile, tmp_path)
    assert len(measured_now) == RANKS


def damaged(data, how):
    spot = len(data) // 2
    return {
        "empty": b"",
        "cut": data[:spot],
        "flipped": data[:spot] + bytes([data[spot] ^ 255]) + data[spot + 1 :],
        "other": b"something else",
        "no head": data[:20] + zlib.compress(b"\xff" * 64),
        "no arrays": data[:20] + zlib.compress(zlib.decompress(data[20:])[:-64]),
    }[how]


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "other", "no head", "no arrays"])
def test_a_damaged_entry_is_measured_anew_and_replaced(profile, tmp_path, cache, measured_now, how):
    first = look(profile, tmp_path)
    entry = sorted(cache.iterdir())[1]
    whole = entry.read_bytes()
    entry.write_bytes(damaged(whole, how))
    measured_now.clear()
    assert look(profile, tmp_path) == first
    assert len(measured_now) == 1
    assert entry.read_bytes() == whole


def test_what_failed_is_not_kept(profile, tmp_path, cache, monkeypatch):
    def explode(trace):
        raise RuntimeError("boom")

    broken = tuple(
        pipeline.replace(analysis, measure=explode) if analysis.id == "kernels" else analysis
        for analysis in pipeline.ANALYSES
    )
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "ANALYSES", broken)
        assert pipeline.analyze_uncached(profile).measurements.faults
    assert list(cache.iterdir()) == []
    assert not pipeline.analyze_uncached(profile).measurements.faults


def test_what_a_question_of_the_users_own_measures_is_not_kept(profile, tmp_path, cache):
    look(profile, tmp_path, question_files=(str(EXAMPLES / "own_question.py"),))
    assert not cache.exists()


def test_a_file_that_changes_while_it_is_measured_is_not_kept(profile, tmp_path, cache, monkeypatch):
    really = pipeline.measure_source

    def slowly(source, advance, **chosen):
        parts = really(source, advance, **chosen)
        write_rank(profile, source.rank or 0, longer=5)
        return parts

    monkeypatch.setattr(pipeline, "measure_source", slowly)
    look(profile, tmp_path)
    assert list(cache.iterdir()) == []


def test_a_file_that_changes_within_a_tick_of_the_clock_is_not_kept(profile, tmp_path, cache, monkeypatch):
    really = pipeline.measure_source

    def quickly(source, advance, **chosen):
        parts = really(source, advance, **chosen)
        data = source.path.read_bytes()
        source.path.write_bytes(data.replace(b'"gemm"', b'"GEMM"'))
        return parts

    moment = time.time_ns()
    monkeypatch.setattr(measurement_cache, "_get_source_sign", lambda path: (1, 1, path.stat().st_size, moment, moment))
    monkeypatch.setattr(pipeline, "measure_source", quickly)
    look(profile, tmp_path)
    assert list(cache.iterdir()) == []


def test_no_cache_neither_keeps_nor_takes(profile, tmp_path, cache, measured_now, monkeypatch):
    assert invoke("analyze", profile, "--no-cache", "-q").exit_code == 0
    monkeypatch.setenv("TRACEKIT_NO_CACHE", "1")
    assert invoke("analyze", profile, "-q").exit_code == 0
    assert not cache.exists()
    monkeypatch.delenv("TRACEKIT_NO_CACHE")
    look(profile, tmp_path)
    measured_now.clear()
    look(profile, tmp_path, cache=False)
    assert len(measured_now) == RANKS


def test_a_place_that_cannot_be_written_to_keeps_nothing_and_hinders_nothing(profile, tmp_path, monkeypatch):
    uncached = look(profile, tmp_path, cache=False)
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "file" / "below"))
    assert look(profile, tmp_path) == uncached


def test_the_longest_unused_go_when_all_are_too_much(profile, tmp_path, cache, monkeypatch):
    look(profile, tmp_path)
    sizes = {path: path.stat().st_size for path in cache.iterdir()}
    for age, path in enumerate(sorted(sizes)):
        os.utime(path, ns=(10**18 + age, 10**18 + age))
    oldest = min(sizes)
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", str(sum(sizes.values())))
    write(profile / "rank9.json", rows_of(9), rank=9, world_size=RANKS)
    look(profile, tmp_path / "..", questions=("kernels",))
    assert not oldest.exists()
    assert sum(path.stat().st_size for path in cache.iterdir()) <= sum(sizes.values())


def test_entries_are_for_their_owner_alone(profile, tmp_path, cache):
    look(profile, tmp_path)
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700


def test_two_at_once_do_not_disturb_each_other(profile, tmp_path, cache):
    command = [sys.executable, "-m", "tracekit", "analyze", str(profile), "--export", "json=-"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != b""
    assert len(list(cache.iterdir())) == RANKS


def test_a_database_with_a_journal_is_not_kept(tmp_path):
    assert find_reader("nsys").describe_dependencies(tmp_path / "a.sqlite") == ()
    (tmp_path / "a.sqlite-wal").write_bytes(b"changes")
    assert find_reader("nsys").describe_dependencies(tmp_path / "a.sqlite") is None


def test_a_report_that_is_exported_now_is_kept_once_its_export_is(tmp_path, monkeypatch, measured_now):
    export = put_export(tmp_path / "good.sqlite")
    report = put_report(tmp_path / "data" / "worker_process_4711.1.nsys-rep")
    install(tmp_path, monkeypatch, copies(export))
    assert "exported by nsys" in look(report, tmp_path)[1]
    second = look(report, tmp_path)
    assert len(measured_now) == 2
    assert look(report, tmp_path) == second
    assert len(measured_now) == 2
    assert look(report, tmp_path, cache=False) == second


SOURCE = Source(Path("a.json"), "a.json", "chrome")
TEXTS = st.text(st.characters(), max_size=8)
DATA = st.dictionaries(
    st.sampled_from(["one", "two", "three"]),
    st.one_of(
        st.integers(), st.booleans(), TEXTS, st.floats(allow_nan=False),
        st.lists(TEXTS, max_size=3).map(tuple),
    ),
)  # fmt: skip


@given(TEXTS, DATA, st.sets(st.integers(0, 9)), st.integers(0, 5))
def test_what_was_packed_comes_out_as_it_was(text, data, steps, length):
    table = SHARED[0]
    note = Note("info", "opened", text, text, 3, None, Data(**data))
    source = pipeline.replace(SOURCE, role=text or None, notes=(note,), pid=length)
    rows = TABLES[table.name].cast()
    part = MeasuredSource(
        source,
        {"kernels": {table.name: rows}},
        (note,),
        {text: text},
        simulated=True,
        options={"with_stack": "on"},
        holding=SelectableParts(None, frozenset(steps), frozenset({text})),
    )
    (after,) = packed_tables.unpack_source_tables(packed_tables.pack_source_tables([part], SOURCE), SOURCE)
    assert pipeline.replace(after, tables={}) == pipeline.replace(part, tables={})
    assert after.tables["kernels"][table.name].frame().equals(rows.frame())


@pytest.mark.parametrize("length", [0, 1, 5, 1_500])
@pytest.mark.parametrize("rank", [None, 3])
def test_keys_that_are_those_of_the_source_are_left_out_and_others_are_not(length, rank):
    table = TABLES["quality"]
    columns = {"name": (["lost", "odd"] * length)[:length], "count": [7] * length}
    source = pipeline.replace(SOURCE, rank=rank, role="actor")
    sizes = {}
    for of_rows in (source, pipeline.replace(source, rank=8)):
        rows = KeyLabels(of_rows).before(table, columns)
        part = MeasuredSource(source, {"data-quality": {"quality": rows}}, (), {}, simulated=False)
        data = packed_tables.pack_source_tables([part], SOURCE)
        (after,) = packed_tables.unpack_source_tables(data, SOURCE)
        assert after.tables["data-quality"]["quality"].frame().equals(rows.frame())
        sizes[of_rows.rank] = len(zlib.decompress(data[len(packed_tables._MAGIC) :]))
    assert (sizes[rank] < sizes[8]) == (length > 0)


def test_whatever_byte_is_changed_it_is_found_or_makes_no_difference(profile, tmp_path, cache):
    look(profile, tmp_path)
    data = min(cache.iterdir()).read_bytes()
    whole = packed_tables.pack_source_tables(packed_tables.unpack_source_tables(data, SOURCE), SOURCE)
    dice = random.Random(1)
    found = 0
    for _ in range(300):
        spot = dice.randrange(len(data))
        changed = data[:spot] + bytes([data[spot] ^ dice.randrange(1, 256)]) + data[spot + 1 :]
        try:
            parts = packed_tables.unpack_source_tables(changed, SOURCE)
        except ValueError:
            found += 1
        else:
            assert packed_tables.pack_source_tables(parts, SOURCE) == whole
    assert found > 290


def test_the_cache_is_shown_and_cleared(profile, tmp_path, cache):
    look(profile, tmp_path)
    size = sum(path.stat().st_size for path in cache.iterdir())
    state = json.loads(invoke("cache", "--json").stdout)
    assert state["kinds"]["measured"] == {"files": RANKS, "bytes": size}
    assert state["path"] == str(cache.parent)
    lines = invoke("cache").stdout.splitlines()
    assert str(cache.parent) in lines[0]
    assert lines[2].split()[-3] == str(RANKS)
    assert invoke("cache", "--clear").stdout.startswith("removed from ")
    assert list(cache.iterdir()) == []
    assert json.loads(invoke("cache", "--json").stdout)["kinds"]["measured"]["files"] == 0


def test_measurements_of_other_code_are_not_reused():
    """Each package that measures has files, and those that measure, judge idle time and build graphs are among them."""
    names = {name for name, path in measurement_cache.list_measuring_code() if Path(path).is_file()}
    assert {name.split("/")[1] for name in names} == set(measurement_cache._MEASURING_PACKAGES)
    for module in (module for name, module in sys.modules.items() if name.startswith("tracekit.process.")):
        assert module.__file__.rpartition("/tracekit")[2] in names
