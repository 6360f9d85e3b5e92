"""The functions of the Python interface that judge: `analyze` a profile, `compare` two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracekit.model.report import Report
from tracekit.pipeline import report_cache
from tracekit.pipeline.options import options_of

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison

__all__ = ["analyze", "compare"]


def analyze(  # noqa: PLR0913 - one per option
    path: str | Path | Sequence[str | Path] = (),
    *,
    ranks: str | None = None,
    steps: str | None = None,
    stages: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    work: Mapping[str, float] | None = None,
    device_memory: int | str | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    on_every_node: str | Sequence[str] = (),
    sample: int | None = None,
    questions: str | Sequence[str] | None = None,
    skip: str | Sequence[str] = (),
    question_files: str | Sequence[str] = (),
    cache: bool = True,
) -> Report:
    """The report on a profile directory, a file, a glob, or several of them.

    `ranks` and `steps` are like "0-3,7", `stages` and `exclude` one pattern or several; `work` tells what every step
    holds: {"tokens": 4096}, or samples or images; `device_memory` how much each GPU has: bytes, or "80GiB";
    `sample` reads so many ranks, spread over all; `questions` asks these alone (ids of sections: "kernels"), and
    only what they need is read and measured; `skip` leaves some out; `question_files` are
    Python files that end with a question of your own (`examples/own_question.py`), which is asked as well.
    The engine "ray" reads every file on the node of a Ray cluster where it lies: at `ray_address`, else
    RAY_ADDRESS, else one that is started here; each node looks at the patterns `on_every_node` itself.
    What is measured of a file is kept for the next time, and used if the file did not change: `cache` False does neither.
    Raises `TracekitError` when nothing was found or could be read.
    """
    chosen = {
        "ranks": ranks,
        "steps": steps,
        "stages": stages,
        "exclude": exclude,
        "jobs": jobs,
        "work": dict(work or {}),
        "device_memory": device_memory,
        "sample": sample,
        "engine": engine,
        "ray_address": ray_address,
        "on_every_node": on_every_node,
        "questions": questions,
        "skip": skip,
        "question_files": question_files,
        "cache": cache,
    }
    return report_cache.analyze(path, options_of(chosen)).report


def compare(  # noqa: PLR0913 - one per option
    base: str | Path | Sequence[str | Path],
    opt: str | Path | Sequence[str | Path],
    *,
    ranks: str | None = None,
    steps: str | None = None,
    stages: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    drop_first: int | None = None,
    min_effect: float = 0.03,
    level: float = 0.95,
    pair: Literal["step", "run"] | None = None,
    assume_independent_steps: bool = False,
    force: bool = False,
    work: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
    sample: int | None = None,
    cache: bool = True,
) -> Comparison:
    """What changed from `base` to `opt`, each one or several profiles, saved measurements or reports.

    `min_effect` (the least share that matters) and `level` are fractions; `work` tells what a step holds
    before and after: ({"tokens": 4096}, {"tokens": 8192}). The rest is as the options of `tracekit compare`.
    Memory snapshots of both sides are compared in `Comparison.memory`, also without any step.
    `tracekit.render(comparison)` shows it. Raises `TracekitError` where a side cannot be read, or holds no
    step that counts and not both have memory snapshots.
    """
    from tracekit.compare.changes import Choices
    from tracekit.pipeline import comparing

    before, after = ([side] if isinstance(side, str | Path) else list(side) for side in (base, opt))
    choices = Choices(
        min_effect=min_effect,
        level=level,
        paired=pair,
        assume_independent_steps=assume_independent_steps,
        force=force,
        drop_first=drop_first,
    )
    reading = {
        "ranks": ranks,
        "steps": steps,
        "stages": stages,
        "exclude": exclude,
        "jobs": jobs,
        "sample": sample,
        "cache": cache,
    }
    options = options_of(reading)
    return comparing.compare_paths(before, after, options, choices, work=work).comparison
