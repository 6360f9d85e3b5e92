"""Every diagnosis on a directory made up for it, and a near miss that is healthy."""

import gzip
import json
import lzma
import os
from dataclasses import asdict, replace
from pathlib import Path

import chrome_builder as chrome
import nsys_builder as nsys
import nsys_programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sick_runs import CALLS, LFS, LOST, NSYS, TORCH, export, healthy, put, session, told, trace, two, without

from tracekit.analyses import load_default_thresholds
from tracekit.analyses.trust import data_quality
from tracekit.health.checks import GRAVE, diagnose
from tracekit.health.problems import PROBLEMS
from tracekit.health.symptoms import Capture
from tracekit.model.errors import TracekitError
from tracekit.model.inputs.note_codes import IGNORED, Data
from tracekit.model.trace import Failure, Note, Source
from tracekit.model.units import format_ranges
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.doctor import examine_captures, summarize_examination
from tracekit.pipeline.run import Options

ROOT = Path(__file__).parents[2]
REAL = os.environ.get("TRACEKIT_REAL_DATA")


@pytest.fixture(autouse=True)
def no_nsys(tmp_path, monkeypatch):
    """No nsys on PATH unless a test puts one there, and a cache of our own."""
    nsys_programs.uninstall(tmp_path / "nothing", monkeypatch)
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))


def diagnoses(*paths, **options):
    return {d.code: d for d in examine_captures(list(paths), Options(jobs=1, **options)).diagnoses}


@pytest.mark.parametrize("code", [*TORCH, *NSYS])
def test_it_is_found_where_it_is_and_not_where_it_only_seems_so(tmp_path, code):
    sick, well = (TORCH | NSYS)[code]
    for name, make in (("sick", sick), ("well", well)):
        make(tmp_path / name)
    assert code in diagnoses(tmp_path / "sick")
    assert code not in diagnoses(tmp_path / "well")


def test_nothing_is_wrong_with_healthy_examples():
    for example, codes in (("verl_cpu", {"cpu-only"}), ("simulated_gpu", set())):
        assert set(diagnoses(ROOT / "examples" / example / "outputs" / "profile")) == codes


def test_a_newer_report_and_one_that_is_still_written_are_told_apart(tmp_path, monkeypatch):
    old = put(tmp_path / "old" / "a.nsys-rep", nsys_programs.REPORT)
    os.utime(old, (1.7e9, 1.7e9))
    put(tmp_path / "new" / "a.nsys-rep", nsys_programs.REPORT)
    nsys_programs.install(tmp_path / "early", monkeypatch, "exit 1", version="2022.4.2.1")
    assert set(diagnoses(tmp_path / "old")) == {"newer-report"}
    nsys_programs.install(tmp_path / "late", monkeypatch, "echo Cannot read from stream; exit 1")
    assert set(diagnoses(tmp_path / "new")) == {"being-written"}
    assert set(diagnoses(tmp_path / "old")) == {"truncated-report"}


