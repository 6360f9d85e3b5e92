"""What a run's log says of its machine: the host and every GPU, over the steps of the log."""

import json

import pytest
from analyses.rl_report import rows, section

from tracekit.pipeline import analyze

QUESTIONS = ("driver-log",)

GIB = 2**30


def machine(folder, *steps):
    """The rows about the machine in the report on a log of these numbers by step."""
    lines = [
        json.dumps({"step": number, "data": {"timing_s/step": 1.0, **data}}) for number, data in enumerate(steps, 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = analyze(folder, questions=QUESTIONS)
    assert section(report, "driver-log").status == "ok"
    return {row["of"]: row for row in rows(report, "driver-log", "machine")}


def test_the_host_and_every_gpu_have_a_row_over_the_steps(tmp_path):
    found = machine(
        tmp_path,
        {"cpu/utilisation_percent": 20, "cpu/memory_used_bytes": 4 * GIB, "gpu/0/utilisation_percent": 50,
         "gpu/10/memory_used_bytes": GIB, "gpu/2/utilisation_percent": 1},
        {"cpu/utilisation_percent": 40, "cpu/memory_used_bytes": 8 * GIB, "gpu/0/utilisation_percent": 100},
        {"cpu/memory_used_bytes": 6 * GIB, "gpu/0/utilisation_percent": 90},
    )  # fmt: skip
    assert list(found) == ["host", "GPU 0", "GPU 2", "GPU 10"]
    host = found["host"]
    assert [host["busy"], host["least busy"], host["most busy"]] == pytest.approx([0.3, 0.2, 0.4])
    used = [host[name] / GIB for name in ("memory used", "first", "last", "most")]
    assert (used, host["steps"]) == ([6, 4, 6, 8], 3)
    assert found["GPU 0"]["busy"] == pytest.approx(0.8)
    assert found["GPU 0"]["memory used"] is None
    assert found["GPU 10"]["busy"] is None
    assert (found["GPU 10"]["memory used"], found["GPU 10"]["steps"]) == (GIB, 1)


def test_what_cannot_be_is_not_shown_and_verl_names_the_hosts_memory_its_own_way(tmp_path):
    found = machine(
        tmp_path,
        {"gpu/0/utilisation_percent": 101, "gpu/1/utilisation_percent": -1, "perf/cpu_memory_used_gb": 2.5},
        {"gpu/0/utilisation_percent_of_what": 5, "gpu/99999/utilisation_percent": 5},
    )  # fmt: skip
    assert list(found) == ["host"]
    assert found["host"]["memory used"] == 2.5 * GIB


def test_a_log_that_says_nothing_of_the_machine_has_no_such_table(tmp_path):
    assert machine(tmp_path, {"timing_s/gen": 0.5}) == {}
