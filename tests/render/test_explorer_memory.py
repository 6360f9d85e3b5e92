"""Memory snapshots on the explorer page, read back and compared with the raw history replayed entry by entry."""

import os
import pickle
import random
from dataclasses import replace
from pathlib import Path

import chrome_builder as chrome
import numpy as np
import pytest
from explorer_page import CAUSE_ROWS, build_blocks
from hypothesis import given
from hypothesis import strategies as st
from memory_builder import MIB, Allocator, frame, pickled, snapshot, stack
from page_reading import Page
from sample_report import HOSTILE
from snapshot_traces import loaded

import tracekit
from tracekit.analyses.memory import card_holders
from tracekit.model.inputs.memory_pieces import HOLDERS, HeldPieces, PieceSelection, select_memory_pieces
from tracekit.model.inputs.timeline import EngineState
from tracekit.model.report import Report
from tracekit.model.tables.frame import Frame
from tracekit.process.page_blocks import memory_blocks
from tracekit.render.explorer.page import PageAssets, write_explorer_page

DATA = Path(__file__).parents[1] / "data"
ASSETS = PageAssets('<script type="application/json" id="head">{{head}}</script>{{blocks}}', "", "")
EMPTY = Report("a run", "1.0")


def written(*blocks, budget=3_000_000):
    return Page(write_explorer_page(EMPTY, blocks, ASSETS, CAUSE_ROWS, budget).text)


def read_pieces(page, number=0):
    """Born, end, bytes, path, from before the history, holder, allocations of the pieces of one memory."""
    start, life, size, path, before, holder, more = page.columns(f"mem{number}", 7)
    start = np.cumsum(start)
    return start, start + life, size, path, before, holder, more + 1


def list_levels(page, number=0):
    """The bytes in use at the begin and after each later change."""
    start, end, size, *_ = read_pieces(page, number)
    span = page.head["memories"][number]["span"]
    changes = {0: 0}
    for time, bytes_more in [*zip(start, size, strict=True), *zip(end, -size, strict=True)]:
        if time <= span:
            changes[int(time)] = changes.get(int(time), 0) + int(bytes_more)
    return dict(zip(sorted(changes), np.cumsum([changes[time] for time in sorted(changes)]).tolist(), strict=True))


def replay_by_hand(history, blocks):
    """The bytes requested at the begin and after each allocation or free, from the entries of a pickle alone."""
    sizes, unknown, deltas = {}, 0, []
    for entry in history:
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            deltas.append(entry["size"])
        elif entry["action"] == "free_completed":
            unknown += 0 if entry["addr"] in sizes else entry["size"]
            deltas.append(-sizes.pop(entry["addr"], entry["size"]))
    held = [block for address, block in blocks if block["state"] != "inactive" and address not in sizes]
    base = unknown + sum(block.get("requested_size", block["size"]) for block in held)
    return [base, *(base + np.cumsum(deltas)).tolist()]


