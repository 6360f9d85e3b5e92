"""Tables of a report, measured tables and frames of a trace go to polars with every value, number for number."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tracekit

EXAMPLES = Path(__file__).parents[2] / "examples"
WAYS = (pl.DataFrame, pl.from_pandas, lambda frame: pl.from_arrow(pa.table(frame)))


@pytest.fixture(scope="module", params=["simulated_gpu", "verl_cpu", "simulated_memory/leaking"])
def frames(request):
    """Every frame there is of an example, by its name."""
    path = EXAMPLES / request.param
    report, measured = tracekit.analyze(path), tracekit.measure(path)
    trace = next(iter(tracekit.load_all(path)))
    named = {f"report.{name}": frame for name, frame in report.tables.items()}
    named |= {f"measured.{name}": frame for name, frame in measured.tables.items()}
    return named | {f"trace.{name}": trace[name] for name in trace.tables}


@pytest.mark.parametrize("way", WAYS, ids=["DataFrame", "from_pandas", "from_arrow"])
def test_polars_has_every_value(frames, way):
    assert len(frames) > 30
    for name, frame in frames.items():
        table = way(frame)
        assert table.columns == list(frame.columns), name
        for column in frame.columns:
            given, taken = frame[column], table[column].to_list()
            missing = given.isna().to_numpy()
            assert [value is None for value in taken] == missing.tolist(), (name, column)
            known = [value for value in taken if value is not None]
            expected = given[~missing]
            if pd.api.types.is_integer_dtype(given.dtype):
                assert np.array_equal(np.array(known, np.int64), expected.to_numpy(np.int64))
            else:
                assert known == expected.tolist(), (name, column)
