"""What a person chooses of an analysis: what to leave out, how to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from tracekit.discover import parse_numbers
from tracekit.model.records import dataclass

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class Options:
    """What to leave out and how to run; the defaults read everything on all cores.

    `work` is how many tokens, samples or images every step holds, `device_memory` how many bytes each
    GPU has, where a person tells; `sample` how many ranks are to be read. With the engine "ray" sources are read on the nodes of the cluster at
    `ray_address` (None: one started here), and `on_every_node` are patterns that each node looks at itself.
    Of the `questions` (ids; None: all) those in `skip` are left out; of what no question asks only `tables` are measured.
    `question_files` are Python files of the user, each with a question that is asked as well. With `cache` what is
    measured of a file is kept, and what was kept of it is used. Where there are directories `within`, without links in
    their own paths, nothing outside of them is read for a path inside. Without `details` the report is for the screen
    alone: it need not hold figures, tables and charts of sections, values for a later compare, and the digests of its
    files (`Source.content`), for which all of each is read once more.
    """

    ranks: str | None = None
    steps: str | None = None
    stages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int | None = None
    progress: bool = False
    work: Mapping[str, float] = field(default_factory=dict[str, float])
    device_memory: int | None = None
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

    @property
    def cuts(self) -> bool:
        """Whether less is asked for than the profile holds."""
        return bool(self.ranks or self.steps or self.stages or self.sample)


def options_of(given: Mapping[str, Any]) -> Options:
    """The options that were given by name, as a person says them: one pattern or several, a size as `80GiB`.

    What is None was not said.
    """
    stated = {name: value for name, value in given.items() if value is not None}
    for name in ("stages", "exclude", "on_every_node", "questions", "skip", "question_files"):
        if name not in stated:
            continue
        patterns = stated[name]
        stated[name] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if "device_memory" in stated:
        from tracekit.job.memory.device_size import parse_device_memory

        stated["device_memory"] = parse_device_memory(stated["device_memory"])
    return Options(**stated)


def numbers_of(spec: str | None) -> frozenset[int] | None:
    """The numbers of a text such as `0-3,7`; None for none, which means all."""
    return None if spec is None else parse_numbers(spec)
