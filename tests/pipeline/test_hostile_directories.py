"""Of whatever lies in a directory: no share outside 0 to 100 %, no negative time, nothing recoverable above its step."""

import gzip
import math
import random
import shutil

import pytest
from chrome_builder import BASE_NS, HOST_PID, annotation, launched, op, step, write

from tracekit.pipeline.run import analyze_uncached

RANKS, STEPS = 2, 3
HOUR = 3600 * 10**9
SLACK = 1e-9
"""What rounding may add to a ratio."""

SIGNED = {
    ("clocks", "offset_ns"): "a clock lies before or behind another",
    ("ranks", "beyond_ns"): "how much longer a rank takes than the others do: the fast ones take less",
}
"""Times that are differences, and why they may be below zero; all others are how long something took."""

UNBOUNDED = {"spread": "a standard deviation over the mean"}
"""Ratios that are no shares, and what they are."""


def rows_of(rank, pid, scale=1.0):
    """Three steps with two stages, ops, kernels, a collective and waits, and a gap at the end of each."""
    rows = []
    for number in range(STEPS):
        zero, link = number * 1000 * scale, 10 * number + 1
        rows += [
            step(number + 1, zero, 1000 * scale),
            annotation("gen", zero + 10, 400 * scale), op("aten::mm", zero + 20, 100 * scale),
            *launched("gemm", zero + 30, zero + 60, (200 + 40 * rank) * scale, link),
            annotation("update_actor", zero + 500 * scale, 400 * scale),
            op("aten::add_", zero + 510 * scale, 90 * scale),
            *launched("ncclDevKernel_AllReduce_Sum_f32", zero + 520 * scale, zero + 560 * scale,
                      (200 - 40 * rank) * scale, link + 1),
            *launched("elementwise", zero + 530 * scale, zero + 770 * scale, 60 * scale, link + 2),
        ]  # fmt: skip
    return [{**row, "pid": pid} if row["pid"] == HOST_PID else row for row in rows]


def any_of(folder, draw):
    return draw.choice(sorted(path for path in folder.glob("*.json") if not path.is_symlink()))


def copied(folder, draw):
    shutil.copy(any_of(folder, draw), folder / f"copy{draw.randrange(9)}.json")


def copied_below(folder, draw):
    source = any_of(folder, draw)
    (folder / "backup").mkdir(exist_ok=True)
    shutil.copy(source, folder / "backup" / source.name)


def compressed(folder, draw):
    source = any_of(folder, draw)
    (folder / f"{source.name}.gz").write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def linked(folder, draw):
    (folder / "a_link.json").symlink_to(any_of(folder, draw))


def cut_off(folder, draw):
    source = any_of(folder, draw)
    data = source.read_bytes()
    length = int(len(data) * draw.uniform(0.3, 0.99))
    (folder / f"cut{draw.randrange(9)}_{source.name}").write_bytes(data[:length])


def longer(folder, draw):
    source = any_of(folder, draw)
    (folder / f"longer_{source.name}").write_bytes(source.read_bytes() + draw.randbytes(99))


def recorded_again(folder, draw):
    """The same rank and process, its steps at times that begin alike and run apart."""
    rank = draw.randrange(RANKS)
    rows = rows_of(rank, 100 + rank, draw.choice((0.5, 1.0, 1.01, 3.0)))
    start_ns = BASE_NS + draw.choice((0, 0, 7_000, 500_000, HOUR))
    meta = {"rank": rank, "world_size": RANKS, "base_ns": start_ns}
    write(folder / f"again_rank{rank}.json", rows, **meta)


def of_another_world(folder, draw):
    rows = rows_of(1, 300, 2.0)
    start_ns = BASE_NS + draw.choice((0, 500_000))
    write(folder / "rank1_of_4.json", rows, rank=1, world_size=4, base_ns=start_ns)


def of_another_model(folder, draw):
    rows = rows_of(0, 900 + draw.randrange(5), 7.0)
    write(folder / "model.json", rows, base_ns=BASE_NS + HOUR)


DEEDS = (
    *(copied, copied_below, compressed, linked, cut_off, longer),
    *(recorded_again, of_another_world, of_another_model),
)


def hostile(folder, seed):
    """What was done to a directory of two healthy ranks."""
    for rank in range(RANKS):
        rows = rows_of(rank, 100 + rank)
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=RANKS)
    draw = random.Random(seed)
    deeds = draw.sample(DEEDS, draw.randrange(1, 5))
    for deed in deeds:
        deed(folder, draw)
    return [deed.__name__ for deed in deeds]


def beyond(report):
    """Cells, figures and findings that no directory can hold."""
    for section in report.sections:
        for sheet in section.sheets:
            for place, heading in enumerate(sheet.headings):
                cells = [row[place] for row in sheet.rows]
                cells = [c for c in cells if isinstance(c, int | float) and math.isfinite(c)]
                low = -SLACK if heading.unit == "ratio" else -0.5
                signed = (sheet.name, heading.name) in SIGNED
                if heading.unit in ("ns", "ratio") and not signed and min(cells, default=0) < low:
                    yield section.id, sheet.name, heading.name, min(cells)
                bounded = heading.unit == "ratio" and heading.name not in UNBOUNDED
                if bounded and max(cells, default=0) > 1 + SLACK:
                    yield section.id, sheet.name, heading.name, max(cells)
    steps_ns = [m.value for m in report.headline if m.unit == "ns" and m.value]
    for metric in report.headline:
        if metric.unit == "ratio" and not 0 <= (metric.value or 0) <= 1 + SLACK:
            yield "headline", metric.name, metric.value
    for finding in report.findings:
        if not 0 <= (finding.cost_ratio or 0) <= 1 + SLACK:
            yield "finding", finding.rule, finding.cost_ratio
        if not 0 <= (finding.cost_ns or 0) <= max(steps_ns, default=0) + 1:
            yield "finding", finding.rule, finding.cost_ns, steps_ns


def check(folder, seed):
    deeds = hostile(folder, seed)
    report = analyze_uncached(folder).report
    assert len(report.findings) + sum(len(section.sheets) for section in report.sections) > 10
    assert list(beyond(report)) == [], deeds


FEW = (12, 16, 25)
"""Among them is everything that is done, but for copies one by one."""


@pytest.mark.parametrize("seed", FEW)
def test_nothing_is_more_than_the_whole_whatever_lies_there(tmp_path, seed):
    check(tmp_path / "profile", seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in range(22) if seed not in FEW])
def test_nothing_is_more_than_the_whole_of_many_more_directories(tmp_path, seed):
    check(tmp_path / "profile", seed)
