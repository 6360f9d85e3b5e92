"""Every rule names the worst and the median interval that it judged; intervals are inside what they name."""

from pathlib import Path

import pytest
from chrome_builder import BASE_NS
from rules.firing import write_sources
from rules.traces import FIRES

import tracekit
from tracekit import analyses
from tracekit.analyses import ANALYSES
from tracekit.model.stages import get_canonical_stage
from tracekit.pipeline.run import Options, analyze_uncached

RULES = sorted(FIRES)

PAGES = Path(analyses.__file__).parent
OF_LOGS = {page.stem for subject in ("run_log", "engines", "hangs") for page in (PAGES / subject).glob("*.md")}
"""Rules about logs and dumps: they have values per step or moment, and no rows with a start and an end."""

WITHOUT = {
    **dict.fromkeys(OF_LOGS, "a log has no intervals"),
    "profiling-artefact": "it is about files: their kind, their losses, their clocks",
}
"""Rules whose findings are about no interval, and why. A weight sync, a periodic stage or a growth that only a driver's log shows has none either."""


def analyzed(folder, rule):
    questions = tuple(analysis.id for analysis in ANALYSES if rule in analysis.rules)
    done = analyze_uncached(write_sources(folder, FIRES[rule].rows), Options(jobs=1, questions=questions))
    (finding,) = [found for found in done.report.findings if found.rule == rule]
    return finding, done.measurements


def rows_at(measurements, table, place):
    """The rows of a table in the source, process and step of a place."""
    frame = measurements.frame(table)
    named = {"source": place.source, "rank": place.rank, "step": place.step, "run": place.run, "role": place.role}
    for name, value in named.items():
        if value is not None and name in frame.columns:
            frame = frame.filter(frame.equals(name, value))
    return list(frame.rows("ts_ns", "dur_ns", *(["stage"] if table == "stages" else [])))


def get_name(row, place):
    return get_canonical_stage(row["stage"], place.role)


def recorded_spans(folder, measurements, place):
    """The span of the recording of a place; a snapshot's is that of its history."""
    spans = rows_at(measurements, "captures", place)
    if any(span["dur_ns"] for span in spans):
        return spans
    times = tracekit.load(folder / place.source).nullable("allocations", "ts_ns").values
    # A level is known from just before the first entry until just after the last.
    return [{"ts_ns": times.min() - 1, "dur_ns": times.max() + 2 - times.min()}]


def is_inside(place, rows):
    return any(row["ts_ns"] <= place.start_ns and place.end_ns <= row["ts_ns"] + row["dur_ns"] for row in rows)


@pytest.mark.parametrize("rule", RULES)
def test_every_finding_about_a_run_has_its_worst_and_its_median_interval(tmp_path, rule):
    finding, measurements = analyzed(tmp_path, rule)
    if rule in WITHOUT:
        assert finding.instances == ()
        return
    assert [instance.which for instance in finding.instances] in (["worst"], ["worst", "median"])
    costs = [instance.cost for instance in finding.instances]
    assert costs == sorted(costs, reverse=True)
    assert min(costs) > 0
    for instance in finding.instances:
        place = instance.place
        assert place.source is not None
        assert place.start_ns < place.end_ns
        assert is_inside(place, recorded_spans(tmp_path, measurements, place)), "inside its recording"
        if place.step is not None and measurements.row_count("steps"):
            assert is_inside(place, rows_at(measurements, "steps", place)), "inside its step"
        if place.stage is not None and instance.unit == "ns":
            named = [row for row in rows_at(measurements, "stages", place) if get_name(row, place) == place.stage]
            assert is_inside(place, named), "inside its stage"


WORKED_OUT = {
    # Both steps idle 11 of their gen of 50; the first is taken as the worst of equals.
    "low-gpu-utilization": [("worst", 0, 50, 11), ("median", 100, 50, 11)],
    # The collective of 10 begins 5 before the compute ends.
    "exposed-communication": [("worst", 90, 10, 5)],
    # Step 30 takes 131, the others 100; of 30 steps in descending order the sixteenth is the median: step 15.
    "step-variance": [("worst", 2900, 131, 131), ("median", 1400, 100, 100)],
    # Two copies of 500 in steps of 100 ms, each 10 after the step begins.
    "pageable-copies": [("worst", 10, 500, 500), ("median", 100_010, 500, 500)],
    # The first stage ends at 400, and the first kernel of the next one begins at 430.
    "stage-edge-idle": [("worst", 400, 30, 30)],
    # The loader takes 50 in the first step and 5 in each other one.
    "data-loader-wait": [("worst", 0, 50, 50), ("median", 100, 5, 5)],
    # 102 calls in a row take 1018 from the first to the last.
    "small-ops": [("worst", 1000, 1018, 1018)],
    # A weight sync of 50 at the end of each step of 1000.
    "weight-sync": [("worst", 950, 50, 50), ("median", 1950, 50, 50)],
    # Steps from 4 on are longer: 1080 and 1090 of the update.
    "drift": [("worst", 4080, 1090, 1090), ("median", 3000, 1080, 1080)],
}
"""Which, start, length and cost in µs."""


@pytest.mark.parametrize("rule", sorted(WORKED_OUT))
def test_the_intervals_are_those_worked_out_by_hand(tmp_path, rule):
    finding, _ = analyzed(tmp_path, rule)
    found = [
        (i.which, i.place.start_ns - BASE_NS, i.place.end_ns - i.place.start_ns, i.cost) for i in finding.instances
    ]
    assert found == [(which, *(1000 * number for number in times)) for which, *times in WORKED_OUT[rule]]
