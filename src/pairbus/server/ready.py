"""What a server says of itself once it serves: the ready file and its connection string."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pairbus.model.access import ROOT_RULE
from pairbus.server.config.addresses import format_address, is_loopback, is_wildcard

FILE_MODE: Final = 0o600
NAME_BYTES: Final = 16
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

    def to_json(self) -> str:
        """The ready file's one object."""
        return json.dumps(
            {
                "namespace": self.namespace,
                "pid": self.pid,
                "amqp": self.amqp,
                "http": self.http,
                "connection_string": self.connection_string,
                "ca_file": self.ca_file,
            }
        )


def connection_string(host: str, port: int, namespace: str, key: str) -> str:
    """The connection string for the official clients. On this machine they use plain text on the one port."""
    reachable = LOOPBACK_ADDRESS if is_wildcard(host) else host
    is_local = is_loopback(reachable) or reachable == "localhost"
    emulator = ";UseDevelopmentEmulator=true" if is_local else ""
    return (
        f"Endpoint=sb://{format_address(reachable, port)}/;SharedAccessKeyName={ROOT_RULE};"
        f"SharedAccessKey={key}{emulator};Namespace={namespace}"
    )


def write_ready_file(path: Path, info: ReadyInfo) -> None:
    """Appear whole or not at all, readable for the owner alone. OSError if that fails; then nothing is left behind.

    The directory may be one that others can write to, such as /tmp. So the file is always a new one: its first name cannot be
    guessed, a link in its place is neither followed nor written through, and a file that was there before keeps neither its owner
    nor its mode.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(NAME_BYTES)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, FILE_MODE)
            file.write(info.to_json() + "\n")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_ready_file(path: Path) -> ReadyInfo | None:
    """What a ready file says; None if there is none or it cannot be read."""
    try:
        return ReadyInfo(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
