"""Writing and checking of the committed example files that a script makes."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_or_check(wanted: dict[Path, bytes]) -> int:
    """Write the files that differ and return 0; with `--check`, list them instead and return 1 if there are any."""
    stale = [path for path, body in wanted.items() if not path.exists() or path.read_bytes() != body]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)}")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    return 0