def list_blocks(raw, device):
    for segment in raw["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if segment["device"] == device:
                yield address, block
            address += block["size"]


def load_raw(path):
    raw = pickle.loads(path.read_bytes())
    moves = {"alloc", "free_completed"}
    histories = enumerate(raw["device_traces"])
    return [
        (device, history) for device, history in histories if any(entry["action"] in moves for entry in history)
    ], raw


SNAPSHOTS = [
    *sorted((DATA / "gpu" / "snapshots").glob("*.pickle")),
    DATA / "cases" / "m3_expandable" / "snapshot.pickle",
]


def check_file(path):
    """The levels after every entry and the peak, of every device of a file."""
    histories, raw = load_raw(path)
    page = written(build_blocks(tracekit.load(path)))
    shown = [memory for memory in page.head["memories"] if memory["span"] > 1]
    assert len(shown) == len(histories)
    for memory, (device, history) in zip(shown, histories, strict=True):
        number = page.head["memories"].index(memory)
        expected = replay_by_hand(history, list_blocks(raw, device))
        levels = list_levels(page, number)
        assert list(levels.values()) == expected
        assert memory["peak"] == max(expected)
        assert levels[memory["peak_t"]] == memory["peak"]
        assert all(level < memory["peak"] for time, level in levels.items() if time < memory["peak_t"])
        assert memory["pieces"] == len(read_pieces(page, number)[0])
        assert (memory["merged"], memory["floor"], memory["hidden"]) == (0, None, 0)


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_levels_after_every_entry_are_those_of_the_raw_history(path):
    check_file(path)


POOLS = (
    ((0, 0), [frame("forward")], "activation"),
    ((0, 0), [frame("build")], "parameter"),
    ((0, 0), [frame("x")], ""),
    ((0, 1), [frame("load_model", "/opt/vllm/v1/worker/gpu_worker.py")], ""),
    ((0, 2), [frame("initialize_from_config", "/opt/vllm/v1/worker/gpu_worker.py")], ""),
    ((5, 0), [], ""),
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [3_000_000, 8_000])
def test_bands_by_holder_sum_to_the_level_and_are_the_rows_of_the_table(tmp_path, seed, budget):
    """At every change the holders sum to the level; at the peak each is exact, also where small pieces are merged."""
    draw, allocator, live = random.Random(seed), Allocator(), []
    for _ in range(400):
        if live and draw.random() < 0.45:
            allocator.free(live.pop(draw.randrange(len(live))))
        else:
            pool, frames, category = draw.choice(POOLS)
            live.append(allocator.alloc(draw.randrange(1, 3 * MIB), frames, pool=pool, metadata=category))
    for address in live:
        allocator.free(address)  # so the peak is before the end
    trace = loaded(tmp_path, allocator)
    page = written(build_blocks(trace), budget=budget)
    start, end, size, _, _, holder, _ = read_pieces(page)
    (memory,) = page.head["memories"]
    for time, level in list_levels(page).items():
        alive = (start <= time) & (end > time)
        by_holder = np.bincount(holder[alive], size[alive], minlength=len(HOLDERS)).astype(np.int64)
        assert by_holder.sum() == level
        if time == memory["peak_t"]:
            at_peak = {name: int(held) for name, held in zip(HOLDERS, by_holder, strict=True) if held}
    (row,) = [row for row in measured_holders(trace) if row["moment"] == "peak"]
    assert at_peak == {name: row[f"{name}_bytes"] for name in HOLDERS[:-2] if row[f"{name}_bytes"]}
    assert len(at_peak) >= 4
    assert (memory["merged"] > 0) == (budget < 100_000)


def measured_holders(trace):
    """The rows of `card_holders`."""
    columns = card_holders.measure(trace)["card_holders"]
    return list(Frame.from_columns(card_holders.CARD_HOLDERS.cast(columns, len(columns["counted_bytes"]))).rows())


STATES = (
    EngineState("", "snapshot.pickle", 100, "awake"),
    EngineState("", "snapshot.pickle", 150, "asleep"),
    EngineState("", "other.pickle", 1_000_200, "partly awake"),
)


def test_states_of_the_engine_are_on_the_page_from_the_begin_of_the_history(tmp_path):
    """Both states are before the history: the last one holds at its begin. A later one is at its own time."""
    allocator = Allocator()
    allocator.alloc(MIB, stack("a"))
    allocator.alloc(MIB, stack("b"))
    blocks = build_blocks(loaded(tmp_path, allocator))
    (begin,) = blocks.numbers["snapshot.start"].astype(np.int64) + blocks.base_ns
    states = [replace(state, run=blocks.source.run, source=blocks.source.name) for state in STATES[:2]]
    states.append(replace(states[0], ts_ns=int(begin) + 7_000, state="awake"))
    states += [replace(states[0], ts_ns=10**19), replace(STATES[2], ts_ns=int(begin) + 5)]
    page = Page(write_explorer_page(EMPTY, [blocks], ASSETS, CAUSE_ROWS, engines=states).text)
    assert page.head["memories"][0]["marks"] == [[0, "asleep"], [7_000, "awake"]]


REAL = os.environ.get("TRACEKIT_REAL_DATA")
REAL_FILES = (
    "LfieLike+SketchKV2/my_snapshot.pickle",
    "MAGMA27+assignment2-systems/memory_snapshot.pickle",
    "Yiyi-philosophy+LLM-inference/oom_snapshot.pickle",
    "NiuHuangxiaozi+assignment2-systems/cs336_systems_profile_memory_forward_and_backward_memory_snapshot_100.pickle",
)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
@pytest.mark.parametrize("name", REAL_FILES)
def test_levels_of_real_snapshots_are_those_of_the_raw_history_and_of_the_report(name):
    path = Path(REAL) / "memory" / name
    check_file(path)
    (peak,) = tracekit.analyze(path).tables["memory-peak.snapshot_peaks"]["peak_bytes"]
    assert written(build_blocks(tracekit.load(path))).head["memories"][0]["peak"] == peak


SIZES = (1, 511, 512, 70_000, 2 * MIB)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(SIZES), st.integers(0, 9)), max_size=40), st.integers(0, 12)
)
def test_levels_of_any_program_are_those_of_the_allocator(tmp_path_factory, program, cleared):
    """Allocations and frees in any order; what came before `cleared` operations is not in the history."""
    allocator, held = Allocator(), []
    for place, (kind, size, pick) in enumerate(program):
        if place == cleared:
            allocator.clear_history()
        if kind < 6 or not held:
            held.append(allocator.alloc(size, stack(f"f{pick}", "main")))
        else:
            allocator.free(held.pop(pick % len(held)))
    trace = loaded(tmp_path_factory.mktemp("program"), allocator)
    page = written(build_blocks(trace))
    levels = [requested for requested, _, _ in allocator.levels]
    for memory in page.head["memories"]:
        shown = list(list_levels(page).values())
        base = shown[0]
        changes = [now for before, now in zip([base, *levels], levels, strict=False) if now != before]
        assert shown[1:] == changes
        assert memory["peak"] == max([base, *levels])


