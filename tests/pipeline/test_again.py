"""A report on files that did not change is judged once: the second look gives the same bytes in every form, or is a first one."""

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path

import pytest
from chrome_builder import annotation, launched, op, step, write
from command_line import invoke
from hypothesis import given
from hypothesis import strategies as st
from nsys_programs import copies, install, put_export, put_report

import tracekit
from tracekit.analyses import ANALYSES
from tracekit.discover import Sniffed
from tracekit.model import report as nouns
from tracekit.model.inputs.note_codes import Data, Reason
from tracekit.model.report import Finding, LazySequence, Metric, Place, Report, Section, Sheet
from tracekit.pipeline import report_cache
from tracekit.pipeline import run as pipeline
from tracekit.pipeline.cache import file_index, saved_measurements
from tracekit.pipeline.cache.file_index import FileRecord
from tracekit.pipeline.options import Options
from tracekit.readers import READERS

EXAMPLES = Path(__file__).parents[2] / "examples"
PROFILES = ["verl_cpu/outputs/profile", "simulated_gpu/outputs/profile", "simulated_memory/leaking", "compare_cpu/base"]
OF_PROFILES = [PROFILES[0], *(pytest.param(p, marks=pytest.mark.slow) for p in PROFILES[1:])]
RANKS = 4
FORMS = ("md", "html", "json", "txt")
FEW = ("kernels", "steps", "data-quality")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACEKIT_NO_CACHE")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reports"


@pytest.fixture
def profile(tmp_path):
    for rank in range(RANKS):
        write_rank(tmp_path / "run" / "profile", rank)
    return tmp_path / "run" / "profile"


def write_rank(folder, rank, longer=0, count=1):
    rows = [step(1, 0, 100), annotation("gen", 5, 40), op("aten::mm", 6, 10)]
    for place in range(count):
        rows += launched("gemm", 8 + place, 20 + place, 10 + rank + longer, 11 + place)
    return write(folder / f"rank{rank}.json", rows, rank=rank, world_size=RANKS)


def is_kept(path, **options):
    """Whether the report is taken as it was kept; it is the one that is made now."""
    options = {"questions": FEW, **options}
    result = report_cache.analyze_cached(path, Options(**options))
    fresh = pipeline.analyze_uncached(path, Options(**{**options, "cache": False, "jobs": 1}))
    assert repr(asdict(result.report)) == repr(asdict(fresh.report))
    assert (result.read, result.failures, result.failed) == (fresh.read, fresh.failures, fresh.failed)
    return isinstance(result, report_cache.CachedResult)


def written(path, folder, *args):
    """All that a command writes and says, but how long it took."""
    folder.mkdir()
    outputs = [arg for form in FORMS for arg in ("-o", folder / f"report.{form}")]
    exports = ["--export", f"csv={folder / 'csv'}", "--export", f"openmetrics={folder / 'metrics'}"]
    done = invoke("analyze", path, *outputs, *exports, *args)
    files = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    lines = [line.split(" in ")[0] for line in done.stderr.splitlines() if "wrote" not in line]
    return done.exit_code, done.stdout, lines, files


@pytest.mark.parametrize(
    ("example", "args"),
    [
        (PROFILES[0], ()),
        *(pytest.param(example, (), marks=pytest.mark.slow) for example in PROFILES[1:]),
        (PROFILES[1], ("-v", "--top", "3", "--tokens", "4096", "--strict")),
    ],
)
def test_every_form_of_a_kept_report_is_that_of_one_without_a_cache(example, args, tmp_path, monkeypatch):
    path = EXAMPLES / example
    uncached = written(path, tmp_path / "uncached", *args, "--no-cache")
    assert len(uncached[3]) > len(FORMS)
    assert written(path, tmp_path / "first", *args) == uncached
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "judge", None)
        assert written(path, tmp_path / "second", *args) == uncached


