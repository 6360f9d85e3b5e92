"""The Python that has verl, torch, Ray and nvtx, for the tests that need them: $TRACEKIT_VERL_PYTHON, or this one."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def verl_python():
    """That Python, None where there is none."""
    named = os.environ.get("TRACEKIT_VERL_PYTHON")
    if named:
        return Path(named)
    return Path(sys.executable) if find_spec("verl") and find_spec("torch") else None


PYTHON = verl_python()


def environment(**more):
    """The environment for it: this checkout importable, no GPU."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",  # not the cluster that other tests have started beside it
        **more,
    }


def run(*arguments, timeout=300, check=True, given=None, **more):
    """The finished program, run by that Python; `given` is its standard input."""
    done = subprocess.run(
        [str(PYTHON), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**more),
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done
