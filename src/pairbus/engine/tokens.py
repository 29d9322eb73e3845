"""Lock tokens: numbers that nobody can guess from those he was given.

They follow from a secret seed by a cryptographic function, many at a time, so that a lock costs no more than a counter would, and the
same seed gives the same tokens again, which a simulation needs.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

BLOCK_TOKENS: Final = 512
"""Tokens made at a time."""
_BLOCK: Final = struct.Struct(f">{BLOCK_TOKENS}Q")


class TokenStream:
    """Tokens of 64 bits, never 0, which stands for no lock."""

    __slots__ = ("_blocks", "_seed", "_tokens")

    def __init__(self, seed: bytes) -> None:
        """``seed`` is secret, and another one for each life of a broker: a token of an earlier life fits no lock (B27)."""
        self._seed = seed
        self._blocks = 0
        self._tokens: list[int] = []

    def next(self) -> int:
        """A token that was not given before."""
        tokens = self._tokens
        if not tokens:
            tokens = self._tokens = self._block()
        return tokens.pop() or self.next()

    def _block(self) -> list[int]:
        self._blocks += 1
        digest = hashlib.shake_256(self._seed + self._blocks.to_bytes(8, "big")).digest(_BLOCK.size)
        # That two of them are equal is as unlikely as guessing one.
        return list(_BLOCK.unpack(digest))
