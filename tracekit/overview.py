"""The first screen: who ran, what a step costs, where it goes, and what was not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tracekit import gpu_shares
from tracekit.crews import MEMBER, crews
from tracekit.pooling import (
    ORIGIN_NOTES,
    STEP_BOUNDS,
    devices_of,
    job,
    label_headings,
    of_step,
    plain,
    stage_walls,
    summed,
    text_or_none,
    whole_gpu_time,
)
from tracekit.report import Heading, Metric, Sheet
from tracekit.sampling import SAMPLED
from tracekit.selection import LEFT_OUT
from tracekit.sheets import sheet
from tracekit.trace import Measurements
from tracekit.units import numbers, show

ENGINE = "engine"
"""The fact that says how it was read, where that was not by this machine alone."""


MAX_PIECES = 12
"""Most pieces of a list of ranks or steps, ranges among them."""


def identity(measured: Measurements) -> tuple[str, ...]:
    """The facts of the first line: tool, ranks, steps, hardware; only what was recorded."""
    captures = plain(measured["captures"])
    facts = [
        str(measured.facts.get("title", "")),
        "SIMULATED DATA" if measured.facts.get("simulated") else "",
        _runs(captures),
        _ranks(captures),
        _roles(captures),
        _steps(measured),
        _versions(measured),
        f"only {only_stages(measured)}" if only_stages(measured) else "",
        _hardware(measured, captures),
        _files(measured),
        _checked(measured),
        str(measured.facts.get(ENGINE, "")),
    ]
    return tuple(fact for fact in facts if fact)


def _runs(captures: pd.DataFrame) -> str:
    runs = captures["run"].dropna().unique().tolist()
    return f"{len(runs)} runs" if len(runs) > 1 else ""


def _ranks(captures: pd.DataFrame) -> str:
    """`ranks 0–7 of 8`; a world size only when all agree on it."""
    ranks = sorted(int(r) for r in captures["rank"].dropna().unique())
    worlds = {int(w) for w in captures["world_size"].dropna().unique()}
    if not ranks:
        return "ranks unknown"
    of = f" of {worlds.pop()}" if len(worlds) == 1 else ""
    return _listed("rank", ranks, of)


def _listed(word: str, values: Sequence[int], of: str = "") -> str:
    """`ranks 0–7 of 8`; `64 ranks of 1000: 0, 15, 31 …` where they lie too scattered to be all named."""
    short = numbers(values, MAX_PIECES)
    if short.endswith("…"):
        return f"{len(values):,} {word}s{of}: {short}"
    return f"{word}{'' if len(values) == 1 else 's'} {short}{of}"


def _roles(captures: pd.DataFrame) -> str:
    roles = captures["role"].dropna().unique().tolist()
    return (
        ", ".join(map(str, roles))
        if 0 < len(roles) <= 4
        else f"{len(roles)} roles"
        if roles
        else ""
    )


def _steps(measured: Measurements) -> str:
    walls = job(measured).walls
    known = sorted({int(step) for step in walls["step"].dropna()})
    if known:
        return _listed("step", known)
    captures = "1 capture" if len(walls) == 1 else f"{len(walls):,} captures"
    return f"{captures} without a step number" if len(walls) else ""


def _versions(measured: Measurements) -> str:
    versions = measured.facts.get("versions")
    pairs = sorted(versions.items()) if isinstance(versions, dict) else []
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _hardware(measured: Measurements, captures: pd.DataFrame) -> str:
    """`8 × H100`, the number of devices that were seen; or that there was none."""
    if not (captures["device_op_count"] > 0).any():
        only = set(captures["tool"].dropna()) == {"torch_memory"}
        return "only memory was recorded" if only else "no GPU activity recorded"
    seen = plain(measured["gpu_time"])
    count = devices_of(seen)
    names = Counter(captures["device_name"].dropna().tolist())
    model = names.most_common(1)[0][0] if len(names) == 1 else "GPU" if not names else "mixed GPUs"
    return f"{count} × {model}"


def _files(measured: Measurements) -> str:
    """`24 files, 3.1 GiB`: what was read."""
    files = {source.name: source.size_bytes for source in measured.sources}
    count = len(files)
    return f"{count:,} {'file' if count == 1 else 'files'}, {show(sum(files.values()), 'bytes')}"


def _checked(measured: Measurements) -> str:
    """`checked by 8 files of nsys`: what a second tool recorded of the same steps."""
    if measured.check is None:
        return ""
    tools = ", ".join(sorted({source.tool for source in measured.check.sources}))
    return f"checked by {tools}: {_files(measured.check)}"


def headline(measured: Measurements) -> tuple[Metric, ...]:
    """The numbers of the second line: the step, what the GPUs did of it, what no stage explains; of snapshots the peaks."""
    steps = job(measured)
    if steps.step_ns is None:
        return _peaks(measured)
    walls = steps.walls
    several = len(walls) > 1
    low, high = (
        (float(walls["wall_ns"].min()), float(walls["wall_ns"].max())) if several else (None, None)
    )
    origins, runs = walls["origin"].unique().tolist(), len(walls["run"].unique())
    name = ORIGIN_NOTES[str(origins[0])] if len(origins) == 1 else "step"
    if runs > 1:
        name = f"{name}, mean of {runs} runs"
    found = [Metric("step_wall", steps.step_ns, "ns", "lower", low, high, name, STEP_BOUNDS)]
    found += _gpu_shares(measured)
    attributed = walls[walls["attributed_ns"].notna() & (walls["origin"] != "stage")]
    if attributed["wall_ns"].sum() > 0 and not only_stages(measured):
        gap = 1 - float(attributed["attributed_ns"].sum()) / float(attributed["wall_ns"].sum())
        found.append(Metric("unattributed_ratio", gap, "ratio", "lower", label="in no stage"))
    return tuple(found)


def _peaks(measured: Measurements) -> tuple[Metric, ...]:
    """The highest levels of any GPU that memory snapshots tell of, else timelines; none without both."""
    rows = plain(measured["snapshot_levels"])
    rows = rows[rows["memory"] == "device"]
    told = [
        ("peak_requested", "peak_bytes", "most requested on one GPU"),
        ("peak_reserved", "reserved_peak_bytes", "most reserved on one GPU"),
    ]
    if not len(rows):
        rows = plain(measured["category_peaks"])
        told = [("peak_tensors", "peak_bytes", "most held by tensors on one device")]
    return tuple(
        Metric(name, int(rows[column].max()), "bytes", "lower", label=label)
        for name, column, label in told
        if rows[column].notna().any()
    )


def only_stages(measured: Measurements) -> str:
    """The stages that alone were asked for; nothing when all were."""
    asked = measured.facts.get("stages")
    return ", ".join(map(str, asked)) if isinstance(asked, list) else ""


_PARTS = (
    ("compute_ratio", "compute"),
    ("exposed_comm_ratio", "exposed comm"),
    ("copy_ratio", "copies"),
    ("idle_ratio", "idle"),
)


def _gpu_shares(measured: Measurements) -> list[Metric]:
    """What GPUs did during the steps, Σ over devices; of the whole capture where no step is known."""
    rows = whole_gpu_time(measured)
    if not len(rows):
        return []
    windows = ("stage",) if only_stages(measured) else ("step", "capture")
    window = next((name for name in windows if (rows["window"] == name).any()), "capture")
    chosen = rows[rows["window"] == window]
    total = gpu_shares.shares(summed(chosen, ["window"], gpu_shares.SUMMED)).iloc[0]
    values: dict[str, Any] = {name: total.get(name) for name, _ in _PARTS}
    values["copy_ratio"] = total["exposed_memcpy_ratio"] + total["exposed_memset_ratio"]
    better = {"compute_ratio": "higher"}
    return [
        Metric(name, None if pd.isna(values[name]) else float(values[name]), "ratio",
               "higher" if name in better else "lower", label=label)
        for name, label in _PARTS
    ]  # fmt: skip


def where_it_goes(measured: Measurements) -> Sheet | None:
    """The one table of the first screen: stages by wall, with how busy their GPUs were."""
    stages = stage_walls(measured)
    steps = job(measured)
    if not len(stages) or steps.step_ns is None:
        return None
    stages["share_ratio"] = of_step(stages, steps)
    has_gpu = measured.has("gpu_time") and len(measured["gpu_time"]) > 0
    if has_gpu:
        busy = gpu_shares.by_stage(measured)[["run", "role", "canonical", "busy_ratio"]]
        stages = stages.merge(busy, on=["run", "role", "canonical"], how="left")
    slowest = _slowest(measured)
    stages["slowest"] = [
        slowest.get((run, text_or_none(role), stage))
        for run, role, stage in zip(stages["run"], stages["role"], stages["canonical"], strict=True)
    ]
    stages = stages.sort_values("wall_ns", ascending=False, kind="stable")
    headings = (
        *label_headings(measured),
        Heading("canonical", "stage"),
        Heading("wall_ns", "wall", "ns", "Host wall per step: longest rank, mean over steps."),
        Heading(
            "share_ratio",
            "share",
            "ratio",
            "Of the mean step wall; stages of different roles may overlap.",
        ),
        *(
            (Heading("busy_ratio", "GPU busy", "ratio", "Of the stage's wall, over its GPUs."),)
            if has_gpu
            else ()
        ),
        Heading("ranks", "ranks", "count"),
        Heading(
            "slowest",
            "most own work",
            doc="The rank that works longest in it, not counting waits in collectives, and by how much "
            "more than the median of the others.",
        ),
    )
    return sheet("overview", "Where the step goes", headings, stages)


WORTH_NAMING, WORTH_OF_STEP = 0.05, 0.01
"""How much more own work than the others' median, and how much of the step, gets a rank named."""


