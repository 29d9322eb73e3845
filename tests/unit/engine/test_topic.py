"""Topics and forwarding: fan-out, rules, actions, hops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.message.rewrite import application_properties, payload_of
from pairbus.amqp.message.whole import decode_message
from pairbus.engine.entity import Entity
from pairbus.engine.queues.queue import RELAY_BURST_MAX
from pairbus.engine.routing import HOPS_MAX, REASON_HOPS
from pairbus.engine.rules.message_view import MISSING
from pairbus.engine.rules.sql.values import Duration
from pairbus.engine.stored_message import MessageFacts, incoming_of
from pairbus.engine.topic import REASON_FILTER, REASON_NO_SESSION
from pairbus.errors import EntityDisabled, InvalidEntity, NotAllowed
from pairbus.model.entity import RECEIVE_DISABLED, SEND_DISABLED, Settings
from pairbus.model.message import Message
from tests.unit.engine.engine_kit import SECOND, START, Bench, gone, incoming, ping, rule

MINUTE = 60 * SECOND


def body_of(bench: Bench, message: Message) -> object:
    return decode_message(payload_of(bench.journal.read(message.location, message.size))).body


def bodies(bench: Bench, entity: Entity, dead: bool = False) -> list[object]:
    queue = entity.dead_letter if dead else entity.main
    return [body_of(bench, message) for message in queue.messages.values()]


@pytest.mark.promise("B15")
def test_every_matching_subscription_holds_its_copy_in_one_commit(bench: Bench, topic: Entity) -> None:
    all_of_it = bench.subscription("t/Subscriptions/all")
    red = bench.subscription("t/Subscriptions/red", rules=[rule("r", "color = 'red'")])
    none = bench.subscription("t/Subscriptions/none", rules=[])
    for color in ("red", "blue"):
        bench.send(topic, color, properties={"color": color})

    for life in (bench, bench.restart()):
        assert bodies(life, life.find(all_of_it.path)) == ["red", "blue"]
        assert bodies(life, life.find(red.path)) == ["red"]
        assert bodies(life, life.find(none.path)) == []
        assert life.find("t").counts().total == 0


@pytest.mark.promise("B19")
def test_a_copy_has_its_own_number_and_tells_the_topics(bench: Bench, topic: Entity) -> None:
    bench.send(topic)
    subscription = bench.subscription("t/Subscriptions/s")
    assert bench.send(topic) == 2

    message = subscription.main.messages[1]
    assert message.extra is not None
    assert message.extra.enqueue_sequence_number == 2
    again = bench.restart()
    assert again.send(again.find("t")) == 3


@pytest.mark.promise("B20")
def test_a_topics_time_does_not_run_back(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription("t/Subscriptions/s")
    bench.send(topic)
    again = bench.restart(now=START - MINUTE)
    again.send(again.find("t"))

    assert [m.enqueued_at for m in again.find(subscription.path).main.messages.values()] == [START, START]


@pytest.mark.promise("B41", "B49", "B65")
def test_lives_and_windows_of_a_topic_count_from_an_earlier_clock_after_a_restart(bench: Bench) -> None:
    topic = bench.topic("t", Settings(requires_duplicate_detection=True, duplicate_window_ms=MINUTE))
    subscription = bench.subscription("t/Subscriptions/s")
    bench.send(topic, message_id="ahead")

    again = bench.restart(now=START - 60 * MINUTE)
    topic = again.find("t")
    main = again.find(subscription.path).main
    again.send(topic, message_id="m", ttl_ms=5_000)
    assert [message.expires_at for message in main.messages.values()] == [0, again.now + 5_000]

    assert [again.send(topic, message_id="ahead"), again.send(topic, message_id="m")] == [0, 0]
    again.wait(MINUTE)
    assert again.send(topic, message_id="ahead")
    assert again.send(topic, message_id="m")


@pytest.mark.promise("B47")
def test_a_topic_detects_duplicates(bench: Bench) -> None:
    topic = bench.topic("t", Settings(requires_duplicate_detection=True))
    subscription = bench.subscription("t/Subscriptions/s")
    assert bench.send(topic, message_id="m") == 1
    assert bench.send(topic, message_id="m") == 0
    again = bench.restart()
    assert again.send(again.find("t"), message_id="m") == 0
    assert again.send(again.find("t")) == 2
    assert len(subscription.main.messages) == 1


@pytest.mark.promise("P23")
def test_a_ping_to_a_topic_is_never_seen(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription("t/Subscriptions/s")
    assert bench.send(topic, ping()) == 0
    assert not subscription.main.messages


@pytest.mark.promise("B44")
def test_a_message_scheduled_at_a_topic_is_judged_when_it_is_due(bench: Bench, topic: Entity) -> None:
    bench.send(topic, scheduled_at=START + MINUTE)
    assert topic.counts().scheduled == 1
    subscription = bench.subscription("t/Subscriptions/s")
    bench.wait(MINUTE - 1)
    assert not subscription.main.messages
    bench.wait(1)

    assert subscription.counts().active == 1
    assert topic.counts().total == 0
    assert subscription.main.messages[1].enqueued_at == START + MINUTE


def test_a_message_scheduled_at_a_topic_without_subscriptions_goes_nowhere(bench: Bench) -> None:
    topic = bench.topic()
    bench.send(topic, scheduled_at=START + MINUTE)
    bench.wait(MINUTE)
    assert topic.counts().total == 0


def test_time_to_live_is_the_shortest_of_message_topic_and_subscription(bench: Bench) -> None:
    topic = bench.topic("t", Settings(default_ttl_ms=20 * SECOND))
    short = bench.subscription("t/Subscriptions/short", Settings(default_ttl_ms=10 * SECOND))
    long = bench.subscription("t/Subscriptions/long")
    bench.send(topic)
    bench.send(topic, ttl_ms=5 * SECOND)

    assert [m.expires_at - START for m in short.main.messages.values()] == [10 * SECOND, 5 * SECOND]
    assert [m.expires_at - START for m in long.main.messages.values()] == [20 * SECOND, 5 * SECOND]


@pytest.mark.promise("B55", "B56")
def test_one_copy_per_rule_with_an_action_and_one_for_all_others(bench: Bench, topic: Entity) -> None:
    rules = [
        rule("plain-1", "n > 0"),
        rule("plain-2", "n > 1"),
        rule("act-1", "n > 0", "SET mark = 1; REMOVE n; SET sys.Label = 'one'"),
        rule("act-2", "n > 0", "SET mark = newid()"),
    ]
    changed = bench.subscription("t/Subscriptions/changed", rules=rules)
    plain = bench.subscription("t/Subscriptions/plain")
    bench.send(topic, properties={"n": 5, "keep": "é"})

    copies = []
    for message in changed.main.messages.values():
        decoded = decode_message(payload_of(bench.journal.read(message.location, message.size)))
        copies.append((dict(decoded.application_properties), decoded.properties.subject))
    assert copies[0] == ({"n": 5, "keep": "é"}, None)
    assert copies[1] == ({"keep": "é", "mark": 1, "RuleName": "act-1"}, "one")
    assert copies[2][0].keys() == {"n", "keep", "mark", "RuleName"}
    assert len(copies) == 3
    assert len(plain.main.messages) == 1


@pytest.mark.promise("B58")
def test_a_filter_that_fails_affects_its_own_subscription_only(bench: Bench, topic: Entity) -> None:
    bad = [rule("bad", "n / 0 = 1")]
    aside = bench.subscription("t/Subscriptions/aside", rules=bad)
    dropped = bench.subscription(
        "t/Subscriptions/dropped", Settings(dead_letter_on_filter_error=False), rules=bad
    )
    action = bench.subscription("t/Subscriptions/action", rules=[rule("a", "1 = 1", "SET x = n / 0")])
    fine = bench.subscription("t/Subscriptions/fine")
    bench.send(topic, properties={"n": 1})

    assert fine.counts().active == 1
    assert dropped.counts().total == 0
    for entity in (aside, action):
        assert entity.counts().dead_letter == 1
        extra = entity.dead_letter.messages[1].extra
        assert extra is not None
        assert extra.dead_letter_reason == REASON_FILTER
        assert extra.dead_letter_source == entity.path


@pytest.mark.promise("B52")
def test_a_subscription_with_sessions_sets_aside_what_has_none(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription("t/Subscriptions/s", Settings(requires_session=True))
    bench.send(topic)
    bench.send(topic, session_id="a")

    assert (subscription.counts().active, subscription.counts().dead_letter) == (1, 1)
    extra = subscription.dead_letter.messages[1].extra
    assert extra is not None
    assert extra.dead_letter_reason == REASON_NO_SESSION


@pytest.mark.promise("B57")
def test_a_message_is_judged_by_the_rules_of_its_moment(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription("t/Subscriptions/s", rules=[])
    bench.send(topic, "before")
    bench.namespace.update(subscription, Settings(rules=(rule("r", "1 = 1"),)), bench.now)
    bench.send(topic, "after")

    assert bodies(bench, subscription) == ["after"]
    bench.namespace.delete(subscription, bench.now)
    assert bench.send(topic) == 3


def test_rules_see_what_the_broker_knows_of_a_message() -> None:
    facts = MessageFacts(
        incoming(
            ttl_ms=SECOND, scheduled_at=START, partition_key="p", message_id="m", properties={"Color": "red"}
        ),
        7,
        START,
    )
    assert facts.system("timetolive") == Duration(SECOND)
    assert facts.system("enqueuedtimeutc").ms == START  # type: ignore[attr-defined]
    assert facts.system("expiresatutc").ms == START + SECOND  # type: ignore[attr-defined]
    assert facts.system("scheduledenqueuetimeutc").ms == START  # type: ignore[attr-defined]
    assert facts.system("partitionkey") == "p"
    assert facts.system("sequencenumber") == 7
    assert facts.system("deliverycount") == 0
    assert facts.system("size") > 0  # type: ignore[operator]
    assert facts.system("messageid") == "m"
    assert facts.system("label") is MISSING
    assert facts.user("color") == "red"
    assert facts.user("size") is MISSING
    assert facts.new_id() != facts.new_id()
    plain = MessageFacts(incoming(), 1, START)
    for name in ("timetolive", "expiresatutc", "scheduledenqueuetimeutc", "partitionkey"):
        assert plain.system(name) is MISSING


# -- forwarding


@pytest.mark.promise("B50")
def test_a_message_goes_to_where_its_queue_forwards(bench: Bench) -> None:
    bench.queue("target")
    source = bench.entity("source", settings=Settings(forward_to="TARGET"))
    assert source.settings.forward_to == "TARGET", "the letter case it was given"
    bench.send(source, "hello")
    bench.pump()

    for life in (bench, bench.restart()):
        target = life.find("target")
        assert bodies(life, target) == ["hello"]
        assert life.find("source").counts().total == 0
        extra = target.main.messages[1].extra
        assert extra is not None
        assert (extra.hops, extra.enqueue_sequence_number) == (1, 1)


@pytest.mark.promise("B50")
def test_forwarding_goes_on_where_receiving_is_disabled(bench: Bench) -> None:
    """The status refuses what clients ask for. Forwarding is nobody's request."""
    bench.queue("target")
    source = bench.entity("source", settings=Settings(forward_to="target", status=RECEIVE_DISABLED))
    bench.send(source, "hello")
    bench.pump()

    assert bodies(bench, bench.find("target")) == ["hello"]
    with pytest.raises(EntityDisabled):
        source.main.check_receive()


