"""The ready file, which a server writes once it serves, and the connection string in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pairbus.model.access import ROOT_RULE
from pairbus.server.config.addresses import format_address, is_loopback, is_wildcard
from pairbus.server.files import write_whole

READY_FILE: Final = "ready.json"
"""The ready file that every broker keeps in its data directory."""
LOOPBACK_ADDRESS: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyInfo:
    """Where a namespace is served. The connection string holds the root key, so it is never shown by ``repr``."""

    namespace: str
    pid: int
    amqp: str
    http: str
    """``host:port``; the one address when there is no second one."""
    connection_string: str = field(repr=False)
    ca_file: str | None
    node: str | None = None
    """The node's name, if the namespace is in a database."""

    def to_json(self) -> str:
        values = asdict(self)
        if self.node is None:
            del values["node"]
        return json.dumps(values)


def is_local(host: str) -> bool:
    """Whether a host, as clients name it, is this machine."""
    return is_loopback(host) or host == "localhost"


def connection_string(host: str, port: int, namespace: str, key: str) -> str:
    """The connection string for the official clients. On this machine they use plain text on the one port."""
    reachable = LOOPBACK_ADDRESS if is_wildcard(host) else host
    emulator = ";UseDevelopmentEmulator=true" if is_local(reachable) else ""
    return (
        f"Endpoint=sb://{format_address(reachable, port)}/;SharedAccessKeyName={ROOT_RULE};"
        f"SharedAccessKey={key}{emulator};Namespace={namespace}"
    )


def write_ready_file(path: Path, info: ReadyInfo) -> None:
    write_whole(path, info.to_json().encode() + b"\n", is_durable=False)


def read_ready_file(path: Path) -> ReadyInfo | None:
    """The contents of a ready file; None if there is none or it cannot be read."""
    try:
        return ReadyInfo(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
