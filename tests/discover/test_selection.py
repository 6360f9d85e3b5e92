"""What is asked for of ranks, steps and stages: a filter that selects nothing is an error that lists what there is."""

from __future__ import annotations

import pytest
from chrome_builder import annotation, kernel, op, step, write
from memory_builder import pickled, snapshot

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.model.stages import make_stage_filter
from tracekit.pipeline.run import Options, measure

QUESTIONS = frozenset({"steps"})
LOG = "".join(f"step:{n} - timing_s/gen:1.5 - timing_s/step:3.0 - training/global_step:{n}\n" for n in range(1, 7))


def rows(steps=(1, 2), *, known=True):
    """Steps of 100 µs with `gen` and `update_actor`; of a capture without numbers only the stages."""
    found = []
    for place, number in enumerate(steps):
        zero = 100 * place
        found += [step(number, zero, 100)] if known else []
        found += [annotation("gen", zero + 5, 40), op("aten::mm", zero + 6, 10)]
        found += [annotation("update_actor", zero + 50, 40), kernel("gemm", zero + 60, 5, 3)]
    return found


@pytest.fixture
def run(tmp_path):
    """Ranks 0 and 1 with steps 1 and 2; beside them a driver's log of steps 1 to 6 and a trace of no rank."""
    for rank in (0, 1):
        write(tmp_path / "run" / f"rank{rank}.json", rows(), rank=rank, world_size=2)
    (tmp_path / "run" / "driver.log").write_text(LOG)
    return tmp_path / "run"


def refused(path, **options):
    """The problem and the hint of what selects nothing."""
    with pytest.raises(TracekitError) as caught:
        measure_all(path, **options)
    return caught.value.problem, caught.value.hint


def measure_all(path, **options):
    from tracekit.pipeline import run as pipeline

    chosen = Options(jobs=1, **options, questions=QUESTIONS)
    return measure(pipeline.discover_sources([path], chosen), chosen)


@pytest.mark.parametrize("by_name", [True, False], ids=["name", "content"])
@pytest.mark.parametrize("others", [(), ("log", "unknown", "snapshot")], ids=["alone", "beside others"])
@pytest.mark.parametrize(
    ("asked", "which", "listed"),
    [
        ({"ranks": "7"}, "rank", "ranks 0, 1"),
        ({"steps": "99"}, "step", "steps 1"),
        ({"stages": ("nosuch",)}, "stage", "stages gen, update_actor"),
        ({"stages": ("date",)}, "stage", "update_actor"),
    ],
)
def test_a_filter_that_selects_nothing_says_so_and_lists_what_there_is(tmp_path, by_name, others, asked, which, listed):
    folder = tmp_path / "run"
    for rank in (0, 1):
        name = f"rank{rank}.json" if by_name else f"{'ab'[rank]}.json"
        write(folder / name, rows(), rank=rank, world_size=2)
    if "log" in others:
        (folder / "driver.log").write_text(LOG)
    if "unknown" in others:
        write(folder / "other.json", rows(known=False)[:2])
    if "snapshot" in others:
        (folder / "dump.pickle").write_bytes(pickled(snapshot()))
    problem, hint = refused(folder, **asked)
    assert f"has a {which} that was asked for" in problem
    assert listed in hint


def test_what_no_file_tells_cannot_be_asked_for(tmp_path):
    """One turn of the stages alone: several would be steps."""
    write(tmp_path / "trace.json", rows((1,), known=False))
    for asked, which in (({"ranks": "0"}, "rank"), ({"steps": "1"}, "step")):
        problem, hint = refused(tmp_path, **asked)
        assert f"has a {which} that was asked for" in problem
        assert f"no file here says its {which}" in hint
        assert "stages gen, update_actor" in hint


def test_filters_that_select_something_each_and_nothing_together(run):
    write(run / "rank1.json", rows((3, 4)), rank=1, world_size=2)
    problem, hint = refused(run, ranks="1", steps="1")
    assert "holds all that was asked for" in problem
    assert "ranks 0, 1; steps 1" in hint


