"""Modules to C, and C to libraries: what tools/build_backend.py runs in a process of its own, in the folder above the package.

There, paths in tracebacks are those that Python finds in any installation. mypyc ends the process when a module does not compile.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

GROUP = "pairbus.rooms"
MYPY_OPTIONS = [
    # `make types` checks the types, strictly. Here neither the settings nor the other packages need be at hand.
    "--config-file=",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    f"--cache-dir={os.devnull}",
]


class BuildLibraries(build_ext):  # type: ignore[misc]
    """Compiles several C files at a time, and only those that changed since the last build in the same folder."""

    def build_extension(self, extension: Any) -> None:
        compile_all: Callable[..., list[str]] = self.compiler.compile

        def compile_changed(sources: list[str], output_dir: str, **options: Any) -> list[str]:
            def compile_one(source: str) -> str:
                target: str = self.compiler.object_filenames([source], output_dir=output_dir)[0]
                changed = max(os.path.getmtime(file) for file in (source, *options["depends"]))
                if not os.path.exists(target) or os.path.getmtime(target) < changed:
                    compile_all([source], output_dir=output_dir, **options)
                return target

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(compile_one, sources))

        self.compiler.compile = compile_changed
        try:
            super().build_extension(extension)
        finally:
            self.compiler.compile = compile_all


def main() -> None:
    """Write C, and libraries if a folder for them is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--c", type=Path, required=True, help="folder for the C files")
    parser.add_argument("--lib", type=Path, help="folder for the libraries")
    parser.add_argument("--temp", type=Path, help="folder for what the C compiler writes besides")
    parser.add_argument("--opt-level", default="0")
    parser.add_argument("modules", nargs="+")
    options = parser.parse_args()
    extensions = mypycify(
        [*MYPY_OPTIONS, *options.modules],
        opt_level=options.opt_level,
        debug_level="0",
        multi_file=True,
        target_dir=str(options.c),
        group_name=GROUP,
    )
    # Files of the modules include headers that belong to the group, and the group's name has a folder in it.
    extensions[0].include_dirs.append(str(options.c.joinpath(*GROUP.split(".")[:-1])))
    if options.lib is not None:
        sys.argv[1:] = [
            "--quiet",
            "build_ext",
            "--build-lib",
            str(options.lib),
            "--build-temp",
            str(options.temp),
        ]
        setup(
            name="pairbus-rooms", packages=[], ext_modules=extensions, cmdclass={"build_ext": BuildLibraries}
        )


if __name__ == "__main__":
    main()
