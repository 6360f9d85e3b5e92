"""Accounts of processes from their manifests, attached to the sources that name a process by an id alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from tracekit.discover.manifests import Manifest, ManifestEntry, apply_manifest, list_manifest_fields, make_account
from tracekit.discover.runs import RAY_TIMELINE, PlacedSource
from tracekit.model.inputs.sources import Account, ReportedCapture


def attach_accounts(placed_sources: list[PlacedSource], manifests: Sequence[Manifest]) -> None:
    """Attach accounts to nsys reports, whose names identify at most a process."""
    by_pid: dict[int, list[Manifest]] = defaultdict(list)
    for manifest in manifests:
        if manifest.tool == "nsys" and manifest.pid is not None:
            by_pid[manifest.pid].append(manifest)
    if not by_pid:
        return
    accounts = tuple(make_account(manifest) for of_pid in by_pid.values() for manifest in of_pid)
    of_job = _merge_job_captures(accounts)
    for place, placed in enumerate(placed_sources):
        source = placed.source
        if source.tool != "nsys":
            continue
        if source.pid is None:
            placed_sources[place] = replace(placed, source=replace(source, accounts=accounts))
            continue
        own_manifest = _find_manifest_of_host(by_pid[source.pid], source.host)
        if own_manifest is None:
            silent = Account("", source.pid, captures=of_job)
            placed_sources[place] = replace(placed, source=replace(source, accounts=(silent,)))
            continue
        own_account = make_account(own_manifest)
        if list_manifest_fields(source):  # it lists this file, so its host name may differ
            own_account = replace(own_account, host=None)
        else:
            source = apply_manifest(source, own_manifest, ManifestEntry(source.name))
        source = replace(source, accounts=(own_account,))
        placed_sources[place] = replace(placed, source=source, run_id=own_manifest.run_id)


def attach_ray_workers(placed_sources: list[PlacedSource], manifests: Sequence[Manifest]) -> None:
    """Attach the accounts of Ray's workers to the timelines, which name workers by an id only."""
    accounts = {manifest.ray_worker: make_account(manifest) for manifest in manifests if manifest.ray_worker}
    # The rows need no captures; without them, equal timelines have equal cache keys.
    workers = tuple(replace(accounts[worker], captures=()) for worker in sorted(accounts))
    for place, placed in enumerate(placed_sources):
        if workers and placed.source.reader == RAY_TIMELINE:
            placed_sources[place] = replace(placed, source=replace(placed.source, accounts=workers))


def _find_manifest_of_host(manifests: Iterable[Manifest], host: str | None) -> Manifest | None:
    """Find the first manifest that may be from this host; None if there is none."""
    for manifest in manifests:
        if may_be_same_host(host, manifest.host):
            return manifest
    return None


def _merge_job_captures(accounts: Sequence[Account]) -> tuple[ReportedCapture, ...]:
    """Merge the captures of all processes: each step from its first start to its last stop."""
    windows: dict[int, tuple[int, int]] = {}
    for capture in chain.from_iterable(account.captures for account in accounts):
        step, start_ns, stop_ns = capture.step, capture.start_unix_ns, capture.stop_unix_ns
        if step is None or start_ns is None or stop_ns is None:
            continue
        first_ns, last_ns = windows.get(step, (start_ns, stop_ns))
        windows[step] = min(first_ns, start_ns), max(last_ns, stop_ns)
    steps = sorted(windows.items())
    return tuple(ReportedCapture(step, start_unix_ns=a, stop_unix_ns=b) for step, (a, b) in steps)


def may_be_same_host(first: object, second: object) -> bool:
    """Check whether two names may denote the same host, with or without domain. None matches any host."""
    if first is None or second is None:
        return True
    return str(first).partition(".")[0].lower() == str(second).partition(".")[0].lower()
