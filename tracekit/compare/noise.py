"""A/A noise calibration as a file: spread between runs of one setting by metric, and that setting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracekit.compare.sides import ComparedSide, is_all_positive
from tracekit.discover.arguments import refuse_special
from tracekit.job.sessions import RunSpan
from tracekit.job.steps.metric_samples import Key
from tracekit.model.errors import TraceFormatError, TracekitError
from tracekit.model.metrics import METRICS, STAGE_TIME, STEP_TIME, UNPROFILED, UNPROFILED_STAGE
from tracekit.model.records import dataclass
from tracekit.model.stats.noise import LEAST_RUNS, Noise, calibrate_noise
from tracekit.model.text.labels import choose_plural, normalize_label_words
from tracekit.model.version import VERSION

SCHEMA = "tracekit.noise/1"

CALIBRATED_METRICS = (UNPROFILED, UNPROFILED_STAGE, STEP_TIME, STAGE_TIME)
"""Metrics whose noise is measured."""

MUST_AGREE = {"gpu": "GPU", "world_size": "world size"}
"""Facts that calibrated and compared runs must share; an unknown value on one side agrees."""

MAX_BYTES = 4 * 2**20
MAX_METRICS = 1_000
MAX_TEXT = 300
_HINT = "write it again: tracekit noise RUN… -o noise.json"
_MISSING_HINT = "check the path, or write the file: tracekit noise RUN… -o noise.json"


@dataclass(frozen=True, slots=True)
class NoiseFile:
    """Noise of each metric, with the fingerprint of the calibrated runs and the version of tracekit.

    `runs` are their names, `spans` are their start and end times; `notes` describe how they were recorded.
    """

    metrics: Mapping[Key, Noise]
    fingerprint: Mapping[str, str]
    runs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tool_version: str = VERSION
    spans: tuple[RunSpan, ...] = ()

    def find_noise(self, key: Key) -> Noise | None:
        """Find the noise of one metric, None if it was not calibrated; roles may be spelled differently."""
        name, role, stage = key
        if key in self.metrics or role is None:
            return self.metrics.get(key)
        for (other_name, other_role, other_stage), noise in self.metrics.items():
            if other_role is None or (other_name, other_stage) != (name, stage):
                continue
            if normalize_label_words(other_role) == normalize_label_words(role):
                return noise
        return None


def calibrated(side: ComparedSide, notes: tuple[str, ...] = ()) -> NoiseFile:
    """Calibrate the noise of the runs of one side; raises `TracekitError` for fewer than two runs.

    Metrics that a run lacks, or that are zero anywhere, are left out. Raises if the logs are not one per profiled run:
    the metrics of the smaller group would be left out without a word.
    """
    _refuse_unmatched_logs(side)
    metrics: dict[Key, Noise] = {}
    runs: tuple[str, ...] = ()
    for key, samples in sorted(side.samples.items(), key=lambda item: str(item[0])):
        if key[0] in CALIBRATED_METRICS and len(samples.runs) > 1 and is_all_positive(samples):
            metrics[key] = calibrate_noise(samples.values)
        if key[0] in (STEP_TIME, UNPROFILED) and len(samples.runs) > len(runs):
            runs = samples.runs
    if not any(key[0] in (STEP_TIME, UNPROFILED) for key in metrics):
        few = "; ".join((f"{len(runs)} {choose_plural(len(runs), 'run')} with steps", *side.notes))
        raise TracekitError(
            f"measuring noise needs at least 2 runs of the same setting, and using it needs {LEAST_RUNS}: got {few}",
            "tracekit noise RUN RUN RUN RUN -o noise.json",
        )
    of_all_runs = {key: noise for key, noise in metrics.items() if noise.runs == len(runs)}
    return NoiseFile(of_all_runs, dict(side.fingerprint), runs, notes, spans=side.spans)


def _refuse_unmatched_logs(side: ComparedSide) -> None:
    """Raise `TracekitError` for more or fewer logs than profiled runs; one profile may only name the hardware."""
    profiled, logged = (side.samples.get((name, None, None)) for name in (STEP_TIME, UNPROFILED))
    if profiled is None or logged is None:
        return
    run_count, log_count = len(profiled.runs), len(logged.runs)
    if run_count in (1, log_count):
        return
    logs, runs = choose_plural(log_count, "log"), choose_plural(run_count, "profiled run")
    raise TracekitError(
        "; ".join((f"--steps-from: {log_count} {logs} of step times for {run_count} {runs}", *side.notes)),
        "give one log per profiled run, or measure the logs alone: tracekit noise LOG LOG LOG LOG -o noise.json",
    )


def check_noise_fits(noise: NoiseFile | None, base: ComparedSide, opt: ComparedSide) -> tuple[NoiseFile | None, str]:
    """Return the calibration if it has the same GPU and world size, else None and the reason in one line."""
    if noise is None:
        return None, ""
    for name, title in MUST_AGREE.items():
        calibrated_on = noise.fingerprint.get(name, "")
        for side in (base, opt):
            ran_on = side.fingerprint.get(name, "")
            if calibrated_on and ran_on and calibrated_on != ran_on:
                return None, (
                    f"A/A noise was not used: it was measured on {title} {calibrated_on}, {side.name} ran on {ran_on}"
                )
    return noise, ""


def write_noise_json(noise: NoiseFile) -> str:
    """Write the calibration as JSON text with sorted keys: equal calibrations give equal bytes."""
    metrics = []
    for key in sorted(noise.metrics, key=str):
        name, role, stage = key
        row = {"name": name, "role": role, "stage": stage, **noise.metrics[key].to_dict()}
        metrics.append(row)
    document = {
        "schema": SCHEMA,
        "tool_version": noise.tool_version,
        "runs": list(noise.runs),
        "fingerprint": dict(noise.fingerprint),
        "notes": list(noise.notes),
        "spans": [list(span) for span in noise.spans],
        "metrics": metrics,
    }
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return f"{text}\n"


def read(path: Path) -> NoiseFile:
    """Read a calibration file; raises `TraceFormatError` for anything else, whatever its bytes."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise TraceFormatError(path, "no such file", _MISSING_HINT, code="cannot-be-read") from error
        reason = getattr(error, "strerror", None) or str(error)
        problem = f"cannot be read: {reason}"
        raise TraceFormatError(path, problem, _HINT, code="cannot-be-read") from error
    if len(raw) > MAX_BYTES:
        raise TraceFormatError(path, "is too large for A/A noise", _HINT, code="too-many")
    try:
        return _parse_noise_document(json.loads(raw.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        is_json = not isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)
        reason = str(error) if is_json else "it is not JSON"
        problem = f"is not an A/A noise file: {reason}"
        raise TraceFormatError(path, problem, _HINT, code="unfit") from error


def _parse_noise_document(document: Any) -> NoiseFile:
    """Parse a calibration document; raises ValueError with the problem."""
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of a file, not of a caller
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"its schema is {_shorten_noise_value(schema)}, not {SCHEMA}")
    metrics = _parse_noise_metrics(document.get("metrics"))
    facts = document.get("fingerprint", {})
    if not isinstance(facts, dict) or not all(_is_short_text(value) for value in facts.values()):
        raise ValueError("its fingerprint is not a map from names to strings")
    runs, notes = _get_noise_texts(document, "runs"), _get_noise_texts(document, "notes")
    version = document.get("tool_version", "")
    spans = tuple(_parse_noise_spans(document.get("spans", [])))
    return NoiseFile(metrics, facts, runs, notes, version if _is_short_text(version) else "", spans)


