"""How large a device is: as given, else as profiles of the same run record it; and what cannot be a size."""

import pandas as pd
import pytest
from chrome_builder import op, write
from memory_builder import Allocator
from snapshot_traces import MIB, section, written

import tracekit
from tracekit.job.memory.device_size import add_card_sizes, device_sizes, parse_device_memory
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.facts import Facts, parse_facts
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import make_nullable_numbers
from tracekit.model.tables.frame import Frame, texts
from tracekit.model.trace import Measurements
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached
from tracekit.pipeline.run_grouping import merge as merging

QUESTIONS = ("memory-peak",)
GIB = 2**30


def recorded(*rows, **facts):
    """Measurements with these (run, rank, device, bytes)."""
    frame = pd.DataFrame(rows, columns=["run", "rank", "device", "size_bytes"])
    table = TABLES["device_sizes"]
    columns = {name: frame[name].array for name in ("rank", "device", "size_bytes")}
    columns |= {"run": frame["run"].to_numpy(object), "source": ["trace.json"] * len(frame)}
    return Measurements({"device_sizes": table.cast(columns, len(frame))}, (), facts=Facts(**facts))


def told(measured, *whose):
    found = device_sizes(measured).find_size(*whose)
    return found and (found.size_bytes // GIB, found.origin)


def test_what_is_given_goes_before_what_is_recorded():
    measured = recorded(("a", 0, 0, 80 * GIB), device_memory=40 * GIB)
    assert told(measured, "a", 0, 0) == told(measured, "b", 7, 3) == (40, "given")


def test_a_rank_has_the_device_that_its_own_trace_records():
    measured = recorded(("a", 0, 0, 80 * GIB), ("a", 0, 1, 24 * GIB), ("a", 1, 0, 40 * GIB))
    assert told(measured, "a", 0, 1) == (24, "from the trace of rank 0")
    assert told(measured, "a", 1, 0) == (40, "from the trace of rank 1")
    # That trace tells of its devices, and this is none of them.
    assert told(measured, "a", 1, 5) is None


def test_ranks_that_recorded_none_have_what_all_others_of_their_run_have():
    alike = recorded(("a", 0, 0, 80 * GIB), ("a", 1, 0, 80 * GIB), ("b", 0, 0, 24 * GIB))
    assert told(alike, "a", 7, 0) == told(alike, "a", None, None) == (80, "from the trace of rank 0")  # fmt: skip
    assert told(alike, "c", 0, 0) is None
    mixed = recorded(("a", 0, 0, 80 * GIB), ("a", 1, 0, 24 * GIB))
    assert told(mixed, "a", 7, 0) is None


def test_processes_of_unknown_rank_that_disagree_tell_nothing():
    measured = recorded(("a", None, 0, 80 * GIB), ("a", None, 0, 24 * GIB))
    assert told(measured, "a", None, 0) is None
    alone = recorded(("a", None, 0, 80 * GIB))
    assert told(alone, "a", None, 0) == (80, "from the trace of trace.json")


@pytest.mark.parametrize("size", [0, -1, True, 2**60, "80", 1.5, None])
def test_what_a_saved_file_cannot_mean_is_no_size(size):
    assert device_sizes(Measurements({}, (), facts=parse_facts({"device_memory": size}))).given is None


def test_pinned_memory_of_a_host_has_no_card():
    memories = Frame.from_columns({"memory": texts(["device", "host"]), "device": make_nullable_numbers([0, None])})
    memories = memories.with_columns(run="a", rank=0)
    found = add_card_sizes(Measurements({}, (), facts=Facts(device_memory=GIB)), memories)
    assert found.values("card_bytes") == [GIB, None]


@pytest.mark.parametrize("text", ["80", "0", "-5GiB", "2000TiB", "80 apples", ""])
def test_a_size_without_a_unit_or_beyond_any_device_is_refused(text):
    with pytest.raises(TracekitError):
        parse_device_memory(text)


def peaks(found):
    sheet = next(s for s in section(found, "memory-peak").sheets if s.name == "snapshot_peaks")
    names = [heading.name for heading in sheet.headings]
    return [dict(zip(names, cells, strict=True)) for cells in sheet.rows]


@pytest.fixture(scope="module")
def half_full(tmp_path_factory):
    """16 MiB in use, for which 20 are reserved."""
    allocator = Allocator()
    for _ in range(2):
        allocator.alloc(8 * MIB)
    return written(tmp_path_factory.mktemp("half"), {1: allocator})


def test_peaks_are_shares_of_the_card_where_its_size_is_given(half_full, tmp_path):
    report = tracekit.analyze(half_full, device_memory="80MiB", jobs=1, questions=QUESTIONS)
    (row,) = peaks(report)
    assert (row["card_ratio"], row["reserved_ratio"]) == (0.2, 0.25)
    metrics = {m.name: (m.value, m.label) for m in section(report, "memory-peak").metrics}
    assert metrics["card_ratio"] == (0.2, "of GPU memory (80.0 MiB, given)")
    assert metrics["reserved_ratio"][0] == 0.25
    # Saved measurements keep it, and another option goes before it.
    measured = analyze_uncached(half_full, Options(jobs=1, device_memory=80 * MIB, questions=QUESTIONS)).measurements
    path = tmp_path / "run.tkm"
    saved_measurements.save(measured, path)
    assert peaks(analyze_uncached(path, Options(questions=QUESTIONS)).report)[0]["card_ratio"] == 0.2
    assert (
        peaks(analyze_uncached(path, Options(device_memory=40 * MIB, questions=QUESTIONS)).report)[0]["card_ratio"]
        == 0.4
    )


def test_without_a_size_no_share_is_shown_and_a_size_too_small_is_said_to_be(half_full):
    measured = analyze_uncached(half_full, Options(jobs=1, questions=QUESTIONS)).measurements
    assert "card_ratio" not in peaks(pipeline.judge(measured))[0]
    small = merging.replace(measured, facts=Facts(device_memory=10 * MIB))
    caveats = section(pipeline.judge(small), "memory-peak").caveats
    assert any("reserved memory exceeds" in caveat for caveat in caveats)


def test_a_trace_without_memory_samples_tells_the_card_of_its_rank(half_full):
    properties = [{"id": 0, "name": "GPU", "totalGlobalMem": 40 * MIB}]
    trace = write(half_full / "step1" / "trace_rank0.json", [op("a", 0, 9)], rank=0, deviceProperties=properties)  # fmt: skip
    report = analyze_uncached(half_full, Options(jobs=1, questions=QUESTIONS)).report
    trace.unlink()
    metrics = {m.name: m.label for m in section(report, "memory-peak").metrics}
    assert metrics["card_ratio"] == "of GPU memory (40.0 MiB, from the trace of rank 0)"


def test_the_command_line_takes_it(half_full, call, tmp_path):
    path = tmp_path / "report.json"
    done = call("analyze", half_full, "-q", "-j", 1, "--device-memory", "80MiB", "-o", path)
    assert done.exit_code == 0
    assert "80.0 MiB, given" in path.read_text()
    refused = call("analyze", half_full, "-q", "--device-memory", "80")
    assert refused.exit_code == 2
    assert "80GiB" in refused.stderr


def test_parts_that_were_given_different_sizes_have_none_together(half_full):
    measured = analyze_uncached(half_full, Options(jobs=1, questions=QUESTIONS)).measurements
    parts = [merging.replace(measured, facts=Facts(device_memory=n * GIB)) for n in (1, 1, 2)]
    assert merging.merge(parts[:2], ["a", "b"]).facts.device_memory == GIB
    assert merging.merge(parts[1:], ["a", "b"]).facts.device_memory is None
