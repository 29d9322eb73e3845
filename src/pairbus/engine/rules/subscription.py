"""The rules of one subscription: which messages it gets, and in how many copies.

All rules without an action together ask for one copy; each rule with an action asks for one of its own. A
filter that fails on a message is reported beside what the other rules said (B58); what becomes of the
message then is the subscription's setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from pairbus.engine.rules.message_view import MISSING
from pairbus.engine.rules.sql.action import Changes, SqlAction
from pairbus.engine.rules.sql.declared import plain_values
from pairbus.engine.rules.sql.filter import Equality, SqlFilter
from pairbus.engine.rules.sql.nodes import Evaluation
from pairbus.engine.rules.sql.values import family_of, is_nan, primitive
from pairbus.errors import FilterFailed, InvalidRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pairbus.engine.rules.message_view import MessageView

DEFAULT_RULE_NAME: Final = "$Default"
RULE_NAME_PROPERTY: Final = "RuleName"
"""The application property by which a copy made by an action tells its rule."""


CORRELATION_FIELDS: Final = (
    "correlation-id", "message-id", "to", "reply-to", "label", "session-id", "reply-to-session-id", "content-type"
)  # fmt: skip
"""The broker properties that a correlation filter can test, as AMQP management names them, in the service's order."""
CORRELATION_ELEMENTS: Final = {
    name.title().replace("-", ""): name.replace("-", "") for name in CORRELATION_FIELDS
}
"""The same in the management API's XML and in configuration files, each with the name that filters ask a message by."""


@final
class TrueFilter:
    __slots__ = ()

    def holds(self, evaluation: Evaluation) -> bool:  # noqa: ARG002 - all filters are asked alike
        return True


@final
class FalseFilter:
    __slots__ = ()

    def holds(self, evaluation: Evaluation) -> bool:  # noqa: ARG002 - all filters are asked alike
        return False


@final
class CorrelationFilter:
    """Equality on some broker and application properties, all of them; a filter without any takes everything.

    Values of different types are different, numbers are compared as numbers, texts with their case.
    """

    __slots__ = ("equalities", "fields", "properties")

    def __init__(
        self, fields: Mapping[str, str | None], properties: Mapping[str, object] | None = None
    ) -> None:
        """``fields``: broker properties by the names of ``CORRELATION_ELEMENTS``; None is not tested.

        Raises InvalidRule for property values no rule can work with.
        """
        self.fields: dict[str, str] = {name: value for name, value in fields.items() if value is not None}
        """Broker properties by canonical name."""
        self.properties: dict[str, object] = dict(properties or {})
        """Application properties as they came, names and declared types included."""
        self.equalities: list[Equality] = [Equality(True, name, value) for name, value in self.fields.items()]
        for name, constant in plain_values(self.properties).items():
            if is_nan(constant):
                raise InvalidRule(f"the property {name!r} is NaN, which is equal to nothing; leave it out")
            if constant is not None:
                self.equalities.append(Equality(False, name, constant))

    def holds(self, evaluation: Evaluation) -> bool:
        """Whether every tested property is equal."""
        for equality in self.equalities:
            value = evaluation.system(equality.name) if equality.is_system else evaluation.user(equality.name)
            if value is None or value is MISSING or not is_same(value, equality.constant):
                return False
        return True

    def matches(self, view: MessageView) -> bool:
        """Whether every tested property is equal."""
        return self.holds(Evaluation(view))


def is_same(left: object, right: object) -> bool:
    """Equality that never fails: values of different families are simply different."""
    return family_of(left) == family_of(right) and bool(primitive(left) == primitive(right))


RuleFilter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@final
class Rule:
    """A named filter, perhaps with an action."""

    __slots__ = ("action", "created_at", "filter", "name")

    def __init__(
        self, name: str, rule_filter: RuleFilter, action: SqlAction | None = None, created_at: int = 0
    ) -> None:
        self.name = name
        self.filter: RuleFilter = rule_filter
        self.action = action
        self.created_at = created_at
        """The instant of creation in milliseconds."""

    def changes(self, view: MessageView) -> Changes:
        """What this rule's own copy has different from the message. Raises FilterFailed."""
        if self.action is None:
            return Changes([])
        return self.action.apply(view).with_user(RULE_NAME_PROPERTY, self.name)


@final
@dataclass(slots=True, eq=False)
class Verdict:
    """What the rules of one subscription say of one message. Never changed once it is given."""

    plain: bool
    """One copy as the message is, for all the rules without action."""
    actions: list[Rule]
    """One copy for each of these rules, changed by its action."""
    failed_rule: Rule | None = None
    """The first rule whose filter failed, and how."""
    failure: FilterFailed | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing matched and nothing failed."""
        return not self.plain and not self.actions and self.failure is None


PLAIN_COPY: Final = Verdict(True, [])


@final
class RuleSet:
    """The rules of one subscription at one moment. Changes make a new set (B57)."""

    __slots__ = ("_by_name", "correlation_filter_count", "rules", "sql_filter_count")

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Raises InvalidRule when two rules have the same name; case makes no difference."""
        self.rules: list[Rule] = list(rules)
        self._by_name: dict[str, Rule] = {rule.name.lower(): rule for rule in self.rules}
        if len(self._by_name) != len(self.rules):
            raise InvalidRule("two rules of a subscription have the same name")
        self.sql_filter_count = 0
        """Filters with an expression. A true filter, such as every subscription starts with, uses up no quota."""
        self.correlation_filter_count = 0
        for rule in self.rules:
            if isinstance(rule.filter, SqlFilter):
                self.sql_filter_count += 1
            elif isinstance(rule.filter, CorrelationFilter):
                self.correlation_filter_count += 1

    def find(self, name: str) -> Rule | None:
        """The rule of this name in any case."""
        return self._by_name.get(name.lower())

    def with_rule(self, rule: Rule) -> RuleSet:
        """The set with this rule, in the place of one of the same name or at the end."""
        old = self.find(rule.name)
        if old is None:
            return RuleSet([*self.rules, rule])
        return RuleSet([rule if other is old else other for other in self.rules])

    def without(self, name: str) -> RuleSet:
        """The set without the rule of this name."""
        old = self.find(name)
        return RuleSet([rule for rule in self.rules if rule is not old])

    def judge(self, view: MessageView) -> Verdict:
        """What these rules say of a message. Every rule is asked, so their order decides nothing."""
        evaluation = Evaluation(view)
        plain = False
        actions: list[Rule] = []
        failed_rule: Rule | None = None
        failure: FilterFailed | None = None
        for rule in self.rules:
            try:
                holds = rule.filter.holds(evaluation)
            except FilterFailed as error:
                if failure is None:
                    failed_rule, failure = rule, error
                continue
            if holds and rule.action is None:
                plain = True
            elif holds:
                actions.append(rule)
        return Verdict(plain, actions, failed_rule, failure)
