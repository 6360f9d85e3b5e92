"""Renders the sample reports in `reports/` from the profiles in this directory: `make reports`.

With `--check` it writes nothing and ends with 1 when a committed report is not what would be written.
"""

from __future__ import annotations

import os
import sys
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


def rendered() -> dict[Path, bytes]:
    """The bytes of every sample report, by where it lies."""
    files: dict[Path, bytes] = {}
    # Relative, so that the reports do not name this machine's directories.
    made = {name: tracekit.analyze(f"examples/{path}") for name, path in SAMPLES.items()} | {
        name: tracekit.compare(*(f"examples/{path}" for path in paths))
        for name, paths in COMPARED.items()
    }
    for name, one in made.items():
        for suffix in FORMATS:
            text = tracekit.render(one, suffix)
            assert isinstance(text, str)
            files[ROOT / "reports" / f"{name}.{suffix}"] = text.encode()
    return files


def main() -> int:
    """0, or with `--check` 1 when a committed report is stale."""
    os.chdir(ROOT)
    stale = [
        path for path, body in rendered().items() if not path.exists() or path.read_bytes() != body
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)} (make reports)")
        return 1 if stale else 0
    for path, body in rendered().items():
        path.write_bytes(body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
