"""Signed management requests to a broker over HTTP."""

from __future__ import annotations

import http.client
import ssl
import time
from typing import Final

from pairbus.errors import ManagementFailed
from pairbus.sdk.credentials import credentials_of, sas_token

REQUEST_SECONDS_MAX: Final = 60.0
TOKEN_SECONDS: Final = 3600
ANSWER_BYTES_MAX: Final = 64 << 20
_ANSWER_CHARACTERS_SHOWN: Final = 500


class ManagementClient:
    """Sends one request at a time, signed with the key of a connection string.

    Args:
        address: ``host:port`` to ask.
        connection_string: Its key signs the requests.
        tls: For a namespace that is reached by TLS; None for plain HTTP.
        seconds_max: How long one request may take.
    """

    def __init__(
        self,
        address: str,
        connection_string: str,
        *,
        tls: ssl.SSLContext | None = None,
        seconds_max: float = REQUEST_SECONDS_MAX,
    ) -> None:
        self._address = address
        self._credentials = credentials_of(connection_string)
        self._tls = tls
        self._seconds_max = seconds_max

    def request(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        """Return the body of a good answer. Raises ManagementFailed for a refusal, or when there is no answer."""
        try:
            status, reason, content = self.ask(method, path, body, content_type)
        except (OSError, http.client.HTTPException) as error:
            raise ManagementFailed(
                f"{method} {path} got no answer from {self._address}: {error!r}"
            ) from error
        if status >= 300:
            shown = content.decode(errors="replace")[:_ANSWER_CHARACTERS_SHOWN]
            raise ManagementFailed(f"{method} {path} was answered {status} {reason}: {shown}")
        return content

    def ask(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> tuple[int, str, bytes]:
        """Return status, reason and body of the answer, whatever it is. Raises OSError or HTTPException."""
        key = self._credentials
        token = sas_token(f"http://{key.host}", key.key_name, key.key, int(time.time()) + TOKEN_SECONDS)
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._address, timeout=self._seconds_max)
        else:
            connection = http.client.HTTPSConnection(
                self._address, timeout=self._seconds_max, context=self._tls
            )
        try:
            connection.request(method, path, body, {"Authorization": token, "Content-Type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
