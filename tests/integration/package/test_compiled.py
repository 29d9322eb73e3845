"""What is listed to be compiled passes the compiler. `make compiled` also makes libraries of it, and runs the tests on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.build_backend import generate, modules


@pytest.mark.long
def test_every_listed_module_becomes_c(tmp_path: Path) -> None:
    """This needs no C compiler, so it finds on every machine what the compiled form does not allow."""
    generate(tmp_path)

    made = {file.stem for file in tmp_path.rglob("*.c")}
    assert {file.stem for file in modules()} <= made
