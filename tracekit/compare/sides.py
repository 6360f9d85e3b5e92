"""One side of a comparison: recorded values of its runs, from measurements or a saved report, with roles spelled alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any

from tracekit.job.driver_log import map_run_driver_logs
from tracekit.job.engines.compared import collect_engine_samples, join_engine_samples, map_engine_settings
from tracekit.job.ray.samples import collect_ray_samples, join_ray_samples
from tracekit.job.run_log.disagreement import describe_step_disagreement
from tracekit.job.run_log.stages import LoggedSteps
from tracekit.job.sessions import RunSpan, list_run_spans
from tracekit.job.steps.metric_samples import COLUMNS, Key, MetricSamples, collect_samples
from tracekit.job.steps.start_up import find_run_start_ups
from tracekit.job.steps.step_values import JOB_VALUE_NAMES
from tracekit.job.steps.throughput import compute_work_rates
from tracekit.job.steps.warm_up import DroppedStep, LeftOutSteps, find_steps_to_drop
from tracekit.model import failed_questions
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.timeline import TimelineProcess
from tracekit.model.metrics import STEP_TIME, WINDOW
from tracekit.model.records import dataclass
from tracekit.model.report import Report
from tracekit.model.stats.estimate import RANGE
from tracekit.model.tables.frame import Frame, concat, from_rows, numbers, texts
from tracekit.model.text.labels import choose_plural, make_natural_key, normalize_label_words
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

ENGINE_PREFIX = "engine "
"""Prefix of the settings of rollout engines in a fingerprint."""

_HINT = "write it again: tracekit analyze … -o report.json"
_COMPARABLE = "name profiles with steps, memory snapshots, or logs of runs or rollout engines"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """Samples of every metric without excluded steps, and the facts that must agree with the other side.

    - `measured` lacks saved reports, which have step values but not what made them.
    - `every_step` has the step times including excluded steps.
    """

    name: str
    samples: Mapping[Key, MetricSamples]
    dropped: tuple[DroppedStep, ...]
    fingerprint: Mapping[str, str]
    measured: tuple[Measurements, ...]
    simulated: bool
    left_out_of_logs: tuple[DroppedStep, ...] = ()
    every_step: MetricSamples | None = None
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    """Errors of tracekit; values that depend on them are in neither `samples` nor `measured`."""
    contents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    log_contents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Digests of the files of each run and of each log, by run; unknown ones are missing."""
    spans: tuple[RunSpan, ...] = ()
    """When each run ran; runs of unknown time are missing."""
    logs: Mapping[str, LoggedSteps] = field(default_factory=dict)
    """Drivers' logs by run."""
    log_strips: tuple[TimelineProcess, ...] = ()
    """Steps and stages of drivers' logs for the page."""


@dataclass(frozen=True, slots=True)
class ComparedInput:
    """One input of a side: a report, its measurements if known, and its label.

    `values` are all recorded values; a report keeps only a limited number.
    """

    label: str
    report: Report
    measured: Measurements | None
    values: Frame | None = None


def build_side(name: str, inputs: Sequence[ComparedInput], drop_first: int | None = None) -> ComparedSide:
    """Build a side from its inputs; raises `TracekitError` if one has no values.

    Runs of different inputs are different runs, named by their label if names collide. Runs whose files have
    equal bytes are one run, however often they are given. `drop_first` steps of every run are excluded; None
    excludes known warm-up steps.
    """
    values, renamed = _combine_input_values(inputs)
    contents = _collect_digests(inputs, renamed)
    copies = find_run_copies(contents)
    rows = values.filter(~values.is_in("run", copies))
    recorded = collect_samples(rows)
    left_out = find_steps_to_drop(recorded, rows, drop_first)
    counted = exclude_steps(recorded, left_out)
    engines = _collect_engine_metrics(inputs, renamed, copies)
    fingerprint = _combine_fingerprints([_make_fingerprint(part) for part in inputs])
    rates = compute_work_rates(counted, parse_world_size(fingerprint), _choose_work_metric(counted))
    return ComparedSide(
        name,
        {**counted, **rates, **engines, **_collect_ray_metrics(inputs, renamed, copies)},
        left_out.steps,
        fingerprint,
        tuple(_list_sound_measurements(inputs)),
        any("SIMULATED DATA" in part.report.identity for part in inputs),
        every_step=recorded.get((STEP_TIME, None, None)),
        notes=(
            *_list_input_notes(name, inputs),
            *describe_run_copies(name, copies),
            *_list_log_disagreements(name, inputs, renamed, recorded),
        ),
        errors=tuple(dict.fromkeys(chain.from_iterable(_list_input_errors(measured) for measured in inputs))),
        contents={run: digests for run, digests in contents.items() if run not in copies},
        spans=tuple(span for span in _collect_run_spans(inputs, renamed) if span[0] not in copies),
    )


