"""What an address on a link means: an entity, one of its places, its management node, or the token node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.engine.records import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from pairbus.errors import EntityNotFound

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity
    from pairbus.engine.namespace import Namespace
    from pairbus.engine.queues.queue import Queue

CBS: Final = "$cbs"
_MANAGEMENT: Final = "/$management"
_TRANSFER: Final = "/$transfer/$deadletterqueue"
_DEAD_LETTER: Final = "/$deadletterqueue"


def node_scope(scope: str) -> str:
    """What a token must cover to ask the management node of a place.

    The JavaScript client puts a token for ``queue/$management`` and no other; one for the queue covers its node too.
    """
    return scope + _MANAGEMENT


@dataclass(slots=True, eq=False)
class Address:
    """An address taken apart. ``path`` is the entity's, without place or node; compared in lower case."""

    path: str
    sub: int
    is_management: bool
    scope: str
    """What a token must cover: the entity with its place. Clients ask for ``queue/$DeadLetterQueue`` alone."""


def path_of(address: str) -> str:
    """The path in an address: scheme and authority stripped, no slashes at the ends, nothing decoded."""
    scheme_end = address.find("://")
    if scheme_end >= 0:
        address = address[scheme_end + 3 :]
        slash = address.find("/")
        address = address[slash + 1 :] if slash >= 0 else ""
    return address.strip("/")


def parse(address: str) -> Address:
    path = path_of(address)
    is_management = path.lower().endswith(_MANAGEMENT)
    if is_management:
        path = path[: -len(_MANAGEMENT)]
    scope = path
    sub = MAIN
    if path.lower().endswith(_TRANSFER):
        path, sub = path[: -len(_TRANSFER)], TRANSFER_DEAD_LETTER
    elif path.lower().endswith(_DEAD_LETTER):
        path, sub = path[: -len(_DEAD_LETTER)], DEAD_LETTER
    return Address(path, sub, is_management, scope)


def find_entity(namespace: Namespace, address: Address) -> Entity:
    """The entity an address names. Raises EntityNotFound."""
    entity = namespace.find(address.path)
    if entity is None:
        raise EntityNotFound(address.path)
    return entity


def queue_at(entity: Entity, address: Address) -> Queue:
    """The place within the entity."""
    return entity.queues[address.sub]
