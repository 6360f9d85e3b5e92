"""Parts that are made when they are looked at: once, and like the tuple of them in all that follows."""

import pickle

import pytest

from tracekit.model.report import LazySequence, make_lazy_sequence


def counted(made):
    """A sequence of two parts that tells in `made` how often it was made."""

    def make():
        made.append(1)
        yield from ("a", "b")

    return LazySequence(make)


@pytest.mark.parametrize(
    ("look", "seen"),
    [
        (len, 2),
        (list, ["a", "b"]),
        (bool, True),
        (repr, "('a', 'b')"),
        (lambda parts: parts[1], "b"),
        (lambda parts: parts[:1], ("a",)),
        (lambda parts: parts == ("a", "b"), True),
        (lambda parts: parts == counted([]), True),
        (lambda parts: parts == ("a",), False),
        (lambda parts: "b" in parts, True),
        (lambda parts: (*parts, "c"), ("a", "b", "c")),
        (lambda parts: hash(parts) == hash(("a", "b")), True),
        (lambda parts: pickle.loads(pickle.dumps(parts)), ("a", "b")),
    ],
)
def test_it_is_made_at_the_first_look_and_then_stays(look, seen):
    made = []
    parts = counted(made)
    assert not made
    assert look(parts) == seen
    assert look(parts) == seen
    assert made == [1]


def test_what_breaks_while_it_is_made_is_raised_at_every_look():
    def broken():
        yield 1
        raise ValueError("torn")

    parts = LazySequence(broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="torn"):
            list(parts)


def test_what_there_is_already_is_a_tuple():
    assert make_lazy_sequence(["a"]) == ("a",)
    assert isinstance(make_lazy_sequence(["a"]), tuple)
    assert make_lazy_sequence(lambda: ["a"]) == ("a",)
