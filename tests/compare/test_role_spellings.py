"""A role is the same in any spelling of its separators: file names have `-` where verl's manifests had `_`."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracekit.cli import main
from tracekit.pipeline.comparing import compare_paths

VERL = Path(__file__).parents[2] / "examples" / "verl_cpu" / "outputs" / "profile"


@pytest.fixture
def sides(tmp_path):
    """The same traces twice, once with a manifest of the older form that spells the actor's role otherwise."""
    for side in ("names", "manifest"):
        (tmp_path / side).mkdir()
        for path in VERL.glob("actor-rollout-ref_*.json.gz"):
            shutil.copy(path, tmp_path / side)
    for rank in (0, 1):
        files = sorted((tmp_path / "manifest").glob(f"*_rank{rank}-of-2_*.gz"))
        listed = [{"path": path.name, "step": int(path.name.split("step")[1][0])} for path in files]
        told = {"schema": "capture/1", "role": "actor_rollout_ref", "rank": rank, "tool": "torch",
                "files": listed, "status": "closed"}  # fmt: skip
        (tmp_path / "manifest" / f"capture_rank{rank}.json").write_text(json.dumps(told))
    return tmp_path / "names", tmp_path / "manifest"


@pytest.mark.parametrize("turned", [False, True])
def test_sides_that_differ_in_the_spelling_of_a_role_are_comparable(sides, turned):
    base, opt = sides[::-1] if turned else sides
    comparison = compare_paths([base], [opt]).comparison
    assert comparison.verdict != "not comparable"
    roles = {change.role for change in comparison.changes if change.role is not None}
    assert roles == {"actor_rollout_ref" if turned else "actor-rollout-ref"}
    assert not [difference for difference in comparison.differences if "role" in str(difference)]


def test_so_are_a_saved_report_and_a_profile(sides, tmp_path):
    saved = tmp_path / "base.json"
    runner = CliRunner()
    assert runner.invoke(main, ["analyze", str(sides[0]), "-o", str(saved), "-q"]).exit_code == 0
    done = runner.invoke(main, ["compare", str(saved), str(sides[1])])
    assert "roles differ" not in done.output
    assert "not comparable" not in done.output
