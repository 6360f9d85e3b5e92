"""What a person finds with Tab, help and `in`: names, signatures, mappings, and the nearest name for a wrong one."""

import copy
import inspect
import json
import pickle
import pydoc
from collections.abc import Mapping

import pandas as pd
import pytest

import tracekit

PROFILE = "examples/simulated_gpu/outputs/profile"
FUNCTIONS = ["analyze", "compare", "load", "load_all", "measure", "render"]


@pytest.fixture(scope="module")
def profile(request):
    return request.config.rootpath / PROFILE


@pytest.fixture(scope="module")
def measured(profile):
    return tracekit.measure(profile)


def test_tab_shows_every_public_name():
    assert set(tracekit.__all__) <= set(dir(tracekit))


def test_help_lists_the_functions():
    text = pydoc.plain(pydoc.render_doc(tracekit))
    for name in FUNCTIONS:
        assert f"{name}(" in text or f"{name} =" in text, name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_name_every_option(name):
    parameters = inspect.signature(getattr(tracekit, name)).parameters.values()
    assert not [one.name for one in parameters if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    assert inspect.getdoc(getattr(tracekit, name))


def test_the_package_of_a_function_has_its_signature_and_docstring():
    import tracekit.compare as package

    assert "min_effect" in inspect.signature(package).parameters
    assert package.__doc__.startswith("Compare `base` with `opt`")


@pytest.mark.parametrize("ranks", [0, [0], (0,), range(1), {0}, "0", "0-0"])
def test_ranks_are_numbers_or_a_range(profile, ranks):
    found = tracekit.measure(profile, ranks=ranks)
    assert found.tables["steps"]["rank"].unique().tolist() == [0]


def test_a_wrong_rank_is_named():
    with pytest.raises(tracekit.TracekitError, match="'x' is not a number or a range"):
        tracekit.measure("nowhere", ranks=["x"])


def test_tables_are_mappings(profile, measured):
    report = tracekit.analyze(profile)
    for tables in (measured.tables, report.tables):
        assert "kernels" in tables
        assert "kernel" not in tables
        assert list(tables) == list(tables.keys())
        assert tables.get("kernel") is None
        with pytest.raises(KeyError):
            tables["kernel"]
        with pytest.raises(tracekit.TracekitError, match="did you mean 'kernels'"):
            tables["kernel"]


def test_a_table_that_was_not_recorded_suggests_the_nearest(profile):
    trace = tracekit.load(profile, rank=0)
    with pytest.raises(KeyError):
        trace["device_op"]
    with pytest.raises(tracekit.TracekitError, match="did you mean 'device_ops'"):
        trace["device_op"]


@pytest.mark.parametrize(("short", "name"), [("txt", "text"), ("markdown", "md"), ("htm", "html")])
def test_a_format_is_known_by_its_suffix_too(profile, short, name):
    report = tracekit.analyze(profile)
    assert tracekit.render(report, short) == tracekit.render(report, name)


def test_a_trace_is_a_mapping_of_its_tables(profile):
    trace = tracekit.load(profile, rank=0)
    assert isinstance(trace, Mapping)
    assert "device_ops" in trace
    assert "allocations" not in trace
    assert list(trace) == list(trace.keys()) == list(trace.tables)
    assert len(trace) == len(list(trace))
    assert trace.get("allocations") is None
    assert trace.get("device_ops") is trace["device_ops"]
    assert dict(trace.items()).keys() == trace.keys()
    assert len(trace.get_or_empty("allocations")) == 0
    assert repr(trace).startswith("<Trace simulated_rank0")


@pytest.fixture(scope="module")
def report(profile):
    return tracekit.analyze(profile)


@pytest.fixture(scope="module")
def change(request):
    folder = request.config.rootpath / "examples/compare_cpu"
    return tracekit.compare(folder / "base", folder / "opt")


def test_measurements_are_a_mapping_of_their_tables(measured):
    assert isinstance(measured, Mapping)
    assert "kernels" in measured
    assert "kernel" not in measured
    assert list(measured) == list(measured.keys()) == list(measured.tables)
    assert len(measured) == len(measured.tables) > 20
    assert measured.get("kernel") is None
    with pytest.raises(KeyError):
        measured["kernel"]
    with pytest.raises(tracekit.TracekitError, match="did you mean 'kernels'"):
        measured["kernel"]


def test_tab_completes_the_names_of_tables(profile, measured, report):
    for tables in (measured, measured.tables, report.tables, tracekit.load(profile, rank=0)):
        assert tables._ipython_key_completions_() == list(tables)


def test_tables_name_themselves_at_a_prompt(measured, report):
    for tables in (measured.tables, report.tables):
        assert repr(tables).startswith(f"<{len(tables)} tables: {next(iter(tables))}, ")


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_every_value_can_be_copied_and_pickled(profile, measured, report, change, clone):
    assert clone(report) == report
    assert clone(change) == change
    pd.testing.assert_frame_equal(clone(measured).tables["idle"], measured.tables["idle"])
    trace = tracekit.load(profile, rank=0)
    pd.testing.assert_frame_equal(clone(trace)["device_ops"], trace["device_ops"])


def test_traces_and_measurements_are_compared_by_identity(profile, measured):
    trace = tracekit.load(profile, rank=0)
    assert trace in {trace: 1}
    assert trace != tracekit.load(profile, rank=0)
    assert measured in {measured: 1}


def test_a_comparison_has_tables(change):
    assert list(change.tables) == list(change.report().tables)
    assert len(change.tables["overview"]) > 0


def test_a_finding_of_each_row(report):
    frame = pd.DataFrame(report.findings)
    assert frame["rule"].tolist() == [finding.rule for finding in report.findings]


def test_every_table_goes_to_every_kind_of_file(measured, report, tmp_path):
    pytest.importorskip("pyarrow")
    for tables in (measured.tables, report.tables):
        for name, frame in tables.items():
            frame.to_parquet(tmp_path / "table.parquet")
            frame.to_csv(tmp_path / "table.csv")
            assert len(pd.read_parquet(tmp_path / "table.parquet")) == len(frame), name
            json.dumps(frame.attrs)


def test_measured_tables_merge_filter_and_sum(measured):
    steps, idle = measured.tables["steps"], measured.tables["idle"]
    merged = steps.merge(idle[idle["window"] == "step"], on=["run", "role", "rank", "step"])
    assert merged.groupby(["rank", "step"], observed=True)["idle_ns"].sum().gt(0).all()
    assert steps.query("rank == 1")["rank"].unique().tolist() == [1]
    both = pd.concat([steps.assign(side="a"), steps.assign(side="b")])
    assert both.groupby("side")["dur_ns"].sum().tolist() == [steps["dur_ns"].sum()] * 2


def test_load_all_takes_a_pattern_and_several_paths(profile):
    pattern = tracekit.load_all(f"{profile}/*rank1*")
    assert [trace.source.rank for trace in pattern] == [1]
    files = sorted(profile.glob("*.gz"))
    assert [trace.source.rank for trace in tracekit.load_all(files)] == [0, 1]
    assert tracekit.load(f"{profile}/*rank1*").source.rank == 1
    with pytest.raises(tracekit.TracekitError, match="the pattern matches nothing") as error:
        tracekit.load_all(f"{profile}/*rank9*")
    assert error.value.hint


def test_several_files_of_a_rank_are_named(request):
    folder = request.config.rootpath / "examples/compare_cpu/base"
    with pytest.raises(tracekit.TracekitError, match=r"rank 0 pid \d+ in run1/.*; rank 0 pid \d+ in run2/") as error:
        tracekit.load(folder, rank=0)
    assert "load(FILE)" in error.value.hint


@pytest.mark.parametrize("wrong", [None, 5, b"profile", ["a", 5]])
def test_something_that_is_not_a_path_is_named(wrong, measured):
    for call in (tracekit.analyze, tracekit.measure, tracekit.load, tracekit.load_all):
        with pytest.raises(tracekit.TracekitError, match="a path is expected, not a "):
            call(wrong)
    with pytest.raises(tracekit.TracekitError, match="a path is expected, not a "):
        tracekit.compare(wrong, "opt")
    with pytest.raises(tracekit.TracekitError, match="not a Measurements"):
        tracekit.analyze(measured)


def test_wrong_names_suggest_the_nearest(report):
    with pytest.raises(AttributeError, match="did you mean 'analyze'"):
        _ = tracekit.analyse
    with pytest.raises(KeyError):
        report.section("kernel")
    with pytest.raises(tracekit.TracekitError, match="did you mean 'kernels'"):
        report.section("kernel")
    with pytest.raises(tracekit.TracekitError, match="no table 0"):
        report.tables[0]
    with pytest.raises(tracekit.TracekitError, match="no chart") as error:
        report.figure()
    assert "gpu-time" in error.value.hint
