"""Console output with a heading for each step and its values below: NeMo-RL and AReaL."""

from __future__ import annotations

from itertools import pairwise

from tracekit.model.text.patterns import compile_lazily
from tracekit.readers.driver_log.console_state import ConsoleLog, parse_printed_number

NEMO_HEADING = compile_lazily(r"={8,} Step ([0-9]{1,18})(?:/[0-9]{1,18})? ={8,}")
NEMO_TIMER = compile_lazily(r"[•*-] ([^:]{1,300}): ([0-9]{1,15}(?:\.[0-9]{1,12})?)s(?: \([0-9.]{1,12}%\))?\s*\Z")
NEMO_TOTALS = {"Total step time": "total_step_time", "Total validation time": "total_validation_time"}
"""Totals that NeMo-RL prints in words, with the names of their timers."""

_NEMO_NUMBER = compile_lazily(r"[•*-] ([^:]{1,80}): ([-+.0-9eE]{1,40})(%?)\s*\Z")
_NEMO_NAMES = {
    "Loss": "train/loss",
    "Avg Reward": "train/reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Average Token Imbalance": "performance/average_token_imbalance",
    "Mean Total Tokens per Sample": "performance/mean_total_tokens_per_sample",
    "E2E (Samples/sec/gpu)": "performance/samples_per_sec_per_gpu",
    "E2E (Tokens/sec/gpu)": "performance/tokens_per_sec_per_gpu",
    "Policy Training (Tokens/sec/gpu)": "performance/policy_training_tokens_per_sec_per_gpu",
    "Generation Worker Group (Tokens/sec/gpu)": "performance/generation_tokens_per_sec_per_gpu",
}
"""Values that NeMo-RL prints in words, with the names that its loggers give them."""

AREAL_HEADING = compile_lazily(r"Epoch [0-9]{1,18}/[0-9]{1,18} Step [0-9]{1,18}/[0-9]{1,18} Train step ([0-9]{1,18})/")
MAX_CELLS = 64


def note_nemo_heading(text: str, number: int, log: ConsoleLog) -> None:
    """Remember the step whose timers follow."""
    del number
    match = NEMO_HEADING.search(text)
    if match:
        log.heading = int(match[1])


def add_nemo_value(text: str, number: int, log: ConsoleLog) -> None:
    """Add a timer or another value below the heading of its step."""
    if log.heading is None:
        return
    timer = NEMO_TIMER.search(text)
    if timer:
        name = NEMO_TOTALS.get(timer[1], timer[1])
        kind = "validation" if name == "total_validation_time" else "train"
        log.values.add_record(number, log.heading, {f"timing/{kind}/{name}": float(timer[2])})
        return
    printed = _NEMO_NUMBER.search(text)
    named = _NEMO_NAMES.get(printed[1]) if printed else None
    value = parse_printed_number(printed[2]) if printed else None
    if printed and named and value is not None:
        log.values.add_record(number, log.heading, {named: value / 100 if printed[3] else value})


def note_areal_heading(text: str, number: int, log: ConsoleLog) -> None:
    """Remember the training step whose table follows."""
    del number
    match = AREAL_HEADING.search(text)
    if match:
        log.heading = int(match[1])


def add_areal_row(text: str, number: int, log: ConsoleLog) -> None:
    """Add the values in a row of AReaL's table: each follows its name."""
    if log.heading is None:
        return
    cells = [cell.strip() for cell in text.split("│", MAX_CELLS)[1:MAX_CELLS]]
    values: dict[str, object] = {}
    for name, cell in pairwise(cells):
        value = parse_printed_number(cell)
        if value is not None and name and parse_printed_number(name) is None:
            values[name] = value
    log.values.add_record(number, log.heading, values)
