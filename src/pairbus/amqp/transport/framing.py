"""Protocol headers and frames: the outermost layer of the byte stream (AMQP 1.0, 2.2 and 2.3)."""

from __future__ import annotations

import struct
from typing import Final

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE: Final = 8

FRAME_HEADER_SIZE: Final = 8
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

MIN_MAX_FRAME_SIZE: Final = 512
"""No peer may ask for smaller frames (AMQP 1.0, 2.8.19)."""

FRAME_HEADER: Final = struct.Struct(">IBBH")
EMPTY_FRAME: Final = FRAME_HEADER.pack(FRAME_HEADER_SIZE, 2, AMQP_FRAME, 0)
"""Keeps a connection alive."""


def amqp_frame(channel: int, body: bytes) -> bytes:
    return FRAME_HEADER.pack(FRAME_HEADER_SIZE + len(body), 2, AMQP_FRAME, channel) + body


def sasl_frame(body: bytes) -> bytes:
    return FRAME_HEADER.pack(FRAME_HEADER_SIZE + len(body), 2, SASL_FRAME, 0) + body
