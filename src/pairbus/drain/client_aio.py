"""The public asynchronous client: the paired client that may host the pumps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pairbus.drain.hosting import STOP_SHARE, build
from pairbus.drain.shell import STOP_SECONDS
from pairbus.drain.told import KINDS
from pairbus.pairing._async.client import PairedServiceBusClient as _Paired
from pairbus.pairing.errors import ScheduledMessageGoneError
from pairbus.pairing.events import Kind

if TYPE_CHECKING:
    from pairbus.drain.ledger import Ledger
    from pairbus.drain.shell import Syphon
    from pairbus.pairing.rules.health import EntityHealth
    from pairbus.pairing.scheduled import ParkedSchedule
    from pairbus.pairing.statistics import Statistics


class PairedServiceBusClient(_Paired):
    """A Service Bus client that goes on sending when its primary namespace does not answer."""

    __doc__ = _Paired.__doc__
    _syphon: Syphon | None = None
    _running: asyncio.Task[None] | None = None

    async def _start_syphon(self) -> None:
        self._syphon, book = build(
            self.primary,
            self.secondary,
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
        self._running = asyncio.get_running_loop().create_task(self._run(self._syphon, book))
        self._state.tell(Kind.SYPHON_STARTED, self._state.primary, f"{len(self._state.drained_queues)} pumps")

    async def _run(self, syphon: Syphon, book: Ledger) -> None:
        try:
            await syphon.run()
        except Exception as error:  # noqa: BLE001 - told: without pumps the backlog only grows
            text = f"the pumps have failed: {error!r}; close the client and make a new one"
            self._state.tell(Kind.SYPHON_STOPPED, self._state.primary, text, is_loud=True)
        finally:
            book.close()

    async def _stop_syphon(self, seconds: float) -> None:
        running, self._running = self._running, None
        if running is None or self._syphon is None:
            return
        self._syphon.stop(min(STOP_SECONDS, seconds * STOP_SHARE))
        _, late = await asyncio.wait([running], timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.wait([running], timeout=1.0)
        self._state.tell(Kind.SYPHON_STOPPED, self._state.primary, "the pumps have ended")

    def _changed(self, record: EntityHealth) -> None:
        super()._changed(record)
        if self._syphon is not None and record.is_healthy:
            self._syphon.wake()

    async def _cancel_parked(self, handles: Sequence[ParkedSchedule], timeout: float | None) -> None:  # noqa: ASYNC109 - the SDK's word
        for handle in handles:
            syphon = self._syphon
            if syphon is not None and await _withdrawn(syphon, handle):
                continue
            try:
                await super()._cancel_parked([handle], timeout)
            except ScheduledMessageGoneError:
                # Our own pump may have been about to receive it when it was asked first.
                if syphon is None or not await _withdrawn(syphon, handle):
                    raise

    def _tell(self, kind: str, subject: str, text: str) -> None:
        if kind in KINDS:  # a paired client's own health events say which destinations are away
            self._state.tell(KINDS[kind], subject, text)

    def statistics(self) -> Statistics:
        """A frozen picture of the counters."""
        if self._syphon is None:
            return super().statistics()
        return self._state.statistics(self._syphon.oldest_age_ms(), self._syphon.drain_rate_per_s())


async def _withdrawn(syphon: Syphon, handle: ParkedSchedule) -> bool:
    return await syphon.withdraw(handle.queue, handle.message_id, (handle.factory, handle.detour))
