"""Search for the smallest cut: tries windows from few rows to many until an analysis finds the finding again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tracekit.analyses import load_default_thresholds
from tracekit.discover import Discovery
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.report import Finding
from tracekit.model.stages import get_canonical_stage
from tracekit.model.system.files import check_writable, write_atomically
from tracekit.model.system.temporaries import new_folder
from tracekit.model.text.labels import choose_plural, did_you_mean
from tracekit.model.trace import Measurements, Source
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.options import Options
from tracekit.pipeline.timeline.cutting import chrome, nsys
from tracekit.pipeline.timeline.cutting.groups import drop_groups, list_name_block, list_row_blocks
from tracekit.pipeline.timeline.cutting.names import Placeholders
from tracekit.pipeline.timeline.cutting.reduction import Group, leave_out_groups
from tracekit.pipeline.timeline.cutting.windows import CutWindow, find_recorded_span, list_cut_windows
from tracekit.pipeline.timeline.time_ranges import TimeRange

_LEAST_SHARE, _MOST_SHARE = 0.5, 2.0
"""Bounds of the finding's share of the step in the cut, as a factor of its share in the recording."""
_LIKE = 0.1
"""Largest difference of the finding's share between the written rows of a window and all its rows, relative."""
_PLURALS = {"copy": "copies"}
_SUFFIX = re.compile(r"\.(?:json(?:\.gz)?|sqlite)\Z", re.IGNORECASE)
_MOST_SCANNED_ROWS = 2_000_000
"""Rows of the scans that are kept between tries; a larger trace is scanned for each try."""
_GOAL_SHARE = 0.05
"""A cut above this share of its sources is also tried with fewer ranks, and fewer names of device ops and operators."""
_GROUP_TRIES, _NAME_TRIES = 48, 32


@dataclass(frozen=True, slots=True)
class CutResult:
    """A written cut: its files, sizes in bytes before and after, what it has, and the finding as the cut shows it.

    `tries` is the number of cuts that were written to find it; `renamed_count` the number of replaced names.
    """

    files: tuple[Path, ...]
    before_bytes: int
    after_bytes: int
    sources: tuple[str, ...]
    kept: str
    finding: Finding | None
    tries: int
    renamed_count: int

    @property
    def share(self) -> float:
        """Size of the cut as a share of its sources."""
        return self.after_bytes / self.before_bytes if self.before_bytes else 1.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One cut to try: sources with their windows, the level of detail, the estimated number of rows, and the groups to leave out."""

    sources: tuple[Source, ...]
    window: CutWindow
    level: str
    row_count: int
    left_out: frozenset[Group] = frozenset()

    @property
    def size_before(self) -> int:
        """Size of the sources in bytes."""
        return sum(Path(source.path).stat().st_size for source in self.sources)

    def list_left_out(self, kind: str) -> frozenset[str]:
        """List the values of one kind that are left out."""
        return frozenset(value for group, value in self.left_out if group == kind)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A cut that shows the finding: the finding in it, its size in bytes, and the groups it leaves out."""

    finding: Finding
    size: int
    left_out: frozenset[Group]


def cut_profile(
    paths: str | Path | Sequence[str | Path],
    target: str | Path,
    *,
    finding: str | int | None = None,
    time_range: TimeRange | None = None,
    anonymize: bool = False,
    options: Options = Options(),
) -> CutResult:
    """Write the smallest trace of `paths` that still shows a finding (its rank or rule), or a range of time, to `target`.

    `target` is a file for one source, or a folder for several. Every cut is analyzed before it is kept. Never writes to an
    input. Raises `TracekitError` if the report lacks the finding, or if no cut shows it.
    """
    target = Path(target)
    discovery = pipeline.discover_sources(paths, options)
    _check_target(target, discovery)
    measured = pipeline.measure(discovery, options)
    sources = [source for source in discovery.sources if source.reader in ("chrome", "nsys")]
    if not sources:
        kinds = ", ".join(sorted({source.reader for source in discovery.sources}))
        hint = "name a Chrome trace or an SQLite export of nsys; attach a memory snapshot or a log whole"
        raise TracekitError(f"no trace to cut: the files are of kind {kinds}", hint)
    cutter = _Cutter(target, anonymize=anonymize, options=options)
    if finding is None:
        return cutter.write_range(sources, measured, time_range)
    return cutter.search(sources, measured, choose_finding(pipeline.judge(measured).findings, finding))


