"""The backlog queues of a secondary, through the official administration client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from pairbus.errors import PairingError
from pairbus.pairing.naming import primaries_of
from pairbus.pairing.rules import queues
from pairbus.sdk.management.admin import NoManageRight

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from pairbus.pairing.rules.queues import BacklogQueue
    from pairbus.pairing.runtime.ports import Runtime

_FORBIDDEN = (401, 403)


class Management:
    """Lists and creates queues of one namespace.

    Args:
        runtime: How to wait.
        client: The Service Bus client of the namespace.
        options: Options of the administration client.
        host: The address with its port; a client that uses TLS does not know its port.
    """

    def __init__(
        self, runtime: Runtime, client: Any, options: dict[str, Any], host: str | None = None
    ) -> None:
        self._runtime = runtime
        self._arguments = (client, options, host)

    async def backlog_queues(self, primary: str) -> list[BacklogQueue]:
        """The queues that have the names of this primary's backlog queues."""
        try:
            async with self._admin() as admin:
                listed = await self._runtime.collect(admin.list_queues())
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error
        found = (queues.read(primary, properties) for properties in listed)
        return [queue for queue in found if queue is not None]

    async def primaries(self) -> list[str]:
        """The primaries that have backlog queues in this namespace, by their names."""
        try:
            async with self._admin() as admin:
                listed = await self._runtime.collect(admin.list_queues())
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error
        return primaries_of(properties.name for properties in listed)

    async def message_count(self, queue: str) -> int | None:
        """How many messages a queue holds; None when the namespace does not say."""
        return await self._count(queue, "total_message_count")

    async def dead_letter_count(self, queue: str) -> int | None:
        """How many messages of a queue are dead-lettered; None when the namespace does not say."""
        return await self._count(queue, "dead_letter_message_count")

    async def create(self, name: str, identity: str) -> bool:
        """Create a backlog queue, marked with the primary it is for. False when something has the name already."""
        metadata = queues.mark_of(identity)
        try:
            async with self._admin() as admin:
                await self._runtime.call(admin.create_queue, name, **queues.SETTINGS, user_metadata=metadata)
        except ResourceExistsError:
            return False
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error
        return True

    async def backlog_queue(self, primary: str, name: str) -> BacklogQueue | None:
        """One queue of the namespace; None when there is none of this name. PairingError when a topic has it."""
        try:
            async with self._admin() as admin:
                if await self._is_topic(admin, name):
                    raise PairingError(
                        f"the topic {name!r} of the secondary has its name, and messages sent to a topic would not be "
                        "kept; delete that topic and pair again"
                    )
                return queues.read(primary, await self._runtime.call(admin.get_queue, name))
        except ResourceNotFoundError:
            return None
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error

    def _admin(self) -> AbstractAsyncContextManager[Any]:
        return self._runtime.entered(self._runtime.admin_client(*self._arguments))

    async def _count(self, queue: str, name: str) -> int | None:
        try:
            async with self._admin() as admin:
                properties = await self._runtime.call(admin.get_queue_runtime_properties, queue)
        except AzureError:
            return None
        return getattr(properties, name)  # type: ignore[no-any-return]

    async def _is_topic(self, admin: Any, name: str) -> bool:
        try:
            await self._runtime.call(admin.get_topic, name)
        except (ResourceNotFoundError, AttributeError):
            # The SDK reads whatever has the name, and finds no description of a topic in it.
            return False
        return True


def _translated(error: Exception) -> Exception:
    is_forbidden = getattr(error, "status_code", None) in _FORBIDDEN
    return (
        NoManageRight(str(error)) if is_forbidden or isinstance(error, ClientAuthenticationError) else error
    )
