"""What docs/compatibility.md says of decimal numbers in the official Python client, so that it is noticed when that changes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from azure.servicebus._pyamqp._decode import _decode_decimal128
from azure.servicebus._pyamqp._encode import encode_decimal128

ONE = bytes.fromhex("3040") + bytes(13) + b"\x01"
"""The number 1 as IEEE 754-2008 has it: the exponent 0 with its bias of 6176, and the digit."""


def test_the_python_client_cannot_read_the_decimal_that_it_wrote() -> None:
    written = bytearray()
    encode_decimal128(written, Decimal(1), with_constructor=False)

    assert bytes(written) == ONE
    with pytest.raises(ValueError, match="decimal128"):
        _decode_decimal128(memoryview(written))
