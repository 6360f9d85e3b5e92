"""Real and committed profiles, replayed: recorded times come back, ledgers close, and little is left without a cause."""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.residual_shares import (
    RESIDUALS,
    list_replayed_profiles,
    list_risen_shares,
    read_table,
    replay_profile,
    write_residual_table,
)

from tracekit.replay.contention import measure_contention, rescale_kernels
from tracekit.replay.paths import time_instants

REAL = os.environ.get("TRACEKIT_REAL_DATA")
SHARES = read_table(RESIDUALS.read_text("utf-8"))
HERE = dict(list_replayed_profiles(Path(REAL).parent if REAL else None))


def _list_profiles_to_replay():
    return [pytest.param(name, marks=pytest.mark.slow) if name.startswith("real/") else name for name in sorted(HERE)]


@pytest.mark.parametrize("name", _list_profiles_to_replay())
def test_a_replayed_profile_gives_back_its_times_and_explains_them(name):
    """Ledger and critical path assert that they add up while they are made."""
    replayed = replay_profile(HERE[name])
    assert bool(replayed) == (name in SHARES), "a profile with work is in the table"
    for job, share in replayed:
        settled = job.settled
        again = time_instants(settled.ordering, settled.edges.source, settled.edges.weight, settled.time)
        assert np.array_equal(again.time, settled.time)
        assert (settled.residual.ns > 0).all()
        contention = measure_contention(job)
        if contention is not None:
            weight = job.edges.weight
            assert np.array_equal(rescale_kernels(job, contention, weight, job.time), weight), "nothing has changed"
        assert list_risen_shares(SHARES, {name: share}) == []


def test_most_profiles_are_explained():
    """Of all profiles in the table 90 in 100 have a share of at most 1 %, and 95 one of at most 6 %."""
    shares = np.array([*SHARES.values()])
    assert np.quantile(shares, 0.9) <= 0.01
    assert np.quantile(shares, 0.95) <= 0.06


def test_every_line_of_the_residual_table_is_of_a_profile():
    assert {name for name in SHARES if not name.startswith("real/")} <= set(HERE)


def test_a_residual_share_that_rose_by_more_than_a_point_is_reported():
    before, after = {"a": 0.10, "b": 0.2, "c": 0.0}, {"a": 0.12, "b": 0.209, "c": 0.0, "d": 0.9}
    assert list_risen_shares(before, after) == ["a: 10.00 % → 12.00 %"]


def test_the_residual_table_reads_back_as_written():
    assert read_table(write_residual_table({"b x": 0.5, "a": 0.0123})) == {"a": 0.0123, "b x": 0.5}
