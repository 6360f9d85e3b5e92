"""The table of unexplained shares: every committed profile is in it, and none is above it."""

import os
from pathlib import Path

import pytest
from benchmarks.unexplained_share import TABLE, profiles, read_table, risen, share_of, written

REAL = os.environ.get("TRACEKIT_REAL_DATA")
SHARES = read_table(TABLE.read_text("utf-8"))
HERE = dict(profiles(Path(REAL).parent if REAL else None))


def _of_profiles():
    names = sorted(set(HERE) & set(SHARES))
    return [pytest.param(n, marks=pytest.mark.slow) if n.startswith("real/") else n for n in names]


@pytest.mark.parametrize("name", _of_profiles())
def test_an_unexplained_share_only_falls(name):
    share = share_of(HERE[name])
    assert share is not None
    assert risen(SHARES, {name: share}) == []


@pytest.mark.slow
def test_every_committed_profile_with_time_to_explain_is_in_the_table():
    committed = {name for name in HERE if not name.startswith("real/")}
    assert committed - set(SHARES) <= {name for name in committed if share_of(HERE[name]) is None}


def test_every_line_of_the_table_is_of_a_profile():
    assert {name for name in SHARES if not name.startswith("real/")} <= set(HERE)


def test_a_share_that_rose_is_reported():
    assert risen({"a": 0.10, "b": 0.2}, {"a": 0.12, "b": 0.2004, "c": 0.9}) == ["a: 10.00 % → 12.00 %"]


def test_the_table_reads_back_as_written():
    assert read_table(written({"b x": 0.5, "a": 0.0123})) == {"a": 0.0123, "b x": 0.5}