def test_the_size_of_a_topic_counts_every_copy_that_is_stored(bench: Bench) -> None:
    topic = bench.topic()
    one = bench.subscription("t/Subscriptions/one")
    bench.subscription("t/Subscriptions/two")
    bench.send(topic, "hello")
    size = bench.find(one.path).main.messages[1].size

    assert topic.space.stored_bytes == 2 * size
    one.main.complete(bench.receive(one.main), bench.now)
    assert topic.space.stored_bytes == size


@pytest.mark.promise("B50")
def test_a_chain_ends_at_the_hop_limit_in_the_dead_letter_queue(bench: Bench) -> None:
    bench.queue("q5")
    for number in range(4, -1, -1):
        bench.entity(f"q{number}", settings=Settings(forward_to=f"q{number + 1}"))
    bench.send(bench.find("q0"))
    bench.pump()

    stopped = bench.find(f"q{HOPS_MAX}")
    assert bench.find("q5").counts().total == 0
    assert stopped.counts().dead_letter == 1
    extra = stopped.dead_letter.messages[1].extra
    assert extra is not None
    assert extra.dead_letter_reason == REASON_HOPS


@pytest.mark.promise("B50")
def test_dead_letters_that_may_not_go_on_are_set_aside(bench: Bench) -> None:
    bench.queue("q5")
    for number in range(4, -1, -1):
        settings = Settings(forward_to=f"q{number + 1}", forward_dead_letters_to="q5")
        bench.entity(f"q{number}", settings=settings)
    bench.send(bench.find("q0"))
    bench.pump()

    assert bench.find(f"q{HOPS_MAX}").counts().transfer_dead_letter == 1


