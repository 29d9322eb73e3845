"""The rule index of a topic: finds the subscriptions that want a message without asking every filter.

**The problem.** A topic may have 2,000 subscriptions, 2,000 SQL filters and 100,000 correlation filters. ``RuleSet.judge``
defines what a subscription's rules say about a message: it evaluates each filter in turn. Doing that for every subscription
would make a publish cost as much as there are filters. The index must return exactly what ``judge`` would return for
each subscription (B55), at the cost of the few filters that match. A property test compares the two.

**The idea.** Nearly all filters in practice are equalities: ``colour = 'red' AND region = 'eu'``, or a correlation filter, which
is nothing else. Each rule goes to one of three places when its subscription is put into the index (``_insert``):

- *Tables.* A filter that is a conjunction of equalities on different properties goes to the table of its **shape**: whether it is an
  SQL filter, the properties it tests, and the **family** of each constant (number, text, boolean, …; values of two families are
  never equal). Within a table the constants are the key of a row. So ``colour = 'red' AND region = 'eu'`` and
  ``region = 'us' AND colour = 'blue'`` are two rows of one table. A message costs one dictionary look-up per shape, however many
  filters have that shape.
- *Always.* True filters, and SQL filters such as ``1=1`` that do not read the message and are true.
- *Shared.* All other SQL filters are evaluated. Filters with the same text and no parameters are evaluated once for all
  the subscriptions that have it.

**The trap.** "Not found in the table" is not the same as "false". Where a message has a property of another family than the
shape, an SQL comparison does not answer "false": it fails, or the other half of the ``AND`` decides before it is reached. Which of
the two depends on the filter's text. Then, and only then, the SQL filters of that shape are evaluated one by one
(``Table._ask_all``). A correlation filter never fails: a value of another family is simply not equal. A property that is absent
makes the comparison unknown, which is never a match and never a failure.

**Order.** Every rule in the index is a ``Slot`` with a rank: the order of its subscription, then its place among that
subscription's rules. ``_verdicts`` sorts the slots that were found by rank, so deliveries have the same order in every run, and
joins neighbouring slots of one subscription into its ``Verdict``.

**Cost.** A publish has a budget of steps, because a ``LIKE`` can be slow on purpose (B58, B63). ``steps_max`` is an upper bound for all filters of
the topic, kept up to date by ``_weigh`` as rules come and go; it is nearly always far below the budget, and then nothing
is counted per filter. Otherwise ``spend`` evaluates the filters once beforehand to see what they really take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, final

from pairbus.engine.rules.message_view import MISSING, MappingView
from pairbus.engine.rules.sql.filter import Equality, SqlFilter
from pairbus.engine.rules.sql.like import CHARACTERS_PER_STEP
from pairbus.engine.rules.sql.nodes import Evaluation, RuleBudget
from pairbus.engine.rules.sql.text import TEXT_CHARACTERS_MAX
from pairbus.engine.rules.sql.values import family_of, primitive
from pairbus.engine.rules.subscription import (
    PLAIN_COPY,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleSet,
    TrueFilter,
    Verdict,
)
from pairbus.errors import FilterFailed, QuotaExceeded

if TYPE_CHECKING:
    from pairbus.engine.rules.message_view import MessageView

SQL_FILTERS_PER_TOPIC_MAX: Final = 2_000
CORRELATION_FILTERS_PER_TOPIC_MAX: Final = 100_000
CHARACTERS_PER_ACTION_STEP: Final = 256
"""A statement of an action costs one step for as many characters of the message's properties: it reads and writes all of them."""
RANK_BITS: Final = 20
"""A rank is the subscription's order and, in these low bits, the rule's; more than the quotas can fill."""

Key = TypeVar("Key")
Shape: TypeAlias = tuple[bool, tuple[tuple[bool, str, int], ...]]


@final
class Slot:
    """One rule of one subscription in the index."""

    __slots__ = ("rank", "rule", "subscription")

    def __init__(self, subscription: int, position: int, rule: Rule) -> None:
        self.subscription = subscription
        self.rank = subscription << RANK_BITS | position
        self.rule = rule


