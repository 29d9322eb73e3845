"""Every process collects the same tests, wherever its memory lies."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Double, Float
from tests.collection import check_ids, ids_with_an_address


@pytest.mark.parametrize(
    "test_id",
    [
        "t[<Float object at 0x7f3a20c1d0>]",
        "t[<pairbus.amqp.types.Float object at 0x7",
        "t[<f 0x7f3a20c1d010>]",
    ],
    ids=["whole", "cut off", "without a word"],
)
def test_an_id_with_an_address_is_refused(test_id: str) -> None:
    assert ids_with_an_address([test_id]) == [test_id]
    with pytest.raises(pytest.UsageError, match="memory address"):
        check_ids(["t[1]", test_id])


def test_an_id_with_wire_bytes_is_not_an_address() -> None:
    check_ids(["test_values.py::t[72 3f c0 00 00]", "t[0x1F]", "t[Float(1.5)]"])


def test_floating_values_name_their_value() -> None:
    assert repr(Float(1.5)) == "Float(value=1.5)"
    assert repr(Double(-0.25)) == "Double(value=-0.25)"
