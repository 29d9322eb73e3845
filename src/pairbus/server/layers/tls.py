"""TLS without I/O: ciphertext in, plain bytes out, and back, on memory buffers.

asyncio's own TLS transport holds about 279 KiB per idle connection; this one holds what OpenSSL needs and no more.
"""

from __future__ import annotations

import ssl
from typing import Final

from pairbus.errors import RemoteProtocolError

HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Ciphertext accepted before the handshake is done (M6)."""
READ_BYTES: Final = 64 * 1024


class TlsLayer:
    """The server's side of one TLS connection."""

    __slots__ = ("_handshake_bytes", "_incoming", "_outgoing", "_tls", "is_ended", "is_established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0
        self.is_established = False
        self.is_ended = False
        """The peer has closed its direction."""

    def receive(self, data: bytes) -> bytes:
        """The plain bytes that ``data`` completes; afterwards ``take_output`` may hold answers of TLS itself.

        Raises RemoteProtocolError when the peer breaks TLS; an alert for it may be in the output.
        """
        self._incoming.write(data)
        try:
            if not self.is_established and not self._shake(len(data)):
                return b""
            return self._read()
        except ssl.SSLError as error:
            raise RemoteProtocolError(
                "amqp:connection:framing-error", f"TLS failed: {error.reason or error}"
            ) from error

    def encrypt(self, chunks: list[bytes]) -> bytes:
        """The ciphertext of the chunks, in order."""
        plain = memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        while plain:
            # One record at a time: OpenSSL writes partially here.
            plain = plain[self._tls.write(plain) :]
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The output of TLS itself: handshake, tickets, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Say that nothing more comes."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # Want-read: our farewell is written, the peer's is not awaited. Anything else: it is gone already.
            pass
        return self._outgoing.read()

    def _shake(self, count: int) -> bool:
        self._handshake_bytes += count
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                raise RemoteProtocolError(
                    "amqp:connection:framing-error",
                    f"the TLS handshake exceeds {HANDSHAKE_BYTES_MAX} bytes",
                ) from None
            return False
        self.is_established = True
        return True

    def _read(self) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                part = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                self.is_ended = True
                break
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def server_context(certificate_file: str, key_file: str) -> ssl.SSLContext:
    """A context that serves with this certificate. Raises ssl.SSLError or OSError when the files do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_SINGLE_ECDH_USE
    # One ticket lets a client resume; of the usual two one would never be used.
    context.num_tickets = 1
    context.load_cert_chain(certificate_file, key_file)
    return context
