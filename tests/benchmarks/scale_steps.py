"""What a directory of many ranks costs, step by step, in one process; prints one line of JSON.

    python scale_steps.py FOLDER [--save FILE.tkm]    read and measure, then reduce, judge and render
    python scale_steps.py FILE.tkm                               load and judge what was saved

All in this one process, as its workers' CPU time would not be told of. Imports are excluded: a committed example is analysed before the clock starts. `peak_mb` is the most that
this process, which is the driver, ever held, imports included.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from measurement import forget_peak, measure, memory_mb, write_line

from tracekit import pipeline, saved
from tracekit.engine import local
from tracekit.gathering import together
from tracekit.pipeline import Options
from tracekit.render import render

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated_gpu" / "outputs"
RENDERED = ("text", "md", "html", "json")


def warmed_up() -> None:
    """Nothing; everything that judging and rendering imports is there afterwards."""
    report = pipeline.analyze(EXAMPLE, Options(jobs=1)).report
    for name in RENDERED:
        render(report, name)


def of_profiles(folder: Path, save: Path | None) -> None:
    """Measure the profiles of a directory, then what comes after, and print both."""
    found = pipeline.discover(folder)
    work = partial(pipeline.measure_source, ranks=None, steps=None, stages=())
    count = len(found.sources)
    forget_peak()
    outcomes, measuring = measure(
        lambda: list(together(local.run(work, found.sources, where="here"), pipeline.folding()))
    )
    measured, reducing = measure(partial(pipeline.reduce, outcomes, found, Options()))
    outcomes.clear()
    report, judging = measure(lambda: pipeline.judge(measured))
    pages, rendering = measure(lambda: {name: render(report, name) for name in RENDERED})
    if save is not None:
        saved.save(measured, save)
    after = (reducing, judging, rendering)
    write_line(
        {
            "files": count,
            "cpu_per_file": round(measuring["cpu"] / count, 4),
            "measure_cpu": measuring["cpu"],
            "reduce_s": reducing["cpu"],
            "judge_s": judging["cpu"],
            "render_s": rendering["cpu"],
            "after_cpu": round(sum(step["cpu"] for step in after), 3),
            "peak_mb": round(memory_mb("VmHWM"), 1),
            "html_mb": round(len(str(pages["html"]).encode()) / 1e6, 2),
        }
    )


def of_saved(path: Path) -> None:
    """Load and judge saved measurements, and print what that took."""
    _, figures = measure(lambda: pipeline.judge(saved.load(path)))
    write_line({**figures, "size_mb": path.stat().st_size / 1e6})


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    warmed_up()
    if options.path.is_dir():
        of_profiles(options.path, options.save)
    else:
        of_saved(options.path)


if __name__ == "__main__":
    main()