def test_a_report_of_another_version_is_named_with_both_and_never_called_cut_off(tmp_path, monkeypatch):
    report = put(tmp_path / "runs" / "a.nsys-rep", nsys_programs.whole_report(b"2023.1.2.43-32377213v0"))
    os.utime(report, (1.7e9, 1.7e9))
    says = "echo 'missing required fields: DeviceState.Props; permission denied'; exit 1"
    nsys_programs.install(tmp_path / "old", monkeypatch, says, version="2022.4.2.1-df9881f")
    (only,) = examine_captures([tmp_path / "runs"], Options(jobs=1)).diagnoses
    assert only.code == "newer-report"
    assert only.what == ("recorded by nsys 2023.1.2.43, a version that the nsys 2022.4.2.1 here cannot read")
    nsys_programs.install(tmp_path / "new", monkeypatch, says, version="2024.2.3.38-1")
    (only,) = examine_captures([tmp_path / "runs"], Options(jobs=1)).diagnoses
    assert only.code == "refused-report"
    assert only.what.startswith("it ends as whole reports do, recorded by nsys 2023.1.2.43")


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([], "empty-trace", "The recording is empty: it has no events"),
        (without("ts"), "no-times", "No event can be used: 3 have no start (ts)"),
        (without("ph"), "no-times", "No event can be used: 3 have no phase (ph)"),
        (
            [chrome.op("a", at, -5) for at in (1, 10, 20)],
            "odd-times",
            "3 events in 1 file without a usable start or duration (missing, negative or impossible)",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_trace_of_nothing_is_never_called_sound(tmp_path, rows, code, said, pack):
    put(tmp_path / "rank0.json", pack(chrome.text(rows, rank=0, world_size=1)))
    first, *others = examine_captures([tmp_path], Options(jobs=1)).diagnoses
    assert (first.code, first.what) == (code, said)
    assert first.places == ("rank0.json",)
    assert [other.code for other in others] == ["cpu-only"] * (code == "odd-times")


@pytest.mark.parametrize("key", ["ts", "ph", None])
def test_the_first_screen_says_that_a_trace_holds_nothing(tmp_path, key):
    chrome.write(tmp_path / "rank0.json", without(key) if key else [], rank=0, world_size=1)
    report = pipeline.analyze_uncached(tmp_path, Options(jobs=1)).report
    assert any(line.startswith("rank0.json (") for line in report.unseen)
    assert "cut off" not in str([asdict(one) for one in report.sections])


def test_a_file_that_was_named_alone_is_named_once(tmp_path):
    named = put(tmp_path / "rank0.json", '{"traceEvents": []}'.encode("utf-16"))
    (only,) = examine_captures([named], Options(jobs=1)).diagnoses
    assert (only.code, only.places) == ("other-text", ("rank0.json",))


def test_what_may_not_be_read_is_told():
    denied = Note("info", IGNORED, "as it is said", "rank1.json", data=Data(why="forbidden"))
    assert [d.code for d in diagnose((), [denied])] == ["forbidden"]
    assert diagnose((), [Note("info", IGNORED, "hidden", "rank1.json", data=Data(why="hidden"))]) == ()


# --- sessions of Ray


def test_reports_in_another_session_than_the_one_given_are_pointed_to(tmp_path):
    session(tmp_path, "session_2026-01-01_1", "worker_process_7", "worker_process_8")
    late = session(tmp_path, "session_2026-01-02_2")
    put(late / "logs" / "raylet.out", b"text")
    found = diagnoses(late)["wrong-session"]
    assert found.what == "no nsys report in session_2026-01-02_2, but 2 in session_2026-01-01_1/logs/nsight"
    (tmp_path / "session_latest").symlink_to(late)
    assert "no nsys report in session_latest" in diagnoses(tmp_path / "session_latest")["wrong-session"].what


def test_reports_elsewhere_in_the_session_given_are_pointed_to_first(tmp_path):
    session(tmp_path, "session_2026-01-02_2", "worker_process_1")
    mine = session(tmp_path, "session_2026-01-01_1", "worker_process_7")
    put(mine / "logs" / "old" / "raylet.out", b"text")
    assert "1 in session_2026-01-01_1/logs/nsight" in diagnoses(mine / "logs" / "old")["wrong-session"].what
    assert "wrong-session" not in diagnoses(mine)


def test_a_link_to_the_latest_session_that_leads_nowhere_is_no_trouble(tmp_path):
    session(tmp_path, "session_2026-01-01_1", "worker_process_7")
    (tmp_path / "session_latest").symlink_to("session_latest")
    assert set(diagnoses(tmp_path)) == {"latest-session", "cpu-only"}


def test_a_directory_outside_of_ray_has_no_wrong_session(tmp_path):
    put(tmp_path / "profile" / "x.txt", b"text")
    assert set(diagnoses(tmp_path / "profile")) == {"no-profile"}


# --- what is said


def test_one_thing_is_said_once_however_many_files_it_befell(tmp_path):
    healthy(tmp_path)
    for n in range(2, 30):
        put(tmp_path / f"rank{n}.json")
    found = diagnoses(tmp_path)["empty-file"]
    assert (found.what, found.count, len(found.places)) == ("28 files of 0 bytes", 28, 28)
    assert found.places[:2] == ("rank2.json", "rank3.json")


def test_the_gravest_comes_first(tmp_path):
    two(tmp_path, {}, {"base_ns": None})
    put(tmp_path / "rank2.json", LFS)
    put(tmp_path / "rank3.json")
    found = examine_captures([tmp_path], Options(jobs=1)).diagnoses
    assert [d.severity for d in found] == ["error", "data_loss", "warning"]
    assert [d.code for d in found] == ["lfs-pointer", "empty-file", "no-common-clock"]


def test_what_was_excluded_is_not_missing(tmp_path):
    healthy(tmp_path)
    assert "few-ranks" in {d.code for d in examine_captures([tmp_path / "rank0.json"], Options()).diagnoses}
    assert diagnoses(tmp_path, exclude=("rank1*",)) == {}


def test_ranks_of_a_huge_world_are_counted_not_listed(tmp_path):
    for rank in (0, 7):
        trace(tmp_path / f"rank{rank}.json", rank, 10**12)
    found = diagnoses(tmp_path)["missing-ranks"]
    assert (found.count, found.what) == (10**12 - 2, "999,999,999,998 ranks of 1,000,000,000,000 missing: 1–6, 8–201 …")


def test_runs_are_named_where_there_are_several(tmp_path):
    for run in "ab":
        healthy(tmp_path / run)
    two(tmp_path / "b", {"steps": (1, 2, 3)}, {"pid": 101})
    assert diagnoses(tmp_path)["missing-steps"].what == "b: rank 1 lacks step 3, which other ranks have"


def test_ranks_that_lack_the_same_step_are_said_together(tmp_path):
    for rank in range(5):
        trace(tmp_path / f"rank{rank}.json", rank, 5, steps=(1, 2, 3) if rank < 2 else (1,))
    found = diagnoses(tmp_path)["missing-steps"]
    assert found.what == "ranks 2–4 lack steps 2, 3, which other ranks have"
    assert found.count == 6


def test_the_captures_of_a_rank_count_from_one_whatever_they_are_called():
    sources = [
        Source(Path("x"), f"r{r}c{c}", "chrome", rank=r, pid=r, part=f"capture{c}", scope="train")
        for r, c in ((0, 1), (1, 2))
    ]
    captures = [Capture(s, 0, 1, True, 1, 0) for s in sources]
    assert diagnose(captures, ()) == ()
    third = Capture(
        Source(Path("x"), "r0c3", "chrome", rank=0, pid=0, part="capture3", scope="train"), 0, 1, True, 1, 0
    )
    (found,) = diagnose([*captures, third], ())
    assert found.what == "rank 1 lacks capture 2 of train, which other ranks have"


def test_braces_in_names_and_problems_are_left_as_they_are():
    problem = Failure("{count}{0}.json", "odd {files} %s", "try {this}")
    (found,) = diagnose((), (), (problem,))
    assert (found.what, found.remedy, found.places) == ("odd {files} %s", "try {this}", ("{count}{0}.json",))


@pytest.mark.parametrize(
    ("option", "failures"),
    [
        ("stack_depth 8 has no effect: this torch keeps whole stacks", []),
        ("a trace of all threads cannot record allocations: `memory` is left out of contents", ["stop: OSError: full"]),
    ],
)
def test_an_option_that_capture_ignored_gets_the_remedy_of_an_option(tmp_path, option, failures):
    told(f'[{{"path": "rank0.json"}}], "problems": {json.dumps([*failures, option])}')(tmp_path)
    found = {diagnosis.code: diagnosis for diagnosis in examine_captures([tmp_path], Options()).diagnoses}
    assert found["no-effect"].what == option
    assert "remove it from the configuration" in found["no-effect"].remedy
    assert ("capture-problem" in found) == bool(failures)
    if failures:
        assert option not in found["capture-problem"].what


def test_a_packed_file_that_unpacks_to_too_much_gets_the_remedy_of_an_archive():
    (found,) = diagnose((), [Note("data_loss", "packed-bomb", "too much: the rest was not read", "a.json.gz")])
    assert (found.code, found.severity, found.remedy) == ("archive", "data_loss", "unpack it, and pass the result")


EMPTY = Data(why="empty-file")


def test_a_file_that_is_missed_and_passed_over_counts_once():
    notes = [Note("data_loss", "not-read", "nothing", "a.json", data=EMPTY)]
    both = [*notes, Note("info", IGNORED, "nothing", "a.json", data=EMPTY)]
    for given_notes in (notes, both):
        (found,) = diagnose((), given_notes)
        assert (found.code, found.places) == ("empty-file", ("a.json",))


def test_every_problem_has_a_cause_and_a_remedy_and_is_tried_here():
    files = ("tests/support/sick_runs.py", "tests/cases/test_kinds.py")
    text = Path(__file__).read_text() + "".join((ROOT / file).read_text() for file in files)
    for code, problem in PROBLEMS.items():
        assert problem.cause
        assert problem.remedy
        assert f'"{code}"' in text, code


def test_a_listed_gpu_without_calls_is_worth_a_note_and_calls_without_work_a_warning(tmp_path):
    export(tmp_path / "listed" / "a.sqlite", more=[nsys.gpu()])
    assert diagnoses(tmp_path / "listed")["cpu-only"].severity == "info"
    export(tmp_path / "called" / "a.sqlite", more=CALLS)
    assert diagnoses(tmp_path / "called")["no-kernels"].severity == "warning"


def test_nsys_that_only_may_have_lost_something_is_no_loss(tmp_path):
    export(tmp_path / "may" / "a.sqlite", more=[nsys.diagnostic(LOST)])
    assert diagnoses(tmp_path / "may")["lost-rows"].severity == "warning"
    export(tmp_path / "did" / "a.sqlite", more=[nsys.diagnostic("CUPTI buffer overrun: 7 records dropped")])
    assert diagnoses(tmp_path / "did")["lost-rows"].severity == "data_loss"


TOLD_BY_BOTH = ("no-kernels", "open-ranges", "missing-ranges", "nested-ranges", "empty-capture")


@pytest.mark.parametrize("code", TOLD_BY_BOTH)
def test_the_report_tells_in_its_data_quality_what_the_doctor_tells(tmp_path, code):
    NSYS[code][0](tmp_path)
    asked = pipeline.Options(questions=("data-quality",))
    found = pipeline.measure(pipeline.discover_sources(tmp_path), asked)
    section = data_quality.judge(found, load_default_thresholds())
    (rows,) = [sheet.rows for sheet in section.sheets if sheet.name == "diagnoses"]
    told = [d.what for d in diagnoses(tmp_path).values() if d.severity != "info"]
    assert [row[0] for row in rows] == told != []


def test_a_fault_of_ours_is_told_as_such():
    note = Note("error", "failed:kernels", "kernels could not be measured: ValueError: x", "a.json")
    (found,) = diagnose((), [note])
    assert (found.code, found.severity in GRAVE) == ("broken-question", True)
    (other,) = diagnose((), [Note("data_loss", "metadata", "lost", "a.json")])
    assert (other.code, other.what) == ("other-loss", "lost")
    (hot,) = diagnose((), [Note("warning", "opened", "?", "a.sqlite", data=Data(state="interrupted-writer"))])
    assert hot.code == "open-database"


ANY_SOURCE = st.builds(
    Source,
    path=st.just(Path("x")),
    name=st.text(max_size=12),
    reader=st.just("any"),
    tool=st.sampled_from(("torch", "nsys", "torch_memory", "log")),
    run=st.sampled_from(("", "a", "b")),
    role=st.none() | st.text(max_size=3),
    step=st.none() | st.integers(0, 2**62),
    rank=st.none() | st.integers(0, 2**62),
    world_size=st.none() | st.integers(0, 2**62),
    part=st.sampled_from((None, "range1", "range3", "capture2", "mb1", "steps1-2-range9")),
    pid=st.none() | st.integers(0, 2),
)
ANY_CAPTURE = st.builds(
    Capture,
    source=ANY_SOURCE,
    first_ns=st.integers(-(2**62), 2**62),
    last_ns=st.integers(-(2**62), 2**62),
    absolute_time=st.booleans(),
    host_op_count=st.integers(0, 2),
    device_op_count=st.integers(0, 2),
    recorded=st.none() | st.integers(0, 2),
    steps=st.frozensets(st.integers(0, 2**62), max_size=3),
    session=st.none() | st.sampled_from(("s", "t")),
)
ANY_NOTE = st.builds(
    Note,
    severity=st.sampled_from(("info", "warning", "data_loss", "error")),
    code=st.text(max_size=3)
    | st.sampled_from((IGNORED, "not-read", "unreadable", "opened", "damaged", "failed:x", "conflict")),
    message=st.text(min_size=1, max_size=20) | st.sampled_from(("cut off: {}", "a\nb")),
    source=st.text(max_size=8) | st.sampled_from(("a.nsys-rep", "b.sqlite", "c.json.gz.tmp")),
    count=st.integers(0, 3),
    data=st.just(Data())
    | st.builds(Data, why=st.sampled_from(("empty-file", "lfs-pointer", "no-format", "temporary")))
    | st.builds(Data, state=st.sampled_from(("no-log", "cut", "interrupted-writer"))),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY_CAPTURE, max_size=6), st.lists(ANY_NOTE, max_size=6), st.booleans())