@pytest.mark.parametrize("example", OF_PROFILES)
def test_the_screen_is_the_same_whether_details_are_made_kept_or_neither(example, tmp_path, cache, monkeypatch):
    path = EXAMPLES / example
    shown = invoke("analyze", path, "--no-cache", "-o", tmp_path / "all.json").stdout
    with monkeypatch.context() as patched:
        if example != PROFILES[2]:  # of which the first screen shows a table
            patched.setattr(LazySequence, "materialize", None)  # whoever looks breaks
        assert invoke("analyze", path, "--no-cache").stdout == shown
        assert invoke("analyze", path).stdout == shown
    of_the_screen = entries(cache)[0].stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "judge", None)
        assert invoke("analyze", path).stdout == shown
    invoke("analyze", path, "-o", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "all.json").read_bytes()
    (entry,) = entries(cache)  # which has the details now, and takes the place of the other
    assert entry.stat().st_size > of_the_screen
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "judge", None)
        assert invoke("analyze", path).stdout == shown
        invoke("analyze", path, "-o", tmp_path / "third.json")
    assert (tmp_path / "third.json").read_bytes() == (tmp_path / "all.json").read_bytes()


def test_who_is_strict_is_told_of_what_breaks_below_the_screen(profile, monkeypatch):
    monkeypatch.setattr("tracekit.analyses.ops.kernels.make_sheet", None)
    assert invoke("analyze", profile).exit_code == 0
    told = invoke("analyze", profile, "--strict")
    assert told.exit_code == 2
    assert "kernels could not be judged" in told.stdout


@pytest.mark.parametrize(("many", "is_kept_whole"), [(RANKS, True), (RANKS + 1, False)])
def test_the_details_of_many_files_are_kept_at_once(profile, monkeypatch, many, is_kept_whole):
    monkeypatch.setattr(report_cache, "FULL_DETAIL_SOURCES", many)
    report_cache.analyze_cached(str(profile), Options(details=False))
    assert isinstance(report_cache.analyze_cached(str(profile)), report_cache.CachedResult) is is_kept_whole


@pytest.mark.parametrize("example", OF_PROFILES)
def test_details_that_are_made_later_are_those_that_are_made_at_once(example):
    at_once, later = (
        pipeline.analyze_uncached(EXAMPLES / example, Options(details=details)).report for details in (True, False)
    )
    assert any(isinstance(section.sheets, LazySequence) for section in later.sections)
    assert not any(isinstance(section.sheets, LazySequence) for section in at_once.sections)
    assert at_once == replace(later, values=at_once.values)


@pytest.mark.parametrize("example", OF_PROFILES)
def test_a_report_holds_plain_values_alone(example):
    assert kinds_in(pipeline.analyze_uncached(EXAMPLES / example).report) <= {int, float, str, bool, type(None)}


def kinds_in(value):
    """The types of the values in a report."""
    if is_dataclass(value):
        return kinds_in(tuple(getattr(value, field.name) for field in fields(value)))
    if type(value) is tuple:
        return set().union(*map(kinds_in, value))
    return {type(value)}


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": "0-1"},
        {"steps": "1"},
        {"stages": ("gen",)},
        {"exclude": ("rank3*",)},
        {"sample": 2},
        {"questions": ("kernels",)},
        {"skip": ("steps",)},
        {"work": {"tokens": 4096.0, "samples": 2.0}},
        {"device_memory": 80 << 30},
    ],
    ids=str,
)
def test_what_was_chosen_is_part_of_the_question(profile, options):
    assert not is_kept(profile)
    assert not is_kept(profile, **options)
    assert is_kept(profile, **options)
    assert is_kept(profile)


def test_how_it_is_run_makes_no_difference(profile):
    assert not is_kept(profile)
    assert is_kept(profile, jobs=1)
    assert is_kept(profile, progress=True)
    assert is_kept([str(profile)])


def test_the_name_that_was_typed_is_part_of_it(profile, monkeypatch):
    assert not is_kept(profile)
    monkeypatch.chdir(profile.parent)
    assert not is_kept("profile")
    assert is_kept("profile")
    assert not is_kept(f"before={profile}")
    assert not is_kept([profile / "rank0.json", profile / "rank1.json"])


def test_a_report_on_measurements_that_were_saved_is_kept_until_they_change(profile, tmp_path):
    path = tmp_path / "m.tkm"
    saved_measurements.save(pipeline.analyze_uncached(profile).measurements, path)
    assert not is_kept(path)
    assert is_kept(path)
    assert not is_kept([path, profile])
    assert is_kept([path, profile])
    saved_measurements.save(pipeline.analyze_uncached(profile, Options(ranks="0")).measurements, path)
    assert not is_kept(path)
    assert not is_kept([path, profile])


