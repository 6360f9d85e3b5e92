"""What some tests need and not every machine has: which of it is here, and which must be.

`python tests/support/tools.py [clusters]` prints the modules that hold such tests; `make test-tools` runs them with
TRACEKIT_TOOLS naming what it installed, and what is named and not found ends the run: without that, these
tests would just not be collected.
"""

import os
import shutil
import sys
from importlib.util import find_spec

import nsys_tool
import verl_python

ALONGSIDE = (
    "tests/capture/test_conformance.py",
    "tests/capture/test_endings.py",
    "tests/capture/test_fault_programs.py",
    "tests/capture/test_matrix.py",
    "tests/capture/test_nvtx_pairs.py",
    "tests/capture/test_ray_run.py",
    "tests/capture/test_recipes.py",
    "tests/capture/test_rollout_servers.py",
    "tests/capture/test_stress.py",
    "tests/capture/test_switch.py",
    "tests/capture/test_with_verl.py",
    "tests/docs/test_site.py",
    "tests/logs/test_systems.py",
    "tests/readers/test_nsys_stats.py",
    "tests/sql/test_recipes_nsys.py",
    "tests/stores/test_servers.py",
    "tests/test_nsys_reports.py",
)
"""The modules of which some tests are collected only where a tool is."""

CLUSTERS = ("tests/capture/test_ppo_run.py", "tests/on_ray", "tests/test_nsys_capture.py")
"""Those that start Ray clusters, one after another: two at once need more cores than there may be."""

MODULES = (*ALONGSIDE, *CLUSTERS)

COMPILER = shutil.which(os.environ.get("CC", "cc"))

HERE = {
    "verl": lambda: verl_python.PYTHON is not None,
    "ray": lambda: find_spec("ray") is not None and find_spec("nvtx") is not None,
    "nsys": lambda: bool(nsys_tool.found()),
    "logs": lambda: all(map(find_spec, ("tensorboard", "mlflow", "wandb", "sqlalchemy"))),
    "stores": lambda: all(map(find_spec, ("s3fs", "moto", "paramiko", "asyncssh", "aiohttp"))),
    "docs": lambda: all(map(find_spec, ("mkdocs", "material", "mkdocstrings", "nbclient"))),
    "compiler": lambda: COMPILER is not None,
    "namespaces": lambda: shutil.which("unshare") is not None,
}


def missing(asked=None):
    """The tools that TRACEKIT_TOOLS (or `asked`) names, separated by spaces, and that are not here."""
    named = (os.environ.get("TRACEKIT_TOOLS", "") if asked is None else asked).split()
    return [name for name in named if name not in HERE or not HERE[name]()]


if __name__ == "__main__":
    asked_for = CLUSTERS if sys.argv[1:] == ["clusters"] else ALONGSIDE
    print(" ".join(asked_for))
