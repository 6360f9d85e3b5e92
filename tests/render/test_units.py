import re
from contextlib import suppress
from decimal import Decimal, localcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracekit.model.errors import TracekitError
from tracekit.model.units import (
    MINUS,
    UNKNOWN,
    choose_scale,
    format_cell,
    format_moment,
    format_quantity,
    format_ranges,
    format_signed,
    parse_size,
    parse_time,
)

UNITS = ("", "ns", "bytes", "ratio", "count", "gb_per_s", "id")
numbers = st.one_of(
    st.integers(-(10**24), 10**24),
    st.integers(-2000, 2000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-2, 2),
)


def number(text):
    """The number shown, or the middle of what `<0.1` leaves open."""
    bare = text.replace(",", "").replace(MINUS, "-").split(" ")[0]
    return Decimal(bare[1:]) / 2 if bare[0] in "<>" else Decimal(bare)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_842_000_000, "ns", "1,842 ms"),
        (61_000_000, "ns", "61.0 ms"),
        (12_345, "ns", "12.3 µs"),
        (999, "ns", "999 ns"),
        (45_000_000_000, "ns", "45.0 s"),
        (0, "ns", "0 ns"),
        (-0.0, "ns", "0 ns"),
        (-63_000_000, "ns", "−63.0 ms"),
        (0.5412, "ratio", "54 %"),
        (0.033, "ratio", "3.3 %"),
        (1e-9, "ratio", "<0.01 %"),
        (-1e-9, "ratio", ">−0.01 %"),
        (1.25, "ratio", "125 %"),
        (80 << 30, "bytes", "80.0 GiB"),
        (1023, "bytes", "1,023 B"),
        (412_887, "count", "412,887"),
        (450.25, "gb_per_s", "450 GB/s"),
        (12_345, "id", "12345"),
        (0.00034, "", "0.000340"),
        (10**20, "count", "1.000e20"),
        ("a name", "text", "a name"),
        (True, "text", "yes"),
    ],
)
def test_shows_a_value_with_its_unit(value, unit, text):
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("unit", [*UNITS, "text"])
def test_what_is_not_known_is_a_dash_and_has_no_unit(value, unit):
    assert format_quantity(value, unit) == UNKNOWN


@pytest.mark.parametrize(
    ("value", "unit", "figures", "text"),
    [
        # At least three fewer decimals than figures, and fewer the larger the number.
        (1.25, "ratio", 6, "125.000 %"),
        (0.0334, "ratio", 6, "3.3400 %"),
        (1_842_123_456, "ns", 6, "1,842.123 ms"),
        (12_345_678, "ns", 6, "12.3457 ms"),
        # As many as figures but one, and eight more than figures where there is no smaller unit.
        (0.001, "count", 3, "<0.01"),
        (0.004, "factor", 3, "<0.01×"),
        (1e-11, "", 3, "0.00000000001"),
        (1e-12, "", 3, "<0.00000000001"),
        (1e-12, "gb_per_s", 3, "<0.00000000001 GB/s"),
        (0.00001, "ratio", 3, "<0.01 %"),
    ],
)
def test_figures_decide_on_decimals(value, unit, figures, text):
    assert format_quantity(value, unit, figures) == text


def test_a_change_has_a_sign_unless_it_is_0():
    assert [format_signed(change, "ratio") for change in (0.5, -0.5, 0.0)] == ["+50 %", "−50 %", "0 %"]
    assert format_signed(1, "count") == "+1"


def test_the_units_of_times_and_sizes_change_at_their_limits():
    times = {999: "999 ns", 1_000: "1.00 µs", 1_000_000: "1.00 ms", 9_999_000_000: "9,999 ms", 10_000_000_000: "10.0 s"}
    assert {time: format_quantity(time, "ns") for time in times} == times
    sizes = {1023: "1,023 B", 1024: "1.00 KiB", 1 << 20: "1.00 MiB", 1 << 30: "1.00 GiB", 1 << 40: "1.00 TiB"}
    assert {size: format_quantity(size, "bytes") for size in sizes} == sizes


