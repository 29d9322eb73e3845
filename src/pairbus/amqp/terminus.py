"""Sources and targets: the two ends of a link (AMQP 1.0, 3.5 and 4.5.1)."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.decode import bad
from pairbus.amqp.encode import (
    FALSE,
    NULL,
    TRUE,
    encode_described,
    encode_fields,
    encode_list,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_value,
)
from pairbus.amqp.fields import Fields
from pairbus.amqp.types import Array, Described, Symbol

SOURCE_CODE: Final = 0x28
TARGET_CODE: Final = 0x29
COORDINATOR_CODE: Final = 0x30

_SYMBOLIC: Final[dict[str, int]] = {
    "amqp:source:list": SOURCE_CODE,
    "amqp:target:list": TARGET_CODE,
    "amqp:coordinator:list": COORDINATOR_CODE,
}


class Source:
    """Where a link's messages come from."""

    __slots__ = (
        "address",
        "capabilities",
        "distribution_mode",
        "durable",
        "dynamic",
        "dynamic_node_properties",
        "expiry_policy",
        "filter",
        "outcomes",
        "timeout",
    )

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.durable = 0
        self.expiry_policy = ""
        self.timeout = 0
        self.dynamic = False
        self.dynamic_node_properties: dict[str, object] | None = None
        self.distribution_mode = ""
        self.filter: dict[str, object] | None = None
        self.outcomes: list[str] = []
        self.capabilities: list[str] = []

    def encode(self) -> bytes:
        """All eleven fields; the default outcome is never set."""
        items = _common(self.address, self.durable, self.expiry_policy, self.timeout, self.dynamic)
        items.append(_optional_fields(self.dynamic_node_properties))
        items.append(encode_symbol(self.distribution_mode) if self.distribution_mode else NULL)
        items.append(_optional_fields(self.filter))
        items.append(NULL)
        items.append(encode_symbols(self.outcomes))
        items.append(encode_symbols(self.capabilities))
        return encode_described(SOURCE_CODE, encode_list(items))


class Target:
    """Where a link's messages go to."""

    __slots__ = (
        "address",
        "capabilities",
        "durable",
        "dynamic",
        "dynamic_node_properties",
        "expiry_policy",
        "timeout",
    )

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.durable = 0
        self.expiry_policy = ""
        self.timeout = 0
        self.dynamic = False
        self.dynamic_node_properties: dict[str, object] | None = None
        self.capabilities: list[str] = []

    def encode(self) -> bytes:
        items = _common(self.address, self.durable, self.expiry_policy, self.timeout, self.dynamic)
        items.append(_optional_fields(self.dynamic_node_properties))
        items.append(encode_symbols(self.capabilities))
        return encode_described(TARGET_CODE, encode_list(items))


class Coordinator:
    """The target of a link that declares and discharges transactions."""

    __slots__ = ("capabilities",)

    def __init__(self) -> None:
        self.capabilities: list[str] = []

    def encode(self) -> bytes:
        return encode_described(COORDINATOR_CODE, encode_list([encode_symbols(self.capabilities)]))


def source_from(value: object) -> Source | None:
    """A decoded source, or None for null."""
    if value is None:
        return None
    code, fields = _composite(value)
    if code != SOURCE_CODE:
        raise bad(f"descriptor 0x{code:02x} is no source")
    source = Source(fields.text(0))
    source.durable = fields.uint(1, 0)
    source.expiry_policy = fields.text(2) or ""
    source.timeout = fields.uint(3, 0)
    source.dynamic = fields.boolean(4)
    source.dynamic_node_properties = fields.mapping(5)
    source.distribution_mode = fields.text(6) or ""
    source.filter = fields.mapping(7)
    source.outcomes = fields.symbols(9)
    source.capabilities = fields.symbols(10)
    return source


def target_from(value: object) -> Target | Coordinator | None:
    """A decoded target or coordinator, or None for null."""
    if value is None:
        return None
    code, fields = _composite(value)
    if code == COORDINATOR_CODE:
        coordinator = Coordinator()
        coordinator.capabilities = fields.symbols(0)
        return coordinator
    if code != TARGET_CODE:
        raise bad(f"descriptor 0x{code:02x} is no target")
    target = Target(fields.text(0))
    target.durable = fields.uint(1, 0)
    target.expiry_policy = fields.text(2) or ""
    target.timeout = fields.uint(3, 0)
    target.dynamic = fields.boolean(4)
    target.dynamic_node_properties = fields.mapping(5)
    target.capabilities = fields.symbols(6)
    return target


def echoed_source(asked: Source | None, address: str | None, filter: dict[str, object] | None) -> Source:
    """The source to answer with: never null, the client's own except for what is given."""
    source = Source()
    if asked is not None:
        source.address = asked.address
        source.durable = asked.durable
        source.expiry_policy = asked.expiry_policy
        source.timeout = asked.timeout
        source.dynamic = asked.dynamic
        source.distribution_mode = asked.distribution_mode
        source.filter = asked.filter
        source.outcomes = asked.outcomes
        source.capabilities = asked.capabilities
    if address is not None:
        source.address = address
    if filter is not None:
        source.filter = filter
    return source


def echoed_target(asked: Target | Coordinator | None, address: str | None) -> Target | Coordinator:
    """The target to answer with: never null, the client's own except for what is given."""
    if asked is None:
        return Target(address)
    if isinstance(asked, Coordinator) or address is None:
        return asked
    target = Target(address)
    target.durable = asked.durable
    target.expiry_policy = asked.expiry_policy
    target.timeout = asked.timeout
    target.dynamic = asked.dynamic
    target.capabilities = asked.capabilities
    return target


def encode_symbols(names: list[str]) -> bytes:
    """Several symbols as an array; null for none."""
    if not names:
        return NULL
    return encode_value(Array([Symbol(name) for name in names]))


def _optional_fields(pairs: dict[str, object] | None) -> bytes:
    return NULL if pairs is None else encode_fields(pairs)


def _common(address: str | None, durable: int, policy: str, timeout: int, dynamic: bool) -> list[bytes]:
    return [
        NULL if address is None else encode_string(address),
        encode_uint(durable),
        encode_symbol(policy) if policy else NULL,
        encode_uint(timeout),
        TRUE if dynamic else FALSE,
    ]


def _composite(value: object) -> tuple[int, Fields]:
    if isinstance(value, Described) and isinstance(value.value, list):
        code = value.descriptor
        if isinstance(code, str):
            code = _SYMBOLIC.get(str(code))
        if isinstance(code, int):
            return code, Fields(value.value, "a terminus")
    raise bad("a source or target is no described list")
