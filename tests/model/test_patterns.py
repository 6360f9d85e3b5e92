"""Expressions that are compiled where they are first used."""

import re

import pytest

from tracekit.model.text.patterns import compile_lazily


@pytest.mark.parametrize("text", ["a+(b)?", b"a+(b)?"])
def test_an_expression_does_what_a_compiled_one_does(text):
    lazy, compiled = compile_lazily(text, re.IGNORECASE), re.compile(text, re.IGNORECASE)
    for subject in (text[:0], text[:1].upper() * 3, text[:1] * 2 + text[3:4]):
        for _ in range(2):
            for method in ("match", "search", "fullmatch"):
                found, wanted = getattr(lazy, method)(subject), getattr(compiled, method)(subject)
                assert (found and found.span()) == (wanted and wanted.span())
            assert lazy.findall(subject) == compiled.findall(subject)
            assert lazy.sub(text[:0], subject) == compiled.sub(text[:0], subject)
    assert (lazy.pattern, lazy.flags, lazy.groups) == (text, compiled.flags, 1)


def test_an_expression_is_compiled_once_and_where_it_is_used(monkeypatch):
    compiled = []
    monkeypatch.setattr(re, "compile", lambda *given: compiled.append(given) or re.Pattern)
    lazy = compile_lazily("a")
    assert not compiled
    for _ in range(2):
        assert lazy.search is re.Pattern.search
    assert compiled == [("a", 0)]


def test_what_is_no_expression_is_told_at_its_first_use():
    broken = compile_lazily("(")
    with pytest.raises(re.error):
        broken.search("")
    with pytest.raises(AttributeError):
        compile_lazily("a").nothing  # noqa: B018 - it is the question
