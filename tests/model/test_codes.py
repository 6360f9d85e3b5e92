"""Codes with data: one list of them, and nothing that is written stands outside of it."""

import ast
import copy
import errno
import pickle
from pathlib import Path

import pytest

import tracekit
from tracekit.model.errors import TraceFormatError, make_format_error
from tracekit.model.inputs.note_codes import CODES, NO_DATA, Data, Reason, UnsupportedPackingError, explain_os_error
from tracekit.readers import chrome, unpack
from tracekit.readers.nsys import memory
from tracekit.readers.nsys.nvtx import ranges

PACKAGE = Path(tracekit.__file__).parent
PLACE = {"Note": 1, "Reason": 0, "with_note": 1, "Failure": 3}
"""Which argument of a call is the code."""


def written():
    """The codes that stand in calls of the program, each with where."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                given = [k.value for k in node.keywords if k.arg == "code"]
                given += node.args[PLACE[name] :][:1] if name in PLACE else []
                for argument in given:
                    if isinstance(argument, ast.Constant):
                        yield argument.value, f"{path.name}:{node.lineno}"


def test_every_code_that_is_written_is_in_the_list():
    places = list(written())
    assert len(places) > 60
    assert [place for code, place in places if code not in CODES] == []


def test_codes_that_are_counted_in_tables_are_in_the_list():
    counted = {*chrome.LOSSES, *unpack.LOSSES, *memory._ODD, *(code for _, code, _ in ranges._NOTES)}
    assert counted - CODES.keys() == set()


def test_codes_are_kebab_case():
    assert all(code == code.lower() and " " not in code and "_" not in code for code in CODES)


def test_data_are_compared_by_what_they_hold_and_say_nothing_of_what_is_not_known():
    data = Data(rank=3, host=None, says="x")
    assert data == Data(says="x", rank=3) != Data(rank=3)
    assert hash(data) == hash(Data(says="x", rank=3))
    assert dict(data) == {"rank": 3, "says": "x"}
    assert data.text("says") == "x"
    assert data.text("rank") == data.text("host") == ""


def test_data_cannot_be_changed_and_travel():
    data = Data(offset=7, fields=("rank", "role"))
    with pytest.raises(TypeError):
        data["offset"] = 8  # type: ignore[index]
    assert pickle.loads(pickle.dumps(data)) == copy.deepcopy(data) == data


def test_a_refusal_keeps_its_code_and_data_between_processes():
    error = make_format_error("x.json", Reason("cut-stream", "nothing", Data(form="gzip")), "again", "byte 7")
    same = pickle.loads(pickle.dumps(error))
    assert isinstance(same, TraceFormatError)
    assert (same.code, same.data) == ("cut-stream", Data(form="gzip"))
    assert (str(same), same.hint) == ("x.json:byte 7: nothing", "again")


@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (PermissionError(errno.EACCES, "no"), "forbidden", Data(errno=errno.EACCES)),
        (OSError(errno.EPERM, "no"), "forbidden", Data(errno=errno.EPERM)),
        (OSError(errno.EIO, "no"), "cannot-be-read", Data(errno=errno.EIO)),
        (OSError("no"), "cannot-be-read", NO_DATA),
        (OSError(errno.ENOMEM, "no"), "out-of-memory", NO_DATA),
        (UnsupportedPackingError("a box", "open it"), "archive", Data(what="a box", remedy="open it")),
    ],
)
def test_what_the_system_says_becomes_a_code_by_its_number(error, code, data):
    reason = explain_os_error(error)
    assert (reason.code, reason.data) == (code, data)
    assert reason.text.startswith("cannot be read: ")


def test_the_note_for_a_reason_holds_its_code_and_its_data():
    reason = Reason("cut-stream", "nothing", Data(form="gzip"))
    assert reason.note_data() == Data(why="cut-stream", form="gzip")