def test_whatever_is_found_each_thing_is_said_once_the_gravest_first(captures, notes, complete):
    found = diagnose(captures, notes, complete=complete)
    grave = [d.severity in GRAVE for d in found]
    assert grave == sorted(grave, reverse=True)
    assert len({(d.code, d.what) for d in found}) == len(found)
    for diagnosis in found:
        assert diagnosis.what
        assert diagnosis.count > 0
        assert len(diagnosis.what) < 400
        assert len(set(diagnosis.places)) == len(diagnosis.places)
    told = [(d.code, d.what, d.places) for d in found]
    again = diagnose(captures, notes[::-1], complete=complete)
    assert [(d.code, d.what, d.places) for d in again] == told


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY_NOTE, max_size=6))
def test_what_is_wrong_is_known_by_codes_and_data_whatever_the_words_are(notes):
    other = [replace(note, message=f"no nsys, cut off: {n}") for n, note in enumerate(notes)]
    failures = [Failure("y.json", note.message, "", note.data.text("why")) for note in notes]
    others = [replace(failure, problem="Git LFS: permission denied") for failure in failures]

    def codes(*what):
        return {(d.code, d.severity, place) for d in diagnose((), *what) for place in d.places}

    assert codes(notes, failures) == codes(other, others)


def test_numbers_are_bounded():
    assert format_ranges(range(0, 100, 2)) == "0, 2, 4, 6, 8, 10 …"


