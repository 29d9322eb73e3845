"""Options of ``format("servicebus")``, parsed once into frozen objects. Errors name the option and what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal

from pairbus.errors import UsageError
from pairbus.model.message_row import BINARY, INT64, SINK_NAMES, TEXT, TIMESTAMP
from pairbus.model.message_row import types as column_types
from pairbus.spark.connector.schema import FIELDS, judge_fields_beside_raw

MESSAGES_PER_TRIGGER: Final = 10_000
BYTES_PER_TRIGGER: Final = 64 * 1024 * 1024
BATCH_SIZE: Final = 100
IN_FLIGHT: Final = 4


def _column_option(name: str) -> str:
    first, *rest = name.removesuffix("_ms").split("_")
    return first + "".join(word.capitalize() for word in rest) + "Column"


COLUMNS: Final = {_column_option(name): name for name in SINK_NAMES}
"""Options of the sink that say in which column a field is, and the column's usual name."""
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
_COMMON: Final = ("connectionString", "namespace", "credentialEnv", "caFile", "queue", "topic")
_SOURCE: Final = (
    *_COMMON,
    "subscription",
    "subQueue",
    "mode",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "partitions",
    "startingSequence",
    "failOnDataLoss",
    "includeRaw",
)
_SINK: Final = (*_COMMON, *COLUMNS, "batchSize", "inFlight", "onError", "quarantinePath")
_SPELLED: Final = {name.lower(): name for name in (*_SOURCE, *_SINK)}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "trigger"})


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTITY_PATH: Final = re.compile(r"(?:^|;)\s*entitypath\s*=\s*([^;]+)", re.IGNORECASE)
_ENDPOINT: Final = re.compile(r"(?:^|;)\s*endpoint\s*=\s*(?:\w+://)?([^;/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """How a process gets to the namespace. With ``environment`` the secret is in no plan and no checkpoint at all."""

    text: str = field(default="", repr=False)
    environment: str = ""
    namespace: str = ""
    authorities: str = field(default="", repr=False)
    """Certificates to trust besides the public ones; the text travels with the job, so executors need no file."""

    def connection_string(self, variables: Mapping[str, str] | None = None) -> str:
        """The connection string, looked up in the process that needs it. Raises UsageError."""
        if not self.environment:
            return self.text
        found = (os.environ if variables is None else variables).get(self.environment, "")
        if not found:
            raise UsageError(
                f"credentialEnv: the environment variable {self.environment} is not set in this process; on a "
                f"cluster set spark.executorEnv.{self.environment} or the workers' own environment"
            )
        endpoint = _ENDPOINT.search(found)
        if endpoint is None and not self.namespace:
            raise UsageError(
                f"credentialEnv: {self.environment} holds a key without an Endpoint: give the option namespace too"
            )
        if endpoint is None:
            return f"Endpoint=sb://{self.namespace}/;{found}"
        if self.namespace and endpoint[1].lower() != self.namespace.lower():
            raise UsageError(
                f"option namespace is {self.namespace!r}, but {self.environment} holds the connection string of "
                f"{endpoint[1]!r}: give the same, or leave namespace out"
            )
        return found

    def entity_path(self) -> str:
        """The entity that the connection string is limited to (``EntityPath``); empty when it is not, or not known here."""
        found = _ENTITY_PATH.search(self.text or os.environ.get(self.environment, ""))
        return found[1].strip() if found is not None else ""

    def host(self) -> str:
        """Host and port of the namespace, in the form that a checkpoint keeps. Raises UsageError."""
        from pairbus.sdk.connection_string import normal_host, parse_connection_string

        parts = parse_connection_string(self.connection_string(), "given")
        return normal_host(parts.host, is_emulator=parts.is_emulator)

    def connection(self) -> dict[str, Any]:
        """What the official client needs to know: the connection string, its port over TLS, whom to trust."""
        from pairbus.sdk.trust import reaching, trusting

        text = self.connection_string()
        trust = {"ssl_context": trusting(self.authorities)} if self.authorities else {}
        return {"conn_str": text, **reaching(text), **trust}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, and how."""

    access: Access
    queue: str = ""
    topic: str = ""
    subscription: str = ""
    sub_queue: str = ""
    mode: Literal["browse", "consume"] = "browse"
    messages_max: int = MESSAGES_PER_TRIGGER
    bytes_max: int = BYTES_PER_TRIGGER
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
    batch_size: int = BATCH_SIZE
    in_flight: int = IN_FLIGHT
    property_type: str = ""
    """The AMQP type of application properties that are plain values; empty: they are strings or structs."""
    quarantine: str = ""
    """A directory for rows that cannot be sent; empty: such a row fails its task."""


class _Given:
    """The options of one reader or writer, as Spark hands them over."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known}
        for name in self._values:
            if name not in names and name not in _SPARKS_OWN:
                # Spark hands names over in small letters.
                spelled = _SPELLED.get(name, name)
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {_SPELLED[near[0]]}? " if near else ""
                raise UsageError(
                    f"option {spelled!r} is unknown to the {what}: {hint}expected one of {', '.join(known)}"
                )

    def text(self, name: str) -> str:
        return (self._values.get(name.lower()) or "").strip()

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name).lower() or default
        if value not in allowed:
            raise UsageError(f"option {name} is {self.text(name)!r}: expected one of {', '.join(allowed)}")
        return value

    def number(self, name: str, low: int, high: int, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or not low <= int(text) <= high:
            raise UsageError(f"option {name} is {text!r}: expected a whole number from {low} to {high}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def access(self) -> Access:
        text, environment, namespace, ca_file = (
            self.text(n) for n in ("connectionString", "credentialEnv", "namespace", "caFile")
        )
        if bool(text) == bool(environment):
            raise UsageError("give one of the options connectionString and credentialEnv (with namespace)")
        if text and not _ENDPOINT.search(text):
            raise UsageError("option connectionString is no connection string: expected Endpoint=sb://…;…")
        if text and namespace:
            raise UsageError(
                "option namespace goes with credentialEnv: connectionString names the namespace itself"
            )
        if environment and not _VARIABLE.fullmatch(environment):
            # Not shown: it may be the secret itself.
            raise UsageError("option credentialEnv is no name: expected that of an environment variable")
        host = namespace.partition("://")[2] or namespace
        return Access(text, environment, host.strip("/"), _authorities(ca_file))


def _authorities(ca_file: str) -> str:
    if not ca_file:
        return ""
    # With the official client behind it, which Spark's search for formats has no use for.
    from pairbus.sdk.trust import read_authorities

    try:
        return read_authorities([ca_file])
    except UsageError as error:
        raise UsageError(f"option caFile: {error}") from None


def parse_source(options: Mapping[str, str], *, is_stream: bool | None) -> SourceOptions:
    """The options of a reader; ``is_stream`` is None when it is not known yet. Raises UsageError."""
    given = _Given(options, _SOURCE, "source")
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
    mode = given.choice("mode", ("browse", "consume"), "consume" if is_stream else "browse")
    if mode == "consume" and is_stream is False:
        raise UsageError(
            "option mode is 'consume': a batch read leaves every message where it is. Use readStream (with "
            "trigger(availableNow=True) it ends by itself), or mode browse"
        )
    starting = given.text("startingSequence").lower() or "earliest"
    if starting not in ("earliest", "latest") and not starting.isdecimal():
        raise UsageError(f"option startingSequence is {starting!r}: expected earliest, latest or a number")
    if mode == "consume" and starting != "earliest":
        raise UsageError(
            f"option startingSequence is {starting!r}: expected earliest with mode consume, which takes messages from "
            "the head on; mode browse begins anywhere"
        )
    return SourceOptions(
        access=access,
        queue=queue,
        topic=topic,
        subscription=subscription,
        sub_queue=given.choice("subQueue", ("", "deadletter", "transferdeadletter"), ""),
        mode="consume" if mode == "consume" else "browse",
        messages_max=given.number("maxMessagesPerTrigger", 1, 1_000_000, MESSAGES_PER_TRIGGER),
        bytes_max=given.number("maxBytesPerTrigger", 1, 2**40, BYTES_PER_TRIGGER),
        partitions=given.number("partitions", 1, 10_000, os.cpu_count() or 1),
        starting=starting,
        is_loss_fatal=given.flag("failOnDataLoss", default=True),
        has_raw=given.flag("includeRaw", default=False),
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
    given = _Given(options, _SINK, "sink")
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
    on_error = given.choice("onError", ("fail", "quarantine"), "fail")
    quarantine = given.text("quarantinePath")
    if (on_error == "quarantine") != bool(quarantine):
        raise UsageError("option onError=quarantine needs the option quarantinePath, and the other way round")
    return SinkOptions(
        access=access,
        path=path,
        kind="queue" if queue else "topic" if topic else "",
        columns=mapped,
        batch_size=given.number("batchSize", 1, 4_500, BATCH_SIZE),
        in_flight=given.number("inFlight", 1, 100, IN_FLIGHT),
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
    for option, usual in COLUMNS.items():
        name = given.text(option)
        found = by_name.get((name or usual).lower())
        if name and found is None:
            raise UsageError(f"option {option} is {name!r}: expected one of the columns {_shown(columns)}")
        if found is not None:
            mapped[usual] = found
    usable = {name.lower() for name in (*FIELDS, *COLUMNS.values(), *mapped.values())}
    unknown = [column for name, column in by_name.items() if name not in usable]
    if unknown and ("body" in mapped or "raw" in mapped):
        raise UsageError(
            f"the sink does not know the column{'s' * (len(unknown) > 1)} {_shown(unknown)}: expected "
            f"{', '.join(sorted({*FIELDS, *COLUMNS.values()}))}. Rename a column that is to be sent, or name it in an option such as "
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
        allowed = ("binary", "string") if name == "body" else _TYPES_ALLOWED[column_types((name,))[name]]
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
