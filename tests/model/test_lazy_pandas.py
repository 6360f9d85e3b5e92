"""pandas is imported when it is first used, and stores texts as Python strings while tracekit works."""

import subprocess
import sys
from pathlib import Path

import pandas as real_pandas  # noqa: ICN001
import pytest

from tracekit.model.system.lazy_pandas import pd, use_python_strings

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTION = "mode.string_storage"


def printed(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_its_names_are_those_of_pandas():
    assert pd.DataFrame is real_pandas.DataFrame


@pytest.mark.parametrize("example", ["simulated_gpu", "simulated_memory/leaking", "verl_cpu"])
def test_an_answer_in_text_needs_no_pandas(example):
    code = f"""
import sys
from tracekit.cli import main
try:
    main(["analyze", {str(EXAMPLES / example)!r}, "-q", "--no-cache", "--jobs", "1"])
except SystemExit as end:
    print(end.code, "pandas" in sys.modules)
"""
    assert printed(code)[-2:] == ["0", "False"]


def test_texts_are_python_strings_within_and_as_before_after():
    before = real_pandas.get_option(OPTION)
    with use_python_strings(), use_python_strings():
        assert real_pandas.get_option(OPTION) == "python"
    assert real_pandas.get_option(OPTION) == before


def test_texts_are_python_strings_where_pandas_is_imported_within():
    code = f"""
from tracekit.model.system.lazy_pandas import pd, use_python_strings
with use_python_strings():
    with use_python_strings():
        print(pd.get_option("{OPTION}"))
    print(pd.get_option("{OPTION}"))
print(pd.get_option("{OPTION}"))
"""
    assert printed(code) == ["python", "python", real_pandas.get_option(OPTION)]
