"""What-ifs about memory: against the independent model's own runs with the change, and worked by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from allocator_model import MIB, Model, Setting, train
from memory_builder import Allocator, frame, pickled, snapshot

import tracekit
from tracekit.model.errors import TracekitError
from tracekit.replay.changes import ChangeError
from tracekit.replay.memory.memory_changes import MEMORY_VERBS, parse_memory_change

GIB = 2**30
OF_CACHE = frame("initialize_kv_cache", "/opt/vllm/v1/worker/gpu_model_runner.py", 900)
OF_WEIGHTS = frame("load_model", "/opt/vllm/v1/worker/gpu_worker.py", 200)


def ask(tmp_path, made, *changes, **options):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickled(made.snapshot() if isinstance(made, Model) else snapshot(made)))
    return tracekit.whatif_memory(path, list(changes), **options)


def rows_of(report, name="changes"):
    return report.tables[name].to_dict("records")


def predict(tmp_path, made, *changes, **options):
    """The row of the last change."""
    return rows_of(ask(tmp_path, made, *changes, **options))[-1]


# Against the independent model: its own run with the change

CHANGES = {
    "expandable": ({}, Setting(expandable=True)),
    "max_split=24MB": ({}, Setting(max_split=24 * MIB)),
    "scale=forward:0.5": ({"scale": {"forward": 0.5}}, Setting()),
    "scale=forward:1.5": ({"scale": {"forward": 1.5}}, Setting()),
    "micro_batch=0.5": ({"scale": {"forward": 0.5, "backward": 0.5}}, Setting()),
    "offload=optimizer": ({"offloaded": True}, Setting()),
    "empty_cache@Optimizer.step": ({"emptied": True}, Setting()),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_gives_the_peak_of_a_run_with_it(tmp_path, change, seed):
    work, setting = CHANGES[change]
    row = predict(tmp_path, Model(categories=True).run(train(seed)), change)
    truth = Model(setting).run(train(seed, **work))
    assert (row["alone_bytes"], row["active_bytes"]) == truth.peaks


def test_every_change_matters_in_one_of_these_runs():
    """Otherwise the test above would compare nothing."""
    for change, (work, setting) in CHANGES.items():
        pairs = [(Model(setting).run(train(seed, **work)).peaks, Model().run(train(seed)).peaks) for seed in range(3)]
        assert any(changed != recorded for changed, recorded in pairs), change


@pytest.mark.parametrize("seed", range(2))
def test_changes_add_up(tmp_path, seed):
    names = ["offload=optimizer", "micro_batch=0.5", "expandable"]
    rows = rows_of(ask(tmp_path, Model(categories=True).run(train(seed)), *names))
    work = {"offloaded": True, "scale": {"forward": 0.5, "backward": 0.5}}
    truth = [
        Model().run(train(seed, offloaded=True)),
        Model().run(train(seed, **work)),
        Model(Setting(expandable=True)).run(train(seed, **work)),
    ]
    assert [row["peak_bytes"] for row in rows] == [each.peaks[0] for each in truth]


def test_without_a_change_each_that_applies_is_tried_and_the_best_come_first(tmp_path):
    model = Model(categories=True).run(train(1))
    report = ask(tmp_path, model)
    rows = rows_of(report)
    alone = [row["alone_bytes"] for row in rows]
    assert alone == sorted(alone)
    assert {row["change"] for row in rows} == {
        "expandable",
        "micro_batch=0.5",
        "offload=optimizer",
        "empty_cache@Optimizer.step",
    }
    together = [int(row["peak_bytes"]) for row in rows if row["peak_bytes"] == row["peak_bytes"]]
    assert together == sorted(together, reverse=True)
    assert together[0] == alone[0] < model.peaks[0]
    assert "not predicted: max_split=128MB: no allocation has 128 MiB or more" in report.cautions
    (history,) = rows_of(report, "histories")
    assert (history["match"], history["peak_bytes"], history["before_bytes"]) == ("exact", model.peaks[0], 0)


# Worked by hand


def test_the_kv_cache_gets_a_share_of_the_device(tmp_path):
    """Weights of 2 GiB and a cache of 6: at 0.25 of 16 GiB the cache has 4, and one request of 512 MiB is beside them."""
    made = Allocator()
    made.alloc(2 * GIB, [OF_WEIGHTS])
    made.alloc(6 * GIB, [OF_CACHE])
    made.clear_history()
    made.free(made.alloc(512 * MIB))
    row = predict(tmp_path, made, "kv_cache=0.25", device_memory=16 * GIB)
    assert row["touched"] == "0 allocations, 1 earlier block"
    assert row["touched_bytes"] == 6 * GIB
    assert row["alone_bytes"] == row["active_bytes"] == 2 * GIB + 4 * GIB + 512 * MIB
    assert predict(tmp_path, made, "kv_cache=0.75", device_memory=16 * GIB)["alone_bytes"] == 14 * GIB + 512 * MIB


def test_memory_before_the_history_shrinks_within_its_segment(tmp_path):
    """4 of 20 MiB are used by two sites. Halved, one leaves 1 MiB more in the segment, whose size stays."""
    made = Allocator()
    made.alloc(2 * MIB, [frame("forward")])
    made.alloc(2 * MIB, [frame("other")])
    made.clear_history()
    made.free(made.alloc(700))
    row = predict(tmp_path, made, "scale=forward:0.5")
    assert row["alone_bytes"] == 22 * MIB
    assert row["active_bytes"] == 3 * MIB + 1024
    with pytest.raises(ChangeError, match="cannot grow"):
        ask(tmp_path, made, "scale=forward:1.5")


def test_an_engine_pool_forbids_expandable_segments(tmp_path):
    made = Allocator()
    made.alloc(64 * MIB, [OF_CACHE], pool=(0, 1))
    made.free(made.alloc(30 * MIB, [frame("forward")]))
    with pytest.raises(ChangeError, match="expandable: a pool of engine KV cache forbids expandable segments"):
        ask(tmp_path, made, "expandable")
    report = ask(tmp_path, made)
    assert any("a pool of engine KV cache forbids" in caution for caution in report.cautions)


def test_a_private_pool_stays_apart(tmp_path):
    """Neither an emptied cache nor a split limit touches the segment of a private pool; its free block serves nobody else."""
    made = Allocator()
    made.free(made.alloc(64 * MIB, [frame("pool")], pool=(0, 1)))
    made.annotate("update", "START")
    made.free(made.alloc(40 * MIB, [frame("a")]))
    made.annotate("update", "END")
    made.free(made.alloc(50 * MIB, [frame("b")]))
    row = predict(tmp_path, made, "empty_cache@update")
    assert row["alone_bytes"] == 64 * MIB + 50 * MIB
    assert row["alone_saved_bytes"] == 40 * MIB


def test_garbage_collection_needs_the_size_of_the_device(tmp_path):
    model = Model().run(
        [("alloc", 1, 40 * MIB), ("free", 1), ("alloc", 2, 60 * MIB), ("free", 2), ("alloc", 3, 70 * MIB)]
    )
    with pytest.raises(ChangeError, match="it is a share of the device"):
        ask(tmp_path, model, "gc=0.5")
    # 100 MiB are reserved before the third request; 0.5 of 160 are 80. The 40 MiB, unused for longest, go back.
    row = predict(tmp_path, model, "gc=0.5", device_memory=160 * MIB)
    assert (row["alone_bytes"], row["alone_saved_bytes"]) == (130 * MIB, 40 * MIB)


# The largest micro-batch


def batch(size, weights=100):
    """Weights, and activations of 10 MiB a sample."""
    work = [("alloc", 1, weights * MIB, 0, "weights"), ("alloc", 2, 10 * size * MIB, 0, "forward"), ("free", 2)]
    return Model(categories=True).run(work)


def test_the_largest_micro_batch_from_one_history(tmp_path):
    """100 + 10 × 40 MiB are the 500 of the device."""
    report = ask(tmp_path, batch(4), device_memory=500 * MIB, micro_batch=4)
    assert "largest micro-batch in 500 MiB: 40 (from one history, with activations scaled)" in report.answer
    report = ask(tmp_path, batch(4), device_memory=499 * MIB, micro_batch=4)
    assert "in 499 MiB: 39 (" in report.answer
    report = ask(tmp_path, batch(4, weights=600), device_memory=500 * MIB, micro_batch=4)
    assert "in 500 MiB: 0 (" in report.answer


def test_the_largest_micro_batch_fitted_to_two_histories(tmp_path):
    for size in (4, 8):
        (tmp_path / f"{size}.pickle").write_bytes(pickled(batch(size).snapshot()))
    paths = [tmp_path / "4.pickle", tmp_path / "8.pickle"]
    report = tracekit.whatif_memory(paths, device_memory=505 * MIB, micro_batch=(4, 8))
    assert "largest micro-batch in 505 MiB: 40 (from the peaks of two histories, on a line)" in report.answer
    report = tracekit.whatif_memory(paths, device_memory=505 * MIB, micro_batch=(4, 4))
    no_slope = "largest micro-batch: two histories with the same micro-batch give no slope: give two different sizes"
    assert [caution for caution in report.cautions if caution.startswith(no_slope)]


def test_memory_that_may_scale_widens_the_interval(tmp_path):
    """Without categories, 20 MiB that are as large as the weights may be a gradient: 20 + 20 + 10 b, or 20 + (20 + 40) b / 4."""
    work = [
        ("alloc", 1, 20 * MIB, 0, "weights"),
        ("alloc", 3, 20 * MIB),
        ("alloc", 2, 40 * MIB),
        ("free", 2),
        ("free", 3),
    ]
    report = ask(tmp_path, Model().run(work), device_memory=200 * MIB, micro_batch=4)
    assert "largest micro-batch in 200 MiB: 12 to 16 (" in report.answer
    assert any("25 % of the memory at the peak may scale or not" in caution for caution in report.cautions)


def test_the_interval_contains_the_truth(tmp_path):
    """The model's own runs with other micro-batches: the largest without an error is within the ends."""
    for seed in range(3):
        limit = 400 * MIB
        truth = 0
        for size in range(1, 40):
            scaled = {"forward": size / 4, "backward": size / 4}
            if Model(Setting(limit=limit)).run(train(seed, scale=scaled, steps=3)).failed:
                break
            truth = size
        report = ask(tmp_path, Model(categories=True).run(train(seed, steps=3)), device_memory=limit, micro_batch=4)
        assert f"largest micro-batch in 400 MiB: {truth} (" in report.answer


