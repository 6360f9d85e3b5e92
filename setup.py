"""Builds the optional parts in C; without a compiler the package works, with its pure-Python scanner and SQLite alone."""

from setuptools import Extension, setup

PYTHON = {
    "define_macros": [("Py_LIMITED_API", "0x030b0000")],
    "py_limited_api": True,
    "optional": True,
}
HEADERS = [
    f"tracekit/readers/chrome/_scan_{part}.h" for part in ("block", "columns", "core", "text")
]
SCANNER = Extension(
    "tracekit.readers.chrome._scan",
    [f"tracekit/readers/chrome/_scan{part}.c" for part in ("", "_core", "_passes", "_setup")],
    depends=HEADERS,
    **PYTHON,
)
PAGES = Extension(
    "tracekit.readers.nsys._pages", ["tracekit/readers/nsys/_pages.c"], depends=HEADERS, **PYTHON
)
HARMLESS = Extension(
    "tracekit.readers.torch_memory._harmless",
    ["tracekit/readers/torch_memory/_harmless.c"],
    **PYTHON,
)
RECORDS = Extension(
    "tracekit.readers.torch_memory._records", ["tracekit/readers/torch_memory/_records.c"], **PYTHON
)
SWEEPS = Extension("tracekit.model._sweeps", ["tracekit/model/_sweeps.c"], **PYTHON)

setup(
    ext_modules=[SCANNER, PAGES, HARMLESS, RECORDS, SWEEPS],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
