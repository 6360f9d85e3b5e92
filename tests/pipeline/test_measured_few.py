"""Where a module measures few questions: the tables are known, and a look at what was left out fails."""

import pandas as pd
import pytest
from chrome_builder import launched, step, write
from measured_few import ALSO_READ, COMPARISON, FIRST_SCREEN, OWN_ROWS, TABLES_OF, measuring, watch

from tracekit.analyses import ANALYSES
from tracekit.model.tables import MEASURED as TABLES
from tracekit.model.tables import TABLES as ALL_TABLES
from tracekit.model.trace import Measurements
from tracekit.pipeline import measure as measured_here
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.run import Options, analyze


def test_every_measured_table_is_some_question_s():
    assert set().union(*TABLES_OF.values()) == {table.name for table in TABLES}


def test_every_name_is_that_of_a_question():
    ids = {analysis.id for analysis in ANALYSES}
    named = {*TABLES_OF, *ALSO_READ, *FIRST_SCREEN, *COMPARISON, *(id_ for id_, _ in OWN_ROWS)}
    assert named.union(*ALSO_READ.values()) <= ids


@pytest.fixture
def profile(tmp_path):
    return write(tmp_path / "rank0.json", [step(1, 0, 100), *launched("gemm", 8, 20, 10, 1)])


def test_what_no_question_of_the_module_reads_is_not_measured(profile, judged_only):
    judged_only({"kernels"})
    result = analyze(profile, Options(jobs=1))
    assert len(result.measurements["kernels"]) == 1
    assert "slots" not in result.measurements.tables
    with pytest.raises(pytest.fail.Exception, match=r"reads slots, which \['exclusive'\] would"):
        result.measurements.has("slots")


def test_a_judgement_that_reads_what_was_left_out_stops_the_test(profile, judged_only, monkeypatch):
    monkeypatch.setitem(ALSO_READ, "gpu-time", ())
    judged_only({"gpu-time"})
    with pytest.raises(
        pytest.fail.Exception, match=r"gpu-time reads .*, which .* would have measured"
    ):
        analyze(profile, Options(jobs=1))


def test_a_table_of_several_is_whole_or_not_to_be_read(monkeypatch):
    """Rows of `quality` are there, but not those of every question that fills it."""
    rows = ALL_TABLES["quality"].empty()
    judging = ["transfers"]
    watch(monkeypatch, {"data-quality", "communication"}, judging, set())
    with pytest.raises(pytest.fail.Exception, match=r"transfers reads quality, which \['stragglers'\]"):  # fmt: skip
        Measurements({"quality": rows}, ())["quality"]
    judging[:] = ["communication"]
    assert isinstance(Measurements({"quality": rows}, ())["quality"], pd.DataFrame)


def test_a_question_that_measures_another_table_than_it_is_known_for_is_told(profile, monkeypatch):
    monkeypatch.setitem(TABLES_OF, "kernels", set())
    few = measuring(measured_here.measured, {"kernels"})
    (source,) = pipeline.discover(profile).sources
    (trace,) = pipeline.read_source(source, lambda _: None, pipeline.wanted())
    with pytest.raises(AssertionError, match="kernels: a table that its WRITES lack"):
        few(trace, ANALYSES)
