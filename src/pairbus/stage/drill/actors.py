"""Those who send probes and those who receive them: threads that never give up while the drill lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.drain.client import PairedServiceBusClient
from pairbus.pairing.clock import steady_ms
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.rules.health import Health
from pairbus.pairing.rules.trigger import counts
from pairbus.sdk.failures import IN_DOUBT, classify
from pairbus.stage.drill.book import Book, Refused
from pairbus.stage.drill.places import Place
from pairbus.stage.drill.plan import PROPERTY

AGAIN_SECONDS: Final = 0.2
"""Between two attempts of a caller whose send was refused."""
RECEIVE_SECONDS: Final = 1.0
RECEIVE_MAX: Final = 100
TEXT_MAX: Final = 200


class Doubts:
    """The documented trigger, which also notes whose send was left in doubt: a send is judged in its own thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._mine = threading.local()

    def sending(self, message_id: str | None) -> None:
        """What this thread sends from now on."""
        self._mine.message_id = message_id

    def __call__(self, error: BaseException) -> bool:
        """Whether an error counts as the primary's failure."""
        message_id = getattr(self._mine, "message_id", None)
        if message_id is not None and classify(error) in IN_DOUBT:
            self._book.doubt(message_id)
        # The calm before the outage has seen to it that the entity accepted sends.
        return counts(error, "documented", has_accepted=True)


class Prober:
    """Sends probes to one place, steadily; a probe that is refused is sent again, as a careful caller would.

    Args:
        client: The paired client.
        place: Where to.
        stem: What the message ids of this place begin with.
        drill: The drill's id, which marks every probe.
        rate: Probes a second.
        timeout: Seconds that a caller waits for one send.
        book: Where it writes what it was told.
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
        self._client = client
        self._place = place
        self._stem = stem
        self._drill = drill
        self._pause = 1 / rate
        self._timeout = timeout
        self._book = book
        self._doubts = doubts
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probe {place.entity}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_leave(self) -> None:
        """Leave when the send under way has ended."""
        self._leave.set()

    def join(self, seconds: float) -> bool:
        """Wait until it has left; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        make: Any = self._client.get_topic_sender if self._place.is_topic else self._client.get_queue_sender
        number = 0
        with make(self._place.entity) as sender:
            while not self._leave.wait(self._pause):
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
        while True:
            if self._send(sender, message, message_id) or self._leave.wait(AGAIN_SECONDS):
                return

    def _send(self, sender: Any, message: ServiceBusMessage, message_id: str) -> bool:
        parked, doubts, begun = self._report()[1], self._book.doubts(message_id), steady_ms()
        try:
            sender.send_messages(message, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller was not told "accepted"
            self._book.waited(message_id, steady_ms() - begun)
            if outcome_of(error) == "unknown" and self._book.doubts(message_id) == doubts:
                self._book.doubt(message_id)
            text = f"{type(error).__name__}: {error}".splitlines()[0][:TEXT_MAX]
            self._book.refused(Refused(self._place.entity, steady_ms(), self._report()[0], text))
            return False
        now = steady_ms()
        self._book.waited(message_id, now - begun)
        # One sender for each entity: what the client parked meanwhile is this one.
        self._book.accepted(message_id, now, is_parked=self._report()[1] > parked)
        return True

    def _report(self) -> tuple[Health, int]:
        report = self._client.health().get(self._place.entity)
        return (Health.HEALTHY, 0) if report is None else (report.state, report.parked)


class Reader:
    """Receives and completes what arrives at a place of the drill's own, and writes it down."""

    def __init__(self, connect: Callable[[], ServiceBusClient], place: Place, book: Book) -> None:
        assert place.is_read, "what others are waiting for is not ours to take"
        self._connect = connect
        self._place = place
        self._book = book
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"read {place.entity}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self, seconds: float) -> None:
        """End, at the latest with the receive under way."""
        self._leave.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                with self._connect() as client, self._receiver(client) as receiver:
                    while not self._leave.is_set():
                        self._receive(receiver)
            except Exception:  # noqa: BLE001 - the primary is away, as a drill will have it: come again
                self._leave.wait(AGAIN_SECONDS)

    def _receiver(self, client: ServiceBusClient) -> Any:
        if self._place.subscription is not None:
            return client.get_subscription_receiver(self._place.entity, self._place.subscription)
        return client.get_queue_receiver(self._place.entity)

    def _receive(self, receiver: Any) -> None:
        messages = receiver.receive_messages(max_message_count=RECEIVE_MAX, max_wait_time=RECEIVE_SECONDS)
        self._book.polled(len(messages))
        for message in messages:
            receiver.complete_message(message)
            self._book.got(str(message.message_id), int(message.sequence_number or 0), steady_ms())
