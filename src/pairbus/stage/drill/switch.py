"""The primary's fault switchboard from outside: is it offered, is it free, on with a duration, off before its time."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pairbus.errors import PairingError
from pairbus.local.management import TOKEN_SECONDS
from pairbus.pairing.naming import entity_key
from pairbus.sdk.connection_string import CLOUD_SUFFIXES, parse_connection_string
from pairbus.sdk.credentials import credentials_of, sas_token
from pairbus.testing.faults import FAULTS_PATH

REQUEST_SECONDS_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 1_000_000
HTTPS_PORT: Final = 443


class Switchboard:
    """``/$faults`` of one namespace. Every fault is switched on with a duration: it ends without us, too.

    Args:
        connection_string: With a key that may manage the namespace.
        ca_file: Authorities to trust, where the namespace is reached by TLS.
    """

    def __init__(self, connection_string: str, ca_file: str | None = None) -> None:
        parsed = parse_connection_string(connection_string, "primary")
        self._credentials = credentials_of(connection_string)
        self._is_plain = parsed.is_emulator
        self._ca_file = ca_file
        split = urlsplit(f"//{parsed.host}")
        self._host = split.hostname or parsed.host
        self._port = split.port
        self._ours: dict[tuple[str, str], int] = {}

    @property
    def is_cloud(self) -> bool:
        """Whether the namespace is one of the cloud service, which has no switchboard and is not asked."""
        return self._host.lower().rstrip(".").endswith(CLOUD_SUFFIXES)

    def is_offered(self) -> bool:
        """Whether the namespace offers it to this key. PairingError when the namespace does not answer."""
        if self.is_cloud:
            return False
        status, _ = self._ask("GET")
        return status == 200

    def check_free(self, entities: Sequence[str]) -> None:
        """Raise PairingError when somebody else's fault would strike these entities too."""
        keys = {entity_key(path) for path in entities}
        others = [
            fault for fault in self._faults() if not fault["entity"] or entity_key(fault["entity"]) in keys
        ]
        if others:
            kinds = ", ".join(sorted({str(fault["kind"]) for fault in others}))
            raise PairingError(
                f"the primary has faults on already ({kinds}), which would spoil the drill: wait for their end, or clear "
                "them on the page or with DELETE /$faults"
            )

    def begin(self, kind: str, entities: Sequence[str], milliseconds: int) -> None:
        """Switch one fault on for each entity, for this long."""
        for entity in entities:
            wish = {"kind": kind, "entity": entity, "duration_ms": milliseconds}
            status, answer = self._ask("POST", json.dumps(wish).encode())
            if status != 200:
                raise PairingError(f"the primary refused the fault {kind}: {status} {_reason(answer)}")
            self._ours[kind, entity_key(entity)] = milliseconds

    def end(self) -> int:
        """Switch ours off before their time; for how many milliseconds they go on all the same, 0 for none.

        The switchboard only knows to clear everything: where others have theirs on, ours end by themselves.
        """
        faults = self._faults()
        ours = [fault for fault in faults if self._is_ours(fault)]
        if len(ours) < len(faults):
            return max((int(fault["remaining_ms"]) for fault in ours), default=0)
        if ours:
            self._ask("DELETE")
        return 0

    def _is_ours(self, fault: dict[str, Any]) -> bool:
        return (str(fault["kind"]), entity_key(str(fault["entity"] or ""))) in self._ours

    def _faults(self) -> list[dict[str, Any]]:
        status, answer = self._ask("GET")
        if status != 200:
            raise PairingError(f"the primary's switchboard cannot be read: {status} {_reason(answer)}")
        found = answer.get("faults", [])
        return [fault for fault in found if isinstance(fault, dict)] if isinstance(found, list) else []

    def _ask(self, method: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
        who = self._credentials
        token = sas_token(f"http://{who.host}", who.key_name, who.key, int(time.time()) + TOKEN_SECONDS)
        connection = self._connection()
        try:
            connection.request(
                method, FAULTS_PATH, body, {"Authorization": token, "Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise PairingError(
                    "the primary's certificate is not trusted: name its authority (--ca-file), see docs/how-to/use-tls.md"
                ) from error
            why = getattr(error, "strerror", None) or type(error).__name__
            raise PairingError(
                f"the primary could not be reached ({why}): is it running, and does PAIRBUS_PRIMARY name its address?"
            ) from error
        finally:
            connection.close()
        return answer.status, _json(content)

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_plain:
            return http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_SECONDS_MAX)
        context = ssl.create_default_context(cafile=self._ca_file)
        port = self._port or HTTPS_PORT
        return http.client.HTTPSConnection(self._host, port, timeout=REQUEST_SECONDS_MAX, context=context)


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answer: dict[str, Any]) -> str:
    return str(answer.get("error", ""))[:200]