def test_segments_of_earlier_steps_are_in_the_peak_but_not_in_that_from_an_empty_cache(tmp_path):
    """A step used 100 MiB before the history; in it are 60. Halved, 30 fit into the cached 100: from an empty cache 30 do."""
    made = Allocator()
    made.free(made.alloc(100 * MIB, [frame("forward")]))
    made.clear_history()
    made.free(made.alloc(60 * MIB, [frame("forward")]))
    report = ask(tmp_path, made, "scale=forward:0.5")
    (row,), (history,) = rows_of(report), rows_of(report, "histories")
    assert (row["alone_bytes"], row["emptied_bytes"]) == (100 * MIB, 30 * MIB)
    assert (history["peak_bytes"], history["emptied_bytes"]) == (100 * MIB, 60 * MIB)
    assert any("100 MiB were reserved before the history" in caution for caution in report.cautions)


# A request that ran out of memory


def fragmented(setting):
    """Three segments of 60 MiB, each half in use; then 80 MiB are asked for."""
    work = [("alloc", key, 60 * MIB, 0, "forward") for key in range(3)] + [("free", key) for key in range(3)]
    work += [("alloc", 10 + key, 30 * MIB, 0, "forward") for key in range(6)]
    return Model(setting).run([*work, *(("free", 10 + key) for key in (0, 2, 4)), ("alloc", 8, 80 * MIB)])