@pytest.mark.parametrize("count", [1, 5000])
def test_a_byte_that_changed_is_seen_even_if_size_and_time_are_the_same(profile, count):
    path = write_rank(profile, 2, count=count)
    assert (path.stat().st_size > file_index.WHOLE_BYTES) == (count > 1)
    os.utime(path, ns=(10**18, 10**18))
    assert not is_kept(profile)
    assert is_kept(profile)
    data = path.read_bytes()
    spot = data.index(b'"gemm"', len(data) // 2 if count > 1 else 0)
    path.write_bytes(data[:spot] + b'"GEMM"' + data[spot + 6 :])
    os.utime(path, ns=(10**18, 10**18))
    assert not is_kept(profile)
    assert is_kept(profile)


def settled(monkeypatch):
    """Files that were written now count as written long ago."""
    monkeypatch.setattr("tracekit.model.system.files.MOMENTS_NS", -(10**12))


@pytest.fixture
def digested(monkeypatch):
    """The names of the files that are read as a whole for their digest."""
    names = []
    really = file_index.digest_content

    def noted(path):
        names.append(path.name)
        return really(path)

    monkeypatch.setattr(file_index, "digest_content", noted)
    return names


def test_a_large_file_is_not_read_again_as_a_whole_and_a_small_one_is(profile, digested, monkeypatch):
    path = write_rank(profile, 2, count=5000)
    settled(monkeypatch)
    assert not is_kept(profile)
    digested.clear()
    assert is_kept(profile)
    assert sorted(digested) == ["rank0.json", "rank1.json", "rank3.json"]
    os.utime(path)
    digested.clear()
    assert is_kept(profile)
    assert "rank2.json" in digested


def test_a_large_file_that_was_written_moments_ago_is_read_as_a_whole(profile, digested):
    write_rank(profile, 2, count=5000)
    assert not is_kept(profile)
    digested.clear()
    assert is_kept(profile)
    assert "rank2.json" in digested


def test_a_file_that_changed_again_within_a_tick_of_the_clock_is_seen(profile, monkeypatch):
    path = profile / "rank0.json"
    size, moment = path.stat().st_size, time.time_ns()
    monkeypatch.setattr(file_index, "_get_file_sign", lambda path: (1, 1, size, moment, moment))
    files = file_index.FileIndex({})
    files.sniff(path)
    contents = {path: file_index.digest_content(path)}
    assert files.are_unchanged(contents)
    path.write_bytes(path.read_bytes().replace(b'"gemm"', b'"GEMM"'))
    assert not files.are_unchanged(contents)


def test_ends_that_changed_are_seen_where_all_that_a_system_tells_is_the_same(profile, digested, monkeypatch):
    path = write_rank(profile, 2, count=5000)
    settled(monkeypatch)
    monkeypatch.setattr(file_index, "_get_file_sign", lambda path: (1, 1, path.stat().st_size, 1, 1))
    assert not is_kept(profile)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"aten::mm"', b'"aten::MM"'))
    assert not is_kept(profile)


def test_files_that_come_and_go_and_change_their_names_are_seen(profile):
    assert not is_kept(profile)
    new = write(profile / "rank9.json", [step(1, 0, 90)], rank=9, world_size=RANKS)
    assert not is_kept(profile)
    new.unlink()
    assert not is_kept(profile)
    assert is_kept(profile)
    shutil.copy(profile / "rank0.json", profile / "copy.json")
    assert not is_kept(profile)
    (profile / "copy.json").rename(profile / "another.json")
    assert not is_kept(profile)
    (profile / "rank8.json").write_text("no trace")
    assert not is_kept(profile)
    assert is_kept(profile)
    (profile / "rank8.json").write_text("NO TRACE")
    assert is_kept(profile)  # nothing is read of it, and what it is has not changed
    (profile / "rank8.json").write_text("")
    assert not is_kept(profile)


def test_a_log_that_appears_above_is_seen(profile):
    assert not is_kept(profile)
    log = profile.parent / "train.log"
    log.write_text("step:1 - timing_s/step:2.0 - timing_s/gen:1.0\n")
    assert not is_kept(profile)
    assert is_kept(profile)
    log.write_text("step:1 - timing_s/step:3.0 - timing_s/gen:1.0\n")
    assert not is_kept(profile)


def test_a_new_file_of_many_is_the_one_that_is_measured(profile, monkeypatch):
    measured = []
    really = pipeline.measure_source

    def noted(source, advance, **chosen):
        measured.append(source.name)
        return really(source, advance, **chosen)

    monkeypatch.setattr(pipeline, "measure_source", noted)
    report_cache.analyze_cached(profile)
    write(profile / "rank9.json", [step(1, 0, 90)], rank=9, world_size=RANKS)
    measured.clear()
    report_cache.analyze_cached(profile)
    assert measured == ["rank9.json"]


def test_other_code_and_other_libraries_judge_anew(profile, monkeypatch):
    assert not is_kept(profile)
    monkeypatch.setattr(report_cache, "_digest_installation", lambda: "another version")
    assert not is_kept(profile)


def test_every_file_of_the_code_tells_when_it_changed(tmp_path, monkeypatch):
    package = tmp_path / "tracekit"
    (package / "pipeline").mkdir(parents=True)
    monkeypatch.setattr(report_cache, "__file__", str(package / "pipeline" / "again.py"))
    code = package / "analyses.toml"
    code.write_text("limit = 1")
    first = report_cache._digest_installation.__wrapped__()
    assert report_cache._digest_installation.__wrapped__() == first
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_text("compiled")
    assert report_cache._digest_installation.__wrapped__() == first
    os.utime(code, ns=(1, 1))
    assert report_cache._digest_installation.__wrapped__() != first
    monkeypatch.setattr(report_cache, "_LIBRARIES", ("numpy",))
    assert report_cache._digest_installation.__wrapped__() != first


def entries(cache):
    return sorted(cache.glob("*.report"))


@pytest.mark.parametrize("how", ["empty", "cut", "other", "no head", "no report"])
def test_a_damaged_report_is_judged_anew_and_replaced(profile, cache, how):
    assert not is_kept(profile)
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(
        {
            "empty": b"",
            "cut": whole[:-1],
            "other": b"something else",
            "no head": report_cache.serialize_report(Report("", ""), None),
            "no report": report_cache.serialize_report(Metric("a", 1, ""), report_cache.parse_report(whole)[0]),
        }[how]
    )
    assert not is_kept(profile)
    assert entry.read_bytes() == whole
    assert is_kept(profile)


def test_any_byte_that_changed_is_found(profile, cache):
    assert not is_kept(profile)
    (entry,) = entries(cache)
    data, dice = entry.read_bytes(), random.Random(1)
    for _ in range(200):
        spot = dice.randrange(len(data))
        changed = data[:spot] + bytes([data[spot] ^ dice.randrange(1, 256)]) + data[spot + 1 :]
        with pytest.raises(ValueError, match="damaged"):
            report_cache.parse_report(changed)


def test_what_failed_is_not_kept(profile, cache, monkeypatch):
    def explode(*_):
        raise RuntimeError("boom")

    for action in ("measure", "judge"):
        broken = tuple(
            replace(analysis, **{action: explode}) if analysis.id == "kernels" else analysis for analysis in ANALYSES
        )
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "ANALYSES", broken)
            assert not isinstance(report_cache.analyze_cached(profile), report_cache.CachedResult)
        assert entries(cache) == []
    (profile / "rank0.json").write_text('{"traceEvents": [{"ph": "X", "name": "half')
    (profile / "rank1.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": 3}')
    result = report_cache.analyze_cached(profile)
    assert (entries(cache) == []) == result.failed


