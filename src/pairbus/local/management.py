"""Management requests of the test kit: plain HTTP to a loopback broker, signed with its root key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

from pairbus.errors import ManagementFailed, UsageError

REQUEST_SECONDS_MAX: Final = 60.0
TOKEN_SECONDS: Final = 3600
_ANSWER_CHARACTERS_SHOWN: Final = 500


@dataclass(frozen=True)
class Credentials:
    """The parts of a connection string that a request needs."""

    host: str
    key_name: str
    key: str

    def __repr__(self) -> str:
        return f"Credentials(host={self.host!r}, key_name={self.key_name!r})"


def parse_connection_string(text: str) -> Credentials:
    """Take a connection string apart. Never shows it in an error, for it holds a key."""
    pairs = (part.split("=", 1) for part in text.split(";") if "=" in part)
    values = {key.strip().lower(): value.strip() for key, value in pairs}
    missing = [key for key in ("endpoint", "sharedaccesskeyname", "sharedaccesskey") if key not in values]
    if missing:
        raise UsageError(f"the connection string lacks {', '.join(missing)}")
    host = values["endpoint"].split("://", 1)[-1].strip("/")
    return Credentials(host, values["sharedaccesskeyname"], values["sharedaccesskey"])


def sas_token(resource: str, key_name: str, key: str, expires_at_s: int) -> str:
    """A shared access signature for a resource."""
    encoded = quote_plus(resource)
    digest = hmac.new(key.encode(), f"{encoded}\n{expires_at_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_at_s}&skn={quote_plus(key_name)}"


class ManagementClient:
    """Sends one signed request at a time to ``address`` (``host:port``)."""

    def __init__(self, address: str, connection_string: str) -> None:
        self._address = address
        self._credentials = parse_connection_string(connection_string)

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