def choose_finding(findings: Sequence[Finding], asked: str | int) -> Finding:
    """Choose a finding by its rank in the report, from 1, or by its rule."""
    text = str(asked).strip().removeprefix("#")
    rules = [finding.rule for finding in findings]
    listed = ", ".join(f"{number} {rule}" for number, rule in enumerate(rules, start=1))
    hint = f"the report has: {listed}" if findings else "the report has no findings; cut a part with --range"
    if text.isdecimal() and 1 <= int(text) <= len(findings):
        return findings[int(text) - 1]
    if text in rules:
        return findings[rules.index(text)]
    raise TracekitError(f"no finding {text!r} in this profile{did_you_mean(text, rules)}", hint)


def shows_finding(findings: Sequence[Finding], wanted: Finding, names: dict[str, str]) -> Finding | None:
    """Find the wanted finding among those of a cut: same rule, a common stage, and a similar share of the step."""
    renamed = {get_canonical_stage(name): get_canonical_stage(placeholder) for name, placeholder in names.items()}
    stages = {renamed.get(place.stage, place.stage) for place in wanted.places if place.stage}
    for finding in findings:
        if finding.rule != wanted.rule:
            continue
        own = {place.stage for place in finding.places if place.stage}
        if stages and own and not stages & own:
            continue
        if wanted.cost_ratio:
            factor = (finding.cost_ratio or 0) / wanted.cost_ratio
            if not _LEAST_SHARE <= factor <= _MOST_SHARE:
                continue
        return finding
    return None