@pytest.mark.promise("B8", "B38")
def test_dead_letters_are_forwarded_with_their_reason(bench: Bench) -> None:
    target = bench.entity("target")
    source = bench.entity("source", settings=Settings(forward_dead_letters_to="target"))
    bench.send(source)
    source.main.dead_letter(bench.receive(source.main), "tired", None, b"", bench.now)
    bench.pump()

    assert source.counts().total == 0
    extra = target.main.messages[1].extra
    assert extra is not None
    assert extra.dead_letter_reason == "tired"


@pytest.mark.promise("B50")
@pytest.mark.parametrize("trouble", ["gone", "disabled", "sessions"])
def test_what_the_target_refuses_is_set_aside_with_the_reason(trouble: str, bench: Bench) -> None:
    settings = {"disabled": Settings(status=SEND_DISABLED), "sessions": Settings(requires_session=True)}
    target = bench.entity("target", settings=settings.get(trouble))
    source = bench.entity("source", settings=Settings(forward_to="target"))
    if trouble == "gone":
        bench.namespace.delete(target, bench.now)
    bench.send(source)
    bench.pump()

    assert source.counts().transfer_dead_letter == 1
    extra = source.transfer_dead_letter.messages[1].extra
    assert extra is not None
    names = {"gone": "EntityNotFound", "disabled": "EntityDisabled", "sessions": "NotAllowed"}
    assert extra.dead_letter_reason == names[trouble]
    place = source.transfer_dead_letter
    place.complete(bench.receive(place), bench.now)


