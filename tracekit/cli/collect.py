"""`tracekit collect`: the reports that Ray left on a host, copied to where they stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import cluster, terminal
from tracekit.cli.layout import columns

if TYPE_CHECKING:
    from tracekit.pipeline.collect import Kept, LeftOut, Plan, Session, Wanted
    from tracekit.pipeline.file_copies import Copied

_SHOWN = 20
_RAY = "/tmp/ray"  # noqa: S108 - where Ray keeps its sessions, only named


@dataclass(frozen=True, slots=True)
class _Shown:
    """What to do, and how much to say of it."""

    dry_run: bool
    quiet: bool
    verbose: bool


@click.command(name="collect", short_help="Copy Nsight Systems reports out of Ray's sessions.")
@click.argument("roots", nargs=-1, type=click.Path(), metavar="ROOT...")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(),
    metavar="DIR",
    help="Copy into this directory, as DIR/<session>/…; it is made if need be.",
)
@click.option(
    "--host", metavar="NAME", help="The host that ROOT is of: keeps reports of several hosts apart."
)
@cluster.options
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be copied, and copy nothing.")
@terminal.quiet_option
@terminal.verbose_option
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
    """Copy the Nsight Systems reports below ROOT out of the sessions of Ray, which are soon removed.

    ROOT is Ray's directory (/tmp/ray), one session or one directory of reports. Copies are verified by size
    and hash; originals stay, and nothing is overwritten: what is there already is not copied again. Exit
    status 2 if there is no report, or if one could not be copied. With --engine ray the reports of every node
    are copied to this machine, each host's into a directory of its own: /tmp/ray, or what --on-every-node names.
    """
    shown = _Shown(dry_run, quiet, verbose)
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline import collect as collecting

    folder = Path(target)
    if folder.exists() and not folder.is_dir():
        raise TracekitError(f"{target}: is a file, and a directory is wanted", "name another")
    if engine == "ray":
        return _from_nodes(roots, folder, host, ray_address, on_every_node, shown)
    if on_every_node or ray_address:
        raise TracekitError(
            "--on-every-node and --ray-address are for Ray, and the local engine was asked for",
            "add --engine ray",
        )
    cluster.need_paths(roots, (), "ROOT")
    plan = collecting.plan(roots, folder, host)
    suspects = collecting.suspects(plan.wanted)
    return _carried_out(plan, suspects, collecting.copy_here, roots, shown)


def _from_nodes(
    roots: Sequence[str],
    folder: Path,
    host: str | None,
    address: str | None,
    patterns: Sequence[str],
    shown: _Shown,
) -> int:
    """The exit status of copying what lies on the nodes of a cluster."""
    from tracekit.engine.ray_cluster import connected
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline import node_collecting

    if roots or host is not None:
        raise TracekitError(
            "with --engine ray neither ROOT nor --host is taken",
            "name the directory of the nodes with --on-every-node; their hosts are known",
        )
    places = tuple(patterns) or (_RAY,)
    with connected(address) as nodes:
        offer = node_collecting.offers(nodes, places, folder)
        copy = node_collecting.copier(nodes)
        return _carried_out(offer.plan, offer.suspects, copy, places, shown)


def _carried_out(
    plan: Plan,
    suspects: Sequence[LeftOut],
    copy: Callable[[Wanted], Copied],
    roots: Sequence[str],
    shown: _Shown,
) -> int:
    """The exit status of copying what is planned; says what became of it."""
    from tracekit.model.errors import TracekitError
    from tracekit.pipeline import collect as collecting

    if not plan.wanted:
        told = ", ".join(roots[:3]) + (f" and {len(roots) - 3} more" if len(roots) > 3 else "")
        if plan.left_out:
            terminal.say(_left_out(plan.left_out, verbose=shown.verbose) + "\n")
        raise TracekitError(
            f"no report of Nsight Systems found in {told}",
            f"Ray keeps them in {_RAY}/session_*/logs/nsight of every host",
        )
    kept: list[Kept] = []
    sessions = list(dict.fromkeys(one.session for one in plan.wanted))
    for session in [] if shown.dry_run else sessions:
        mine = [one for one in plan.wanted if one.session == session]
        if not shown.quiet:
            terminal.tell(f"copying {_files(mine)} of {_named(session)}")
        for one in collecting.carry_out(mine, copy):
            kept.append(one)
            if one.error is not None:
                terminal.tell_problem(str(one.error), one.error.hint)
    lines = [_table(sessions, plan.wanted, None if shown.dry_run else kept, suspects)]
    if suspects:
        lines += ["", _suspect(suspects, verbose=shown.verbose)]
    if plan.left_out:
        lines += ["", _left_out(plan.left_out, verbose=shown.verbose)]
    terminal.say("\n".join(lines) + "\n")
    return 2 if any(one.error is not None for one in kept) else 0


def _table(
    sessions: Sequence[Session],
    wanted: Sequence[Wanted],
    kept: Sequence[Kept] | None,
    suspects: Sequence[LeftOut],
) -> str:
    """A row a session and host: how many files, and what became of them; `kept` None if nothing was done."""
    from tracekit.model.units import show

    rows: list[dict[str, Any]] = []
    doubted = {(one.node, one.path) for one in suspects}
    for session in sessions:
        mine = [one for one in wanted if one.session == session]
        row: dict[str, Any] = {"session": session.name, "host": session.host or ""}
        row |= {"files": len(mine), "size": show(sum(o.size_bytes for o in mine), "bytes")}
        for outcome in ("copied", "already there", "failed"):
            fared = [k for k in kept or () if k.outcome == outcome and k.wanted.session == session]
            row[outcome] = (
                None if kept is None or (outcome == "failed" and not fared) else len(fared)
            )
        row["suspect"] = sum((one.node, one.path) in doubted for one in mine) if doubted else None
        row["into" if kept is not None else "would be copied into"] = str(_place(mine))
        rows.append(row)
    return columns(rows, right=("files", "size", "copied", "already there", "failed", "suspect"))


def _place(wanted: Sequence[Wanted]) -> Path:
    """The directory that all these files go to."""
    first = wanted[0]
    return first.target.parents[len(first.path.relative_to(first.session.folder).parts) - 1]


def _left_out(left_out: Sequence[LeftOut], *, verbose: bool) -> str:
    """What is not copied, and why."""
    return _listed(f"Left out: {len(left_out):,}", left_out, verbose=verbose)


def _suspect(suspects: Sequence[LeftOut], *, verbose: bool) -> str:
    """What is copied and of little use, and why."""
    title = f"Suspect, and copied all the same: {len(suspects):,} (tracekit doctor looks closer)"
    return _listed(title, suspects, verbose=verbose)


def _listed(title: str, files: Sequence[LeftOut], *, verbose: bool) -> str:
    """Files and the reason of each, the first of many."""
    shown = files if verbose else files[:_SHOWN]
    lines = [title, columns([{"file": _where(one), "reason": one.reason} for one in shown])]
    if len(files) > len(shown):
        lines.append(f"… and {len(files) - len(shown):,} more (-v)")
    return "\n".join(lines)


def _where(file: LeftOut) -> str:
    """The path of a file, and the node that it lies on."""
    if file.node is None:
        return str(file.path)
    return file.node if file.path == Path() else f"{file.node}:{file.path}"


def _files(wanted: Sequence[Wanted]) -> str:
    """How many files, and how large."""
    from tracekit.model.units import show

    count, size = len(wanted), show(sum(one.size_bytes for one in wanted), "bytes")
    return f"{count:,} {'file' if count == 1 else 'files'} ({size})"


def _named(session: Session) -> str:
    """A session in words."""
    from tracekit.render.escape import printable

    return printable(session.name + (f" on {session.host}" if session.host else ""))