def test_questions_of_ones_own_and_what_ray_reads_is_not_looked_up(profile, cache):
    own = (str(EXAMPLES / "own_question.py"),)
    assert not is_kept(profile, question_files=own)
    assert not is_kept(profile, question_files=own)
    assert not cache.exists()
    assert report_cache._look_up_report([profile], Options(engine="ray")) is None
    assert report_cache._look_up_report([profile], Options(on_every_node=("x",))) is None


def test_no_cache_neither_keeps_nor_takes(profile, cache, monkeypatch):
    assert not is_kept(profile, cache=False)
    assert not cache.exists()
    assert not is_kept(profile)
    assert not is_kept(profile, cache=False)
    monkeypatch.setenv("TRACEKIT_NO_CACHE", "1")
    assert not is_kept(profile)


def test_a_file_that_changes_before_the_report_is_kept_keeps_nothing(profile, cache, monkeypatch):
    really = pipeline.judge

    def slowly(measured, **options):
        write_rank(profile, 1, longer=5)
        return really(measured, **options)

    monkeypatch.setattr(pipeline, "judge", slowly)
    report_cache.analyze_cached(profile)
    assert entries(cache) == []


def test_saved_measurements_that_change_before_the_report_is_kept_keep_nothing(profile, tmp_path, cache, monkeypatch):
    first = pipeline.analyze_uncached(profile, Options(questions=FEW)).measurements
    path = tmp_path / "m.tkm"
    saved_measurements.save(first, path)
    really = pipeline.judge

    def slowly(measured, **options):
        saved_measurements.save(pipeline.measure_all(profile, Options(ranks="0", questions=FEW)), path)
        return really(measured, **options)

    monkeypatch.setattr(pipeline, "judge", slowly)
    report_cache.analyze_cached(path)
    assert entries(cache) == []


