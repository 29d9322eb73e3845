"""Park a message for the backlog and restore it, on its encoded bytes (P8, P9, P10).

Rule 1: what must not act in the backlog (session, life, schedule, partition) hides in application properties.
Rule 2: everything that has no alias keeps its bytes; ``restore(park(m))`` is ``m`` (P8, P9).
Rule 3: nothing here knows the time; the passport and ``now_ms`` come from outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pairbus.errors import InvalidParkedPropertyError, RemoteProtocolError
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.sdk.messages import sections
from pairbus.sdk.messages.sections import Items, Section

ALIAS_SESSION: Final = "x-ms-sessionid"
ALIAS_LIFE: Final = "x-ms-timetolive"
ALIAS_SCHEDULE: Final = "x-ms-scheduledenqueuetimeutc"
ALIAS_PATH: Final = "x-ms-path"
ALIAS_PARTITION: Final = "x-pairbus-partitionkey"
ALIAS_PASSPORT: Final = "x-pairbus-passport"
ALIAS_REDRIVEN: Final = "x-pairbus-redriven"
"""True: it was put back from the dead-letter queue. A certificate does not count that as a send."""
USER_PREFIX: Final = "x-pairbus-user-"
ALIASES: Final = frozenset(
    {ALIAS_SESSION, ALIAS_LIFE, ALIAS_SCHEDULE, ALIAS_PATH, ALIAS_PARTITION, ALIAS_PASSPORT, ALIAS_REDRIVEN}
)

ANNOTATION_SCHEDULE: Final = "x-opt-scheduled-enqueue-time"
ANNOTATION_PARTITION: Final = "x-opt-partition-key"
TICKS_PER_MS: Final = 10_000
UNLIMITED_TICKS: Final = 2**63 - 1
EPOCH_TICKS: Final = 621_355_968_000_000_000
TTL_HEADER_MAX: Final = 2**32 - 1
ABSOLUTE_EXPIRY_MAX: Final = 253_402_243_199_000
"""Where the official SDK caps an absolute expiry time."""
PATH_CHARACTERS_MAX: Final = 290
ID_CHARACTERS_MAX: Final = 128
"""Characters that the service allows in a session id or partition key."""
REASON_CHARACTERS_MAX: Final = 40

_TTL, _DELIVERY_COUNT, _ABSOLUTE, _CREATION, _GROUP = 2, 4, 8, 9, 10

# Any client that may send to the secondary can write anything into a passport. One message is dead-lettered because of it.
# An error of another kind would come again with the message and block its queue for ever (P39).
_UNREADABLE: Final = (
    RemoteProtocolError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)

NOT_FROM_PAIRED_NAMESPACE: Final = "NotFromPairedNamespace"
INVALID_PARKED_PROPERTY: Final = "InvalidParkedProperty"
OTHER_PRIMARY: Final = "OtherPrimary"
"""Dead-letter reason of a message that was parked for another broker with the same namespace name."""


@dataclass(frozen=True, slots=True)
class Follows:
    """What a message must not overtake: messages of its session in another backlog queue.

    Args:
        queue: The backlog queue that the session was parked in before.
        factory: The client that parked there; empty: any client.
        detour: That client's messages with a number up to this one go first. Without a client, all that are there already do.
    Higher numbers of the same client never go first, so that no two messages wait for each other.
    """

    queue: str
    factory: str = ""
    detour: int = 0


@dataclass(frozen=True, slots=True)
class Passport:
    """Where a parked message comes from, and how its original was written where that is not the usual way."""

    factory: str
    """The client that parked it."""
    first_send_ms: int
    detour: int
    """A number that grows with each message that this client parks."""
    reason: str
    hints: dict[str, object] = field(default_factory=dict)
    primary: str = ""
    """Address of the primary that the message is for, from ``naming.identity_of``; empty in older passports."""
    follows: tuple[Follows, ...] = ()
    """Only when the session was parked in other queues before (``order="session"``): one entry for each of them."""
    order: str = "relaxed"
    """The order that its client keeps: a drain keeps it too, whatever its own options are."""

    def text(self) -> str:
        value: dict[str, object] = {
            "f": self.factory,
            "t": self.first_send_ms,
            "n": self.detour,
            "r": self.reason[:REASON_CHARACTERS_MAX],
        }
        if self.primary:
            value["p"] = self.primary
        if self.follows:
            value["a"] = [[one.queue, one.factory, one.detour] for one in self.follows]
        if self.order != "relaxed":
            value["o"] = self.order
        if self.hints:
            value["h"] = self.hints
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def parse(text: str) -> Passport:
        """Read one. Raises ValueError."""
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value.get("h", {}), dict):
            raise ValueError("not a passport")  # noqa: TRY004 - one kind of error for whatever is wrong in it
        return Passport(
            str(value.get("f", "")),
            int(value.get("t", 0)),
            int(value.get("n", 0)),
            str(value.get("r", "")),
            value.get("h", {}),
            str(value.get("p", "")),
            tuple(_follows(one) for one in value.get("a", ())),
            str(value.get("o", "relaxed")),
        )


def _follows(value: object) -> Follows:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("not a passport")
    return Follows(str(value[0]), str(value[1]), int(value[2]))


def order_key(order: str, session_id: str | None, partition_key: str | None) -> str | None:
    """What a message is kept in order by: its session, or its partition key if ``order`` is ``"partition"``.

    None: it is not kept in order. The service wants both equal when both are set.
    """
    if order == "relaxed":
        return None
    if session_id is not None or order != "partition":
        return session_id
    return partition_key


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as the application sent it, and where it goes."""

    path: str
    payload: bytes
    message_id: bytes
    """Encoded, with its type; empty when there is none."""
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    passport: Passport | None

    @property
    def message_id_text(self) -> str:
        """For people and the ledger."""
        return message_id_text(self.message_id)


