"""The Python API: `analyze` one profile, `measure` it without judging, `compare` two sides, `cut` a part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracekit.discover.arguments import list_paths
from tracekit.model.report import Report
from tracekit.pipeline import report_cache
from tracekit.pipeline.options import parse_options

if TYPE_CHECKING:
    from tracekit.compare.comparison import Comparison
    from tracekit.model.trace import Measurements
    from tracekit.pipeline.timeline.cutting.search import CutResult

Numbers = str | int | Iterable[int] | None
"""Ranks or steps: a range such as "0-3,7", a number, or several; None means all."""

__all__ = ["analyze", "compare", "cut", "measure", "whatif", "whatif_memory"]


def analyze(  # noqa: PLR0913 - one per option
    path: str | Path | Sequence[str | Path] = (),
    *,
    ranks: Numbers = None,
    steps: Numbers = None,
    stages: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    work: Mapping[str, float] | None = None,
    device_memory: int | str | None = None,
    gpu_hour_price: float | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    on_every_node: str | Sequence[str] = (),
    sample: int | None = None,
    questions: str | Sequence[str] | None = None,
    skip: str | Sequence[str] = (),
    question_files: str | Sequence[str] = (),
    cache: bool = True,
    timeline: bool = False,
) -> Report:
    """Analyze a profile directory, a file, a glob, or several paths.

    `ranks` and `steps` are numbers ([0, 3], range(8)) or ranges such as "0-3,7"; `stages` and `exclude` are one pattern or several.
    `work` is the amount of work per step: {"tokens": 4096}, or samples or images. `device_memory` is the memory of
    each GPU: bytes, or "80GiB". `gpu_hour_price` is the price of a GPU-hour, for the cost of findings. `sample` is the number of ranks to read, spread over all ranks.
    `questions` limits the report to these section ids (such as "kernels"), and reads and measures only their inputs;
    `skip` leaves some out. `question_files` are Python files that define extra questions
    (`examples/own_question.py`); the report includes them.

    The engine "ray" reads each file on the Ray node that has it. It connects to `ray_address`, to RAY_ADDRESS
    if that is not given, or to a cluster that it starts here; each node expands the patterns `on_every_node` itself.
    With `cache`, measurements of each file are cached and reused while the file is unchanged; False neither reads nor
    writes the cache. With `timeline`, the report contains the timeline that its page shows (`tracekit.render(report, "html")`).
    Raises `TracekitError` if it finds nothing or cannot read any source.
    """
    chosen = {
        "ranks": ranks,
        "steps": steps,
        "stages": stages,
        "exclude": exclude,
        "jobs": jobs,
        "work": dict(work or {}),
        "device_memory": device_memory,
        "gpu_hour_price": gpu_hour_price,
        "sample": sample,
        "engine": engine,
        "ray_address": ray_address,
        "on_every_node": on_every_node,
        "questions": questions,
        "skip": skip,
        "question_files": question_files,
        "cache": cache,
        "timeline": timeline,
    }
    return report_cache.analyze_cached(path, parse_options(chosen)).report


def measure(  # noqa: PLR0913 - one per option
    path: str | Path | Sequence[str | Path] = (),
    *,
    ranks: Numbers = None,
    steps: Numbers = None,
    stages: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    sample: int | None = None,
    questions: str | Sequence[str] | None = None,
    skip: str | Sequence[str] = (),
    question_files: str | Sequence[str] = (),
    cache: bool = True,
) -> Measurements:
    """Measure a profile and return the tables that `analyze` judges: `measure(path).tables["kernels"]` is a DataFrame.

    Its rows cover every process, step and stage. `tracekit tables NAME` describes the columns; a column's suffix is its
    unit, which `attrs["units"]` repeats. The options are those of `analyze`; `path` may be saved measurements (`.tkm`).
    Raises `TracekitError` if it finds nothing or cannot read any source.
    """
    from tracekit.pipeline import run

    chosen = {
        "ranks": ranks,
        "steps": steps,
        "stages": stages,
        "exclude": exclude,
        "jobs": jobs,
        "sample": sample,
        "questions": questions,
        "skip": skip,
        "question_files": question_files,
        "cache": cache,
    }
    return run.measure_all(path, parse_options(chosen))


def compare(  # noqa: PLR0913 - one per option
    base: str | Path | Sequence[str | Path],
    opt: str | Path | Sequence[str | Path],
    *,
    ranks: Numbers = None,
    steps: Numbers = None,
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
    timeline: bool = False,
) -> Comparison:
    """Compare `base` with `opt`, each one or several profiles, saved measurements or reports.

    `min_effect` (the smallest relative change that matters) and `level` are fractions. `work` is the amount of work
    per step on each side: ({"tokens": 4096}, {"tokens": 8192}). The other arguments match the options of
    `tracekit compare`. `Comparison.memory` compares the memory snapshots of both sides, even without any step.
    `tracekit.render(comparison)` renders the result; with `timeline`, its page shows the timelines of both sides, and their
    critical paths are compared (`Comparison.critical`).
    Raises `TracekitError` if a side cannot be read, or if a side
    has no steady step and not both sides have memory snapshots.
    """
    from tracekit.compare.changes import ComparisonChoices
    from tracekit.pipeline import comparing

    before, after = list_paths(base), list_paths(opt)
    choices = ComparisonChoices(
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
        "timeline": timeline,
        "graphs": timeline and not stages,
    }
    options = parse_options(reading)
    return comparing.compare_paths(before, after, options, choices, work=work).comparison


def cut(  # noqa: PLR0913 - one per option
    path: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    finding: int | str | None = None,
    time_range: str | None = None,
    anonymize: bool = False,
    ranks: Numbers = None,
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    cache: bool = True,
) -> CutResult:
    """Write the smallest trace at `path` that still shows a finding to `target`, a file, or a folder for several ranks.

    `finding` is the number of a finding in the report, or its rule. `time_range` cuts a time instead: "12ms:40ms", or
    "step 3". `anonymize` replaces names that are not public by placeholders. Inputs are never changed.
    Raises `TracekitError` if the report lacks the finding, or if no part of the profile shows it.
    """
    from tracekit.pipeline.timeline.cutting.search import cut_profile
    from tracekit.pipeline.timeline.time_ranges import parse_time_range

    asked = None if time_range is None else parse_time_range(time_range)
    options = parse_options({"ranks": ranks, "exclude": exclude, "jobs": jobs, "cache": cache})
    return cut_profile(
        list_paths(path), target, finding=finding, time_range=asked, anonymize=anonymize, options=options
    )


def whatif(
    path: str | Path | Sequence[str | Path],
    changes: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = (),
    *,
    ranks: Numbers = None,
    steps: Numbers = None,
    exclude: str | Sequence[str] = (),
    jobs: int | None = None,
    cache: bool = True,
) -> Report:
    """Replay the run at `path` with changes, and predict its step after each; without any, with the fixes of its findings.

    A change is a text ("scale device rank=2 factor=0.8") or a mapping ({"do": "unwait", "by": "aten::item"}). Changes add
    up: each is applied after those before it. `steps` limits the steps that are timed, by default those that `analyze` counts.
    The report has the tables `changes` (or `plan` and `fixes`), `touched`, `critical_path` and `ledger`. Raises `TracekitError` if the path has no
    trace, or several runs, or if a change is malformed or matches nothing.
    """
    from tracekit.pipeline.replaying import ask_what_if

    several = [changes] if isinstance(changes, (str, Mapping)) else changes
    reading = {"ranks": ranks, "steps": steps, "exclude": exclude, "jobs": jobs, "cache": cache}
    return ask_what_if(list_paths(path), several, parse_options(reading))


def whatif_memory(
    path: str | Path | Sequence[str | Path],
    changes: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = (),
    *,
    device_memory: int | str | None = None,
    micro_batch: int | Sequence[int] = (),
    ranks: Numbers = None,
    exclude: str | Sequence[str] = (),
) -> Report:
    """Replay the allocator's history in memory snapshots with changes, and predict the peak of reserved memory.

    A change is a text ("max_split=128MB", "scale=train.py.*forward:0.5") or a mapping ({"do": "expandable"}). Changes add
    up; without any, each that applies is tried. `micro_batch` is that of the snapshot, or those of two snapshots (the
    larger is that of the higher peak): the answer then has the largest micro-batch that fits `device_memory` (bytes, or "80GiB"). The report has the
    tables `changes` and `histories`. Raises `TracekitError` if no history can be replayed, or a change is malformed, selects
    nothing, or cannot be predicted.
    """
    from tracekit.pipeline.replaying import ask_memory_what_if

    several = [changes] if isinstance(changes, (str, Mapping)) else changes
    sizes = (micro_batch,) if isinstance(micro_batch, int) else tuple(micro_batch)
    reading = {"ranks": ranks, "exclude": exclude, "device_memory": device_memory}
    return ask_memory_what_if(list_paths(path), several, parse_options(reading), sizes)
