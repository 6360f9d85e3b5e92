"""Paths to a comparison: whatever form a side is given in, the numbers are those of its profiles."""

import itertools
import shutil
from dataclasses import replace

import pytest
from chrome_builder import annotation, op, step, write
from compare.made import change_of, write_run

import tracekit
from tracekit.compare.comparison import Comparison
from tracekit.model.errors import TracekitError
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.render import write_report_json

BASE = (
    [3000, 1020, 1040, 1010, 1060, 1030],
    [2500, 1050, 1020, 1040],
    [2000, 1010, 1000, 1030],
    [2200, 1020, 1030, 1025],
)
OPT = ([3000, 910, 930, 900, 920, 940], [2000, 930, 910], [1500, 900, 940, 920], [1800, 930, 920, 940])
"""The worked example in microseconds, each run after a first step of warm-up."""

FORMS = ("profile", "measurements", "report")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """Runs of two ranks below base/ and opt/."""
    root = tmp_path_factory.mktemp("profiles")
    for side, runs in (("base", BASE), ("opt", OPT)):
        for number, lasting in enumerate(runs, 1):
            write_run(root / side / f"run{number}", lasting, ranks=2)
    return root


@pytest.fixture(scope="module")
def kept(profiles, tmp_path_factory):
    """The paths of both sides in every form."""
    folder = tmp_path_factory.mktemp("kept")
    return {(form, side): saved_as(form, profiles / side, folder) for form in FORMS for side in ("base", "opt")}


@pytest.fixture(scope="module")
def direct(profiles):
    """The comparison of the profiles themselves."""
    return compare(profiles / "base", profiles / "opt")


def saved_as(form, path, folder):
    """The path of the same runs in another form."""
    if form == "profile":
        return path
    result = pipeline.analyze_uncached(path, pipeline.Options(jobs=1))
    folder.mkdir(parents=True, exist_ok=True)
    if form == "measurements":
        saved_measurements.save(result.measurements, folder / f"{path.name}.tkm")
        return folder / f"{path.name}.tkm"
    (folder / f"{path.name}.json").write_text(write_report_json(result.report), encoding="utf-8")
    return folder / f"{path.name}.json"


def compare(base, opt, **options):
    return tracekit.compare(base, opt, jobs=1, **options)


def test_directories_of_runs_give_the_worked_example(direct):
    found = direct
    assert isinstance(found, Comparison)
    assert (found.base, found.opt, found.verdict) == ("base", "opt", "improvement")
    step = found.headline
    assert (step.ratio, step.low, step.high) == pytest.approx((1.112979, 1.096578, 1.129627), abs=1e-6)
    assert len(found.dropped) == 8
    assert {one.reason for one in found.dropped} == {"warm-up step"}
    assert found.reading == (
        "base: 4 runs × 3–5 steps, 2 ranks, 4 left out",
        "opt: 4 runs × 2–5 steps, 2 ranks, 4 left out",
    )


@pytest.mark.parametrize("form", FORMS[1:])
def test_what_was_saved_gives_the_numbers_of_the_profile(kept, direct, form):
    told, profile = compare(kept[form, "base"], kept[form, "opt"]), direct
    assert told.headline == profile.headline
    assert told.changes == profile.changes
    assert [replace(one, side="") for one in told.dropped] == [replace(one, side="") for one in profile.dropped]
    assert told.differences == profile.differences


def test_forms_may_be_mixed(profiles, kept, direct, tmp_path):
    runs = [profiles / "base" / f"run{number}" for number in (1, 2, 3, 4)]
    base = [saved_as(form, run, tmp_path) for form, run in zip((*FORMS, "profile"), runs, strict=True)]
    assert compare(base, kept["report", "opt"]).headline == direct.headline


def test_repeated_options_are_runs_in_whatever_order(profiles, kept):
    base = [profiles / "base" / f"run{n}" for n in (1, 2, 3)]
    first, other = (compare(runs, kept["report", "opt"]) for runs in (base, base[::-1]))
    assert first.headline.base_runs == 3
    assert tracekit.render(first, "json") == tracekit.render(other, "json")


