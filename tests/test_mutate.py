"""The mutants that `make mutate` draws: as its seed says, each another program, none of those that are declared."""

import ast

import mutate
import pytest

pytestmark = pytest.mark.slow


def test_a_seed_draws_the_same_mutants_again_and_another_draws_others():
    modules = ["tracekit/model/stats/noise.py", "tracekit/model/stats/estimate.py"]
    first, again, other = (mutate.chosen(modules, 10, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert [m.module for m in first[:4]] == modules * 2


def test_every_mutant_is_another_program_of_one_changed_statement():
    module = "tracekit/model/stats/noise.py"
    text = (mutate.ROOT / module).read_text()
    whole = ast.unparse(ast.parse(text)).splitlines()
    for mutant in mutate.mutants(module):
        lines = ast.unparse(ast.parse(mutant.applied(text))).splitlines()
        assert len(lines) == len(whole)
        assert sum(a != b for a, b in zip(lines, whole, strict=True)) >= 1


def test_no_mutant_takes_the_place_of_another_where_one_is_declared(monkeypatch):
    module = "tracekit/model/stats/estimate.py"
    monkeypatch.setattr(mutate, "declared", dict)
    every = mutate.chosen([module], 1000, 0)
    monkeypatch.setattr(mutate, "declared", lambda: {every[2].key: "for the test"})
    assert mutate.chosen([module], 1000, 0) == [m for m in every if m.key != every[2].key]
    assert mutate.chosen(["tracekit/model/stats/noise.py", module], 4, 0)[1::2] == every[:2]


def test_a_long_statement_is_shown_around_what_is_changed():
    found = mutate.Mutant("m.py", "f", 3, "a" * 100 + "< b" + "c" * 100, "a" * 100 + "<= b" + "c" * 100, 0, ast.Pass())
    assert str(found) == f"m.py:3 f: …{'a' * 69}< b{'c' * 68}…  →  …{'a' * 69}<= b{'c' * 67}…"


def test_what_is_declared_to_make_no_difference_exists_and_is_not_drawn(monkeypatch):
    for module, *rest in mutate.declared():
        assert (module, *rest) in {mutant.key for mutant in mutate.mutants(module)}
    module = "tracekit/model/stats/estimate.py"
    some = next(mutate.mutants(module))
    monkeypatch.setattr(mutate, "declared", lambda: {some.key: "for the test"})
    assert some.key not in {mutant.key for mutant in mutate.chosen([module], 1000, 0)}
