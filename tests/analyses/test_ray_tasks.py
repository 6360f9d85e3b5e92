"""Tasks of Ray: hand-worked times by function and worker, ranks by manifests, and tasks that submit others."""

import json

import pytest
from analyses.rl_report import rows, section
from ray_timelines import DRIVER, call, task, worker

from tracekit.pipeline import analyze

US = 1_000
"""ns per µs."""


def report(path):
    out = analyze(path, questions=("ray-tasks", "data-quality"))
    assert section(out, "ray-tasks").status == "ok"
    return out


def put(folder, timeline):
    folder.mkdir(exist_ok=True)
    (folder / "timeline.json").write_text(json.dumps(timeline))
    return folder


def manifest(folder, number, rank, role="actor"):
    told = {
        "schema": "capture/2", "ray_worker": worker(number).partition(":")[2], "role": role, "rank": rank, "pid": number,
        "status": "closed", "files": [], "captures": [],
    }  # fmt: skip
    (folder / f"capture_torch_{role}_rank{rank}_pid{number}.manifest").write_text(json.dumps(told))


TWO_STEPS = [
    call("submit_task", DRIVER, 90, 4),
    call("submit_task", DRIVER, 95, 6),
    # gen: 100 to 120 and 102 to 142, then 200 to 220 and 202 to 242.
    *(one for at in (100, 200) for one in task("Worker.gen", worker(1), at, arguments=2, execute=16, outputs=2)),
    *(one for at in (102, 202) for one in task("Worker.gen", worker(2), at, arguments=4, execute=34, outputs=2)),
    # update: 150 to 190 on both, and 250 to 300 on the second alone.
    *task("Worker.update", worker(1), 150, execute=38),
    *task("Worker.update", worker(2), 150, execute=38),
    *task("Worker.update", worker(2), 250, execute=48),
]
"""From 100 to 300 µs; no task from 142 to 150, 190 to 200 and 242 to 250."""


def test_the_times_of_each_function_are_those_of_the_rows(tmp_path):
    found = report(put(tmp_path, TWO_STEPS))
    update, gen = rows(found, "ray-tasks", "ray_functions")
    assert (update["function"], update["tasks"], update["workers"]) == ("Worker.update", 3, 2)
    assert (update["any running"], update["share"]) == (90 * US, 0.45)
    assert (update["median"], update["longest"]) == (40 * US, 50 * US)
    assert (update["first"], update["last ends"]) == (50 * US, 200 * US)
    assert (gen["function"], gen["tasks"], gen["any running"]) == ("Worker.gen", 4, 84 * US)
    # Arguments take 2 + 2 + 4 + 4 of 20 + 20 + 40 + 40 µs, outputs 2 each.
    assert (gen["arguments"], gen["outputs"]) == (pytest.approx(12 / 120), pytest.approx(8 / 120))
    # Medians of 20 and 40 µs: the middle of the two is 30.
    assert gen["slowest worker"] == "Worker (00000002) (+33 %)"
    assert {metric.name: metric.value for metric in found.headline} == {
        "ray_span": 200 * US, "ray_idle_ratio": pytest.approx(26 / 200),
    }  # fmt: skip
    assert "Ray timeline, 7 tasks on 2 workers" in found.identity
    assert found.findings == ()


def test_the_driver_and_each_worker_have_a_row(tmp_path):
    found = report(put(tmp_path, [*TWO_STEPS, call("ray.get", DRIVER, 101, 41), call("ray.wait", DRIVER, 150, 9)]))
    first, second, driver = rows(found, "ray-tasks", "ray_workers")
    assert (first["tasks"], first["running tasks"], first["first"], first["last ends"]) == (3, 80 * US, 0, 120 * US)
    assert (second["tasks"], second["running tasks"], second["first"]) == (4, 170 * US, 2 * US)
    assert second["share"] == pytest.approx(0.85)
    assert (driver["worker"], driver["tasks"], driver["submitted"], driver["submitting"]) == (
        "driver",
        None,
        2,
        10 * US,
    )
    assert driver["in ray.get and ray.wait"] == 50 * US
    assert first["submitted"] is None


def test_manifests_next_to_the_traces_name_the_ranks_of_workers(tmp_path):
    folder = put(tmp_path, TWO_STEPS)
    (folder / "profile").mkdir()
    for number, rank in ((1, 10), (2, 2)):
        manifest(folder / "profile", number, rank)
    found = report(folder)
    assert [row["worker"] for row in rows(found, "ray-tasks", "ray_workers")] == [
        "actor rank 2",
        "actor rank 10",
        "driver",
    ]
    assert rows(found, "ray-tasks", "ray_functions")[1]["slowest worker"] == "actor rank 2 (+33 %)"
    caveats = section(found, "ray-tasks").caveats
    assert not any("manifests" in caveat for caveat in caveats)
    # A manifest of another process changes nothing.
    manifest(folder / "profile", 7, 3)
    assert rows(report(folder), "ray-tasks", "ray_workers") == rows(found, "ray-tasks", "ray_workers")


def test_without_manifests_the_report_says_how_to_get_ranks(tmp_path):
    caveats = section(report(put(tmp_path, TWO_STEPS)), "ray-tasks").caveats
    assert any("manifests that capture writes" in caveat for caveat in caveats)
    assert any("queueing is not recorded" in caveat for caveat in caveats)


def test_a_task_that_submits_others_is_not_work_of_its_own(tmp_path):
    # A trainer runs from 50 to 350 µs on a worker and submits the tasks of the two steps.
    timeline = [
        *TWO_STEPS[2:],
        *task("TaskRunner.run", worker(3), 50, arguments=0, execute=300, outputs=0),
        call("submit_task", worker(3), 90, 4),
        call("submit_task", worker(3), 190, 4),
    ]
    found = report(put(tmp_path, timeline))
    assert rows(found, "ray-tasks", "ray_functions")[0]["function"] == "TaskRunner.run (submits 2 tasks)"
    # 300 µs in all; the others run for 174 of them.
    assert found.headline[1].value == pytest.approx(126 / 300)


def test_parts_are_unknown_where_a_worker_runs_several_tasks_at_once(tmp_path):
    timeline = [
        *task("Server.generate", worker(1), 100, execute=50),
        *task("Server.generate", worker(1), 120, execute=50),
        *task("Worker.gen", worker(2), 100, arguments=5, execute=40, outputs=5),
    ]
    found = report(put(tmp_path, timeline))
    server, gen = rows(found, "ray-tasks", "ray_functions")
    assert (server["any running"], server["arguments"], server["outputs"]) == (72 * US, None, None)
    assert gen["arguments"] == pytest.approx(0.1)
    assert any("1 worker runs several tasks at once" in caveat for caveat in section(found, "ray-tasks").caveats)


def test_a_part_without_its_task_belongs_to_none(tmp_path):
    timeline = [*task("Worker.gen", worker(1), 100), call("task:execute", worker(1), 500, 9)]
    (gen,) = rows(report(put(tmp_path, timeline)), "ray-tasks", "ray_functions")
    assert gen["arguments"] == pytest.approx(1 / 12)
    assert gen["last ends"] == 12 * US


def test_the_driver_alone_is_a_timeline_without_tasks(tmp_path):
    out = analyze(put(tmp_path, [call("submit_task", DRIVER, 1, 2)]), questions=("ray-tasks", "data-quality"))
    assert section(out, "ray-tasks").reason == "the timeline of Ray has no task"
    assert "Ray timeline, 0 tasks on 0 workers" in out.identity
