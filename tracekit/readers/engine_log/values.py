"""Numbers of an engine's or a machine's log, collected while its lines are read."""

from __future__ import annotations

import math
from dataclasses import field
from datetime import UTC, datetime

import numpy as np

from tracekit.model.records import dataclass
from tracekit.model.tables import TABLES
from tracekit.model.tables.arrays import Coded, Columns, choose_narrowest, make_nullable_numbers
from tracekit.model.trace import Want
from tracekit.readers.engine_log.device_memory import DeviceMemoryLines
from tracekit.readers.request_rows import RequestRows

MAX_VALUES = 2_000_000
"""Most values kept from one log."""

MAX_NAME = 300
"""Longest name of an engine or a key kept, in characters."""

MAX_ENGINES = 10_000
"""Most engines or GPUs kept from one log."""

NO_YEAR = 2000
"""Year in which the clock of a log without a year starts: a leap year, so every date exists."""

DAY_NS = 86_400 * 10**9


class LogClock:
    """Converts the times of one log's lines to ns; a date without a year that is months before the last one begins a new year."""

    def __init__(self) -> None:
        """Start in `NO_YEAR`."""
        self._year = NO_YEAR
        self._last_ns = 0
        self._days: dict[tuple[int, int, int], int | None] = {}

    def convert(self, year: str | None, month: str, day: str, time: tuple[str, str, str, str | None]) -> int | None:
        """Convert a date and (hour, minute, second, decimals) to ns; None for a date that does not exist."""
        date = int(year) if year else self._year, int(month), int(day)
        ns = self._count_ns(date, time)
        if ns is None:
            return None
        if not year and ns < self._last_ns - 180 * DAY_NS:
            self._year += 1
            ns = self._count_ns((self._year, *date[1:]), time) or ns
        self._last_ns = ns
        return ns

    def _count_ns(self, date: tuple[int, int, int], time: tuple[str, str, str, str | None]) -> int | None:
        """Count the ns since 1970 on the log's own clock."""
        if date not in self._days:
            if len(self._days) > 1000:
                self._days.clear()
            try:
                midnight = datetime(*date, tzinfo=UTC)
                self._days[date] = round(midnight.timestamp()) * 10**9
            except (ValueError, OverflowError):
                self._days[date] = None
        day_ns = self._days[date]
        if day_ns is None:
            return None
        hour, minute, second, decimals = time
        part = int((decimals or "0")[:9].ljust(9, "0"))
        return day_ns + (int(hour) * 3600 + int(minute) * 60 + int(second)) * 10**9 + part


@dataclass(slots=True)
class EngineValues:
    """Values parsed so far, as columns (`names` numbers all texts), and counts of skipped input."""

    line: list[int] = field(default_factory=list[int])
    ts_ns: list[int | None] = field(default_factory=list["int | None"])
    system: list[int] = field(default_factory=list[int])
    engine: list[int] = field(default_factory=list[int])
    key: list[int] = field(default_factory=list[int])
    kind: list[int] = field(default_factory=list[int])
    value: list[float] = field(default_factory=list[float])
    names: dict[str, int] = field(default_factory=dict[str, int])
    engines: set[str] = field(default_factory=set[str])
    clock: LogClock = field(default_factory=LogClock)
    requests: RequestRows = field(default_factory=RequestRows)
    device_memory: DeviceMemoryLines = field(default_factory=DeviceMemoryLines)
    too_long: int = 0
    not_finite: int = 0
    over: int = 0

    def add(self, line: int, ts_ns: int | None, who: tuple[str, str], key: str, value: float, kind: str) -> None:
        """Add one value of an engine; count a value that is not finite or beyond the limits.

        `who` is (system, engine). `line` is that of the sample, which joins the values of one line or scrape.
        """
        if not math.isfinite(value):
            self.not_finite += 1
            return
        engine = who[1][:MAX_NAME]
        if len(self.value) >= MAX_VALUES or (engine not in self.engines and len(self.engines) >= MAX_ENGINES):
            self.over += 1
            return
        self.engines.add(engine)
        self.line.append(line)
        self.ts_ns.append(ts_ns)
        self.value.append(value)
        texts = (self.system, who[0]), (self.engine, engine), (self.key, key[:MAX_NAME]), (self.kind, kind)
        for column, text in texts:
            column.append(self.names.setdefault(text, len(self.names)))

    def make_tables(self, want: Want) -> dict[str, Columns]:
        """Make the wanted tables that have rows."""
        tables = {"engine_log": self.make_table()} if self.value and want.table("engine_log") else {}
        if self.requests.line and want.table("engine_requests"):
            tables["engine_requests"] = self.requests.make_table()
        if self.device_memory.line and want.table("device_memory_lines"):
            tables["device_memory_lines"] = self.device_memory.make_table()
        return tables

    def make_table(self) -> Columns:
        """Make the table `engine_log`. An engine is named by its process only where several have its index."""
        short = {name: name.partition(" (pid ")[0] for name in self.engines}
        is_single = len(set(short.values())) == len(short)
        texts = tuple(short.get(name, name) for name in self.names) if is_single else tuple(self.names)
        narrow = choose_narrowest(len(self.names))
        coded = {name: Coded(np.array(getattr(self, name), narrow), texts) for name in ("system", "engine", "key")}
        kinds = TABLES["engine_log"].columns["kind"].values
        place = np.array([kinds.index(text) if text in kinds else -1 for text in texts], np.int8)
        columns = {
            "line": np.array(self.line, np.int64),
            "ts_ns": make_nullable_numbers(self.ts_ns),
            **coded,
            "kind": Coded(place[np.array(self.kind, np.int64)] if self.kind else place[:0], kinds),
            "value": np.array(self.value, np.float64),
        }
        return TABLES["engine_log"].cast(columns, len(self.value))
