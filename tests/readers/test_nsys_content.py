"""What an export says of itself: its clock, its versions, its GPUs, its warnings, and what is missing."""

import os
from pathlib import Path

import pytest
from nsys_builder import BASE_NS, PID, api, captured, diagnostic, domain, gpu, kernel, nvtx, system, variable, write

from tracekit.readers.nsys import content as nsys_content
from tracekit.readers.nsys.content import (
    ExportClock,
    find_capture_year,
    note_expected_data_missing,
    read_device_properties,
    read_export_clock,
)
from tracekit.readers.nsys.sqlite.connection import open_export

REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.fixture
def database(tmp_path):
    """A function: the export of these rows, opened."""
    open_files = []

    def make(rows, schema="3.11", **more):
        path = write(tmp_path / f"{len(open_files)}.sqlite", rows, schema=schema, **more)
        manager = open_export(path)
        open_files.append(manager)
        return manager.__enter__()

    yield make
    for manager in open_files:
        manager.__exit__(None, None, None)


def test_times_count_from_the_start_of_the_capture(database):
    assert read_export_clock(database([nvtx("a", 1, 2)], duration_ns=900)) == (ExportClock(BASE_NS, 0, 900, True), [])


@pytest.mark.parametrize(
    ("exported", "base", "start"),
    [
        ({"EXPORT_CONFIG_TIME_SHIFT": "500", "EXPORT_PARAM_TIME_SHIFT": "500"}, BASE_NS - 500, 500),
        ({"EXPORT_PARAM_TIME_SHIFT": "-7"}, BASE_NS + 7, -7),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, 0, BASE_NS),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true", "EXPORT_PARAM_TIME_SHIFT": "3"}, -3, BASE_NS + 3),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true", "EXPORT_CONFIG_TIME_SHIFT": str(BASE_NS)}, 0, BASE_NS),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "false", "EXPORT_CONFIG_TIME_SHIFT": "0"}, BASE_NS, 0),
    ],
)
def test_what_the_exporter_added_to_times_is_undone(database, exported, base, start):
    found, notes = read_export_clock(database([nvtx("a", 1, 2)], exported=exported.items(), duration_ns=900))
    assert found == ExportClock(base, start, start + 900, True)
    assert [note.code for note in notes] == ["time-shift"] * (start != 0)


@pytest.mark.parametrize("utc", [None, 0, -5, 2**62, "yesterday"])
def test_without_a_usable_start_times_are_relative(database, utc):
    found, notes = read_export_clock(database([nvtx("a", 1, 2)], utc_ns=utc))
    assert found == ExportClock(0, 0, None, False)
    assert [note.code for note in notes] == ["base-time"]


def test_versions_of_capture_and_exporter_are_told_apart(database):
    rows = [system("TargetInstallDir", "/opt/nvidia/nsight-systems-cli/2023.2.3/target-linux-x64"),
            system("CudaDriverVersion", "12020"), captured("PROFILING_SESSION_UUID", "u-1"),
            captured("COLLECT_GPU_MEMORY_USAGE", "true")]  # fmt: skip
    db = database(rows, schema="3.11")
    assert nsys_content.read_export_metadata(db) == {
        "nsys_version": "2023.2.3",
        "nsys_exporter_version": "2024.2.3.38",
        "nsys_schema": "3.11.0",
        "capture_uuid": "u-1",
        "host_name": "node-a",
        "cuda_driver_version": 12020,
        "gpu_memory_usage": 1,
    }
    assert find_capture_year(db) == 2023
    assert find_capture_year(database([], schema="3.0")) == 2022
    assert find_capture_year(database([], schema="3.11")) is None


def test_the_gpus_are_those_that_the_process_uses_by_its_own_numbers(database):
    numbers = [("TARGET_INFO_CUDA_DEVICE", {"gpuId": 5, "cudaId": 0, "pid": PID}),
               ("TARGET_INFO_CUDA_DEVICE", {"gpuId": 4, "cudaId": 0, "pid": 7})]  # fmt: skip
    rows = [gpu(4, "H100"), gpu(5, "H200", cuDevice=9)]
    db = database([*rows, *numbers], schema="3.25")
    (mine,) = read_device_properties(db, PID, [0])
    assert (mine["id"], mine["name"], mine["totalGlobalMem"]) == (0, "H200", 80 * 2**30)
    assert (mine["computeMajor"], mine["computeMinor"], mine["numSms"]) == (9, 0, 132)
    assert nsys_content.map_gpu_numbers(db, PID, [0]) == {5}
    old = database(rows, schema="3.0")
    assert [g["id"] for g in read_device_properties(old, PID, [])] == [4, 9]
    assert [g["name"] for g in read_device_properties(old, PID, [9])] == ["H200"]
    assert nsys_content.map_gpu_numbers(old, PID, [4]) == {4}


