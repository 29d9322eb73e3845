"""What a server drives: a broker, the store behind it, and what belongs to both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.gateway.telemetry.meter import Meter
    from pairbus.server.logs.audit import AuditLog
    from pairbus.server.logs.message_audit import MessageAudit
    from pairbus.server.logs.usage import UsageWriter
    from pairbus.server.ports import BrokerPort
    from pairbus.storage.ports import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A broker ready to be driven, and the store behind it."""

    broker: BrokerPort
    store: Store
    root_key: str = field(repr=False)
    records_replayed: int = 0
    audit: AuditLog | None = None
    message_audit: MessageAudit | None = None
    """With ``--audit``; ``store`` then writes it."""
    meter: Meter | None = None
    usage_writer: UsageWriter | None = None
    """None: what is counted is not kept."""

    def close(self) -> None:
        """Release files and the lock on the data."""
        if self.audit is not None:
            self.audit.close()
        self.store.close()