def test_a_place_that_cannot_be_written_to_keeps_nothing_and_hinders_nothing(profile, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("TRACEKIT_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tracekit.model.system.cache.listeners", [lambda *_: None])
    assert not is_kept(profile)
    assert not is_kept(profile)


def test_a_limit_that_is_no_size_is_an_error_at_every_look(profile, monkeypatch):
    assert not is_kept(profile)
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", "much")
    done = invoke("analyze", profile)
    assert done.exit_code == 2
    assert "TRACEKIT_CACHE_LIMIT" in done.stderr


@pytest.mark.parametrize("args", [("nowhere",), (".", "--only", "nothing"), (".", "--ranks", "x")])
def test_what_is_wrong_is_said_as_without_a_cache(args, profile, monkeypatch):
    monkeypatch.chdir(profile)
    cached, uncached = invoke("analyze", *args), invoke("analyze", *args, "--no-cache")
    assert (cached.exit_code, cached.stderr) == (uncached.exit_code, uncached.stderr)
    assert cached.exit_code == 2


def test_strict_is_as_strict_with_a_kept_report(profile):
    (profile / "rank9.pt.trace.json").write_text("no trace")
    codes = [invoke("analyze", profile, "--strict").exit_code for _ in range(2)]
    assert codes == [2, 2]
    assert report_cache.analyze_cached(str(profile)).report.files
    assert isinstance(report_cache.analyze_cached(str(profile)), report_cache.CachedResult)


def test_measurements_behind_a_kept_report_are_those_it_was_judged_from(profile, tmp_path):
    for name in ("first", "second"):
        assert invoke("analyze", profile, "-q", "--save", tmp_path / f"{name}.tkm").exit_code == 0
    assert (tmp_path / "first.tkm").read_bytes() == (tmp_path / "second.tkm").read_bytes()
    result = report_cache.analyze_cached(str(profile), Options(details=False))
    assert isinstance(result, report_cache.CachedResult)
    assert result.measurements is result.measurements
    assert len(result.measurements.sources) == RANKS


def test_python_callers_get_the_kept_report_too(profile, cache):
    first = tracekit.analyze(profile)
    (entry,) = entries(cache)
    os.utime(entry, ns=(1, 1))
    assert tracekit.analyze(profile) == first
    assert entry.stat().st_mtime_ns > 1


@pytest.mark.parametrize("form", ["trace", "export"])
def test_the_second_look_imports_neither_pandas_nor_numpy(profile, tmp_path, form):
    if form == "export":
        profile = put_export(tmp_path / "export.sqlite")
    code = """if True:
        import sys
        from tracekit.cli import main
        try:
            main()
        finally:
            print(sorted({"numpy", "pandas", "scipy"} & set(sys.modules)))
    """
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", code, "analyze", str(profile), "--export", "json=-"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.rsplit("\n", 2))
    first, second = outputs
    assert second[0] == first[0]
    assert "numpy" in first[1]
    assert second[1] == "[]"


def test_two_at_once_do_not_disturb_each_other(profile, cache):
    command = [sys.executable, "-m", "tracekit", "analyze", str(profile), "--export", "json=-"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != b""
    assert len(list(cache.iterdir())) == 1
    assert is_kept(str(profile), questions=None)


def test_reports_are_for_their_owner_alone_and_shown_cleared_and_bounded(profile, cache, monkeypatch):
    assert not is_kept(profile)
    (entry,) = entries(cache)
    assert entry.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700
    assert '"reports": {\n      "files": 1' in invoke("cache", "--json").stdout
    assert invoke("cache", "--clear").exit_code == 0
    assert entries(cache) == []
    monkeypatch.setenv("TRACEKIT_CACHE_LIMIT", "1")
    assert not is_kept(profile)
    assert entries(cache) == []


def test_a_report_of_nsys_is_kept_with_its_export(tmp_path, monkeypatch, digested):
    export = put_export(tmp_path / "good.sqlite")
    report = put_report(tmp_path / "data" / "worker_process_4711.1.nsys-rep")
    install(tmp_path, monkeypatch, copies(export))
    looks = [isinstance(report_cache.analyze_cached(str(report)), report_cache.CachedResult) for _ in range(4)]
    assert looks == [False, False, True, True]
    settled(monkeypatch)
    database = put_export(tmp_path / "alone" / "b.sqlite")
    with database.open("ab") as stream:
        stream.truncate(file_index.WHOLE_BYTES + 4096)
    assert not isinstance(report_cache.analyze_cached(str(database)), report_cache.CachedResult)
    assert isinstance(report_cache.analyze_cached(str(database)), report_cache.CachedResult)
    assert "b.sqlite" not in digested
    (tmp_path / "alone" / "b.sqlite-wal").write_bytes(b"changes")
    assert not isinstance(report_cache.analyze_cached(str(database)), report_cache.CachedResult)


def test_every_reader_that_reads_more_than_the_file_says_so():
    for reader in READERS:
        assert reader.looks_beside == hasattr(reader.module, "describe_dependencies"), reader.name


TEXTS = st.text(st.characters(), max_size=8)
CELLS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS)


@given(TEXTS, st.lists(st.tuples(CELLS, CELLS), max_size=3).map(tuple), CELLS)
def test_a_report_that_was_packed_comes_out_as_it_was(text, rows, cell):
    sheet = Sheet(text, text, (), rows)
    metric = Metric(text, cell if isinstance(cell, float) else None, "")
    finding = Finding("a", "high", text, "", (metric,), (Place(name=text),), caveats=(text,))
    sections = (Section(text, text, sheets=(sheet,), findings=(finding,)),)
    report = Report(text, text, (text,), (metric,), sheet, sections, fingerprint=((text, text),))
    head, unpack = report_cache.parse_report(report_cache.serialize_report(report, [text]))
    assert (head, repr(asdict(unpack()))) == ([text], repr(asdict(report)))


def test_a_number_that_is_none_comes_out_as_it_was():
    report = Report("", "", headline=tuple(Metric("a", float(x), "") for x in ("nan", "inf", "-0")))
    assert repr(asdict(report_cache.parse_report(report_cache.serialize_report(report, 1))[1]())) == repr(
        asdict(report)
    )


@pytest.mark.parametrize("value", [object(), {1, 2}, bytearray(b"bytes")])
def test_what_is_nothing_of_a_report_is_not_packed(value):
    with pytest.raises(TypeError):
        report_cache.serialize_report(Report(value, ""), None)


def test_what_a_look_told_comes_out_of_its_record_as_it_was():
    reason = Reason("no-format", "text", Data(suffix=".a", number=1, names=("a", "b")))
    for record in (
        FileRecord("digest", Sniffed("chrome")),
        FileRecord("digest", None, (1, 2, 3, 4, 5), "ends"),
        FileRecord("digest", Sniffed(None, "torch", reason, certain=True), (1, 2, 3, 4, 5), "ends"),
    ):
        assert FileRecord.of_json(record.as_json()) == record


def test_every_dataclass_of_a_report_can_be_kept():
    defined = {name for name, kind in vars(nouns).items() if is_dataclass(kind) and kind.__module__ == nouns.__name__}
    assert defined <= set(report_cache._KINDS)
