"""A finaliser that parses while something else is parsed does no harm, on any interpreter we run on."""

from __future__ import annotations

import ast
import gc


class Leaver:
    """Part of a cycle; parses when it is collected, as the report of an ignored exception does."""

    def __init__(self, left: list[int]) -> None:
        self.me = self
        self._left = left

    def __del__(self) -> None:
        ast.parse("a + b")
        self._left.append(1)


def test_a_collection_during_a_parse_does_not_break_it() -> None:
    source = "\n".join(f"x{i} = [1, (2, 3), {{'a': y}}]" for i in range(500))
    left: list[int] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for _ in range(20):
            Leaver(left)
            assert len(ast.parse(source).body) == 500
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(left) == 20
