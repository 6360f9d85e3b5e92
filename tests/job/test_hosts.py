"""The host of every rank beside it in tables: where several are known, and no host that is not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analyses.waiting_traces import measure_folder, section
from changed_tables import with_tables
from rules.firing import write_sources
from rules.traces_stragglers import rank_group

from tracekit.job.report.host_columns import add_host_columns
from tracekit.model.report import Heading, Section, Sheet
from tracekit.pipeline.options import Options
from tracekit.pipeline.run import analyze_uncached

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Four ranks, of which the last works longer."""
    rows = rank_group([[[50, 50, 50, 70]] * 10] * 4)
    return measure_folder(write_sources(tmp_path_factory.mktemp("four"), rows))


def on(measured, *hosts):
    """The same, each rank on its host."""
    captures = measured["captures"]
    places = captures["rank"].to_numpy(np.int64)
    return with_tables(measured, {"captures": captures.assign(host=np.array(hosts, object)[places])})


def shown(measured, name):
    """The headings and the rows of a table with its hosts."""
    sheets = add_host_columns(measured, section(measured)).sheets
    (sheet,) = (sheet for sheet in sheets if sheet.name == name)
    names = [heading.name for heading in sheet.headings]
    return names, [dict(zip(names, row, strict=True)) for row in sheet.rows]


def test_the_host_stands_beside_the_rank(measured):
    names, rows = shown(on(measured, "a", "a", "b", "b"), "ranks")
    assert names[names.index("rank") + 1] == "rank_host"
    assert {row["rank"]: row["rank_host"] for row in rows} == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_the_late_rank_has_its_host_too(measured):
    _, rows = shown(on(measured, "a", "a", "b", "b"), "wait_matrix")
    assert {(row["rank"], row["rank_host"], row["late_rank"], row["late_host"]) for row in rows} == {
        (0, "a", 3, "b"), (1, "a", 3, "b"), (2, "b", 3, "b"),
    }  # fmt: skip


def test_a_host_that_is_not_known_is_blank(measured):
    _, rows = shown(on(measured, "a", None, "b", None), "ranks")
    assert {row["rank"]: row["rank_host"] for row in rows} == {0: "a", 1: None, 2: "b", 3: None}


@pytest.mark.parametrize("hosts", [("a",) * 4, (None,) * 4, ("a", None, None, None)])
def test_without_a_second_host_there_is_no_column(measured, hosts):
    names, _ = shown(on(measured, *hosts), "ranks")
    assert "rank_host" not in names


def test_a_rank_that_several_hosts_have_is_of_none(measured):
    """Rank 0 of the trainer is on one host, that of the rollout on another: a table without roles cannot tell them apart."""
    captures = on(measured, "a", "a", "b", "b")["captures"]
    captures = captures.assign(role=np.array(["actor"] * 4, object))
    other = captures.assign(role="rollout", host=captures["host"].map({"a": "b", "b": "b"}))
    both = pd.concat([captures, other], ignore_index=True)
    roles, ranks = Heading("role", "role"), Heading("rank", "rank", "id")
    alone = Sheet("alone", "", (ranks,), ((0,), (2,)))
    apart = Sheet("apart", "", (roles, ranks), (("actor", 0), ("rollout", 0), ("critic", 0)))
    whole = Sheet("process", "", (Heading("who", "process"),), (("rank 0 actor",), ("rank 1 rollout",), ("median of 3",)))  # fmt: skip
    of = Section("x", "x", sheets=(alone, apart, whole))
    sheets = add_host_columns(with_tables(measured, {"captures": both}), of).sheets
    assert [sheet.rows for sheet in sheets] == [
        ((0, None), (2, "b")),
        (("actor", 0, "a"), ("rollout", 0, "b"), ("critic", 0, None)),
        (("rank 0 actor", "a"), ("rank 1 rollout", "b"), ("median of 3", None)),
    ]


def test_every_table_of_ranks_of_a_report_on_two_hosts_names_them(tmp_path):
    """Sixteen simulated ranks, eight a host: whatever lists a rank or its process has the host that the rank is on."""
    script = ROOT / "examples/scale/make_ranks.py"
    subprocess.run([sys.executable, str(script), "16", str(tmp_path / "ranks"), "--steps", "2"], check=True)
    report = analyze_uncached(tmp_path / "ranks", Options(jobs=1, cache=False)).report
    checked = set()
    for sheet in (sheet for part in report.sections for sheet in part.sheets):
        names = [heading.name for heading in sheet.headings]
        if "rank" in names:
            rank, host = names.index("rank"), names.index("rank_host")
            for row in sheet.rows:
                assert row[host] == f"simulated-host-{row[rank] // 8:03d}"
            checked.add(sheet.name)
    assert len(checked) >= 4, json.dumps(sorted(checked))