def test_a_forwarded_message_that_was_scheduled_is_not_scheduled_again(bench: Bench) -> None:
    bench.queue("target")
    source = bench.entity("source", settings=Settings(forward_to="target"))
    bench.send(source, scheduled_at=START + MINUTE)
    bench.wait(MINUTE)

    assert bench.find("target").counts().active == 1


def test_a_subscription_forwards_to_a_queue(bench: Bench) -> None:
    bench.queue("target")
    topic = bench.topic()
    bench.subscription("t/Subscriptions/s", Settings(forward_to="target"))
    bench.send(topic, "hello")
    bench.pump()

    assert bodies(bench, bench.find("target")) == ["hello"]


def _retry_chain(bench: Bench) -> Entity:
    """A queue whose dead letters go to ``second``, which passes everything on to ``last``."""
    bench.queue("last")
    bench.entity("second", settings=Settings(forward_to="last"))
    return bench.entity(
        "first", settings=Settings(dead_letter_on_expiration=True, forward_dead_letters_to="second")
    )


@pytest.mark.promise("B40")
def test_a_forwarded_dead_letter_does_not_regain_its_time_to_live_at_a_later_hop(bench: Bench) -> None:
    first = _retry_chain(bench)
    bench.send(first, ttl_ms=SECOND)
    bench.wait(SECOND)
    last = bench.find("last")

    bench.wait(60 * MINUTE)

    assert last.counts().active == 1
    message = next(iter(last.main.messages.values()))
    assert message.expires_at == 0
    assert message.extra is not None
    assert message.extra.dead_letter_source == "first"


@pytest.mark.promise("B40")
def test_the_time_to_live_of_an_entity_counts_for_a_forwarded_dead_letter(bench: Bench) -> None:
    first = _retry_chain(bench)
    last = bench.find("last")
    bench.namespace.update(last, Settings(default_ttl_ms=MINUTE), bench.now)
    bench.send(first, ttl_ms=SECOND)

    bench.wait(SECOND)
    assert last.counts().active == 1
    bench.wait(MINUTE)

    assert gone(last.main) == 1


@pytest.mark.promise("B40")
def test_a_rule_action_gives_a_forwarded_dead_letter_no_time_to_live(bench: Bench) -> None:
    bench.topic()
    subscription = bench.subscription("t/Subscriptions/s", rules=[rule("mark", "1 = 1", "SET mark = 'seen'")])
    first = bench.entity(
        "first", settings=Settings(dead_letter_on_expiration=True, forward_dead_letters_to="t")
    )
    bench.send(first, ttl_ms=SECOND)

    bench.wait(60 * MINUTE)

    assert subscription.counts().active == 1


def test_what_expired_is_not_forwarded(bench: Bench) -> None:
    bench.queue("target")
    source = bench.entity("source")
    bench.send(source, ttl_ms=SECOND)
    bench.now += SECOND
    bench.namespace.update(source, Settings(forward_to="target"), bench.now)
    bench.pump()

    assert gone(source.main) == 1
    assert bench.find("target").counts().total == 0


