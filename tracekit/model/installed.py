"""Whether the installed files are those of this project alone: another one has the import and the command `tracekit` too."""

from __future__ import annotations

import os
from pathlib import Path

from tracekit.model.errors import TracekitError

DISTRIBUTION = "tracekit-rl"
"""The name of what pip installs. No index has it yet, so no hint may ask one for it: anybody could register it there."""
PACKAGES = Path(__file__).parents[2]


def install_command(extra: str = "", *options: str) -> str:
    """Say how tracekit is installed from its checkout, with an extra where one is needed.

    >>> install_command("sql")
    "pip install '.[sql]' (in a checkout of tracekit)"
    """
    target = f"'.[{extra}]'" if extra else "."
    return f"{' '.join(['pip', 'install', *options])} {target} (in a checkout of tracekit)"


def require_alone(packages: Path = PACKAGES) -> None:
    """Nothing; raises `TracekitError` where the other distribution is installed beside this one: each overwrote files of the other."""
    for name in os.listdir(packages):  # noqa: PTH208 - a third of the time, at each start
        if name.startswith("tracekit-") and name.endswith(".dist-info"):
            other = name.removesuffix(".dist-info").replace("-", " ")
            raise TracekitError(
                f"{packages}: {other}, another project, is installed beside {DISTRIBUTION} and has overwritten files of it",
                f"pip uninstall -y tracekit {DISTRIBUTION} && {install_command()}",
            )
