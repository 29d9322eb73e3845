"""Backlog queues as pairing wants them, and how an existing one differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.naming import backlog_index, backlog_queue

if TYPE_CHECKING:
    from azure.servicebus.management import QueueProperties

UNLIMITED: Final = "P10675199DT2H48M5.4775807S"
SETTINGS: Final[dict[str, Any]] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": UNLIMITED,
    "auto_delete_on_idle": UNLIMITED,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""What a new backlog queue is created with, beside the mark of its primary; everything else is the namespace's default."""

OWNER_MARK: Final = "pairbus backlog of "
"""What the user metadata of a backlog queue starts with; the address of its primary follows."""

# A timedelta cannot hold the unlimited duration's last digits; whatever is at least this long is unlimited.
_UNLIMITED_FROM: Final = timedelta(days=10_675_198)


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """An existing queue with the name of a backlog queue."""

    index: int
    name: str
    differences: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()
    """Differences because of which what is parked there stays there."""
    obstacle: str = ""
    """Why no message is parked there: sends fail, or the queue could lose what it accepts. Empty when it may be used."""
    owner: str = ""
    """Address of the primary that the queue was created for; empty when the queue does not say."""


@dataclass(frozen=True, slots=True)
class Census:
    """What pairing found and what it must do."""

    existing: dict[int, BacklogQueue] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    extra: tuple[BacklogQueue, ...] = ()


def take_census(found: Sequence[BacklogQueue], count: int) -> Census:
    """Sort what was found: used, missing, and beyond the count (P29)."""
    existing = {queue.index: queue for queue in found if queue.index < count}
    extra = tuple(sorted((q for q in found if q.index >= count), key=lambda queue: queue.index))
    return Census(existing, tuple(index for index in range(count) if index not in existing), extra)


def name_of(primary: str, index: int) -> str:
    return backlog_queue(primary, index)


def read(primary: str, properties: QueueProperties) -> BacklogQueue | None:
    """A queue as the administration client shows it; None when it is not a backlog queue of ``primary``."""
    index = backlog_index(primary, properties.name)
    if index is None:
        return None
    differences = []
    for name, wanted in SETTINGS.items():
        value = getattr(properties, name)
        if value is not None and not _same(wanted, value):
            differences.append(f"{name} is {value}, expected {wanted}")
    return BacklogQueue(
        index,
        properties.name,
        tuple(differences),
        tuple(_dangers(properties)),
        _obstacle(properties),
        owner_of(properties.user_metadata),
    )


def mark_of(identity: str) -> str:
    """The user metadata of a new backlog queue: it names the primary that the queue is for."""
    return f"{OWNER_MARK}{identity}"


def owner_of(user_metadata: str | None) -> str:
    """The primary named by a queue's user metadata; empty when it names none."""
    return (
        user_metadata.removeprefix(OWNER_MARK)
        if user_metadata and user_metadata.startswith(OWNER_MARK)
        else ""
    )


def _obstacle(properties: QueueProperties) -> str:
    if properties.requires_duplicate_detection:
        return (
            "it detects duplicates: of two messages with one id it would keep the first and accept the second without "
            "storing it, so it is drained but not used; delete it and pair again to get a plain queue"
        )
    if properties.requires_session:
        return (
            "it requires sessions: parked messages have none, so sends there fail and it is not used; delete it and pair "
            "again to get a plain queue"
        )
    if properties.forward_to:
        return (
            f"it forwards to {properties.forward_to}: parked messages would leak there, so it is not used; remove the "
            "forwarding and pair again"
        )
    status = _status(properties)
    if status not in ("Active", "ReceiveDisabled"):
        return f"its status is {status}: sends there fail, so it is not used; set it to Active and pair again"
    return ""


def _dangers(properties: QueueProperties) -> list[str]:
    if _status(properties) == "ReceiveDisabled":
        return ["its status is ReceiveDisabled: a syphon cannot drain it"]
    return []


def _status(properties: QueueProperties) -> str:
    return str(getattr(properties.status, "value", properties.status) or "Active")


def _same(wanted: object, value: object) -> bool:
    if wanted == UNLIMITED:
        return value == UNLIMITED or (isinstance(value, timedelta) and value >= _UNLIMITED_FROM)
    return bool(wanted == value)
