"""A stored message's properties, decoded only as far as a filter asks for them."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.decode import decode_value, skip_value
from pairbus.amqp.message.layout import DATA, LAYOUT, PREFIX_SIZE, SEQUENCE, VALUE, property_pairs
from pairbus.errors import RemoteProtocolError

_SYSTEM: Final[dict[str, int]] = {
    "messageid": 0,
    "userid": 1,
    "to": 2,
    "label": 3,
    "subject": 3,
    "replyto": 4,
    "correlationid": 5,
    "contenttype": 6,
    "contentencoding": 7,
    "absoluteexpirytime": 8,
    "creationtime": 9,
    "sessionid": 10,
    "groupid": 10,
    "groupsequence": 11,
    "replytosessionid": 12,
    "replytogroupid": 12,
}
"""Service Bus names, and those AMQP gives them, to positions in the properties section."""


class PropertiesView:
    """What a filter may ask of a message. Never raises: what cannot be read is absent (B58)."""

    __slots__ = ("_application", "_bare", "_changed", "_fields", "_properties", "_user")

    def __init__(self, blob: bytes, changed: bytes = b"") -> None:
        layout = LAYOUT.unpack_from(blob)
        start = PREFIX_SIZE + layout[5] + layout[6]
        middle = start + layout[7]
        self._properties = blob[start:middle]
        self._application = blob[middle : middle + layout[8]]
        self._bare = blob[middle + layout[8] :]
        self._changed = changed
        self._fields: list[object] | None = None
        self._user: dict[str, tuple[str, object]] | None = None

    def system(self, name: str) -> object:
        """A system property by its Service Bus or AMQP name in any case; None when unset or unknown."""
        if self._fields is None:
            self._fields = _fields(self._properties)
        index = _SYSTEM.get(name.lower().replace("-", "").replace("_", ""), -1)
        return self._fields[index] if 0 <= index < len(self._fields) else None

    def user(self, name: str) -> object:
        """An application property by name in any case; None when unset."""
        entry = self._users().get(name.lower())
        return None if entry is None else entry[1]

    def has_user(self, name: str) -> bool:
        """Whether an application property of that name is set, to null too."""
        return name.lower() in self._users()

    def user_names(self) -> list[str]:
        """Every application property's name as the sender wrote it."""
        return [entry[0] for entry in self._users().values()]

    def body_bytes(self) -> bytes:
        """The content of all data sections; for other bodies the encoded value."""
        parts: list[bytes] = []
        buf = self._bare
        offset, end = 0, len(buf)
        try:
            while offset < end:
                code, at = buf[offset + 2], offset + 3
                offset = skip_value(buf, at, end)
                if code == DATA:
                    parts.append(buf[at + (2 if buf[at] == 0xA0 else 5) : offset])
                elif code in (SEQUENCE, VALUE):
                    parts.append(buf[at:offset])
        except (RemoteProtocolError, IndexError):
            return b""
        return b"".join(parts)

    def _users(self) -> dict[str, tuple[str, object]]:
        if self._user is None:
            self._user = {}
            try:
                pairs = property_pairs(self._application[3:])
                for key, raw in property_pairs(self._changed).items():
                    if raw == b"\x40":  # a change to null removes the property
                        pairs.pop(key, None)
                    else:
                        pairs[key] = raw
            except (RemoteProtocolError, IndexError):
                pairs = {}
            for key, raw in pairs.items():
                name = key.decode("utf-8", "replace")
                self._user[name.lower()] = (name, _value(raw))
        return self._user


def _value(raw: bytes) -> object:
    try:
        return decode_value(raw)[0]
    except RemoteProtocolError:
        return None


def _fields(section: bytes) -> list[object]:
    if not section:
        return []
    value = _value(section[3:])
    return value if isinstance(value, list) else []
