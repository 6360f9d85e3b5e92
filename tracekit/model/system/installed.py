"""Installation checks and hints: another PyPI project uses the same import name and command `tracekit`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from tracekit.model.errors import TracekitError

DISTRIBUTION = "tracekit-rl"
"""Name of the distribution. No index has it yet, so hints must not `pip install` it: anybody could register the name."""
PACKAGES = Path(__file__).parents[3]


def install_command(extra: str = "", *options: str) -> str:
    """Format the command that installs tracekit from its checkout, with an optional extra.

    >>> install_command("sql")
    "pip install '.[sql]' (in a checkout of tracekit)"
    """
    target = f"'.[{extra}]'" if extra else "."
    return f"{' '.join(['pip', 'install', *options])} {target} (in a checkout of tracekit)"


def find_distribution(library: str) -> str:
    """Find the folder that names the version of a library (`pandas-3.1.1.dist-info`) without importing it; empty if unknown."""
    spec = find_spec(library)
    packages = PACKAGES if spec is None or spec.origin is None else Path(spec.origin).parents[1]
    return next((name for name in sorted(os.listdir(packages)) if name.startswith(f"{library}-")), "")  # noqa: PTH208


def require_alone(packages: Path = PACKAGES) -> None:
    """Raise `TracekitError` if the other distribution is installed too: each overwrites files of the other."""
    for name in os.listdir(packages):  # noqa: PTH208 - takes a third of the time of pathlib, at each start
        if name.startswith("tracekit-") and name.endswith(".dist-info"):
            other = name.removesuffix(".dist-info").replace("-", " ")
            raise TracekitError(
                f"{packages}: {other}, another project, is installed next to {DISTRIBUTION} and has overwritten its files",
                f"pip uninstall -y tracekit {DISTRIBUTION} && {install_command()}",
            )
