"""HTA 0.5.0: load, temporal breakdown, GPU kernel breakdown. Runs in HTA's own environment.

    python peer_hta.py BACKEND TRACE.json.gz [TRACE ...]     BACKEND: json (its default), ijson,
                                                             ijson_batched, ijson_batch_and_compress
Several traces are loaded as ranks 0, 1, ...: HTA then starts a process for each core by itself.
"""

from __future__ import annotations

import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measurement import measure, write_line

warnings.filterwarnings("ignore")  # its pandas deprecations, once per call

from hta.configs.parser_config import ParserBackend, ParserConfig  # noqa: E402
from hta.trace_analysis import TraceAnalysis  # noqa: E402

logging.disable(logging.CRITICAL)


def analyse(paths: list[str]) -> tuple[Any, Any]:
    """HTA's object and its temporal breakdown, after the calls that are timed."""
    analysis = TraceAnalysis(trace_files=dict(enumerate(paths)))
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    return analysis, breakdown


def main() -> None:
    """Make one measurement of the files named on the command line."""
    backend, *paths = sys.argv[1:]
    paths = [str(Path(path).resolve()) for path in paths]  # HTA seeks relative ones elsewhere
    config = ParserConfig.get_default_cfg()
    if backend != "json":  # its default stays wholly untouched
        config.set_parser_backend(ParserBackend(backend))
        ParserConfig.set_default_cfg(config)
    (analysis, breakdown), figures = measure(lambda: analyse(paths))
    frame = analysis.t.traces[0]
    kernel = analysis.t.symbol_table.get_sym_id_map()["kernel"]
    durations = frame.loc[(frame["cat"] == kernel) & frame["stream"].ne(-1), "dur"]
    first = breakdown.iloc[0]
    write_line(
        figures,
        rows=len(frame),
        kernels=len(durations),
        kernel_ns=int(durations.sum()) * 1000,
        busy_ns=int(first["kernel_time(us)"] - first["idle_time(us)"]) * 1000,
        version=f"{version('HolisticTraceAnalysis')}, pandas {version('pandas')}",
    )


if __name__ == "__main__":
    main()
