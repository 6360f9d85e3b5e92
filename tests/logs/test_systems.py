"""What the systems themselves have of a report that was sent to them. `make test-logs` installs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tools

# mlflow's own models use what SQLAlchemy 2.1 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

EXAMPLE = Path(__file__).parents[2] / "examples/simulated_gpu/outputs/profile"

if tools.HERE["logs"]():

    def sent(tmp_path, target, *more):
        """What the command says."""
        done = subprocess.run(
            [sys.executable, "-m", "tracekit", "log", str(EXAMPLE), "--to", target, *more],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"WANDB_MODE": "offline"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def test_tensorboard_has_a_series_of_every_number(tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sent(tmp_path, f"tensorboard={tmp_path / 'tb'}", "--run", "base")
        events = EventAccumulator(str(tmp_path / "tb/base"))
        events.Reload()
        steps = [event.step for event in events.Scalars("tracekit/step_time_s")]
        assert steps == [5, 6, 7]
        assert 0.06 < events.Scalars("tracekit/step_time_s")[0].value < 0.07
        assert "tracekit/report" in events.Tags()["tensors"]
        assert "<html" in (tmp_path / "tb/base/tracekit.html").read_text()

    def test_mlflow_has_metrics_by_step_and_the_page(tmp_path):
        from mlflow.tracking import MlflowClient

        uri = f"sqlite:///{tmp_path / 'runs.db'}"
        said = sent(tmp_path, f"mlflow={uri}")
        run_id = said.rpartition("run ")[2].split()[0]
        client = MlflowClient(tracking_uri=uri)
        history = client.get_metric_history(run_id, "tracekit/step_time_s")
        assert [metric.step for metric in history] == [5, 6, 7]
        assert client.get_run(run_id).info.status == "FINISHED"
        names = {entry.path for entry in client.list_artifacts(run_id, "tracekit")}
        assert names == {f"tracekit/report.{suffix}" for suffix in ("html", "md", "json")}
        sent(tmp_path, f"mlflow={uri}", "--run", run_id)
        assert len(client.get_metric_history(run_id, "tracekit/step_time_s")) == 6

    def test_weights_and_biases_has_an_offline_run(tmp_path):
        sent(tmp_path, "wandb=profiles")
        (folder,) = (tmp_path / "wandb").glob("offline-run-*")
        assert list(folder.glob("*.wandb"))
        (page,) = folder.rglob("*.html")
        assert "<html" in page.read_text()

    def test_what_a_system_refuses_is_said_in_two_lines(tmp_path):
        command = [sys.executable, "-m", "tracekit", "log", str(EXAMPLE), "--to", "mlflow=ftp://x"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "tracekit: mlflow at ftp://x: " in done.stderr
        assert "Traceback" not in done.stderr

    def test_the_json_that_is_kept_is_the_report(tmp_path):
        uri = f"sqlite:///{tmp_path / 'runs.db'}"
        run_id = sent(tmp_path, f"mlflow={uri}").rpartition("run ")[2].split()[0]
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        path = client.download_artifacts(run_id, "tracekit/report.json", str(tmp_path))
        assert json.loads(Path(path).read_text())["schema"] == "tracekit.report/2"
