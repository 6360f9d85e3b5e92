"""Collectives one by one: what they are, when issued, how exposed (M2, M5)."""

import numpy as np
import pandas as pd
import pytest
from chrome_builder import BACKWARD, BASE_NS, HOST_PID, annotation, kernel, launch, launched, op, step, write
from columns import columns_of
from hypothesis import given, settings
from hypothesis import strategies as st
from process.collective_traces import COMMS, found, gloo, only
from rules.traces_communication import nccl

import tracekit
from tracekit.analyses.time.gpu_time import breakdown
from tracekit.model.tables import KEYS, TABLES
from tracekit.model.tables.arrays import Coded, Nullable
from tracekit.model.tables.frame import Frame
from tracekit.process.collectives import table as module
from tracekit.process.collectives.names import make_group_key
from tracekit.process.collectives.table import COLUMNS, Collectives, list_collectives, sum_collectives_per_step


def test_it_has_the_columns_of_the_table():
    assert [*KEYS, *COLUMNS] == list(TABLES["collectives"].columns)


# Groups


def test_a_group_is_its_name_and_its_members(tmp_path):
    rows = [
        *nccl("allreduce", 0, 20, 10, 1, 1, ranks=(0, 1)),
        *nccl("allreduce", 1, 20, 10, 2, 1, ranks=(0, 2)),
        *nccl("allreduce", 2, 40, 10, 3, 1, ranks=(0, 1)),
    ]
    group = found(tmp_path, rows).rows.frame()["group"].tolist()
    assert group[0] == group[2] == make_group_key("0", ("0", "1")) != group[1]


def test_members_that_are_cut_short_still_tell_groups_apart(tmp_path):
    told = {"Process Group Ranks": "[0, 1, ..., 63]", "Group size": 64}
    row = only(tmp_path, nccl("allreduce", 0, 20, 10, 1, 1, **told))
    assert (row["group"], row["group_size"]) == (make_group_key("0", ("0", "1", "...", "63")), 64)


def test_what_the_call_does_not_tell_the_list_of_the_file_does(tmp_path):
    """One rank of a newer torch, one of an older: their keys must agree."""
    listed = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "7", "ranks": [0]}]}
    rows = nccl("allreduce", 0, 20, 10, 1, 1, **{"Process Group Ranks": "[]", "Group size": 0})
    path = write(tmp_path / "rank0.json", rows, rank=0, world_size=2)
    text = path.read_bytes().replace(
        b'"world_size": 2', b'"world_size": 2, ' + str(listed)[1:-1].replace("'", '"').encode()
    )
    path.write_bytes(text)
    (row,) = list_collectives(tracekit.load(path)).rows.frame().to_dict("records")
    assert (row["group"], row["group_size"]) == (make_group_key("0", ("0", "1")), 2)


def test_without_any_metadata_the_name_of_the_kernel_is_all_there_is(tmp_path):
    row = only(tmp_path, launched("ncclDevKernel_AllReduce_Sum_f32", 0, 20, 10, 1, stream=9))
    assert (row["op"], row["group"], row["dtype"]) == ("all_reduce", "(default)", None)
    assert row["synchronising"] is True
    frame = found(tmp_path, launched("ncclDevKernel_AllReduce_Sum_f32", 0, 20, 10, 1)).rows.frame()
    assert frame[["size_bytes", "group_size", "seq"]].isna().all(axis=None)


def test_a_collective_whose_launch_was_not_recorded_has_the_metadata_of_no_call(tmp_path):
    rows = [
        op("record_param_comms", 0, 50, **COMMS),
        op("aten::add", 60, 5),
        kernel("ncclDevKernel_AllReduce", 20, 10, 404, stream=9),
    ]
    row = only(tmp_path, rows)
    assert (row["group"], row["dtype"]) == ("(default)", None)


def test_a_collective_may_be_launched_by_the_first_call_of_all(tmp_path):
    frame = found(tmp_path, launched("ncclDevKernel_AllReduce", 5, 20, 10, 1, stream=9)).rows.frame()
    assert frame["issue_ns"].tolist() == [BASE_NS + 5_000]


# What encloses the launch


