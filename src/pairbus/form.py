"""Which form of PairBus runs: *compiled* or *pure*.

In the compiled form shared libraries stand beside the Python files of some rooms, and Python loads the libraries. The pure form
is Python alone; it is the reference, and runs everywhere. Both do the same, at different speeds.

The build writes ``form.json`` beside this file: what is compiled, or why nothing is. In a checkout (`make fast`) the file also
names every source that the libraries were made from. When one of those has changed, the libraries are not used, so that
the code that runs is always the code that one reads. ``PAIRBUS_FORM=pure`` leaves the libraries unused, and
``PAIRBUS_FORM=compiled`` ends with an error where the compiled form cannot run.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMPILED: Final = "compiled"
PURE: Final = "pure"
VARIABLE: Final = "PAIRBUS_FORM"
"""The environment variable that asks for one form, of a build and of a run."""
FORM_FILE: Final = "form.json"
LIBRARY: Final = "rooms__mypyc"
"""The shared library with the code of all compiled modules; what stands beside each module only points to it."""
NEVER_COMPILED: Final = "this checkout is not compiled: `make fast` compiles it"


class Built(TypedDict):
    """What the build wrote into ``form.json``."""

    form: str
    reason: str
    parts: list[str]
    sources: dict[str, tuple[int, int, str]]
    """In a checkout: each source's time of change in nanoseconds, size and digest."""


class Form(NamedTuple):
    """What runs, and why."""

    name: str
    """``compiled`` or ``pure``."""
    parts: tuple[str, ...]
    """The rooms, and modules of other rooms, that are compiled."""
    reason: str
    """Why the pure form runs; empty for the compiled one."""

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.parts) or self.reason}"


def choose(folder: str, wanted: str) -> Form:
    """The form that the package in this folder runs in. Raises ImportError if it cannot be the one that is wanted."""
    if wanted not in ("", COMPILED, PURE):
        raise ImportError(f"{VARIABLE} is {wanted!r}; use {COMPILED} or {PURE}, or leave it unset")
    if wanted == PURE:
        return Form(PURE, (), f"{VARIABLE} is {PURE}")
    built = _built(folder)
    reason = NEVER_COMPILED if built is None else _against_libraries(folder, built)
    if built is not None and not reason:
        return Form(COMPILED, tuple(built["parts"]), "")
    if wanted == COMPILED:
        raise ImportError(f"{VARIABLE} is {COMPILED}, but {reason}")
    return Form(PURE, (), reason)


def digest(content: bytes) -> str:
    """How a source is known again whose time of change is another one."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class SourceFinder:
    """Finds the modules of this package as Python files, and does not see the libraries beside them."""

    def __init__(self) -> None:
        self._finders: dict[str, FileFinder] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        if path is None or not name.startswith("pairbus."):
            return None
        for folder in path:
            finder = self._finders.get(folder)
            if finder is None:
                finder = self._finders[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
            spec = finder.find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def _built(folder: str) -> Built | None:
    """What the build wrote; nothing in a checkout that was never compiled."""
    try:
        with open(os.path.join(folder, FORM_FILE), "rb") as file:
            content = file.read()
    except OSError:
        return None
    import json  # noqa: PLC0415 - a checkout that is not compiled has nothing to read

    found: Built = json.loads(content)
    return found


def _against_libraries(folder: str, built: Built) -> str:
    """Why the libraries cannot be used; empty if they can."""
    if built["form"] != COMPILED:
        return built["reason"]
    if not _has_library(folder):
        return f"it was compiled for another Python than {sys.implementation.cache_tag}"
    for name, (changed_ns, size, content) in built["sources"].items():
        file = os.path.join(folder, name)
        try:
            found = os.stat(file)
            if (found.st_mtime_ns, found.st_size) == (changed_ns, size):
                continue
            with open(file, "rb") as source:
                is_same = digest(source.read()) == content
        except OSError:
            is_same = False
        if not is_same:
            return f"{name} has changed since it was compiled: `make fast` compiles it again"
    return ""


def _has_library(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, LIBRARY + suffix)) for suffix in EXTENSION_SUFFIXES)


def _activate() -> Form:
    """Choose the form of this process, before any other module of the package is loaded."""
    folder = os.path.dirname(__file__)
    form = choose(folder, os.environ.get(VARIABLE, ""))
    if form.name == PURE and _has_library(folder):
        sys.meta_path.insert(0, SourceFinder())
    return form


FORM: Final = _activate()
"""The form of this process."""
