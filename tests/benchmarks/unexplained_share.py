"""How much of each profile's steps is unexplained? The table may only fall.

    python tests/benchmarks/unexplained_share.py [--write] [--only WORD]

Analyzes the committed examples and cases, and the real profiles beside `TRACEKIT_REAL_DATA` where it is set. Prints the
share of idle and waiting time that no finding covers, beside the share in `unexplained.txt`. The exit status is 1 where
a share is larger. `--write` writes the table; shares of profiles that are not here keep their lines.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tracekit.model.errors import TracekitError
from tracekit.pipeline.run import Options, analyze_uncached

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("unexplained.txt")
SLACK = 0.001
"""Rounding of the table: a share is larger if it is larger by more than this."""

HEADER = (
    "# Unexplained share of the steps: idle and waiting time that no finding covers. Shares may only fall.",
    "# Written by `python tests/benchmarks/unexplained_share.py --write`; `real/` is beside TRACEKIT_REAL_DATA.",
)

COMMITTED = ("examples", "tests/data/cases")
"""Directories of the repository; each of their directories or files is a profile."""

REAL = ("data/chrome", "data/nsys", "more/chrome", "more/nsys")
"""Directories of real profiles; a directory without directories, or a file of its own, is a profile."""

OF_RUN = re.compile(r"rank[-_]?[0-9]|worker_process|[._]pid[0-9]")
"""Names of files that are one process of a run."""

SUFFIXES = (".json", ".json.gz", ".sqlite")


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


def share_of(path: Path) -> float | None:
    """The unexplained share of a profile; None where there is no time to explain, or nothing readable."""
    try:
        report = analyze_uncached(path, Options(cache=False)).report
    except TracekitError:
        return None
    shares = [m.value for m in report.headline if m.name == "unexplained_ratio"]
    return float(shares[0]) if shares and shares[0] is not None else None


def read_table(text: str) -> dict[str, float]:
    """The shares of the table by profile."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(share) / 100 for share, name in (line.split(" ", 1) for line in lines)}


def written(shares: Mapping[str, float]) -> str:
    """The table as text, in per cent."""
    rows = [f"{100 * share:.2f} {name}" for name, share in sorted(shares.items())]
    return "\n".join([*HEADER, *rows, ""])


def risen(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The profiles whose share is larger than in the table."""
    return [
        f"{name}: {100 * before[name]:.2f} % → {100 * share:.2f} %"
        for name, share in after.items()
        if name in before and share > before[name] + SLACK
    ]


def main() -> int:
    """Print or write the table; 1 where a share rose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    real = os.environ.get("TRACEKIT_REAL_DATA")
    before = read_table(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    after: dict[str, float] = {}
    for name, path in profiles(Path(real).parent if real else None):
        if options.only not in name:
            continue
        share = share_of(path)
        if share is not None:
            after[name] = share
            old = f"{100 * before[name]:6.2f}" if name in before else "     –"
            print(f"{100 * share:6.2f} {old}  {name}", flush=True)
    rose = risen(before, after)
    for line in rose:
        print(f"rose: {line}")
    if options.write:
        TABLE.write_text(written({**before, **after}), "utf-8")
        return 0
    return 1 if rose else 0


if __name__ == "__main__":
    sys.exit(main())