# --- park -----------------------------------------------------------------------------------------


def park(payload: bytes, path: str, passport: Passport, *, is_checked: bool = False) -> bytes:
    """The form of a message that sits in a backlog queue.

    Args:
        payload: The encoded original.
        path: The entity it is for.
        passport: Where it comes from. Hints are added to it here.
        is_checked: Refuse what the service would refuse at the entity itself: the parked form hides it.

    Raises:
        InvalidMessageError: ``is_checked``, and the session id or partition key is not allowed.
    """
    parts = sections.split(payload)
    hints: dict[str, object] = {}
    aliases: Items = []
    header = sections.list_items(sections.find(parts, sections.HEADER))
    properties = sections.list_items(sections.find(parts, sections.PROPERTIES))
    session = _take(properties, _GROUP)
    if session is not None:
        aliases.append((sections.encode_text(ALIAS_SESSION), session))
    life_ms = _take_life(header, properties, hints)
    if life_ms is not None:
        aliases.append((sections.encode_text(ALIAS_LIFE), sections.encode_long(life_ms * TICKS_PER_MS)))
    annotations, hidden = _take_annotations(
        sections.map_items(sections.find(parts, sections.MESSAGE_ANNOTATIONS)), hints
    )
    if ANNOTATION_SCHEDULE in hidden:
        aliases.append((sections.encode_text(ALIAS_SCHEDULE), hidden[ANNOTATION_SCHEDULE]))
    aliases.append((sections.encode_text(ALIAS_PATH), sections.encode_text(path)))
    partition = hidden.get(ANNOTATION_PARTITION)
    if is_checked:
        check_ids(sections.text_of(session or sections.NULL), sections.text_of(partition or sections.NULL))
    if partition is not None:
        if session is not None and sections.text_of(session) == sections.text_of(partition):
            hints["pk"] = 1
        else:
            aliases.append((sections.encode_text(ALIAS_PARTITION), partition))
    written = replace(passport, hints=hints).text()
    aliases.append((sections.encode_text(ALIAS_PASSPORT), sections.encode_text(written)))
    given = sections.map_items(sections.find(parts, sections.APPLICATION_PROPERTIES))
    users = [(_renamed(key), value) for key, value in given]
    return _joined(parts, header, properties, annotations, users + aliases)


