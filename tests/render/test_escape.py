import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tracekit.model.text.wrapping import shorten_middle
from tracekit.render.escape import make_printable


def test_control_bidi_and_zero_width_characters_are_made_visible():
    assert make_printable("a\x1b[0m\u202e\u200b\n\ud800") == "a\\x1b[0m\\u202e\\u200b\\n\\ud800"


def test_names_in_any_script_stand_as_they_are():
    assert make_printable("表計算 Straße ядро") == "表計算 Straße ядро"


@given(st.text(st.characters()), st.one_of(st.none(), st.integers(0, 50)))
def test_what_is_printable_stays_on_its_line_and_within_its_limit(text, limit):
    shown = make_printable(text, limit)
    assert shown.isprintable()
    assert all(unicodedata.category(character)[0] != "C" for character in shown)
    assert limit is None or len(shown) <= limit
    assert make_printable(shown, limit) == shown


@given(st.text(), st.integers(2, 50))
def test_a_shortened_name_keeps_its_ends_and_says_that_it_is_cut(text, limit):
    short = shorten_middle(text, limit)
    assert short == text or ("…" in short and short[0] == text[0] and len(short) == limit)


def test_a_monstrous_name_keeps_both_ends():
    assert make_printable("a" * 10_000 + "b", 9) == "aaaa…aaab"