def test_saved_reports_of_equal_names_are_runs_in_whatever_order(profiles, kept, tmp_path):
    reports = []
    for number in (1, 2, 3):
        shutil.copytree(profiles / "base" / f"run{number}", tmp_path / "x" / str(number) / "run")
        reports.append(saved_as("report", tmp_path / "x" / str(number) / "run", tmp_path / str(number)))
    found = [compare(order, kept["report", "opt"]) for order in itertools.permutations(reports)]
    assert found[0].headline.base_runs == 3
    assert len({tracekit.render(one, "json") for one in found}) == 1
    # Three of base against four: log means (2.334084 + 2.338596 + 2.315830) / 3 − 2.221906 = .107597.
    assert found[0].headline.ratio == pytest.approx(1.113599, abs=1e-6)


def test_a_side_is_called_by_its_label(profiles, kept):
    found = compare(f"before={profiles / 'base'}", f"after={kept['report', 'opt']}")
    assert (found.base, found.opt) == ("before", "after")


@pytest.mark.parametrize("form", FORMS[1:])
def test_a_label_names_what_was_saved_too(kept, direct, form):
    found = compare(f"before={kept[form, 'base']}", f"after={kept['report', 'opt']}")
    assert (found.base, found.opt) == ("before", "after")
    assert found.headline == direct.headline


def test_sides_of_equal_names_are_base_and_opt(kept, tmp_path):
    shutil.copy(kept["report", "opt"], tmp_path / "base.json")
    found = compare(kept["report", "base"], tmp_path / "base.json")
    assert (found.base, found.opt) == ("base", "opt")


@pytest.mark.parametrize("form", FORMS[1:])
def test_one_profile_twice_is_said(kept, form):
    found = compare(kept[form, "base"], kept["report", "base"])
    assert "both sides have the same files: the same profile was given twice" in found.warnings
    assert found.verdict not in ("improvement", "regression")


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("part", [{"ranks": "0"}, {"steps": "2-3"}, {"stages": ["gen"]}])
def test_what_was_saved_is_not_cut_without_a_word(kept, form, part):
    with pytest.raises(TracekitError, match="saved results cannot be limited"):
        compare(kept[form, "base"], kept["report", "opt"], **part)


def test_a_profile_is_cut_to_steps(profiles):
    found = compare(profiles / "base" / "run1", profiles / "opt" / "run1", steps="2-4", drop_first=0)
    assert found.headline.base == pytest.approx((1020 + 1040 + 1010) / 3 * 1e3)


def test_all_base_runs_before_all_opt_runs_is_seen_in_profiles(tmp_path):
    for at, (side, number) in enumerate([("base", 1), ("base", 2), ("opt", 1), ("opt", 2)]):
        write_run(tmp_path / "blocked" / side / f"r{number}", [100, 101], origin_us=at * 10_000_000)
    for at, (side, number) in enumerate([("base", 1), ("opt", 1), ("base", 2), ("opt", 2)]):
        write_run(tmp_path / "alternated" / side / f"r{number}", [100, 101], origin_us=at * 10_000_000)
    blocked, alternated = (
        compare(tmp_path / design / "base", tmp_path / design / "opt", drop_first=0)
        for design in ("blocked", "alternated")
    )
    assert any("all base runs ran before all opt runs" in line for line in blocked.warnings)
    assert not any("runs ran before" in line for line in alternated.warnings)


def test_another_world_size_is_not_comparable(tmp_path):
    two, four = (write_run(tmp_path / f"ranks{n}", [100, 101, 100], ranks=n) for n in (2, 4))
    assert compare(two, four).verdict == "not comparable"
    assert compare(two, four, force=True).verdict == "inconclusive"


