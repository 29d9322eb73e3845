"""Management requests of the test kit: plain HTTP to a loopback broker, signed with its root key."""

from __future__ import annotations

import http.client
import time
from typing import Final

from pairbus.errors import ManagementFailed
from pairbus.sdk.credentials import credentials_of, sas_token

REQUEST_SECONDS_MAX: Final = 60.0
TOKEN_SECONDS: Final = 3600
_ANSWER_CHARACTERS_SHOWN: Final = 500


class ManagementClient:
    """Sends one signed request at a time to ``address`` (``host:port``)."""

    def __init__(self, address: str, connection_string: str) -> None:
        self._address = address
        self._credentials = credentials_of(connection_string)

    def request(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        """The body of the answer; ManagementFailed when the broker says no or does not answer."""
        credentials = self._credentials
        expires_at_s = int(time.time()) + TOKEN_SECONDS
        token = sas_token(f"http://{credentials.host}", credentials.key_name, credentials.key, expires_at_s)
        connection = http.client.HTTPConnection(self._address, timeout=REQUEST_SECONDS_MAX)
        try:
            connection.request(method, path, body, {"Authorization": token, "Content-Type": content_type})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ManagementFailed(
                f"{method} {path} got no answer from {self._address}: {error!r}"
            ) from error
        finally:
            connection.close()
        if answer.status >= 300:
            shown = content.decode(errors="replace")[:_ANSWER_CHARACTERS_SHOWN]
            raise ManagementFailed(f"{method} {path} was answered {answer.status} {answer.reason}: {shown}")
        return content
