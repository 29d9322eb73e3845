"""The entities of a simulated world with those who use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC, Settings
from tests.simulation.broker.changes import FICKLE, Administrator, PatientConsumer, PatientProducer
from tests.simulation.broker.consumers import DEAD_LETTER, Consumer, SessionConsumer
from tests.simulation.broker.producers import Producer, Workload
from tests.simulation.broker.transactions import Transactor

if TYPE_CHECKING:
    from tests.simulation.broker.scene import Scene

_TRUE: Final = '{"name":"all","created_at":0,"filter":{"kind":"true"},"action":null}'
_SOME: Final = '{"name":"some","created_at":0,"filter":{"kind":"sql","expression":"n > 1","parameters":{}},"action":null}'
ENTITIES: Final = (
    (QUEUE, "orders", Settings(lock_duration_ms=5_000, max_delivery_count=3, max_message_kb=2)),
    (QUEUE, "slots", Settings(lock_duration_ms=5_000, requires_session=True, max_delivery_count=4)),
    (
        QUEUE,
        "once",
        # The window outlasts every step of the clock: a step forward counts as time that has passed (B65).
        Settings(lock_duration_ms=5_000, requires_duplicate_detection=True, duplicate_window_ms=3_600_000),
    ),
    (
        QUEUE,
        "brief",
        Settings(
            lock_duration_ms=5_000, default_ttl_ms=6_000, dead_letter_on_expiration=True, max_delivery_count=2
        ),
    ),
    (QUEUE, "relay", Settings(forward_to="orders")),
    (QUEUE, "till", Settings(lock_duration_ms=5_000, max_delivery_count=1_000)),
    (QUEUE, "books", Settings(lock_duration_ms=5_000)),
    (QUEUE, FICKLE, Settings(lock_duration_ms=5_000, max_delivery_count=50)),
    (TOPIC, "news", Settings()),
    (SUBSCRIPTION, "news/Subscriptions/all", Settings(rules=(_TRUE,), lock_duration_ms=5_000)),
    (SUBSCRIPTION, "news/Subscriptions/some", Settings(rules=(_SOME,), lock_duration_ms=5_000)),
)


def _to_orders(_: int) -> tuple[str, ...]:
    return ("orders",)


def _to_subscriptions(kind: int) -> tuple[str, ...]:
    everybody = ("news/Subscriptions/all",)
    return (*everybody, "news/Subscriptions/some") if kind > 1 else everybody


WORKLOADS: Final = {
    "orders": Workload("orders", schedules=0.1, refusals=0.1),
    "slots": Workload("slots", sessions=3, schedules=0.05),
    "once": Workload("once", retries=True, schedules=0.1),
    "brief": Workload("brief", ttl_ms=(0, 1_000, 4_000)),
    "relay": Workload("relay", destinations=_to_orders),
    "till": Workload("till"),
    FICKLE: Workload(FICKLE),
    "news": Workload("news", schedules=0.1, destinations=_to_subscriptions),
}


def settle_in(world: Scene, messages: int, consumers: int) -> None:
    """Draw what this world is about, and who lives in it."""
    chance = world.chance
    chosen = chance.sample(list(WORKLOADS), chance.choice((1, 2, 3)))
    if "relay" in chosen and "orders" not in chosen:
        chosen.append("orders")
    for name in chosen:
        share = messages // len(chosen)
        if name == FICKLE:
            world.administrator = Administrator(world)
            producer = PatientProducer(world, f"producer-{name}", WORKLOADS[name], share)
            producer.administrator = world.administrator
        else:
            Producer(world, f"producer-{name}", WORKLOADS[name], share)
        for path in _places(name):
            for number in range(consumers):
                _employ(world, f"consumer-{path}-{number}", path, number)
            undertaker = PatientConsumer if path == FICKLE else Consumer
            undertaker(world, f"undertaker-{path}", path + DEAD_LETTER, only_in_calm=chance.random() < 0.5)


def _employ(world: Scene, name: str, path: str, number: int) -> None:
    if path == "slots":
        SessionConsumer(world, name, path)
    elif path == "till":
        Transactor(world, name, path, "books")
    elif path == FICKLE:
        PatientConsumer(world, name, path)
    else:
        deletes = number > 0 and path != "books" and world.chance.random() < 0.3
        Consumer(world, name, path, deletes=deletes)


def _places(name: str) -> tuple[str, ...]:
    if name == "news":
        return _to_subscriptions(3)
    if name == "till":
        return ("till", "books")
    return () if name == "relay" else (name,)
