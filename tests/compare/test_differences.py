"""Are the sides comparable? What must be alike, and what merely has to be known."""

import pytest
from chrome_builder import op, step, write
from compare.made import report, step_rows, write_run

from tracekit.compare.differences import FACTS, list_side_differences
from tracekit.compare.sides import ComparedInput, build_side
from tracekit.model.tables import TABLES
from tracekit.model.trace import Measurements
from tracekit.pipeline.comparing import read_side
from tracekit.pipeline.run import Options


def made(kernels=None, ops=None, rows=(), **facts):
    """A side with these facts, whose kernels and ops are {name: ns}."""
    tables = {}
    for name, found, column in (("kernels", kernels, "total_ns"), ("operators", ops, "self_ns")):
        if found is not None:
            table = TABLES[name]
            columns = {
                key: ["x" if of.dtype == "category" else 0] * len(found)
                for key, of in table.columns.items()
                if of.dtype not in ("Int64", "Float64") and not of.values
            }
            columns |= {key: [of.values[0]] * len(found) for key, of in table.columns.items() if of.values}
            columns |= {"name": list(found), column: list(found.values())}
            tables[name] = table.cast(columns, len(found))
    measured = Measurements(tables, (), (), (), {}) if tables else None
    return build_side("side", [ComparedInput("side", report([*step_rows([1, 1]), *rows], **facts), measured)], 0)


def names(base, opt):
    return [(one.name, one.blocking) for one in list_side_differences(base, opt)]


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_that_differs_is_told_with_what_it_means(name):
    (one,) = list_side_differences(made(**{name: "a"}), made(**{name: "b"}))
    assert (one.name, one.base, one.opt) == (name, "a", "b")
    assert (one.blocking, one.meaning) == (FACTS[name].blocking, FACTS[name].meaning)


@pytest.mark.parametrize("name", FACTS)
def test_what_is_alike_or_unknown_is_no_difference(name):
    assert list_side_differences(made(**{name: "a"}), made(**{name: "a"})) == ()
    assert list_side_differences(made(**{name: "a"}), made()) == ()
    assert list_side_differences(made(**{name: "a"}), made(**{name: ""})) == ()


def test_the_blocking_ones_stand_first():
    base, opt = (made(backend=x, gpu=x, versions=x, world_size=x) for x in "ab")
    assert names(base, opt) == [("gpu", True), ("world_size", True), ("backend", False), ("versions", False)]


def test_runs_of_one_side_on_two_gpus_are_not_those_of_one():
    mixed = build_side("side", [ComparedInput(g, report(step_rows([1, 1]), gpu=g), None) for g in ("A100", "H100")], 0)
    assert names(mixed, made(gpu="H100")) == [("gpu", True)]
    again = build_side("side", [ComparedInput(g, report(step_rows([1, 1]), gpu=g), None) for g in ("H100", "A100")], 0)
    assert names(mixed, again) == []


def test_kernels_of_which_a_tenth_of_the_time_is_common_are_the_same_work():
    """base: 90 a + 10 b; opt: 10 b + 90 c. The common part is min(0.1, 0.1) = a tenth of the time."""
    base, opt = made(kernels={"a": 90, "b": 10}), made(kernels={"b": 10, "c": 90})
    assert names(base, opt) == []
    less = made(kernels={"b": 9, "c": 91})
    assert names(base, less) == [("work", True)]
    (one,) = list_side_differences(base, less)
    assert (one.base, one.opt) == ("mostly a", "mostly c")
    assert "9 % of the time" in one.meaning


def test_without_kernels_the_ops_tell_what_was_done():
    assert names(made(ops={"aten::mm": 5}), made(ops={"aten::conv2d": 5})) == [("work", True)]
    assert names(made(ops={"aten::mm": 5}), made(ops={"aten::mm": 900})) == []


def test_what_has_no_names_says_nothing_of_the_work():
    assert names(made(ops={"aten::mm": 5}), made()) == []
    assert names(made(kernels={"a": 0}), made(kernels={"b": 0})) == []


def test_one_common_stage_is_enough():
    def stages(*found):
        return [r for s in found for r in step_rows([1, 1], name="stage_time", stage=s)]

    assert names(made(rows=stages("gen", "ref")), made(rows=stages("gen", "adv"))) == []
    assert names(made(rows=stages("gen")), made(rows=stages("adv"))) == [("work", True)]
    assert names(made(rows=stages("gen")), made()) == []


def test_what_a_profiler_records_besides_is_told_where_it_differs(tmp_path):
    sides = [
        read_side(name, [write_run(tmp_path / name, [1000, 1100], with_stack=on, record_shapes=1)], Options(jobs=1))
        for name, on in (("a", 0), ("b", 1))
    ]
    (one,) = list_side_differences(*sides)
    assert (one.name, one.blocking) == ("profiler options", False)
    assert one.base == "record_shapes on, with_stack off"
    assert one.opt == "record_shapes on, with_stack on"


def test_the_types_of_matrix_products_are_told_where_they_differ(tmp_path):
    """2·8·16·32 FLOPs each; the third type has 2·8·1·1 = 16, less than 5 %, and is not told."""

    def profile(name, *products):
        rows = [step(1, 0, 1000)]
        for at, (m, n, k, kind) in enumerate(products, 1):
            shapes = {"Input Dims": [[m, k], [k, n]], "Input type": [kind, kind]}
            rows.append(op("aten::mm", 10 * at, 5, **shapes))
        write(tmp_path / name / "rank0.json", rows, rank=0, world_size=1)
        return read_side(name, [tmp_path / name], Options(jobs=1))

    before = profile("a", (8, 16, 32, "float"), (8, 1, 1, "double"))
    after = profile("b", (8, 16, 32, "c10::BFloat16"), (8, 16, 32, "float"))
    (one,) = list_side_differences(before, after)
    assert (one.name, one.blocking) == ("number types", False)
    assert (one.base, one.opt) == ("float", "BFloat16, float")
    assert list_side_differences(before, before) == ()


def test_ranks_are_in_the_order_of_their_numbers_also_in_reports_of_older_versions(tmp_path):
    measured = read_side("side", [write_run(tmp_path / "run", [100, 100], ranks=11)], Options(jobs=1))
    assert measured.fingerprint["ranks"] == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    assert made(ranks="0, 1, 10, 2").fingerprint["ranks"] == "0, 1, 2, 10"
    assert names(made(ranks="0, 1, 10, 2"), made(ranks="0, 1, 2, 10")) == []
