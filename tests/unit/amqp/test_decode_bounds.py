"""B60: decoding is bounded, whatever counts, widths and nesting the bytes claim."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from pairbus.amqp.decode import DEPTH_MAX, ELEMENTS_MAX, ELEMENTS_SLACK, decode_value, skip_value
from pairbus.errors import RemoteProtocolError

BYTES_PER_BYTE = 260
"""The published ``c``: an empty list in a list costs a Python object and a place to hold it."""
BYTES_EVER = 400_000
"""The published ``d``."""


def allocated(data: bytes) -> int:
    tracemalloc.start()
    try:
        decode_value(data)
    except RemoteProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def compound32(code: int, count: int, content: bytes) -> bytes:
    return bytes((code,)) + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


HOSTILE = {
    "array of 4 billion nulls": compound32(0xF0, 0xFFFFFFFF, b"\x40"),
    "array of 65536 empty lists": compound32(0xF0, 65536, b"\x45"),
    "array of 65536 trues": compound32(0xF0, 65536, b"\x41"),
    "list that claims 65536": compound32(0xD0, 65536, b"\x40" * 10),
    "map that claims 65536": compound32(0xD1, 65536, b"\x40" * 10),
    "many arrays of nulls": compound32(0xD0, 5000, compound32(0xF0, 60000, b"\x40") * 5000),
    "arrays in one array": compound32(0xF0, 1000, b"\xe0" + b"\x02\xff\x40" * 1000),
    "list of lists": compound32(0xD0, 60000, b"\x45" * 60000),
    "deep lists": b"\xc0\x7f\x01" * 200,
    "deep descriptors": b"\x00" * 5000,
    "deep array descriptors": compound32(0xF0, 1, b"\x00" * 5000),
    "array behind 40 descriptors": compound32(0xF0, 1, b"\x00\x40" * 40 + b"\x40"),
    "described array elements": compound32(0xF0, 65536, b"\x00\x40" * 31 + b"\x40"),
    "long claims": b"\xb0\xff\xff\xff\xff" + b"x" * 100,
    "plain bytes": b"\xb0" + (100_000).to_bytes(4, "big") + b"x" * 100_000,
}


@pytest.mark.promise("B60")
@pytest.mark.parametrize("name", HOSTILE)
def test_allocation_is_linear_in_the_bytes_that_are_there(name: str) -> None:
    data = HOSTILE[name]

    assert allocated(data) <= BYTES_PER_BYTE * len(data) + BYTES_EVER


@pytest.mark.promise("B60")
@pytest.mark.parametrize("name", HOSTILE)
def test_steps_are_linear_in_the_bytes_that_are_there(name: str) -> None:
    data = HOSTILE[name]

    started = time.thread_time()
    try:
        decode_value(data)
    except RemoteProtocolError:
        pass
    elapsed = time.thread_time() - started

    # Generous: a slow machine, though only our own work counts. Without the bound the first sample alone would take minutes.
    assert elapsed < 2.5 + len(data) * 100e-6


@pytest.mark.promise("B60")
def test_nesting_is_capped() -> None:
    fits = b"\x40"
    for _ in range(DEPTH_MAX):
        fits = b"\xc0" + bytes((len(fits) + 1, 1)) + fits
    too_deep = b"\xc0" + bytes((len(fits) + 1, 1)) + fits

    decode_value(fits)
    with pytest.raises(RemoteProtocolError, match="deeper"):
        decode_value(too_deep)


@pytest.mark.promise("B60")
def test_elements_without_width_are_counted() -> None:
    decode_value(compound32(0xF0, ELEMENTS_SLACK, b"\x40"))

    with pytest.raises(RemoteProtocolError, match="claimed"):
        decode_value(compound32(0xF0, ELEMENTS_SLACK + 100, b"\x40"))


@pytest.mark.promise("B60")
def test_elements_per_compound_are_capped() -> None:
    decode_value(compound32(0xD0, ELEMENTS_MAX, b"\x40" * ELEMENTS_MAX))

    with pytest.raises(RemoteProtocolError, match="more than"):
        decode_value(compound32(0xD0, ELEMENTS_MAX + 1, b"\x40" * (ELEMENTS_MAX + 1)))


@pytest.mark.promise("B60")
def test_skipping_a_tower_of_descriptors_needs_no_stack() -> None:
    tower = b"\x00" * 100_000 + b"\x40" * 100_001

    assert skip_value(tower, 0, len(tower)) == len(tower)
