"""Export to TensorBoard event files, with the report as text in them and as an HTML file next to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tracekit.logs.points import ExportedReport
from tracekit.model.system.files import write_atomically

_STRING = 7
"""Tensor type of strings (DT_STRING)."""


def write(logged: ExportedReport, target: str, run: str | None) -> str:
    """Write an event file and the HTML report; return their location. `run` is a directory below the target."""
    folder = Path(target, run) if run else Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    try:
        for step, numbers in logged.by_step().items():
            _add_step_event(writer, _make_scalar_summaries(numbers), step)
        last = max(logged.by_step(), default=0)
        values = [*_make_scalar_summaries(logged.summary), _make_text_summary("tracekit/report", logged.markdown)]
        _add_step_event(writer, values, last)
    finally:
        writer.close()
    write_atomically(folder / "tracekit.html", logged.page.encode())
    return f"{folder}: tensorboard --logdir {target}; the page is {folder / 'tracekit.html'}"


def _make_scalar_summaries(numbers: Mapping[str, float]) -> list[summary_pb2.Summary.Value]:
    """Convert values by name to scalar summaries."""
    return [summary_pb2.Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]


def _add_step_event(writer: EventFileWriter, values: list[summary_pb2.Summary.Value], step: int) -> None:
    """Add one event of a step."""
    writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values)))


def _make_text_summary(tag: str, text: str) -> summary_pb2.Summary.Value:
    """Build a summary for TensorBoard's text plugin."""
    of_text = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    tensor = tensor_pb2.TensorProto(dtype=_STRING, string_val=[text.encode()])
    return summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=summary_pb2.SummaryMetadata(plugin_data=of_text))
