"""From the first byte to the first AMQP frame: protocol headers and SASL (AMQP 1.0, 2.2 and 5.3).

    SASL_HEADER --header--> SASL_INIT --init, accepted--> AMQP_HEADER --header--> DONE
         |                      |                             |                    ^
         +-- AMQP header -------|-----------------------------|--------------------+
         +---- anything else ---+------- refused -------------+---------------> FAILED

A peer may leave SASL out. It is anonymous then, as with SASL ANONYMOUS, and puts a token on ``$cbs``. The JavaScript client does
so when its connection string holds a ``SharedAccessSignature``.

Nothing but these is read before authentication, and not more than ``pre_auth_bytes_max`` bytes of it (M6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pairbus.amqp.conditions import FRAMING_ERROR
from pairbus.amqp.transport.framing import AMQP_HEADER, FRAME_HEADER, HEADER_SIZE, SASL_FRAME, SASL_HEADER
from pairbus.amqp.transport.handler import ConnectionSettings, Handler
from pairbus.amqp.transport.sasl import (
    OUTCOME_AUTH,
    OUTCOME_OK,
    PLAIN,
    decode_init,
    mechanisms_frame,
    outcome_frame,
    plain_credentials,
)
from pairbus.errors import RemoteProtocolError

_AT_SASL_HEADER: Final = 0
_AT_SASL_INIT: Final = 1
_AT_AMQP_HEADER: Final = 2


@dataclass(slots=True, eq=False)
class Handshake:
    """The beginning of one connection."""

    handler: Handler
    settings: ConnectionSettings
    is_done: bool = False
    """AMQP frames follow."""
    is_failed: bool = False
    """The connection ends after ``output``."""
    output: list[bytes] = field(default_factory=list)
    needed: int = HEADER_SIZE
    """How many bytes must be there before it is worth reading on."""
    identity: str | None = None
    mechanism: str = ""
    _stage: int = _AT_SASL_HEADER
    _bytes: int = 0

    def read(self, data: bytes) -> int:
        """Read as far as possible; return where to go on.

        Raises:
            RemoteProtocolError: the peer does not keep to the protocol.
        """
        offset = 0
        while not self.is_done and not self.is_failed:
            self.needed = HEADER_SIZE
            left = len(data) - offset
            if left < HEADER_SIZE:
                break
            if self._stage != _AT_SASL_INIT:
                self._read_header(data[offset : offset + HEADER_SIZE])
                offset += HEADER_SIZE
                continue
            size = FRAME_HEADER.unpack_from(data, offset)[0]
            if self._bytes + size > self.settings.pre_auth_bytes_max:
                raise RemoteProtocolError(
                    FRAMING_ERROR, f"more than {self.settings.pre_auth_bytes_max} bytes before authentication"
                )
            if left < size:
                self.needed = size
                break
            self._bytes += size
            self._read_sasl_frame(data, offset, offset + size)
            offset += size
        return offset

    def _read_header(self, header: bytes) -> None:
        wanted = SASL_HEADER if self._stage == _AT_SASL_HEADER and header != AMQP_HEADER else AMQP_HEADER
        self.output.append(wanted)
        if header != wanted:
            # AMQP 1.0, 2.2: answer with the header we would have taken, then close.
            self.is_failed = True
        elif wanted == SASL_HEADER:
            self._bytes += HEADER_SIZE
            self.output.append(mechanisms_frame(self.settings.mechanisms))
            self._stage = _AT_SASL_INIT
        else:
            self.is_done = True

    def _read_sasl_frame(self, data: bytes, offset: int, end: int) -> None:
        size, doff, kind, _ = FRAME_HEADER.unpack_from(data, offset)
        if kind != SASL_FRAME or doff < 2 or doff * 4 >= size:
            raise RemoteProtocolError(FRAMING_ERROR, f"a frame of type {kind} came before authentication")
        init = decode_init(data, offset + doff * 4, end)
        accepted = init.mechanism in self.settings.mechanisms
        if accepted and init.mechanism == PLAIN:
            credentials = plain_credentials(init.initial_response)
            accepted = credentials is not None and self.handler.sasl_plain(credentials[0], credentials[1])
            if accepted and credentials is not None:
                self.identity = credentials[0]
        # Whatever the anonymous mechanisms carry is ignored: rhea puts a rule name there.
        self.output.append(outcome_frame(OUTCOME_OK if accepted else OUTCOME_AUTH))
        if accepted:
            self.mechanism = init.mechanism
            self._stage = _AT_AMQP_HEADER
        else:
            self.is_failed = True
