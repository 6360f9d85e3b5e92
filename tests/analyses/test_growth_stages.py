"""Growth is named with the stage that allocates the kept memory: of snapshots, profiles and logs."""

import pytest
from made_tables import make_measured
from memory_builder import MIB, Allocator, frame, pickled, snapshot, stack

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.memory import memory_growth
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

THRESHOLDS = load_default_thresholds()
GIB = 2**30
KEEP = [
    frame("keep", line=4),
    frame("update_policy", "/opt/verl/dp_actor.py", 10),
    frame("fit", "/opt/verl/trainer.py", 20),
]


def findings(folder):
    report = analyze_uncached(folder, Options(jobs=1, questions=("leaks", "memory-growth"))).report
    (section,) = [section for section in report.sections if section.id == "leaks"]
    return [finding for finding in report.findings if finding.rule == "memory-growth"], section


def written_steps(folder, work, steps=4):
    """A snapshot after each step; `work` does one step on the device."""
    device = Allocator()
    device.alloc(8 * MIB, stack("build"))
    for number in range(steps):
        device.clear_history()
        work(device, number)
        where = folder / f"step{number}"
        where.mkdir()
        (where / "torch_memory_rank0_pid7.pickle").write_bytes(pickled(snapshot(device)))
    return folder


def test_functions_of_the_stack_name_the_stage(tmp_path):
    """`update_policy` of verl is in the stack: stage update_actor, in the claim, the place and the table."""
    (finding,), section = findings(written_steps(tmp_path, lambda device, _: device.alloc(MIB, KEEP)))
    assert finding.claim.startswith(
        "memory allocated in job/train.py:4 keep (stage update_actor) is kept: 1.00 MiB more per step"
    )
    assert finding.places[0].stage == "update_actor"
    (sheet,) = section.sheets
    place = [heading.name for heading in sheet.headings].index("stage")
    assert [row[place] for row in sheet.rows] == ["update_actor"]


def test_ranges_of_the_snapshot_are_surer_than_functions(tmp_path):
    """The same stack allocates in gen and in compute_values; blocks of gen are freed, so the kept ones are of values."""

    def work(device, _):
        device.annotate("gen", "START")
        first = device.alloc(3 * MIB, KEEP)
        device.annotate("gen", "END")
        device.annotate("compute_values", "START")
        device.alloc(MIB, KEEP)
        device.annotate("compute_values", "END")
        device.free(first)

    (finding,), _ = findings(written_steps(tmp_path, work))
    assert "train.py:4 keep (stage values) is kept: 1.00 MiB more per step" in finding.claim


def test_no_stage_is_named_where_two_ranges_keep_as_much_or_nothing_shows_one(tmp_path):
    """Both ranges keep 1 MiB. In the stack, `forward` is no stage of the RL step."""

    def work(device, _):
        for name in ("gen", "compute_values"):
            device.annotate(name, "START")
            device.alloc(MIB, stack("keep", "forward"))
            device.annotate(name, "END")

    (finding,), _ = findings(written_steps(tmp_path, work))
    assert finding.claim.startswith("memory allocated in job/train.py:4 keep is kept: 2.00 MiB more per step")
    assert finding.places[0].stage is None


@pytest.mark.parametrize(("others", "stage"), [(0, "update_actor"), (2, None)])
def test_the_stage_that_allocates_most_new_segments_is_named_for_reserved_memory(tmp_path, others, stage):
    """Each step asks for 2 MiB more than before, so no cached segment fits; `others` such requests are of no stage."""

    def work(device, number):
        frames = [KEEP] + [stack("other")] * others
        for address in [device.alloc((40 + 2 * number) * MIB, of_one) for of_one in frames]:
            device.free(address)

    written_steps(tmp_path, work, steps=10)
    questions = ("leaks", "memory-growth", "reserved-growth", "fragmentation")
    report = analyze_uncached(tmp_path, Options(jobs=1, questions=questions)).report
    (finding,) = [finding for finding in report.findings if finding.rule == "reserved-growth"]
    assert finding.claim.endswith("; stage update_actor allocates most of the new segments") == (stage is not None)
    assert finding.places[0].stage == stage


# the trend

OWNER = {"run": "r", "source": "a", "rank": 0, "device": 0, "device_type": 1, "tool": "torch"}
LOGGED = {"run": "r", "source": "log", "rank": 0, "device": 0, "tool": "log", "quantity": "allocated"}


