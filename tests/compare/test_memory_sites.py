"""What holds more or less memory: places compared by file and function, and rows that add up to the byte."""

from pathlib import Path

import numpy as np
import pytest
from compare.memory_sides import holding, memory_of, memory_side, of_one, told
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.compare.snapshots import sites as memory_sites
from tracekit.compare.snapshots.owners import END, PEAK, MemoryOwner, MemorySnapshot
from tracekit.compare.snapshots.sites import compare_memory_sites, shorten_sites
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Coded, Columns, Frames
from tracekit.model.trace import Measurements, Source, Trace, add_key_columns
from tracekit.process.memory import live as snapshot_live
from tracekit.process.memory.call_sites import format_frame_places
from tracekit.process.memory.live import LiveMemory, sum_live_memory_by_site

KIB = 1024
BEFORE = "/opt/env/lib/python3.11/site-packages/verl/a.py"
AFTER = "/home/other/venv/lib/python3.12/site-packages/verl/a.py"


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """One place grown, whose line moved, one new, one gone, one of a package installed elsewhere, one unchanged."""
    folder = tmp_path_factory.mktemp("worked")
    base = holding(
        (1000, "forward"), (1000, "forward"), (3000, "backward"), (500, "load", BEFORE, 5),
        (700, None), (20, "step"),
    )  # fmt: skip
    opt = holding(
        (1000, "forward", "/job/train.py", 12), (1000, "forward", "/job/train.py", 12),
        (1500, "forward", "/moved/job/train.py", 13), (4000, "log"), (500, "load", AFTER, 5),
        (900, None), (20, "step"),
    )  # fmt: skip
    return memory_of(of_one(folder / "base", base), of_one(folder / "opt", opt))


def test_places_are_grown_new_gone_and_the_same_whatever_line_and_folder_they_are_in(worked):
    for sites in worked.sites:
        assert told(sites.rows) == [
            ("train.py log", "new", 0, 4000, 4000),
            ("train.py backward", "gone", 3000, 0, -3000),
            ("train.py forward", "grown", 2000, 3500, 1500),
            ("a.py load", "same", 500, 500, 0),
            ("train.py step", "same", 20, 20, 0),
            ("no Python frame: an empty stack was recorded", "", 700, 900, 200),
        ]
        blocks = {r.site: (r.base_blocks, r.opt_blocks) for r in sites.rows}
        assert blocks["train.py forward"] == (2, 3)
        assert blocks["train.py log"] == (0, 1)


def test_the_rows_add_up_to_the_change_of_the_peak_and_of_the_end(worked):
    peak, end = worked.sites
    assert (peak.moment, end.moment) == ("peak", "end")
    for sites, name in ((peak, PEAK), (end, END)):
        level = worked.pairs[0].level(name)
        assert (sites.base, sites.opt) == (level.base, level.opt) == (6220, 8920)
        assert sum(row.difference for row in sites.rows) == level.difference == 2700


def test_the_peak_and_the_end_are_two_moments(tmp_path):
    base, opt = holding((5000, "keep")), holding((5000, "keep"))
    opt.free(opt.alloc(9000, [{"name": "scratch", "filename": "/job/a.py", "line": 1}]))
    found = memory_of(of_one(tmp_path / "base", base), of_one(tmp_path / "opt", opt))
    peak, end = found.sites
    assert told(peak.rows)[0] == ("a.py scratch", "new", 0, 9000, 9000)
    assert told(end.rows) == [("train.py keep", "same", 5000, 5000, 0)]


