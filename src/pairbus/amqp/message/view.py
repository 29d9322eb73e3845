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


NULL: Final = 0x40


class PropertiesView:
    """What a filter may ask of a message. Never raises: what cannot be read is absent (B58)."""

    __slots__ = ("_application", "_bare_at", "_blob", "_changed", "_properties", "_user")

    def __init__(self, blob: bytes, changed: bytes = b"") -> None:
        layout = LAYOUT.unpack_from(blob)
        start = PREFIX_SIZE + layout[5] + layout[6]
        middle = start + layout[7]
        self._properties = blob[start:middle]
        self._application = blob[middle : middle + layout[8]]
        self._blob = blob
        self._bare_at = middle + layout[8]
        self._changed = changed
        self._user: dict[str, object] | None = None

    def system(self, name: str) -> object:
        """A system property by its Service Bus or AMQP name in any case; None when unset or unknown."""
        index = _SYSTEM.get(name, -1)
        if index < 0:
            index = _SYSTEM.get(name.lower().replace("-", "").replace("_", ""), -1)
        return None if index < 0 else _field(self._properties, index)

    def user(self, name: str) -> object:
        """An application property by name in any case; None when unset."""
        return self._users().get(name.lower())

    def has_user(self, name: str) -> bool:
        """Whether an application property of that name is set, to null too."""
        return name.lower() in self._users()

    def body_bytes(self) -> bytes:
        """The content of all data sections; for other bodies the encoded value."""
        parts: list[bytes] = []
        buf = self._blob
        offset, end = self._bare_at, len(buf)
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

    def _users(self) -> dict[str, object]:
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
                self._user[key.decode("utf-8", "replace").lower()] = _value(raw)
        return self._user


def _value(raw: bytes) -> object:
    try:
        return decode_value(raw)[0]
    except RemoteProtocolError:
        return None


def _field(section: bytes, index: int) -> object:
    """One field of a properties section: those before it are passed over, those behind it not looked at."""
    end = len(section)
    if end < 6:
        return None
    # A described list: three bytes of descriptor, then size and count in one byte each or in four.
    if section[3] == 0xC0:
        count, offset = section[5], 6
    elif section[3] == 0xD0 and end >= 12:
        count, offset = int.from_bytes(section[8:12], "big"), 12
    else:
        return None
    if index >= count:
        return None
    try:
        for _ in range(index):
            # Most fields are null.
            offset = offset + 1 if section[offset] == NULL else skip_value(section, offset, end)
        return _value(section[offset:])
    except (RemoteProtocolError, IndexError):
        return None
