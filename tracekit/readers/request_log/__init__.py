"""Requests by their own traces: OpenTelemetry spans of vLLM and of agents, and verl's dumped rollouts.

These forms are read, as JSON lines: OTLP spans as the collector's file exporter writes them; samples of verl's
`trainer.rollout_data_dir`, if they carry times. Only numbers are kept: no prompt, response, model or user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tracekit.model.tables.arrays import Frames
from tracekit.model.text.patterns import compile_lazily
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers.lines import note_log_losses, read_log
from tracekit.readers.loss import DataLoss
from tracekit.readers.request_log.samples import add_dumped_sample, is_rollout_line
from tracekit.readers.request_log.spans import SpanRows, add_spans, parse_line
from tracekit.readers.request_rows import MAX_REQUESTS

_SPANS = compile_lazily(r'\s*\{\s*"resourceSpans"\s*:')


def sniff(head: bytes) -> bool:
    """Check whether text begins like spans of OpenTelemetry or a dumped rollout of verl."""
    if not head.lstrip().startswith(b"{") or b"\0" in head:
        return False
    text = head.decode("utf-8", "replace")
    return _SPANS.match(text) is not None or is_rollout_line(text.partition("\n")[0])


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the file as one Trace with the table `engine_requests`.

    Raises only `TraceFormatError`.
    """
    log, losses = read_log(Path(source.path), SpanRows, _add_request_lines, on_bytes)
    tables = Frames({"engine_requests": log.rows.make_table()} if want.table("engine_requests") else {})
    meta = {"element_count": len(log.rows.line), "absolute_time": False}
    return [Trace(source, tables, tuple(_note_skipped_requests(log, losses, source.name)), meta)]


def _add_request_lines(rows: Iterator[tuple[int, str | None]], log: SpanRows) -> None:
    """Add the requests of all lines; count lines over the size limit and lines that are not JSON."""
    for number, line in rows:
        if line is None:
            log.too_long += 1
            continue
        logged = parse_line(line)
        if logged is None:
            log.damaged += bool(line.strip())
        elif "resourceSpans" in logged:
            add_spans(logged, number, log)
        else:
            add_dumped_sample(logged, number, log.rows)


def _note_skipped_requests(log: SpanRows, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Yield notes on skipped lines and requests."""
    long_lines = "lines of over 1 MiB were passed over: export smaller batches (send_batch_size)"
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-long-line", long_lines, log.too_long),
        ("warning", "log-line", "lines that are not whole JSON were passed over", log.damaged),
        ("warning", "log-cut", f"requests beyond the first {MAX_REQUESTS:,} were left out", log.rows.over),
        ("info", "log-empty", "no request with times was recorded", int(not log.rows.line)),
    )
    return note_log_losses(losses, counts, source)
