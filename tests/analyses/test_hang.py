"""Which rank blocks a job: real hangs of gloo, healthy jobs, made dumps of NCCL, lines of watchdogs, and RAS."""

import json
import os
import shutil
from pathlib import Path

import pytest
from analyses.rl_report import rows, section
from chrome_builder import write
from flight_dumps import START_NS, dump, job, pending, pickled, ras, record, timed, watchdog
from rules.firing import write_sources

from tracekit.pipeline import analyze

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "hangs"
CASES = DATA / "cases" / "rl_runs"


def report(path):
    return analyze(path, questions=("hang", "data-quality"))


def find(path):
    """The claim of the only finding; None without any."""
    claims = [finding.claim for finding in report(path).findings if finding.rule == "hang"]
    assert len(claims) <= 1
    return claims[0] if claims else None


def on(tmp_path, *of_ranks, **facts):
    return find(write_sources(tmp_path, job(*of_ranks, **facts)))


def put_text(folder, name, text):
    """Write a log into a folder of its own."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize(
    ("case", "who", "where"),
    [
        ("missing", "rank 1 did not reach all_reduce #4 of default_pg; ranks 0, 2 have waited in it since ",
         "it is in wait_for_shutdown (/opt/trainer/code-gpu/train.py:134) (sure)"),
        ("size", "rank 1 called all_reduce #2 of default_pg with size [[16]] instead of [[8]]; ranks 0, 2 have waited in it since ",
         "its call is in reduce_gradients (/opt/trainer/code-gpu/train.py:115) (sure)"),
        ("op", "rank 1 called all_gather #2 instead of all_reduce #2 of default_pg; ranks 0, 2 have waited in it since ",
         "its call is in gather_metrics (/opt/trainer/code-gpu/train.py:120) (sure)"),
        ("python", "rank 2 did not reach barrier #3 of group 1; ranks 0, 1 have waited in it since ",
         "it is in compute_reward (/opt/trainer/code-gpu/train.py:129) (sure)"),
    ],
)  # fmt: skip
def test_a_real_hang_is_named_by_rank_collective_and_line(case, who, where):
    claim = find(REAL / case)
    assert claim.startswith(who)
    assert claim.endswith(where)


@pytest.mark.parametrize("case", ["missing", "size", "op", "python"])
def test_the_jsons_alone_name_the_same_rank_and_collective(tmp_path, case):
    for rank in range(3):
        shutil.copy(REAL / case / f"trace_rank_{rank}.json", tmp_path)
    claim, full = find(tmp_path), find(REAL / case)
    assert claim.partition(" since ")[0] == full.partition(" since ")[0]
    (finding,) = report(tmp_path).findings
    assert any("no stacks" in caveat for caveat in finding.caveats)


@pytest.mark.parametrize("case", ["finished", "uneven", "subgroup", "p2p", "restart"])
def test_a_healthy_job_is_silent(case):
    out = report(REAL / case)
    assert out.findings == ()
    (caveat,) = [text for text in section(out, "hang").caveats if "gloo" in text]
    assert "states not tracked" in caveat


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_running_job_that_was_dumped_rank_by_rank_is_silent_in_any_order(tmp_path, order):
    """Rank r is dumped while it waits in a collective that the next ranks to be dumped completed."""
    of_ranks = {rank: [*map(record, range(1, 5 + place)), pending(5 + place)] for place, rank in enumerate(order)}
    # The last one is dumped between two collectives.
    of_ranks[order[-1]].pop()
    assert on(tmp_path, *(of_ranks[rank] for rank in range(3))) is None


def test_the_missing_rank_of_the_made_case_is_named_with_its_stack():
    claim = find(CASES / "08_flight_recorder_hang")
    assert claim == (
        "rank 2 did not reach all_gather #41 of default_pg; ranks 0, 1, 3 have waited in it since 2025-09-16 05:20:00 UTC "
        "(forward, transformer_impl.py:612); it is in compute_score (/opt/my_reward/http_judge.py:88) (sure)"
    )
    (finding,) = report(CASES / "08_flight_recorder_hang").findings
    assert finding.advice.startswith("find out why the rank is there")
    values = {metric.name: metric.value for metric in finding.evidence}
    # 600,003 ms, the longest of three lines.
    assert values == {"waiting_ranks": 3, "waited": 600_003 * 10**6}
    assert not any("dumped on request" in caveat for caveat in finding.caveats), "a watchdog says that it timed out"
    json_claim = find(CASES / "08_flight_recorder_json")
    assert json_claim.startswith("rank 2 did not reach all_gather #41 of default_pg; ranks 0, 1, 3 have waited in it")
    assert json_claim.endswith("it last completed reduce_scatter #40 (sure)")


def test_a_finished_run_of_gloo_is_silent_although_all_its_records_say_scheduled():
    assert find(CASES / "12_gloo_fr_no_hang") is None


def test_a_missing_dump_is_not_a_missing_rank(tmp_path):
    waits = [record(1), pending(2)]
    claim = on(tmp_path, waits, waits)
    assert claim.startswith("rank 2 left no dump: dead, ending, or not asked; all others have waited in all_reduce #2")
    assert claim.endswith("(likely)")


def test_a_rank_that_is_missing_is_named_before_one_without_a_dump(tmp_path):
    claim = on(tmp_path, [record(1), pending(2)], [record(1)], ranks="[0, 1, 2, 3]")
    assert claim.startswith("rank 1 did not reach all_reduce #2")
    (finding,) = report(tmp_path).findings
    assert "no dump of ranks 2, 3: dead, ending, or not asked" in finding.caveats


def test_a_ring_that_dropped_the_records_in_question_leaves_the_claim_unknown(tmp_path):
    late = [record(9, record_id=5000), pending(10)]
    other = [record(3, record_id=7000, pg_id=1, process_group=["5", "tp"])]
    folder = write_sources(tmp_path, {
        "dumps/rank_0.json": dump(late, status=False), "dumps/rank_1.json": dump(late, status=False),
        "dumps/rank_2.json": dump(other, status=False, pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}),
    })  # fmt: skip
    claim = find(folder)
    assert claim.startswith("rank 2 did not reach all_reduce #10")
    assert claim.endswith("(unknown)")


def test_a_size_that_differs_between_two_ranks_names_both_sides_without_a_majority(tmp_path):
    claim = on(tmp_path, [pending(1)], [pending(1, input_sizes=[[9]])], ranks="[0, 1]")
    assert (
        "rank 1 and the others differ: it called all_reduce #1 of default_pg with size [[9]] instead of [[8]]" in claim
    )
    assert claim.endswith("(likely)")


def test_sizes_of_operations_that_may_differ_are_not_compared(tmp_path):
    ranks = [[pending(1, "all_to_all", input_sizes=[[size]])] for size in (7, 8, 9)]
    assert on(tmp_path, *ranks) is None
    retired = [[pending(1, "all_to_all", input_sizes=[[size]]) | {"retired": True}] for size in (7, 8, 9)]
    claim = on(tmp_path / "retired", *retired)
    assert claim.startswith("ranks 0–2 all entered all_to_all #1 of default_pg alike, have waited since")
    assert "and it timed out" in claim


def test_a_rank_whose_stream_is_blocked_is_named_where_the_others_started(tmp_path):
    timed_out = [pending(1) | {"retired": True}]
    claim = on(tmp_path, timed_out, [pending(1) | {"retired": True, "state": "scheduled"}], timed_out)
    assert "and it timed out; rank 1 has not started it: earlier work blocks the stream" in claim


def test_stacks_without_a_rank_are_joined_by_the_pid_of_a_trace_or_counted(tmp_path):
    files = job([record(1), pending(2)], [record(1)], ranks="[0, 1]")
    files["stacks.txt"] = (
        b'Process 77: python\nPython v3.11.7 (/usr/bin/python3)\n\nThread 77 (idle): "MainThread"\n    score (/job/a.py:8)\n'
    )
    out = report(write_sources(tmp_path, files))
    assert "score" not in out.findings[0].claim
    assert any(text.startswith("1 file of stacks has no rank") for text in section(out, "hang").caveats)
    write(tmp_path / "rank1.json", [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "pid": 77, "tid": 77}],
          rank=1, world_size=2)  # fmt: skip
    out = report(tmp_path)
    assert out.findings[0].claim.endswith("it is in score (/job/a.py:8) (sure)")


def test_of_a_chain_of_groups_the_one_whose_rank_waits_nowhere_is_the_cause(tmp_path):
    tp = {"pg_id": 1, "process_group": ["1", "tp"]}
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
        "1": {"name": "1", "desc": "tp", "ranks": "[1, 2]"},
    }
    of_ranks = (
        [record(1), pending(2)],
        [record(1), record(1, **tp), pending(2, **tp, time_created_ns=START_NS + 9 * 10**9)],
        [record(1), record(1, **tp)],
    )
    files = {f"dumps/rank_{rank}.json": dump(records, pg_config=config) for rank, records in enumerate(of_ranks)}
    claim = find(write_sources(tmp_path, files))
    # Rank 0 waits for ranks 1 and 2 in the default group; rank 1 waits for rank 2 in tp.
    assert claim.startswith("rank 2 did not reach all_reduce #2 of default_pg; rank 0 has waited in it")
    assert claim.endswith("it last completed all_reduce #1 (sure)")
    (finding,) = report(tmp_path).findings
    assert {metric.name: metric.value for metric in finding.evidence}["other_groups"] == 1


def test_two_groups_that_wait_for_each_other_are_a_deadlock_of_order(tmp_path):
    def of(pg, name):
        return {"pg_id": pg, "process_group": [str(pg), name]}

    config = {str(pg): {"name": str(pg), "desc": name, "ranks": "[0, 1]"} for pg, name in ((1, "tp"), (2, "dp"))}
    first = [record(1, **of(1, "tp")), record(1, **of(2, "dp")), pending(2, **of(1, "tp"))]
    second = [record(1, **of(1, "tp")), record(1, **of(2, "dp")), pending(2, **of(2, "dp"))]
    files = {f"dumps/rank_{rank}.json": dump(made, pg_config=config) for rank, made in enumerate((first, second))}
    claim = find(write_sources(tmp_path, files))
    assert claim.startswith("deadlock of two groups: rank 0 has waited in all_reduce #2 of tp since")
    assert "rank 1 in all_reduce #2 of dp, each for the other" in claim


def test_a_group_that_was_made_again_is_judged_by_its_last_life(tmp_path):
    before = [record(seq, record_id=seq) for seq in range(1, 6)]
    waits = [*before, record(1, record_id=6), pending(2, record_id=7)]
    claim = on(tmp_path, waits, [*before, record(1, record_id=6)], waits, status=False)
    assert claim.startswith("rank 1 did not reach all_reduce #2 of default_pg; ranks 0, 2 have waited")


def test_a_receive_without_its_send_names_the_sender(tmp_path):
    def transfer(op, seq, done):
        made = record(1, op, is_p2p=True, p2p_seq_id=seq)
        return made if done else made | {"state": "started", "retired": False}

    claim = on(
        tmp_path,
        [transfer("send 0->1", 1, True)],
        [transfer("recv 1<-0", 1, True), transfer("recv 1<-0", 2, False)],
        ranks="[0, 1]",
    )
    assert claim.startswith("rank 0 did not call its side of recv 1<-0 #2 of default_pg; rank 1 has waited in it since")


def test_the_status_of_gloo_which_counts_sends_too_is_not_compared(tmp_path):
    def gloo(seq, retired):
        return record(seq, state="scheduled", retired=retired, profiling_name="gloo:all_reduce")

    done = [gloo(1, True), gloo(2, False)]
    status = [{"0": {"last_enqueued_collective": count, "last_completed_collective": count - 1}} for count in (5, 9, 7)]
    files = {f"dumps/rank_{rank}.json": dump(done, pg_status=status[rank]) for rank in range(3)}
    assert find(write_sources(tmp_path, files)) is None


def test_a_wait_that_was_short_when_it_was_dumped_proves_nothing(tmp_path):
    of_ranks = [record(1), pending(2)], [record(1)], [record(1), pending(2)]
    folder = write_sources(tmp_path, job(*of_ranks))
    created_ns = START_NS + 2 * 10**9
    for path in (folder / "dumps").iterdir():
        os.utime(path, ns=(created_ns + 4_900_000_000,) * 2)
    out = report(folder)
    assert out.findings == ()
    (verdict,) = [verdict for verdict in section(out, "hang").verdicts if verdict.rule == "hang"]
    assert verdict.answer == "insufficient data"
    assert "at most 4,900 ms" in verdict.reason
    for path in (folder / "dumps").iterdir():
        os.utime(path, ns=(created_ns + 5_000_000_000,) * 2)
    assert find(folder).startswith("rank 1 did not reach")


def test_the_latest_of_several_dumps_of_one_rank_counts(tmp_path):
    files = job([record(1), pending(2)], [record(1)], ranks="[0, 1]")
    files["dumps/again_rank_1.json"] = dump([record(1), record(2)], ranks="[0, 1]")
    assert find(write_sources(tmp_path, files)) is None


def test_watchdogs_alone_name_those_who_waited_and_who_printed_something_else(tmp_path):
    signal = "[rank2]: [PG ID 0 PG GUID 0(default_pg) Rank 2] Observed flight recorder dump signal from another rank via TCPStore.\n"
    claim = find(put_text(tmp_path, "err.log", watchdog(0, 41) + watchdog(1, 41) + signal))
    assert (
        claim == "ranks 0, 1 timed out in ALLREDUCE #41 of default_pg after 600 s; rank 2 reports no timeout (likely)"
    )
    other = find(
        put_text(tmp_path / "other", "err.log", watchdog(0, 41) + watchdog(1, 41) + watchdog(2, 41, "BROADCAST"))
    )
    assert other.endswith("; rank 2 in BROADCAST #41 instead (likely)")
    alone = find(put_text(tmp_path / "alone", "err.log", watchdog(0, 41)))
    assert alone.endswith("; no line names the rank that is missing (unknown)")


def test_heartbeats_and_dump_signals_are_not_judged(tmp_path):
    text = "[rank5]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring\n"
    assert find(put_text(tmp_path, "err.log", text)) is None


def test_a_recorder_that_was_off_is_advised(tmp_path):
    text = (
        watchdog(0, 41)
        + "[rank0]: Stack trace of the failed collective not found, potentially because FlightRecorder is disabled\n"
    )
    (finding,) = report(put_text(tmp_path, "err.log", text)).findings
    assert "TORCH_FR_BUFFER_SIZE=2000" in finding.advice


def test_counts_of_ras_are_a_hang_only_if_two_reports_agree(tmp_path):
    assert find(put_text(tmp_path / "once", "ras.txt", ras(64, 60))) is None
    assert find(put_text(tmp_path / "moves", "ras.txt", ras(64, 60) + ras(70, 66))) is None
    claim = find(put_text(tmp_path / "stands", "ras.txt", ras(64, 60) + ras(64, 60)))
    assert claim == (
        "communicator 27a079b828ff1a75: rank 1 launched 60, 3 ranks launched 64 of AllReduce, "
        "unchanged in 2 reports of RAS (likely)"
    )


def test_the_collective_of_a_trace_beside_the_dumps_tells_its_stage_and_usual_duration(tmp_path):
    def comms(ts, seq):
        args = {
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 3,
            "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]", "Seq": seq,
        }  # fmt: skip
        return [
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": ts, "dur": 10, "pid": 1, "tid": 1,
             "args": {**args, "External id": seq}},
            {"ph": "X", "cat": "user_annotation", "name": "update_actor", "ts": ts - 1, "dur": 500, "pid": 1, "tid": 1},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 1, "dur": 2, "pid": 1, "tid": 1,
             "args": {"correlation": seq, "External id": seq}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "ts": ts + 20, "dur": 300, "pid": 0,
             "tid": 7, "args": {**args, "correlation": seq, "External id": seq, "device": 0, "stream": 7}},
        ]  # fmt: skip

    write(tmp_path / "rank0.json", [*comms(1000, 1), *comms(3000, 2)], rank=0, world_size=3)
    files = job([record(1), record(2), pending(3)], [record(1), record(2)], [record(1), record(2), pending(3)])
    out = analyze(write_sources(tmp_path, files), questions=("hang", "communication"))
    (finding,) = [finding for finding in out.findings if finding.rule == "hang"]
    (usual,) = [metric for metric in finding.evidence if metric.name == "usual"]
    assert usual.value == 300_000
    assert "in 2 traced calls, in update_actor" in usual.label


def test_the_table_of_ranks_says_who_waits_and_who_blocks(tmp_path):
    out = report(REAL / "missing")
    found = rows(out, "hang", "hang_ranks")
    assert [(row["rank"], row["state"], row["last enqueued"]) for row in found] == [
        (0, "waits", 4), (1, "blocks it", 3), (2, "waits", 4)
    ]  # fmt: skip
    assert json.loads((REAL / "missing" / "written.json").read_text()).keys() == {"0", "1", "2"}


def clear(path):
    """Findings and verdicts about ranks that are late, of a report without a hang."""
    out = analyze(path, questions=("late-rank",))
    assert "hang" not in " ".join(finding.claim for finding in out.findings)
    return [finding.claim for finding in out.findings], [
        verdict.answer for verdict in section(out, "late-rank").verdicts
    ]


def test_a_job_that_runs_names_the_late_rank_of_each_site_the_longest_wait_first(tmp_path):
    """Rank 1 is 5 ms late in 9 of 10 reductions at one line, and 3 ms in all of 20 gathers at another."""

    def at(line):
        return {"frames": [{"name": "step", "filename": "/job/train.py", "line": line}]}

    reductions = [
        [timed(seq, 1 if rank == 1 and seq < 10 else 6, **at(5)) for seq in range(1, 11)] for rank in range(3)
    ]
    gathers = [[timed(seq, 1 if rank == 1 else 4, "all_gather", **at(9)) for seq in range(11, 31)] for rank in range(3)]
    dumps = job(*(first + second for first, second in zip(reductions, gathers, strict=True)))
    folder = write_sources(tmp_path, {name.replace(".json", ""): pickled(data) for name, data in dumps.items()})
    claims, _ = clear(folder)
    assert claims == [
        "rank 1 arrives last at all_gather of default_pg in step (/job/train.py:9): 3.00 ms (median) after the rank before it, in 20 of 20 calls"
    ]
    found = rows(analyze(folder, questions=("late-rank",)), "late-rank", "late_ranks")
    assert [(row["collective"], row["wait for it alone"], row["calls in which it is last"]) for row in found] == [
        ("all_gather", 60_000_000, 20), ("all_reduce", 45_000_000, 9),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "late_ms", "last", "names_it"),
    [(10, 1.0, 9, True), (9, 1.0, 9, False), (10, 0.9, 10, False), (10, 5.0, 8, False)],
)
def test_a_rank_is_late_from_10_calls_a_median_of_1_ms_and_nine_tenths_on(tmp_path, calls, late_ms, last, names_it):
    of_ranks = [[timed(seq, 20) for seq in range(1, calls + 1)] for _ in range(3)]
    of_ranks[2] = [timed(seq, 20 - late_ms if seq <= last else 21) for seq in range(1, calls + 1)]
    claims, answers = clear(write_sources(tmp_path, job(*of_ranks)))
    assert (len(claims), answers) == ((1, []) if names_it else (0, ["clear"]))


def test_operations_that_a_rank_may_end_early_and_records_without_a_duration_are_not_compared(tmp_path):
    shorter = [[timed(seq, 2 if rank else 50, "broadcast") for seq in range(1, 21)] for rank in range(2)]
    untimed = [[record(seq) for seq in range(1, 21)] for _ in range(2)]
    for name, of_ranks in (("broadcast", shorter), ("untimed", untimed)):
        out = analyze(write_sources(tmp_path / name, job(*of_ranks, ranks="[0, 1]")), questions=("hang", "late-rank"))
        assert out.findings == ()
        assert [section.id for section in out.sections if section.id == "late-rank"] == []


def test_a_hang_is_reported_without_a_late_rank(tmp_path):
    late = [[timed(seq, 1 if rank == 1 else 20) for seq in range(1, 21)] for rank in range(3)]
    waits = [*late[0], pending(21)], late[1], [*late[2], pending(21)]
    out = analyze(write_sources(tmp_path, job(*waits)), questions=("hang", "late-rank"))
    assert [finding.rule for finding in out.findings] == ["hang"]


@pytest.mark.parametrize("case", ["finished", "uneven", "subgroup", "p2p", "restart"])
def test_dumps_of_gloo_have_no_durations_and_name_no_late_rank(case):
    assert analyze(REAL / case, questions=("hang", "late-rank")).findings == ()


def configured(*of_ranks, members):
    """Dumps in which rank r lists the members `members[r]` of the default group; None: no configuration."""
    configs = [{} if text is None else {"0": {"name": "0", "desc": "default_pg", "ranks": text}} for text in members]
    return {
        f"dumps/rank_{rank}.json": dump(records, pg_config=config)
        for rank, (records, config) in enumerate(zip(of_ranks, configs, strict=True))
    }


def test_dumps_that_disagree_about_the_members_of_a_group_name_no_rank_but_say_so_in_one_line(tmp_path):
    """Without the conflict, rank 2 would be missing; but its dump is of an attempt with two ranks."""
    of_ranks = [record(1), pending(2)], [record(1), pending(2)], [record(1)]
    folder = write_sources(tmp_path, configured(*of_ranks, members=("[0, 1, 2]", "[0, 1, 2]", "[1, 2]")))
    out = report(folder)
    assert out.findings == ()
    line = (
        "flight-recorder dumps disagree about the ranks of default_pg: 0–2 by ranks 0, 1; 1, 2 by rank 2. They are not of "
        "one attempt of a job, so their collectives are not compared"
    )
    assert out.cautions == (line,)
    (verdict,) = [verdict for verdict in section(out, "hang").verdicts if verdict.rule == "hang"]
    assert (verdict.answer, verdict.reason) == ("insufficient data", line)
    same = configured(*of_ranks, members=("[0, 1, 2]",) * 3)
    assert find(write_sources(tmp_path / "same", same)).startswith("rank 2 did not reach all_reduce #2")


def test_a_dump_without_members_takes_those_of_the_others(tmp_path):
    """Rank 2 arrived: as a group of its own, its records would be missing from that of the others."""
    of_ranks = [record(1), pending(2)], [record(1), pending(2)], [record(1), pending(2)]
    folder = write_sources(tmp_path, configured(*of_ranks, members=("[0, 1, 2]", "[0, 1, 2]", None)))
    out = report(folder)
    assert (out.findings, out.cautions) == ((), ())


def test_groups_of_one_name_without_a_common_rank_are_different_groups(tmp_path):
    pair = {"pg_id": 1, "process_group": ["1", "tp"]}
    files = {}
    for rank in range(4):
        members = "[0, 1]" if rank < 2 else "[2, 3]"
        config = {"1": {"name": "1", "desc": "tp", "ranks": members}}
        made = [record(1, **pair)] if rank == 3 else [record(1, **pair), pending(2, **pair)]
        files[f"dumps/rank_{rank}.json"] = dump(made, pg_config=config)
    assert find(write_sources(tmp_path, files)).startswith(
        "rank 3 did not reach all_reduce #2 of tp; rank 2 has waited in it since 2025"
    )
    assert report(tmp_path).cautions == ()


def test_the_first_screen_has_the_stacks_where_no_rank_is_named(tmp_path):
    for name in ("stacks_rank0.txt", "stacks_rank2.txt"):
        shutil.copy(Path(__file__).parents[2] / "examples" / "hang" / name, tmp_path)
    alone = report(tmp_path)
    assert (alone.findings, alone.overview.name) == ((), "overview")
    assert [row[0] for row in alone.overview.rows] == [0, 2]
    assert alone.overview.rows[1][2].startswith("compute_reward")
    whole = report(Path(__file__).parents[2] / "examples" / "hang")
    assert whole.findings
    assert whole.overview is None


@pytest.mark.parametrize("members", [None, "[0]"])
def test_one_dump_of_unknown_groups_is_not_enough(tmp_path, members):
    out = report(write_sources(tmp_path, configured([record(1), pending(2)], members=(members,))))
    reasons = [verdict.reason for verdict in section(out, "hang").verdicts if verdict.answer == "insufficient data"]
    assert out.findings == ()
    assert reasons == ([] if members == "[0]" else ["only rank 0 left a dump: add those of the other ranks"])
