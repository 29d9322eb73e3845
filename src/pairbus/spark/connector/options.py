"""Options of ``format("servicebus")``, parsed once into frozen objects. Errors name the option and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal

from pairbus.errors import UsageError
from pairbus.model.message_row import BINARY, INT64, SINK_NAMES, TEXT, TIMESTAMP
from pairbus.model.message_row import types as column_types
from pairbus.spark.connector.access import Access, parse_access
from pairbus.spark.connector.schema import FIELDS, judge_fields_beside_raw

Side = Literal["source", "sink"]
_BOTH: Final[tuple[Side, ...]] = ("source", "sink")
_SOURCE: Final[tuple[Side, ...]] = ("source",)
_SINK: Final[tuple[Side, ...]] = ("sink",)
_BOOLEANS: Final = ("true", "false")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: as a user writes it, what it means, and which values it may have. An option without range or choices is text."""

    name: str
    help: str
    sides: tuple[Side, ...] = _BOTH
    default: str | int = ""
    choices: tuple[str, ...] = ()
    range: tuple[int, int] = (0, 0)


def _column_option(name: str) -> str:
    first, *rest = name.removesuffix("_ms").split("_")
    return first + "".join(word.capitalize() for word in rest) + "Column"


COLUMN_OPTIONS: Final = {_column_option(name): name for name in SINK_NAMES}
"""Options of the sink that say in which column a field is, and the column's usual name."""
OPTIONS: Final = (
    Option("connectionString", "the namespace and its key"),
    Option("namespace", "host of the namespace, when `credentialEnv` gives only the key"),
    Option(
        "credentialEnv",
        "environment variable with the connection string or key, read by the driver and each worker",
    ),
    Option("caFile", "a certificate authority to trust besides the public ones (PEM); the driver reads it"),
    Option("queue", "the queue to read or to send to"),
    Option("topic", "the topic to send to, or the topic of the subscription to read"),
    Option("subscription", "the subscription to read", _SOURCE),
    Option(
        "subQueue",
        "the sub-queue to read instead of the entity",
        _SOURCE,
        choices=("deadletter", "transferdeadletter"),
    ),
    Option(
        "mode",
        "`browse` leaves the messages; `consume`, for streams, takes them after their batch is committed. Default: "
        "`browse` for a batch, `consume` for a stream",
        _SOURCE,
        choices=("browse", "consume"),
    ),
    Option(
        "maxMessagesPerTrigger", "messages in one batch of a stream", _SOURCE, 10_000, range=(1, 1_000_000)
    ),
    Option(
        "maxBytesPerTrigger",
        "bytes in one batch of a stream, plus one message",
        _SOURCE,
        64 << 20,
        range=(1, 2**40),
    ),
    Option(
        "partitions",
        "tasks for one batch. Default: the cores of the driver's machine",
        _SOURCE,
        range=(1, 10_000),
    ),
    Option(
        "startingSequence",
        "where a browsing read begins: `earliest`, `latest` or a number",
        _SOURCE,
        "earliest",
    ),
    Option(
        "failOnDataLoss",
        "whether a query ends when its checkpoint belongs to another entity; or else reads this one from its first message",
        _SOURCE,
        "true",
        _BOOLEANS,
    ),
    Option(
        "includeRaw",
        "adds the column `raw`: the message as its sender encoded it",
        _SOURCE,
        "false",
        _BOOLEANS,
    ),
    *(
        Option(option, f"the column that holds `{column}`", _SINK, column)
        for option, column in COLUMN_OPTIONS.items()
    ),
    Option("batchSize", "messages in one send", _SINK, 100, range=(1, 4_500)),
    Option("inFlight", "sends at a time in each task", _SINK, 4, range=(1, 100)),
    Option(
        "onError",
        "what to do with a row that cannot be sent: fail the task, or keep the row in `quarantinePath`",
        _SINK,
        "fail",
        ("fail", "quarantine"),
    ),
    Option("quarantinePath", "directory for rows that cannot be sent, with `onError=quarantine`", _SINK),
)
"""Every option of ``format("servicebus")``. ``docs/reference/spark-options.md`` is written from it."""

