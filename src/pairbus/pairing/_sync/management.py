# Written by tools/unasync.py from _async/management.py: edit that file.
"""The secondary's queues, through the official administration client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import PairingError
from pairbus.pairing._sync import runtime
from pairbus.pairing.rules import queues
from pairbus.pairing.rules.queues import BacklogQueue
from pairbus.sdk import client_settings
from pairbus.sdk.plain_http import PlainHttpTransport

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

_FORBIDDEN = (401, 403)


class NoManageRight(Exception):
    """The credential may not manage the namespace."""


class Management:
    """Lists and creates queues of one namespace."""

    def __init__(self, client: ServiceBusClient, options: dict[str, Any], host: str | None = None) -> None:
        # A client that speaks TLS keeps no port: whoever knows one gives the host.
        self._fully_qualified_namespace = host or client.fully_qualified_namespace
        self._credential = client_settings.credential_of(client)
        self._options = dict(options)
        self._options.setdefault("retry_total", 1)
        self._options.setdefault("connection_timeout", 10)
        self._options.setdefault("read_timeout", 15)
        self._is_plain = not client_settings.uses_tls(client)

    def _client(self) -> ServiceBusAdministrationClient:
        options = dict(self._options)
        credential = self._credential
        if isinstance(credential, AzureNamedKeyCredential):
            # The administration client knows tokens and its own kind of key only.
            credential = runtime.shared_key(*credential.named_key)
        elif not hasattr(credential, "get_token"):
            raise NoManageRight(f"{type(credential).__name__} is of no use to the administration client")
        if self._is_plain:
            # A namespace reached without TLS is asked without TLS too: the SDK has no switch for that.
            options["transport"] = PlainHttpTransport(**options)
        return ServiceBusAdministrationClient(self._fully_qualified_namespace, credential, **options)

    def backlog_queues(self, primary: str) -> list[BacklogQueue]:
        """The namespace's queues that bear the names of this primary's backlog queues."""
        try:
            with self._client() as client:
                found = []
                for properties in client.list_queues():
                    queue = queues.read(primary, properties)
                    if queue is not None:
                        found.append(queue)
                return found
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error

    def message_count(self, queue: str) -> int | None:
        """How many messages a queue holds; None when that cannot be told."""
        try:
            with self._client() as client:
                runtime = client.get_queue_runtime_properties(queue)
                return runtime.total_message_count
        except AzureError:
            return None

    def dead_letter_count(self, queue: str) -> int | None:
        """How many messages of a queue are set aside; None when that cannot be told."""
        try:
            with self._client() as client:
                runtime = client.get_queue_runtime_properties(queue)
                return runtime.dead_letter_message_count
        except AzureError:
            return None

    def create(self, name: str, identity: str) -> bool:
        """Create a backlog queue, marked with the primary it is for. False when something has the name already."""
        try:
            with self._client() as client:
                client.create_queue(name, **queues.SETTINGS, user_metadata=queues.mark_of(identity))
                return True
        except ResourceExistsError:
            return False
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error

    def backlog_queue(self, primary: str, name: str) -> BacklogQueue | None:
        """One queue of the namespace; None when there is none of this name. PairingError when a topic has it."""
        try:
            with self._client() as client:
                if _is_topic(client, name):
                    raise PairingError(
                        f"the topic {name!r} of the secondary has its name, and messages sent to a topic would not be "
                        "kept; delete that topic and pair again"
                    )
                return queues.read(primary, client.get_queue(name))
        except ResourceNotFoundError:
            return None
        except (ClientAuthenticationError, HttpResponseError) as error:
            raise _translated(error) from error


def _is_topic(client: ServiceBusAdministrationClient, name: str) -> bool:
    try:
        client.get_topic(name)
    except (ResourceNotFoundError, AttributeError):
        # The SDK reads whatever has the name, and finds no description of a topic in it.
        return False
    return True


def _translated(error: Exception) -> Exception:
    status = getattr(error, "status_code", None)
    return (
        NoManageRight(str(error))
        if status in _FORBIDDEN or isinstance(error, ClientAuthenticationError)
        else error
    )
