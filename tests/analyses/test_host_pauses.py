"""Pauses of hosts without a device, by hand. Traces in microseconds, results in nanoseconds."""

import pytest
from chrome_builder import annotation, kernel, op, step, write

from tracekit.pipeline.run import Options, analyze_uncached

MS = 1_000_000
RUNLOOP = 900


def python(name, ts, dur):
    """A call of a Python function on the main thread."""
    return {**op(name, ts, dur), "cat": "python_function"}


def a_step(number, pause=20_000, stage="reward", after="aten::mean", inside=lambda _: ()):
    """A step of 60 ms and the pause: gen with an op of 30 ms, an op of 1 ms and the pause in `stage`, then 29 ms of ops."""
    at = 1000 + number * 200_000
    middle = [op(after, at + 30_000, 1_000)]
    if stage is not None:
        middle.append(annotation(stage, at + 30_000, 1_000 + pause))
    return [
        step(number, at, 60_000 + pause),
        annotation("gen", at, 30_000),
        op("aten::mm", at, 30_000),
        *middle,
        *inside(at + 31_000),
        annotation("update_actor", at + 31_000 + pause, 29_000),
        op("aten::addmm", at + 31_000 + pause, 29_000),
    ]


def steps_of(pauses, **others):
    """Steps 1, 2, … with these pauses."""
    return [row for number, pause in enumerate(pauses, 1) for row in a_step(number, pause, **others)]


def report_on(folder, ranks):
    for rank, rows in enumerate(ranks):
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=len(ranks))
    return analyze_uncached(folder, Options(jobs=1)).report


def silences(report):
    return [finding for finding in report.findings if finding.rule == "host-silence"]


def priced(report):
    (section,) = [section for section in report.sections if section.id == "host-pauses"]
    return [(verdict.reason, verdict.price_ns) for verdict in section.verdicts]


def test_a_pause_in_every_step_is_a_finding_that_saves_the_pause(tmp_path):
    (found,) = silences(report_on(tmp_path, [steps_of([20_000] * 4)]))
    assert found.claim == (
        "no op runs for 20.0 ms of 80.0 ms per step, in reward: no host activity is recorded between aten::mean and aten::addmm"
    )
    assert (found.cost_ns, found.cost_ratio, found.severity) == (20 * MS, 0.25, "high")
    assert [place.stage for place in found.places] == ["reward"]
    assert found.saving.alone_ns == pytest.approx(20 * MS)


def test_a_pause_outside_stages_counts_in_marked_steps(tmp_path):
    (found,) = silences(report_on(tmp_path, [steps_of([20_000] * 4, stage=None)]))
    assert "per step, outside any stage: no host activity" in found.claim
    assert found.saving.alone_ns == pytest.approx(20 * MS)
    unmarked = [row for row in steps_of([20_000] * 4, stage=None) if not row["name"].startswith("ProfilerStep")]
    assert silences(report_on(tmp_path / "unmarked", [unmarked])) == []


def test_recorded_python_is_named(tmp_path):
    def score(at):
        return [python("reward.py(12): score", at, 19_000), python("<built-in function sleep>", at + 100, 18_800)]

    (found,) = silences(report_on(tmp_path, [steps_of([20_000] * 4, inside=score)]))
    assert found.claim.endswith("in reward: the host is in score, reward.py:12")
    assert found.caveats == ()
    assert found.saving.alone_ns == pytest.approx(20 * MS)


def test_the_change_leaves_other_pauses_of_the_stage(tmp_path):
    """5 ms after aten::mean in every step, and 30 ms after aten::sum in one of four: 7.5 ms a step remain."""

    def rows(number):
        more = 30_000 * (number == 2)
        at = 1000 + number * 200_000
        tail = 6_000 + more
        return [
            step(number, at, 40_000 + tail),
            op("aten::mm", at, 30_000),
            annotation("reward", at + 30_000, 10_000 + tail),
            op("aten::mean", at + 30_000, 1_000),
            op("aten::sum", at + 36_000, 1_000),
            op("aten::mm", at + 37_000 + more, 9_000),
        ]

    (found,) = silences(report_on(tmp_path, [[row for number in range(1, 5) for row in rows(number)]]))
    assert found.cost_ns == 5 * MS
    assert found.saving.alone_ns == pytest.approx(5 * MS)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([[20_000, 0, 20_000, 0]], "in half of the steps"),
        ([[0, 20_000, 20_000]], "in two of three steps"),
        ([[20_000] * 4, [0] * 4], "on one of two ranks: the straggler rule names it"),
        ([[600] * 4], "too short to be a pause"),
        ([[1_100, 0, 0, 1_100]], "in the first and the last step"),
    ],
)
def test_pauses_that_do_not_recur_are_no_finding(tmp_path, ranks, why):
    report = report_on(tmp_path, [steps_of(pauses) for pauses in ranks])
    assert silences(report) == [], why


def test_a_pause_elsewhere_in_each_step_is_no_finding(tmp_path):
    """A thread that waits for a core pauses wherever it is."""
    rows = [row for number in range(1, 5) for row in a_step(number, after=f"aten::op{number}")]
    assert silences(report_on(tmp_path, [rows])) == []


def test_waits_for_collectives_and_loaders_are_no_pauses(tmp_path):
    def wait(at):
        return [annotation("gloo:all_reduce", at - 900, 20_850, tid=RUNLOOP)]

    def load(at):
        return [annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 19_900)]

    for name, inside in (("wait", wait), ("load", load)):
        assert silences(report_on(tmp_path / name, [steps_of([20_000] * 4, inside=inside)])) == []


def test_a_device_in_the_run_leaves_the_rule_to_idle_gpus(tmp_path):
    """The other rank works on a GPU."""
    on_gpu = [*steps_of([20_000] * 4), kernel("gemm", 1000, 700_000)]
    report = report_on(tmp_path, [steps_of([20_000] * 4), on_gpu])
    assert not [finding for finding in silences(report) if finding.claim.startswith("no op runs")]


def test_without_ops_nothing_is_said_of_pauses(tmp_path):
    rows = [row for row in steps_of([20_000] * 4) if row["cat"] != "cpu_op"]
    assert silences(report_on(tmp_path, [rows])) == []


def test_two_steps_have_a_price_and_no_finding(tmp_path):
    report = report_on(tmp_path, [steps_of([20_000] * 2)])
    assert silences(report) == []
    assert priced(report) == [("2 of at least 3 steps", 20 * MS)]