def test_the_metadata_may_stand_at_the_call_instead_of_the_kernel(tmp_path):
    rows = [
        op("record_param_comms", 0, 50, **COMMS), annotation("nccl:_all_gather_base", 1, 40), launch(5, 1),
        kernel("ncclDevKernel_Generic", 60, 10, 1, stream=9),
    ]  # fmt: skip
    row = only(tmp_path, rows)
    assert [row[n] for n in ("op", "group", "group_size", "dtype", "seq", "size_bytes")] == [
        "all_gather", make_group_key("3", ("4", "5")), 2, "float16", 17, 20,
    ]  # fmt: skip


def ranged(name, dims, types='["float"]'):
    row = gloo("x", 1, 40, dims, types, tid=HOST_PID)
    return row | {"name": name}


def test_a_range_around_the_launch_tells_the_operation_and_the_input(tmp_path):
    rows = [ranged("nccl:all_to_all", "[[25]]"), launch(5, 1), kernel("ncclKernel_SendRecv", 60, 10, 1)]
    row = only(tmp_path, rows)
    assert (row["op"], row["size_bytes"], row["dtype"]) == ("all_to_all", 100, "float32")


def test_what_one_rank_puts_into_an_all_gather_is_not_its_size(tmp_path):
    """The number of ranks is not known, so neither is the whole."""
    rows = [ranged("nccl:_all_gather_base", "[[25]]"), launch(5, 1), kernel("ncclKernel_AllGather", 60, 10, 1)]
    assert found(tmp_path, rows).rows.frame()["size_bytes"].isna().all()


def test_waits_and_coalescing_calls_are_no_collectives(tmp_path):
    rows = nccl("allreduce", 0, 20, 10, 1, 1, **{"Collective name": "end_coalescing"})
    rows[1]["name"] = "ncclDevKernel_AllGather"
    assert only(tmp_path, rows)["op"] == "all_gather"


# Kernels of one call


def test_kernels_of_one_call_are_one_collective_whose_bytes_count_once(tmp_path):
    """10-20 and 25-35, compute from 30 on: 25 long, of which 10 + 5 are exposed."""
    told = {"External id": 5}
    rows = [
        *nccl("all_to_all", 0, 10, 10, 1, 100, **told),
        *nccl("all_to_all", 1, 25, 10, 2, 100, **told),
        *launched("gemm", 2, 30, 20, 3),
    ]
    row = only(tmp_path, rows)
    assert [row[n] for n in ("ts_ns", "dur_ns", "exposed_ns", "size_bytes", "ordinal")] == [
        BASE_NS + 10_000, 25_000, 15_000, 100, 0,
    ]  # fmt: skip


def test_a_call_of_several_kernels_is_one_collective_also_beside_others(tmp_path):
    rows = [
        *nccl("all_to_all", 0, 10, 10, 1, 100, **{"External id": 5}),
        *nccl("all_to_all", 1, 25, 10, 2, 100, **{"External id": 5}),
        *nccl("allreduce", 2, 50, 10, 3, 64, **{"External id": 6}),
    ]
    frame = found(tmp_path, rows).rows.frame()
    assert frame["size_bytes"].tolist() == [100, 64]
    assert frame["dur_ns"].tolist() == [25_000, 10_000]


def test_kernels_of_one_graph_are_collectives_of_their_own(tmp_path):
    rows = [launch(0, 1, name="cudaGraphLaunch")]
    for start in (10, 30):
        rows += nccl("allreduce", 0, start, 10, 1, 100, **{"External id": 5})[1:]
    assert found(tmp_path, rows).rows.frame()["size_bytes"].tolist() == [100, 100]


# Exposure, steps and stages


def test_exposed_is_what_no_compute_of_the_same_device_runs_beside(tmp_path):
    rows = [
        *nccl("allreduce", 0, 10, 20, 1, 1),
        *launched("gemm", 1, 5, 10, 2),
        *launched("gemm", 2, 25, 2, 3),
        kernel("gemm", 0, 100, 4, device=1),
    ]
    assert only(tmp_path, rows)["exposed_ns"] == 13_000