def test_odd_properties_of_a_gpu_are_left_out(database):
    db = database([gpu(0, "x" * 500, totalMemory=-1, smCount=None), gpu("zero"), gpu(-3)])
    (found,) = read_device_properties(db, PID, [0])
    assert found.keys() == {"id", "computeMajor", "computeMinor", "uuid"}


def test_warnings_of_the_profiler_are_told_once_each_with_their_count(database):
    lost = "The buffer was full: 5 records were dropped."
    perhaps = "Not all NVTX events might have been collected."
    rows = [
        diagnostic(lost, pid=PID), diagnostic(lost, pid=PID), diagnostic("of another", pid=7),
        diagnostic("GPU is\non\tfire " + "x" * 900), diagnostic("Profiling has started.", severity=1),
        diagnostic("No CUDA events collected. Does the process use CUDA?", pid=PID),
        diagnostic("an error", severity=3, pid=PID), diagnostic(perhaps, pid=PID),
    ]  # fmt: skip
    notes = nsys_content.read_profiler_warnings(database(rows), PID)
    assert [(note.severity, note.code, note.count) for note in notes] == [
        ("data_loss", "lost-rows", 2),
        ("warning", "profiler-warning", 1),
        ("warning", "lost-rows", 1),
        ("warning", "profiler-warning", 1),
        ("info", "profiler-warning", 1),
    ]
    assert notes[0].message.endswith(lost)
    assert notes[1].message.startswith("the profiler says: GPU is on fire xxx")
    assert len(notes[1].message) < 250
    assert len(nsys_content.read_profiler_warnings(database(rows), None)) == 6


def test_very_many_different_warnings_are_cut_and_counted(database):
    notes = nsys_content.read_profiler_warnings(database([diagnostic(f"warning {i:04}") for i in range(200)]), PID)
    assert len(notes) == nsys_content.MAX_DIAGNOSTICS + 1
    assert sum(note.count for note in notes) == 200


def test_calls_without_gpu_work_are_noted(database):
    counts = {"device_op_count": 0, "range_count": 1}
    (note,) = note_expected_data_missing(database([api("cudaFree", 1, 2)]), PID, api_count=1, **counts)
    assert (note.severity, note.code) == ("warning", "no-gpu-rows")
    (note,) = note_expected_data_missing(database([gpu()]), PID, api_count=0, **counts)
    assert (note.severity, note.code) == ("info", "no-gpu-rows")
    assert note_expected_data_missing(database([nvtx("a", 1, 2)]), PID, api_count=0, **counts) == []
    worked = {"device_op_count": 1, "range_count": 0}
    assert note_expected_data_missing(database([gpu(), kernel("k", 1, 2)]), PID, api_count=1, **worked) == []


def test_domains_without_a_range_are_noted(database):
    db = database([domain("verl", 1)])
    counts = {"api_count": 0, "device_op_count": 0}
    (note,) = note_expected_data_missing(db, PID, range_count=0, **counts)
    assert note.code == "nvtx-empty-domains"
    assert note_expected_data_missing(db, PID, range_count=1, **counts) == []
    assert note_expected_data_missing(db, PID + 1, range_count=0, **counts) == []


def test_nothing_of_the_environment_gets_into_the_facts(database):
    secret = "hf_SECRET"
    rows = [variable("HF_TOKEN", secret), system("DeviceEnvironment", f"HF_TOKEN={secret}"),
            captured("PROCESS_0:ARGUMENT_0", secret), captured("PROCESS_0:WORKING_DIR", secret)]  # fmt: skip
    db = database(rows)
    assert secret not in repr((nsys_content.read_export_metadata(db), nsys_content.read_profiler_warnings(db, PID)))


@pytest.mark.skipif(REAL is None, reason="no real data")
def test_real_diagnostics_are_sorted_by_what_they_mean():
    with open_export(Path(REAL) / "nsys/frasertajima_WeatherBench2/report1.sqlite") as db:
        notes = nsys_content.read_profiler_warnings(db, 2568473)
        assert nsys_content.read_export_metadata(db)["nsys_version"] == "2025.5.1.121"
    assert [note.severity for note in notes] == ["info"] * 3
    with open_export(Path(REAL) / "nsys/real_cpu/ray_steps/worker_process_24151.1.sqlite") as db:
        (note,) = nsys_content.read_profiler_warnings(db, 24151)
    assert (note.severity, note.code) == ("warning", "lost-rows")


@pytest.mark.skipif(REAL is None, reason="no real data")
def test_parts_of_one_process_share_a_capture_and_a_clock():
    uuids, ends = set(), []
    for part in (1, 2, 3):
        with open_export(Path(REAL) / f"nsys/real_cpu/rep_nsys24.{part}.sqlite") as db:
            uuids.add(nsys_content.read_export_metadata(db)["capture_uuid"])
            found, _ = read_export_clock(db)
            ends.append((found.base_ns, found.base_ns + found.end_ns))
    assert uuids == {"02b0102b-81c4-4caf-b9d1-28727a2b5230"}
    assert ends[0][1] < ends[1][0] < ends[1][1] < ends[2][0]
