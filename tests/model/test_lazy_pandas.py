"""pandas is imported when it is first used, and stores texts as Python strings while tracekit works."""

import subprocess
import sys

import pandas as real_pandas  # noqa: ICN001

from tracekit.model.lazy_pandas import pd, use_python_strings

OPTION = "mode.string_storage"


def printed(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_its_names_are_those_of_pandas():
    assert pd.DataFrame is real_pandas.DataFrame


def test_what_measures_imports_no_pandas_until_a_frame_is_made():
    code = """
import sys
from tracekit.model.tables import TABLES
from tracekit.process import slice_trace
columns = TABLES["metrics"].cast({})
print("pandas" in sys.modules)
columns.frame()
print("pandas" in sys.modules)
"""
    assert printed(code) == ["False", "True"]


def test_texts_are_python_strings_within_and_as_before_after():
    before = real_pandas.get_option(OPTION)
    with use_python_strings(), use_python_strings():
        assert real_pandas.get_option(OPTION) == "python"
    assert real_pandas.get_option(OPTION) == before


def test_texts_are_python_strings_where_pandas_is_imported_within():
    code = f"""
from tracekit.model.lazy_pandas import pd, use_python_strings
with use_python_strings():
    with use_python_strings():
        print(pd.get_option("{OPTION}"))
    print(pd.get_option("{OPTION}"))
print(pd.get_option("{OPTION}"))
"""
    assert printed(code) == ["python", "python", real_pandas.get_option(OPTION)]
