"""With the switch verl's own workers compute, write and mark the same as without it, but for what is declared with its reason.

With a Python that has verl (`TRACEKIT_VERL_PYTHON`) and with `TRACEKIT_VERLS`, a folder with a folder of each further version,
its version is asked and those are (`make test-verls`). `tests/benchmarks/capture_matrix.py` is the whole matrix and prints it.
"""

import json
import os
import re
from pathlib import Path

import pytest
import verl_python
from benchmarks import capture_matrix as matrix

CELLS = (
    "* torch stage on", "actor torch step on", "actor torch schedule on", "actor torch whole-schedule on",
    "actor torch continuous on", "actor nsys * on", "critic torch_memory step *", "actor null step on", "* torch step off",
)  # fmt: skip
VERLS = sorted(Path(os.environ["TRACEKIT_VERLS"]).resolve().iterdir()) if "TRACEKIT_VERLS" in os.environ else []
GROUP = Path(__file__).parents[1] / "support" / "verl_group_switched.py"
UNLIKE = re.compile(r"pid\d+")


def outcome(**changes):
    """What a cell gives that writes one trace."""
    return {"error": None, "exit": 0, "values": [1.0], "files": ["a.json.gz"], "ranges": [], **changes}


def test_a_difference_is_told_with_the_reason_that_covers_it_and_with_none_where_none_does():
    reason = matrix.Reason("names", "0.8.*", "actor *", "files", "It names them so.", "as many")
    told = matrix.differences("0.8.0", "actor torch step on", outcome(), outcome(files=["b"], values=[2.0]), [reason])  # fmt: skip
    assert told == [("values", None), ("files", "names")]


@pytest.mark.parametrize(
    ("version", "cell", "ours"),
    [("0.9.1", "actor x", ["b"]), ("0.8.0", "critic x", ["b"]), ("0.8.0", "actor x", ["b", "c"])],
)
def test_a_reason_covers_its_versions_and_cells_and_what_must_hold_all_the_same(version, cell, ours):  # fmt: skip
    reason = matrix.Reason("names", "0.8.*", "actor *", "files", "It names them so.", "as many")
    assert matrix.differences(version, cell, outcome(), outcome(files=ours), [reason]) == [("files", None)]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "covered"), [(["work_step1", "log"], True), (["work_step1", "log", "seen"], True), (["work_step1"], False)]
)
def test_a_reason_may_say_what_makes_both_alike(ours, covered):
    alike = [["_step[0-9]+", ""], ["^seen$", ""]]
    reason = matrix.Reason("steps", "*", "*", "files", "It has steps.", alike=alike)
    assert reason.covers("0.8.0", "actor x", "files", ["log", "work"], ours) == covered
    counted = {"ranges": {"work": 2, "": 1}}, {"ranges": {"work_step1": 2, "seen": 3}}
    assert reason.covers("0.8.0", "actor x", "files", *counted)


def test_every_declared_difference_has_a_reason_in_one_sentence():
    for reason in matrix.reasons():
        assert re.fullmatch(r"[A-Z0-9`].*[^.]\.", reason.says), reason.key
        assert set(reason.aspects.split()) <= set(matrix.ASPECTS)


if verl_python.PYTHON and "TRACEKIT_VERLS" in os.environ:

    @pytest.mark.slow
    @pytest.mark.parametrize("verl", [None, *VERLS], ids=lambda verl: verl.name if verl else "installed")  # fmt: skip
    def test_with_the_switch_verls_own_workers_do_the_same_but_for_what_is_declared(tmp_path, verl):
        name = verl.name if verl else matrix.installed(verl_python.PYTHON)
        told = matrix.compared(name, verl_python.PYTHON, verl, tmp_path, [*CELLS])
        undeclared = {
            (cell, aspect): (row["verl"].get(aspect), row["capture"].get(aspect))
            for cell, row in told.items()
            for aspect, reason in row["differences"]
            if reason is None
        }
        assert undeclared == {}
        assert len(told) > 20
        assert not any("absent" in row["capture"] for row in told.values() if "absent" not in row["verl"])  # fmt: skip
        traces = [row["capture"]["files"] for cell, row in told.items() if cell.endswith("stage on")]
        assert all(traces[:2])

    @pytest.mark.slow
    @pytest.mark.parametrize("verl", [None, *VERLS], ids=lambda verl: verl.name if verl else "installed")  # fmt: skip
    def test_in_verls_worker_group_both_ranks_do_the_same(tmp_path, verl):
        told = {}
        for modules in ("", "capture.verl"):
            paths = [*([verl] if verl else []), verl_python.ROOT, verl_python.ROOT / "tests" / "support"]
            more = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "VERL_USE_EXTERNAL_MODULES": modules}  # fmt: skip
            done = verl_python.run(GROUP, tmp_path / (modules or "verl"), **more)
            told[modules] = json.loads(done.stdout.splitlines()[-1])
        assert told["capture.verl"]["values"] == told[""]["values"]
        for mode, ours in told["capture.verl"]["files"].items():
            theirs = told[""]["files"][mode]["files"]
            assert len(ours["files"]) == len(theirs) >= 2
            if not verl or verl.name >= "0.9.1":
                assert ours["files"] == theirs
            assert {UNLIKE.sub("", name) for name in ours["manifests"]} == {
                f"capture_torch_actor-rollout-ref_rank{rank}_.manifest" for rank in (0, 1)
            }
