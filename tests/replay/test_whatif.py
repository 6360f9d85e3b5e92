"""`tracekit whatif` from end to end: the command line, Python, its outputs, and what it refuses."""

import csv
import gzip
import json
import shutil
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from chrome_builder import annotation, step, write
from replay.graphs import issue, runtime
from replay.rules import aten, exchange

import tracekit
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import saved_measurements
from tracekit.pipeline.options import Options
from tracekit.pipeline.replaying import ask_what_if, plan_run, predict_run, replay_run
from tracekit.replay.changes import describe_change, parse_change

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = Path(__file__).parents[1] / "data"
GPU = EXAMPLES / "simulated_gpu"


def json_of(call, *arguments):
    """The report that `tracekit whatif` prints as JSON, without a word on the side."""
    done = call("whatif", *arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def sheet_rows(report, name):
    """Rows of a table as dicts."""
    sheets = [sheet for section in report["sections"] for sheet in section["sheets"]]
    sheets += [report["overview"]] if report["overview"] else []
    (sheet,) = [sheet for sheet in sheets if sheet["name"] == name]
    titles = [heading["name"] for heading in sheet["headings"]]
    return [dict(zip(titles, row, strict=True)) for row in sheet["rows"]]


def refusal(call, *arguments):
    """Problem and hint of a run that is refused with status 2 and prints nothing else."""
    done = call("whatif", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    problem, *hints = done.stderr.splitlines()
    assert problem.startswith("tracekit: ")
    return problem.removeprefix("tracekit: "), "".join(hint.strip().removeprefix("try: ") for hint in hints)


def recorded_step_ms(*numbers):
    """The mean step of the example by its rows alone, over two ranks.

    These steps (6 and 7 by default), which follow one another, last from the completion of what was launched before them to that of all launched until their end.
    """
    walls = []
    for path in sorted(GPU.rglob("*rank*.json.gz")):
        rows = [row for row in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if "dur" in row]
        wanted = [f"ProfilerStep#{number}" for number in numbers or (6, 7)]
        marks = [row for row in rows if row["name"] in wanted and row["cat"] == "user_annotation"]
        begin, end = min(row["ts"] for row in marks), max(row["ts"] + row["dur"] for row in marks)
        calls = {row["args"]["correlation"]: row["ts"] for row in rows if row["cat"] in ("cuda_runtime", "cuda_driver")}
        work = [row for row in rows if row["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        keys = [row["args"]["correlation"] for row in work]
        ends = [(calls[key], row["ts"] + row["dur"]) for key, row in zip(keys, work, strict=True) if key in calls]
        before = max((done for launched, done in ends if launched < begin), default=begin)
        after = max((done for launched, done in ends if begin <= launched < end), default=end)
        walls.append((max(end, after) - max(begin, before)) / len(wanted))
    return sum(walls) / len(walls) / 1_000


# Without a change


def test_without_a_change_the_fixes_of_the_findings_are_planned(call):
    done = call("whatif", GPU)
    assert done.exit_code == 0
    report = json_of(call, GPU)
    plan = sheet_rows(report, "plan")
    first_line = (
        f"predicted step with {len(plan)} fixes: {recorded_step_ms():.1f} ms → {plan[-1]['step_ns'] / 1e6:.1f} ms"
    )
    assert report["answer"].startswith(first_line)
    for title in ("Fixes of the findings, one after the other", "Critical path by owner", "Owners of the rest"):
        assert title in done.stdout
    assert "Predicted steps" not in done.stdout
    assert "steps 6, 7 of 5–7 (5: warm-up step)" in report["identity"]


def test_a_plan_adds_up_and_each_change_of_it_predicts_the_same_alone(call):
    """Each fix, alone by its changes after `--change`, saves what the plan says; so do all of them, in their order."""
    report = json_of(call, GPU)
    plan, changes = sheet_rows(report, "plan"), sheet_rows(report, "fixes")
    assert [row["number"] for row in plan] == [*range(1, len(plan) + 1)]
    assert {row["number"] for row in changes} == {row["number"] for row in plan}
    before = recorded_step_ms() * 1e6
    for row in plan:
        assert before - row["step_ns"] == pytest.approx(row["gain_ns"], abs=1)
        before = row["step_ns"]
    assert plan[0]["gain_ns"] == plan[0]["alone_ns"] == max(row["alone_ns"] for row in plan)
    first = [word for row in changes if row["number"] == 1 for word in ("-c", row["change"])]
    alone = sheet_rows(json_of(call, GPU, *first), "changes")[-1]
    assert alone["step_ns"] == pytest.approx(plan[0]["step_ns"], abs=1)
    every = [word for row in changes for word in ("-c", row["change"])]
    assert sheet_rows(json_of(call, GPU, *every), "changes")[-1]["step_ns"] == pytest.approx(before, abs=1)


def test_tables_of_critical_path_and_ledger_add_up(call):
    """Shares of the path add up to 1; time at work and owned adds up to the window."""
    report = json_of(call, GPU)
    assert sum(row["share"] for row in sheet_rows(report, "critical_path")) == pytest.approx(1, abs=1e-6)
    per_step = sum(row["step_ns"] for row in sheet_rows(report, "critical_path"))
    assert per_step == pytest.approx(recorded_step_ms() * 1e6, rel=0.002)
    ledger, ranks = sheet_rows(report, "ledger"), sheet_rows(report, "ranks")
    assert [row["rank"] for row in ranks] == [0, 1]
    for window in ranks:
        owned = sum(row["step_ns"] for row in ledger if row["rank"] == window["rank"])
        assert window["work_ns"] + owned == pytest.approx(window["window_ns"], abs=1)
        assert window["rest_ns"] == pytest.approx(owned, abs=1)


def test_the_critical_path_shows_by_how_much_other_work_could_grow(call, tmp_path):
    """Rank 0 computes 20 µs and waits for rank 1, which computes 120: `k` of rank 0 could grow by 100 µs.

    Once rank 1 computes 60 µs, by 40. The first `cudaLaunchKernel` of rank 0 shares that slack. All of `k` of rank 1 decides
    the end. Nothing that rank 0 ends with waits for `z` of rank 1.
    """
    for rank, compute in enumerate((20, 120)):
        rows = [step(1, 0, 160), *exchange(compute, end=140), runtime("cudaDeviceSynchronize", 30, 120, 5)]
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=2)
    for words, slack_us in ([], 100), (["-c", "scale device rank=1 op=^k factor=0.5"], 40):
        rows = sheet_rows(json_of(call, tmp_path, "--steps", "1", *words), "critical_path")
        found = {(row["rank"], row["kind"], row["name"]): (row["step_ns"], row["slack_ns"]) for row in rows}
        assert found[0, "kernel", "k"] == found[0, "runtime call", "cudaLaunchKernel"] == (0, slack_us * 1_000)
        assert found[1, "kernel", "k"] == (slack_us * 1_000 + 20_000, None)
        assert (1, "kernel", "z") not in found
        waiting = [row["slack_ns"] for row in rows if not row["step_ns"]]
        assert waiting == sorted(waiting)
        assert waiting[0] == slack_us * 1_000


# Changes, from the command line and from Python

CHANGES = [
    "scale device rank=1 factor=0.8",
    "scale host factor=0.5",
    "scale collective op=AllGather factor=0.5",
    "set host range=rollout_generate silent=true at_least_us=20 to_us=0",
    "set device op=^(?!Mem|nccl) to_us=50",
    "remove op=HtoD.*Pageable host=aten::copy_",
    "remove collective op=ReduceScatter",
    "remove range range=ref_compute_log_prob",
    "unwait by=aten::item",
    "unwait row=cudaStreamSynchronize step=6",
    "unblock op=HtoD..Pageable",
    "hide op=ReduceScatter until=Optimizer.step",
    "equalise rank=1",
    "equalise host rank=0",
    "graph range=rollout_generate factor=0.2",
]


@pytest.mark.parametrize("words", CHANGES)
def test_command_line_and_python_predict_the_same(call, words):
    """The same change as words, as JSON and as a mapping gives the same report, with a shorter step."""
    change = parse_change(words)
    as_json = json.dumps(describe_change(change))
    printed = call("whatif", GPU, "-c", words, "--json").stdout
    assert printed == call("whatif", GPU, "--change", as_json, "--json").stdout
    report = tracekit.whatif(GPU, json.loads(as_json))
    assert tracekit.render(report, "json").strip() == printed.strip()
    (row,) = sheet_rows(json.loads(printed), "changes")
    assert row["change"] == change.describe()
    assert parse_change(row["change"]) == change
    recorded = recorded_step_ms() * 1e6
    assert 0 < row["step_ns"] < recorded
    assert row["gain_ns"] == row["alone_ns"] == pytest.approx(recorded - row["step_ns"], abs=1)
    touched = sheet_rows(json.loads(printed), "touched")
    assert row["ops"] or row["waits"] or row["host_ns"] or not touched


def test_changes_add_up_in_their_order(call):
    """Half the work of both ranks, then a quarter of what is left on rank 1."""
    first, second = "scale device factor=0.5", "scale device rank=1 factor=0.25"
    rows = sheet_rows(json_of(call, GPU, "-c", first, "-c", second), "changes")
    assert [row["number"] for row in rows] == [1, 2]
    (alone,) = sheet_rows(json_of(call, GPU, "-c", second), "changes")
    assert rows[1]["alone_ns"] == alone["alone_ns"]
    recorded = recorded_step_ms() * 1e6
    assert rows[0]["gain_ns"] + rows[1]["gain_ns"] == pytest.approx(recorded - rows[1]["step_ns"], abs=1)
    at_once = [first, "scale device rank=1 factor=0.25"]
    assert (
        tracekit.render(tracekit.whatif(GPU, at_once), "json").strip()
        == call("whatif", GPU, "-c", first, "-c", second, "--json").stdout.strip()
    )


def hand_made(folder):
    """Two ranks of two steps of 200 µs: rank 1 computes 120 µs and rank 0 20 µs before they meet; 58 µs later they end."""
    for rank, compute in ((0, 20), (1, 120)):
        rows = []
        for number in (1, 2):
            base = 1_000 * number
            end = base + 140
            rows += [step(number, base, 200), *exchange(compute, number, base, end=end)]
            rows += [{**aten("aten::wait", base + 100, 50)}]
        write(folder / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return folder


def test_a_prediction_by_hand(call, tmp_path):
    """Steps are from 1,000 to 1,200 and from 2,000 to 2,200; of `aten::wait` 50 µs go, twice, of 1,200 µs in two steps."""
    report = json_of(call, hand_made(tmp_path), "--steps", "1-2", "-c", "scale host row=aten::wait factor=0")
    (row,) = sheet_rows(report, "changes")
    assert (row["step_ns"], row["gain_ns"]) == ((1_200 - 100) * 1_000 / 2, 100 * 1_000 / 2)
    assert row["host_ns"] == 4 * 50_000
    assert report["answer"] == "predicted step: 600 µs → 550 µs (−50.0 µs, −8.3 %)"


# Outputs


def test_every_format_tells_the_prediction(call, tmp_path):
    change = ("-c", "scale device rank=1 factor=0.8")
    report = json_of(call, GPU, *change)
    (row,) = sheet_rows(report, "changes")
    step_ms = f"{row['step_ns'] / 1e6:.2f}"
    text = call("whatif", GPU, *change).stdout
    assert step_ms in text
    assert report["answer"] in text
    markdown = call("whatif", GPU, *change, "--format", "md").stdout
    assert "| # | change |" in markdown
    assert step_ms in markdown
    assert report["answer"] in markdown
    page = call("whatif", GPU, *change, "--format", "html").stdout
    assert page.lstrip().lower().startswith("<!doctype html")
    assert step_ms in page
    done = call(
        "whatif",
        GPU,
        *change,
        "-q",
        "-o",
        tmp_path / "out.json",
        "-o",
        tmp_path / "out.md",
        "-o",
        tmp_path / "out.html",
    )
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == report
    assert report["answer"] in (tmp_path / "out.md").read_text("utf-8")
    assert step_ms in (tmp_path / "out.html").read_text("utf-8")


def test_tables_are_written_as_csv(call, tmp_path):
    done = call("whatif", GPU, "-c", "unwait by=aten::item", "--format", "csv", "-o", tmp_path / "tables")
    assert done.exit_code == 0
    with (tmp_path / "tables" / "changes.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    (wanted,) = sheet_rows(json_of(call, GPU, "-c", "unwait by=aten::item"), "changes")
    assert float(row["step_ns"]) == wanted["step_ns"]
    assert {path.name for path in (tmp_path / "tables").iterdir()} >= {
        "changes.csv",
        "critical_path.csv",
        "ledger.csv",
        "touched.csv",
    }


def test_hostile_names_are_safe_in_every_output(call, tmp_path):
    rows = [
        step(1, 0, 200),
        annotation("gen\x1b[31m<script>", 0, 90),
        aten("aten::a\x9b|`", 10, 50),
        *issue("k\x07\u202e", 100, 107, 20, 1),
    ]
    write(tmp_path / "rank0.json", rows)
    for kind in ("text", "md", "html", "json"):
        done = call("whatif", tmp_path, "--steps", "1", "-c", "scale host row=aten::a factor=0", "--format", kind)
        assert done.exit_code == 0
        assert not set(done.stdout) & set("\x1b\x9b\x07\u202e")
        assert kind != "html" or "<script>" not in done.stdout.split("gen", 1)[1][:40]


class Terminal(StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self):
        return True


def test_progress_is_shown_on_stderr_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    ask_what_if(GPU, (), Options(progress=True, cache=False))
    assert streams[0].getvalue() == ""
    assert "measuring" in streams[1].getvalue()
    quiet = Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    ask_what_if(GPU, (), Options(progress=False, cache=False))
    assert quiet.getvalue() == ""


# Selection


def test_steps_are_selected(call):
    """Step 5, the first, is left out by itself; by name it counts."""
    report = json_of(call, GPU, "--steps", "5")
    assert "step 5" in report["identity"]
    assert not any("warm-up" in fact for fact in report["identity"])
    chosen, plain = json_of(call, GPU, "--steps", "6-7"), json_of(call, GPU)
    assert "steps 6, 7" in chosen["identity"]
    assert sheet_rows(chosen, "critical_path") == sheet_rows(plain, "critical_path")
    assert refusal(call, GPU, "--steps", "99") == (
        "none of 2 profiles has a step that was asked for",
        "there are ranks 0, 1; steps 5–7; stages gen, old_log_prob, ref, update_actor",
    )


def test_steps_that_do_not_follow_one_another_are_timed_each(call):
    """Steps 5 and 7 last what each lasts by itself; step 6 between them does not count."""
    change = ("-c", "scale device factor=0.5")
    (row,) = sheet_rows(json_of(call, GPU, "--steps", "5,7", *change), "changes")
    recorded = (recorded_step_ms(5) + recorded_step_ms(7)) / 2 * 1e6
    assert row["step_ns"] + row["gain_ns"] == pytest.approx(recorded, abs=1)
    assert recorded != pytest.approx(recorded_step_ms(5, 6, 7) * 1e6, rel=0.001)


def test_ranks_are_selected(call):
    """Alone, a rank waits for nobody that is known: its collectives match none."""
    report = json_of(call, GPU, "--ranks", "0")
    assert "rank 0 of 2" in report["identity"]
    assert "1 file, 142 KiB" in report["identity"]
    assert {row["rank"] for row in sheet_rows(report, "ledger")} == {0}
    missing = "collectives have no partner among the recorded ranks"
    assert any(missing in caution for caution in report["cautions"])
    assert not any(missing in caution for caution in json_of(call, GPU)["cautions"])
    assert refusal(call, GPU, "--ranks", "7") == (
        "none of 2 profiles has a rank that was asked for", "there are ranks 0, 1",
    )  # fmt: skip


# What is refused


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("unblock op=Pageable", "op 'Pageable' selects 2 kinds of ops: Memcpy DtoH, Memcpy HtoD"),
        ("unwait", "unwait names no calls"),
        ("remove rank=0", "remove names no ops"),
        ("remove range step=6", "remove names no range"),
        ("scale device factor=-1", "factor: -1 is not a number from 0 to 1,000,000"),
        ("speed factor=1", "do: 'speed' is not a change"),
        ("scale device op=( factor=1", "op: '(' is not a regular expression: missing ), unterminated subpattern at position 0"),
        ('{"do": "scale"', "not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"),
        ("unwait by=aten::itme", "nothing in this run matches unwait by=aten::itme"),
        ("scale device op=nosuch factor=0.5", "no op in this run matches scale device op=nosuch factor=0.5"),
    ],
)  # fmt: skip
def test_imprecise_and_malformed_changes_are_refused(call, change, problem):
    found, _ = refusal(call, GPU, "-c", change)
    assert found == problem
    with pytest.raises(tracekit.TracekitError) as caught:
        tracekit.whatif(GPU, change)
    assert caught.value.problem == problem


def test_near_names_are_suggested(call):
    assert refusal(call, GPU, "-c", "unwait by=aten::itme")[1].startswith("by: did you mean aten::item")


def test_a_malformed_change_is_refused_before_anything_is_read(call):
    problem, _ = refusal(call, "no/such/path", "-c", "speed factor=1")
    assert problem == "do: 'speed' is not a change"


def test_several_runs_are_refused(call):
    problem, hint = refusal(call, EXAMPLES / "compare_cpu")
    assert problem == (
        "a replay needs one run, and 8 runs are here: base/run1, base/run2, base/run3, base/run4, opt/run1, opt/run2 …"
    )
    assert hint == "name the directory of one"


NO_TRACE = (
    "nothing to replay: no trace of host or device work is here",
    "name Chrome traces of torch.profiler, or reports of Nsight Systems",
)
NO_TRACE_BUT_SNAPSHOTS = NO_TRACE[0], "tracekit whatif --memory PATH predicts the peak of memory from snapshots"


def test_memory_snapshots_are_refused(call):
    assert refusal(call, EXAMPLES / "simulated_memory") == NO_TRACE_BUT_SNAPSHOTS


def test_a_log_is_refused_with_the_command_that_shows_its_bounds(call):
    said, hint = refusal(call, DATA / "cases" / "verl_async_log")
    assert said == NO_TRACE[0]
    assert hint == "tracekit analyze PATH -v shows the step of an RL log under other schedules, as bounds"


def test_a_memory_snapshot_of_its_own_is_refused(call, tmp_path):
    source = next((DATA / "gpu" / "snapshots").glob("*.pickle"))
    shutil.copy(source, tmp_path / "snapshot.pickle")
    assert refusal(call, tmp_path) == NO_TRACE_BUT_SNAPSHOTS


def test_dumps_of_a_hang_are_refused(call):
    assert refusal(call, EXAMPLES / "hang") == NO_TRACE


def test_saved_reports_and_measurements_without_graphs_are_refused(call, tmp_path):
    saved, report = tmp_path / "run.tkm", tmp_path / "run.json"
    measured = pipeline.measure(pipeline.discover_sources(GPU, Options()), Options(jobs=1, cache=False))
    saved_measurements.save(measured, saved)
    assert call("analyze", GPU, "-q", "-o", report).exit_code in (0, 1)
    assert refusal(call, saved) == (
        "nothing to replay: these saved measurements contain no dependency graphs",
        "name the profile itself, or save its measurements again with --save",
    )
    hint = "name the profile itself"
    assert refusal(call, report) == (f"{report}: a saved report contains no events to replay", hint)


def test_saved_measurements_with_graphs_are_replayed_like_their_profile(call, tmp_path):
    """Without the profile: first the plan of fixes, then a change."""
    saved = tmp_path / "run.tkm"
    measured = pipeline.measure(pipeline.discover_sources(GPU, Options()), Options(jobs=1, cache=False, graphs=True))
    saved_measurements.save(measured, saved)
    for change in ((), ("-c", "scale device rank=1 factor=0.5")):
        of_file, of_profile = (json_of(call, path, *change) for path in (saved, GPU))
        for report in (of_file, of_profile):
            del report["identity"], report["title"]
        assert of_file == of_profile


def test_a_path_that_is_not_there_is_refused(call):
    assert refusal(call, "no/such/path")[0] == "no/such/path: no such file or directory"


def test_no_step_is_predicted_of_what_nothing_explains(call, tmp_path):
    """`k` of 5 µs starts 400 µs after its launch, of a step of 420 µs: nearly all of it has no recorded cause."""
    write(tmp_path / "rank0.json", [step(1, 0, 420), *issue("k", 0, 404, 5, 1), annotation("x", 0, 1)])
    rows = json.loads((tmp_path / "rank0.json").read_text("utf-8"))
    rows["traceEvents"].append(
        {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 100, "tid": 100, "ts": 10, "dur": 402,
            "args": {"correlation": 9},
        }
    )  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps(rows), encoding="utf-8")
    problem, hint = refusal(call, tmp_path, "-c", "scale device factor=0.5")
    assert problem == "nothing is predicted: 95 % of the critical path is unexplained, more than 20 %"
    assert "without --change" in hint
    plain = json_of(call, tmp_path)
    assert plain["answer"] == "step 420 µs as recorded; nothing is predicted"
    assert problem in plain["cautions"]


# Traces that are not whole


def test_a_truncated_trace_is_replayed(call):
    report = json_of(call, DATA / "cases" / "18_truncated", "-c", "scale device factor=0.5")
    (row,) = sheet_rows(report, "changes")
    assert row["gain_ns"] > 0


def test_a_run_without_steps_is_replayed(call, tmp_path):
    """The window is the whole recording: `a` from 7 to 57."""
    write(tmp_path / "rank0.json", issue("a", 0, 7, 50, 1))
    done = call("whatif", tmp_path)
    assert done.exit_code == 0
    path = sheet_rows(json_of(call, tmp_path), "critical_path")
    assert {(row["kind"], row["step_ns"]) for row in path} == {
        ("runtime call", 4_000), ("launch latency", 3_000), ("kernel", 50_000),
    }  # fmt: skip


@pytest.mark.parametrize("change", [(), ("-c", "scale host factor=0.5")])
def test_a_truncated_file_is_named_as_in_analyze(call, tmp_path, change):
    """The trace ends in the middle of its rows: both commands say what is missing."""
    write(
        tmp_path / "rank0.json", [step(1, 0, 500), step(2, 500, 500), *issue("k", 0, 7, 100, 1)], rank=0, world_size=1
    )
    text = (tmp_path / "rank0.json").read_text()
    (tmp_path / "rank0.json").write_text(text[: text.rindex('"ph"')])
    unseen = json_of(call, tmp_path, *change)["unseen"]
    analyzed = json.loads(call("analyze", tmp_path, "--json").stdout)["unseen"]
    assert unseen == analyzed
    assert "the file ends inside the event array" in unseen[0]


def test_rows_removed_after_the_recording_are_a_caveat_of_a_prediction():
    """The caveats of the first screen of `analyze` come before those of the replay."""
    replay = replay_run(GPU / "outputs/profile", Options(jobs=1, cache=False))
    with_caveat = replace(replay, cautions=("rows were removed",))
    for report in (predict_run(with_caveat, [parse_change("scale device factor=0.5")]), plan_run(with_caveat, [])):
        assert report.cautions[0] == "rows were removed"
    assert replay.cautions == ()
