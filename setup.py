"""Builds the optional parts in C, without which the package works (slower), and puts the example of `tracekit demo` into it."""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

EXAMPLE = Path("examples/simulated_gpu/outputs/profile")


class BuildWithExample(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree(EXAMPLE, Path(self.build_lib, "tracekit/example"), dirs_exist_ok=True)


HARDENED = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"]
HARDENED_LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"]
"""The C parts parse files from elsewhere: a write past a buffer ends the process, and the tables of calls are read-only."""


class BuildHardened(build_ext):
    """Build the optional parts with hardening flags; report those that fail once, together."""

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "unix":
            for extension in self.extensions:
                extension.extra_compile_args += HARDENED
                if sys.platform.startswith("linux"):
                    extension.extra_link_args += HARDENED_LINK
        self.failed: list[str] = []
        super().build_extensions()
        if self.failed:
            count, of = len(self.failed), len(self.extensions)
            names = ", ".join(self.failed)
            sys.stderr.write(
                f"tracekit: {count} of {of} compiled parts could not be built ({names}): everything works, slower. "
                "Install a C compiler and Python's headers, then install again.\n"
            )

    def build_extension(self, extension: Extension) -> None:
        try:
            super().build_extension(extension)
        except Exception:
            self.failed.append(extension.name)
            raise


PYTHON = {
    "define_macros": [("Py_LIMITED_API", "0x030b0000")],
    "py_limited_api": True,
    "optional": True,
}
HEADERS = [f"tracekit/readers/chrome/_scan_{part}.h" for part in ("block", "columns", "core", "memory", "text")]
SCANNER = Extension(
    "tracekit.readers.chrome._scan",
    [f"tracekit/readers/chrome/_scan{part}.c" for part in ("", "_append", "_core", "_passes", "_setup")],
    depends=HEADERS,
    **PYTHON,
)
PAGES = Extension("tracekit.readers.nsys._pages", ["tracekit/readers/nsys/_pages.c"], depends=HEADERS, **PYTHON)
HARMLESS = Extension(
    "tracekit.readers.torch_memory._harmless",
    ["tracekit/readers/torch_memory/_harmless.c"],
    **PYTHON,
)
RECORDS = Extension("tracekit.readers.torch_memory._records", ["tracekit/readers/torch_memory/_records.c"], **PYTHON)
SWEEPS = Extension(
    "tracekit.model._sweeps",
    [f"tracekit/model/_{part}.c" for part in ("sweeps", "trees", "order")],
    depends=["tracekit/model/_arrays.h"],
    **PYTHON,
)

PATHS = Extension(
    "tracekit.replay._paths", ["tracekit/replay/_paths.c"], depends=["tracekit/model/_arrays.h"], **PYTHON
)
ALLOCATOR = Extension(
    "tracekit.process.memory.allocator._allocator",
    ["tracekit/process/memory/allocator/_allocator.c"],
    depends=["tracekit/model/_arrays.h", "tracekit/process/memory/allocator/_blocks.h"],
    **PYTHON,
)

setup(
    cmdclass={"build_py": BuildWithExample, "build_ext": BuildHardened},
    ext_modules=[SCANNER, PAGES, HARMLESS, RECORDS, SWEEPS, PATHS, ALLOCATOR],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
