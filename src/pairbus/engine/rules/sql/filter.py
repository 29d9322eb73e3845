"""SQL filters: an expression that is true for the messages a subscription wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from pairbus.engine.rules.sql.declared import parameter_values
from pairbus.engine.rules.sql.nodes import And, Comparison, Condition, Constant, Evaluation, Property
from pairbus.engine.rules.sql.parser import Parser
from pairbus.engine.rules.sql.values import EQUAL, is_nan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pairbus.engine.rules.message_view import MessageView


CHARACTERS_PER_OWN_STEP: Final = 16
"""An expression this long costs one step to evaluate, apart from the texts it searches."""


@final
class Equality:
    """``property = constant``. The constant is neither null nor NaN."""

    __slots__ = ("constant", "is_system", "name")

    def __init__(self, is_system: bool, name: str, constant: object) -> None:
        self.is_system = is_system
        self.name = name
        self.constant = constant


@final
class SqlFilter:
    """A compiled expression; made by :func:`compile_filter`."""

    __slots__ = (
        "_condition",
        "_own_steps",
        "equalities",
        "expression",
        "fixed_steps",
        "parameters",
        "reads_message",
        "text_weight",
    )

    def __init__(
        self,
        expression: str,
        parameters: dict[str, object],
        condition: Condition,
        reads_message: bool,
        text_steps: int = 0,
        text_weight: int = 0,
    ) -> None:
        self.expression = expression
        self.parameters = parameters
        """As they came, names and declared types included."""
        self._condition = condition
        self.reads_message = reads_message
        """False for a filter such as ``1=1``, which says the same of every message."""
        self._own_steps = 1 + len(expression) // CHARACTERS_PER_OWN_STEP
        self.fixed_steps = self._own_steps + text_steps
        """The steps it takes at most, apart from what grows with the texts that it searches."""
        self.text_weight = text_weight
        """How many characters its searches compare at one place of a text at most."""
        self.equalities = _equalities_of(condition)
        """The filter as a conjunction of equalities on different properties, or empty when it is not one."""

    def truth(self, evaluation: Evaluation) -> bool | None:
        """True, False or None for unknown, with a budget of its own. Raises FilterFailed."""
        evaluation.restart()
        evaluation.charge(self._own_steps)
        return self._condition.truth(evaluation)

    def holds(self, evaluation: Evaluation) -> bool:
        """Whether the filter is true; unknown is not. Raises FilterFailed."""
        return self.truth(evaluation) is True

    def matches(self, view: MessageView) -> bool:
        """Whether the filter is true for this message; unknown is not. Raises FilterFailed."""
        return self._condition.truth(Evaluation(view)) is True


def compile_filter(expression: str, parameters: Mapping[str, object] | None = None) -> SqlFilter:
    """The filter of an expression. Raises InvalidRule with the place and what was expected there."""
    given = dict(parameters or {})
    parser = Parser(expression, parameter_values(given))
    condition = parser.whole_condition()
    return SqlFilter(
        expression, given, condition, parser.reads_message, parser.text_steps, parser.text_weight
    )


def _equalities_of(condition: Condition) -> list[Equality]:
    parts = condition.parts if isinstance(condition, And) else [condition]
    equalities: list[Equality] = []
    seen: set[tuple[bool, str]] = set()
    for part in parts:
        equality = _equality_of(part)
        if equality is None or (equality.is_system, equality.name) in seen:
            return []
        seen.add((equality.is_system, equality.name))
        equalities.append(equality)
    return equalities


def _equality_of(condition: Condition) -> Equality | None:
    if not isinstance(condition, Comparison) or condition.operator != EQUAL:
        return None
    which, other = condition.left, condition.right
    if isinstance(which, Constant):
        which, other = other, which
    if not isinstance(which, Property) or not isinstance(other, Constant):
        return None
    constant = other.constant
    if constant is None or is_nan(constant):
        return None
    return Equality(which.is_system, which.name, constant)
