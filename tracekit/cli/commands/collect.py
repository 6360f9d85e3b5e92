"""`tracekit collect`: copy Nsight Systems reports out of Ray sessions, before Ray removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import options as opt
from tracekit.cli import terminal
from tracekit.cli.help_pages import GroupedCommand
from tracekit.cli.text_tables import format_listing, format_text_columns
from tracekit.model.records import dataclass
from tracekit.model.text.labels import choose_plural

if TYPE_CHECKING:
    from tracekit.pipeline.collecting.file_copies import CopyResult
    from tracekit.pipeline.collecting.ray_sessions import CopyOutcome, CopyPlan, CopyRequest, ReportFolder, SkippedFile

_MAX_LISTED_FILES = 20
_COPY_OUTCOMES = ("copied", "already there", "failed")
_RAY_FOLDER = "/tmp/ray"  # noqa: S108 - Ray's session directory, shown to the user


@dataclass(frozen=True, slots=True)
class _CollectMode:
    """How to run, and how much to print."""

    dry_run: bool
    quiet: bool
    verbose: bool


@click.command(name="collect", cls=GroupedCommand, short_help="Copy Nsight Systems reports out of Ray sessions.")
@click.argument("roots", nargs=-1, type=click.Path(), metavar="ROOT...")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(),
    metavar="DIR",
    help="Copy into this directory, as DIR/<session>/…; created if missing.",
)
@click.option("--host", metavar="NAME", help="Host of ROOT, to keep the reports of several hosts apart.")
@opt.cluster
@click.option("-n", "--dry-run", is_flag=True, help="Print the files to copy, and copy nothing.")
@opt.quiet
@opt.verbose
def command(  # noqa: PLR0913 - one per option
    *,
    roots: tuple[str, ...],
    target: str,
    host: str | None,
    engine: str,
    ray_address: str | None,
    on_every_node: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Copy the Nsight Systems reports below ROOT out of Ray sessions, before Ray removes them.

    ROOT is Ray's directory (/tmp/ray), one session or one directory of reports. Copies are verified by size
    and hash. Originals stay, and existing copies are kept. The exit status is 2 if there is no report or a copy
    failed. With --engine ray, reports of every node are copied to this machine, into one directory per host:
    from /tmp/ray, or from the directories of --on-every-node.
    """
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline.collecting import ray_sessions as collecting

    manner = _CollectMode(dry_run, quiet, verbose)
    folder = Path(target)
    if folder.exists() and not folder.is_dir():
        raise TracekitError(f"{target}: is a file, and a directory is wanted", "name another")
    if engine == "ray":
        return _collect_from_nodes(roots, folder, host, ray_address, on_every_node, manner)
    if on_every_node or ray_address:
        raise TracekitError(
            "--on-every-node and --ray-address are for Ray, and the local engine was asked for", "add --engine ray"
        )
    opt.require_paths(roots, (), "ROOT")
    plan = collecting.plan_copies(roots, folder, host)
    suspects = collecting.find_useless_reports(plan.wanted)
    return _run_copy_plan(plan, suspects, collecting.copy_local_report, roots, manner)


def _collect_from_nodes(
    roots: Sequence[str],
    folder: Path,
    host: str | None,
    address: str | None,
    patterns: Sequence[str],
    manner: _CollectMode,
) -> int:
    """Copy reports from the nodes of a cluster, and return the exit status."""
    from tracekit.engine.ray_cluster import connect_cluster
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline.collecting import nodes as node_collecting

    if roots or host is not None:
        raise TracekitError(
            "with --engine ray neither ROOT nor --host is taken",
            "name the directory of the nodes with --on-every-node; their hosts are known",
        )
    places = tuple(patterns) or (_RAY_FOLDER,)
    with connect_cluster(address) as nodes:
        offer = node_collecting.collect_offers(nodes, places, folder)
        copy = node_collecting.make_node_copier(nodes)
        return _run_copy_plan(offer.plan, offer.suspects, copy, places, manner)


def _run_copy_plan(
    plan: CopyPlan,
    suspects: Sequence[SkippedFile],
    copy: Callable[[CopyRequest], CopyResult],
    roots: Sequence[str],
    manner: _CollectMode,
) -> int:
    """Run the plan, print the result, and return the exit status."""
    from tracekit.model.errors import TracekitError

    if not plan.wanted:
        if plan.left_out:
            terminal.write_output(_format_skipped(plan.left_out, verbose=manner.verbose) + "\n")
        more = f" and {len(roots) - 3} more" if len(roots) > 3 else ""
        raise TracekitError(
            f"no report of Nsight Systems found in {', '.join(roots[:3])}{more}",
            f"Ray keeps them in {_RAY_FOLDER}/session_*/logs/nsight of every host",
        )
    copied = None if manner.dry_run else _copy_sessions(plan.wanted, copy, quiet=manner.quiet)
    lines = [_format_copies(plan.wanted, copied, suspects)]
    if suspects:
        title = f"Suspect, and copied all the same: {len(suspects):,} (tracekit doctor looks closer)"
        lines += ["", _format_file_reasons(title, suspects, verbose=manner.verbose)]
    if plan.left_out:
        lines += ["", _format_skipped(plan.left_out, verbose=manner.verbose)]
    terminal.write_output("\n".join(lines) + "\n")
    return 2 if any(file.error is not None for file in copied or ()) else 0


