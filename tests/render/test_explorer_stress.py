"""Pages of large recordings: in budget, the steps that tell most exact to the ns, and one long rank exact as a whole."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chrome_builder as chrome
import numpy as np
import pytest
from page_reading import Page

import tracekit
from tracekit.model.report import Report
from tracekit.render import render

pytestmark = pytest.mark.slow

BUDGET = 3_000_000
RANKS, STEPS, KERNELS = 64, 5, 4_400
"""Ranks, steps, and compute kernels of a rank in a step."""
LATE = (40, 17, 5)
"""Ranks that the others wait for, each in its part of a step, the latest first."""
EXTRA_NS = 30_000_000
LONG_KERNELS = 300_000
NAMES = [
    f"void gemm_{size}x{tile}_kernel<{kind}>(...)" for size in (64, 128, 256) for tile in (32, 64) for kind in "ab"
]
COLLECTIVES = 4
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP_GAP_NS = 700_000


@dataclass(frozen=True)
class Recorded:
    """What a rank recorded: begins of its steps (ns, the last is the end), and (start, length, name) of its kernels."""

    steps: np.ndarray
    start: np.ndarray
    length: np.ndarray
    name: list[str]


def draw_lengths(rank: int, steps: int, kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and gaps (ns) of the kernels of a rank, by step: most are short, a few long, no two ranks alike."""
    draws = np.random.default_rng(rank)
    shape = steps, kernels
    length = np.clip(np.exp(draws.normal(8.6, 1.1, shape)), 900, 4_000_000).astype(np.int64)
    gap = draws.integers(40, 2_600, shape) + np.where(draws.random(shape) < 0.01, 60_000, 0)
    # Steps differ in length, as batches do.
    return length * np.array([100, 104, 97, 109, 101])[:steps, None] // 100, gap


def plan_ranks(ranks: int, steps: int, kernels: int) -> Iterator[Recorded]:
    """Plan all ranks: each step has `COLLECTIVES` parts, at whose ends all ranks meet."""
    drawn = [draw_lengths(rank, steps, kernels) for rank in range(ranks)]
    per_part = kernels // COLLECTIVES
    work = np.stack([(length + gap).reshape(steps, COLLECTIVES, per_part).sum(2) for length, gap in drawn])
    for place, rank in enumerate(LATE):
        if ranks > 1:
            work[rank, :, place] += EXTRA_NS * (len(LATE) - place)
    meet = work.max(0) + 20_000
    begin = np.cumsum(np.append(0, meet.sum(1) + STEP_GAP_NS))
    for rank, (length, gap) in enumerate(drawn):
        rows = []
        for step in range(steps):
            at = begin[step] + 10_000
            for part in range(COLLECTIVES):
                inside = slice(part * per_part, (part + 1) * per_part)
                lengths, gaps = length[step, inside].copy(), gap[step, inside]
                if ranks > 1 and LATE[part : part + 1] == (rank,):
                    lengths[-1] += EXTRA_NS * (len(LATE) - part)
                starts = at + np.cumsum(lengths + gaps) - lengths
                arrived, done = int(starts[-1] + lengths[-1]) + 500, int(at + meet[step, part])
                names = [NAMES[kernel % len(NAMES)] for kernel in range(per_part)]
                rows.append((np.append(starts, arrived), np.append(lengths, done - arrived), [*names, ALL_REDUCE]))
                at = done
        start, lengths = (np.concatenate([row[place] for row in rows]) for place in (0, 1))
        yield Recorded(begin, start, lengths, [name for row in rows for name in row[2]])


def write_micros(value: int) -> str:
    """Whole nanoseconds as the microseconds of Kineto."""
    return f"{value // 1000}.{value % 1000:03d}"


def write_rank(folder: Path, rank: int, ranks: int, recorded: Recorded) -> Path:
    """Write the trace of a rank: its steps, and a launch and a kernel for each row."""
    rows, sequence = [], 0
    for number, (begin, end) in enumerate(zip(recorded.steps[:-1].tolist(), recorded.steps[1:].tolist(), strict=True)):
        row = chrome.step(number + 1, 0, 0)
        rows.append(
            json.dumps(row).replace(
                '"ts": 0, "dur": 0', f'"ts": {write_micros(begin)}, "dur": {write_micros(end - begin - 1000)}'
            )
        )
    columns = zip(recorded.start.tolist(), recorded.length.tolist(), recorded.name, strict=True)
    for number, (start, length, name) in enumerate(columns, 1):
        more = ""
        if name == ALL_REDUCE:
            sequence += 1
            more = (
                ', "Collective name": "allreduce", "In msg nelems": 1048576, "Out msg nelems": 1048576, "dtype": "BFloat16", '
                f'"Group size": {ranks}, "Process Group Name": "0", "Process Group Description": "default_pg", '
                f'"Process Group Ranks": "{list(range(ranks))}", "Seq": {sequence}'
            )
        rows.append(
            '{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100, '
            f'"ts": {write_micros(start - 9_000)}, "dur": 0.040, "args": {{"correlation": {number}}}}}'
        )
        rows.append(
            f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {write_micros(start)}, '
            f'"dur": {write_micros(length)}, "args": {{"device": 0, "stream": 7, "correlation": {number}{more}}}}}'
        )
    head = json.loads(chrome.text([], rank=rank, world_size=ranks))
    del head["traceEvents"]
    path = folder / f"rank{rank}.pt.trace.json.gz"
    path.write_bytes(
        gzip.compress((json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(rows) + "]}").encode(), 1)
    )
    return path


