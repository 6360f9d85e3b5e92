"""The export of the nsys benchmark is the real one, several times over. No timings."""

import importlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REAL = os.environ.get("TRACEKIT_REAL_DATA")

JOINED = """
    SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
    ON kernel.correlationId = call.correlationId AND kernel.globalPid = call.globalTid & ~0xFFFFFF
"""
RANGES = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59"


@pytest.fixture
def repeated(monkeypatch, tmp_path):
    """A function that asks an export of four copies, and the original, the same: `(copies', original's)`."""
    monkeypatch.syspath_prepend(str(HERE))
    script = importlib.import_module("nsys_replicated")
    made = script.build(tmp_path / "four.sqlite", 4)

    def ask(question):
        answers = []
        for path in (made, script.real_data() / script.ORIGINAL):
            uri = f"file:{path}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                answers.append(connection.execute(question).fetchone())
        return answers

    return ask


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_copies_keep_their_launches_and_do_not_overlap(repeated):
    assert repeated(JOINED) == [(4 * 3986,), (3986,)]
    assert repeated("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [(4 * 1020,), (1020,)]
    assert repeated(RANGES) == [(2 * 19118,), (19118,)]
    copies, original = repeated('SELECT min("start"), max("end") FROM CUPTI_ACTIVITY_KIND_RUNTIME')
    assert copies[0] == original[0]
    assert copies[1] - copies[0] > 4 * (original[1] - original[0])
    in_first = f'SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE "start" <= {original[1]}'
    assert repeated(in_first)[0] == (4010,)


@pytest.mark.skipif(REAL is None, reason="real profiles are not here")
def test_the_capture_lasts_longer_than_its_copies(repeated):
    question = 'SELECT (SELECT duration FROM ANALYSIS_DETAILS) - max("end") FROM NVTX_EVENTS'
    (longer,), (_,) = repeated(question)
    assert longer > 1_000_000_000
