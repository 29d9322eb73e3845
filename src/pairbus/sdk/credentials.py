"""Keys of a namespace as signed requests need them, and the signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import quote_plus

from pairbus.errors import UsageError
from pairbus.sdk.connection_string import parse_connection_string


@dataclass(frozen=True, slots=True)
class Credentials:
    """The parts of a connection string that a request needs."""

    host: str
    key_name: str
    key: str

    def __repr__(self) -> str:
        return f"Credentials(host={self.host!r}, key_name={self.key_name!r})"


def credentials_of(text: str) -> Credentials:
    """The host and key of a connection string. Never shows it in an error, for it holds a key."""
    parts = parse_connection_string(text, "given")
    missing = [
        name
        for name, value in (("SharedAccessKeyName", parts.key_name), ("SharedAccessKey", parts.key))
        if not value
    ]
    if missing:
        raise UsageError(f"the connection string lacks {', '.join(missing)}")
    return Credentials(parts.host, parts.key_name, parts.key)


def sas_token(resource: str, key_name: str, key: str, expires_at_s: int) -> str:
    """A shared access signature for a resource."""
    encoded = quote_plus(resource)
    digest = hmac.new(key.encode(), f"{encoded}\n{expires_at_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_at_s}&skn={quote_plus(key_name)}"