def test_pieces_have_the_stack_that_allocated_them(tmp_path):
    """Memory from before the history has the stack of its block; freed within the history it has none."""
    allocator = Allocator()
    early = allocator.alloc(1_000, stack("early", "main"))
    gone = allocator.alloc(3_000, stack("gone", "main"))
    allocator.clear_history()
    allocator.alloc(2_000, stack("forward", "main"))
    allocator.free(gone)
    assert early
    page = written(build_blocks(loaded(tmp_path, allocator)))
    start, end, size, path, before, *_ = read_pieces(page)
    found = sorted(zip(size.tolist(), before.tolist(), map(page.path, path.tolist()), strict=True))
    assert found == [
        (1_000, 1, ["job/train.py:4 main", "job/train.py:5 early"]),
        (2_000, 0, ["job/train.py:4 main", "job/train.py:7 forward"]),
        (3_000, 1, []),
    ]
    span = page.head["memories"][0]["span"]
    assert (start[size == 3_000] == 0).all()
    assert (end[size == 3_000] <= span).all()
    assert (end[size != 3_000] == span + 1).all()


def test_a_snapshot_without_history_is_in_use_all_the_time():
    path = DATA / "cases" / "m1_no_history" / "snapshot.pickle"
    raw = pickle.loads(path.read_bytes())
    page = written(build_blocks(tracekit.load(path)))
    active = [
        block.get("requested_size", block["size"])
        for segment in raw["segments"]
        for block in segment["blocks"]
        if block["state"] != "inactive"
    ]
    (memory,) = page.head["memories"]
    assert (memory["peak"], memory["peak_t"], memory["span"], memory["timed"]) == (sum(active), 0, 1, False)
    assert list_levels(page) == {0: sum(active)}


def test_memories_of_several_devices_are_told_apart(tmp_path):
    page = written(build_blocks(loaded(tmp_path, *(one_allocation(device, 1_000 * (device + 1)) for device in (0, 1)))))
    assert [(memory["file"], memory["peak"]) for memory in page.head["memories"]] == [
        ("snapshot.pickle · GPU 0", 1_000), ("snapshot.pickle · GPU 1", 2_000),
    ]  # fmt: skip


def one_allocation(device=0, size=1_000, names=("main",)):
    allocator = Allocator(device)
    allocator.alloc(size, stack(*names))
    return allocator


# Merging


def make_program(tmp_path, count=400):
    """Many allocations of random sizes and lifetimes, from ten stacks."""
    draws, allocator, held = np.random.default_rng(3), Allocator(), []
    for place in range(count):
        held.append(allocator.alloc(int(draws.integers(1, 10**6)), stack(f"f{place % 10}", "main")))
        if len(held) > 30:
            allocator.free(held.pop(int(draws.integers(0, len(held)))))
    return loaded(tmp_path, allocator)


def sum_live(page, time):
    """Path → bytes in use at one time."""
    start, end, size, path, *_ = read_pieces(page)
    live = (start <= time) & (end > time)
    return {
        tuple(page.path(number)): int(size[live & (path == number)].sum()) for number in np.unique(path[live]).tolist()
    }


def check_merged(whole, page):
    """The largest pieces are exact, the peak with all its stacks too; at no time are more bytes in use than recorded."""
    (memory,) = page.head["memories"]
    true, shown = list_levels(whole), list_levels(page)
    times = np.array(list(true))
    for time, level in shown.items():
        assert level <= true[int(times[np.searchsorted(times, time, side="right") - 1])]
    assert sum_live(page, memory["peak_t"]) == sum_live(whole, memory["peak_t"])
    assert shown[max(time for time in shown if time <= memory["peak_t"])] == memory["peak"]
    exact = [
        {
            piece
            for piece in zip(*(column.tolist() for column in read_pieces(of)[:3]), strict=True)
            if piece[2] > memory["floor"]
        }
        for of in (whole, page)
    ]
    assert exact[0] <= exact[1]
    allocations = read_pieces(page)[6]
    assert int(allocations.sum()) + memory["hidden"] == memory["pieces"] == len(read_pieces(whole)[0])
    assert 0 < memory["merged"] <= int(allocations.sum())