def test_names_that_tell_all_are_enough_and_nothing_is_read(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"x_actor-update_step3_rank{rank}_pid1_20261120073304048.json").write_text(
            f'{{"rank": {rank}, "traceEvents": [{{"ph": "X", "ts"'
        )
    (tmp_path / "driver.log").write_text(LOG)
    for asked, listed in (
        ({"ranks": "2"}, "ranks 0, 1; steps 3"),
        ({"steps": "9"}, "steps 1–6"),
        ({"stages": ("gen",)}, "stages update_actor"),
    ):
        problem, hint = refused(tmp_path, **asked)
        assert "none of 2 profiles" in problem
        assert listed in hint


def test_a_log_alone_is_asked_for_its_steps_and_stages_and_has_no_ranks(tmp_path):
    (tmp_path / "driver.log").write_text(LOG)
    assert len(measure_all(tmp_path, steps="2-3").sources) == 1
    assert len(measure_all(tmp_path, stages=("gen",)).sources) == 1
    assert "steps 1–6" in refused(tmp_path, steps="9")[1]
    assert "stages gen" in refused(tmp_path, stages=("ref",))[1]
    assert "no file here says its rank" in refused(tmp_path, ranks="0")[1]


def test_steps_of_the_log_alone_are_there(run):
    assert {s.tool for s in measure_all(run, steps="5").sources} == {"log"}
    assert "steps 1–6" in refused(run, steps="99")[1]


@pytest.mark.parametrize(
    ("pattern", "stages"),
    [
        ("update_actor", {"update_actor"}),
        ("update*", {"update_actor", "update_weights"}),
        ("*actor", {"update_actor"}),
        ("Update-Actor", {"update_actor"}),
        ("actor_update", {"update_actor"}),
        ("policy_training", {"update_actor"}),
        ("*log?prob", {"old_log_prob"}),
        ("[ug]*", {"gen", "update_actor", "update_weights"}),
        ("actor*", set()),
        ("actor", set()),
        ("date", set()),
        ("", set()),
        ("*", {"gen", "old_log_prob", "update_actor", "update_weights"}),
    ],
)
def test_patterns_are_globs_on_the_names_of_stages(pattern, stages):
    wanted = make_stage_filter((pattern,))
    canonical = ("gen", "old_log_prob", "update_actor", "update_weights")
    assert {name for name in canonical if wanted(name, None)} == stages


def test_recorded_names_are_matched_as_well_and_the_role_tells_whose_training_it_is():
    assert make_stage_filter(("actor-*",))("actor_update", None)
    assert make_stage_filter(("train_*",))("train_batch", "critic")
    assert make_stage_filter(("update_critic",))("train_batch", "critic")
    assert not make_stage_filter(("update_actor",))("train_batch", "critic")
    assert make_stage_filter(("gen", "ref"))("compute_ref_log_prob", None)


def test_every_command_refuses_what_selects_nothing(run, tmp_path, call):
    for command in (
        ("analyze", run, "-q", "-j", 1),
        ("compare", run, run, "-q", "-j", 1),
        ("export", run, "--perfetto", tmp_path / "x.json.gz", "-q", "-j", 1),
        ("noise", run, run, "-o", tmp_path / "n.toml", "-q", "-j", 1),
    ):
        for filters in (("--ranks", 7), ("--steps", 99), ("--stages", "nosuch"))[: 2 if command[0] == "noise" else 3]:
            done = call(*command, *filters)
            assert done.exit_code == 2, (command, filters, done.output)
            assert "there are ranks 0, 1" in done.stderr, (command, filters)
    assert not (tmp_path / "x.json.gz").exists()


def test_python_takes_one_pattern_or_several(run):
    one, several = (
        tracekit.analyze(run / "rank0.json", stages=stages, jobs=1, questions=QUESTIONS)
        for stages in ("update*", ["update*", "nosuch"])
    )
    assert one.sections == several.sections
    with pytest.raises(TracekitError, match="has a stage that was asked for"):
        tracekit.analyze(run / "rank0.json", stages="date", jobs=1, questions=QUESTIONS)
