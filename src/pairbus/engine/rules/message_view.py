"""What a rule may see of a message: its properties by name, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

from pairbus.errors import FilterFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pairbus.amqp.types import Uuid


@final
class Missing:
    """The type of :data:`MISSING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""A property the message does not have. A rule treats it like null, except in ``EXISTS``."""

SYSTEM_NAMES: Final[dict[str, str]] = {
    name: name
    for name in [
        "contenttype",
        "correlationid",
        "deliverycount",
        "enqueuedsequencenumber",
        "enqueuedtimeutc",
        "expiresatutc",
        "label",
        "messageid",
        "partitionkey",
        "replyto",
        "replytosessionid",
        "scheduledenqueuetimeutc",
        "sequencenumber",
        "sessionid",
        "size",
        "timetolive",
        "to",
        "viapartitionkey",
    ]
} | {"subject": "label"}
"""Every name allowed after ``sys.``, in lower case, with the one name a view is asked for."""


class MessageView(Protocol):
    """A message as rules see it. Names arrive in lower case, system names in canonical form.

    Instants are ``amqp.types.Timestamp``, ``timetolive`` is ``sql_values.Duration``; other values are
    what the AMQP decoder gives. A view must not change while a rule looks at it.
    """

    def user(self, name: str) -> object:
        """The application property of this name in any spelling, or MISSING."""

    def system(self, name: str) -> object:
        """The broker property of this canonical name, or MISSING when it is not set."""

    def new_id(self) -> Uuid:
        """A fresh identifier for ``newid()``; never the same twice."""


@final
class MappingView:
    """A view over two mappings, for callers that have the properties decoded already."""

    __slots__ = ("_ids", "_system", "_user")

    def __init__(
        self,
        user: Mapping[str, object],
        system: Mapping[str, object] | None = None,
        ids: list[Uuid] | None = None,
    ) -> None:
        """Where two spellings of a name meet, the first wins. ``ids`` are handed out from the front."""
        self._user: dict[str, object] = {}
        for name, value in user.items():
            self._user.setdefault(name.lower(), value)
        self._system = {name.lower(): value for name, value in (system or {}).items()}
        self._ids = list(ids or [])

    def user(self, name: str) -> object:
        """The application property, or MISSING."""
        return self._user.get(name, MISSING)

    def system(self, name: str) -> object:
        """The broker property, or MISSING."""
        return self._system.get(name, MISSING)

    def new_id(self) -> Uuid:
        if not self._ids:
            raise FilterFailed("newid() has no identifier left to give; prepare one per use")
        return self._ids.pop(0)
