"""Renders reports of the profiles in this directory: `make reports` writes all of them to `build/reports/`.

Two of them are samples that stay in `reports/`. With `--check` nothing is written, and it ends with 1 when one of these
is not what would be written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

import tracekit

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = {
    "verl_cpu": "verl_cpu/outputs/profile",
    "simulated_gpu": "simulated_gpu/outputs/profile",
    "simulated_memory": "simulated_memory/leaking",
}
COMPARED = {
    "compare_cpu": ("compare_cpu/base", "compare_cpu/opt"),
    "compare_memory": ("simulated_memory/leaking", "simulated_memory/fixed"),
}
"""Reports and comparisons by name, and what under `examples` they are of."""

FORMATS = ("md", "html")
COMMITTED = ("simulated_gpu", "compare_cpu")
"""The samples that stay in `reports/`."""

KEPT, ALL = ROOT / "reports", ROOT / "build" / "reports"


def rendered(names: Collection[str]) -> dict[str, bytes]:
    """The bytes of these reports, by the names of their files."""
    files: dict[str, bytes] = {}
    # Relative, so that the reports do not name this machine's directories.
    made: dict[str, tracekit.Report | tracekit.Comparison] = {}
    for name in names:
        if name in SAMPLES:
            made[name] = tracekit.analyze(f"examples/{SAMPLES[name]}", timeline=True)
        else:
            base, opt = (f"examples/{path}" for path in COMPARED[name])
            made[name] = tracekit.compare(base, opt, timeline=True)
    for name, report in made.items():
        for suffix in FORMATS:
            text = tracekit.render(report, suffix)
            assert isinstance(text, str)
            files[f"{name}.{suffix}"] = text.encode()
    return files


def main() -> int:
    """0, or with `--check` 1 when a committed report is stale."""
    os.chdir(ROOT)
    if "--check" in sys.argv[1:]:
        stale = [name for name, body in rendered(COMMITTED).items() if _is_stale(KEPT / name, body)]
        for name in stale:
            print(f"stale: reports/{name} (make reports)")
        return 1 if stale else 0
    ALL.mkdir(parents=True, exist_ok=True)
    for name, body in rendered([*SAMPLES, *COMPARED]).items():
        (ALL / name).write_bytes(body)
        if name.partition(".")[0] in COMMITTED:
            (KEPT / name).write_bytes(body)
    return 0


def _is_stale(path: Path, body: bytes) -> bool:
    """Whether a file is not there, or is not what would be written."""
    return not path.exists() or path.read_bytes() != body


if __name__ == "__main__":
    sys.exit(main())
