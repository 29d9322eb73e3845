"""ARCHITECTURE.md names files and functions that exist, and draws the layers that import-linter checks."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pairbus"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
FILES = sorted(set(re.findall(r"`([\w/]+\.py(?::\w+)?)`", TEXT)))
FOLDER_MODULES_MAX = 14
"""Modules of one folder, ``__init__`` included (decision 0085): beyond that, some of them are a sub-package."""
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}


def module_of(name: str) -> Path:
    """The module that a name means: a path of the repository or below the package, or the end of one that is unique."""
    if (ROOT / name).exists():
        return ROOT / name
    if name in MODULES:
        return MODULES[name]
    found = [path for relative, path in MODULES.items() if relative.endswith(f"/{name}")]
    assert found, f"{name} is not in src/pairbus"
    assert len(found) == 1, f"{name} could be {len(found)} modules: write its room before it"
    return found[0]


@pytest.mark.parametrize("reference", FILES)
def test_files_and_functions_of_the_architecture_exist(reference: str) -> None:
    name, _, function = reference.partition(":")
    text = module_of(name).read_text()
    assert not function or re.search(rf"^\s*(async )?def {function}\b", text, re.MULTILINE), reference


def test_the_picture_of_the_rooms_shows_the_layers_that_are_checked() -> None:
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    checked = [re.split(r"\s*\|\s*", layer) for layer in layers]
    picture = re.search(r"checks that\.\n\n((?:    .+\n)+)", TEXT)
    assert picture
    shown = [re.split(r" │ ", re.split(r"\s{2,}", line.strip())[0]) for line in picture.group(1).splitlines()]

    assert shown == checked


def test_every_room_has_its_row() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"errors", "form", "native"}
    rows = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))

    assert rows == rooms


def test_no_folder_is_a_flat_list() -> None:
    modules = Counter(path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

    assert {folder: count for folder, count in modules.items() if count > FOLDER_MODULES_MAX} == {}