def write_page(folder: Path, say: str) -> tuple[str, Report]:
    """Write the page of a folder, as `tracekit analyze` does, and print sizes."""
    report = tracekit.analyze(folder, cache=False, jobs=2, timeline=True)
    text = str(render(report, "html"))
    page = Page(text)
    exact = sum(line[6] for line, _ in page.cells() if line[4] == 0)
    print(
        f"{say}: {len(text.encode()):,} bytes, {page.head['kernels']:,} kernels, {exact:,} exact, {page.head['missed']:,} left out"
    )
    return text, report


def list_recorded(recorded: Recorded, step: int) -> list[tuple[int, int, str]]:
    """Start, length and name of the kernels of a step."""
    begin, end = recorded.steps[step : step + 2]
    inside = ((recorded.start >= begin) & (recorded.start < end)).nonzero()[0].tolist()
    return sorted((int(recorded.start[row]), int(recorded.length[row]), recorded.name[row]) for row in inside)


def list_shown(page: Page, boxes: np.ndarray) -> list[tuple[int, int, str]]:
    """Start (from the base of the clock), length and name of boxes."""
    shift = int(page.head["t0"]) - chrome.BASE_NS
    names = (page.names[name - 1] for name in boxes[3].tolist())
    return sorted(zip((boxes[0] + shift).tolist(), boxes[1].tolist(), names, strict=True))


@pytest.fixture(scope="module")
def stress(tmp_path_factory):
    """The page of many ranks, its report, and what each rank recorded."""
    folder = tmp_path_factory.mktemp("stress")
    ranks = list(plan_ranks(RANKS, STEPS, KERNELS))
    for rank, recorded in enumerate(ranks):
        write_rank(folder, rank, RANKS, recorded)
    text, report = write_page(folder, f"{RANKS} ranks")
    return text, report, ranks


def test_the_page_of_many_ranks_is_in_budget(stress):
    text, _, ranks = stress
    assert len(text.encode()) <= BUDGET
    assert (
        Page(text).head["kernels"]
        == sum(len(recorded.start) for recorded in ranks)
        == RANKS * STEPS * (KERNELS + COLLECTIVES)
    )


def test_the_longest_and_the_median_step_of_the_latest_ranks_are_exact_to_the_ns(stress):
    text, _, ranks = stress
    page = Page(text)
    late = [row["late"] or 0 for row in page.head["rows"]]
    assert sorted(range(RANKS), key=lambda row: -late[row])[: len(LATE)] == [*LATE]
    cells = {(line[0], line[1] - 1): (line, boxes) for line, boxes in page.cells()}
    for rank in LATE:
        recorded = ranks[rank]
        by_length = np.argsort(-np.diff(recorded.steps), kind="stable")
        for step in (by_length[0], by_length[len(by_length) // 2]):
            line, boxes = cells[rank, int(step)]
            assert line[4] == 0, f"rank {rank}, step {step}: merged below {line[4]} ns"
            assert list_shown(page, boxes) == list_recorded(recorded, int(step))


def test_merged_steps_keep_the_number_and_time_of_their_kernels(stress):
    text, _, ranks = stress
    page = Page(text)
    assert page.head["missed"] == 0
    of_rank = np.zeros((RANKS, 2), np.int64)
    for line, boxes in page.cells():
        busy = np.where(boxes[7] > 0, boxes[8], boxes[1])
        of_rank[line[0]] += (boxes[7] + 1).sum(), busy.sum()
    assert of_rank.tolist() == [[len(recorded.start), int(recorded.length.sum())] for recorded in ranks]


def test_one_rank_of_300_000_kernels_is_exact_as_a_whole(tmp_path):
    recorded = next(plan_ranks(1, STEPS, LONG_KERNELS // STEPS))
    write_rank(tmp_path, 0, 1, recorded)
    text, _ = write_page(tmp_path, "one rank")
    assert len(text.encode()) <= BUDGET
    page = Page(text)
    assert page.head["missed"] == 0
    cells = list(page.cells())
    assert all(line[4] == 0 for line, _ in cells)
    shown = list_shown(page, np.concatenate([boxes for _, boxes in cells], axis=1))
    assert len(shown) >= LONG_KERNELS
    assert shown == sorted(zip(recorded.start.tolist(), recorded.length.tolist(), recorded.name, strict=True))
