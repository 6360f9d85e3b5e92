"""Cases with impossible times, merged or mixed processes, and odd but readable files: figures are those of the sound rows."""

import pytest


def headline(report):
    return {metric.name: metric.value for metric in report.headline}


def remarks(report):
    return {remark.code: (remark.severity, remark.count) for remark in report.remarks}


def rules(report):
    return [finding.rule for finding in report.findings]


SOUND = {"step_wall": 5_070_000, "compute_ratio": 0.986}

LATE_ENDS = {"01_rocm_overflow_dur": 1, "01b_rocm_overflow_small": 2, "01c_overflow_host_bound": 3}


@pytest.mark.parametrize(("name", "count"), LATE_ENDS.items())
def test_a_late_end_is_cut_and_counted(case, name, count):
    found = case(name)
    assert remarks(found.report) == {"late-ends": ("warning", count)}
    ops = "1 device op" if count == 1 else f"{count} device ops"
    assert f"{ops} ended after the next op of the same stream" in found.screen
    assert "cut to end before it" in found.doctor
    assert "profiling-artefact" not in rules(found.report)


def test_a_host_bound_step_with_late_ends_reads_like_its_clean_twin(case):
    sick, clean = case("01c_overflow_host_bound").report, case("01c_clean_host_bound").report
    assert headline(sick) == pytest.approx(headline(clean), abs=1e-3)
    assert headline(sick)["compute_ratio"] == pytest.approx(0.16, abs=0.005)
    assert rules(sick) == rules(clean) == ["launch-bound"]
    savings = [finding.cost_ns for finding in clean.findings]
    assert [f.cost_ns for f in sick.findings] == pytest.approx(savings, rel=0.01)


@pytest.mark.parametrize("name", ["01_rocm_overflow_dur", "03_kernels_1e14ns_early"])
def test_repaired_steps_have_the_figures_of_sound_ones(case, name):
    found = headline(case(name).report)
    assert {name: found[name] for name in SOUND} == pytest.approx(SOUND, rel=0.01)


def test_rows_at_time_zero_are_lost_and_make_no_steps(case):
    found = case("02_ts_zero_half")
    assert {n: headline(found.report)[n] for n in SOUND} == pytest.approx(SOUND, rel=0.01)
    assert remarks(found.report) == {"impossible-times": ("data_loss", 505)}
    assert "ranks unknown · steps 3, 4" in found.screen.replace("steps 3, 4, ", "")
    assert "505 rows at time zero" in found.screen
    assert "505 rows in 1 file at time zero" in found.doctor


def test_rows_at_time_zero_do_not_stretch_a_capture_without_steps(case):
    """The sound rows last 12.7 ms; the others lie 5,000 s before."""
    found = case("02b_ts_zero_half_no_steps")
    assert headline(found.report)["step_wall"] == pytest.approx(12_730_000, rel=0.01)
    assert remarks(found.report) == {"impossible-times": ("data_loss", 502)}


UNUSABLE = {
    "03_kernels_1e14ns_early": "6 of 200 launches have no usable kernel",
    "03c_kernels_early_no_steps": "6 of 200 launches have no usable kernel",
    "03b_head_kernels_dropped": "30 of 200 launches have no kernel",
}


@pytest.mark.parametrize(("name", "said"), UNUSABLE.items())
def test_launches_without_a_usable_kernel_are_counted(case, name, said):
    found = case(name)
    assert said in found.screen
    assert said in found.doctor
    assert headline(found.report)["compute_ratio"] > 0.95
    assert rules(found.report) == ["profiling-artefact"]


def test_two_processes_that_wrote_one_file_are_named_and_no_figure_is_claimed(case):
    found = case("10_interleaved_ranks")
    assert "Two processes wrote one file" in found.doctor
    assert "Two processes wrote one file" in found.screen
    assert "damaged" not in found.doctor + found.screen
    assert "was killed" not in found.doctor
    assert "two processes" in found.screen
    assert headline(found.report) == {}
    assert remarks(found.report)["interleaved-processes"] == ("data_loss", 1)