def _slowest(measured: Measurements) -> dict[tuple[object, str | None, object], str]:
    """For each (run, role, stage) the rank with most own work per step, where it stands out."""
    found: dict[tuple[object, str | None, object], tuple[float, str]] = {}
    steps = job(measured)
    for crew in crews(measured):
        by = ["canonical", *MEMBER]
        own = crew.work.groupby(by, dropna=False, sort=True)["own_ns"].mean().reset_index()
        for stage, mine in own.dropna(subset="canonical").groupby("canonical", sort=False):
            values = mine["own_ns"].to_numpy(float)
            longest = int(values.argmax())
            others = float(np.median(np.delete(values, longest))) if len(values) > 1 else 0.0
            over = values[longest] / others - 1 if others > 0 else 0.0
            if values[longest] - others < WORTH_OF_STEP * (steps.of(crew.run).step_ns or 0.0):
                continue
            key = (crew.run, text_or_none(crew.role), stage)
            if over >= WORTH_NAMING and over > found.get(key, (0.0, ""))[0]:
                rank = int(mine["rank"].iloc[longest])
                found[key] = (over, f"rank {rank} (+{show(over, 'ratio')})")
    return {key: text for key, (_, text) in found.items()}


def unseen(measured: Measurements) -> tuple[str, ...]:
    """What the numbers do not hold: sources that failed or are damaged, what was left out as asked, and files left aside."""
    lines = [f"{failure.source} ({failure.problem})" for failure in measured.failures]
    lines += [
        f"{note.source} ({note.message})" for note in measured.notes if note.severity == "data_loss"
    ]
    if len(lines) > MAX_UNSEEN:
        lines = [*lines[:MAX_UNSEEN], f"{len(lines) - MAX_UNSEEN:,} more such sources"]
    lines += [note.message for note in measured.notes if note.code in (SAMPLED, LEFT_OUT)]
    ignored = measured.facts.get("ignored")
    return (*lines, *(ignored if isinstance(ignored, list) else ()))