class _Cutter:
    """Writes cuts to a target; keeps the scans of the last few sources."""

    def __init__(self, target: Path, *, anonymize: bool, options: Options) -> None:
        self._target = target
        self._is_file = _SUFFIX.search(target.name) is not None
        self._anonymize = anonymize
        self._options = options
        self._arguments = pipeline.list_wanted_inputs().args or ()
        self._scans: dict[Path, chrome.ScannedTrace] = {}
        self._placeholders: Placeholders | None = None
        self._tries = 0

    def write_range(self, sources: Sequence[Source], measured: Measurements, asked: TimeRange | None) -> CutResult:
        """Write the sources within a range of time, or whole."""
        if asked is None:
            raise TracekitError("nothing to cut is named", "--finding 1, --finding RULE, or --range 12ms:40ms")
        self._refuse_several(sources)
        window = _resolve_range(asked, sources, measured)
        return self._finish(_Candidate(tuple(sources), window, "full", 0), None, 1)

    def search(self, sources: Sequence[Source], measured: Measurements, wanted: Finding) -> CutResult:
        """Try cuts from few rows to many, and write the first that shows the finding."""
        tried: set[tuple[object, ...]] = set()
        for candidate in sorted(
            self._list_candidates(sources, measured, wanted), key=lambda candidate: candidate.row_count
        ):
            same = (tuple(source.name for source in candidate.sources), candidate.level, candidate.row_count)
            if same in tried:
                continue
            tried.add(same)
            trial = self._try(candidate, wanted)
            reference = None if trial is None else self._find_in_all_rows(candidate, wanted, trial.finding)
            if trial is not None and reference is not None:
                return self._finish(*self._reduce(candidate, wanted, trial, reference), self._tries)
        several = len(sources) > 1 and self._is_file
        hint = "give a folder (-o cut/): the finding may need several ranks" if several else "attach the whole profile"
        raise TracekitError(f"no part of the profile shows {wanted.rule} ({self._tries} tried)", hint)

    def _list_candidates(
        self, sources: Sequence[Source], measured: Measurements, wanted: Finding
    ) -> Iterator[_Candidate]:
        """List the cuts to try that have rows."""
        for chosen in self._list_source_sets(sources, wanted):
            for window in list_cut_windows(wanted, measured, [source.name for source in chosen]):
                within = tuple(source for source in chosen if source.name in window.spans)
                for level in chrome.LEVELS:
                    count = sum(self._count_rows(source, window, level) for source in within)
                    if count:
                        yield _Candidate(within, window, level, count)

    def _list_source_sets(self, sources: Sequence[Source], wanted: Finding) -> list[tuple[Source, ...]]:
        """List sets of sources to try: those of the finding's places, and all."""
        named = [
            source
            for source in sources
            if any(_is_place_in(place.source, place.rank, source) for place in wanted.places)
        ]
        sets: list[tuple[Source, ...]] = [(source,) for source in (named or list(sources))[:2]]
        if not self._is_file:
            sets += [tuple(named)] if named else []
            sets += [tuple(sources)]
        limits = load_default_thresholds().values.get(wanted.rule, {})
        sets = [chosen for chosen in sets if len(chosen) >= limits.get("min_ranks", 1)] or sets
        return list(dict.fromkeys(sets))

    def _refuse_several(self, sources: Sequence[Source]) -> None:
        """Raise if several sources would go into one file."""
        if len(sources) > 1 and self._is_file:
            raise TracekitError(
                f"{self._target}: one file for {len(sources)} traces", "name a folder (-o cut/) or one trace"
            )

    def _count_rows(self, source: Source, window: CutWindow, level: str) -> int:
        """Count the rows of a source in a window."""
        start, end = window.spans[source.name]
        if source.reader == "nsys":
            return nsys.count_rows_of_window(Path(source.path), start, end, level)
        return int(chrome.select_rows_of_window(self._scan(source), start, end, level).sum())

    def _scan(self, source: Source) -> chrome.ScannedTrace:
        """Scan a source, or get one of the last scans."""
        path = Path(source.path)
        if path not in self._scans:
            scanned = chrome.scan_for_cut(path)
            while self._scans and sum(map(len, self._scans.values())) + len(scanned) > _MOST_SCANNED_ROWS:
                self._scans.pop(next(iter(self._scans)))
            self._scans[path] = scanned
        return self._scans[path]

    def _select_rows(self, source: Source, candidate: _Candidate) -> chrome.Bools:
        """Mark the rows of a Chrome trace that a cut keeps."""
        trace = self._scan(source)
        kept = chrome.select_rows_of_window(trace, *candidate.window.spans[source.name], candidate.level)
        return drop_groups(trace, kept, candidate.left_out)

    def _write_files(self, candidate: _Candidate, folder: Path) -> list[Path]:
        """Write the files of a cut below a folder under their final names."""
        self._placeholders = Placeholders() if self._anonymize else None
        files = []
        for number, source in enumerate(candidate.sources):
            path = folder / self._name_file(source, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            start, end = candidate.window.spans[source.name]
            if source.reader == "nsys":
                left_out = candidate.list_left_out("table"), candidate.list_left_out("name")
                nsys.write_cut_export(
                    Path(source.path), path, start, end, candidate.level, self._placeholders, *left_out
                )
            else:
                kept = self._select_rows(source, candidate)
                pieces = chrome.write_cut_pieces(
                    self._scan(source),
                    kept,
                    (start, end),
                    candidate.level,
                    self._arguments,
                    self._placeholders,
                    candidate.list_left_out("argument"),
                )
                write_atomically(path, chrome.pack_pieces(pieces, compressed=path.suffix == ".gz"))
            files.append(path)
        return files

    def _name_file(self, source: Source, number: int) -> str:
        """Name the file of a source in the cut."""
        if self._is_file:
            return self._target.name
        suffix = ".sqlite" if source.reader == "nsys" else ".json.gz"
        if self._anonymize:
            return f"trace_{number + 1}{suffix}" if source.rank is None else f"rank{source.rank}_{number + 1}{suffix}"
        stem = re.sub(r"\.(?:json|sqlite|pt\.trace|gz|zst|xz|bz2|zip|nsys-rep)\b", "", source.name)
        return "/".join(part for part in f"{stem}{suffix}".split("/") if part not in ("", ".", ".."))

    def _find_in_all_rows(self, candidate: _Candidate, wanted: Finding, match: Finding) -> Finding | None:
        """Find the finding in all rows of the window; None if it is due to rows that were left out."""
        if candidate.level == chrome.LEVELS[-1]:
            return match
        whole = self._try(replace(candidate, level=chrome.LEVELS[-1]), wanted)
        return whole.finding if whole is not None and _is_alike(match, whole.finding) else None

    def _reduce(
        self, candidate: _Candidate, wanted: Finding, trial: _Trial, reference: Finding
    ) -> tuple[_Candidate, Finding]:
        """Leave out groups of rows as long as the finding stays like the reference; names and ranks down to the goal only."""
        best = trial

        def is_shown(left_out: frozenset[Group]) -> bool:
            nonlocal best
            found = self._try(_leave_out(candidate, left_out), wanted)
            if found is None or not _is_alike(found.finding, reference):
                return False
            if _list_stages(found.finding) != _list_stages(trial.finding):
                return False
            best = found
            return True

        def is_enough() -> bool:
            return best.size <= _GOAL_SHARE * _leave_out(candidate, best.left_out).size_before

        groups, rarely = self._list_blocks(candidate)
        left_out, _ = leave_out_groups(groups, is_shown, most_tries=_GROUP_TRIES)
        names = self._list_names(_leave_out(candidate, left_out))
        rarely = [*([name] for name in names[:_NAME_TRIES]), names[_NAME_TRIES:], *rarely]
        left_out, _ = leave_out_groups(rarely, is_shown, left_out, most_tries=2 * _NAME_TRIES, is_enough=is_enough)
        return _leave_out(candidate, left_out), best.finding

    def _list_blocks(self, candidate: _Candidate) -> tuple[list[list[Group]], list[list[Group]]]:
        """List the groups that may be left out, in the order to try them, and the ranks."""
        blocks: list[list[Group]] = []
        for source in candidate.sources:
            start, end = candidate.window.spans[source.name]
            if source.reader == "nsys":
                tables = nsys.list_cut_tables(
                    Path(source.path), start, end, candidate.level, is_anonymous=self._anonymize
                )
                blocks.append([("table", name) for name in tables])
            else:
                kept = self._select_rows(source, candidate)
                arguments = chrome.list_needed_arguments(self._arguments)
                blocks += list_row_blocks(self._scan(source), kept, arguments)
        known: set[Group] = set()
        blocks = [[group for group in block if not (group in known or known.add(group))] for block in blocks]  # type: ignore[func-returns-value]
        ranks: list[list[Group]] = [[("source", source.name)] for source in candidate.sources]
        return blocks, ranks if len(ranks) > 1 else []

    def _list_names(self, candidate: _Candidate) -> list[Group]:
        """List the names of device ops and operators in the kept rows."""
        found: dict[Group, None] = {}
        for source in candidate.sources:
            if source.reader == "nsys":
                start, end = candidate.window.spans[source.name]
                names = nsys.list_row_names(Path(source.path), start, end, candidate.level)
                found |= dict.fromkeys(("name", name) for name in names)
            else:
                found |= dict.fromkeys(list_name_block(self._scan(source), self._select_rows(source, candidate)))
        return list(found)

    def _try(self, candidate: _Candidate, wanted: Finding) -> _Trial | None:
        """Write a cut to a temporary folder, analyze it, and find the finding in it."""
        if not candidate.sources:
            return None
        self._tries += 1
        with new_folder() as folder:
            size = sum(path.stat().st_size for path in self._write_files(candidate, folder))
            quiet = replace(self._options, cache=False, progress=False, jobs=1, exclude=(), ranks=None, steps=None)
            try:
                report = pipeline.judge(pipeline.measure(pipeline.discover_sources([folder], quiet), quiet))
            except TracekitError:
                return None
            names = self._placeholders.names if self._placeholders is not None else {}
            match = shows_finding(report.findings, wanted, names)
            return None if match is None else _Trial(match, size, candidate.left_out)

    def _describe_rows(self, candidate: _Candidate, files: Sequence[Path]) -> str:
        """Count the kept rows by kind, over all files."""
        counts: Counter[str] = Counter()
        for source, path in zip(candidate.sources, files, strict=True):
            if source.reader == "nsys":
                counts.update(nsys.count_nsys_rows(path))
            else:
                counts.update(chrome.count_chrome_rows(self._scan(source), self._select_rows(source, candidate)))
        return ", ".join(
            f"{count:,} {choose_plural(count, kind, _PLURALS.get(kind, kind + 's'))}"
            for kind, count in counts.items()
            if count
        )

    def _finish(self, candidate: _Candidate, match: Finding | None, tries: int) -> CutResult:
        """Write the chosen cut to the target."""
        with new_folder() as folder:
            written = self._write_files(candidate, folder)
            files = []
            for path in written:
                final = self._target if self._is_file else self._target / path.relative_to(folder)
                if not self._is_file:
                    final.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(final, _yield_file_pieces(path))
                files.append(final)
        return CutResult(
            tuple(files),
            candidate.size_before,
            sum(path.stat().st_size for path in files),
            tuple(source.name for source in candidate.sources),
            f"{candidate.window.text}: {self._describe_rows(candidate, files)}",
            match,
            tries,
            len(self._placeholders.names) if self._placeholders is not None else 0,
        )


def _leave_out(candidate: _Candidate, left_out: frozenset[Group]) -> _Candidate:
    """Leave groups out of a cut, and sources."""
    gone = {value for kind, value in left_out if kind == "source"}
    sources = tuple(source for source in candidate.sources if source.name not in gone)
    return replace(candidate, sources=sources, left_out=left_out)


def _is_alike(match: Finding, reference: Finding) -> bool:
    """Check that two findings have a similar share of the step."""
    return abs((reference.cost_ratio or 0) - (match.cost_ratio or 0)) <= _LIKE * (reference.cost_ratio or 0)


def _list_stages(finding: Finding) -> set[str | None]:
    """List the stages of a finding."""
    return {place.stage for place in finding.places}


def _yield_file_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _is_place_in(source: str | None, rank: int | None, candidate: Source) -> bool:
    """Check whether a place names this source."""
    if source is None and rank is None:
        return False
    return source in (None, candidate.name) and rank in (None, candidate.rank)


def _check_target(target: Path, discovery: Discovery) -> None:
    """Raise `TracekitError` if the target is an input, or cannot be written."""
    if target.exists() and any(target.samefile(source.path) for source in discovery.sources):
        raise TracekitError(f"{target}: is one of the files to be read", "name another file")
    if _SUFFIX.search(target.name):
        check_writable(target)
        return
    if target.exists() and not target.is_dir():
        raise TracekitError(
            f"{target}: neither a folder nor a name of a trace", "-o small.json.gz, or -o cut/ for a folder"
        )
    if target.is_dir() and any(target.iterdir()):
        raise TracekitError(f"{target}: the folder is not empty", "name a new folder")


def _resolve_range(asked: TimeRange, sources: Sequence[Source], measured: Measurements) -> CutWindow:
    """Convert a range to the times of the sources; times count from the first time of all."""
    if asked.step is not None:
        windows = list_spans_of_step(asked.step, sources, measured)
        if not windows:
            raise TracekitError(
                f"range {asked}: the recording has no such step", "name times instead, such as 12ms:40ms"
            )
        return CutWindow(windows, str(asked))
    spans = {source.name: find_recorded_span(measured, source.name) for source in sources}
    spans = {name: span for name, span in spans.items() if span[1]}
    zero = min((low for low, _ in spans.values()), default=0)
    if all(high - zero <= asked.start_ns for _, high in spans.values()):
        raise TracekitError(f"range {asked}: the recording ends before", "name a range within it")
    return CutWindow(dict.fromkeys(spans, (zero + asked.start_ns, zero + asked.end_ns)), str(asked))


def list_spans_of_step(step: int, sources: Sequence[Source], measured: Measurements) -> dict[str, tuple[int, int]]:
    """List the time of a step in each source that has it."""
    rows = measured.frame("steps")
    rows = rows.filter(rows.equals("step", step))
    spans = {}
    for source in sources:
        own = rows.filter(rows.equals("source", source.name))
        if len(own):
            spans[source.name] = int(own["ts_ns"].min()), int((own["ts_ns"] + own["dur_ns"]).max())
    return spans
