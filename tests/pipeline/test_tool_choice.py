"""A directory that two tools recorded: one answers for every (rank, step), the other is a check; nothing is added up."""

import nsys_builder as nsys
import pytest
from chrome_builder import annotation, kernel, launch, write

import tracekit
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run_grouping.primary_tool import select_primary_tool

QUESTIONS = ("cross-check", "gpu-time", "gpu-time", "steps")
STEP_US = 100


def torch(folder, rank, steps, *, step_us=STEP_US):
    """Steps of gen (40 %) and update_actor (60 %), with one kernel of 30 % each."""
    rows = []
    for n in steps:
        at = n * 1000
        rows += [
            annotation(f"step {n}", at, step_us), annotation("gen", at, step_us * 0.4),
            annotation("update_actor", at + step_us * 0.4, step_us * 0.6),
            launch(at + 1, n), kernel("gemm", at + 5, step_us * 0.3, n),
        ]  # fmt: skip
    name = f"actor_rank{rank}-of-2_pid{100 + rank}.json"
    return write(folder / name, rows, rank=rank, world_size=2)


def nsight(folder, rank, steps, *, step_us=STEP_US):
    """The same, as nsys sees it."""
    rows = [nsys.variable("RANK", rank), nsys.variable("WORLD_SIZE", 2)]
    pid, unit = 100 + rank, step_us * 1000
    for n in steps:
        at = n * 1_000_000
        rows += [
            nsys.nvtx(f"step {n}", at, at + unit, pid=pid, tid=pid),
            nsys.nvtx("gen", at, at + unit * 4 // 10, pid=pid, tid=pid),
            nsys.nvtx("update_actor", at + unit * 4 // 10, at + unit, pid=pid, tid=pid),
            *nsys.launched("gemm", at + 1000, at + 5000, at + 5000 + unit * 3 // 10, n, pid=pid, tid=pid),
        ]  # fmt: skip
    path = folder / f"worker_process_{pid}.sqlite"
    return nsys.write(path, rows, duration_ns=max(steps) * 1_000_000 + 10_000_000)


def sources(measured):
    return sorted((s.tool, s.rank) for s in measured.sources)


@pytest.fixture
def mixed(tmp_path):
    for rank in (0, 1):
        torch(tmp_path / "torch", rank, (1, 2, 3))
        nsight(tmp_path / "nsys", rank, (1, 2), step_us=110)
    return tmp_path


def test_the_tool_that_saw_more_answers_and_the_other_checks(mixed):
    measured = pipeline.measure(pipeline.discover_sources(mixed))
    used = select_primary_tool(measured)
    assert {s.run for s in measured.sources} == {measured.sources[0].run}
    assert sources(used) == [("torch", 0), ("torch", 1)]
    assert sources(used.check) == [("nsys", 0), ("nsys", 1)]
    assert set(used["steps"]["tool"]) == {"torch"}
    assert sorted(used["steps"]["step"]) == [1, 1, 2, 2, 3, 3]


def test_the_step_is_that_of_one_tool_and_the_difference_is_told(mixed):
    report = tracekit.analyze(mixed, questions=QUESTIONS)
    assert next(m for m in report.headline if m.name == "step_wall").value == STEP_US * 1000
    found = next(s for s in report.sections if s.id == "cross-check")
    rows = {
        row["what"]: row
        for row in (dict(zip([h.name for h in found.sheets[0].headings], r, strict=True)) for r in found.sheets[0].rows)
    }  # fmt: skip
    assert (rows["step"]["first_ns"], rows["step"]["second_ns"]) == (100_000, 110_000)
    assert rows["step"]["pairs"] == 4
    assert rows["gen"]["difference_ratio"] == pytest.approx(0.1)
    assert rows["GPU busy"]["second_ns"] == 33_000
    assert "Compare shares" in found.caveats[0]
    assert any("checked by nsys: 2 files" in fact for fact in report.identity)


def test_ranks_and_steps_that_only_one_tool_saw_are_all_in_the_report(tmp_path):
    torch(tmp_path, 0, (1, 2))
    nsight(tmp_path, 1, (1, 2))
    used = select_primary_tool(pipeline.measure(pipeline.discover_sources(tmp_path)))
    assert sources(used) == [("nsys", 1), ("torch", 0)]
    assert used.check is None


def test_a_recording_without_step_numbers_may_be_of_any_step(tmp_path):
    torch(tmp_path, 0, (1, 2, 3))
    rows = [nsys.variable("RANK", 0), nsys.nvtx("gen", 0, 50_000)]
    nsys.write(tmp_path / "worker_process_100.sqlite", rows, duration_ns=10**6)
    used = select_primary_tool(pipeline.measure(pipeline.discover_sources(tmp_path)))
    assert (sources(used), sources(used.check)) == ([("torch", 0)], [("nsys", 0)])


def test_one_tool_alone_is_left_as_it_is(tmp_path):
    torch(tmp_path, 0, (1, 2))
    measured = pipeline.measure(pipeline.discover_sources(tmp_path))
    assert select_primary_tool(measured) is measured
    assert all(s.id != "cross-check" for s in tracekit.analyze(tmp_path, questions=QUESTIONS).sections)


def test_compare_takes_the_steps_of_one_tool_on_each_side(tmp_path, mixed):
    torch(tmp_path / "other", 0, (1, 2, 3), step_us=50)
    comparison = tracekit.compare(mixed / "torch", tmp_path / "other")
    assert "2.00×" in tracekit.render(comparison, "text")
