"""Under fire: a topic whose copies must come all or none, and chains of forwarding that lose and double nothing."""

from __future__ import annotations

from itertools import count
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.soak.kill_history import Operation, Place
from tests.soak.kill_load import LOCK_SECONDS, Actor, Drain, Receiver, Sender, Yard, body_of

TOPIC, FAN_EXIT = "fan", "fan-exit"
ENTRANCE, MIDDLE, EXIT, GRAVES = "entrance", "middle", "exit", "graves"
LOCK = f"PT{LOCK_SECONDS}S"
COPIES = {"all": "1=1", "even": "parity = 'even'", "red": "colour = 'red'", "onward": "1=1"}
"""The subscriptions and their filters; the last one forwards."""


def configuration() -> dict[str, Any]:
    """The topic, in the words of the emulator's configuration."""
    subscriptions = []
    for name, expression in COPIES.items():
        properties: dict[str, Any] = {"LockDuration": LOCK}
        if name == "onward":
            properties["ForwardTo"] = FAN_EXIT
        rule = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
        subscriptions.append(
            {"Name": name, "Properties": properties, "Rules": [{"Name": "only", "Properties": rule}]}
        )
    return {"Topics": [{"Name": TOPIC, "Properties": {}, "Subscriptions": subscriptions}]}


def queues() -> list[Any]:
    """The chain, last first: a target must be there before its source."""
    from pairbus.testing import Queue

    return [
        Queue(GRAVES, lock_duration=LOCK),
        Queue(EXIT, lock_duration=LOCK, forward_dead_lettered_messages_to=GRAVES),
        Queue(MIDDLE, forward_to=EXIT),
        Queue(ENTRANCE, forward_to=MIDDLE),
        Queue(FAN_EXIT, lock_duration=LOCK),
    ]


def path_of(subscription: str) -> str:
    """Where a subscription's copies are to be found."""
    return FAN_EXIT if subscription == "onward" else f"{TOPIC}/{subscription}"


def matches(properties: dict[str, str]) -> list[str]:
    """The subscriptions that must get a copy, by a second reading of the filters."""
    wanted = {"even": properties["parity"] == "even", "red": properties["colour"] == "red"}
    return [name for name in COPIES if wanted.get(name, True)]


class Publisher(Actor):
    """Publishes single messages and batches; each copy is a send of its own in the history."""

    def __init__(self, yard: Yard, name: str) -> None:
        super().__init__(yard, name)
        self._publishes = count(1)

    def work(self, client: ServiceBusClient) -> None:
        with client.get_topic_sender(TOPIC) as sender:
            while self.goes_on():
                self.publish(sender)
                self.pause(0.06)

    def publish(self, sender: Any) -> None:
        batch = f"{self.name}/{next(self._publishes)}"
        messages, lines = [], []
        for _ in range(self.random.choice((1, 1, 1, 3))):
            uid = f"{self.name}-{next(self._uids)}"
            properties = {
                "parity": self.random.choice(("even", "odd")),
                "colour": self.random.choice(("red", "blue")),
            }
            named: dict[Any, Any] = dict(properties)
            body = body_of(uid, self.random.choice((10, 500, 3000)))
            messages.append(ServiceBusMessage(body, application_properties=named))
            lines += [
                {"entity": path_of(name), "uid": f"{uid}@{name}", "batch": batch, "promise": "B15"}
                for name in matches(properties)
            ]
        self.tell(Operation.SEND, lambda: sender.send_messages(messages), lines)


class CopyReceiver(Receiver):
    """Receives and settles the copies of one subscription, or what it forwarded."""

    def __init__(self, yard: Yard, name: str, subscription: str, place: Place = Place.MAIN) -> None:
        Receiver.__init__(self, yard, name, path_of(subscription), place)
        self.subscription = subscription

    def opened(self, client: ServiceBusClient, **options: Any) -> Any:
        if self.subscription == "onward":
            return super().opened(client, **options)
        if self.place is Place.DEAD_LETTER:
            options["sub_queue"] = "deadletter"
        return client.get_subscription_receiver(TOPIC, self.subscription, **options)

    def copy_of(self, uid: str) -> str:
        return f"{uid}@{self.subscription}"


class GraveReceiver(Receiver):
    """Reads the queue that dead letters are forwarded to: an ordinary queue, and a dead letter's last place."""

    def opened(self, client: ServiceBusClient, **options: Any) -> Any:
        return client.get_queue_receiver(self.entity, **options)


class CopyDrain(CopyReceiver, Drain):
    """The last reader of a subscription."""

    def __init__(self, yard: Yard, subscription: str) -> None:
        CopyReceiver.__init__(self, yard, "drain", subscription)


class GraveDrain(GraveReceiver, Drain):
    """The last reader of the queue of forwarded dead letters."""

    def __init__(self, yard: Yard) -> None:
        Receiver.__init__(self, yard, "drain", GRAVES, Place.DEAD_LETTER)


def crew(yard: Yard) -> list[Actor]:
    """Publishers, forwarders and their readers. One subscription is read by nobody until the end."""
    return [
        *(Publisher(yard, f"publisher{i}") for i in range(2)),
        *(CopyReceiver(yard, f"reader-{name}", name) for name in ("all", "even", "onward")),
        *(Sender(yard, f"forwarder{i}", ENTRANCE, [], EXIT) for i in range(2)),
        Receiver(yard, "exit-receiver", EXIT),
        GraveReceiver(yard, "grave-receiver", GRAVES, Place.DEAD_LETTER),
    ]


def drain(yard: Yard, client: ServiceBusClient) -> None:
    """Read everything that is left, wherever it lies."""
    for subscription in COPIES:
        reader = CopyDrain(yard, subscription)
        reader.empty(client, Place.MAIN)
        reader.place = Place.DEAD_LETTER
        reader.empty(client, Place.DEAD_LETTER)
    last = Drain(yard, EXIT)
    last.empty(client, Place.MAIN)
    GraveDrain(yard).empty(client, Place.DEAD_LETTER)
    for stop in (ENTRANCE, MIDDLE, EXIT, f"{TOPIC}/Subscriptions/onward"):
        assert_nothing_is_stuck(client, stop)


def assert_nothing_is_stuck(client: ServiceBusClient, path: str) -> None:
    """Everything could be passed on, so nothing may lie in a transfer dead-letter queue."""
    with client.get_queue_receiver(f"{path}/$Transfer/$DeadLetterQueue") as receiver:
        stuck = receiver.peek_messages(10)
    assert not stuck, f"{path} could not pass on {len(stuck)} messages: {stuck[0].dead_letter_reason}"
