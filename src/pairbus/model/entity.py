"""Settings of queues, topics and subscriptions: defaults, ranges, and their JSON form in the journal."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Final

from pairbus.errors import InvalidEntity
from pairbus.model.access import AccessRule

QUEUE: Final = 0
TOPIC: Final = 1
SUBSCRIPTION: Final = 2
KIND_NAMES: Final = ("queue", "topic", "subscription")

FOREVER_MS: Final = 922_337_203_685_477
"""``P10675199DT2H48M5.4775807S``, the longest duration the management API can write: no limit."""
LOCK_DURATION_MIN_MS: Final = 5_000
LOCK_DURATION_MAX_MS: Final = 300_000
DUPLICATE_WINDOW_MIN_MS: Final = 20_000
DUPLICATE_WINDOW_MAX_MS: Final = 7 * 86_400_000
AUTO_DELETE_MIN_MS: Final = 300_000
DEFAULT_TTL_MIN_MS: Final = 1_000
MAX_DELIVERY_COUNT_MAX: Final = 2_147_483_647
MAX_SIZE_MB_MAX: Final = 81_920
MAX_MESSAGE_KB_MAX: Final = 102_400
USER_METADATA_MAX: Final = 1_024
ACCESS_RULES_MAX: Final = 12

ACTIVE_STATUS: Final = "Active"
DISABLED: Final = "Disabled"
SEND_DISABLED: Final = "SendDisabled"
RECEIVE_DISABLED: Final = "ReceiveDisabled"
STATUSES: Final = (ACTIVE_STATUS, DISABLED, SEND_DISABLED, RECEIVE_DISABLED)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set on an entity. Which fields matter depends on its kind."""

    lock_duration_ms: int = 60_000
    max_size_mb: int = 1_024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int = FOREVER_MS
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_error: bool = True
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = ACTIVE_STATUS
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    """Kept and told as it was given. Every entity is served as one partition, which keeps a stronger order."""
    enable_express: bool = False
    support_ordering: bool = True
    filter_before_publishing: bool = False
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    user_metadata: str | None = None
    max_message_kb: int = 256
    access_rules: tuple[AccessRule, ...] = ()
    rules: tuple[str, ...] = ()
    """A subscription's rules, each as JSON text (``engine.rules``)."""
    created_at: int = 0
    updated_at: int = 0

    @property
    def can_send(self) -> bool:
        """Whether the status lets messages in."""
        return self.status in (ACTIVE_STATUS, RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        """Whether the status lets messages out."""
        return self.status in (ACTIVE_STATUS, SEND_DISABLED)

    def to_json(self) -> str:
        """One line of JSON with only what differs from the defaults."""
        out: dict[str, object] = {}
        for name, value in _values_of(self).items():
            if value != _DEFAULTS[name]:
                out[name] = (
                    [rule.to_dict() for rule in self.access_rules] if name == "access_rules" else value
                )
        return json.dumps(out, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Settings:
        """The reverse of ``to_json``; unknown keys (a newer version's) are refused."""
        data: dict[str, object] = json.loads(text)
        unknown = [name for name in data if name not in _DEFAULTS]
        if unknown:
            raise InvalidEntity(f"Entity settings hold unknown keys {unknown}: written by a newer version?")
        rules = data.pop("access_rules", [])
        names = data.pop("rules", [])
        assert isinstance(rules, list), rules
        assert isinstance(names, list), names
        settings = replace(Settings(), **data)  # type: ignore[arg-type]
        return replace(
            settings, access_rules=tuple(AccessRule.from_dict(rule) for rule in rules), rules=tuple(names)
        )


def _values_of(settings: Settings) -> dict[str, object]:
    return {
        "lock_duration_ms": settings.lock_duration_ms,
        "max_size_mb": settings.max_size_mb,
        "requires_duplicate_detection": settings.requires_duplicate_detection,
        "requires_session": settings.requires_session,
        "default_ttl_ms": settings.default_ttl_ms,
        "dead_letter_on_expiration": settings.dead_letter_on_expiration,
        "dead_letter_on_filter_error": settings.dead_letter_on_filter_error,
        "duplicate_window_ms": settings.duplicate_window_ms,
        "max_delivery_count": settings.max_delivery_count,
        "enable_batched_operations": settings.enable_batched_operations,
        "status": settings.status,
        "auto_delete_on_idle_ms": settings.auto_delete_on_idle_ms,
        "enable_partitioning": settings.enable_partitioning,
        "enable_express": settings.enable_express,
        "support_ordering": settings.support_ordering,
        "filter_before_publishing": settings.filter_before_publishing,
        "forward_to": settings.forward_to,
        "forward_dead_letters_to": settings.forward_dead_letters_to,
        "user_metadata": settings.user_metadata,
        "max_message_kb": settings.max_message_kb,
        "access_rules": settings.access_rules,
        "rules": settings.rules,
        "created_at": settings.created_at,
        "updated_at": settings.updated_at,
    }


_DEFAULTS: Final = _values_of(Settings())
assert len(_DEFAULTS) == len(fields(Settings)), "every field of Settings is written to the journal"


def check_settings(settings: Settings) -> None:
    """Refuse settings outside their range, naming the field, the value and the range."""
    _range("LockDuration", settings.lock_duration_ms, LOCK_DURATION_MIN_MS, LOCK_DURATION_MAX_MS, "ms")
    _range("MaxDeliveryCount", settings.max_delivery_count, 1, MAX_DELIVERY_COUNT_MAX, "")
    _range("DefaultMessageTimeToLive", settings.default_ttl_ms, DEFAULT_TTL_MIN_MS, FOREVER_MS, "ms")
    _range("AutoDeleteOnIdle", settings.auto_delete_on_idle_ms, AUTO_DELETE_MIN_MS, FOREVER_MS, "ms")
    _range("MaxSizeInMegabytes", settings.max_size_mb, 1, MAX_SIZE_MB_MAX, "")
    _range("MaxMessageSizeInKilobytes", settings.max_message_kb, 1, MAX_MESSAGE_KB_MAX, "")
    _range(
        "DuplicateDetectionHistoryTimeWindow",
        settings.duplicate_window_ms,
        DUPLICATE_WINDOW_MIN_MS,
        DUPLICATE_WINDOW_MAX_MS,
        "ms",
    )
    if settings.status not in STATUSES:
        raise InvalidEntity(f"Status is '{settings.status}': it must be one of {', '.join(STATUSES)}.")
    if settings.user_metadata is not None and len(settings.user_metadata) > USER_METADATA_MAX:
        raise InvalidEntity(
            f"UserMetadata has {len(settings.user_metadata)} characters: at most {USER_METADATA_MAX}."
        )
    if len(settings.access_rules) > ACCESS_RULES_MAX:
        raise InvalidEntity(
            f"{len(settings.access_rules)} authorization rules: at most {ACCESS_RULES_MAX} are allowed."
        )


def check_update(old: Settings, new: Settings) -> None:
    """Refuse a change of what cannot change after creation."""
    check_settings(new)
    for name, before, after in (
        ("RequiresSession", old.requires_session, new.requires_session),
        ("RequiresDuplicateDetection", old.requires_duplicate_detection, new.requires_duplicate_detection),
        ("EnablePartitioning", old.enable_partitioning, new.enable_partitioning),
    ):
        if before != after:
            raise InvalidEntity(f"{name} is {str(before).lower()} and cannot be changed after creation.")


def _range(name: str, value: int, low: int, high: int, unit: str) -> None:
    if not low <= value <= high:
        raise InvalidEntity(f"{name} is {value}{unit}: it must be between {low}{unit} and {high}{unit}.")