def test_step_and_stage_are_those_of_the_issue_not_of_the_run(tmp_path):
    """Issued in `gen` of step 1 on the backward thread, run in `update_actor` of step 2; of the other the issue
    is not recorded, so it belongs where it ran."""
    rows = [
        step(1, 0, 100), annotation("gen", 0, 90), step(2, 100, 100), annotation("update_actor", 100, 100),
        launch(50, 1, tid=BACKWARD), nccl("allreduce", 0, 150, 10, 1, 1)[1], nccl("allreduce", 0, 170, 5, 9, 1)[1],
    ]  # fmt: skip
    one, other = found(tmp_path, rows).rows.frame().to_dict("records")
    assert (one["step"], one["stage"], one["issue_ns"]) == (1, "gen", BASE_NS + 50_000)
    assert (other["step"], other["stage"]) == (2, "update_actor")
    assert pd.isna(other["issue_ns"])


def test_on_a_device_ordinals_count_in_the_order_in_which_collectives_ran(tmp_path):
    """What was launched at 0 ran at 60, what was launched at 10 ran at 20."""
    rows = [*nccl("allreduce", 0, 60, 10, 1, 1, ranks=(0, 1)), *nccl("allreduce", 10, 20, 10, 2, 1, ranks=(0, 1))]
    frame = found(tmp_path, rows).rows.frame().sort_values("ts_ns")
    assert frame["issue_ns"].is_monotonic_decreasing
    assert frame["ordinal"].tolist() == [0, 1]


def test_of_ranges_of_the_host_within_one_another_the_outermost_is_the_collective(tmp_path):
    """The one around is the first range of the file."""
    rows = [gloo("all_reduce", 0, 50), gloo("all_reduce", 10, 20)]
    assert found(tmp_path, rows).rows.frame()["dur_ns"].tolist() == [50_000]


def test_ordinals_count_within_a_group_and_operation(tmp_path):
    rows = [
        *nccl("allreduce", 0, 10, 5, 1, 1), *nccl("broadcast", 1, 20, 5, 2, 1), *nccl("allreduce", 2, 30, 5, 3, 1),
        *nccl("allreduce", 3, 40, 5, 4, 1, ranks=(0, 2)),
    ]  # fmt: skip
    assert found(tmp_path, rows).rows.frame()["ordinal"].tolist() == [0, 0, 1, 0]


# Bounds


def test_the_earliest_are_kept_and_the_others_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    rows = [row for n in range(5) for row in nccl("allreduce", n, 100 - 10 * n, 5, n + 1, n)]
    kept = found(tmp_path, rows)
    assert kept.cut == 3
    assert kept.rows.frame()["ts_ns"].tolist() == [BASE_NS + 60_000, BASE_NS + 70_000]


@pytest.mark.parametrize("rows", [[], [op("a", 0, 5)], [kernel("k", 0, 5)]])
def test_a_trace_without_collectives_has_none(tmp_path, rows):
    kept = found(tmp_path, [*rows, annotation("x", 0, 1)])
    assert (len(kept.rows.frame()), kept.cut) == (0, 0)
    assert list(kept.rows.frame()) == COLUMNS


def test_an_absurd_duration_is_no_collective(tmp_path):
    rows = [op("a", 0, 100), *nccl("allreduce", 1, 10, 5, 1, 1), *nccl("allreduce", 2, 20, 10**6, 2, 1)]
    assert found(tmp_path, rows).rows.frame()["dur_ns"].tolist() == [5_000]


SPANS = st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 15), st.integers(0, 1)), max_size=12)


@settings(max_examples=15, deadline=None)
@given(SPANS)
def test_exposures_agree_with_the_breakdown_by_time(tmp_path_factory, spans):
    """Where collectives do not overlap one another, their exposed parts add up to that of the device."""
    rows, free = [op("a", 0, 500), kernel("first", 0, 1)], {0: 0, 1: 0}
    for number, (comm, start, dur, device) in enumerate(spans, start=1):
        if comm:
            begin = max(start, free[device])
            free[device] = begin + dur
        else:
            begin = start
        name = "ncclDevKernel_AllReduce" if comm else "gemm"
        rows += launched(name, 0, begin, dur, number, device=device, stream=9 if comm else 7)
    trace = tracekit.load(write(tmp_path_factory.mktemp("any") / "rank0.json", rows))
    frame = list_collectives(trace).rows.frame()
    assert (frame["exposed_ns"] <= frame["dur_ns"]).all()
    assert (frame["exposed_ns"] >= 0).all()
    assert int(frame["exposed_ns"].sum()) == int(breakdown(columns_of(trace["device_ops"]))["exposed_comm_ns"].sum())