def check_ids(session_id: str | None, key: str | None) -> None:
    """Raise InvalidMessageError when the service would refuse this session id or partition key."""
    problem = ""
    if session_id and key not in (None, session_id):
        problem = f"the partition key {key!r} differs from the session id {session_id!r}: when both are set they must be equal"
    for name, value in (("partition key", key), ("session id", session_id)):
        if value is not None and len(value) > ID_CHARACTERS_MAX:
            problem = f"the {name} has {len(value)} characters: at most {ID_CHARACTERS_MAX} are allowed"
    if problem:
        # The error is one of the official SDK, too, which a broker that reads parked messages for its page never needs.
        from pairbus.pairing.errors import InvalidMessageError  # noqa: PLC0415

        raise InvalidMessageError(problem)


def _take(items: list[bytes], index: int) -> bytes | None:
    if index >= len(items) or items[index] == sections.NULL:
        return None
    value, items[index] = items[index], sections.NULL
    return value


def _take_life(header: list[bytes], properties: list[bytes], hints: dict[str, object]) -> int | None:
    """Take out what limits the message's life; note how it was written when not in the SDK's way."""
    ttl_raw = _take(header, _TTL)
    ttl = None if ttl_raw is None else sections.uint_of(ttl_raw)
    creation = _time(properties, _CREATION)
    absolute_raw = _take(properties, _ABSOLUTE)
    absolute = None if absolute_raw is None else sections.timestamp_of(absolute_raw)
    if absolute is None:
        if ttl is not None:
            hints["ttl"] = "header"
        return ttl
    times = 0 if creation is None else absolute - creation
    if creation is None or (ttl is None and not 0 < times < UNLIMITED_TICKS // TICKS_PER_MS):
        hints["abs"] = absolute
        return ttl
    if ttl is None:
        hints["ttl"] = "times"
        return times
    if ttl == TTL_HEADER_MAX and times > ttl:
        return times
    if absolute != min(ABSOLUTE_EXPIRY_MAX, creation + ttl):
        hints["abs"] = absolute
    return ttl


def _time(properties: list[bytes], index: int) -> int | None:
    return sections.timestamp_of(properties[index]) if index < len(properties) else None


def _take_annotations(items: Items, hints: dict[str, object]) -> tuple[Items, dict[str, bytes]]:
    kept: Items = []
    hidden: dict[str, bytes] = {}
    positions: list[int] = []
    for index, (key, value) in enumerate(items):
        name = sections.text_of(key)
        is_schedule = name == ANNOTATION_SCHEDULE and sections.timestamp_of(value) is not None
        is_partition = name == ANNOTATION_PARTITION and value[0] in (0xA1, 0xB1)
        if name is not None and (is_schedule or is_partition) and name not in hidden:
            hidden[name] = value
            positions.append(index)
        else:
            kept.append((key, value))
    usual = [name for name in (ANNOTATION_SCHEDULE, ANNOTATION_PARTITION) if name in hidden]
    if list(hidden) != usual or positions != list(range(len(positions))):
        hints["at"] = dict(zip(hidden, positions, strict=True))
    return kept, hidden


def _renamed(key: bytes) -> bytes:
    name = sections.text_of(key)
    if name is None:
        return key
    lowered = name.lower()
    return (
        sections.encode_text(USER_PREFIX + name)
        if lowered in ALIASES or lowered.startswith(USER_PREFIX)
        else key
    )


def _joined(
    parts: list[Section], header: list[bytes], properties: list[bytes], annotations: Items, users: Items
) -> bytes:
    """A message with these sections changed; one without content is left out."""
    has_header = any(item != sections.NULL for item in header)
    for code, value in (
        (sections.HEADER, sections.encode_list(header) if has_header else None),
        (sections.PROPERTIES, sections.encode_list(properties) if properties else None),
        (sections.MESSAGE_ANNOTATIONS, sections.encode_map(annotations) if annotations else None),
        (sections.APPLICATION_PROPERTIES, sections.encode_map(users) if users else None),
    ):
        parts = sections.replace(parts, code, value)
    return sections.join(parts)


# --- restore --------------------------------------------------------------------------------------


def restore(
    payload: bytes, now_ms: int, *, elapsed_ms: int = 0, primary: PrimaryIdentity | None = None
) -> Restored:
    """The original of a backlog message.

    Args:
        payload: The backlog message as it was delivered.
        now_ms: The time of day. A limited life begins again here, as with any send of an SDK.
        elapsed_ms: How much of its life the message has spent in the backlog (``time_to_live="deduct"``).
        primary: The primary that the message will be sent to. None: do not compare.

    Raises:
        InvalidParkedPropertyError: It is no backlog message, a parked property makes no sense, or it was parked for
            another primary.
    """
    try:
        restored = _restore(payload, now_ms, elapsed_ms)
    except _UNREADABLE as error:
        raise InvalidParkedPropertyError(
            INVALID_PARKED_PROPERTY, f"the message cannot be read: {error}"
        ) from error
    if primary is not None:
        check_primary(restored.passport, primary)
    return restored


def check_primary(passport: Passport | None, primary: PrimaryIdentity) -> None:
    """Raise InvalidParkedPropertyError, reason ``OtherPrimary``, when a message is for another broker than ``primary``.

    Messages of the retired SDK have no passport and belong to the primary whose drain receives them.
    """
    if passport is not None and not primary.accepts(passport.primary):
        raise InvalidParkedPropertyError(
            OTHER_PRIMARY,
            f"the message was parked for the primary at {passport.primary}, and this is the primary at "
            f"{primary.address}, which has the same name: if it is the same broker at another address, name "
            f"{passport.primary} as an alias of the primary and redrive the message",
        )


def _restore(payload: bytes, now_ms: int, elapsed_ms: int) -> Restored:
    parts = sections.split(payload)
    users, aliases = _split_properties(
        sections.map_items(sections.find(parts, sections.APPLICATION_PROPERTIES))
    )
    path = _path(aliases.get(ALIAS_PATH))
    passport = _passport(aliases.get(ALIAS_PASSPORT))
    hints = passport.hints if passport is not None else {}
    if passport is not None:
        users = [(_original_name(key), value) for key, value in users]
    session = _string(aliases, ALIAS_SESSION)
    life_ms = _life(aliases.get(ALIAS_LIFE))
    scheduled_ms = _schedule(aliases.get(ALIAS_SCHEDULE))
    partition = session if hints.get("pk") == 1 else _string(aliases, ALIAS_PARTITION)
    if life_ms is not None and elapsed_ms:
        life_ms = max(0, life_ms - elapsed_ms)
    properties = sections.list_items(sections.find(parts, sections.PROPERTIES))
    if session is not None:
        _put(properties, _GROUP, aliases[ALIAS_SESSION])
    header = _restored_header(sections.list_items(sections.find(parts, sections.HEADER)), life_ms, hints)
    _put_times(properties, life_ms, now_ms, hints)
    annotations = [
        (key, value)
        for key, value in sections.map_items(sections.find(parts, sections.MESSAGE_ANNOTATIONS))
        if sections.text_of(key) not in sections.BROKER_ANNOTATIONS
    ]
    annotations = _put_annotations(annotations, scheduled_ms, partition, hints)
    original = _joined(without_broker_parts(parts), header, properties, annotations, users)
    message_id = properties[0] if properties and properties[0] != sections.NULL else b""
    return Restored(path, original, message_id, session, partition, life_ms, scheduled_ms, passport)


def _split_properties(items: Items) -> tuple[Items, dict[str, bytes]]:
    users: Items = []
    aliases: dict[str, bytes] = {}
    for key, value in items:
        name = sections.text_of(key)
        if name is not None and name in ALIASES:
            aliases[name] = value
        else:
            users.append((key, value))
    return users, aliases


def _path(raw: bytes | None) -> str:
    if raw is None:
        raise InvalidParkedPropertyError(
            NOT_FROM_PAIRED_NAMESPACE, f"{ALIAS_PATH}: expected a string, found nothing"
        )
    path = sections.text_of(raw) if raw[0] in (0xA1, 0xB1) else None
    if path is None or not path.strip("/"):
        raise InvalidParkedPropertyError(
            NOT_FROM_PAIRED_NAMESPACE,
            f"{ALIAS_PATH}: expected a string that names an entity, found {sections.type_name(raw)}",
        )
    return path


def _passport(raw: bytes | None) -> Passport | None:
    if raw is None:
        return None  # written by the retired SDK
    text = sections.text_of(raw) if raw[0] in (0xA1, 0xB1) else None
    if text is None:
        raise _wrong(ALIAS_PASSPORT, "a string", raw)
    try:
        return Passport.parse(text)
    except _UNREADABLE:
        raise _wrong(ALIAS_PASSPORT, "a passport", raw) from None


def _string(aliases: dict[str, bytes], name: str) -> str | None:
    raw = aliases.get(name)
    if raw is None:
        return None
    if raw[0] not in (0xA1, 0xB1):
        raise _wrong(name, "a string", raw)
    return sections.text_of(raw)


def _life(raw: bytes | None) -> int | None:
    """Ticks as a long, or as the retired SDK wrote them: described ``com.microsoft:timespan``."""
    if raw is None:
        return None
    parts = sections.described(raw)
    plain = raw
    if parts is not None:
        if parts[0] != "com.microsoft:timespan":
            raise _wrong(ALIAS_LIFE, "a long or com.microsoft:timespan", raw)
        plain = parts[1]
    ticks = sections.long_of(plain)
    if ticks is None:
        raise _wrong(ALIAS_LIFE, "a long or com.microsoft:timespan", raw)
    if ticks < 0:
        raise InvalidParkedPropertyError(
            INVALID_PARKED_PROPERTY, f"{ALIAS_LIFE}: expected 0 or more ticks, found {ticks}"
        )
    return None if ticks == UNLIMITED_TICKS else ticks // TICKS_PER_MS


def _schedule(raw: bytes | None) -> int | None:
    """A timestamp, or as the retired SDK may have written it: described ``com.microsoft:datetime-offset``."""
    if raw is None:
        return None
    ms = sections.timestamp_of(raw)
    if ms is not None:
        return ms
    parts = sections.described(raw)
    if parts is not None and parts[0] == "com.microsoft:datetime-offset":
        ticks = sections.long_of(parts[1])
        if ticks is not None:
            return (ticks - EPOCH_TICKS) // TICKS_PER_MS
    raise _wrong(ALIAS_SCHEDULE, "a timestamp or com.microsoft:datetime-offset", raw)


def _wrong(name: str, expected: str, raw: bytes) -> InvalidParkedPropertyError:
    return InvalidParkedPropertyError(
        INVALID_PARKED_PROPERTY, f"{name}: expected {expected}, found {sections.type_name(raw)}"
    )


def _original_name(key: bytes) -> bytes:
    name = sections.text_of(key)
    if name is None or not name.startswith(USER_PREFIX):
        return key
    return sections.encode_text(name[len(USER_PREFIX) :])


def _put(items: list[bytes], index: int, value: bytes) -> None:
    items.extend([sections.NULL] * (index + 1 - len(items)))
    items[index] = value


def _restored_header(header: list[bytes], life_ms: int | None, hints: dict[str, object]) -> list[bytes]:
    """Durable, priority and first-acquirer stay; the delivery-count is the broker's (AMQP 1.0, 3.2.1)."""
    kept = [
        *header[:_DELIVERY_COUNT],
        *[sections.NULL] * (sections.HEADER_COUNT - len(header[:_DELIVERY_COUNT])),
    ]
    kept[_TTL] = sections.NULL
    if life_ms is not None and hints.get("ttl") != "times":
        kept[_TTL] = sections.encode_uint(min(life_ms, TTL_HEADER_MAX))
    return kept


def _put_times(properties: list[bytes], life_ms: int | None, now_ms: int, hints: dict[str, object]) -> None:
    absolute = hints.get("abs")
    if isinstance(absolute, int):
        _put(properties, _ABSOLUTE, sections.encode_timestamp(absolute))
    elif life_ms is not None and hints.get("ttl") == "times":
        # The application set both times: their difference is the life, whenever it begins.
        creation = _time(properties, _CREATION) or 0
        _put(properties, _ABSOLUTE, sections.encode_timestamp(creation + life_ms))
    elif life_ms is not None and hints.get("ttl") != "header":
        # The original's own times would end a frozen life early: it begins again, as it does with every SDK's send.
        _put(properties, _CREATION, sections.encode_timestamp(now_ms))
        _put(properties, _ABSOLUTE, sections.encode_timestamp(min(ABSOLUTE_EXPIRY_MAX, now_ms + life_ms)))


def _put_annotations(
    annotations: Items, scheduled_ms: int | None, partition: str | None, hints: dict[str, object]
) -> Items:
    hidden: dict[str, bytes] = {}
    if scheduled_ms is not None:
        hidden[ANNOTATION_SCHEDULE] = sections.encode_timestamp(scheduled_ms)
    if partition is not None:
        hidden[ANNOTATION_PARTITION] = sections.encode_text(partition)
    at = hints.get("at")
    places = at if isinstance(at, dict) else {}
    usual = {name: index for index, name in enumerate(hidden)}
    result = list(annotations)
    for name in sorted(hidden, key=lambda name: int(places.get(name, usual[name]))):
        pair = (sections.encode_symbol(name), hidden[name])
        result.insert(min(int(places.get(name, usual[name])), len(result)), pair)
    return result


def without_broker_parts(parts: list[Section]) -> list[Section]:
    raw = sections.find(parts, sections.DELIVERY_ANNOTATIONS)
    if raw is None:
        return parts
    kept = [
        item
        for item in sections.map_items(raw)
        if sections.text_of(item[0]) not in sections.BROKER_ANNOTATIONS
    ]
    return sections.replace(parts, sections.DELIVERY_ANNOTATIONS, sections.encode_map(kept) if kept else None)


# --- small helpers for shells ---------------------------------------------------------------------


def dead_letter_reason(payload: bytes) -> str | None:
    raw = _property(payload, "DeadLetterReason")
    return None if raw is None else sections.text_of(raw)


def message_id_text(raw: bytes) -> str:
    """An encoded message id as text that shows types other than string."""
    if not raw:
        return ""
    text = sections.text_of(raw)
    return text if text is not None else f"{sections.type_name(raw)}:{raw[1:].hex()}"


def passport_of(payload: bytes) -> Passport | None:
    """The passport of a parked message, without restoring it."""
    return _passport(_property(payload, ALIAS_PASSPORT))


def _property(payload: bytes, name: str) -> bytes | None:
    items = sections.map_items(sections.find(sections.split(payload), sections.APPLICATION_PROPERTIES))
    return next((value for key, value in items if sections.text_of(key) == name), None)


def passport_primary(properties: Mapping[str | bytes, object] | None) -> str:
    """The primary named by the passport among the application properties of a received message; empty without one."""
    given = properties or {}
    text = given.get(ALIAS_PASSPORT.encode(), given.get(ALIAS_PASSPORT))
    try:
        return Passport.parse(text.decode() if isinstance(text, bytes) else str(text)).primary
    except _UNREADABLE:
        return ""
