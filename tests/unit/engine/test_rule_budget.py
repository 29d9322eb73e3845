"""One publish does a bounded amount of work for the rules of its topic, however many there are (B58, B63)."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.engine.entity import Entity
from pairbus.engine.rules.index import TopicIndex
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.filter import SqlFilter, compile_filter
from pairbus.engine.rules.sql.nodes import PUBLISH_STEPS_MAX, STEPS_MAX, Evaluation, RuleBudget
from pairbus.engine.rules.subscription import Rule, RuleSet
from pairbus.engine.topic import REASON_FILTER
from pairbus.errors import QuotaExceeded
from pairbus.model.entity import Settings
from tests.unit.engine.engine_kit import SECOND, START, Bench, incoming, rule

SUBSCRIPTIONS = 200
LONG = "a" * 60_000


def costly(number: int) -> str:
    """A filter that searches the whole of a long text; each has a text of its own."""
    return rule("r", f"p LIKE '%{'a____b%' * 12}{number}%'")


def with_costly_filters(bench: Bench, count: int = SUBSCRIPTIONS) -> Entity:
    topic = bench.topic()
    for number in range(count):
        bench.subscription(f"t/Subscriptions/s{number}", rules=[costly(number)])
    return topic


@pytest.mark.promise("B58")
def test_a_publish_that_the_rules_take_too_long_for_is_refused_and_leaves_no_trace(bench: Bench) -> None:
    topic = with_costly_filters(bench)
    bench.subscription("t/Subscriptions/all")
    budget = bench.namespace.context.budget
    records = len(bench.journal.records)
    budget.taken_in_burst = 0

    with pytest.raises(QuotaExceeded, match=r"LIKE filters and actions of its subscriptions simpler"):
        bench.send(topic, properties={"p": LONG})

    # After the budget is spent every filter fails at once, and costs the step in which it is told.
    assert budget.taken_in_burst < PUBLISH_STEPS_MAX + STEPS_MAX // 2
    assert len(bench.journal.records) == records
    assert bench.send(topic, properties={"p": "short"}) == 1, "no number was used up"
    assert bench.find("t/Subscriptions/all").counts().active == 1


@pytest.mark.promise("B58")
def test_the_messages_of_a_batch_share_one_budget(bench: Bench) -> None:
    topic = with_costly_filters(bench, 20)
    message = incoming(properties={"p": LONG})
    bench.namespace.check_send(topic, message, 0)

    size = 0
    with pytest.raises(QuotaExceeded, match="those sent with it"):
        for _ in range(50):
            bench.namespace.check_send(topic, message, size)
            size += len(message.blob)
    bench.namespace.check_send(topic, message, 0)  # the next publish has a budget of its own


@pytest.mark.promise("B58")
@pytest.mark.parametrize(("length", "is_taken"), [(2_000, True), (30_000, False)])
def test_actions_count_too(length: int, is_taken: bool, bench: Bench, topic: Entity) -> None:
    for number in range(500):
        kept = rule("r", f"p LIKE 'x%' AND n <> {number}", "SET a = p; SET b = 1; SET c = 2; SET d = 3")
        bench.subscription(f"t/Subscriptions/s{number}", rules=[kept])
    message = incoming(properties={"p": "x" * length, "n": -1})
    if is_taken:
        bench.namespace.check_send(topic, message, 0)
    else:
        with pytest.raises(QuotaExceeded, match="The rules of 't' take more"):
            bench.namespace.check_send(topic, message, 0)
    # Rules that do not match cost no action.
    bench.namespace.check_send(topic, incoming(properties={"p": "y" * length}), 0)


def test_many_ordinary_filters_are_no_reason_to_refuse(bench: Bench, topic: Entity) -> None:
    for number in range(1_000):
        bench.subscription(
            f"t/Subscriptions/s{number}", rules=[rule("r", f"p LIKE '%order-{number}.%' AND q > 3")]
        )
    bench.send(topic, properties={"p": "order-7. " * 200, "q": 4})

    assert bench.find("t/Subscriptions/s7").counts().active == 1
    assert bench.find("t/Subscriptions/s8").counts().total == 0


@pytest.mark.promise("B58")
def test_what_comes_by_itself_is_set_aside_where_filters_were_not_asked(bench: Bench, topic: Entity) -> None:
    """A scheduled message cannot be refused any more; nothing is lost, and the pump is not held for long."""
    bench.send(topic, "due", properties={"p": LONG}, scheduled_at=START + SECOND)
    for number in range(SUBSCRIPTIONS):
        bench.subscription(f"t/Subscriptions/s{number}", rules=[costly(number)])
    bench.subscription("t/Subscriptions/all")
    bench.wait(2 * SECOND)

    assert bench.find("t").counts().total == 0
    assert bench.find("t/Subscriptions/all").counts().active == 1
    dead = [bench.find(f"t/Subscriptions/s{number}").dead_letter for number in range(SUBSCRIPTIONS)]
    set_aside = [queue for queue in dead if queue.messages]
    assert 0 < len(set_aside) < SUBSCRIPTIONS, "those that were asked in time have said no"
    extra = next(iter(set_aside[-1].messages.values())).extra
    assert extra is not None
    assert extra.dead_letter_reason == REASON_FILTER
    assert f"more than {PUBLISH_STEPS_MAX} steps" in str(extra.dead_letter_description)


@pytest.mark.promise("B63")
def test_forwarding_into_a_costly_topic_goes_on_in_the_next_burst(bench: Bench) -> None:
    with_costly_filters(bench, 40)
    source = bench.queue("source", Settings(forward_to="t"))
    for _ in range(12):
        bench.send(source, properties={"p": LONG})

    bench.namespace.pump(bench.now)
    left = len(source.messages)
    assert 0 < left < 12
    assert bench.namespace.next_deadline() == 0, "the rest follows at once, after everybody else had a turn"
    bench.pump()
    assert not source.messages


PATTERNS = st.text(alphabet="ab%_\\", min_size=1, max_size=24)
TEXTS = st.text(alphabet="ab\n", max_size=60)


def matches(pattern: str, text: str) -> bool:
    """Whether the text is like the pattern, in time that is bounded: a regular expression may try every way to divide it.

    Bit *i* of ``reached`` says that the pattern so far can match the first *i* characters.
    """
    everywhere = (1 << len(text) + 1) - 1
    reached = 1
    for letter in pattern:
        if letter == "%":
            reached = everywhere & -(reached & -reached)
        elif letter == "_":
            reached = everywhere & reached << 1
        else:
            places = int("0" + "".join("01"[character == letter] for character in reversed(text)), 2)
            reached = (reached & places) << 1
    return bool(reached >> len(text))


def test_the_expected_answer_is_right_and_bounded() -> None:
    for pattern, text in itertools.product(words("ab%_", 4), words("ab", 4)):
        expression = "".join({"%": ".*", "_": "."}.get(letter, letter) for letter in pattern)
        assert matches(pattern, text) is bool(re.fullmatch(expression, text)), (pattern, text)
    assert not matches("%a" * 12 + "%b", "a" * 12_000)


def words(letters: str, length_max: int) -> list[str]:
    return [
        "".join(word)
        for length in range(length_max + 1)
        for word in itertools.product(letters, repeat=length)
    ]


@pytest.mark.promise("B58")
@given(PATTERNS, TEXTS, st.integers(1, 200))
def test_a_filter_takes_no_more_steps_than_it_says_beforehand(pattern: str, text: str, times: int) -> None:
    asked = compile_filter(f"p LIKE '{pattern}' OR p LIKE q")
    index: TopicIndex[int] = TopicIndex()
    index.put(1, RuleSet([Rule("r", asked)]))
    view = MappingView({"p": text * times, "q": pattern})
    for _ in range(2):  # the first time expressions are made
        budget = RuleBudget()
        assert asked.holds(Evaluation(view, budget)) is matches(pattern, text * times)
        assert PUBLISH_STEPS_MAX - budget.left <= index.steps_max(len(text * times) + len(pattern))


def test_the_sum_of_all_filters_follows_rules_that_come_and_go() -> None:
    index: TopicIndex[int] = TopicIndex()
    rules = [
        Rule("a", compile_filter("p LIKE '%a_b%'")),
        Rule("b", compile_filter("p = 'x' AND q + 'y' LIKE r")),
    ]
    index.put(1, RuleSet(rules))
    assert index.steps_max(1_000) > 0
    index.put(1, RuleSet(rules[:1]))
    assert isinstance(rules[0].filter, SqlFilter)
    assert index.steps_max(6_400) == rules[0].filter.fixed_steps + 4 * 101
    index.remove(1)
    assert index.steps_max(1_000) == 0