def _make_fingerprint(part: ComparedInput) -> dict[str, str]:
    """Make the fingerprint of one input, with the settings of its engines. Reports of older versions sort ranks as texts."""
    facts = dict(part.report.fingerprint)
    if "ranks" in facts:
        facts["ranks"] = ", ".join(sorted(facts["ranks"].split(", "), key=make_natural_key))
    settings = {} if part.measured is None else map_engine_settings(part.measured)
    return {**facts, **{f"{ENGINE_PREFIX}{name}": text for name, text in settings.items()}}


def _collect_engine_metrics(
    inputs: Sequence[ComparedInput], renamed: Sequence[Mapping[str, str]], copies: Container[str]
) -> dict[Key, MetricSamples]:
    """Collect the samples of engines of all inputs by run."""
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for number, (part, names) in enumerate(zip(inputs, renamed, strict=True)):
        found = collect_engine_samples(part.measured) if part.measured is not None else {}
        for (name, _, _), metric in found.items():
            for run, of_run in zip(metric.runs, metric.values, strict=True):
                label = names.get(run, _label_run(run, inputs, number))
                if label not in copies:
                    values.setdefault(label, {})[name] = of_run
    return join_engine_samples(values)


def _collect_ray_metrics(
    inputs: Sequence[ComparedInput], renamed: Sequence[Mapping[str, str]], copies: Container[str]
) -> dict[Key, MetricSamples]:
    """Collect the values of Ray's timelines of all inputs by run."""
    values: dict[str, Mapping[Key, float]] = {}
    for number, (part, names) in enumerate(zip(inputs, renamed, strict=True)):
        found = {} if part.measured is None else collect_ray_samples(part.measured)
        for run, of_run in found.items():
            label = names.get(run, _label_run(run, inputs, number))
            if label not in copies:
                values[label] = of_run
    return join_ray_samples(values)


def _label_run(run: str, inputs: Sequence[ComparedInput], number: int) -> str:
    """Label a run without values by step, among those of all inputs."""
    return run if len(inputs) == 1 else f"{inputs[number].label}/{run} ({number + 1})"


def average_runs(metric: MetricSamples) -> float:
    """Average the means of all runs."""
    return sum(sum(run) / len(run) for run in metric.values) / len(metric.values)


def is_all_positive(metric: MetricSamples) -> bool:
    """Check whether every value of every run is above 0, which a ratio requires."""
    return all(value > 0 for value in chain.from_iterable(metric.values))


def exclude_steps(metrics: Mapping[Key, MetricSamples], left_out: LeftOutSteps) -> dict[Key, MetricSamples]:
    """Exclude steps from the samples; metrics without any samples left are dropped."""
    counted = {}
    for key, metric in metrics.items():
        remaining = left_out.filter_samples(metric)
        if remaining.runs:
            counted[key] = remaining
    return counted


def _list_sound_measurements(inputs: Iterable[ComparedInput]) -> Iterator[Measurements]:
    """List the measurements without an error of tracekit."""
    for part in inputs:
        if part.measured is not None and not _list_input_errors(part):
            yield part.measured


def _list_input_notes(name: str, inputs: Iterable[ComparedInput]) -> Iterator[str]:
    """List the notes on each input."""
    for part in inputs:
        yield from _describe_unread_sources(name, part)
        yield from _describe_omitted_values(name, part)
        yield from _describe_excluded_start_up(name, part)


