"""The number of steps of a log: one number wherever it is shown, for whole, truncated, copied and restarted logs."""

import json
import re

from training_logs import event_file, history, offline_run, verl_line

from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

VALUES = {"timing_s/gen": 30.0, "timing_s/update_actor": 20.0, "timing_s/step": 51.0, "perf/total_num_tokens": 900}


def write_console(path, steps=12, cut=None):
    text = "".join(verl_line(step, VALUES) for step in range(1, steps + 1))
    path.write_text(text + (f"step:{steps + 1} - {cut}" if cut else ""))


def count_steps(folder):
    """The counts of the first line, of the recording's sentence and data, and of the matrix of stages by step."""
    report = analyze_uncached(folder, Options(jobs=1)).report
    (recording,) = report.recordings
    first = re.search(r"([\d,]+) steps? of verl", " ".join(report.identity))[1]
    told = re.search(r"([\d,]+) steps?, no profile", recording.sentence)[1]
    captions = [sheet.caption or "" for section in report.sections for sheet in section.sheets]
    shown = [found[1] for caption in captions if (found := re.search(r"(?:longest|first \d+) of (\d+) steps", caption))]
    assert shown, "the matrix of stages by step"
    return {int(first), int(told), dict(recording.data)["steps"], *map(int, shown)}


def test_a_whole_log(tmp_path):
    write_console(tmp_path / "train.log")
    assert count_steps(tmp_path) == {12}


def test_a_log_that_was_cut_off_in_its_next_step(tmp_path):
    write_console(tmp_path / "train.log", cut="timing_s/gen:30.0 - timing_s/upd")
    assert count_steps(tmp_path) == {12}


def test_copies_of_one_run_count_once(tmp_path):
    write_console(tmp_path / "train.log")
    lines = [json.dumps({"step": step, "data": VALUES}) + "\n" for step in range(1, 13)]
    (tmp_path / "train.jsonl").write_text("".join(lines))
    assert count_steps(tmp_path) == {12}


def test_a_console_and_the_event_file_of_one_run_count_once(tmp_path):
    write_console(tmp_path / "train.log")
    events = event_file(dict.fromkeys(range(1, 13), VALUES))
    (tmp_path / "events.out.tfevents.1800000000.host").write_bytes(events)
    assert count_steps(tmp_path) == {12}


def write_starts(folder, starts):
    """An offline run of W&B for each start: {directory: steps}."""
    for start, (name, steps) in enumerate(starts.items()):
        run = folder / "wandb" / name
        run.mkdir(parents=True)
        rows = [history(VALUES | {"timing_s/gen": 30.0 + start, "_step": step}, step) for step in steps]
        (run / f"run-{name.rpartition('-')[2]}.wandb").write_bytes(offline_run(rows))


def describe(folder):
    return analyze_uncached(folder, Options(jobs=1)).report


def test_the_starts_of_a_resumed_run_of_wandb_are_one_run(tmp_path):
    write_starts(
        tmp_path,
        {
            "offline-run-20260901_100000-x7": range(1, 21),
            "offline-run-20260901_120000-x7": range(17, 31),
            "run-20260901_110000-x7": range(15, 19),
        },
    )
    report = describe(tmp_path)
    # 1 to 20, 15 to 18 and 17 to 30: 38 tries of 30 steps, of 51 s each.
    assert any(
        "30 steps of verl" in fact and "restarted 2 times (8 steps run again: 408 s)" in fact
        for fact in report.identity
    )
    (note,) = [remark for remark in report.remarks if "starts of one run" in remark.message]
    assert "3 logs" in note.message
    assert count_steps(tmp_path) == {30}


def test_a_run_of_wandb_that_began_again_from_its_first_step_is_one_run(tmp_path):
    write_starts(tmp_path, {f"offline-run-20260901_1{n}0000-x7": range(1, 13 + n) for n in range(2)})
    report = describe(tmp_path)
    assert any("12 steps run again: 612 s" in fact and "restarted 1 time" in fact for fact in report.identity)


def test_runs_of_wandb_with_other_ids_stay_apart(tmp_path):
    write_starts(
        tmp_path, {"offline-run-20260901_100000-x7": range(1, 21), "offline-run-20260901_120000-y8": range(21, 31)}
    )
    report = describe(tmp_path)
    assert "2 runs" in report.identity
    assert not any("restarted" in fact for fact in report.identity)


def test_a_validation_before_training_is_not_a_step(tmp_path):
    write_console(tmp_path / "train.log")
    text = verl_line(0, {"val-core/acc": 0.5, "timing_s/testing": 9.0}) + (tmp_path / "train.log").read_text()
    (tmp_path / "train.log").write_text(text)
    assert count_steps(tmp_path) == {12}
