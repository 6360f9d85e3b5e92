"""Export to an MLflow run: metrics by step, and the report as artifacts."""

from __future__ import annotations

import time

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from tracekit.logs.points import ExportedReport

EXPERIMENT = "tracekit"
MOST_AT_ONCE = 1_000
"""Metrics per request, MLflow's limit."""


def write(logged: ExportedReport, target: str, run: str | None) -> str:
    """Write to the MLflow run with id `run`, or to a new one in the experiment `tracekit`; return where it is."""
    client = MlflowClient(tracking_uri=target)
    run_id = run or _create_mlflow_run(client, logged.title)
    now_ms = int(time.time() * 1000)
    metrics = [Metric(point.name, point.value, now_ms, point.step) for point in logged.points]
    last = max((point.step for point in logged.points), default=0)
    metrics += [Metric(name, value, now_ms, last) for name, value in logged.summary.items()]
    for first in range(0, len(metrics), MOST_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[first : first + MOST_AT_ONCE])
    client.log_text(run_id, logged.page, "tracekit/report.html")
    client.log_text(run_id, logged.markdown, "tracekit/report.md")
    client.log_text(run_id, logged.json, "tracekit/report.json")
    if run is None:
        client.set_terminated(run_id)
    return f"run {run_id} at {target}"


def _create_mlflow_run(client: MlflowClient, title: str) -> str:
    """Create a run and return its id."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    experiment_id = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
    created = client.create_run(experiment_id, run_name=title[:250] or None)
    run_id: str = created.info.run_id
    return run_id
