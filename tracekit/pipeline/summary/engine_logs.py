"""Facts of the first line about engine logs, where no profile was given."""

from __future__ import annotations

from tracekit.job.engines.records import SYSTEM_TITLES, list_engine_records
from tracekit.job.engines.requests import list_request_times
from tracekit.model.text.labels import choose_plural
from tracekit.model.trace import Measurements
from tracekit.model.units import format_quantity

ENGINE_KINDS = frozenset({"engine-log"})


def has_only_engine_logs(measured: Measurements) -> bool:
    """Whether all sources are logs of engines and machines: they have neither ranks nor GPU work."""
    kinds = {*measured.frame("recordings").values("kind")} - {None}
    return bool(kinds) and kinds <= ENGINE_KINDS


def describe_engine_logs(measured: Measurements) -> str:
    """Describe the engines and the time that their logs cover: `vLLM, 2 engines, 390 s`."""
    if not has_only_engine_logs(measured):
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
