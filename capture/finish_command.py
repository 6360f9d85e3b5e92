"""Command that a configuration runs after the last profiled step, to move the files to storage."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping

from capture.nsys_ranges import nsight_folder

log = logging.getLogger("capture")


def run_finish_command(command: str, variables: Mapping[str, object]) -> None:
    """Run `command` in a shell, with the items of `variables` in its environment as `VERL_PROFILE_<key>`.

    The variables are verl's. Waits for it and logs a failure. Raises `OSError` if there is no shell.
    """
    facts = {**variables, "PID": os.getpid()}
    if variables.get("TOOL") == "nsys":
        facts["RAY_NSIGHT_DIR"] = nsight_folder()
    named = {f"VERL_PROFILE_{key}": str(value) for key, value in facts.items()}
    done = subprocess.run(["/bin/sh", "-c", command], env=os.environ | named, check=False)  # noqa: S603 - the user's own
    if done.returncode:
        message = "rank %s: the finish command ended with %s: %s"
        log.warning(message, variables.get("RANK"), done.returncode, command)
