"""Builds the optional C scanner; without a compiler the package works, with its pure-Python scanner."""

from setuptools import Extension, setup

SCANNER = Extension(
    "tracekit.readers._scan",
    ["tracekit/readers/_scan.c", "tracekit/readers/_scan_core.c"],
    depends=["tracekit/readers/_scan_core.h", "tracekit/readers/_scan_text.h"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[SCANNER], options={"bdist_wheel": {"py_limited_api": "cp311"}})
