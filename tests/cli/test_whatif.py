"""`tracekit whatif`: its report, its errors, and the page that explains it."""

import json
import re
from pathlib import Path

import pytest
from command_line import invoke

import tracekit
from tracekit.replay.changes import VERBS, Selection, parse_change
from tracekit.replay.edges import KINDS
from tracekit.replay.what_if_tables import KIND_LABELS

ROOT = Path(__file__).parents[2]
PROFILE = str(ROOT / "examples/simulated_gpu/outputs/profile")
PAGE = (ROOT / "docs/whatif.md").read_text()


@pytest.fixture(scope="module")
def report():
    return tracekit.whatif(PROFILE, ["unwait by=aten::item", {"do": "equalise", "rank": 1}])


def rows(report, name):
    return report.tables[name].to_dict("records")


def test_each_step_is_the_one_before_it_less_what_was_saved(report):
    first, second = rows(report, "changes")
    assert second["step_ns"] == pytest.approx(first["step_ns"] - second["gain_ns"])
    assert first["gain_ns"] == pytest.approx(first["alone_ns"])
    assert "63.7 ms → 51.7 ms" in report.answer


def test_the_first_line_states_the_facts_of_the_run(report):
    assert "SIMULATED DATA" in report.identity
    assert "ranks 0, 1 of 2" in report.identity
    assert "steps 6, 7 of 5–7 (5: warm-up step)" in report.identity


def test_only_chosen_steps_are_listed_and_timed():
    report = tracekit.whatif(PROFILE, "equalise rank=1", steps=6)
    assert "step 6" in report.identity
    assert "65.2 ms →" in report.answer


def test_a_change_lists_the_names_and_stages_that_it_touches(report):
    touched = [row for row in rows(report, "touched") if row["number"] == 1]
    assert [(row["kind"], row["name"]) for row in touched] == [("sync return", "cudaStreamSynchronize")]
    assert touched[0]["waits_count"] == touched[0]["pieces_count"] == rows(report, "changes")[0]["waits_count"]
    by_stage = {row["stage"]: row["waits_count"] for row in rows(report, "touched.stages") if row["number"] == 1}
    assert set(by_stage) == {"gen", "update_actor"}
    assert sum(by_stage.values()) == touched[0]["waits_count"]


def test_marks_of_several_steps_are_one_owner(report):
    names = [row["name"] for row in rows(report, "ledger") if (row["rank"], row["owner_rank"]) == (0, 0)]
    assert names.count("ProfilerStep") == 1
    assert not any(name.startswith("ProfilerStep#") for name in names if name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scale device rank=7 factor=0.5", "rank: recorded are 0, 1"),
        ("scale device step=9 factor=0.5", "step: recorded are 5–7"),
        ("hide op=reduce_scatter until=Optimizer", "did you mean ncclDevKernel_ReduceScatter"),
        ("hide op=ReduceScatter until=optimizer", "did you mean Optimizer.step#AdamW.step?"),
    ],
)
def test_an_error_names_what_was_recorded_or_can_be_written(change, message):
    result = invoke("whatif", PROFILE, "-c", change)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_path_that_ends_within_the_run_is_noted():
    """Nothing leads from the last recording of a rank to those before it, of other stages."""
    result = invoke("whatif", str(ROOT / "examples/verl_cpu/outputs/profile"), "-c", "scale host factor=0.5", "--json")
    cautions = " ".join(json.loads(result.stdout)["cautions"])
    assert re.search(
        r"the critical path covers the last [\d.]+ m?s: no dependency leads from there to earlier recordings", cautions
    )


def page_rows(heading):
    """The cells of the table of the page that begins with this heading."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def quoted(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_the_page_lists_every_verb_with_its_targets_and_fields():
    table = "\n".join(line.replace("| |", "|  |").replace("| |", "|  |") for line in PAGE.splitlines())
    for verb, record in VERBS.items():
        line = next(line for line in table.splitlines() if line.startswith(f"| `{verb}` |"))
        _, targets, required, optional = [cell.strip() for cell in line.strip("|").split("|")][:4]
        assert quoted(targets) == record.targets, verb
        assert quoted(required) == record.required, verb
        assert quoted(optional) == record.optional, verb
    assert {row[0].strip("`") for row in page_rows("verb")} == set(VERBS)


def test_the_page_lists_every_field_that_selects():
    assert {name for row in page_rows("field") for name in quoted(row[0])} == set(Selection.__dataclass_fields__)


def test_the_page_lists_every_kind_of_owner():
    assert set(KIND_LABELS) == set(KINDS)
    assert {name for row in page_rows("kind") for name in quoted(row[0])} == set(KIND_LABELS.values())


def test_the_changes_that_the_page_recommends_are_changes():
    recommended = [text for row in page_rows("you think of") for text in quoted(row[1])]
    assert len(recommended) >= 9
    for text in recommended:
        parse_change(text)


def test_the_help_lists_every_verb():
    text = invoke("whatif", "--help").stdout
    for verb, record in VERBS.items():
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{verb} "))
        assert all(f"{name}=" in line for name in record.required), line
