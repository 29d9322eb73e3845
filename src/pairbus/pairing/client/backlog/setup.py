"""Pairing: find or create the backlog queues in the secondary, and decide which of them may be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import OtherPrimaryError, PairingError
from pairbus.pairing.client.backlog.management import Management
from pairbus.pairing.errors import NoBacklogQueuesError
from pairbus.pairing.events import Kind
from pairbus.pairing.naming import backlog_index
from pairbus.pairing.parking import passport_primary
from pairbus.pairing.rules.queues import BacklogQueue, name_of, take_census
from pairbus.sdk.failures import Failure, classify, shown
from pairbus.sdk.links import handlers
from pairbus.sdk.management.admin import NoManageRight

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient

PROBE_SECONDS: Final = 10.0
QUICK_SECONDS: Final = 5
"""Seconds that pairing gives a silent secondary when a spool can take messages until it answers."""
READ_MS: Final = 60_000
"""How long after a queue was created again the drain may still find out that the one before was deleted."""
UNREACHABLE: Final = (Failure.TIMEOUT, Failure.CONNECTION)
"""The secondary does not answer. A client with a spool may be paired all the same, and sets it up later."""


class Setup:
    """Sets up the backlog queues of one paired client."""

    def __init__(self, client: PairedClient[Any, Any], options: dict[str, Any]) -> None:
        self._client = client
        self._state = client._state
        self._identity = client._identity
        self._runtime = client._runtime
        self._management = Management(client._runtime, client.secondary, options)
        quick = {"read_timeout": QUICK_SECONDS, "connection_timeout": QUICK_SECONDS, **options}
        self._quick_management = Management(client._runtime, client.secondary, quick)
        self._count = client.options.backlog_queue_count
        self._being_created: set[str] = set()
        self._created_ms: dict[str, int] = {}
        self._may_manage = True

    async def usable_queues(self, *, is_quick: bool = False) -> list[str]:
        """The names of the backlog queues that may be used; missing ones are created. Raises NoBacklogQueuesError.

        ``is_quick``: give a silent secondary up soon, because it is asked again later.
        """
        primary, count = self._state.primary, self._count
        management = self._quick_management if is_quick else self._management
        try:
            found = await management.backlog_queues(primary)
        except NoManageRight as error:
            return await self._queues_that_open(error)
        except Exception as error:
            raise NoBacklogQueuesError(
                f"the secondary {self._state.secondary} cannot be asked for its queues: {error}"
            ) from error
        self._state.drained_only, self._state.extra_queues = [], []
        census = take_census(found, count)
        self._check_owner(found)
        for queue in census.extra:
            held = await self._management.message_count(queue.name)
            text = f"beyond the count of {count}: not used, not drained; it holds {held} messages"
            if held != 0:
                self._state.extra_queues.append(queue.name)
                text += f". `pairbus backlog drain {queue.name}` delivers them, or give a backlog_queue_count of {queue.index + 1} or more"
            self._state.emit(Kind.EXTRA_QUEUE, queue.name, text, messages=held)
        existing = dict(census.existing)
        usable: list[int] = []
        last: Exception | None = None
        for index in census.missing:
            self._state.queue_lost(name_of(primary, index))  # says nothing about one that was not used before
            try:
                created = await self._create(index)
                if created is None:
                    usable.append(index)
                else:
                    existing[index] = created
            except OtherPrimaryError:
                raise
            except Exception as error:  # noqa: BLE001 - pairing succeeds with the other queues
                last = error
                self._state.emit(Kind.QUEUE_UNUSABLE, name_of(primary, index), str(error), is_loud=True)
                if error.__cause__ is not None and classify(error.__cause__) in UNREACHABLE:
                    break  # each further queue would take as long
        for index, queue in existing.items():
            self._report_differences(queue)
            if queue.obstacle:
                last = PairingError(f"{queue.name}: {queue.obstacle}")
                self._state.drained_only.append(queue.name)
                self._state.emit(Kind.QUEUE_UNUSABLE, queue.name, queue.obstacle, is_loud=True)
            else:
                usable.append(index)
        if not usable:
            raise NoBacklogQueuesError(
                f"none of the {count} backlog queues of {primary!r} can be used in {self._state.secondary}: {last}"
            ) from last
        return [name_of(primary, index) for index in sorted(usable)]

    async def create_again(self, name: str, since_ms: int, seconds: float) -> bool:
        """Create a backlog queue that somebody has deleted. True when it is there again.

        Of several sends that miss it one creates it, and the others wait for that.

        Args:
            name: The queue.
            since_ms: When the send that missed it began: a queue created after that is there.
            seconds: How long to wait for another send that creates it.
        """
        index = backlog_index(self._state.primary, name)
        if index is None:
            return False
        if not self._may_manage:
            self._state.queue_lost(name)
            return False
        until_ms = self._state.clock() + int(seconds * 1000)
        while True:
            with self._state.lock:
                token = self._runtime.change_token()
                if self._created_ms.get(name, -1) >= since_ms:
                    return True
                if name not in self._being_created:
                    self._being_created.add(name)
                    break
            left_ms = until_ms - self._state.clock()
            if left_ms <= 0 or self._client._is_ended:
                return False
            await self._runtime.wait_for_change(token, left_ms / 1000)
        is_there = False
        try:
            self._state.queue_lost(name)
            found = await self._create(index)
            is_there = found is None or not found.obstacle
        except PairingError as error:
            self._may_manage = not isinstance(error.__cause__, NoManageRight)
            self._state.emit(Kind.QUEUE_UNUSABLE, name, f"it was deleted, and {error}", is_loud=True)
        finally:
            with self._state.lock:
                self._being_created.discard(name)
                if is_there:
                    self._created_ms[name] = self._state.clock()
            self._runtime.notify()
        return is_there

    def found_missing(self, name: str, since_ms: int) -> None:
        """Tell that a backlog queue was deleted, unless this client has created it again since the work that misses it began."""
        with self._state.lock:
            if self._created_ms.get(name, -1) < since_ms:
                self._state.queue_lost(name)

    def read_in_vain(self, name: str) -> None:
        """The drain found that a queue is missing. When it began to read is not known."""
        self.found_missing(name, self._state.clock() - READ_MS)

    async def _create(self, index: int) -> BacklogQueue | None:
        """Create a backlog queue; None when that was done, or what another client has created meanwhile.

        Raises PairingError when something else has the name.
        """
        primary = self._state.primary
        name = name_of(primary, index)
        try:
            if await self._management.create(name, self._identity.address):
                self._state.emit(Kind.QUEUE_CREATED, name, "created")
                return None
            found = await self._management.backlog_queue(primary, name)
        except Exception as error:
            raise PairingError(f"cannot be created: {error}") from error
        if found is None:
            raise PairingError(
                f"cannot be created: the secondary says that {name!r} exists, and then that it does not; pair again"
            )
        self._check_owner([found])
        return found

    def _check_owner(self, queues: Sequence[BacklogQueue]) -> None:
        """Raise OtherPrimaryError when a backlog queue was created for another primary of the same name."""
        for queue in queues:
            if not self._identity.accepts(queue.owner):
                raise OtherPrimaryError(queue.name, queue.owner, self._identity.address)

    def _report_differences(self, queue: BacklogQueue) -> None:
        for text in queue.differences:
            self._state.emit(Kind.PROPERTY_DIFFERENCE, queue.name, text)
        for text in queue.dangers:
            self._state.emit(Kind.PROPERTY_DIFFERENCE, queue.name, text, is_loud=True)

    async def _check_is_queue(self, name: str) -> None:
        """Raise PairingError when an entity that can be sent to is no plain queue, as far as the credential lets it be seen.

        A topic accepts sends and keeps nothing without a subscription. Only a receiver is refused there.
        """
        receiver = self._client.secondary.get_queue_receiver(name)
        handlers.set_retries(receiver, 0)
        try:
            async with self._runtime.limit(receiver, PROBE_SECONDS):
                page = await self._runtime.call(receiver.peek_messages, max_message_count=1)
        except Exception as error:
            if classify(error) is Failure.INVALID:
                raise PairingError(f"it is no queue that messages can be parked in: {error}") from error
            self._client._checks.found(name, error)
            return  # most often it may send only, and cannot look
        finally:
            await self._client._close_quietly(receiver)
        for message in page:
            owner = passport_primary(message.application_properties)
            if not self._identity.accepts(owner):
                raise OtherPrimaryError(name, owner, self._identity.address)

    async def _queues_that_open(self, reason: Exception) -> list[str]:
        """Without the right to manage: a queue whose link opens for sending exists."""
        usable = []
        last: Exception = reason
        for index in range(self._count):
            name = name_of(self._state.primary, index)
            sender = self._client.secondary.get_queue_sender(name)
            handlers.set_retries(sender, 0)
            try:
                async with self._runtime.limit(sender, PROBE_SECONDS):
                    await self._runtime.call(sender.create_message_batch)
                await self._check_is_queue(name)
                usable.append(name)
            except OtherPrimaryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, this queue cannot be used
                last = error
                self._state.emit(
                    Kind.QUEUE_UNUSABLE, name, shown(error), is_loud=isinstance(error, PairingError)
                )
            finally:
                await self._client._close_quietly(sender)
        if not usable:
            raise NoBacklogQueuesError(
                f"the credential is wrong or may not manage {self._state.secondary}, and no backlog queue of "
                f"{self._state.primary!r} is open for sending there: create the queues, or give a credential with "
                f"Manage; the last error: {shown(last)}"
            ) from last
        return usable
