"""Real memory snapshots compared: the numbers are those of their blocks and segments, added up here by hand."""

import os
from functools import cache
from pathlib import Path

import pytest
from compare.memory_sides import measured_sources, memory_of, side_of

from tracekit.compare.snapshots.owners import END, PEAK
from tracekit.model.trace import Source, Want
from tracekit.readers import torch_memory

REAL = os.environ.get("TRACEKIT_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="real profiles are not here")

NIU = "NiuHuangxiaozi+assignment2-systems/cs336_systems_profile_memory_"
LEAKING = "SIMULATED_cpu_allocsim/step{}/torch_memory_rank0_pid1.pickle"


def source(name, step=None):
    path = Path(REAL, "memory", name)
    return Source(path, name, "torch_memory", "torch_memory", run="run", step=step)


@cache
def side(name, step=None):
    return side_of(name, measured_sources([source(name, step)]))


@cache
def held(name):
    """(requested bytes, their blocks, by place) of what blocks say is in use, and the bytes of all segments."""
    (trace,) = torch_memory.read(source(name), Want())
    stacks = {}
    for stack, function, file in zip(*(trace["stacks"].sort_values("depth")[n] for n in ("stack", "name", "file")), strict=True):  # fmt: skip
        stacks.setdefault(stack, []).append((str(function), str(file)))
    sizes, counts = {}, {}
    blocks = trace["blocks"]
    for state, stack, size in zip(*(blocks[n] for n in ("state", "stack", "requested_bytes")), strict=True):  # fmt: skip
        if state in ("active", "pending_free"):
            own = [f for f in stacks.get(stack, []) if f[1].endswith(".py") and "/site-packages/" not in f[1] and "/lib/python" not in f[1]]  # fmt: skip
            place = f"{own[0][1].rpartition('/')[2]} {own[0][0]}" if own else ""
            sizes[place] = sizes.get(place, 0) + int(size)
            counts[place] = counts.get(place, 0) + 1
    return sizes, counts, int(trace["memory_segments"]["size_bytes"].sum())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("forward_and_backward_memory_snapshot_100", "forward_and_backward_memory_snapshot_200"),
        ("forward_and_backward_memory_snapshot_200", "forward_and_backward_memory_snapshot_200_mixed_precision"),
        ("forward_memory_snapshot_150", "forward_and_backward_memory_snapshot_200"),
    ],
)  # fmt: skip
def test_what_is_in_use_at_the_end_is_what_the_blocks_say(before, after):
    names = [f"{NIU}{name}.pickle" for name in (before, after)]
    found = memory_of(*(side(name) for name in names))
    (one, _, base_reserved), (two, _, opt_reserved) = (held(name) for name in names)
    pair = found.pairs[0]
    assert (pair.level(END).base, pair.level(END).opt) == (sum(one.values()), sum(two.values()))
    reserved = pair.level("end_reserved")
    assert (reserved.base, reserved.opt) == (base_reserved, opt_reserved)
    end = found.sites[-1]
    assert end.moment == "end"
    rows = {row.site: row.difference for row in end.rows if row.kind == "place"}
    expected = {place: two.get(place, 0) - one.get(place, 0) for place in one.keys() | two.keys() if place}
    assert {place: rows[place] for place in expected} == expected
    for sites, name in zip(found.sites, (PEAK, END), strict=True):
        assert sum(row.difference for row in sites.rows) == pair.level(name).difference


def test_a_larger_batch_doubles_what_the_layers_hold_at_the_peak():
    found = memory_of(*(side(f"{NIU}forward_and_backward_memory_snapshot_{n}.pickle") for n in (100, 200)))
    rows = {row.site: row for row in found.sites[0].rows}
    for place in ("swigluffn.py forward", "rmsnorn.py forward", "embedding.py forward"):
        assert rows[place].opt_bytes == 2 * rows[place].base_bytes
    assert rows["optimizer.py step"].state == "same"
    assert (found.headline.base, found.headline.opt) == (682_735_240, 1_229_753_640)


def test_the_place_that_leaks_grows_from_the_first_step_to_the_last():
    found = memory_of(side(LEAKING.format(0), 0), side(LEAKING.format(7), 7))
    before, after = (held(LEAKING.format(step)) for step in (0, 7))
    leak = "simgen.py leak"
    grown = after[0][leak] - before[0][leak]
    for sites in found.sites:
        first = sites.rows[0]
        assert (first.site, first.state, first.difference) == (leak, "grown", grown)
        assert (first.base_blocks, first.opt_blocks) == (before[1][leak], after[1][leak]) == (1, 8)
    assert found.notes == ("the sides share no step: step 0 is compared with step 7, the last of each",)  # fmt: skip
