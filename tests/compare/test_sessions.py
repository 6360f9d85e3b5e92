"""Sides of different sessions: when runs ran travels in every form of a side, and a gate on times decides nothing."""

import json
from dataclasses import replace

import pytest
from compare.made import compared, made_side, step_rows

from tracekit.compare.gate_rules import GateRules, parse_rule_text
from tracekit.compare.noise import calibrated, read, write_noise_json
from tracekit.job.sessions import (
    SESSION_GAP_NS,
    count_sessions,
    has_overlapping_runs,
    list_pauses,
    measure_session_gap,
)

HOUR, MINUTE = SESSION_GAP_NS, SESSION_GAP_NS // 60
RUNS = [[10.0, 10.1], [10.1, 10.2], [10.0, 10.2], [10.1, 10.1]]
SLOWER = [[1.5 * value for value in run] for run in RUNS]
EPOCH = 1_700_000_000_000_000_000


def spans_at(*minutes):
    """Runs of one minute that begin at these minutes."""
    return tuple((f"run{run}", EPOCH + at * MINUTE, EPOCH + (at + 1) * MINUTE) for run, at in enumerate(minutes, 1))


def side_at(name, runs, *minutes):
    return replace(made_side(name, step_rows(*runs)), spans=spans_at(*minutes))


def gated(base, opt, *rules, **choices):
    found = compared(base, opt, gate=GateRules(tuple(parse_rule_text(rule) for rule in rules)), **choices)
    return [(gate.outcome, gate.caveats) for gate in found.gates]


def test_pauses_are_between_the_latest_end_and_the_next_start():
    spans = (("a", 0, 10), ("b", 5, 8), ("c", 30, 40), ("d", 35, 50), ("e", 60, 70))
    assert list_pauses(spans) == [0, 20, 0, 10]
    assert list_pauses(spans[::-1]) == [0, 20, 0, 10]
    assert has_overlapping_runs(spans)
    assert not has_overlapping_runs((("a", 0, 10), ("c", 30, 40)))


def test_an_hour_without_a_run_ends_a_session():
    assert count_sessions(()) == 0
    assert count_sessions(spans_at(0, 2, 4)) == 1
    assert count_sessions(spans_at(0, 61, 62)) == 2
    assert count_sessions(spans_at(0, 60)) == 1, "59 minutes lie between them"


@pytest.mark.parametrize(
    ("base", "opt", "gap"),
    [
        ((0, 2, 4, 6), (727, 729, 731, 733), 720 * MINUTE),
        ((727, 729), (0, 2), 724 * MINUTE),
        ((0, 2, 4, 6), (8, 10, 12, 14), None),
        ((0, 100, 200), (50, 150, 250), None),
        ((0, 200), (301, 303), None),
        ((0,), (61,), HOUR),
        ((), (61,), None),
    ],
    ids=["12 hours", "opt first", "minutes", "in turns", "a longer pause within base", "an hour", "unknown"],
)
def test_sides_lie_apart_where_the_longest_pause_is_between_them(base, opt, gap):
    assert measure_session_gap(spans_at(*base), spans_at(*opt)) == gap


def test_a_gate_on_times_decides_nothing_between_sessions():
    base = side_at("base", RUNS, 0, 2, 4, 6)
    late, near = side_at("opt", SLOWER, 727, 729, 731, 733), side_at("opt", SLOWER, 8, 10, 12, 14)
    assert gated(base, near, "step_time>3%") == [("fail", ())]
    ((outcome, caveats),) = gated(base, late, "step_time>3%")
    assert outcome == "not comparable"
    assert caveats == (
        "the sides ran 12 h apart, and the machine may have changed in between; re-run base next to opt, alternating",
    )
    ((passed, _),) = gated(base, side_at("opt", RUNS, 727, 729, 731, 733), "step_time>30%")
    assert passed == "not comparable"
    assert gated(base, late, "step_time>point:3%")[0][0] == "fail", "the estimate alone was asked for"


def test_noise_of_several_sessions_lets_a_gate_decide():
    base, late = side_at("base", RUNS, 0, 2, 4, 6), side_at("opt", SLOWER, 727, 729, 731, 733)
    of_one = calibrated(side_at("equal", [*RUNS, *RUNS[:2]], 0, 2, 4, 6, 8, 10))
    of_many = calibrated(side_at("equal", [*RUNS, *RUNS[:2]], 0, 100, 200, 300, 400, 500))
    assert gated(base, late, "step_time>3%", noise=of_one)[0][0] == "not comparable"
    assert gated(base, late, "step_time>3%", noise=of_many)[0][0] == "fail"


def test_a_noise_file_tells_when_its_runs_ran(tmp_path):
    noise = calibrated(side_at("equal", RUNS, 0, 100, 200, 300))
    path = tmp_path / "noise.json"
    path.write_text(write_noise_json(noise))
    assert read(path).spans == noise.spans == spans_at(0, 100, 200, 300)
    older = json.loads(path.read_text())
    del older["spans"]
    path.write_text(json.dumps(older))
    assert read(path).spans == ()


@pytest.mark.parametrize("spans", [{}, [1], [["a", 1]], [["a", 1, True]], [["a", 1, 2**63]], [[1, 1, 2]], ["abc"]])
def test_wrong_spans_are_refused(tmp_path, spans):
    path = tmp_path / "noise.json"
    document = json.loads(write_noise_json(calibrated(side_at("equal", RUNS, 0, 2, 4, 6))))
    path.write_text(json.dumps({**document, "spans": spans}))
    with pytest.raises(Exception, match="is not an A/A noise file"):
        read(path)


def test_reports_and_saved_measurements_tell_when_runs_ran(call, tmp_path, request):
    profiles = request.config.rootpath / "examples/compare_cpu"
    for side in ("base", "opt"):
        assert call("analyze", profiles / side, "-q", "-o", tmp_path / f"{side}.json").exit_code == 0
        assert call("analyze", profiles / side, "-q", "--save", tmp_path / f"{side}.tkm").exit_code == 0
    report = json.loads((tmp_path / "base.json").read_text())
    assert [span[0] for span in report["spans"]] == [f"run{run}" for run in range(1, len(report["spans"]) + 1)]
    late = json.loads((tmp_path / "opt.json").read_text())
    late["spans"] = [[run, start + 12 * HOUR, end + 12 * HOUR] for run, start, end in late["spans"]]
    (tmp_path / "late.json").write_text(json.dumps(late))
    for base in ("base.json", "base.tkm"):
        done = call("compare", tmp_path / base, tmp_path / "late.json", "--fail-on", "step_time>3%")
        assert done.exit_code == 3
        assert "the sides ran 12 h apart" in " ".join((done.stdout + done.stderr).split())
