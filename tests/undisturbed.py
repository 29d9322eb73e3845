"""Keeps the garbage collector out of ``ast.parse`` where the interpreter cannot bear it.

CPython before 3.11.8 and 3.12.2 counts the depth of a parse in one place for all parses (gh-106905). A collection in
the middle of one may report an exception of some finaliser, and formatting its traceback parses again: the outer
parse then ends in a ``SystemError`` that has nothing to do with what is tested. pytest parses every module that a
test imports, so such a failure could fall on any test.
"""

from __future__ import annotations

import ast
import gc
import sys
from typing import Any

_parse = ast.parse


def _bears_nesting(version: tuple[int, ...]) -> bool:
    return version >= (3, 12, 2) or (3, 11, 8) <= version < (3, 12)


def _parse_undisturbed(*args: Any, **kwargs: Any) -> Any:
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _parse(*args, **kwargs)
    finally:
        if collecting:
            gc.enable()


def keep_the_collector_out_of_parsing() -> None:
    if not _bears_nesting(sys.version_info[:3]):
        ast.parse = _parse_undisturbed
