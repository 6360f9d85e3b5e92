"""A run of Weights & Biases: metrics by step, and the report as a page and an artefact; offline where WANDB_MODE says so."""

from __future__ import annotations

from pathlib import Path

import wandb

from tracekit.logs.points import PREFIX, Logged
from tracekit.model.temporaries import new_folder

STEP = f"{PREFIX}/step"


def write(logged: Logged, target: str, run: str | None) -> str:
    """Where the run is; `run` is the id of one that goes on."""
    entity, _, project = target.rpartition("/")
    started = wandb.init(
        project=project,
        entity=entity or None,
        id=run,
        resume="allow" if run else None,
        name=None if run else logged.title[:128] or None,
        job_type="profile",
        settings=wandb.Settings(silent=True, console="off"),
    )
    try:
        # Steps of a profile are no steps of the run that it is added to.
        started.define_metric(STEP)
        started.define_metric(f"{PREFIX}/*", step_metric=STEP)
        for step, numbers in logged.by_step().items():
            started.log({STEP: step, **numbers})
        started.summary.update(dict(logged.summary))
        started.log({f"{PREFIX}/report": wandb.Html(logged.page, inject=False)})
        _keep_files(started, logged)
    finally:
        started.finish()
    return f"run {started.id} of {target}: {started.url or started.dir}"


def _keep_files(started: wandb.Run, logged: Logged) -> None:
    """Nothing; adds the page, the Markdown and the JSON as an artefact."""
    artifact = wandb.Artifact(f"tracekit-{started.id}", type="profile-report")
    with new_folder() as folder:
        forms = {"html": logged.page, "md": logged.markdown, "json": logged.json}
        for suffix, text in forms.items():
            path = Path(folder, f"report.{suffix}")
            path.write_text(text, encoding="utf-8")
            artifact.add_file(str(path))
        started.log_artifact(artifact)
