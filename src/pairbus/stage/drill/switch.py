"""Operates the primary's fault switchboard over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Sequence
from typing import Any, Final

from pairbus.errors import PairingError
from pairbus.gateway.broker import FAULTS_PATH
from pairbus.local.management import ManagementClient
from pairbus.pairing.naming import entity_key
from pairbus.sdk.connection_string import CLOUD_SUFFIXES, parse_connection_string, split_host

REQUEST_SECONDS_MAX: Final = 10.0


class Switchboard:
    """``/$faults`` of one namespace. Every fault is switched on with a duration: it ends without us, too.

    Args:
        connection_string: With a key that may manage the namespace.
        ca_file: Authorities to trust, where the namespace is reached by TLS.
    """

    def __init__(self, connection_string: str, ca_file: str | None = None) -> None:
        parsed = parse_connection_string(connection_string, "primary")
        self._host = parsed.host
        self._primary = f"the primary {parsed.host}"
        tls = None if parsed.is_emulator else ssl.create_default_context(cafile=ca_file)
        self._client = ManagementClient(
            parsed.host, connection_string, tls=tls, seconds_max=REQUEST_SECONDS_MAX
        )
        self._ours: set[tuple[str, str]] = set()

    @property
    def is_cloud(self) -> bool:
        """Whether the namespace is one of the cloud service, which has no switchboard and is not asked."""
        return split_host(self._host)[0].lower().rstrip(".").endswith(CLOUD_SUFFIXES)

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
                f"{self._primary} has faults on already ({kinds}), which would spoil the drill: wait for their end, or clear "
                "them on the page or with DELETE /$faults"
            )

    def begin(self, kind: str, entities: Sequence[str], milliseconds: int) -> None:
        """Switch one fault on for each entity, for this long."""
        for entity in entities:
            wish = {"kind": kind, "entity": entity, "duration_ms": milliseconds}
            status, answer = self._ask("POST", json.dumps(wish).encode())
            if status != 200:
                raise PairingError(f"{self._primary} refused the fault {kind}: {status} {_reason(answer)}")
            self._ours.add((kind, entity_key(entity)))

    def end(self) -> int:
        """Switch our faults off early. Returns for how many milliseconds they go on all the same, 0 for none.

        The switchboard can only clear everything: while others have faults on, ours end by themselves.
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
            raise PairingError(f"{self._primary}: its switchboard cannot be read: {status} {_reason(answer)}")
        found = answer.get("faults", [])
        return [fault for fault in found if isinstance(fault, dict)] if isinstance(found, list) else []

    def _ask(self, method: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
        try:
            status, _, content = self._client.ask(method, FAULTS_PATH, body)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise PairingError(
                    f"{self._primary}: its certificate is not trusted: name its authority (--ca-file), see docs/how-to/use-tls.md"
                ) from error
            why = getattr(error, "strerror", None) or type(error).__name__
            raise PairingError(
                f"{self._primary} could not be reached ({why}): is it running, and does PAIRBUS_PRIMARY name its address?"
            ) from error
        return status, _json(content)


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(answer: dict[str, Any]) -> str:
    return str(answer.get("error", ""))[:200]
