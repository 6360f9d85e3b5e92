"""Two Ray workers, each profiled by nsys as verl has it done: one report for each rank and profiled step.

    python nsys_ray_run.py FOLDER [STEPS]

Run with a Python that has Ray and nvtx, `nsys` and that Python on the PATH. FOLDER gets Ray's session
(its path must be short: Ray opens sockets in it). Prints the folder of the reports.
"""

import os
import sys
import time
from pathlib import Path

RANGE = "training_step"
SECRET = "not-to-be-told"
"""In the environment that nsys records; it must not turn up in a report."""
STAGES = {"generate_sequences": 20, "actor_compute_log_prob": 5, "actor_update": 10}
"""What a step consists of, and the milliseconds that it takes at least."""


def options(steps):
    """The options of Ray's nsight plugin: an nsys report for every range of that name."""
    return {
        "t": "nvtx",
        "o": "'worker_process_%p'",
        "s": "none",
        "cpuctxsw": "none",
        "capture-range": "nvtx",
        "p": RANGE,
        "capture-range-end": f"repeat-shutdown:{steps}",
        "kill": "none",
        "e": "NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
    }


class Worker:
    """A worker that goes through the stages of a step."""

    def step(self):
        """The process id, after one step."""
        import nvtx

        with nvtx.annotate(RANGE):
            for stage, milliseconds in STAGES.items():
                mark = nvtx.start_range(stage)
                end = time.perf_counter() + milliseconds / 1000
                while time.perf_counter() < end:
                    pass
                nvtx.end_range(mark)
        return os.getpid()


def main():
    """Run the workers, and wait until their reports are whole."""
    import ray

    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _temp_dir=str(folder),
        object_store_memory=80 * 2**20,
        logging_level="ERROR",
    )
    remote = ray.remote(num_cpus=0.5)(Worker)
    workers = []
    for rank in range(2):
        names = {"RANK": str(rank), "WORLD_SIZE": "2", "WG_PREFIX": "actor_rollout", "API_KEY": SECRET}
        environment = {"nsight": options(steps), "env_vars": names}
        worker = remote.options(runtime_env=environment).remote()
        # One after the other: of two nsys that start in the same instant one often fails.
        ray.get(worker.__ray_ready__.remote(), timeout=120)
        workers.append(worker)
    # Every rank goes through one more step than is recorded, as a run that goes on does.
    for _ in range(steps + 1):
        pids = ray.get([worker.step.remote() for worker in workers], timeout=120)
    reports = folder / "session_latest" / "logs" / "nsight"
    expected = [reports / f"worker_process_{pid}.{number}.nsys-rep" for pid in pids for number in range(1, steps + 1)]
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not all(map(is_whole, expected)):
        time.sleep(0.3)
    ray.shutdown()
    print(os.path.realpath(reports))


def is_whole(report):
    """Whether nsys has written a report, and not touched it for some seconds."""
    try:
        status = report.stat()
    except OSError:
        return False
    return status.st_size > 0 and time.time() - status.st_mtime > 2


if __name__ == "__main__":
    main()
