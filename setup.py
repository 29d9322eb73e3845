"""pyproject.toml describes the package. This adds to a wheel what tools/build_backend.py made for it: the compiled libraries, if any."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

made = os.environ.get("PAIRBUS_MADE")
is_compiled = made is not None and any(Path(made).rglob("*__mypyc.*"))


class BuildPy(build_py):
    """Copies the package, and what was made for it."""

    def run(self) -> None:
        super().run()
        if made is not None and not self.editable_mode:
            shutil.copytree(made, self.build_lib, dirs_exist_ok=True)


class PackageDistribution(Distribution):
    """A package for one platform, if it is compiled."""

    def has_ext_modules(self) -> bool:
        return is_compiled


setup(
    cmdclass={"build_py": BuildPy},
    distclass=PackageDistribution,
    # A directory of its own: in the usual one, files of earlier builds would come along.
    options={"build": {"build_base": os.environ["PAIRBUS_BUILD_BASE"]}} if made is not None else {},
)