def _list_log_disagreements(
    name: str,
    inputs: Sequence[ComparedInput],
    renamed: Sequence[Mapping[str, str]],
    recorded: Mapping[Key, MetricSamples],
) -> Iterator[str]:
    """List where the profile and the log of one run have different times for the same steps."""
    metric = recorded.get((STEP_TIME, None, None))
    if metric is None:
        return
    by_run: dict[str, dict[int, float]] = {}
    for run, steps, values in zip(metric.runs, metric.steps, metric.values, strict=True):
        numbered = zip(steps, values, strict=True)
        by_run[run] = {number: value for (_, number, _), value in numbered if number is not None}
    for part, names in zip(inputs, renamed, strict=True):
        logs = map_run_driver_logs(part.measured) if part.measured is not None and part.measured.has("logged") else {}
        for run, log in logs.items():
            text = describe_step_disagreement(by_run.get(names.get(str(run), str(run)), {}), log.step_ns)
            if text:
                yield f"{name}: {text}"


def _describe_excluded_start_up(name: str, part: ComparedInput) -> Iterator[str]:
    """Describe the duration of the start-up that is excluded from a side."""
    if part.measured is None or not part.measured.has("steps"):
        return
    for prefix in find_run_start_ups(part.measured):
        length = format_quantity(prefix.start_up_ns, "ns")
        yield f"{name}: {length} of start-up are excluded"


def _list_input_errors(part: ComparedInput) -> tuple[str, ...]:
    """List the errors of tracekit that a report names."""
    remarks = [remark for remark in part.report.remarks if failed_questions.is_fault_remark(remark)]
    return tuple(dict.fromkeys(remark.message for remark in remarks))


