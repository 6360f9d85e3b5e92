"""A question of the user's own: read from its file by every process that measures, and named where it fails."""

from pathlib import Path

import pytest
from chrome_builder import annotation, launched, step, write

import tracekit
from tracekit.analyses import own
from tracekit.engine import local
from tracekit.model.errors import TracekitError
from tracekit.model.tables import TABLES
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.run import Options, analyze_uncached

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_question.py"


@pytest.fixture(autouse=True)
def _tables_of_files_are_forgotten():
    """What a test of this file declares is not known to the next one."""
    before = dict(TABLES)
    yield
    TABLES.clear()
    TABLES.update(before)
    own.load.cache_clear()


@pytest.fixture
def profile(tmp_path):
    """Two ranks of two steps; the optimizer's step takes 10 and 20 µs, 1 µs more on rank 1."""
    for rank in (0, 1):
        rows = [
            step(1, 0, 100), annotation("Optimizer.step#AdamW.step", 10, 10 + rank),
            step(2, 100, 100), annotation("Optimizer.step#AdamW.step", 110, 20 + rank),
            *launched("gemm", 12, 20, 10, 1),
        ]  # fmt: skip
        write(tmp_path / "profile" / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return tmp_path / "profile"


def times(report):
    (section,) = [section for section in report.sections if section.id == "named-time"]
    return [(rank, number, ns) for rank, number, _, ns, _ in section.sheets[0].rows]


EXPECTED = [(0, 1, 10_000), (0, 2, 20_000), (1, 1, 11_000), (1, 2, 21_000)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_example_answers_in_this_process_and_in_workers(profile, monkeypatch, jobs):
    monkeypatch.setattr(local, "SMALL_BYTES", 0)  # or so little would be read without any workers
    report = tracekit.analyze(profile, question_files=str(EXAMPLE), jobs=jobs)
    assert times(report) == EXPECTED
    assert "gpu-time" in {section.id for section in report.sections}


def test_the_command_line_asks_it_alone(profile, call):
    done = call("analyze", profile, "-v", "--question", EXAMPLE, "--only", "named-time")
    assert done.exit_code == 0
    assert "only asked: named-time" in done.stdout
    assert "How long does an op take in every step?" in done.stdout
    assert "uneven-named-time  clear" in done.stdout


BROKEN = EXAMPLE.read_text().replace("    ops = trace", "    gone = trace.nothing\n    ops = trace")
BADLY_JUDGED = EXAMPLE.read_text().replace("    by = [", "    gone = rows.nothing\n    by = [")


@pytest.mark.parametrize("text", [BROKEN, BADLY_JUDGED], ids=["measured", "judged"])
def test_one_that_fails_is_named_with_its_line_and_loses_nothing_else(profile, tmp_path, call, text):
    file = tmp_path / "mine.py"
    file.write_text(text)
    line = 1 + text[: text.index("    gone")].count("\n")
    report = tracekit.analyze(profile, question_files=str(file), questions=["named-time", "steps"])
    of = {section.id: section for section in report.sections}
    assert of["named-time"].status == "failed"
    assert of["named-time"].reason.startswith("an error in mine.py: named-time could not be")
    assert f"(mine.py, line {line})" in of["named-time"].reason
    assert of["steps"].status == "ok"
    assert any(caution.startswith("an error in mine.py") for caution in report.cautions)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = ", "mine.py: it cannot be loaded: SyntaxError"),
        ("x = 1", "mine.py: it contains no question"),
        (EXAMPLE.read_text().replace('"named-time"', '"steps"'), "there is a question 'steps' already"),
        (EXAMPLE.read_text().replace('"named_times",\n    "one', '"kernels",\n    "one'), "a table 'kernels' already"),
    ],
    ids=["syntax", "no record", "id", "table"],
)
def test_a_file_that_holds_no_question_is_an_error_that_names_it(profile, tmp_path, text, problem):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(TracekitError, match=r"mine\.py") as caught:
        analyze_uncached(profile, Options(question_files=(str(file),)))
    assert problem in caught.value.problem


def test_what_was_saved_with_it_answers_again_and_what_was_not_does_not(profile, tmp_path):
    files = (str(EXAMPLE),)
    saved_measurements.save(
        analyze_uncached(profile, Options(question_files=files)).measurements, tmp_path / "with.tkm"
    )
    assert times(analyze_uncached(tmp_path / "with.tkm", Options(question_files=files)).report) == EXPECTED
    saved_measurements.save(analyze_uncached(profile).measurements, tmp_path / "without.tkm")
    with pytest.raises(TracekitError, match="without named-time"):
        analyze_uncached(tmp_path / "without.tkm", Options(question_files=files))
