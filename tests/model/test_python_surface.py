"""What a person finds with Tab, help and `in`: names, signatures, mappings, and the nearest name for a wrong one."""

import inspect
import pydoc
from collections.abc import Mapping

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