def find_run_copies(contents: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Map each run whose files equal those of an earlier run to that run."""
    first: dict[frozenset[str], str] = {}
    copies = {}
    for run, digests in contents.items():
        original = first.setdefault(digests, run)
        if original != run:
            copies[run] = original
    return copies


def describe_run_copies(name: str, copies: Mapping[str, str]) -> Iterator[str]:
    """Describe the runs that were given more than once."""
    runs_of: dict[str, list[str]] = {}
    for run, original in copies.items():
        runs_of.setdefault(original, []).append(run)
    for original, runs in runs_of.items():
        hold = choose_plural(len(runs), "holds", "hold")
        yield f"{name}: {', '.join(runs)} {hold} the same files as {original}: copies of one run count as one run"


def _collect_digests(
    inputs: Sequence[ComparedInput], renamed: Sequence[Mapping[str, str]]
) -> dict[str, frozenset[str]]:
    """Collect the digests of every run by its name on this side, in order of names."""
    digests: dict[str, set[str]] = {}
    for part, names in zip(inputs, renamed, strict=True):
        for run, digest in part.report.contents:
            if run in names:
                digests.setdefault(names[run], set()).add(digest)
    return {run: frozenset(digests[run]) for run in sorted(digests)}


def _collect_run_spans(inputs: Sequence[ComparedInput], renamed: Sequence[Mapping[str, str]]) -> Iterator[RunSpan]:
    """Collect the span of every run by its name on this side."""
    for part, names in zip(inputs, renamed, strict=True):
        spans = part.report.spans if part.measured is None else list_run_spans(part.measured)
        for run, start_ns, end_ns in spans:
            yield names.get(run, run), start_ns, end_ns


def _choose_work_metric(metrics: Mapping[Key, MetricSamples]) -> str:
    """Choose the metric that contains the work: the step, or the recording if nothing marks steps."""
    unmarked = (WINDOW, None, None) in metrics and (STEP_TIME, None, None) not in metrics
    return WINDOW if unmarked else STEP_TIME


def _describe_unread_sources(name: str, part: ComparedInput) -> Iterator[str]:
    """Describe sources that could not be read, or only in part."""
    remarks = part.report.remarks
    unread = sum(remark.code == "unreadable" for remark in remarks)
    damaged = len({remark.source for remark in remarks if remark.severity == "data_loss"})
    for error in _list_input_errors(part):
        yield f"{name}: an error in tracekit, not in the run: {error}; metrics that depend on it are not compared"
    if unread:
        yield f"{name}: {unread:,} {choose_plural(unread, 'source')} could not be read and are not in these numbers"
    if damaged:
        are = choose_plural(damaged, "source is", "sources are")
        yield f"{name}: {damaged:,} {are} damaged: steps may be missing or too short"


def _describe_omitted_values(name: str, part: ComparedInput) -> Iterator[str]:
    """Describe the values missing from a report that was too large to contain all values."""
    saved = part.report.values
    if part.values is None and saved is not None and saved.omitted:
        yield f"{name}: a saved report of this many ranks has values of the whole job only"


def parse_world_size(fingerprint: Mapping[str, str]) -> int | None:
    """Get the world size that all processes of a side recorded; None if they differ or none did."""
    text = fingerprint.get("world_size", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _has_samples_without_steps(part: ComparedInput) -> bool:
    """Check whether an input has logs of rollout engines or timelines of Ray."""
    measured = part.measured
    return measured is not None and any(map(measured.row_count, ("engine_samples", "ray_tasks")))


def _read_input_values(part: ComparedInput) -> Frame:
    """Read the values of one input as a frame with the columns `COLUMNS`."""
    if part.values is not None:
        return _coerce_value_types(part.label, {name: part.values.values(name) for name in COLUMNS})
    sheet = part.report.values
    if sheet is None and _has_samples_without_steps(part):
        return from_rows(COLUMNS, [])
    names = [heading.name for heading in sheet.headings] if sheet else []
    if sheet is None or not {"run", "name", "value"} <= set(names):
        raise _make_no_values_error(part)
    rows = sheet.rows
    if sheet.omitted:
        rows = tuple(row for row in rows if row[names.index("name")] in JOB_VALUE_NAMES)
    columns = {name: [row[names.index(name)] if name in names else None for row in rows] for name in COLUMNS}
    return _coerce_value_types(part.label, columns)


def _make_no_values_error(part: ComparedInput) -> TracekitError:
    """Make the error for an input without values: a report saved without them, or files with nothing to compare."""
    if part.measured is None:
        return TracekitError(f"{part.label}: has no values by step", _HINT)
    return TracekitError(f"{part.label}: nothing in it can be compared", _COMPARABLE)


def _coerce_value_types(label: str, columns: Mapping[str, list[Any]]) -> Frame:
    """Coerce texts and numbers of columns, whatever a saved report has there."""
    if not all(step is None or _is_step_number(step) for step in columns["step"]):
        raise TracekitError(f"{label}: has a step that is not a whole number", _HINT)
    if not all(cell is None or isinstance(cell, int | float) for cell in columns["value"]):
        raise TracekitError(f"{label}: has a value that is not a number", _HINT)
    measured = [_discard_impossible_value(cell) for cell in columns["value"]]
    # Ranks are texts too: they only have to be distinguished.
    labels = {name: columns[name] for name in COLUMNS if name not in ("step", "value")}
    coerced = {name: texts([None if cell is None else str(cell) for cell in cells]) for name, cells in labels.items()}
    return Frame.from_columns({**coerced, "step": numbers(columns["step"]), "value": numbers(measured)})


def _discard_impossible_value(cell: float | None) -> float | None:
    """Convert a value to a float, None if it is missing or outside the range that a clock can measure."""
    return float(cell) if cell is not None and (cell == 0 or RANGE[0] < abs(cell) < RANGE[1]) else None


def _is_step_number(cell: object) -> bool:
    """Check whether a cell is an integer that fits a column of steps."""
    return isinstance(cell, int) and abs(cell) < 2**63


def _combine_input_values(inputs: Sequence[ComparedInput]) -> tuple[Frame, list[dict[str, str]]]:
    """Combine the rows of all inputs, with a unique name for every run; returns the rows and the names.

    Names do not depend on the order of the inputs.
    """
    labels = [part.label for part in inputs]
    frames = [_read_input_values(measured) for measured in inputs]
    runs_of = [[str(run) for run in dict.fromkeys(frame.values("run"))] for frame in frames]
    inputs_with = Counter(chain.from_iterable(runs_of))
    names_in_use = {run for run, number in inputs_with.items() if number == 1}
    renamed: list[dict[str, str]] = [{} for _ in inputs]
    order = _order_inputs(labels, frames)
    for place in order:
        runs, names = runs_of[place], renamed[place]
        for run in sorted(runs):
            if inputs_with[run] == 1:
                names[run] = run
                continue
            label = labels[place]
            names[run] = _make_unique_name(label if len(runs) == 1 else f"{label}/{run}", names_in_use)
            names_in_use.add(names[run])
        renamed_runs = [names[str(run)] for run in frames[place].values("run")]
        frames[place] = frames[place].with_columns(run=texts(renamed_runs))
    return concat([frames[place] for place in order]), renamed


def _order_inputs(labels: Sequence[str], frames: Sequence[Frame]) -> list[int]:
    """Order inputs by label; inputs with the same label by content."""
    contents = [""] * len(frames)
    if len(set(labels)) < len(labels):
        contents = [str([list(row.values()) for row in frame.rows(*COLUMNS)]) for frame in frames]
    return sorted(range(len(frames)), key=lambda place: (labels[place], contents[place]))


def _make_unique_name(wanted: str, used_names: set[str]) -> str:
    """Append a number to a name if another run has it."""
    name, number = wanted, 1
    while name in used_names:
        number += 1
        name = f"{wanted}#{number}"
    return name


def _combine_fingerprints(fingerprints: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Combine fingerprints; if inputs disagree on a fact, list all of its values."""
    values: dict[str, set[str]] = {}
    for fingerprint in fingerprints:
        for name, value in fingerprint.items():
            values.setdefault(name, set()).add(value)
    return {name: " / ".join(sorted(texts)) for name, texts in values.items()}


def unify_role_spellings(before: ComparedSide, after: ComparedSide) -> tuple[ComparedSide, ComparedSide]:
    """Spell every role in one way on both sides: as the side before does, else as first seen."""
    first_spelling: dict[str, str] = {}
    names: dict[str, str] = {}
    for role in (*_list_side_roles(before), *_list_side_roles(after)):
        spelling = first_spelling.setdefault(normalize_label_words(role), role)
        if spelling != role:
            names[role] = spelling
    if not names:
        return before, after
    return _rename_side_roles(before, names), _rename_side_roles(after, names)


def _list_side_roles(side: ComparedSide) -> list[str]:
    """List the roles of a side as it spells them, in order."""
    roles = {key[1] for key in side.samples}
    for measured in side.measured:
        roles.update(source.role for source in measured.sources)
        for table in measured.arrays.values():
            if "role" in table.arrays:
                roles.update(table.texts("role"))
    return sorted(role for role in roles if role is not None)


def _rename_side_roles(side: ComparedSide, names: Mapping[str, str]) -> ComparedSide:
    """Rename roles of a side; a role that the side spells in two ways stays as it is."""
    roles = set(_list_side_roles(side))
    spelled_twice = {names[role] for role in roles & names.keys()} & roles
    names = {old: new for old, new in names.items() if new not in spelled_twice}
    samples = {}
    for (name, role, stage), metric in side.samples.items():
        key = (name, _get_role_name(role, names), stage)
        samples[key] = replace(metric, key=key)
    fingerprint = dict(side.fingerprint)
    if "roles" in fingerprint:
        listed = {names.get(role, role) for role in fingerprint["roles"].split(", ")}
        fingerprint["roles"] = ", ".join(sorted(listed))
    measured = tuple(_rename_measured_roles(measurements, names) for measurements in side.measured)
    return replace(side, samples=samples, fingerprint=fingerprint, measured=measured)


def _get_role_name(role: str | None, names: Mapping[str, str]) -> str | None:
    """Get the new name of a role, or its own."""
    return role if role is None else names.get(role, role)


def _rename_measured_roles(measured: Measurements, names: Mapping[str, str]) -> Measurements:
    """Rename roles in measurements."""
    tables = dict(measured.arrays)
    for name, table in measured.arrays.items():
        if "role" in table.arrays:
            tables[name] = table.renamed("role", names)
    sources = tuple(replace(source, role=_get_role_name(source.role, names)) for source in measured.sources)
    return replace(measured, arrays=tables, sources=sources)
