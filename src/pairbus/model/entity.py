"""Settings of queues, topics and subscriptions: defaults, ranges, names, and their JSON form in the log.

``SETTINGS`` is the one list of what can be set. The management API, configuration files, the test kit and the command line
read it: a new setting is a field of ``Settings`` and a row of the table.
"""

from __future__ import annotations

import json
import re
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
    """Kept and reported as it was given. Every entity is served as one partition, which keeps a stronger order."""
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
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
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


_DEFAULTS: Final[dict[str, object]] = {one.name: one.default for one in fields(Settings)}

DURATION: Final = "duration"
FLAG: Final = "flag"
NUMBER: Final = "number"
TEXT: Final = "text"
PATH: Final = "path"
"""The path of another entity."""
_ALL: Final = (QUEUE, TOPIC, SUBSCRIPTION)
_RECEIVED: Final = (QUEUE, SUBSCRIPTION)
_SENT: Final = (QUEUE, TOPIC)


@dataclass(frozen=True)
class Setting:
    """One setting that a person can choose, under all its names."""

    field: str
    """In ``Settings``, which has its default."""
    element: str
    """In the management API and in configuration files."""
    kinds: tuple[int, ...]
    """The kinds of entity that have it."""
    holds: str
    low: int = 0
    high: int = 0
    """The range of a number or, in milliseconds, of a duration."""
    is_fixed: bool = False
    """It cannot be changed after creation."""

    @property
    def sdk_name(self) -> str:
        """In the official Python client: ``LockDuration`` is ``lock_duration`` there."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.element).lower()


SETTINGS: Final = (
    Setting("lock_duration_ms", "LockDuration", _RECEIVED, DURATION, 5_000, 300_000),
    Setting("max_size_mb", "MaxSizeInMegabytes", _SENT, NUMBER, 1, MAX_SIZE_MB_MAX),
    Setting("requires_duplicate_detection", "RequiresDuplicateDetection", _SENT, FLAG, is_fixed=True),
    Setting("requires_session", "RequiresSession", _RECEIVED, FLAG, is_fixed=True),
    Setting("default_ttl_ms", "DefaultMessageTimeToLive", _ALL, DURATION, 1_000, FOREVER_MS),
    Setting("dead_letter_on_expiration", "DeadLetteringOnMessageExpiration", _RECEIVED, FLAG),
    Setting(
        "dead_letter_on_filter_error", "DeadLetteringOnFilterEvaluationExceptions", (SUBSCRIPTION,), FLAG
    ),
    Setting(
        "duplicate_window_ms", "DuplicateDetectionHistoryTimeWindow", _SENT, DURATION, 20_000, 7 * 86_400_000
    ),
    Setting("max_delivery_count", "MaxDeliveryCount", _RECEIVED, NUMBER, 1, 2_147_483_647),
    Setting("enable_batched_operations", "EnableBatchedOperations", _ALL, FLAG),
    Setting("filter_before_publishing", "FilteringMessagesBeforePublishing", (TOPIC,), FLAG),
    Setting("status", "Status", _ALL, TEXT),
    Setting("support_ordering", "SupportOrdering", _SENT, FLAG),
    Setting("auto_delete_on_idle_ms", "AutoDeleteOnIdle", _ALL, DURATION, 300_000, FOREVER_MS),
    Setting("enable_partitioning", "EnablePartitioning", _SENT, FLAG, is_fixed=True),
    Setting("enable_express", "EnableExpress", _SENT, FLAG),
    Setting("forward_to", "ForwardTo", _RECEIVED, PATH),
    Setting("user_metadata", "UserMetadata", _ALL, TEXT),
    Setting("forward_dead_letters_to", "ForwardDeadLetteredMessagesTo", _RECEIVED, PATH),
    Setting("max_message_kb", "MaxMessageSizeInKilobytes", _SENT, NUMBER, 1, MAX_MESSAGE_KB_MAX),
)


def settings_of(kind: int) -> list[Setting]:
    """What can be set on a kind of entity."""
    return [setting for setting in SETTINGS if kind in setting.kinds]


def check_settings(settings: Settings) -> None:
    """Refuse settings outside their range, naming the setting, the value and the range."""
    for one in SETTINGS:
        if one.high:
            value, unit = getattr(settings, one.field), "ms" if one.holds == DURATION else ""
            if not one.low <= value <= one.high:
                raise InvalidEntity(
                    f"{one.element} is {value}{unit}: it must be between {one.low}{unit} and {one.high}{unit}."
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
    for one in SETTINGS:
        if one.is_fixed and getattr(old, one.field) != getattr(new, one.field):
            before = str(getattr(old, one.field)).lower()
            raise InvalidEntity(f"{one.element} is {before} and cannot be changed after creation.")
