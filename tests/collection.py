"""Refuses test ids that contain a memory address.

Such an id differs from one process to the next. The parallel workers of pytest-xdist then collect different tests, and
the run ends before the first test. Whether it happens depends on the kernel's address randomness, so the check looks
at the ids themselves instead of waiting for a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

_ADDRESS = re.compile(r"\bat 0x|\b0x[0-9a-f]{8,16}\b")


def ids_with_an_address(ids: Iterable[str]) -> list[str]:
    """The ids that contain a memory address, also where the id is cut off inside it."""
    return [test_id for test_id in ids if _ADDRESS.search(test_id)]


def check_ids(ids: Iterable[str]) -> None:
    """Raise pytest.UsageError for ids that would differ between two processes."""
    unstable = ids_with_an_address(ids)
    if unstable:
        raise pytest.UsageError(
            f"{len(unstable)} test ids contain a memory address, so parallel workers would collect different tests. "
            f"Give the parameter a __repr__ or the test an id. The first: {unstable[0]}"
        )
