"""Whether the installed files are those of this project alone: another one has the import and the command `tracekit` too."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.model.errors import TracekitError

DISTRIBUTION = "tracekit-rl"
PACKAGES = Path(__file__).parents[2]


def require_alone(packages: Path = PACKAGES) -> None:
    """Nothing; raises `TracekitError` where the other distribution is installed beside this one: each overwrote files of the other."""
    for name in os.listdir(packages):  # noqa: PTH208 - a third of the time, at each start
        if name.startswith("tracekit-") and name.endswith(".dist-info"):
            other = name.removesuffix(".dist-info").replace("-", " ")
            raise TracekitError(
                f"{packages}: {other}, another project, is installed beside {DISTRIBUTION} and has overwritten files of it",
                f"pip uninstall -y tracekit {DISTRIBUTION} && pip install {DISTRIBUTION}",
            )
