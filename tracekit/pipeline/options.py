"""Options of an analysis: which data to leave out, and how to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

from tracekit.discover import parse_numbers
from tracekit.model.records import dataclass

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class Options:
    """Selection of data, and how to run; the defaults read everything on all cores.

    - `work`: tokens, samples or images per step; `device_memory`: bytes per GPU, and `gpu_hour_price`, if the user gives them.
    - `sample`: number of ranks to read.
    - `engine` "ray" reads sources on the nodes of the cluster at `ray_address` (None: one started here); each node
      expands the patterns `on_every_node` itself.
    - `questions` (ids; None: all) minus those in `skip`; `tables` are measured even if no question needs them.
    - `question_files`: Python files of the user, each with one more question.
    - `cache`: reuse and store the measurements of each file.
    - `within`: directories without links in their own paths. A path inside one reads nothing outside these directories.
    - `details`: if False, the report is for the terminal only. It may lack metrics, tables and charts of sections, and
      values for a later compare. It also lacks the digests of its files (`Source.content`), which take another read.
    - `graphs`: also build the dependency graph of each trace (`Measurements.graphs`), for a replay.
    - `timeline`: also build the data of the page's timeline from each trace (`Measurements.pages`).
    """

    ranks: str | None = None
    steps: str | None = None
    stages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int | None = None
    progress: bool = False
    work: Mapping[str, float] = field(default_factory=dict[str, float])
    device_memory: int | None = None
    gpu_hour_price: float | None = None
    sample: int | None = None
    engine: EngineName = "local"
    ray_address: str | None = None
    on_every_node: tuple[str, ...] = ()
    questions: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    question_files: tuple[str, ...] = ()
    cache: bool = True
    within: tuple[str, ...] = ()
    details: bool = True
    graphs: bool = False
    timeline: bool = False

    @property
    def cuts(self) -> bool:
        """Whether the options select only a part of the profile."""
        return bool(self.ranks or self.steps or self.stages or self.sample)


def parse_options(values: Mapping[str, Any]) -> Options:
    """Make options from keyword values as users give them: one pattern or several, numbers or a range, `80GiB`.

    None means not given.
    """
    stated = {name: value for name, value in values.items() if value is not None}
    for name in ("stages", "exclude", "on_every_node", "questions", "skip", "question_files"):
        if name not in stated:
            continue
        patterns = stated[name]
        stated[name] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for name in ("ranks", "steps"):
        if name in stated:
            stated[name] = _format_numbers(stated[name])
    if "device_memory" in stated:
        from tracekit.job.memory.device_size import parse_device_memory

        stated["device_memory"] = parse_device_memory(stated["device_memory"])
    return Options(**stated)


def parse_optional_numbers(spec: str | None) -> frozenset[int] | None:
    """Parse a range such as `0-3,7`; None, which means all, stays None."""
    return None if spec is None else parse_numbers(spec)


def _format_numbers(numbers: object) -> object:
    """Format one number or several as a range, which messages show; a range stays as it is."""
    if isinstance(numbers, str) or not isinstance(numbers, int | Iterable):
        return numbers
    return ",".join(str(number) for number in ([numbers] if isinstance(numbers, int) else numbers))
