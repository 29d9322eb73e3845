"""The shape of the last ordinary message: all its bytes but the content of its id and of its body.

The messages of a sender mostly have the same shape. Two comparisons then show that a message differs from the last one in those two
contents only; so everything else that is known of the last one is true of it, and nobody has to walk through its sections again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import read_u32

if TYPE_CHECKING:
    from mypy_extensions import i64

SHAPE_BYTES_MAX: Final = 1024
"""Where the body of a message begins at the latest whose shape is remembered."""
SHORT_DATA: Final = 0xA0
LONG_DATA: Final = 0xB0
SHORT_STRING: Final = 0xA1


class Shape:
    """How a message looks whose properties begin with a message id of less than 256 bytes, and whose last section is data."""

    __slots__ = ("_body_at", "_head", "_prefix", "_section_at", "_tail", "id_at", "id_stop")

    def __init__(
        self, payload: bytes, section_at: i64, id_at: i64, id_stop: i64, body_at: i64, prefix: bytes
    ) -> None:
        """``id_at`` and ``id_stop``: where the encoded id begins and ends. The others are those of ``LastShape.remember``."""
        self.id_at = id_at
        self.id_stop = id_stop
        self._head = payload[: id_at + 2]
        """Up to the id's content: its length is a part of the shape."""
        self._tail = payload[id_stop:body_at]
        self._body_at = body_at
        self._section_at = section_at
        self._prefix = prefix

    def blob_of(self, payload: bytes) -> bytes:
        """What is stored of a message of this shape; empty, if it has another one. A body that is empty is not of any shape."""
        at: i64 = self._body_at
        rest = len(payload) - at - 2
        if rest <= 4 or not payload.startswith(self._head) or payload[self.id_stop : at] != self._tail:
            return b""
        code: i64 = payload[at]
        if code == LONG_DATA:
            is_whole = read_u32(payload, at + 1) == rest - 3
        else:
            is_whole = code == SHORT_DATA and payload[at + 1] == rest
        return self._prefix + payload[self._section_at :] if is_whole else b""


class LastShape:
    """The shape of the last message that had one. In one value, for brokers in several threads share it."""

    __slots__ = ("shape",)

    def __init__(self) -> None:
        self.shape = Shape(b"\xff", 0, 0, 0, 0, b"")
        """Before there was one: no message begins like this."""

    def remember(self, payload: bytes, section_at: i64, list_at: i64, body_at: i64, prefix: bytes) -> None:
        """Take the shape of a message that was just scanned, if it has one.

        Args:
            payload: The message. It has a message id.
            section_at: Where the section of properties begins, the first one that is stored.
            list_at: Where its list begins.
            body_at: Where the data begins, the last section.
            prefix: What is stored before the bytes of the sender.
        """
        # Before the first item of a list: its constructor, its size and its count.
        id_at = list_at + (3 if payload[list_at] == 0xC0 else 9)
        if body_at <= SHAPE_BYTES_MAX and payload[id_at] == SHORT_STRING:
            self.shape = Shape(payload, section_at, id_at, id_at + 2 + payload[id_at + 1], body_at, prefix)
