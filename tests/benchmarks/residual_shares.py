"""How much of each profile's critical path does the replay not explain? The table may only fall.

    python tests/benchmarks/residual_shares.py [--write] [--only WORD]

Replays the committed profiles, and the real ones beside `TRACEKIT_REAL_DATA` where it is set. Prints the share of the
critical path that rests on no mechanism, beside the share in `residual_shares.txt`. The exit status is 1 where a share
is larger by more than a point. `--write` writes the table; shares of profiles that are not here keep their lines.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

from replay.graphs import read_graphs

from tracekit.model.errors import TracekitError
from tracekit.replay.job_graph import JobGraph, join_processes
from tracekit.replay.ledger import close_ledger, find_critical_path
from tracekit.replay.steps import list_job_steps

ROOT = Path(__file__).resolve().parents[2]
RESIDUALS = Path(__file__).with_name("residual_shares.txt")
A_POINT = 0.01

HEADER = (
    "# Share of the critical path without an explanation, in per cent. Shares may only fall.",
    "# Written by `python tests/benchmarks/residual_shares.py --write`; `real/` is beside TRACEKIT_REAL_DATA.",
)

COMMITTED = ("examples", "tests/data/cases")
"""Directories of the repository; each of their directories or files is a profile."""

REAL = ("data/chrome", "data/nsys", "more/chrome", "more/nsys")
"""Directories of real profiles; a directory without directories, or a file of its own, is a profile."""

OF_RUN = re.compile(r"rank[-_]?[0-9]|worker_process|[._]pid[0-9]")
"""Names of files that are one process of a run."""

SUFFIXES = (".json", ".json.gz", ".sqlite")

MORE_COMMITTED = ("tests/data/chrome", "tests/data/gloo_faults", "tests/data/gpu/compare")
"""Directories of the repository; each of their directories is a profile."""


def profiles(real: Path | None) -> Iterator[tuple[str, Path]]:
    """(name in the table, path) of every profile that is here."""
    for folder in COMMITTED:
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_dir() and not path.name.startswith((".", "__")):
                yield str(path.relative_to(ROOT)), path
    if real is None:
        return
    for folder in REAL:
        for path in _folders(real / folder):
            yield f"real/{path.relative_to(real)}", path


def _folders(folder: Path) -> Iterator[Path]:
    """The profiles below: a directory of the files of a run, or each file of a directory of other files."""
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)]
    if any(OF_RUN.search(path.name) for path in files):
        yield folder
        return
    yield from files
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith(("_", ".")):
            yield from _folders(path)


def list_replayed_profiles(real: Path | None) -> Iterator[tuple[str, Path]]:
    """(name in the table, path) of every profile that is here."""
    yield from profiles(real)
    for folder in MORE_COMMITTED:
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_dir():
                yield str(path.relative_to(ROOT)), path
    gpu = ROOT / "tests/data/gpu"
    for path in sorted([*(gpu / "pairs").glob("*.xz"), *(gpu / "no_marks").rglob("*.xz"), gpu / "rl/torch"]):
        yield str(path.relative_to(ROOT)).removesuffix(".pt.trace.json.xz"), path


class ReplayedShare(NamedTuple):
    """What the replay of one run comes to: its graph, and the share of the critical path without an explanation."""

    job: JobGraph
    share: float


def replay_profile(path: Path) -> list[ReplayedShare]:
    """Replay each run at a path. The graph, the ledger and the critical path assert that they close.

    A path without anything to replay gives none.
    """
    try:
        graphs = read_graphs(path)
    except TracekitError:
        return []
    replayed = []
    for _, of_run in groupby(sorted(graphs, key=lambda graph: graph.source.run or ""), lambda graph: graph.source.run):
        job = join_processes([*of_run])
        steps = list_job_steps(job)
        close_ledger(job, steps)
        replayed.append(ReplayedShare(job, find_critical_path(job, steps).residual_share))
    return replayed


def measure_residual_share(path: Path) -> float | None:
    """The largest share of the runs at a path; None without any."""
    return max((replayed.share for replayed in replay_profile(path)), default=None)


def write_residual_table(shares: Mapping[str, float]) -> str:
    """The table as text, in per cent."""
    rows = [f"{100 * share:.2f} {name}" for name, share in sorted(shares.items())]
    return "\n".join([*HEADER, *rows, ""])


def list_risen_shares(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The profiles whose share is larger than in the table by more than a point."""
    return [
        f"{name}: {100 * before[name]:.2f} % → {100 * share:.2f} %"
        for name, share in after.items()
        if name in before and share > before[name] + A_POINT
    ]


def read_table(text: str) -> dict[str, float]:
    """The shares of the table by profile."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(share) / 100 for share, name in (line.split(" ", 1) for line in lines)}


def main() -> int:
    """Print or write the table; 1 where a share rose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    real = os.environ.get("TRACEKIT_REAL_DATA")
    before = read_table(RESIDUALS.read_text("utf-8")) if RESIDUALS.exists() else {}
    after: dict[str, float] = {}
    for name, path in list_replayed_profiles(Path(real).parent if real else None):
        share = measure_residual_share(path) if options.only in name else None
        if share is not None:
            after[name] = share
            old = f"{100 * before[name]:6.2f}" if name in before else "     –"
            print(f"{100 * share:6.2f} {old}  {name}", flush=True)
    rose = list_risen_shares(before, after)
    for line in rose:
        print(f"rose: {line}")
    if options.write:
        RESIDUALS.write_text(write_residual_table({**before, **after}), "utf-8")
        return 0
    return 1 if rose else 0


if __name__ == "__main__":
    sys.exit(main())
