"""Traces from which rows were removed after the recording are told by the numbers of their operators."""

import pytest
from chrome_builder import op, write

import tracekit
from tracekit.health.checks import diagnose
from tracekit.pipeline.run import Options, analyze_uncached


def ops(numbers):
    """One operator of 5 µs every 10 µs, with these numbers."""
    return [op("aten::add", 10 * place, 5, **{"External id": n}) for place, n in enumerate(numbers)]


def noted(tmp_path, rows):
    trace = tracekit.load(write(tmp_path / "t.json", rows))
    return [(note.count, note.message) for note in trace.notes if note.code == "filtered-rows"]


def test_of_every_third_operator_a_third_is_left(tmp_path):
    """Of the numbers 0 to 597 every third one is there: 200 of 598, 33 %."""
    ((count, message),) = noted(tmp_path, ops(range(0, 600, 3)))
    assert count == 398
    assert message == "rows were removed after the recording: 33 % of the operators are left"


@pytest.mark.parametrize(
    "numbers",
    [
        range(200),
        [*range(100), *range(100_000, 100_100)],
        [n for n in range(300) if n % 3],
        range(0, 297, 3),
        [7] * 200,
    ],
    ids=["whole", "a block is missing", "each third is missing", "99 operators", "one number"],
)
def test_other_numbers_say_nothing(tmp_path, numbers):
    assert noted(tmp_path, ops(numbers)) == []


def test_operators_without_numbers_say_nothing(tmp_path):
    assert noted(tmp_path, [op("aten::add", 10 * place, 5) for place in range(200)]) == []


def test_the_screen_and_the_doctor_say_it(tmp_path):
    path = write(tmp_path / "t.json", ops(range(0, 600, 3)))
    report = analyze_uncached(path, Options(jobs=1)).report
    assert any("33 % of the operators are left" in caution for caution in report.cautions)
    (finding,) = [f for s in report.sections for f in s.findings if f.rule == "profiling-artefact"]
    assert finding.claim.startswith("1 of 1 sources is a sample of the recorded rows")
    (symptom,) = diagnose((), tracekit.load(path).notes)
    assert (symptom.code, symptom.severity) == ("filtered-rows", "warning")