def growing(section):
    (finding,) = section.findings
    trend = next(sheet for sheet in section.sheets if sheet.name == "memory_trend")
    names = [heading.name for heading in trend.headings]
    stage = dict(zip(names, trend.rows[0], strict=True)).get("stage")
    assert (stage is None) == (", allocated in stage" not in finding.claim)
    assert all(place.stage == stage for place in finding.places)
    return stage, finding


def profiled(stages, steps=12):
    """Profiles of one GPU: `stages` are (name, levels at begin and end in MiB over the level of the step)."""
    rows, peaks = {"memory_steps": [], "memory_stages": []}, []
    for step in range(steps):
        base = GIB + 10 * MIB * step
        common = {**OWNER, "step": step, "occurrence": 0, "dur_ns": 100}
        rows["memory_steps"].append(
            {**common, "ts_ns": 1000 * step, "relative": False, "floor_bytes": base, "end_bytes": base}
        )
        for place, (name, begin, end) in enumerate(stages):
            levels = {"begin_bytes": base + begin * MIB, "end_bytes": base + end * MIB}
            rows["memory_stages"].append({**common, "stage": name, "ts_ns": 1000 * step + 10 * place, **levels})
    peaks = [
        {
            **OWNER,
            "sample_count": 9,
            "unsound_count": 0,
            "relative": False,
            "peak_bytes": 2 * GIB,
            "peak_ts_ns": 0,
            "omitted_stage_count": 0,
        }
    ]
    return memory_growth.judge(make_measured(**rows, memory_peaks=peaks), THRESHOLDS)


def test_the_stage_whose_net_change_is_the_growth_is_named():
    """Each step keeps 10 MiB: gen returns all its memory, update_actor all but 10 MiB of its own."""
    stage, finding = growing(profiled([("generate_sequences", 0, 0), ("update_actor", 0, 10)]))
    assert stage == "update_actor"
    assert "grows by 10.0 MiB per step, allocated in stage update_actor" in finding.claim
    assert any("net change" in caveat for caveat in finding.caveats)


@pytest.mark.parametrize(
    "stages",
    [
        [("generate_sequences", 0, 5), ("update_actor", 5, 10)],  # both keep some
        [("generate_sequences", 0, 500), ("update_actor", 500, 10)],  # one loads, the other unloads
        [("generate_sequences", 0, 0), ("update_actor", 10, 10)],  # between them
    ],
)
def test_no_stage_is_named_where_several_change_the_level(stages):
    assert growing(profiled(stages))[0] is None


def logged(points, steps=12):
    """Levels of a log at points of each step, in MiB over the level of the step."""
    rows = [
        {
            **LOGGED,
            "step": step,
            "position": 10 * step + place,
            "point": point,
            "level_bytes": GIB + 10 * MIB * step + level * MIB,
        }
        for step in range(steps)
        for place, (point, level) in enumerate(points)
    ]
    return make_measured(step_levels=rows)


def test_points_before_and_after_stages_of_a_log_name_the_stage():
    measured = logged([("Before update_actor", 0), ("After update_actor", 10), ("Before ref", 10), ("After ref", 10)])
    assert growing(memory_growth.judge(measured, THRESHOLDS))[0] == "update_actor"


def test_points_that_are_no_pair_name_no_stage():
    assert growing(memory_growth.judge(logged([("After update_actor", 10)]), THRESHOLDS))[0] is None


def test_lines_of_the_log_about_the_gpu_name_the_stage_of_another_source():
    """A CSV has one level per step; verl's lines of the same rank have the points."""
    lines = [
        {
            "run": "r", "source": "train.log", "line": 10 * step + place, "logged_rank": 0, "step": step, "point": point,
            "mark": "none", "allocated_bytes": GIB + 10 * MIB * step + level * MIB,
        }
        for step in range(12)
        for place, (point, level) in enumerate([("Before update_actor", 0), ("After update_actor", 10)])
    ]  # fmt: skip
    levels = [{**LOGGED, "step": step, "position": step, "level_bytes": GIB + 10 * MIB * step} for step in range(12)]
    measured = make_measured(step_levels=levels, card_lines=lines)
    assert growing(memory_growth.judge(measured, THRESHOLDS))[0] == "update_actor"
