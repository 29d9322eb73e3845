"""Compile the pure rooms with mypyc into build/compiled and run their tests against the compiled form.

The uncompiled form is the reference; this shows that the compiled one keeps the same promises. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compiled"
ROOMS = ("model", "amqp", "engine", "gateway")

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="pairbus-compiled",
    packages=[],
    ext_modules=mypycify({modules!r}, opt_level="3", debug_level="0"),
)
"""

PROOF = """
import importlib, sys
wrong = []
for name in {names!r}:
    module = importlib.import_module(name)
    if not module.__file__.endswith(".so"):
        wrong.append(f"{{name}}: {{module.__file__}}")
sys.exit("not compiled:\\n" + "\\n".join(wrong) if wrong else 0)
"""


def modules_of(source: Path) -> list[Path]:
    """The files to compile: every module of the pure rooms, but for package files, which hold no work."""
    found = [path for room in ROOMS for path in sorted((source / "pairbus" / room).rglob("*.py"))]
    return [path for path in found if path.name != "__init__.py"]


def build(source: Path) -> list[str]:
    """Copy the tree, compile it in place, return the names of the compiled modules."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    relative = [str(path.relative_to(source)) for path in modules_of(source)]
    (source / "setup.py").write_text(SETUP.format(modules=relative))
    environment = {**os.environ, "MYPYPATH": str(source)}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=source, env=environment, check=True)
    return [path.removesuffix(".py").replace("/", ".") for path in relative]


def prove(names: list[str], environment: dict[str, str]) -> None:
    """End with an error unless every module really comes from a shared library."""
    subprocess.run([sys.executable, "-c", PROOF.format(names=names)], cwd=BUILD, env=environment, check=True)


def test(environment: dict[str, str], more: list[str]) -> int:
    """Run the tests of the compiled rooms; they find the compiled package first on the path."""
    chosen = [path for room in ROOMS if (path := ROOT / "tests" / "unit" / room).exists()]
    chosen.append(ROOT / "tests" / "property")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not uncompiled", *map(str, chosen), *more]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Build, prove, test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-only", action="store_true", help="compile and prove, run no tests")
    options, more = parser.parse_known_args()
    source = BUILD / "src"
    names = build(source)
    environment = {**os.environ, "PYTHONPATH": str(source)}
    prove(names, environment)
    print(f"{len(names)} modules of {', '.join(ROOMS)} are compiled: PYTHONPATH={source.relative_to(ROOT)}")
    return 0 if options.build_only else test(environment, more)


if __name__ == "__main__":
    sys.exit(main())
