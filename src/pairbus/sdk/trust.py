"""How a namespace of one's own is reached over TLS: its port, and its certificate authority beside the public ones.

Authorities are a text, which can travel to other machines; files stay where they are.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import certifi
from azure.servicebus import TransportType

from pairbus.errors import UsageError
from pairbus.sdk.connection_string import AMQPS_PORT, parse_connection_string

AUTHORITY_BYTES_MAX: Final = 4 * 1024 * 1024
"""A file longer than this is no list of authorities."""


def read_authorities(files: Iterable[str]) -> str:
    """The authorities in some PEM files, as one text; empty without files. Raises UsageError."""
    return "\n".join(_read(name) for name in files)


def reaching(connection_string: str) -> dict[str, Any]:
    """Further options of the official clients, so that they use the port that a connection string names.

    Over TLS they take 5671 whatever it says, unless the address is given a second time.
    """
    parts = parse_connection_string(connection_string, "given")
    port = parts.host.rpartition(":")[2]
    if parts.is_emulator or not port.isdecimal() or int(port) == AMQPS_PORT:
        return {}
    return {"custom_endpoint_address": f"sb://{parts.host}", "transport_type": TransportType.Amqp}


def trusting(authorities: str) -> ssl.SSLContext | None:
    """What the official clients take as ``ssl_context``: the public authorities and these. None: as usual."""
    if not authorities:
        return None
    context = ssl.create_default_context(cafile=certifi.where())
    context.load_verify_locations(cadata=authorities)
    return context


@contextmanager
def bundle_of(authorities: str) -> Iterator[str | None]:
    """What the official clients take as ``connection_verify``: a file with the same, while it is needed. None: as usual."""
    if not authorities:
        yield None
        return
    descriptor, name = tempfile.mkstemp(prefix="pairbus-authorities-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(Path(certifi.where()).read_text(encoding="utf-8"))
            file.write("\n" + authorities)
        yield name
    finally:
        with suppress(OSError):
            Path(name).unlink()


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            text = file.read(AUTHORITY_BYTES_MAX).decode("utf-8")
        # Parsed here, where a person sees the answer, and not first on an executor.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except OSError as error:
        why = (
            error.strerror
            if error.strerror and not isinstance(error, ssl.SSLError)
            else "no certificate in it"
        )
        raise UsageError(f"the authority {name} cannot be used: {why}; give a file in PEM form") from None
    except ValueError:
        raise UsageError(
            f"the authority {name} cannot be used: no certificate in it; give a file in PEM form"
        ) from None
    return text
