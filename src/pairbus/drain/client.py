"""The public synchronous client: the paired client that may host the pumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pairbus.drain.hosting import DrainThread, build
from pairbus.drain.shell import Syphon
from pairbus.drain.told import KINDS
from pairbus.pairing._sync.client import PairedServiceBusClient as _Paired
from pairbus.pairing.errors import ScheduledMessageGoneError
from pairbus.pairing.events import Kind
from pairbus.sdk.async_client import asynchronous

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient as AsyncClient

    from pairbus.drain.ledger import Ledger
    from pairbus.pairing.rules.health import EntityHealth
    from pairbus.pairing.scheduled import ParkedSchedule
    from pairbus.pairing.statistics import Statistics

CANCEL_SECONDS: Final = 60.0


class PairedServiceBusClient(_Paired):
    """A Service Bus client that goes on sending when its primary namespace does not answer."""

    __doc__ = _Paired.__doc__
    _thread: DrainThread | None = None
    _syphon: Syphon | None = None

    def _start_syphon(self) -> None:
        thread = DrainThread(self._make_syphon, self._syphon_failed)
        self._syphon = thread.start()
        self._thread = thread
        self._state.tell(Kind.SYPHON_STARTED, self._state.primary, f"{len(self._state.drained_queues)} pumps")

    def _syphon_failed(self, error: Exception) -> None:
        text = f"the pumps have failed: {error!r}; close the client and make a new one"
        self._state.tell(Kind.SYPHON_STOPPED, self._state.primary, text, is_loud=True)

    def _make_syphon(self) -> tuple[Syphon, Ledger, list[AsyncClient]]:
        clients = [asynchronous(self.primary), asynchronous(self.secondary)]
        syphon, book = build(
            clients[0],
            clients[1],
            self._state.drained_queues,
            name=self._state.primary,
            identity=self._identity,
            counters=self._state.counters,
            ledger=self.ledger,
            not_found=self.not_found,
            life=self.options.time_to_live,
            is_blocked=self._state.is_failed_over,
            tell=self._tell,
        )
        return syphon, book, clients

    def _stop_syphon(self, seconds: float) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop(seconds)
            self._state.tell(Kind.SYPHON_STOPPED, self._state.primary, "the pumps have ended")

    def _changed(self, record: EntityHealth) -> None:
        super()._changed(record)
        if self._thread is not None and record.is_healthy:
            self._thread.call(Syphon.wake)

    def _cancel_parked(self, handles: Sequence[ParkedSchedule], timeout: float | None) -> None:
        seconds = timeout or CANCEL_SECONDS
        for handle in handles:
            thread = self._thread
            if thread is not None and thread.withdraw(handle, seconds):
                continue
            try:
                super()._cancel_parked([handle], timeout)
            except ScheduledMessageGoneError:
                # Our own pump may have been about to receive it when it was asked first.
                if thread is None or not thread.withdraw(handle, seconds):
                    raise

    def _tell(self, kind: str, subject: str, text: str) -> None:
        if kind in KINDS:  # a paired client's own health events say which destinations are away
            self._state.tell(KINDS[kind], subject, text)

    def statistics(self) -> Statistics:
        """A frozen picture of the counters."""
        if self._syphon is None:
            return super().statistics()
        return self._state.statistics(self._syphon.oldest_age_ms(), self._syphon.drain_rate_per_s())
