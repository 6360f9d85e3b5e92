"""Rows of a skipped category that stay for how their name begins: both scanners decide alike."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scan_comparison import differences

from tracekit.readers.chrome import stream as chrome_stream
from tracekit.readers.chrome.scan import ScanOptions

try:
    from tracekit.readers.chrome.scanner_c import NativeScanner
except ImportError:
    NativeScanner = None

needs_native = pytest.mark.skipif(NativeScanner is None, reason="_scan is not built")
pytestmark = pytest.mark.parametrize("pure", [True, pytest.param(False, marks=needs_native)])

STRICT = b',{"id":-0},{}'
"""Two rows after which no window is given to the json module, so that the strict layer reads all of them."""

KEEP = ScanOptions(skip_cats=("py", "w"), keep_names=("nn.Module: ", "é"))


@pytest.fixture
def read(tmp_path, pure):
    def scanned(events, keep=KEEP, strict=False):
        path = tmp_path / "trace.json"
        path.write_bytes(b'{"traceEvents":[' + events + STRICT * strict + b"]}")
        return chrome_stream.scan_trace(path, keep, pure=pure)

    return scanned


def names(scan):
    return [None if code < 0 else scan.name.values[code] for code in scan.name.codes]


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (b'{"cat":"py","name":"nn.Module: Linear_0"}', True),
        (b'{"name":"nn.Module: Linear_0","cat":"py"}', True),
        (b'{"cat":"py","name":"nn.Module: "}', True),
        (b'{"cat":"py","name":"nn.Module:"}', False),
        (b'{"cat":"py","name":"nn.Module:_x"}', False),
        (b'{"cat":"py","name":" nn.Module: x"}', False),
        (b'{"cat":"py","name":"n"}', False),
        (b'{"cat":"py","name":""}', False),
        (b'{"cat":"py"}', False),
        (b'{"cat":"py","name":null}', False),
        (b'{"cat":"py","name":12}', False),
        (b'{"cat":"py","name":["nn.Module: x"]}', False),
        (b'{"cat":"py","name":{"nn.Module: x":1}}', False),
        # Names are told by what they stand for, however they are written.
        (b'{"cat":"py","name":"nn\\u002eModule: x"}', True),
        (b'{"cat":"py","name":"\\u006en.Module: x"}', True),
        (b'{"cat":"py","name":"nn.Module\\t x"}', False),
        (b'{"cat":"py","name":"nn\\\\.Module: x"}', False),
        (b'{"cat":"py","name":"\xc3\xa9a"}', True),
        (b'{"cat":"py","name":"\\u00e9"}', True),
        (b'{"cat":"py","name":"\xc3a"}', False),
        (b'{"cat":"py","name":"e"}', False),
        # So are categories.
        (b'{"cat":"p\\u0079","name":"nn.Module: x"}', True),
        (b'{"cat":"p\\u0079","name":"other"}', False),
        # The last of several counts.
        (b'{"cat":"py","name":"other","name":"nn.Module: x"}', True),
        (b'{"cat":"py","name":"nn.Module: x","name":"other"}', False),
        (b'{"cat":"py","name":"nn.Module: x","cat":"w"}', True),
        (b'{"cat":"py","name":"other","cat":"z"}', True),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_row_stays_if_its_name_is_a_string_that_begins_so(read, event, kept, strict):
    plain = b'{"cat":"op","name":"nn"}'
    found = read(event + b"," + plain + b"," + event + b"," + plain, strict=strict)
    skipped = sum(found.skipped.values())
    assert len(found.name.codes) - 2 * strict == 2 + 2 * kept
    assert skipped == 2 * (not kept)
    assert names(found).count("nn") == 2


@pytest.mark.parametrize(
    "event",
    [
        b'{"cat":"py","name":"nn.Module: x","args":{"Python id":7,"k":"v"},"id":3}',
        b'{"args":{"Python id":7,"k":"v"},"id":3,"name":"nn.Module: x","cat":"py"}',
        b'{"cat":"py","args":{"Python id":7,"k":"v"},"id":3,"name":"nn.Module: x"}',
        b'{"cat":"py","name":"y","args":{"a":0},"args":{"Python id":7,"k":"v"},"id":3,"name":"nn.Module: x"}',
    ],
)
def test_a_row_that_stays_has_its_args_and_fields_wherever_they_stand(read, event):
    dropped = b'{"cat":"py","name":"f","args":{"Python id":1,"only":2},"id":4}'
    found = read(dropped + b"," + event + b"," + dropped)
    assert {key: column.rows.tolist() for key, column in found.args.items()} == {"Python id": [0], "k": [0]}  # fmt: skip
    assert found.args["Python id"].values.tolist() == [7]
    assert found.fields["id"].values.tolist() == [3]
    assert found.skipped == {"py": 2}
    limited = read(event, ScanOptions(args=("k",), skip_cats=("py",), keep_names=("nn",)))
    assert list(limited.args) == ["k"]


def test_without_names_to_keep_all_of_the_category_goes(read):
    found = read(b'{"cat":"py","name":"nn.Module: x"},{"cat":"op","name":"a"}', ScanOptions(skip_cats=("py",)))  # fmt: skip
    assert (names(found), found.skipped) == (["a"], {"py": 1})


def test_names_to_keep_leave_other_categories_alone(read):
    found = read(b'{"cat":"op","name":"a"}', ScanOptions(keep_names=("nn",)))
    assert (names(found), found.skipped) == (["a"], {})


def test_an_empty_beginning_keeps_every_named_row(read):
    keep = ScanOptions(skip_cats=("py",), keep_names=("",))
    found = read(b'{"cat":"py","name":""},{"cat":"py","name":"\\u0061"},{"cat":"py"}', keep)
    assert (names(found), found.skipped) == (["", "a"], {"py": 1})


def test_a_damaged_row_is_repaired_and_then_kept_or_dropped(read):
    """Two commas in a row, and an escape in a key, are written out plainly before the scanner decides."""
    found = read(
        b'{"cat":"py",,"name":"nn.Module: x"},{"cat":"py",,"name":"f"},'
        b'{"c\\u0061t":"py","name":"nn.Module: y"},{"cat":"py","name":"nn.Module: z","args":{"a":1;}}'
    )
    assert names(found) == ["nn.Module: x", "nn.Module: y"]
    assert found.skipped == {"py": 1}
    assert [(loss.kind, loss.count) for loss in found.losses] == [("repaired", 3), ("damaged", 1)]


texts = st.text(st.sampled_from('n.: "\\é\ufffda/'), max_size=6)


@needs_native
@given(name=texts, prefix=texts, ascii_only=st.booleans(), late=st.booleans(), strict=st.booleans())
def test_both_scanners_keep_what_python_says_begins_so(tmp_path_factory, pure, name, prefix, ascii_only, late, strict):
    if pure:  # both are read here
        return
    members = {"cat": "py", "args": {"a": 1}, "name": name}
    if not late:
        members = dict(sorted(members.items(), reverse=True))
    text = json.dumps(members, ensure_ascii=ascii_only)
    path = tmp_path_factory.mktemp("t") / "a.json"
    path.write_bytes(b'{"traceEvents":[' + text.encode() + b',{"ph":"X"}' + STRICT * strict + b"]}")
    keep = ScanOptions(skip_cats=("py",), keep_names=(prefix,))
    one, other = (chrome_stream.scan_trace(path, keep, pure=which) for which in (True, False))
    assert differences(one, other) == []
    assert len(one.ts_ns) == 1 + 2 * strict + name.startswith(prefix)