_TYPES_ALLOWED: Final = {
    TEXT: ("string",),
    INT64: ("bigint", "int", "smallint", "tinyint"),
    TIMESTAMP: ("timestamp",),
    BINARY: ("binary",),
}
"""The Spark types that a column of the sink may have, by the column's own; a body may be a string too."""
PROPERTY_TYPES: Final = {
    "string": "string",
    "tinyint": "byte",
    "smallint": "short",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "timestamp": "timestamp",
}
"""The AMQP type of application properties in a column ``map<string, …>`` of plain values, by Spark's type."""
_PROPERTY_STRUCT: Final = "struct<type:string,value:string>"
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "trigger"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, and how."""

    access: Access
    queue: str = ""
    topic: str = ""
    subscription: str = ""
    sub_queue: str = ""
    mode: Literal["browse", "consume"] = "browse"
    messages_max: int
    bytes_max: int
    partitions: int = 1
    starting: str = "earliest"
    is_loss_fatal: bool = True
    """Whether a checkpoint of another entity ends the query; otherwise the entity is read from its first message."""
    has_raw: bool = False
    """Whether rows hold the encoded original in the column ``raw``."""

    @property
    def entity(self) -> str:
        """The entity's path, as rows show it."""
        path = self.queue or f"{self.topic}/Subscriptions/{self.subscription}"
        suffix = {"deadletter": "/$DeadLetterQueue", "transferdeadletter": "/$Transfer/$DeadLetterQueue"}
        return path + suffix.get(self.sub_queue, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where to write, and how."""

    access: Access
    path: str = ""
    """Empty: each row says it in its column."""
    kind: Literal["", "queue", "topic"] = ""
    """The option that named it."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column by field name."""
    batch_size: int
    in_flight: int
    property_type: str = ""
    """The AMQP type of application properties that are plain values; empty: they are strings or structs."""
    quarantine: str = ""
    """A directory for rows that cannot be sent; empty: such a row fails its task."""


class _Given:
    """The options of one reader or writer, as Spark hands them over."""

    def __init__(self, options: Mapping[str, str], side: Literal["source", "sink"]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {option.name.lower(): option for option in OPTIONS if side in option.sides}
        for name in options:
            if name.lower() not in known and name.lower() not in _SPARKS_OWN:
                # Spark may have changed the letter case.
                shown = next((option.name for option in OPTIONS if option.name.lower() == name.lower()), name)
                near = get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {known[near[0]].name}? " if near else ""
                names = ", ".join(option.name for option in known.values())
                raise UsageError(f"option {shown!r} is unknown to the {side}: {hint}expected one of {names}")
        for name, value in options.items():
            if name.lower() in known and not value.strip():
                raise UsageError(
                    f"option {known[name.lower()].name} is empty: give it a value, or leave it out"
                )
        self._known = known

    def text(self, name: str) -> str:
        return (self._values.get(name.lower()) or "").strip()

    def choice(self, name: str, default: str = "") -> str:
        option = self._known[name.lower()]
        value = self.text(name).lower() or default or str(option.default)
        if value not in option.choices and value != option.default:
            raise UsageError(
                f"option {name} is {self.text(name)!r}: expected one of {', '.join(option.choices)}"
            )
        return value

    def number(self, name: str, default: int = 0) -> int:
        option, text = self._known[name.lower()], self.text(name)
        if not text:
            return default or int(option.default)
        low, high = option.range
        if not text.isdecimal() or not low <= int(text) <= high:
            raise UsageError(f"option {name} is {text!r}: expected a whole number from {low} to {high}")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.choice(name) == "true"

    def access(self) -> Access:
        return parse_access(*map(self.text, ("connectionString", "credentialEnv", "namespace", "caFile")))


def parse_source(options: Mapping[str, str], *, is_stream: bool | None) -> SourceOptions:
    """The options of a reader; ``is_stream`` is None when it is not known yet. Raises UsageError."""
    given = _Given(options, "source")
    access = given.access()
    queue, topic, subscription = (given.text(name) for name in ("queue", "topic", "subscription"))
    if given.text("subscription"):
        topic = _limited(access, "topic", topic)
    else:
        queue = _limited(access, "queue", queue, topic)
    if bool(queue) == bool(topic and subscription) or (queue and (topic or subscription)):
        raise UsageError(
            "give the option queue, or the options topic and subscription: exactly one entity is read"
        )
    mode = given.choice("mode", "consume" if is_stream else "browse")
    if mode == "consume" and is_stream is False:
        raise UsageError(
            "option mode is 'consume': a batch read leaves every message where it is. Use readStream (with "
            "trigger(availableNow=True) it ends by itself), or mode browse"
        )
    shown = given.text("startingSequence") or "earliest"
    starting = shown.lower()
    if starting not in ("earliest", "latest") and not starting.isdecimal():
        raise UsageError(f"option startingSequence is {shown!r}: expected earliest, latest or a number")
    if mode == "consume" and starting != "earliest":
        raise UsageError(
            f"option startingSequence is {shown!r}: expected earliest with mode consume, which takes messages from "
            "the head on; mode browse begins anywhere"
        )
    return SourceOptions(
        access=access,
        queue=queue,
        topic=topic,
        subscription=subscription,
        sub_queue=given.choice("subQueue"),
        mode="consume" if mode == "consume" else "browse",
        messages_max=given.number("maxMessagesPerTrigger"),
        bytes_max=given.number("maxBytesPerTrigger"),
        partitions=given.number("partitions", os.cpu_count() or 1),
        starting=starting,
        is_loss_fatal=given.flag("failOnDataLoss"),
        has_raw=given.flag("includeRaw"),
    )


def _limited(access: Access, option: str, name: str, other: str = "") -> str:
    """The entity that an option names, or the one that the connection string is limited to."""
    path = access.entity_path()
    if path and (name or other) and (name or other).lower() != path.lower():
        raise UsageError(
            f"option {option if name else 'topic'} is {name or other!r}, but the connection string is limited to "
            f"EntityPath={path}: name the same entity, or use a connection string of the namespace"
        )
    return name or ("" if other else path)


def parse_sink(
    options: Mapping[str, str], columns: list[str], types: Mapping[str, str] | None = None
) -> SinkOptions:
    """The options of a writer, checked against the columns it will get. Raises UsageError.

    Args:
        options: As Spark hands them over.
        columns: The names of the columns.
        types: Spark's type of each column, where it is known: a column that no row could be sent with is refused here,
            before any task sends a part of its rows.
    """
    given = _Given(options, "sink")
    access = given.access()
    queue, topic = given.text("queue"), given.text("topic")
    mapped = _mapped(given, columns)
    if "raw" in mapped and list(mapped.values()).count(mapped["raw"]) > 1:
        raise UsageError(f"column {mapped['raw']} is given as raw and as another field: name two columns")
    if queue and topic:
        raise UsageError("give one of the options queue and topic")
    path = _limited(access, "queue", queue, topic) or topic
    if not path and "path" not in mapped:
        raise UsageError(
            "give the option queue or topic, or a column path (or pathColumn) that names the entity"
        )
    if path and "path" in mapped:
        raise UsageError(
            f"the rows are to be sent to {path!r}, and column {mapped['path']} names destinations too: leave out the "
            f"option {'topic' if topic else 'queue'}, or .drop({mapped['path']!r})"
        )
    if "body" not in mapped and "raw" not in mapped:
        raise UsageError(f"bodyColumn: expected a column body or raw, found {_shown(columns)}")
    if "raw" in mapped:
        judge_fields_beside_raw(mapped)
    on_error = given.choice("onError")
    quarantine = given.text("quarantinePath")
    if (on_error == "quarantine") != bool(quarantine):
        raise UsageError("option onError=quarantine needs the option quarantinePath, and the other way round")
    return SinkOptions(
        access=access,
        path=path,
        kind="queue" if queue else "topic" if topic else "",
        columns=mapped,
        batch_size=given.number("batchSize"),
        in_flight=given.number("inFlight"),
        property_type=_judge_types(mapped, types or {}),
        quarantine=quarantine,
    )


def _mapped(given: _Given, columns: list[str]) -> dict[str, str]:
    """The column of each field. As in Spark, letter case does not matter: a renamed column must not be overlooked."""
    by_name: dict[str, str] = {}
    for column in columns:
        known = len(by_name)
        other = by_name.setdefault(column.lower(), column)
        if len(by_name) == known:
            raise UsageError(
                f"there are two columns {other!r} and {column!r}: letter case does not tell columns apart here. Rename or drop "
                "one of them"
            )
    mapped: dict[str, str] = {}
    for option, usual in COLUMN_OPTIONS.items():
        name = given.text(option)
        found = by_name.get((name or usual).lower())
        if name and found is None:
            raise UsageError(f"option {option} is {name!r}: expected one of the columns {_shown(columns)}")
        if found is not None:
            mapped[usual] = found
    usable = {name.lower() for name in (*FIELDS, *COLUMN_OPTIONS.values(), *mapped.values())}
    unknown = [column for name, column in by_name.items() if name not in usable]
    if unknown and ("body" in mapped or "raw" in mapped):
        raise UsageError(
            f"the sink does not know the column{'s' * (len(unknown) > 1)} {_shown(unknown)}: expected "
            f"{', '.join(sorted({*FIELDS, *COLUMN_OPTIONS.values()}))}. Rename a column that is to be sent, or name it in an option such as "
            f"subjectColumn; .drop({', '.join(map(repr, unknown))}) leaves it out"
        )
    return mapped


def _shown(columns: list[str]) -> str:
    return ", ".join(column if column.strip() else repr(column) for column in columns) or "no column at all"


def _judge_types(mapped: Mapping[str, str], types: Mapping[str, str]) -> str:
    """Refuse columns whose type no message can have; returns the AMQP type of plain application properties."""
    for name, column in mapped.items():
        kind = types.get(column, "void")
        if name == "application_properties" or kind == "void":
            continue
        allowed = ("binary", "string") if name == "body" else _TYPES_ALLOWED[column_types(name)[name]]
        if kind not in allowed:
            raise UsageError(
                f"column {column} is {kind}: expected {' or '.join(allowed)} for {name}. Cast the column, or leave "
                "it out"
            )
    column = mapped.get("application_properties", "")
    kind = types.get(column, "void")
    value = kind.removeprefix("map<string,").removesuffix(">")
    if kind == "void" or kind == f"map<string,{_PROPERTY_STRUCT}>":
        return ""
    if kind == value or value not in PROPERTY_TYPES:
        raise UsageError(
            f"column {column} is {kind}: expected map<string,{_PROPERTY_STRUCT}>, or map<string,…> of one of "
            f"{', '.join(PROPERTY_TYPES)}"
        )
    return PROPERTY_TYPES[value]
