"""Facts of the first line about logs of engines, machines and Ray, where no profile was given."""

from __future__ import annotations

from tracekit.job.engines.records import SYSTEM_TITLES, list_engine_records
from tracekit.job.engines.requests import list_request_times
from tracekit.job.ray.tasks import list_ray_runs
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

ENGINE_LOG, RAY_TIMELINE = "engine-log", "ray-timeline"
ENGINE_KINDS = frozenset({ENGINE_LOG, RAY_TIMELINE})


def has_only_engine_logs(measured: Measurements) -> bool:
    """Whether all sources are logs of engines, machines and Ray: they have neither ranks nor GPU work."""
    kinds = {*measured.frame("recordings").values("kind")} - {None}
    return bool(kinds) and kinds <= ENGINE_KINDS


def has_no_profile(measured: Measurements) -> bool:
    """Whether all sources are such logs or those of drivers."""
    kinds = {*measured.frame("recordings").values("kind")} - {None}
    return bool(kinds) and kinds <= ENGINE_KINDS | {"driver-log"}


def describe_ray_timelines(measured: Measurements) -> str:
    """Describe the timelines of Ray: `Ray timeline, 94 tasks on 5 workers`; empty without any."""
    timelines = int(measured.frame("recordings").equals("kind", RAY_TIMELINE).sum())
    if not timelines:
        return ""
    runs = list_ray_runs(measured)
    tasks, workers = sum(len(run.tasks) for run in runs), sum(len(run.workers) for run in runs)
    where = f"{workers:,} {choose_plural(workers, 'worker')}"
    return f"Ray {choose_plural(timelines, 'timeline')}, {tasks:,} {choose_plural(tasks, 'task')} on {where}"


def describe_engine_logs(measured: Measurements) -> str:
    """Describe the engines and the time that their logs cover: `vLLM, 2 engines, 390 s`."""
    if not has_only_engine_logs(measured) or not measured.frame("recordings").equals("kind", ENGINE_LOG).any():
        return ""
    records = list_engine_records(measured)
    if not records:
        requests = sum(times.requests for times in list_request_times(measured))
        return (
            f"{requests:,} recorded {choose_plural(requests, 'request')}"
            if requests
            else "GPUs of a machine, as sampled"
        )
    systems = ", ".join(dict.fromkeys(SYSTEM_TITLES.get(record.system, record.system) for record in records))
    count = len({(record.run, record.system, record.engine) for record in records})
    spans = [float(record.at_s.max()) for record in records if record.at_s is not None]
    parts = [systems, f"{count} {choose_plural(count, 'engine')}"]
    if spans and max(spans) > 0:
        parts.append(format_quantity(round(max(spans) * 1e9), "ns"))
    return ", ".join(parts)