def test_three_numbers_in_a_row_are_a_range_and_two_are_not():
    assert format_ranges([7, 1, 2, 4, 5, 6]) == "1, 2, 4–7"
    assert format_ranges([1, 3, 5, 7, 9, 11]) == "1, 3, 5, 7, 9, 11"
    assert format_ranges([1, 3, 5, 7, 9, 11, 13]) == "1, 3, 5, 7, 9, 11 …"


def test_a_long_text_that_is_no_time_is_cut_after_40_letters():
    with pytest.raises(TracekitError, match=f"'{'x' * 40}'"):
        parse_time("x" * 40)
    with pytest.raises(TracekitError, match=f"'{'x' * 40}…'"):
        parse_time("x" * 41)


def test_a_column_has_one_unit_chosen_by_its_largest_value():
    times = [1_021_400_000, 498_700_000, 30_000, 0, None]
    scale = choose_scale(times, "ns")
    assert scale.label == "ms"
    assert [format_cell(time, scale) for time in times] == ["1,021.4", "498.7", "<0.1", "0.0", UNKNOWN]


def test_a_column_without_any_number_still_has_a_unit():
    assert choose_scale([None, "x"], "bytes").label == "B"
    assert choose_scale([None], "ratio").digits == 0


def test_an_unknown_unit_is_said_with_those_there_are():
    with pytest.raises(TracekitError, match="parsec") as caught:
        format_quantity(1, "parsec")
    assert "ns" in caught.value.hint


def test_a_moment_keeps_its_microseconds():
    assert format_moment(12_345_678_901) == "12.345679 s"


def test_the_decimal_context_of_the_process_changes_nothing():
    with localcontext() as context:
        context.prec = 2
        assert format_quantity(1_842_123_456, "ns") == "1,842 ms"


@given(numbers, st.sampled_from(UNITS))
@example(5e-324, "")
@example(-5e-324, "ns")
def test_only_zero_is_shown_as_zero_and_never_with_a_minus(value, unit):
    text = format_quantity(value, unit)
    assert (number(text) == 0) == (value == 0)
    assert not re.match(rf"{MINUS}[0.,]*( |$)", text)


@given(numbers, numbers, st.sampled_from(UNITS), st.booleans())
def test_what_is_larger_is_never_shown_as_smaller(one, other, unit, in_a_column):
    low, high = sorted([one, other])
    scale = choose_scale([low, high], unit)
    if in_a_column or unit not in ("ns", "bytes"):
        assert number(format_cell(low, scale)) <= number(format_cell(high, scale))
    else:
        parse = parse_time if unit == "ns" else parse_size
        assert parse(format_quantity(low, unit).lstrip("<>")) <= parse(format_quantity(high, unit).lstrip("<>"))


@given(st.one_of(st.integers(-(10**24), 10**24), st.integers(-(10**6), 10**6)))
def test_a_shown_time_or_size_reads_back_within_its_rounding(value):
    for unit, parse in (("ns", parse_time), ("bytes", parse_size)):
        assert abs(parse(format_quantity(value, unit)) - value) <= abs(value) * 0.0051


@given(st.integers(0, 10**18), st.integers(1, 12))
def test_more_figures_read_back_more_exactly(value, figures):
    shown = parse_time(format_quantity(value, "ns", figures=figures + 2))
    assert abs(shown - value) <= value * 0.51 * 10.0 ** -(figures + 1) + 0.5


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("3.5ms", 3_500_000),
        ("1,842 ms", 1_842_000_000),
        ("−2 s", -2_000_000_000),
        ("250us", 250_000),
        ("250 µs", 250_000),
        ("5min", 300_000_000_000),
        ("1e3ns", 1_000),
        (" 7 ns ", 7),
    ],
)
def test_reads_a_time(text, ns):
    assert parse_time(text) == ns


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("4096", 4096), ("10 kB", 10_000)]
)
def test_reads_a_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "ms", "3", "3 parsec", "1e9999s", "--3ms", "٣ms", "3ms\n4ms", "nan s", "x" * 10_000, "9" * 99 + "s"]
)
def test_what_is_no_time_is_refused_on_one_line_with_an_example(text):
    with pytest.raises(TracekitError) as caught:
        parse_time(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 100
    assert "3.5ms" in caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_a_quantity_or_refused(text):
    for parse in (parse_time, parse_size):
        with suppress(TracekitError):
            assert isinstance(parse(text), int)
