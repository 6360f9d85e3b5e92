"""JSON contracts: the version and the dataclass behind the schema of each kind of JSON output."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.compare import comparison, noise
from tracekit.health.checks import Diagnosis
from tracekit.model import report
from tracekit.model.inputs.sources import NoteSeverity
from tracekit.model.records import dataclass

DOCTOR, INSPECT = "tracekit.doctor/1", "tracekit.inspect/1"


@dataclass(frozen=True, slots=True)
class Examination:
    """Problems of a capture. `files` counts those `read`, `refused`, `unreadable` and `duplicate`; `held` describes the recording; `recordings` lists its kinds."""

    title: str
    file_count: int
    read_count: int
    ignored_count: int
    files: Mapping[str, int]
    held: tuple[str, ...]
    diagnoses: tuple[Diagnosis, ...]
    recordings: tuple[report.Recording, ...] = ()
    schema: str = DOCTOR


@dataclass(frozen=True, slots=True)
class RecognisedFile:
    """One file that is read, and as what; null is unknown."""

    file: str
    reader: str
    run: str
    role: str | None
    scope: str | None
    step: int | None
    rank: int | None
    world_size: int | None
    replica: int | None
    topology: str | None
    part: str | None
    host: str | None
    pid: int | None
    size_bytes: int
    notes: str


@dataclass(frozen=True, slots=True)
class IgnoredFile:
    """One file or directory that is not read; `code` is the reason for programs."""

    file: str
    reason: str
    code: str


@dataclass(frozen=True, slots=True)
class FileNote:
    """Something odd about a file, or about all."""

    severity: NoteSeverity
    code: str
    source: str
    message: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """How every file of a directory was recognised."""

    title: str
    sources: tuple[RecognisedFile, ...]
    ignored: tuple[IgnoredFile, ...]
    notes: tuple[FileNote, ...]
    schema: str = INSPECT


@dataclass(frozen=True, slots=True)
class MetricNoise:
    """How much runs of one setting differ in one metric: `sd` of the logarithms of their means on `df` degrees of freedom.

    `steps` are the fewest of a run, `rho` the lag-1 correlation of steps, `logs` the logarithms of run means; files of older
    versions have none.
    """

    name: str
    role: str | None
    stage: str | None
    sd: float
    df: float
    runs: int
    steps: int
    rho: float | None
    logs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class NoiseOfRuns:
    """The noise of equal runs, for `tracekit compare --noise`; runs that use it must have the same `fingerprint`."""

    tool_version: str
    runs: tuple[str, ...]
    fingerprint: Mapping[str, str]
    notes: tuple[str, ...]
    spans: tuple[tuple[str, int, int], ...]
    metrics: tuple[MetricNoise, ...]
    schema: str = noise.SCHEMA


@dataclass(frozen=True, slots=True)
class Contract:
    """One kind of JSON output: its name, version and dataclass, and the commands that write it."""

    name: str
    version: str
    kind: type
    written_by: str


CONTRACTS: tuple[Contract, ...] = (
    Contract("report", report.SCHEMA, report.Report, "analyze, gate, export"),
    Contract("compare", comparison.SCHEMA, comparison.Comparison, "compare"),
    Contract("noise", noise.SCHEMA, NoiseOfRuns, "noise"),
    Contract("inspect", INSPECT, Inspection, "inspect"),
    Contract("doctor", DOCTOR, Examination, "doctor"),
)
