"""What a directory of many ranks costs, step by step; prints one line of JSON.

    python scale_steps.py FOLDER [--engine local|ray] [--save FILE.tkm]    measure on two cores, judge and render
    python scale_steps.py FILE.tkm                                                      load and judge what was saved

Imports are excluded: a committed example is analysed before the clock starts, and of each worker the first source
is left out of the mean. Workers write down their CPU time themselves: those of Ray are not children of this process,
which is the driver. `driver_mb` is the most that it ever held, imports included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import scale_work
from measurement import cpu_seconds, measure, memory_mb, write_line

from tracekit.engine.ray_cluster import connect_cluster
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options
from tracekit.render import render

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "simulated_gpu" / "outputs"
RENDERED = ("text", "md", "html", "json")
JOBS = 2
T = TypeVar("T")


def warmed_up() -> None:
    """Nothing; everything that judging and rendering imports is there afterwards."""
    report = pipeline.analyze_uncached(EXAMPLE, Options(jobs=1)).report
    for name in RENDERED:
        render(report, name)


def measured_by(engine: str, found: Any) -> Any:
    """The measurements of what was found; those of Ray with the cluster started and ended."""
    if engine == "local":
        return pipeline.measure(found, Options(jobs=JOBS))
    with connect_cluster("local") as cluster:
        return pipeline.measure(found, Options(jobs=JOBS), cluster)


def timed(call: Callable[[], T]) -> tuple[T, float, float]:
    """(what it gives, its seconds, its CPU seconds); `measure` would let the peak of memory start again."""
    started, cpu = time.perf_counter(), cpu_seconds()
    result = call()
    return result, time.perf_counter() - started, cpu_seconds() - cpu


def of_profiles(folder: Path, engine: str, save: Path | None) -> None:
    """Measure the profiles of a directory, then what comes after, and print both."""
    os.environ["PYTHONPATH"] = str(HERE)  # where workers find what they are to do
    pipeline.measure_source = scale_work.measure_source
    reduce, reducing = pipeline.reduce_outcomes, list[float]()

    def timed_reduce(outcomes: Any, *rest: Any, **more: Any) -> Any:
        came = list(outcomes)
        one_by_one = (came.pop(0) for _ in range(len(came)))  # what is put together is given up
        reduced, _, cpu = timed(lambda: reduce(one_by_one, *rest, **more))
        reducing.append(cpu)
        return reduced

    pipeline.reduce_outcomes = timed_reduce
    found = pipeline.discover_sources(folder)
    with tempfile.TemporaryDirectory() as log:
        os.environ[scale_work.LOG] = log
        started = time.process_time()
        measured, seconds, _ = timed(partial(measured_by, engine, found))
        driver_cpu = time.process_time() - started - scale_work.cpu_here(Path(log))
        per_file = fmean(scale_work.cpu_of_sources(Path(log)))
    measuring_mb = memory_mb("VmHWM")
    report, _, judging = timed(partial(pipeline.judge, measured))
    pages, _, rendering = timed(lambda: {name: render(report, name) for name in RENDERED})
    driver_mb = memory_mb("VmHWM")
    if save is not None:
        saved_measurements.save(measured, save)
    count, (reduced,) = len(found.sources), reducing
    figures = {
        "cpu_per_file": per_file,
        "seconds": seconds,
        "driver_cpu": driver_cpu,
        "analyze_cpu": per_file * count + driver_cpu + judging + rendering,
        "reduce_s": reduced,
        "judge_s": judging,
        "render_s": rendering,
        "frame_cpu": reduced + rendering,
        "after_cpu": reduced + judging + rendering,
        "measuring_mb": measuring_mb,
        "driver_mb": driver_mb,
        "html_mb": len(str(pages["html"]).encode()) / 1e6,
    }
    write_line({"files": count, **{name: round(value, 4) for name, value in figures.items()}})


def of_saved(path: Path) -> None:
    """Load and judge saved measurements, and print what that took."""
    _, figures = measure(lambda: pipeline.judge(saved_measurements.load(path)))
    write_line({**figures, "size_mb": path.stat().st_size / 1e6})


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warmed_up()
    if options.path.is_dir():
        of_profiles(options.path, options.engine, options.save)
    else:
        of_saved(options.path)


if __name__ == "__main__":
    main()
