"""The certificate of a cluster: one authority, kept in the database, and a server certificate for the names of all nodes.

TLS ends at the owner, also for clients that reached another node. So the owner's certificate holds every name by which a client may have
come, and every node's certificate is of the same authority.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.server.config.certificates import ensure_certificates
from pairbus.server.files import write_whole

if TYPE_CHECKING:
    from pairbus.server.cluster.ports import SettingTable

AUTHORITY: Final = "tls-authority"
_FILES: Final = ("ca.pem", "ca.key")


def keep_authority(settings: SettingTable, directory: Path) -> None:
    """Take the authority of a broker into the database, if it has one: clients that trust it will trust every node."""
    if all((directory / name).is_file() for name in _FILES):
        made = {name: (directory / name).read_text() for name in _FILES}
        settings.put(AUTHORITY, json.dumps(made).encode())


def give_authority(settings: SettingTable, directory: Path) -> None:
    """Put the cluster's authority, if there is one, into a broker's directory."""
    held = settings.get(AUTHORITY)
    if held is None:
        return
    files: dict[str, str] = json.loads(held)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in _FILES:
        path = directory / name
        if not path.exists() or path.read_text() != files[name]:
            write_whole(path, files[name].encode())


def share_authority(settings: SettingTable, directory: Path, names: Sequence[str], now: datetime) -> None:
    """Put the cluster's authority into this node's directory; the first node makes it."""
    if settings.get(AUTHORITY) is None:
        ensure_certificates(directory, names, now)
        made = {name: (directory / name).read_text() for name in _FILES}
        settings.settle(AUTHORITY, json.dumps(made).encode())
    give_authority(settings, directory)
