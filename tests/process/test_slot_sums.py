"""Slots of any trace: they add up as measured elsewhere, whatever the order of rows and the zero of the clock."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chrome_builder import BASE_NS, annotation, launched, memcpy, memset, op, step
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st
from process.idle_traces import LIMITS, frame_of, load
from recorded import TRACES

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.tables.arrays import Columns
from tracekit.process.device.busy import PARTS, break_down_device_windows, compute_busy_intervals
from tracekit.process.device.windows import align_windows_to_device
from tracekit.process.exclusive_time import compute_exclusive_slots
from tracekit.process.idle_time.tables import sum_idle_time_by_window

LINKED = st.tuples(st.sampled_from(("k", "j", "nccl_x")), st.integers(0, 90), st.integers(0, 40), st.integers(0, 1))
CALLS = st.tuples(
    st.sampled_from(("a", "b", "c10d::x")),
    st.integers(0, 90).map(lambda at: at + 0.5),
    st.integers(0, 40),
    st.sampled_from((100, 101)),
)
SPAN = st.tuples(st.integers(0, 80), st.integers(0, 60))


@st.composite
def anything(draw):
    """Rows of which no two on one thread are equal intervals: of those the first in the file encloses the other."""
    starts = st.lists(SPAN, min_size=1, max_size=3, unique_by=lambda span: span[0])
    rows = [step(n, *span) for n, span in enumerate(draw(starts))]
    rows += [annotation("gen", *span) for span in draw(st.lists(SPAN, max_size=2, unique=True))]
    rows += [op(*call) for call in draw(st.lists(CALLS, max_size=8, unique_by=lambda c: c[1:]))]
    for n, (name, at, dur, device) in enumerate(draw(st.lists(LINKED, max_size=8))):
        rows += launched(name, max(at - 5, 0), at, dur, n + 1, device=device, stream=n)
    if draw(st.booleans()):
        rows += [memcpy("Memcpy HtoD (Pageable -> Device)", 10, 20, 4), memset(25, 10, 4)]
    return rows


def slot_table(trace):
    devices = trace.derived(LIMITS) if trace.has("device_ops") else ()
    return frame_of(compute_exclusive_slots(trace, devices))


@settings(max_examples=10, deadline=None)
@given(anything(), st.randoms(use_true_random=False))
def test_order_of_rows_and_zero_of_the_clock_change_nothing(tmp_path_factory, rows, chance):
    folder = tmp_path_factory.mktemp("same")
    frame = slot_table(load(folder, rows))
    mixed = list(rows)
    chance.shuffle(mixed)
    shifted = [row | {"ts": row["ts"] + 1_000_000} for row in mixed]
    (folder / "b").mkdir()
    other = slot_table(load(folder / "b", shifted, base_ns=BASE_NS - 5))
    pd.testing.assert_frame_equal(frame.astype(object), other.astype(object))


@settings(max_examples=10, deadline=None)
@given(anything())
def test_classes_and_causes_add_up_to_what_is_measured_elsewhere(tmp_path_factory, rows):
    trace = load(tmp_path_factory.mktemp("sums"), rows)
    check_sums(trace)


def step_frame(trace):
    """The steps where their device work ran, as rows of number, occurrence, origin, start and length."""
    rows = trace.derived(align_windows_to_device).step_rows
    return Columns(len(rows), rows.arrays).frame()


def check_sums(trace):
    """Σ of each step is its length; classes are the exclusive parts of M4, causes those of the idle time."""
    frame, steps = slot_table(trace), step_frame(trace)
    if not len(steps):
        assert not len(frame)
        return
    devices = trace.derived(LIMITS) if trace.has("device_ops") else ()
    ops = trace.get_or_empty("device_ops")
    for device in [idle.device for idle in devices] or [None]:
        mine = frame[frame["device"].isna() if device is None else frame["device"] == device]
        for number, occurrence, _, ts, dur in steps.itertuples(index=False):
            same = mine["step"].isna() if pd.isna(number) else mine["step"] == number
            rows = mine[same.to_numpy(bool) & (mine["occurrence"] == occurrence).to_numpy(bool)]
            assert int(rows["exclusive_ns"].sum()) == dur
            if not devices:
                continue
            its = ops[(ops["device"].isna() if device is None else ops["device"] == device).to_numpy(bool)]
            state = compute_busy_intervals(*columns_of(its[["ts_ns", "dur_ns", "kind"]]).arrays.values())
            parts = break_down_device_windows(state, np.array([ts]), np.array([ts + dur]))
            got = rows.groupby("class", observed=False)["exclusive_ns"].sum()
            for name, part in zip(("compute", "collective", "memcpy", "memset"), PARTS, strict=True):
                assert got[name] == parts[part][0]
            assert got["idle"] == parts["idle_ns"][0]
    for idle in devices:
        mine = frame[frame["device"].isna() if idle.device is None else frame["device"] == idle.device]
        expected = frame_of(sum_idle_time_by_window(trace, idle)).query("window == 'step'")
        sums = expected.groupby("cause", observed=True)["idle_ns"].sum()
        got = mine.groupby("cause", observed=True)["exclusive_ns"].sum()
        assert got[got > 0].to_dict() == sums[sums > 0].to_dict()


# Real files


REAL = os.environ.get("TRACEKIT_REAL_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="real profiles are not here")
SMALL = 300_000


def real_files(*, small):
    files = sorted(p for p in (Path(REAL) / "chrome").rglob("*.json*") if p.is_file()) if REAL else TRACES
    return [p for p in files if (p.stat().st_size < SMALL) == small]


def check_files(files):
    read = 0
    for path in files:
        try:
            trace = tracekit.load(path)
        except TracekitError:
            continue
        check_sums(trace)
        read += 1
    return read


@pytest.mark.slow
def test_steps_of_small_real_files_add_up():
    assert check_files(real_files(small=True)) > (50 if REAL else 30)


@pytest.mark.slow
def test_steps_of_large_real_files_add_up():
    assert check_files(real_files(small=False)) >= (40 if REAL else 3)


@needs_data
def test_a_real_files_steps_are_known_to_the_nanosecond():
    """trace_diff control, steps 1009 to 1014: the walls of the golden list."""
    path = Path(REAL) / "chrome/hta/trace_diff/control/control.json.gz"
    frame = slot_table(tracekit.load(path))
    walls = [75_473_000, 76_940_000, 76_212_000, 76_727_000, 78_473_000, 81_120_000]
    assert frame.groupby("step")["exclusive_ns"].sum().tolist() == walls