def _parse_noise_spans(rows: Any) -> Iterator[RunSpan]:
    """Parse when each run ran; files of older versions lack this."""
    if not isinstance(rows, list):
        raise ValueError("its spans are not a list")  # noqa: TRY004 - of a file, not of a caller
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and _is_short_text(row[0]) and all(map(_is_time, row[1:]))):
            raise ValueError(f"it has an invalid span of a run: {_shorten_noise_value(row)}")
        yield row[0], row[1], row[2]


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _parse_noise_metrics(rows: Any) -> dict[Key, Noise]:
    """Parse the noise of each metric."""
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_METRICS:
        raise ValueError("it has no list of metrics")
    metrics: dict[Key, Noise] = {}
    for row in rows:
        if not isinstance(row, dict) or not _is_short_text(row.get("name")) or row["name"] not in METRICS:
            raise ValueError(f"it has an unknown metric: {_shorten_noise_value(row)}")
        key = (str(row["name"]), _get_noise_text(row, "role"), _get_noise_text(row, "stage"))
        if key in metrics:
            raise ValueError(f"it has {key[2] or key[0]} twice")
        metrics[key] = Noise.from_dict(row)
    return metrics


def _get_noise_texts(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = document.get(name, [])
    if not isinstance(texts, list) or not all(_is_short_text(text) for text in texts):
        raise ValueError(f"its {name} are not a list of strings")
    return tuple(texts)


def _get_noise_text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or _is_short_text(value):
        return value
    raise ValueError(f"its {name} is {_shorten_noise_value(value)}, not a string")


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 10_000


def _shorten_noise_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
