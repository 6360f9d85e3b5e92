"""What every place in the program holds at the end of each step: over snapshots, and over the steps within one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from memory_builder import MIB, Allocator, frame, pickled, snapshot
from snapshot_traces import loaded, rows, section, table

from tracekit.analyses.memory import live_steps
from tracekit.discover.names import read_name
from tracekit.model.tables import TABLES, concatenate_table_parts
from tracekit.model.trace import Measurements, Source, Want, add_key_columns
from tracekit.pipeline import run as pipeline
from tracekit.readers import torch_memory

MODEL, LEAK, BUFFER = (frame(name, line=at) for at, name in enumerate(("build", "keep", "pass"), 1))


def held(measured):
    """(position, step, site or why there is none) → bytes."""
    made = table(measured, "live_steps")
    return {
        (int(row.position), None if row.step is None or row.step != row.step else int(row.step),
         row.site if isinstance(row.site, str) else row.untold): int(row.size_bytes)
        for row in made.astype(object).where(made.notna(), None).itertuples()
    }  # fmt: skip


def work(device, name, number):
    """1 MiB is kept; of a buffer of 2 MiB nothing is left when the step ends."""
    device.annotate(name.format(number), "START")
    buffer = device.alloc(2 * MIB, [BUFFER])
    device.alloc(MIB, [LEAK])
    device.free(buffer)
    device.annotate(name.format(number), "END")


def test_steps_marked_within_a_snapshot_have_a_row_a_place_each(tmp_path):
    device = Allocator()
    device.alloc(8 * MIB, [MODEL])
    for number in (5, 6, 7):
        work(device, "ProfilerStep#{}", number)
    device.alloc(30 * MIB, [BUFFER])  # after the last step
    assert held(live_steps.measure(loaded(tmp_path, device))) == {
        (at, at + 5, site): size * MIB
        for at in range(3)
        for site, size in (("job/train.py:1 build", 8), ("job/train.py:2 keep", at + 1))
    }


def test_the_end_of_a_file_is_the_end_of_its_step(tmp_path):
    device = Allocator()
    device.alloc(3 * MIB, [MODEL])
    device.free(device.alloc(5 * MIB, [BUFFER]))
    found = held(live_steps.measure(loaded(tmp_path, device, step=4)))
    assert found == {(0, 4, "job/train.py:1 build"): 3 * MIB}


def test_what_has_no_place_says_why(tmp_path):
    """Before the recording: 1 MiB with a stack, 2 whose stack is empty, 4 that are freed in the second step."""
    device = Allocator()
    device.alloc(MIB, [MODEL])
    device.alloc(2 * MIB)
    gone = device.alloc(4 * MIB, [MODEL])
    device.clear_history()
    work(device, "ProfilerStep#{}", 0)
    device.annotate("ProfilerStep#1", "START")
    device.free(gone)
    device.annotate("ProfilerStep#1", "END")
    found = held(live_steps.measure(loaded(tmp_path, device)))
    assert found == {
        (0, 0, "job/train.py:1 build"): MIB, (0, 0, "job/train.py:2 keep"): MIB,
        (0, 0, "empty"): 2 * MIB, (0, 0, "freed"): 4 * MIB,
        (1, 1, "job/train.py:1 build"): MIB, (1, 1, "job/train.py:2 keep"): MIB, (1, 1, "empty"): 2 * MIB,
    }  # fmt: skip


def test_an_end_at_which_nothing_is_in_use_is_told_as_well(tmp_path):
    device = Allocator()
    for number in range(2):
        device.annotate(f"ProfilerStep#{number}", "START")
        device.free(device.alloc(MIB, [BUFFER]))
        device.annotate(f"ProfilerStep#{number}", "END")
    assert held(live_steps.measure(loaded(tmp_path, device))) == {(0, 0, "rest"): 0, (1, 1, "rest"): 0}  # fmt: skip


def test_places_beyond_the_cap_are_one_row(tmp_path):
    device = Allocator()
    for line in range(1, live_steps.MAX_SITES + 11):
        device.alloc(1024 * line, [frame("f", "/job/a.py", line)])
    found = held(live_steps.measure(loaded(tmp_path, device)))
    assert len(found) == live_steps.MAX_SITES + 1
    assert found[0, None, "rest"] == 1024 * 55  # the ten smallest: 1 to 10 KiB


def measured(folder, **devices):
    """The measurements of snapshots by file name, as they are without the rest of an analysis."""
    parts = []
    for name, device in devices.items():
        path = folder / (name + ".pickle")
        path.write_bytes(device if isinstance(device, bytes) else pickled(snapshot(device)))
        facts = read_name((path.name,))
        source = Source(path, path.name, "torch_memory", "torch_memory", rank=facts.rank, pid=facts.pid)
        number = name.partition("step")[2].partition("_")[0]
        source = replace(source, step=int(number) if number else None)
        (trace,) = torch_memory.read(source, Want())
        for module in (live_steps, _peak()):
            made = module.measure(trace)
            parts += [(n, add_key_columns(TABLES[n], c, source)) for n, c in made.items()]
    names = {n for n, _ in parts} | {"captures"}
    tables = {n: concatenate_table_parts(TABLES[n], [f for m, f in parts if m == n]) for n in names - {"captures"}}
    return Measurements({**tables, "captures": TABLES["captures"].cast()}, ())


def _peak():
    from tracekit.analyses.memory import memory_peak

    return memory_peak


def sheet(found):
    section = live_steps.judge(found, {})
    (one,) = section.sheets
    return one.headings, [dict(zip((h.name for h in one.headings), row, strict=True)) for row in one.rows]  # fmt: skip


def snapshots(tmp_path, count, rank=0):
    """One snapshot a step of a process that keeps a MiB in each; its history is cleared as verl does."""
    device, made = Allocator(), {}
    device.alloc(8 * MIB, [MODEL])
    for number in range(count):
        work(device, "step {}", number)
        made[f"step{number}_torch_memory_rank{rank}_pid1"] = pickled(snapshot(device))
        device.clear_history()
        device.annotations.clear()
    return measured(tmp_path, **made)


def test_a_process_has_a_column_for_every_step_and_all_that_is_in_use_first(tmp_path):
    headings, found = sheet(snapshots(tmp_path, 3))
    assert [h.title for h in headings] == ["place in the program", "first to last", "step 0", "step 1", "step 2"]  # fmt: skip
    told = [[row["where"], *(row[f"end_{n}"] // MIB for n in range(3)), row["change"] // MIB] for row in found]  # fmt: skip
    assert told == [
        ["in use", 9, 10, 11, 2], ["job/train.py:1 build", 8, 8, 8, 0], ["job/train.py:2 keep", 1, 2, 3, 2],
    ]  # fmt: skip


def test_of_many_steps_the_first_the_last_and_some_between_are_shown(tmp_path):
    headings, found = sheet(snapshots(tmp_path, 19))
    shown = [h.title for h in headings if h.name.startswith("end_")]
    assert shown == [f"step {n}" for n in range(0, 19, 2)]
    assert len(shown) == live_steps.MAX_COLUMNS
    assert (found[1]["where"], found[1]["change"]) == ("job/train.py:2 keep", 18 * MIB)


def test_files_of_unknown_processes_are_not_put_in_one_row(tmp_path):
    """Two programs that left a snapshot each, without anything in their names."""
    one, other = Allocator(), Allocator()
    one.alloc(MIB, [MODEL])
    other.alloc(2 * MIB, [LEAK])
    section = live_steps.judge(measured(tmp_path, a=one, b=other), {})
    assert (section.status, section.sheets) == ("skipped", ())


def test_a_single_end_is_left_to_the_section_about_the_peak(tmp_path):
    section = live_steps.judge(snapshots(tmp_path, 1), {})
    assert section.status == "skipped"


def test_without_snapshots_there_is_no_such_section():
    assert live_steps.judge(Measurements({}, ()), {}) is None


@pytest.mark.skipif("TRACEKIT_REAL_DATA" not in os.environ, reason="real profiles are not here")
def test_the_planted_leak_is_the_place_that_grows():
    folder = Path(os.environ["TRACEKIT_REAL_DATA"], "memory", "SIMULATED_cpu_allocsim")
    found = rows(section(pipeline.analyze_uncached(folder, pipeline.Options(jobs=1, questions=("live-steps",))).report, "live-steps"), "live_steps")  # fmt: skip
    grows = {row["where"]: row["end_8"] - row["end_1"] for row in found if row["end_8"] > row["end_1"]}  # fmt: skip
    # From the end of step 0 to that of step 7; the ground truth is 3,586,048 bytes from step 0 on.
    assert grows == {"in use": 3_586_048, "simgen.py:13 leak": 3_586_048}
