"""The critical path on the merged timeline."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import replay_run
from tracekit.pipeline.timeline.document import export_timeline
from tracekit.replay.ledger import find_critical_path

EXAMPLE = Path(__file__).parents[2] / "examples/simulated_gpu/outputs/profile"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Events of the timeline of the example."""
    target = tmp_path_factory.mktemp("timeline") / "all.json"
    export_timeline(EXAMPLE, target, Options(jobs=1, cache=False), critical_path=True)
    return json.loads(target.read_text("utf-8"))["traceEvents"]


def pieces_of(events):
    tracks = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["args"].get("name") == "critical path"}
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks]


def ns(micros):
    return round(micros * 1_000)


def test_the_pieces_follow_one_another_for_the_whole_path(drawn):
    replay = replay_run(EXAMPLE, Options(jobs=1, cache=False))
    path = find_critical_path(replay.job, replay.steps)
    pieces = sorted(pieces_of(drawn), key=lambda e: e["ts"])
    assert sum(ns(e["dur"]) for e in pieces) == path.length_ns - path.before_ns
    ends = [ns(e["ts"]) + ns(e["dur"]) for e in pieces[:-1]]
    assert ends == [ns(e["ts"]) for e in pieces[1:]]


def test_kernels_on_the_path_lie_on_the_rows_of_their_rank(drawn):
    """Nearly all are whole rows; the path enters or leaves the others on their way."""
    rows = {(e["name"], ns(e["ts"]), ns(e["dur"])) for e in drawn if e["ph"] == "X" and e.get("cat") == "kernel"}
    kernels = [e for e in pieces_of(drawn) if e["args"]["kind"] == "kernel"]
    whole = [e for e in kernels if (e["name"], ns(e["ts"]), ns(e["dur"])) in rows]
    assert len(kernels) > 400
    assert len(whole) >= 0.98 * len(kernels)


def test_an_arrow_leads_to_each_piece_in_another_process(drawn):
    pieces = sorted(pieces_of(drawn), key=lambda e: e["ts"])
    moves = sum(a["pid"] != b["pid"] for a, b in pairwise(pieces))
    starts = {e["id"]: e for e in drawn if e["ph"] == "s" and e["name"] == "critical path"}
    ends = {e["id"]: e for e in drawn if e["ph"] == "f" and e["name"] == "critical path"}
    assert moves == len(starts) == len(ends) > 10
    for number, start in starts.items():
        assert start["pid"] != ends[number]["pid"]
        assert start["ts"] < ends[number]["ts"]


def test_without_the_option_no_path_is_drawn(tmp_path):
    export_timeline(EXAMPLE, tmp_path / "all.json", Options(jobs=1, cache=False))
    assert not pieces_of(json.loads((tmp_path / "all.json").read_text("utf-8"))["traceEvents"])