@pytest.mark.parametrize(
    ("change", "fits"), [("expandable", "fits"), ("scale=forward:0.9", "fails"), ("scale=forward:0.5", "fits")]
)
def test_the_request_that_ran_out_of_memory_fits_or_not(tmp_path, change, fits):
    """The truth is the model's own run with the change at the same limit."""
    limit = 205 * MIB
    recorded = fragmented(Setting(limit=limit))
    assert recorded.failed == 1
    assert predict(tmp_path, recorded, change)["fits"] == fits
    if change == "expandable":
        assert fragmented(Setting(limit=limit, expandable=True)).failed == 0


def test_an_h200_that_is_full_needs_less_memory_rather_than_other_segments():
    """34 blocks of 4 GiB are in use, and the 35th fails: no option of the allocator helps."""
    path = Path(__file__).parents[1] / "data/gpu/snapshots/out_of_memory.pickle"
    for change in ("expandable", "max_split=128MB"):
        assert rows_of(tracekit.whatif_memory(path, change))[0]["fits"] == "fails"
    (row,) = rows_of(tracekit.whatif_memory(path, "scale=snapshots:0.9"))
    assert row["fits"] == "fits"


# How a change is written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandible", "did you mean 'expandable'"),
        ("max_split=16MB", "more than 20 MiB"),
        ("max_split", "not understood"),
        ("gc=1.5", "between 0 and 1"),
        ("scale=forward", "not a factor|needs site"),
        ("scale=(:0.5", "not a regular expression"),
        ("offload=weights", "only the optimizer state"),
        ("empty_cache=update", "not understood"),
        ('{"do": "gc"}', "gc needs factor"),
        ('{"do": "gc", "factor": 0.5, "stage": "x"}', "gc has no field 'stage'"),
        ("{", "not JSON"),
        ("[]", "no change of memory"),
    ],
)
def test_a_change_that_is_not_one_is_refused(text, message):
    with pytest.raises(ChangeError, match=message):
        parse_memory_change(text)


