"""Sends the drill's probes through the paired client and notes what each caller learned."""

from __future__ import annotations

import threading
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.rules.health import Health
from pairbus.pairing.rules.trigger import counts
from pairbus.sdk.failures import IN_DOUBT, classify
from pairbus.stage.actors import AGAIN_SECONDS, Actor
from pairbus.stage.book import Book, Refusal
from pairbus.stage.drill.places import Place
from pairbus.stage.drill.plan import PROPERTY

TEXT_MAX: Final = 200


class Doubts:
    """The documented trigger, which also notes whose send was left in doubt: a send is judged in its own thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._mine = threading.local()

    def sending(self, message_id: str) -> None:
        """Name the message that this thread sends from now on."""
        self._mine.message_id = message_id

    def __call__(self, error: BaseException) -> bool:
        """Whether an error counts as the primary's failure."""
        message_id = getattr(self._mine, "message_id", None)
        if message_id is not None and classify(error) in IN_DOUBT:
            self._book.doubt(message_id)
        # The calm before the outage has shown that the entity accepts sends.
        return counts(error, "documented", has_accepted=True)


class Prober(Actor):
    """Sends probes to one place at a steady rate; a probe that is refused is sent again, as a careful caller would.

    Args:
        client: The paired client.
        place: The entity to send to.
        stem: What the message ids of this place begin with.
        drill: The drill's id, which marks every probe.
        rate: Probes a second.
        timeout: Seconds that a caller waits for one send.
        book: Where it writes what it learned.
        doubts: The client's trigger.
    """

    def __init__(
        self,
        client: PairedServiceBusClient,
        place: Place,
        *,
        stem: str,
        drill: str,
        rate: float,
        timeout: float,
        book: Book,
        doubts: Doubts,
    ) -> None:
        super().__init__(f"probe {place.entity}")
        self._client = client
        self._place = place
        self._stem = stem
        self._drill = drill
        self._pause = 1 / rate
        self._timeout = timeout
        self._book = book
        self._doubts = doubts

    def run(self) -> None:
        make: Any = self._client.get_topic_sender if self._place.is_topic else self._client.get_queue_sender
        number = 0
        with make(self._place.entity) as sender:
            while not self._ending.wait(self._pause):
                number += 1
                self._probe(sender, f"{self._stem}{number}")

    def _probe(self, sender: Any, message_id: str) -> None:
        message = ServiceBusMessage(
            f"a probe of the drill {self._drill}",
            message_id=message_id,
            session_id=self._place.session,
            subject="pairbus drill",
            application_properties={PROPERTY: self._drill},
        )
        self._book.begin(self._place.entity, message_id, steady_ms())
        self._doubts.sending(message_id)
        while not self._send(sender, message, message_id) and not self._ending.wait(AGAIN_SECONDS):
            pass

    def _send(self, sender: Any, message: ServiceBusMessage, message_id: str) -> bool:
        parked, doubts, begun = self._report()[1], self._book.doubts(message_id), steady_ms()
        try:
            sender.send_messages(message, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - whatever it was, the probe does not count as accepted
            self._book.waited(message_id, steady_ms() - begun)
            if outcome_of(error) == "unknown" and self._book.doubts(message_id) == doubts:
                self._book.doubt(message_id)
            text = f"{type(error).__name__}: {error}".splitlines()[0][:TEXT_MAX]
            self._book.refused(Refusal(self._place.entity, steady_ms(), self._report()[0], text))
            return False
        now = steady_ms()
        self._book.waited(message_id, now - begun)
        # There is one sender for each entity: a message that the client parked meanwhile is this one.
        self._book.accepted(message_id, now, is_parked=self._report()[1] > parked)
        return True

    def _report(self) -> tuple[Health, int]:
        report = self._client.health().get(self._place.entity)
        return (Health.HEALTHY, 0) if report is None else (report.state, report.parked)