def _copy_sessions(
    wanted: Sequence[CopyRequest], copy: Callable[[CopyRequest], CopyResult], *, quiet: bool
) -> list[CopyOutcome]:
    """Copy the files session by session, with progress and errors on standard error."""
    from tracekit.pipeline.collecting import ray_sessions as collecting

    outcomes: list[CopyOutcome] = []
    for session, files in _group_by_session(wanted).items():
        if not quiet:
            terminal.print_message(f"copying {_format_file_count(files)} of {_format_session(session)}")
        for file in collecting.copy_reports(files, copy):
            outcomes.append(file)
            if file.error is not None:
                terminal.print_problem(str(file.error), file.error.hint)
    return outcomes


def _group_by_session(wanted: Sequence[CopyRequest]) -> dict[ReportFolder, list[CopyRequest]]:
    """Group the files by session, and keep their order."""
    sessions: dict[ReportFolder, list[CopyRequest]] = {}
    for file in wanted:
        sessions.setdefault(file.session, []).append(file)
    return sessions


def _format_copies(
    wanted: Sequence[CopyRequest], copy_outcomes: Sequence[CopyOutcome] | None, suspects: Sequence[SkippedFile]
) -> str:
    """Format one row per session and host: number of files, and their outcomes; `copy_outcomes` is None for a dry run."""
    from tracekit.model.units import format_quantity

    rows: list[dict[str, Any]] = []
    suspicious = {(file.node, file.path) for file in suspects}
    place = "would be copied into" if copy_outcomes is None else "into"
    for session, files in _group_by_session(wanted).items():
        size = format_quantity(sum(file.size_bytes for file in files), "bytes")
        row = {"session": session.name, "host": session.host or "", "files": len(files), "size": size}
        row |= _count_copy_outcomes(session, copy_outcomes)
        row["suspect"] = sum((file.node, file.path) in suspicious for file in files)
        if not suspicious:
            row["suspect"] = None
        row[place] = str(_find_target_folder(files))
        rows.append(row)
    right = ("files", "size", *_COPY_OUTCOMES, "suspect")
    return format_text_columns(rows, right, terminal.get_page_width()[0])


def _count_copy_outcomes(session: ReportFolder, copy_outcomes: Sequence[CopyOutcome] | None) -> dict[str, int | None]:
    """Count the files of a session by outcome; all None for a dry run, and `failed` None if none did."""
    if copy_outcomes is None:
        return dict.fromkeys(_COPY_OUTCOMES)
    counts: dict[str, int | None] = {
        outcome: sum(file.outcome == outcome and file.wanted.session == session for file in copy_outcomes)
        for outcome in _COPY_OUTCOMES
    }
    counts["failed"] = counts["failed"] or None
    return counts


def _find_target_folder(wanted: Sequence[CopyRequest]) -> Path:
    """Find the directory into which all these files are copied."""
    first = wanted[0]
    return first.target.parents[len(first.path.relative_to(first.session.folder).parts) - 1]


def _format_skipped(left_out: Sequence[SkippedFile], *, verbose: bool) -> str:
    """Format the files that are not copied, with reasons."""
    return _format_file_reasons(f"Left out: {len(left_out):,}", left_out, verbose=verbose)


def _format_file_reasons(title: str, files: Sequence[SkippedFile], *, verbose: bool) -> str:
    """Format files and their reasons, limited unless `verbose`."""
    rows = [{"file": _format_node_path(file), "reason": file.reason} for file in files]
    return "\n".join(
        format_listing(title, rows, _MAX_LISTED_FILES, verbose=verbose, width=terminal.get_page_width()[0])
    )


def _format_node_path(file: SkippedFile) -> str:
    """Format the path of a file with its node."""
    if file.node is None:
        return str(file.path)
    return file.node if file.path == Path() else f"{file.node}:{file.path}"


def _format_file_count(wanted: Sequence[CopyRequest]) -> str:
    """Format the number and total size of files."""
    from tracekit.model.units import format_quantity

    count, size = len(wanted), format_quantity(sum(file.size_bytes for file in wanted), "bytes")
    return f"{count:,} {choose_plural(count, 'file')} ({size})"


def _format_session(session: ReportFolder) -> str:
    """Format the name and host of a session."""
    from tracekit.render.escape import make_printable

    return make_printable(" on ".join(part for part in (session.name, session.host) if part))