def test_each_change_is_written_as_it_is_described():
    forms = ["expandable", "max_split=128MB", "gc=0.8", "empty_cache@update", "scale=train.py.*step:0.5"]
    for form in [*forms, "micro_batch=0.5", "offload=optimizer", "kv_cache=0.4"]:
        assert parse_memory_change(form).describe() == form
    assert next(record.form for record in MEMORY_VERBS.values()) == "expandable"
    assert parse_memory_change('{"do": "max_split", "size_bytes": 134217728}').describe() == "max_split=128MB"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scale=foward:0.5", "no allocation has such a site"),
        ("empty_cache@update", "no range of this name has a time in the history"),
        ("kv_cache=0.4", "no memory is known to be the KV cache"),
        ("max_split=512MB", "no allocation has 512 MiB or more"),
    ],
)
def test_a_change_that_touches_nothing_is_refused(tmp_path, change, message):
    with pytest.raises(ChangeError, match=message):
        ask(tmp_path, Model().run(train(0, steps=1)), change)


def test_nothing_is_predicted_from_a_replay_that_differs(tmp_path):
    """The recorded segment has twice the size that PyTorch gets for 30 MiB."""
    model = Model().run([("alloc", 1, 30 * MIB)])
    piece = model.segments[0].pieces[0]
    model.segments[0].pieces.append(replace(piece, address=piece.end, state="free", asked=0))
    model.history[0]["size"] = 60 * MIB
    report = ask(tmp_path, model)
    assert "nothing is predicted" in report.answer
    assert any("differs by up to 30.0 MiB (50 % of the peak)" in caution for caution in report.cautions)
    with pytest.raises(ChangeError, match="more than 3 %"):
        ask(tmp_path, model, "expandable")


def test_without_a_history_the_reason_is_given(tmp_path):
    model = Model().run([("alloc", 1, 30 * MIB)])
    model.history.clear()
    with pytest.raises(TracekitError, match="no history of allocations was recorded"):
        ask(tmp_path, model)


def test_only_two_histories_can_be_fitted(tmp_path):
    report = ask(tmp_path, batch(4), device_memory=GIB, micro_batch=(4, 8))
    assert (
        "largest micro-batch: --micro-batch 4,8 needs one history for each of two micro-batches, and 1 history was replayed: "
        "name one snapshot of each, or give one micro-batch" in report.cautions
    )
