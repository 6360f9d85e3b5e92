"""HTA's eight analyses of one trace or of many ranks, as one program asks for them. Runs in HTA's own environment.

    python peer_hta_eight.py TRACE.json.gz [TRACE ...]

Several traces are loaded as ranks 0, 1, …: HTA then starts a process for each core by itself. An analysis that cannot
be made of these traces is named in what is printed, and costs what it cost until it broke.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

from measurement import measure, write_line

warnings.filterwarnings("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

logging.disable(logging.CRITICAL)

PLAIN = ("get_queue_length_summary", "get_memory_bw_summary")
DRAWN = (
    "get_temporal_breakdown",
    "get_gpu_kernel_breakdown",
    "get_idle_time_breakdown",
    "get_comm_comp_overlap",
    "get_cuda_kernel_launch_stats",
    "get_gpu_user_annotation_breakdown",
)
"""Those that draw unless they are told not to."""


def analyse(paths: list[str]) -> list[str]:
    """The analyses that broke, by name."""
    analysis = TraceAnalysis(trace_files=dict(enumerate(paths)))
    broken = []
    for name in (*DRAWN, *PLAIN):
        options = {"visualize": False} if name in DRAWN else {}
        try:
            getattr(analysis, name)(**options)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises, the others are asked
            broken.append(f"{name}: {type(error).__name__}")
    return broken


def main() -> None:
    """Make one measurement of the files named on the command line."""
    broken, figures = measure(lambda: analyse([str(Path(path).resolve()) for path in sys.argv[1:]]))
    write_line(figures, broken=broken)


if __name__ == "__main__":
    main()