@pytest.mark.promise("B50")
def test_forwarding_that_begins_later_moves_what_lies_there_a_burst_at_a_time(bench: Bench) -> None:
    bench.queue("target")
    source = bench.entity("source")
    count = RELAY_BURST_MAX * 8
    for _ in range(count):
        bench.send(source)
    bench.namespace.update(source, Settings(forward_to="target"), bench.now)
    bench.namespace.pump(bench.now)
    assert 0 < source.counts().active < count
    assert bench.namespace.next_deadline() == 0  # the rest is asked for at once, without other traffic

    bench.pump()
    assert bench.find("target").counts().active == count


def test_a_blob_is_read_back_as_it_was_sent() -> None:
    original = incoming("x", message_id="m", session_id="s", ttl_ms=5, partition_key="s")
    again = incoming_of(original.blob)
    assert again.blob == original.blob
    assert (again.message_id, again.session_id, again.ttl_ms, again.partition_key) == (
        original.message_id,
        "s",
        5,
        "s",
    )


@pytest.mark.promise("B50")
def test_a_queue_that_forwards_to_itself_ends_at_the_hop_limit_and_loses_nothing(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(requires_duplicate_detection=True))
    bench.namespace.update(entity, replace(entity.settings, forward_to="Q"), bench.now)
    for name in ("one", "two"):
        bench.send(entity, name, message_id=name)
    bench.pump()

    assert bodies(bench, entity, dead=True) == ["one", "two"]
    assert entity.counts().total == 2
    dead = next(iter(entity.dead_letter.messages.values())).extra
    assert dead is not None
    assert dead.dead_letter_reason == REASON_HOPS


@pytest.mark.promise("B50")
def test_a_queue_may_be_made_to_forward_to_itself_and_a_subscription_may_not(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(forward_to="/Q", forward_dead_letters_to="q"))
    assert (entity.settings.forward_to, entity.settings.forward_dead_letters_to) == ("Q", "q")
    bench.send(entity, "one")
    bench.pump()

    assert entity.counts().total == entity.counts().transfer_dead_letter + entity.counts().dead_letter == 1
    path = "t/Subscriptions/s"
    bench.topic()
    for wrong in (Settings(forward_to=path), Settings(forward_dead_letters_to=path)):
        with pytest.raises(InvalidEntity, match=f"'{path}' is '{path}': no queue or topic has this name"):
            bench.subscription(path, wrong)


@pytest.mark.promise("B50")
def test_dead_letters_that_go_back_to_their_queue_end_at_the_hop_limit(bench: Bench) -> None:
    entity = bench.entity("q", settings=Settings(requires_duplicate_detection=True, max_delivery_count=1))
    bench.namespace.update(entity, replace(entity.settings, forward_dead_letters_to="q"), bench.now)
    bench.send(entity, "one", message_id="one")
    for _ in range(5):
        entity.main.abandon(bench.receive(entity.main), b"", bench.now)
        bench.pump()

    assert entity.counts().transfer_dead_letter == 1
    assert entity.counts().total == 1


@pytest.mark.promise("B50")
def test_a_queue_with_sessions_forwards_each_session_in_its_order(bench: Bench) -> None:
    target = bench.entity("target", settings=Settings(requires_session=True))
    source = bench.entity("source", settings=Settings(requires_session=True))
    for number in range(6):
        bench.send(source, f"{number}", session_id="ab"[number % 2])
    holder = bench.holder(source.main, "a", 2)
    bench.pump()
    bench.namespace.update(source, replace(source.settings, forward_to="target"), bench.now)
    bench.send(source, "6", session_id="c")
    bench.pump()

    assert source.counts().total == 0
    assert [consumer for consumer, _ in bench.outbox.detached] == [holder]
    for session_id, expected in (("a", ["0", "2", "4"]), ("b", ["1", "3", "5"]), ("c", ["6"])):
        found = target.main.messages_of(session_id, 0)
        assert [body_of(bench, message) for message in found] == expected
    with pytest.raises(NotAllowed):
        bench.holder(source.main, "a")


@pytest.mark.promise("B12")
def test_a_queue_with_sessions_keeps_what_the_disk_has_no_room_for(bench: Bench) -> None:
    target = bench.entity("target")
    source = bench.entity("source", settings=Settings(requires_session=True, forward_to="target"))
    for number in range(2):
        bench.send(source, f"{number}", session_id="a")
    bench.journal.room = 0
    bench.pump()
    assert source.counts().active == 2

    bench.journal.room = 1 << 40
    bench.wait(2_000)
    assert bodies(bench, target) == ["0", "1"]