def test_what_is_too_small_to_be_named_on_one_side_is_neither_new_nor_gone(tmp_path):
    # Functions f1 to f250 hold 1 KiB, 2 KiB …: the 199 largest are f52 to f250, the rest are 51 × 26 KiB.
    base = holding(*((k * KIB, f"f{k}") for k in range(1, 251)))
    opt = holding((900 * KIB, "f10"), (7 * KIB, "f250"))
    found = memory_of(of_one(tmp_path / "base", base), of_one(tmp_path / "opt", opt))
    rows = {row.site: row for row in found.sites[0].rows}
    ten = rows["train.py f10"]
    rest = 51 * 26 * KIB
    assert (ten.state, ten.base_bytes, ten.opt_bytes, ten.base_most, ten.opt_most) == (
        "not told before", 0, 900 * KIB, rest, None,
    )  # fmt: skip
    assert rows["train.py f249"].state == "gone"
    assert (rows["train.py f250"].state, rows["train.py f250"].difference) == ("shrunk", -243 * KIB)
    assert told([rows["smaller ones"]]) == [("smaller ones", "", rest, 0, -rest)]
    assert sum(row.difference for row in rows.values()) == (907 - 250 * 251 // 2) * KIB
    swapped = memory_of(of_one(tmp_path / "a", opt), of_one(tmp_path / "b", base)).sites[0]
    ten = next(row for row in swapped.rows if row.site == "train.py f10")
    assert (ten.state, ten.base_most, ten.opt_most) == ("not told after", None, rest)


def test_categories_add_up_as_well_and_are_told_where_anything_tells_them(tmp_path):
    def made(weights, other):
        one = holding()
        one.alloc(weights, [], metadata="weights")
        one.alloc(other, [])
        return one

    sides = of_one(tmp_path / "base", made(3000, 100)), of_one(tmp_path / "opt", made(2000, 600))
    (peak, _) = memory_of(*sides).sites
    assert told(peak.categories) == [("weights", "", 3000, 2000, -1000), ("not told", "", 100, 600, 500)]
    plain = of_one(tmp_path / "plain", holding((10, "f")))
    assert memory_of(plain, plain).sites[0].categories == ()


def test_files_that_a_compiler_calls_by_a_hash_are_one_place():
    hashes = ("c" + "a2" * 25 + "b", "c" + "z7" * 25 + "y")
    files = [f"/tmp/torchinductor/{h[1:3]}/{h}.py" for h in hashes] + ["/job/cab.py", "??", "/job/m.py"]
    stacks = TABLES["stacks"].cast(
        {
            "stack": np.arange(5), "depth": np.zeros(5, np.int32), "name": ["call"] * 5, "file": files,
            "line": [33, 40, 1, 7, 0],
        }
    )  # fmt: skip
    trace = Trace(Source(Path("a"), "a", "torch_memory", "torch_memory"), Frames({"stacks": stacks}))
    places = format_frame_places(trace, np.arange(5))
    assert [places.texts[code] for code in places.codes] == [
        "(compiled) call", "(compiled) call", "cab.py call", "call", "call",
    ]  # fmt: skip


def test_measurements_that_were_saved_without_places_are_compared_by_site(tmp_path):
    def old(name, line):
        made = of_one(tmp_path / name, holding((1000, "f", "/job/a.py", line)))
        (kept,) = made.measured
        columns = kept.columns("live_sites")
        no_place = Coded(np.full(len(columns), -1, np.int8), ())
        sites = Columns(len(columns), {**columns.arrays, "place": no_place})
        return MemorySnapshot(
            MemoryOwner("device", None, None, None, 0, 0), "r", None, 0, "a", {PEAK: 1000, END: 1000},
            kept["snapshot_levels"].iloc[0].to_dict(), Measurements({**kept.arrays, "live_sites": sites}, ()),
        )  # fmt: skip

    rows = compare_memory_sites(old("a", 1), old("b", 2), "peak").rows
    assert [(row.site, row.state) for row in rows] == [
        ("job/a.py:2 f", "new"), ("job/a.py:1 f", "gone"),
    ]  # fmt: skip


def test_saved_measurements_that_contradict_themselves_tell_no_places(tmp_path):
    made = memory_side(tmp_path / "a", {"a.pickle": (holding((1000, "f")), {})})
    (kept,) = made.measured
    columns = kept.columns("snapshot_levels")
    levels = Columns(1, {**columns.arrays, "peak_bytes": np.array([999], np.int64)})
    wrong = Measurements({**kept.arrays, "snapshot_levels": levels}, kept.sources)
    found = memory_of(made, type(made)(**{**fields(made), "measured": (wrong,)}))
    assert [sites.moment for sites in found.sites] == ["end"]


def fields(one):
    return {name: getattr(one, name) for name in one.__slots__}


SIDES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 3), st.sampled_from([None, "weights", "cache"]), st.integers(0, 5000)),
    max_size=40,
)


def snapshot_of(pieces):
    """A snapshot whose pieces are (function, line, category, bytes); function 0 is none."""
    known = [f"f{function}" if function else None for function, *_ in pieces]
    lines = [line for _, line, *_ in pieces]
    held = TABLES["live_sites"].cast_arrays(
        {
            "memory": ["device"] * len(pieces), "device": [0] * len(pieces), "moment": ["peak"] * len(pieces),
            "origin": ["recorded"] * len(pieces),
            "kind": ["user" if n else "empty" for n in known],
            "site": [n and f"a.py:{at} {n}" for n, at in zip(known, lines, strict=True)],
            "place": [n and f"a.py {n}" for n in known],
            "category": [c for *_, c, _ in pieces],
            "basis": ["metadata" if c else "none" for *_, c, _ in pieces],
            "stack": [0] * len(pieces),
            "stack_count": [1] * len(pieces), "block_count": [1] * len(pieces),
            "size_bytes": [size for *_, size in pieces],
        },
        len(pieces), tuple(KEYS),
    )  # fmt: skip
    total = int(held["size_bytes"].sum())
    source = Source(Path("a"), "a", "torch_memory", "torch_memory")
    columns = sum_live_memory_by_site(LiveMemory(held, total))
    tables = {"live_sites": add_key_columns(TABLES["live_sites"], columns, source)} if pieces else {}
    row = {"source": "a", "pid": None, "memory": "device", "device": 0}
    return MemorySnapshot(
        MemoryOwner("device", None, None, None, 0, 0), "r", None, 0, "a", {PEAK: total, END: total}, row,
        Measurements(tables, (source,)),
    )  # fmt: skip


@given(SIDES, SIDES, st.sampled_from([3, 6, 200]), st.sampled_from([2, 60]))
@settings(max_examples=15, deadline=None)
def test_whatever_is_held_rows_add_up_and_none_is_called_new_or_gone_that_is_not(base, opt, named, shown):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_live, "MAX_SITES", named)
        patch.setattr(memory_sites, "MAX_PLACES", shown)
        found = compare_memory_sites(snapshot_of(base), snapshot_of(opt), "peak")
    change = sum(size for *_, size in opt) - sum(size for *_, size in base)
    for rows in (found.rows, shorten_sites(found.rows, 1)):
        assert sum(row.difference for row in rows) == change
    assert not found.categories or sum(row.difference for row in found.categories) == change
    assert sum(row.opt_bytes for row in found.rows) == found.opt
    true = [
        {f"a.py f{n}": sum(p[3] for p in side if p[0] == n) for n in {p[0] for p in side} - {0}} for side in (base, opt)
    ]
    for row in found.rows:
        if row.kind == "place":
            before, after = (side.get(row.site) for side in true)
            assert before is None or row.state != "new"
            assert after is None or row.state != "gone"
            for truth, size, most in ((before, row.base_bytes, row.base_most), (after, row.opt_bytes, row.opt_most)):
                assert size <= (truth or 0) <= (size if most is None and named == 200 else 10**9)
                assert most is None or (truth or 0) <= most