MAX_UNSEEN = 8
"""Most sources named one by one on the first screen; all of them are among the remarks."""


def _options(measured: Measurements) -> str:
    """What the profilers recorded besides, as far as the traces say."""
    options = measured.facts.get("options")
    pairs = sorted(options.items()) if isinstance(options, dict) else []
    return ", ".join(f"{name} {value}" for name, value in pairs)


_TYPE_SHARE = 0.05
"""A type with a smaller share of the FLOPs of matrix products says little of a run."""


def _number_types(measured: Measurements) -> str:
    """The number types of its matrix products, where the operands of ops were recorded."""
    rows = plain(measured["matrix_products"])
    if not len(rows):
        return ""
    rows = rows[rows["type"].notna() & (rows["flop_count"] > 0).fillna(value=False)]
    flops = rows["flop_count"].astype("float64").groupby(rows["type"].astype(str)).sum()
    return ", ".join(sorted(flops.index[flops >= _TYPE_SHARE * flops.sum()]))


def fingerprint(measured: Measurements) -> tuple[tuple[str, str], ...]:
    """What two reports must agree on to be compared: hardware, world size, roles, stages, versions, profiler options."""
    captures = plain(measured["captures"])
    stages = stage_walls(measured)

    def listed(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    pairs = {
        "gpu": listed(captures["device_name"].dropna()),
        "world_size": listed(captures["world_size"].dropna()),
        "ranks": listed(captures["rank"].dropna()),
        "roles": listed(captures["role"].dropna()),
        "backend": listed(captures["backend"].dropna()),
        "stages": listed(stages["canonical"]) if len(stages) else "",
        "versions": _versions(measured),
        "profiler options": _options(measured),
        "number types": _number_types(measured),
    }
    return tuple((name, value) for name, value in pairs.items() if value)
