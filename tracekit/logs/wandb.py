"""Export to a Weights & Biases run: metrics by step, the report as a page and an artifact; honors WANDB_MODE=offline."""

from __future__ import annotations

from pathlib import Path

import wandb

from tracekit.logs.points import PREFIX, ExportedReport
from tracekit.model.system.temporaries import new_folder

STEP = f"{PREFIX}/step"


def write(logged: ExportedReport, target: str, run: str | None) -> str:
    """Write to a run and return where it is; `run` is the id of one to resume."""
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
        # The profile's steps are not the steps of the run it is added to.
        started.define_metric(STEP)
        started.define_metric(f"{PREFIX}/*", step_metric=STEP)
        for step, numbers in logged.by_step().items():
            started.log({STEP: step, **numbers})
        started.summary.update(dict(logged.summary))
        started.log({f"{PREFIX}/report": wandb.Html(logged.page, inject=False)})
        _upload_report_files(started, logged)
    finally:
        started.finish()
    return f"run {started.id} of {target}: {started.url or started.dir}"


def _upload_report_files(started: wandb.Run, logged: ExportedReport) -> None:
    """Upload the HTML, Markdown and JSON report as an artifact."""
    artifact = wandb.Artifact(f"tracekit-{started.id}", type="profile-report")
    with new_folder() as folder:
        forms = {"html": logged.page, "md": logged.markdown, "json": logged.json}
        for suffix, text in forms.items():
            path = Path(folder, f"report.{suffix}")
            path.write_text(text, encoding="utf-8")
            artifact.add_file(str(path))
        started.log_artifact(artifact)