@final
class Found:
    """What a message has met so far: slots whose filter holds or failed, and the failures by rank."""

    __slots__ = ("evaluation", "failures", "slots")

    def __init__(self, evaluation: Evaluation, slots: list[Slot]) -> None:
        self.evaluation = evaluation
        self.slots = slots
        self.failures: dict[int, FilterFailed] = {}

    def ask(self, asked: SqlFilter, slots: dict[int, Slot]) -> None:
        """Evaluate a filter for all the slots that have it."""
        try:
            if asked.holds(self.evaluation):
                self.slots.extend(slots.values())
        except FilterFailed as failure:
            failure.__traceback__ = (
                None  # a verdict is kept for a while; the frames of its making need not be
            )
            self.slots.extend(slots.values())
            for rank in slots:
                self.failures[rank] = failure


@final
class Table:
    """The equality filters of one shape by the values they want."""

    __slots__ = ("_families", "_is_sql", "_names", "_scopes", "rows")

    def __init__(self, shape: Shape) -> None:
        self._is_sql = shape[0]
        self._scopes = [is_system for is_system, _, _ in shape[1]]
        self._names = [name for _, name, _ in shape[1]]
        self._families = [family for _, _, family in shape[1]]
        self.rows: dict[tuple[object, ...], dict[int, Slot]] = {}

    def search(self, found: Found) -> None:
        """Add the slots that hold for the message."""
        row: list[object] = []
        is_unknown = False
        evaluation = found.evaluation
        for i in range(len(self._names)):
            name = self._names[i]
            value = evaluation.system(name) if self._scopes[i] else evaluation.user(name)
            if value is None or value is MISSING:
                is_unknown = True
            elif family_of(value) != self._families[i]:
                if self._is_sql:
                    self._ask_all(found)
                return
            else:
                row.append(primitive(value))
        if not is_unknown:
            slots = self.rows.get(tuple(row))
            if slots is not None:
                found.slots.extend(slots.values())

    def _ask_all(self, found: Found) -> None:
        for slots in self.rows.values():
            for rank, slot in slots.items():
                asked = slot.rule.filter
                assert isinstance(asked, SqlFilter), asked
                found.ask(asked, {rank: slot})


@final
class Shared:
    """An SQL filter that must be evaluated, and the slots it is evaluated for."""

    __slots__ = ("filter", "slots")

    def __init__(self, asked: SqlFilter) -> None:
        self.filter = asked
        self.slots: dict[int, Slot] = {}