def test_small_pieces_are_merged_where_a_worker_has_too_many(tmp_path, monkeypatch):
    trace = make_program(tmp_path)
    whole = written(build_blocks(trace))
    monkeypatch.setattr(memory_blocks, "MAX_PIECES", 100)
    page = written(build_blocks(trace))
    assert len(read_pieces(page)[0]) <= 100
    check_merged(whole, page)


def test_pieces_fit_their_share_of_the_budget(tmp_path):
    blocks = build_blocks(make_program(tmp_path))
    made = write_explorer_page(EMPTY, [blocks], ASSETS, CAUSE_ROWS, 10_000)
    page = Page(made.text)
    assert len(made.text.encode()) < 10_000
    check_merged(written(blocks), page)


def test_a_snapshot_that_does_not_fit_is_described_without_a_block(tmp_path):
    page = written(build_blocks(make_program(tmp_path)), budget=600)
    assert page.head["memories"][0]["peak"] > 0
    assert "mem0" not in page.raw


PIECES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=40
)


@given(PIECES, st.integers(2, 30))
def test_merged_pieces_never_exceed_the_truth_and_equal_it_at_the_peak(drawn, most):
    start, life, size, path = np.array(sorted(drawn), np.int64).T
    ones = np.ones(len(start), np.int64)
    span = 40
    whole = HeldPieces(start, np.minimum(start + life, span + 1), size, path, ones * 0, start % 3, ones)
    times = np.arange(span + 1)

    def list_bytes(pieces):
        live = (pieces.start[:, None] <= times) & (pieces.end[:, None] > times)
        return [(live * (pieces.size * (pieces.path == number))[:, None]).sum(0) for number in range(3)]

    truth = list_bytes(whole)
    peak = int(sum(truth).argmax())
    made = select_memory_pieces(PieceSelection(whole, -1, 0), peak, span, most)
    again = select_memory_pieces(made, peak, span, max(most // 2, 2))
    for selection in (made, again):
        shown = list_bytes(selection.pieces)
        assert (sum(shown) <= sum(truth)).all()
        assert sum(shown)[peak] == sum(truth)[peak]
        assert int(selection.pieces.allocations.sum()) + selection.hidden == len(start)
        assert (np.diff(selection.pieces.start) >= 0).all()
        assert (size > selection.floor).sum() <= (selection.pieces.allocations == 1).sum()
    assert made.count_merged() == 0 or len(start) > most


# Clocks, names


def write_trace(folder, begin_ns, pid):
    """A trace of 1 s whose clock begins at an instant."""
    rows = [chrome.step(1, 0, 1_000_000), *chrome.launched("gemm", 10, 20, 7, 1)]
    trace = tracekit.load(chrome.write(folder / "rank0.json", rows, rank=0, base_ns=begin_ns))
    return build_blocks(replace(trace, source=replace(trace.source, host="node", pid=pid, run="r")))


def test_times_of_a_snapshot_are_on_the_clock_of_the_trace_of_its_process(tmp_path):
    """The snapshot of one process: with its trace of that time, of another time, and of another process."""
    trace = loaded(tmp_path, one_allocation())
    allocated = trace["allocations"]["action"] == "alloc"
    begin_ns = int(trace["allocations"]["ts_ns"][allocated].iloc[0])
    data = build_blocks(replace(trace, source=replace(trace.source, host="node", rank=0, pid=7, run="r")))
    found = [
        written(write_trace(tmp_path, at, pid), data).head["memories"][0]["t0"]
        for at, pid in ((begin_ns - 500_000_000, 7), (begin_ns - 2_000_000_000, 7), (begin_ns - 500_000_000, 8))
    ]
    # The history begins 1 ns before its first change.
    assert found == [500_000_000 - 1, None, None]


def test_hostile_names_of_frames_are_inert(tmp_path):
    allocator = Allocator()
    for name in HOSTILE:
        allocator.alloc(1_000, stack(name, "main"))
    made = write_explorer_page(EMPTY, [build_blocks(loaded(tmp_path, allocator))], ASSETS, CAUSE_ROWS)
    page = Page(made.text)
    assert made.text.count("<script") == len(page.raw) + 1
    assert all(name.isprintable() for name in page.names)
    assert len({tuple(page.path(int(number))) for number in read_pieces(page)[3]}) >= len(HOSTILE) - 1


def test_a_trace_has_no_memories(tmp_path):
    page = written(write_trace(tmp_path, chrome.BASE_NS, 7))
    assert page.head["memories"] == []


def test_the_file_of_a_snapshot_is_read_as_pickled(tmp_path):
    """The driver reads the file as the command line does."""
    path = tmp_path / "torch_memory_rank3_pid7.pickle"
    path.write_bytes(pickled(snapshot(one_allocation(size=4_096))))
    (memory,) = written(build_blocks(tracekit.load(path))).head["memories"]
    assert (memory["peak"], memory["file"], memory["pieces"]) == (4_096, path.name, 1)
