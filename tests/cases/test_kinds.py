"""`analyze` and `doctor` name the same kind of recording, in one sentence with one command."""

import json

import pytest
import recording_kinds as made
from command_line import invoke

from tracekit.health.checks import diagnose
from tracekit.health.symptoms import Capture
from tracekit.model.inputs.sources import Note, Source
from tracekit.model.recording.kinds import NORMAL, Classification, RecordingCount
from tracekit.pipeline.doctor import examine_captures
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached
from tracekit.render import render

CASES = {
    # case: (kind, words of the sentence, the begin of the command)
    "11_vllm017_names": (
        "front-end",
        "1 of 5 files is the front end of a vLLM engine",
        "tracekit analyze DIR --exclude '*async_llm*'",
    ),
    "21_mtia": (
        "unread-accelerator",
        "200 of 610 rows have categories that tracekit does not read: mtia_ccp_events 200.",
        "tracekit sql PATH",
    ),
    "22_jax_xla": ("jax", "A trace of JAX or XLA, not of PyTorch: its 400 rows", "nsys profile"),
    "23_ascend_npu": (
        "unread-accelerator",
        "246 of 369 rows have categories that tracekit does not read: Ascend Hardware 120, CANN 120,",
        "msprof-analyze advisor all -d DIR",
    ),
    "unknown_category": (
        "unread-accelerator",
        "64 of 100 rows have categories that tracekit does not read: npu_kernel 32, npu_runtime 32.",
        "msprof-analyze advisor all -d DIR",
    ),
    "24_launches_no_kernels": (
        "launches-only",
        "200 launches but no kernels were recorded: CUPTI failed, or activities=[CPU].",
        "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    ),
    "25_ran_on_cpu_gpu_present": (
        "ran-on-cpu",
        "ran on the CPU although NVIDIA A100-SXM4-80GB is listed: aten::addmm takes 99.5 % of the time.",
        'model.to("cuda")',
    ),
    "m1_no_history": (
        "snapshot-without-history",
        "No allocation history was recorded in the memory snapshot: 80 % of 1,000 MiB reserved is unused.",
        "torch.cuda.memory._record_memory_history(",
    ),
    "verl_async_log": (
        "driver-log",
        "Only the driver's log was given: 20 steps, no profile.",
        "global_profiler.tool=torch",
    ),
    "python_gc": ("cpu-only", "Only CPU activity was recorded", "torch.profiler.profile("),
}  # fmt: skip


def words(text):
    """The text on one line, with single blanks."""
    return " ".join(text.split())


def recordings(path):
    """What the two commands take the files of a path for."""
    report = analyze_uncached(path, Options(progress=False)).report
    return report.recordings, examine_captures([path], Options(progress=False)).recordings


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_named_in_one_sentence_with_one_command(case, name):
    kind, sentence, command = CASES[name]
    case = case(name)
    first = case.report.recordings[0]
    assert first.kind == kind
    assert sentence in first.sentence
    assert len(first.sentence.split()) <= 25
    assert first.command.startswith(command)
    assert examine_captures([case.path], Options()).recordings == case.report.recordings
    for screen in (case.screen, case.doctor):
        assert words(first.sentence.rstrip(".")) in words(screen)
        assert words(first.command) in words(screen)
        assert "nothing wrong" not in screen
    assert "damaged" not in case.screen + case.doctor


@pytest.mark.parametrize("name", ["pdl", "12_no_distributed_info", "06_inf_nan", "m3_expandable"])
def test_a_normal_recording_has_no_command(case, name):
    (only,) = case(name).report.recordings
    assert (only.kind in NORMAL, only.command) == (True, "")
    assert "Recorded:" not in case(name).screen


def test_the_front_end_is_not_counted_among_ranks_without_gpu_work(case):
    case = case("11_vllm017_names")
    assert not [f for f in case.report.findings if f.rule == "profiling-artefact"]
    assert "processes recorded no GPU work" not in case.doctor
    assert "does not record a rank" not in case.doctor


def test_a_dump_beside_traces_is_neither_damaged_nor_refused(case):
    case = case("flight_recorder_json")
    assert not [f for f in case.report.findings if f.rule == "profiling-artefact"]
    assert dict(case.report.files) == {"read": 3}
    assert case.status == 0


@pytest.mark.parametrize("name", made.MADE)
def test_analyze_and_doctor_name_the_same_kind(tmp_path, name):
    kind, make, sentence, command = made.MADE[name]
    make(tmp_path)
    of_report, of_doctor = recordings(tmp_path)
    assert of_report == of_doctor
    (only,) = of_report
    assert (only.kind, only.sentence) == (kind, sentence)
    assert only.command.startswith(command)
    assert bool(only.command) == (kind not in NORMAL)
    assert only.source_count == len(only.sources) == 1
    doctor = invoke("doctor", tmp_path).stdout
    if kind not in NORMAL:
        assert "nothing wrong" not in doctor
        assert words(sentence.rstrip(".")) in words(doctor)
        assert words(only.command) in words(doctor)
        assert words(sentence) in words(invoke("analyze", tmp_path, "--no-cache").stdout)


@pytest.mark.parametrize(
    ("name", "make", "content", "command"),
    [
        ("run.tkm", ("analyze", "--save"), "measurements", "tracekit analyze FILE"),
        ("report.json", ("analyze", "-o"), "report", "tracekit export FILE"),
        ("listing.json", ("inspect", "-o"), "listing", "tracekit analyze DIR"),
        ("doctor.json", ("doctor", "-o"), "listing", "tracekit analyze DIR"),
    ],
)
def test_files_that_tracekit_saved_are_named_and_expected_next_to_profiles(tmp_path, name, make, content, command):
    command_name, option = make
    made.MADE["gpu"][1](tmp_path / "run")
    saved = tmp_path / "saved" / name
    saved.parent.mkdir()
    assert invoke(command_name, tmp_path / "run", option, saved).exit_code == 0
    sentence = f"1 file that tracekit saved ({content}), not a profile"
    refused = words(invoke("inspect", saved).stderr)
    assert sentence in refused
    assert command in refused
    doctor = words(invoke("doctor", saved).stdout)
    assert sentence in doctor
    assert command in doctor
    assert "zip archive" not in refused + doctor

    saved.rename(tmp_path / "run" / name)
    of_report, of_doctor = recordings(tmp_path / "run")
    assert [recording.kind for recording in of_report] == ["gpu"]
    assert of_report == of_doctor


@pytest.mark.parametrize(
    "near",
    [
        b'{"entries": [1, 2], "version": 3}',
        b'{"traceEvents": [], "entries": [], "pg_config": {}}',
        b"\x80\x02}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02X\x0d\x00\x00\x00device_tracesq\x03]q\x04u.",
    ],
)
def test_what_only_resembles_a_dump_is_none(tmp_path, near):
    made.put(tmp_path / "nccl_trace_rank_0.json", near)
    kinds = [recording.kind for recording in examine_captures([tmp_path], Options()).recordings]
    assert "hang" not in kinds


def test_a_file_has_the_kind_of_the_process_that_shows_most(tmp_path):
    driver = made.nsys.nvtx("driver", 1_000, 2_000, pid=5, tid=5)
    made.export(made.RANGE, made.LAUNCH, made.nsys.kernel("gemm", 1_300, 1_400, 1), driver)(tmp_path)
    for recording in recordings(tmp_path):
        assert [one.kind for one in recording] == ["gpu"]


def test_a_log_beside_a_profile_is_no_kind_of_its_own(tmp_path):
    made.MADE["driver-log"][1](tmp_path)
    made.MADE["launches-only"][1](tmp_path)
    of_report, of_doctor = recordings(tmp_path)
    assert of_report == of_doctor
    assert [(one.kind, one.source_count) for one in of_report] == [("launches-only", 1)]
    assert "files)" not in of_report[0].sentence


def test_kinds_are_counted_over_files_and_the_gravest_comes_first(tmp_path):
    for rank in (0, 1):
        made.torch(made.launches(3 + rank), f"rank{rank}.json", rank=rank, world_size=4)(tmp_path)
    made.torch(made.ops(20, 5), "rank2.json", rank=2, world_size=4)(tmp_path)
    made.torch(made.chrome.launched("gemm", 1, 5, 9, 1), "rank3.json", rank=3, world_size=4)(tmp_path)
    of_report, of_doctor = recordings(tmp_path)
    assert of_report == of_doctor
    assert [one.kind for one in of_report] == ["launches-only", "cpu-only", "gpu"]
    assert of_report[0].sentence.startswith("7 launches but no kernels")
    assert of_report[0].sentence.endswith("(2 of 4 files).")
    assert dict(of_report[0].data)["launches"] == 7


@pytest.mark.parametrize("unread", [0, 1])
def test_fewer_unread_rows_than_one_in_a_hundred_are_not_worth_a_word(tmp_path, unread):
    rows = [made.chrome._x("new_category", "a", at, 1, 0, 7) for at in range(1 + unread)]
    made.torch([*made.ops(198, 5), *rows])(tmp_path)  # 1 of 199, then 2 of 200
    kinds = [recording.kind for recording in recordings(tmp_path)[0]]
    assert kinds == [("cpu-only", "unread-accelerator")[unread]]


@pytest.mark.parametrize(("count", "kind"), [(9, "start-up"), (10, "gpu")])
def test_a_program_that_only_copies_is_not_start_up(tmp_path, count, kind):
    copies = [made.nsys.memset(1_300 + 20 * n, 1_310 + 20 * n, 64, 1) for n in range(count)]
    made.export(made.CALL, *copies)(tmp_path)
    for of_command in recordings(tmp_path):
        assert [one.kind for one in of_command] == [kind]


@pytest.mark.parametrize(("dur_us", "kind"), [(999, "cpu-only"), (1_000, "ran-on-cpu")])
def test_short_operators_may_be_those_of_a_gpu_program_without_its_launches(tmp_path, dur_us, kind):
    made.torch(made.ops(20, dur_us), deviceProperties=made.GPU)(tmp_path)
    assert [one.kind for one in recordings(tmp_path)[0]] == [kind]


@pytest.mark.parametrize(
    ("code", "severity", "data"),
    [("merged-ranks", "info", (RecordingCount("ranks", 2),)), ("interleaved-processes", "data_loss", ())],
)
def test_how_a_file_was_written_is_a_kind(code, severity, data):
    source = Source(None, "a.json", "chrome")
    capture = Capture(source, 0, 10, True, 5, 5, recording=Classification(code, data))
    lost = Note("data_loss", "damaged", "damaged text was passed over", "a.json")
    noted = Note(severity, code, "…", "a.json")
    notes = [noted, lost] if severity == "data_loss" else [noted]
    (only,) = diagnose([capture], notes)
    assert (only.code, only.severity) == (code, severity)


def test_text_from_a_trace_is_in_no_command_and_is_escaped(tmp_path):
    evil = "\x1b[31m<script>`rm -rf ~`</script>"
    rows = [made.chrome._x(evil, "a", at, 1, 0, 7) for at in range(5)]
    made.torch(rows, deviceProperties=[{"id": 0, "name": evil}])(tmp_path)
    report = analyze_uncached(tmp_path, Options()).report
    assert all("rm -rf" not in recording.command for recording in report.recordings)
    for form in ("text", "md", "html"):
        page = str(render(report, form))
        assert "\x1b" not in page
        assert form == "text" or "<script>`" not in page
        assert "categories that tracekit does not read" in words(page)


def test_the_kind_is_in_the_json_of_both_commands(tmp_path):
    made.MADE["launches-only"][1](tmp_path)
    analyzed = json.loads(invoke("analyze", tmp_path, "--no-cache", "--export", "json=-").stdout)
    examined = json.loads(invoke("doctor", tmp_path, "--json").stdout)
    assert analyzed["recordings"] == examined["recordings"]
    assert analyzed["recordings"][0]["kind"] == "launches-only"


def test_a_long_command_is_on_a_line_of_its_own(case):
    """It can be pasted: no line break is inside of it."""
    screen = case("35_sglang_merged").screen
    assert "start SGLang's profiler with:\n" in screen
    assert "\n            curl http://HOST:30000/start_profile --json '{\"merge_profiles\": false}'\n" in screen


def test_a_log_alone_shows_its_stages_and_names_the_section_with_the_others(case):
    found = case("verl_async_log")
    assert "read as a driver's log: 20 steps of verl separate async" in found.screen
    assert "gen                      64.6   53.5 %      64.4  the trainer waits for samples" in found.screen