@final
class TopicIndex(Generic[Key]):
    """The rule sets of all subscriptions of one topic."""

    def __init__(
        self,
        sql_filters_max: int = SQL_FILTERS_PER_TOPIC_MAX,
        correlation_filters_max: int = CORRELATION_FILTERS_PER_TOPIC_MAX,
    ) -> None:
        self._sql_filters_max = sql_filters_max
        self._correlation_filters_max = correlation_filters_max
        self._orders: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._rule_sets: dict[int, RuleSet] = {}
        self._next_order = 0
        self._always: dict[int, Slot] = {}
        self._tables: dict[Shape, Table] = {}
        self._shared: dict[tuple[str, int], Shared] = {}
        self.sql_filter_count = 0
        self.correlation_filter_count = 0
        self._fixed_steps = 0
        self._text_weight = 0
        self._joins = 0
        self._statements = 0
        """What all SQL filters together take at most: so many steps, and so many characters compared at a place of a text."""

    def put(self, key: Key, rules: RuleSet) -> None:
        """Add a subscription at the end, or give one that is there other rules in its old place.

        Raises QuotaExceeded when the topic would have too many filters; then nothing has changed.
        """
        sql_count, correlation_count = self.check(key, rules)
        order = self._orders.get(key, -1)
        before = self._rule_sets[order] if order >= 0 else NO_RULES
        if order < 0:
            order = self._next_order
            self._next_order += 1
            self._orders[key] = order
            self._keys[order] = key
        self._change(order, before, rules)
        self._rule_sets[order] = rules
        self.sql_filter_count = sql_count
        self.correlation_filter_count = correlation_count

    def check(self, key: Key, rules: RuleSet) -> tuple[int, int]:
        """How many SQL and correlation filters the topic would have. Raises QuotaExceeded when that is too many."""
        order = self._orders.get(key, -1)
        before = self._rule_sets[order] if order >= 0 else NO_RULES
        sql_count = self.sql_filter_count + rules.sql_filter_count - before.sql_filter_count
        correlation_count = (
            self.correlation_filter_count + rules.correlation_filter_count - before.correlation_filter_count
        )
        _check_quota("SQL", sql_count, self.sql_filter_count, self._sql_filters_max)
        _check_quota(
            "correlation", correlation_count, self.correlation_filter_count, self._correlation_filters_max
        )
        return sql_count, correlation_count

    def remove(self, key: Key) -> None:
        """Forget a subscription; nothing happens if it is not there."""
        order = self._orders.pop(key, -1)
        if order < 0:
            return
        rules = self._rule_sets.pop(order)
        self._change(order, rules, NO_RULES)
        del self._keys[order]
        self.sql_filter_count -= rules.sql_filter_count
        self.correlation_filter_count -= rules.correlation_filter_count

    def rules_of(self, key: Key) -> RuleSet | None:
        order = self._orders.get(key, -1)
        return self._rule_sets.get(order)

    def match(self, view: MessageView, budget: RuleBudget | None = None) -> list[tuple[Key, Verdict]]:
        """The subscriptions with something to do for this message, oldest first. Filters that come after the ``budget`` is
        spent have failed.
        """
        return self._verdicts(self._found(view, budget))

    def steps_max(self, characters: int) -> int:
        """The steps that all filters together take at most on a message with properties of this length."""
        steps = self._fixed_steps + _action_steps(self._statements, characters)
        if not self._text_weight:
            return steps
        # A filter may join texts and search in what comes of it.
        characters = max(characters, TEXT_CHARACTERS_MAX if self._joins else 0)
        return steps + self._text_weight * (characters // CHARACTERS_PER_STEP + 1)

    def spend(self, view: MessageView, characters: int, budget: RuleBudget) -> None:
        """Take from a budget what all filters and the actions that follow from them take; nothing else comes of it."""
        statements = 0
        for slot in self._found(view, budget).slots:
            if slot.rule.action is not None:
                statements += slot.rule.action.statement_count
        budget.take(_action_steps(statements, characters))

    def _found(self, view: MessageView, budget: RuleBudget | None) -> Found:
        found = Found(Evaluation(view, budget), list(self._always.values()))
        for table in self._tables.values():
            table.search(found)
        for shared in self._shared.values():
            found.ask(shared.filter, shared.slots)
        return found

    def _verdicts(self, found: Found) -> list[tuple[Key, Verdict]]:
        slots = found.slots
        slots.sort(key=_rank_of)
        result: list[tuple[Key, Verdict]] = []
        begin = 0
        while begin < len(slots):
            order = slots[begin].subscription
            end = begin + 1
            while end < len(slots) and slots[end].subscription == order:
                end += 1
            result.append((self._keys[order], _verdict(slots, begin, end, found.failures)))
            begin = end
        return result

    def _change(self, order: int, before: RuleSet, after: RuleSet) -> None:
        """Exchange the rules of a subscription, leaving alone those that stay in their place."""
        for position in range(max(len(before.rules), len(after.rules))):
            old = before.rules[position] if position < len(before.rules) else None
            new = after.rules[position] if position < len(after.rules) else None
            if old is new:
                continue
            if old is not None:
                self._take_out(Slot(order, position, old))
            if new is not None:
                self._insert(Slot(order, position, new))

    def _weigh(self, rule: Rule, sign: int) -> None:
        asked = rule.filter
        if rule.action is not None:
            self._statements += sign * rule.action.statement_count
        if isinstance(asked, SqlFilter):
            self._fixed_steps += sign * asked.fixed_steps
            self._text_weight += sign * asked.text_weight
            self._joins += sign if asked.text_weight and "+" in asked.expression else 0

    def _insert(self, slot: Slot) -> None:
        asked = slot.rule.filter
        self._weigh(slot.rule, 1)
        if isinstance(asked, TrueFilter):
            self._always[slot.rank] = slot
        elif isinstance(asked, CorrelationFilter):
            if not asked.equalities:
                self._always[slot.rank] = slot
            else:
                self._insert_row(slot, asked.equalities)
        elif isinstance(asked, SqlFilter):
            if asked.equalities:
                self._insert_row(slot, asked.equalities)
            elif asked.reads_message or _is_failing(asked):
                self._shared.setdefault(_shared_key(slot, asked), Shared(asked)).slots[slot.rank] = slot
            elif asked.matches(NO_MESSAGE):
                self._always[slot.rank] = slot

    def _insert_row(self, slot: Slot, equalities: list[Equality]) -> None:
        shape, row = _place_of(isinstance(slot.rule.filter, SqlFilter), equalities)
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = Table(shape)
        table.rows.setdefault(row, {})[slot.rank] = slot

    def _take_out(self, slot: Slot) -> None:
        asked = slot.rule.filter
        self._weigh(slot.rule, -1)
        if isinstance(asked, (SqlFilter, CorrelationFilter)) and asked.equalities:
            self._take_out_row(slot, asked.equalities)
        elif isinstance(asked, SqlFilter) and _shared_key(slot, asked) in self._shared:
            shared = self._shared[_shared_key(slot, asked)]
            del shared.slots[slot.rank]
            if not shared.slots:
                del self._shared[_shared_key(slot, asked)]
        elif not isinstance(asked, FalseFilter):
            self._always.pop(slot.rank, None)

    def _take_out_row(self, slot: Slot, equalities: list[Equality]) -> None:
        shape, row = _place_of(isinstance(slot.rule.filter, SqlFilter), equalities)
        table = self._tables[shape]
        del table.rows[row][slot.rank]
        if not table.rows[row]:
            del table.rows[row]
        if not table.rows:
            del self._tables[shape]


NO_MESSAGE: Final = MappingView({})
NO_RULES: Final = RuleSet([])


def _action_steps(statements: int, characters: int) -> int:
    return statements * (characters // CHARACTERS_PER_ACTION_STEP + 1)


def _rank_of(slot: Slot) -> int:
    return slot.rank


def _verdict(slots: list[Slot], begin: int, end: int, failures: dict[int, FilterFailed]) -> Verdict:
    if end == begin + 1 and slots[begin].rule.action is None and not failures:
        return PLAIN_COPY  # the usual case, without a new object
    plain = False
    actions: list[Rule] = []
    failed_rule: Rule | None = None
    failure: FilterFailed | None = None
    for i in range(begin, end):
        slot = slots[i]
        if slot.rank in failures:
            if failure is None:
                failed_rule, failure = slot.rule, failures[slot.rank]
        elif slot.rule.action is None:
            plain = True
        else:
            actions.append(slot.rule)
    return Verdict(plain, actions, failed_rule, failure)


def _place_of(is_sql: bool, equalities: list[Equality]) -> tuple[Shape, tuple[object, ...]]:
    """The shape of a filter, and its row in that shape's table."""
    ordered = sorted(equalities, key=_scope_and_name)
    fields = tuple([(part.is_system, part.name, family_of(part.constant)) for part in ordered])
    return (is_sql, fields), tuple([primitive(part.constant) for part in ordered])


def _scope_and_name(equality: Equality) -> tuple[bool, str]:
    return equality.is_system, equality.name


def _shared_key(slot: Slot, asked: SqlFilter) -> tuple[str, int]:
    # Filters of the same text are the same filter, unless parameters come with them.
    return asked.expression, slot.rank if asked.parameters else -1


def _is_failing(asked: SqlFilter) -> bool:
    try:
        asked.matches(NO_MESSAGE)
    except FilterFailed:
        return True
    return False


def _check_quota(kind: str, count: int, before: int, limit: int) -> None:
    if count > limit and count > before:
        raise QuotaExceeded(f"the topic would have {count} {kind} filters; at most {limit} are allowed")
