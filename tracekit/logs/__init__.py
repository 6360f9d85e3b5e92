"""Export of a report to experiment trackers: one module per system, listed in `SYSTEMS`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tracekit.logs.points import ExportedReport
from tracekit.model.errors import TracekitError
from tracekit.model.records import dataclass
from tracekit.model.text.labels import did_you_mean

Sent = str
"""Where to find the exported report, as text for the user."""


@dataclass(frozen=True, slots=True)
class ExperimentTracker:
    """An experiment tracker: its name (also its module here), the package it needs, and a description of its target."""

    name: str
    package: str
    target: str

    @property
    def write(self) -> Callable[[ExportedReport, str, str | None], Sent]:
        """The function `write(logged, target, run)` of its module, which is imported now."""
        module = import_module(f"tracekit.logs.{self.name}")
        function: Callable[[ExportedReport, str, str | None], Sent] = module.write
        return function


SYSTEMS = (
    ExperimentTracker("tensorboard", "tensorboard", "a directory of event files"),
    ExperimentTracker("mlflow", "mlflow", "a tracking URI (a directory, sqlite:///FILE or a server)"),
    ExperimentTracker("wandb", "wandb", "a project, or ENTITY/PROJECT"),
)


def send_report(logged: ExportedReport, name: str, target: str, run: str | None) -> Sent:
    """Send a report to a system and return where to find it; `run` names an existing run to add it to.

    Raises `TracekitError` for an unknown system, a missing package, or an error of the system.
    """
    names = [system.name for system in SYSTEMS]
    if name not in names:
        near = did_you_mean(name, names)
        raise TracekitError(f"no system {name!r} to log to{near}", f"there are: {', '.join(names)}")
    system = SYSTEMS[names.index(name)]
    try:
        write = system.write
    except ImportError as error:
        raise TracekitError(
            f"{name} needs the package {system.package}: {error}", f"pip install {system.package}"
        ) from None
    try:
        return write(logged, target, run)
    except TracekitError:
        raise
    except Exception as error:
        raise TracekitError(
            f"{name} at {target}: {type(error).__name__}: {error}", f"the target of {name} is {system.target}"
        ) from error