def test_captures_of_one_process_are_runs(tmp_path):
    """One worker, whose profiler began twice: neither window may stand for the other's noise."""
    for side, windows in (("base", BASE[:2]), ("opt", OPT[:2])):
        for number, lasting in enumerate(windows):
            at, rows = number * 60_000_000, []
            for count, dur in enumerate(lasting, 1):
                rows.append(step(count, at, dur))
                at += dur
            write(tmp_path / side / f"worker0.{1_700_000_000_000 + number}.pt.trace.json", rows, rank=0, world_size=1)
    step_change = compare(tmp_path / "base", tmp_path / "opt").headline
    assert (step_change.base_runs, step_change.opt_runs) == (2, 2)
    assert (step_change.base_steps, step_change.opt_steps) == (5 + 3, 5 + 2)
    # Means 1032 and 1036.7 over 920 and 920.
    assert step_change.ratio == pytest.approx((1032 * (3110 / 3)) ** 0.5 / 920)
    assert step_change.label == "run-to-run", "the runs of opt do not differ: base has its own spread"


def test_stages_without_step_numbers_are_compared(tmp_path):
    """A file a stage and no step: one step, made of its stages."""
    for side, lasting in (("base", 200), ("opt", 100)):
        rows = [annotation("generate_sequences", 0, lasting), op("aten::mm", 5, lasting // 2)]
        write(tmp_path / side / "rank0.json", rows, rank=0, world_size=1)
    found = compare(tmp_path / "base", tmp_path / "opt")
    assert (found.verdict, found.headline.label) == ("inconclusive", "no interval")
    assert found.headline.base_steps == 1


def test_a_profile_without_a_single_step_is_an_error(tmp_path, kept):
    write(tmp_path / "empty" / "rank0.json", [{"ph": "i", "name": "x", "ts": 1, "pid": 1, "tid": 1, "s": "t"}])
    with pytest.raises(TracekitError):
        compare(tmp_path / "empty", kept["report", "opt"])


def test_damaged_and_unreadable_sources_of_a_side_are_said(tmp_path):
    whole, cut = (write_run(tmp_path / name, [100] * 4, ranks=2) for name in ("whole", "cut"))
    part = cut / "rank0.json"
    part.write_bytes(part.read_bytes().removesuffix(b"]}"))
    (cut / "rank1.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": [')
    warnings = " ".join(compare(whole, cut).warnings)
    assert "cut: 1 source is damaged" in warnings
    assert "cut: 1 source could not be read" in warnings
    assert "whole: " not in warnings


def test_a_missing_baseline_is_an_error(tmp_path, kept):
    with pytest.raises(TracekitError, match="missing"):
        compare(tmp_path / "missing.json", kept["report", "opt"])


def test_a_report_that_was_cut_off_is_an_error_of_one_line(tmp_path, kept):
    path = tmp_path / "base.json"
    path.write_text(kept["report", "base"].read_text(encoding="utf-8")[:-200], encoding="utf-8")
    with pytest.raises(TracekitError) as error:
        compare(path, kept["report", "opt"])
    assert "base.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_stages_of_a_profile_are_compared(tmp_path):
    def write_side(side, gen, ref):
        rows, at = [], 0
        for number in (1, 2, 3, 4):
            rows += [step(number, at, 1000), annotation("gen", at, gen)]
            rows += [annotation("ref", at + 500, ref)] if ref else []
            at += 1000
        write(tmp_path / side / "rank0.json", rows, rank=0, world_size=1)
        return tmp_path / side

    found = compare(write_side("base", 400, 100), write_side("opt", 200, 0))
    gen = next(c for c in found.changes if c.name == "stage_time" and c.opt is not None)
    ref = next(c for c in found.changes if c.name == "stage_time" and c.opt is None)
    assert (gen.base, gen.opt, gen.ratio) == (400e3, 200e3, pytest.approx(2))
    assert (ref.base, ref.word) == (100e3, "only before")
    assert change_of(found, "step_time").ratio == 1