@pytest.mark.parametrize("name", ["35_sglang_merged", "35b_sglang_merged_tp"])
def test_merged_ranks_are_split_into_their_ranks_and_gpus(case, name):
    found = case(name)
    assert "ranks 0, 1" in found.screen
    assert "2 × NVIDIA H100" in found.screen
    assert "2 ranks (TP00, TP01) were merged into one file" in found.doctor
    assert remarks(found.report) == {"merged-ranks": ("info", 2)}
    assert headline(found.report)["step_wall"] == pytest.approx(5_670_000, rel=0.01)


def test_programmatic_dependent_launch_is_no_damage(case):
    """Kernels of 30 µs start 5 µs before the one before them ends: 55 of 100 µs."""
    found = case("pdl")
    assert headline(found.report)["compute_ratio"] == pytest.approx(0.55)
    assert remarks(found.report) == {}
    assert "profiling-artefact" not in rules(found.report)
    assert "nothing wrong" in found.doctor


ODD = {
    "06_inf_nan": {},
    "07_control_char": {},
    "07b_invalid_utf8": {},
    "07c_bad_escape": {},
    "13_string_pid_tid": {},
    "14_ids_above_2_53": {},
    "29_begin_end": {},
}


@pytest.mark.parametrize(("name", "said"), ODD.items())
def test_odd_but_readable_files_have_the_figures_of_their_twin(case, name, said):
    found = case(name)
    assert {n: headline(found.report)[n] for n in SOUND} == pytest.approx(SOUND, rel=0.01)
    assert remarks(found.report) == said
    assert "nothing wrong" in found.doctor


def test_negative_durations_count_as_zero_and_are_counted(case):
    found = case("08_negative_durations")
    assert remarks(found.report) == {"bad-duration": ("warning", 12)}
    assert headline(found.report)["step_wall"] == pytest.approx(5_070_000, rel=0.01)


def test_a_cut_file_keeps_its_whole_steps(case):
    found = case("18_truncated")
    assert headline(found.report)["step_wall"] == pytest.approx(5_070_000, rel=0.01)
    assert remarks(found.report) == {"truncated": ("data_loss", 1)}
    assert "cut off" in found.doctor


def test_ranks_that_nothing_names_stay_unknown(case):
    found = case("12_no_distributed_info")
    assert "ranks unknown" in found.screen
    assert "2 processes do not record a rank" in found.doctor
    assert headline(found.report)["step_wall"] == pytest.approx(7_760_000, rel=0.01)


def test_a_missing_rank_is_named_and_limits_what_is_said(case):
    found = case("31_rank2_missing")
    assert "1 rank of 4 missing: 2" in found.doctor
    assert "3 of 4 ranks were recorded" in found.screen
    assert headline(found.report)["step_wall"] == pytest.approx(6_270_000, rel=0.01)


def test_a_zipped_trace_is_read(case):
    found = case("33_zip_attachment")
    assert headline(found.report)["step_wall"] == pytest.approx(1_320_000, rel=0.01)
    assert "nothing wrong" in found.doctor


MIB = 2**20
PEAKS = {
    "m3_expandable": (500, 620),
    "m4_old_history": (499, 600),
    "m5_list": (500, 600),
    "m6_new_fields": (500, 600),
    "m7_oom_fragmented": (320, 2560),
}


@pytest.mark.parametrize(("name", "peaks"), PEAKS.items())
def test_variants_of_snapshots_are_read(case, name, peaks):
    found = headline(case(name).report)
    told = (found["peak_requested"] / MIB, found["peak_reserved"] / MIB)
    assert told == pytest.approx(peaks, rel=0.01)


def test_a_fragmented_snapshot_ran_out_of_memory_in_pieces(case):
    assert rules(case("m7_oom_fragmented").report) == ["out-of-memory", "fragmentation"]


def test_names_that_look_like_commands_are_names(case):
    found = case("workflow_commands")
    assert headline(found.report)["step_wall"] == pytest.approx(19_900_000, rel=0.01)
    assert remarks(found.report) == {}


@pytest.mark.parametrize(
    ("name", "claim", "advice"),
    [
        ("02_ts_zero_half", "has rows with impossible times", "newer torch"),
        ("03b_head_kernels_dropped", "lacks usable kernels for the first launches", "warmup=1"),
    ],
)
def test_the_finding_names_what_was_lost_and_what_helps_against_that(case, name, claim, advice):
    (finding,) = [f for f in case(name).report.findings if f.rule == "profiling-artefact"]
    assert claim in finding.claim
    assert advice in finding.advice
