"""The fields of a decoded composite, read by position with the type they must have."""

from __future__ import annotations

from pairbus.amqp.decode import bad
from pairbus.amqp.states import text_keyed
from pairbus.amqp.types import Array
from pairbus.errors import RemoteProtocolError


class Fields:
    """A decoded list; fields beyond its end are null, as AMQP 1.0, 1.4 allows."""

    __slots__ = ("items", "where")

    def __init__(self, items: list[object], where: str) -> None:
        self.items = items
        self.where = where

    def value(self, index: int) -> object:
        return self.items[index] if index < len(self.items) else None

    def uint(self, index: int, default: int, maximum: int = 0xFFFFFFFF) -> int:
        """An unsigned number up to ``maximum``."""
        value = self.value(index)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            raise bad(f"field {index} of {self.where} is no number up to {maximum}")
        return value

    def required_uint(self, index: int, maximum: int = 0xFFFFFFFF) -> int:
        """An unsigned number that must be there."""
        if self.value(index) is None:
            raise self._missing(index)
        return self.uint(index, 0, maximum)

    def boolean(self, index: int, default: bool = False) -> bool:
        value = self.value(index)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad(f"field {index} of {self.where} is no boolean")
        return value

    def text(self, index: int) -> str | None:
        """A string or symbol, as plain ``str``."""
        value = self.value(index)
        if value is None:
            return None
        if not isinstance(value, str):
            raise bad(f"field {index} of {self.where} is no text")
        return str(value)

    def required_text(self, index: int) -> str:
        """A string or symbol that must be there."""
        text = self.text(index)
        if text is None:
            raise self._missing(index)
        return text

    def binary(self, index: int) -> bytes:
        """Bytes, empty when null."""
        value = self.value(index)
        if value is None:
            return b""
        if not isinstance(value, bytes):
            raise bad(f"field {index} of {self.where} is no binary")
        return value

    def mapping(self, index: int) -> dict[str, object] | None:
        """A map with text keys."""
        value = self.value(index)
        if value is None:
            return None
        return text_keyed(value, f"field {index} of {self.where}")

    def symbols(self, index: int) -> list[str]:
        """One symbol or several (AMQP 1.0, 1.4: a field marked multiple)."""
        value = self.value(index)
        if value is None:
            return []
        if isinstance(value, str):
            return [str(value)]
        if isinstance(value, Array):
            return [str(item) for item in value if isinstance(item, str)]
        raise bad(f"field {index} of {self.where} is neither a symbol nor an array of them")

    def _missing(self, index: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            "amqp:invalid-field", f"mandatory field {index} of {self.where} is missing"
        )
