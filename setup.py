"""Builds the optional C scanner; without a compiler the package works, with its pure-Python scanner."""

from setuptools import Extension, setup

SCANNER = Extension(
    "tracekit.readers.chrome._scan",
    [f"tracekit/readers/chrome/_scan{part}.c" for part in ("", "_core", "_passes", "_setup")],
    depends=[
        f"tracekit/readers/chrome/_scan_{part}.h" for part in ("block", "columns", "core", "text")
    ],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[SCANNER], options={"bdist_wheel": {"py_limited_api": "cp311"}})
