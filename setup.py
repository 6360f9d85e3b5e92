"""Builds the optional parts in C, without which the package works (slower), and puts the example of `tracekit demo` into it."""

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

EXAMPLE = Path("examples/simulated_gpu/outputs/profile")


class BuildWithExample(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(EXAMPLE, Path(self.build_lib, "tracekit/example"), dirs_exist_ok=True)


PYTHON = {
    "define_macros": [("Py_LIMITED_API", "0x030b0000")],
    "py_limited_api": True,
    "optional": True,
}
HEADERS = [
    f"tracekit/readers/chrome/_scan_{part}.h"
    for part in ("block", "columns", "core", "memory", "text")
]
SCANNER = Extension(
    "tracekit.readers.chrome._scan",
    [
        f"tracekit/readers/chrome/_scan{part}.c"
        for part in ("", "_append", "_core", "_passes", "_setup")
    ],
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
SWEEPS = Extension(
    "tracekit.model._sweeps",
    [f"tracekit/model/_{part}.c" for part in ("sweeps", "trees", "order")],
    depends=["tracekit/model/_arrays.h"],
    **PYTHON,
)

setup(
    cmdclass={"build_py": BuildWithExample},
    ext_modules=[SCANNER, PAGES, HARMLESS, RECORDS, SWEEPS],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