@pytest.mark.promise("B56")
@pytest.mark.parametrize("plain", [True, False])
def test_what_changes_in_one_copy_does_not_show_in_its_sibling(plain: bool, bench: Bench) -> None:
    """A subscription may hold several copies of one message; each is settled by itself."""
    topic = bench.topic()
    rules = [rule("one", "1 = 1", "SET x = 1"), rule("two", "1 = 1", "SET x = 2")]
    if plain:
        rules.insert(0, rule("plain", "1 = 1"))
    subscription = bench.subscription("t/Subscriptions/s", Settings(max_delivery_count=9), rules)
    bench.send(topic, "m", properties={"x": 0})
    changed = b"\xc1\x07\x02\xa1\x01y\xa1\x01z"
    queue = subscription.main
    first = bench.receive(queue)
    queue.abandon(first, changed, bench.now)

    for life in (bench, bench.restart()):
        messages = list(life.find("t/Subscriptions/s").main.messages.values())
        extras = [message.extra for message in messages]
        assert len(messages) == len(rules)
        assert [extra.changed_properties if extra else b"" for extra in extras] == [changed] + [b""] * (
            len(rules) - 1
        )
    blobs = [bench.journal.read(message.location, message.size) for message in queue.messages.values()]
    values = [application_properties(blob)["x"] for blob in blobs]
    assert len(set(values)) == len(rules), "each has its own value"

    # One that is dead-lettered takes its reason with it and leaves the others alone.
    queue.dead_letter(bench.receive(queue), "why", "text", b"", bench.now)
    for message in queue.messages.values():
        assert message.extra is not None
        assert message.extra.dead_letter_reason is None


@pytest.mark.promise("B56")
def test_siblings_in_two_subscriptions_share_nothing(bench: Bench, topic: Entity) -> None:
    one = bench.subscription("t/Subscriptions/one", rules=[rule("r", "1 = 1", "SET x = 1")])
    two = bench.subscription("t/Subscriptions/two", rules=[rule("r", "1 = 1", "SET x = 2")])
    bench.send(topic, "m", scheduled_at=START + SECOND)
    bench.wait(2 * SECOND)
    one.main.abandon(bench.receive(one.main), b"\xc1\x07\x02\xa1\x01y\xa1\x01z", bench.now)

    (message,) = two.main.messages.values()
    assert message.extra is not None
    assert message.extra.changed_properties == b""


@pytest.mark.promise("B56")
def test_an_action_may_give_a_copy_its_session_or_take_it_away(bench: Bench, topic: Entity) -> None:
    moved = bench.subscription(
        "t/Subscriptions/moved",
        Settings(requires_session=True),
        [rule("r", "1 = 1", "SET sys.SessionId = 'other'")],
    )
    taken = bench.subscription(
        "t/Subscriptions/taken", Settings(requires_session=True), [rule("r", "1 = 1", "REMOVE sys.SessionId")]
    )
    plain = bench.subscription("t/Subscriptions/plain", rules=[rule("r", "1 = 1", "SET x = 1")])
    bench.send(topic, "m", session_id="mine")

    for life in (bench, bench.restart()):
        (message,) = life.find(moved.path).main.messages.values()
        assert message.session_id == "other"
        (dead,) = life.find(taken.path).dead_letter.messages.values()
        assert dead.extra is not None
        assert dead.extra.dead_letter_reason == REASON_NO_SESSION
        blob = life.journal.read(dead.location, dead.size)
        assert incoming_of(blob).session_id is None, "it lies there as the action left it"
        (other,) = life.find(plain.path).main.messages.values()
        assert other.session_id is None
        assert incoming_of(life.journal.read(other.location, other.size)).session_id == "mine"


@pytest.mark.promise("B58")
def test_an_action_cannot_make_a_header_that_no_sender_could_send(bench: Bench, topic: Entity) -> None:
    subscription = bench.subscription(
        "t/Subscriptions/s", rules=[rule("r", "1 = 1", "SET y = p; SET z = p; SET w = p")]
    )
    bench.send(topic, "small", properties={"p": "x"})
    bench.send(topic, "large", properties={"p": "x" * 30_000})

    assert bodies(bench, subscription) == ["small"]
    (dead,) = subscription.dead_letter.messages.values()
    assert dead.extra is not None
    assert dead.extra.dead_letter_reason == REASON_FILTER
    assert "at most 65536 are allowed" in str(dead.extra.dead_letter_description)
