"""Logs of rollout engines and machines: running and waiting requests, KV cache, GPUs.

These forms are read: server logs of vLLM (V0 and V1) and SGLang; scrapes of their Prometheus endpoints, one or
several in a file; CSV of `nvidia-smi --query-gpu` with its header; tables of `nvidia-smi dmon`, `nvidia-smi pmon` and
`dcgmi dmon`. All other lines are skipped, among them those with prompts. rl-insight writes no metrics file: its gauges are on a Prometheus endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tracekit.model.tables.arrays import Frames
from tracekit.model.trace import Note, NoteSeverity, Source, Trace, Want
from tracekit.readers.engine_log.machines import MachineColumns, add_machine_line, parse_machine_header
from tracekit.readers.engine_log.scrapes import (
    SAMPLE_HINT,
    SCRAPE_STARTS,
    Scrape,
    add_scrape_line,
    finish_scrape,
    keep_scrape_time,
)
from tracekit.readers.engine_log.server_lines import SERVER_MARKS, add_server_line
from tracekit.readers.engine_log.values import MAX_VALUES, EngineValues
from tracekit.readers.lines import note_log_losses, read_log
from tracekit.readers.loss import DataLoss

_SNIFFED = (
    *(mark for mark in SERVER_MARKS if mark != "args: {"),
    *("vLLM API server version", "vllm cache_config_info", "EngineCore_", "Capturing CUDA graph shapes"),
)
"""Texts that only a server prints; a server's start-up may be longer than the head of the file."""

_HEADER_LINES = 20


def sniff(head: bytes) -> bool:
    """Check whether text begins like a log of an engine or a machine."""
    if not head or b"\0" in head:
        return False
    text = head.decode("utf-8", "replace").removeprefix("\ufeff")
    if text.lstrip().startswith(("{", "[{", "[[", "<")):
        return False
    if any(mark in text for mark in _SNIFFED):
        return True
    lines = text.splitlines()
    if any(parse_machine_header(line) for line in lines[:_HEADER_LINES]):
        return True
    return ":" in text and any(SAMPLE_HINT.match(line) for line in lines)


def read(source: Source, want: Want, on_bytes: Callable[[int], None] | None = None) -> list[Trace]:
    """Read the log as one Trace with the table `engine_log`.

    Raises only `TraceFormatError`.
    """
    log, losses = read_log(Path(source.path), EngineValues, _add_engine_lines, on_bytes)
    tables = log.make_tables(want)
    meta = {"element_count": len(log.value) or len(log.device_memory.line), "absolute_time": False}
    return [Trace(source, Frames(tables), tuple(_note_skipped_engine_lines(log, losses, source.name)), meta)]


def _add_engine_lines(rows: Iterator[tuple[int, str | None]], log: EngineValues) -> None:
    """Add the values of all lines to the log; count lines over the size limit."""
    scrape = Scrape()
    columns: MachineColumns | None = None
    for number, line in rows:
        if line is None:
            log.too_long += 1
        elif scrape.line or line.startswith(SCRAPE_STARTS):
            add_scrape_line(line, number, scrape, log)
        elif header := _find_header(line):
            columns = header
        elif columns is not None:
            add_machine_line(line, number, columns, log)
        else:
            add_server_line(line, number, log)
            keep_scrape_time(line, scrape)
    finish_scrape(scrape, log)


def _find_header(line: str) -> MachineColumns | None:
    """Parse the header of a machine's table; None for other lines."""
    return parse_machine_header(line) if line.startswith("#") or "timestamp" in line else None


def _note_skipped_engine_lines(log: EngineValues, losses: list[DataLoss], source: str) -> Iterator[Note]:
    """Yield notes on skipped lines and values."""
    counts: tuple[tuple[NoteSeverity, str, str, int], ...] = (
        ("warning", "log-long-line", "lines of over 1 MiB were passed over", log.too_long),
        ("info", "log-not-finite", "logged values that are not finite numbers were left out", log.not_finite),
        (
            "warning",
            "log-cut",
            f"values beyond the first {MAX_VALUES:,} were left out",
            log.over + log.requests.over + log.device_memory.over,
        ),
        (
            "info",
            "log-empty",
            "an engine's log without any statistics",
            int(not (log.value or log.requests.line or log.device_memory.line)),
        ),
    )
    return note_log_losses(losses, counts, source)
