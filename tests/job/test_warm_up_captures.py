"""Runs that record each step in a capture of its own: the first is a warm-up step if it does more than all others."""

import pytest
from chrome_builder import annotation, kernel, launch, op, step, write

from tracekit import analyze
from tracekit.pipeline.comparing import read_side


def record(folder, launches, marked):
    """One capture per step with this many launches of a kernel of 5 µs; `marked` captures have a ProfilerStep."""
    for number, count in enumerate(launches):
        at = number * 100_000
        rows = [op("aten::mm", at, 20 * count + 100)]
        if marked:
            rows.append(step(number, at, 20 * count + 100))
        for place in range(count):
            correlation = number * 1000 + place + 1
            rows.append(launch(at + 10 + 20 * place, correlation))
            rows.append(kernel("gemm", at + 17 + 20 * place, 5, correlation=correlation))
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"rank0_step{number}.json", rows)
    return folder


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("launches", "left_out"),
    [
        ((312, 216, 216, 216), 1),  # the first step of an optimizer creates its states
        ((216, 216, 216, 216), 0),
        ((225, 216, 216, 216), 0),  # less than 5 % more
        ((312, 216, 260, 216), 0),  # 52 more than the others, which differ by 44
        ((216, 312, 216, 216), 0),  # not the first
        ((312, 216), 0),  # of two, either may be the odd one
    ],
)
def test_a_warm_up_capture_is_left_out(tmp_path, launches, left_out, marked):
    folder = record(tmp_path / "run", launches, marked)
    dropped = [(one.step, one.reason) for one in read_side("base", [folder]).dropped]
    assert dropped == [(0, "warm-up step")] * left_out
    identity = " · ".join(analyze(folder).identity)
    assert ("0: warm-up step" in identity) == bool(left_out), identity


@pytest.mark.parametrize(("before", "left_out"), [(3, 0), (2, 1), (0, 1)])
def test_the_first_mark_is_no_warm_up_step_if_the_recording_began_within_the_step_before(tmp_path, before, left_out):
    """Eight launches in each of three steps; a stage before the first mark has more than a quarter of them, or not."""
    rows = [op("aten::mm", 0, 4_000), annotation("update_actor", 0, 900)]
    starts = [(10 + 100 * place) for place in range(before)]
    for number in range(1, 4):
        rows.append(step(number, 1_000 * number, 1_000))
        starts += [1_000 * number + 10 + 100 * place for place in range(8)]
    for correlation, at in enumerate(starts, 1):
        rows += [launch(at, correlation), kernel("gemm", at + 7, 50, correlation=correlation)]
    write(tmp_path / "rank0.json", rows)
    dropped = [(one.step, one.reason) for one in read_side("base", [tmp_path]).dropped]
    assert dropped == [(1, "warm-up step")] * left_out