def test_what_is_held_is_summed_up(tmp_path):
    healthy(tmp_path)
    assert summarize_examination(examine_captures([tmp_path], Options(jobs=1))) == (
        "2 of 2 files read", "ranks 0, 1", "steps 1, 2", "GPU work in 2",
    )  # fmt: skip


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(TracekitError, match="no such file"):
        examine_captures([tmp_path / "gone"], Options())


# --- real files


REAL_RUNS = {
    "chrome/verl_cpu/v080_e2e": {"cpu-only"},
    "chrome/rl_insight": {"no-kernels", "same-content"},
    "chrome/gloo_cpu/fault_leak": {"cpu-only", "missing-ranks"},
    "nsys/real_cpu/ray_steps/worker_process_24151.*.sqlite": {"cpu-only", "few-ranks", "lost-rows"},
    "nsys/frasertajima_WeatherBench2": {"no-kernels"},
    "nsys/GindaChen_nsys-ai/mfu_2gpu_before.sqlite": set(),
    "nsys/sidvijay10_ml_cloud_hw2": {"no-profile", "lfs-pointer"},
}


@pytest.mark.parametrize("name", REAL_RUNS)
def test_real_runs_show_what_is_wrong_with_them_and_no_more(name):
    if REAL is None:
        pytest.skip("real profiles are not here")
    assert set(diagnoses(Path(REAL) / name)) == REAL_RUNS[name]