HOSTILE = st.one_of(
    st.none(), st.integers(-5, 5), st.sampled_from((2**63, 1.5, "x", "[]", "[1, 2]", "0", True, "NaN", "\x1f"))
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(module_args := (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size", "Process Group Name",
    "Process Group Ranks", "Seq", "Input Dims", "Input type", "External id")), HOSTILE), min_size=1, max_size=5))  # fmt: skip
def test_whatever_the_arguments_are_there_is_a_row(tmp_path_factory, args):
    rows = [op("a", 0, 500)]
    for number, told in enumerate(args, start=1):
        rows += launched("ncclDevKernel_AllReduce", number, 10 * number, 5, number, **told)
        rows += [gloo("all_reduce", 10 * number, 3) | {"args": told}]
    folder = tmp_path_factory.mktemp("any")
    frame = list_collectives(tracekit.load(write(folder / "rank0.json", rows))).rows.frame()
    assert 1 <= len(frame) <= len(args)
    assert not (frame["size_bytes"].dropna() < 0).any()
    host = [row for row in rows if row["cat"] != "kernel"]
    frame = list_collectives(tracekit.load(write(folder / "rank1.json", host))).rows.frame()
    assert 1 <= len(frame) <= len(args)


def test_shifting_the_clock_changes_nothing_but_the_times(tmp_path):
    rows = [step(1, 0, 100), annotation("gen", 0, 90), *nccl("allreduce", 5, 10, 20, 1, 8)]
    rows += launched("gemm", 1, 15, 10, 2)
    one = found(tmp_path, rows).rows.frame()
    moved = [row | {"ts": row["ts"] - 1_000_000} for row in rows]
    other = found(tmp_path, moved, base_ns=BASE_NS + 1_000_000_000).rows.frame()
    assert one.equals(other)
    assert np.issubdtype(one["ts_ns"].dtype, np.integer)


def summed_per_step(step):
    """Sums of five collectives by (step, stage, metric); two of them overlap on device 0, device 1 has one."""
    unknown = [at is None for at in step]
    rows = {
        "step": Nullable(np.array([at or 0 for at in step]), np.array(unknown)),
        "stage": Coded(np.array([0, 0, -1, 1, 0], np.int8), ("gen", "update")),
        "device": Nullable(np.array([0, 0, 1, 0, 0]), np.zeros(5, np.bool_)),
        "ts_ns": np.array([0, 5, 0, 20, 50]),
        "dur_ns": np.array([10, 10, 10, 4, 10]),
        "size_bytes": Nullable(np.array([100, 0, 7, 0, 40]), np.array([0, 1, 0, 1, 0], np.bool_)),
    }
    sums = Frame.from_columns(sum_collectives_per_step(Collectives(rows, 0, on_device=True)))
    return {(row["step"], row["stage"], row["name"]): row["value"] for row in sums.rows()}


def test_collectives_of_steps_and_stages_are_summed_once_where_they_overlap():
    assert summed_per_step([1, 1, 1, 2, None]) == {
        (1, None, "comm"): 25, (1, None, "comm_count"): 3, (1, None, "comm_bytes"): 107,
        (2, None, "comm"): 4, (2, None, "comm_count"): 1, (2, None, "comm_bytes"): None,
        (1, "gen", "comm"): 15, (1, "gen", "comm_count"): 2, (1, "gen", "comm_bytes"): 100,
        (2, "update", "comm"): 4, (2, "update", "comm_count"): 1, (2, "update", "comm_bytes"): None,
    }  # fmt: skip


def test_without_numbered_steps_all_collectives_are_of_one():
    assert summed_per_step([None] * 5) == {
        (None, None, "comm"): 39, (None, None, "comm_count"): 5, (None, None, "comm_bytes"): 147,
        (None, "gen", "comm"): 25, (None, "gen", "comm_count"): 3, (None, "gen", "comm_bytes"): 140,
        (None, "update", "comm"): 4, (None, "update", "comm_count"): 1, (None, "update", "comm_bytes"): None,
    }  # fmt: skip
