"""The mutants that `make mutate` draws: as its seed says, each another program, none of those that are declared."""

import ast

import mutate
import pytest

pytestmark = pytest.mark.slow


def test_a_seed_draws_the_same_mutants_again_and_another_draws_others():
    modules = ["tracekit/stats/noise.py", "tracekit/gpu_shares.py"]
    first, again, other = (mutate.chosen(modules, 10, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert [m.module for m in first[:4]] == modules * 2


def test_every_mutant_is_another_program_of_one_changed_statement():
    module = "tracekit/stats/noise.py"
    whole = ast.unparse(ast.parse((mutate.ROOT / module).read_text())).splitlines()
    for mutant in mutate.mutants(module):
        lines = ast.unparse(ast.parse(mutant.source)).splitlines()
        assert len(lines) == len(whole)
        assert sum(a != b for a, b in zip(lines, whole, strict=True)) >= 1


def test_what_is_declared_to_make_no_difference_exists_and_is_not_drawn(monkeypatch):
    for module, *rest in mutate.declared():
        assert (module, *rest) in {mutant.key for mutant in mutate.mutants(module)}
    module = "tracekit/gpu_shares.py"
    some = next(mutate.mutants(module))
    monkeypatch.setattr(mutate, "declared", lambda: {some.key: "for the test"})
    assert some.key not in {mutant.key for mutant in mutate.chosen([module], 1000, 0)}
