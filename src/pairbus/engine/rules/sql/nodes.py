"""The tree of a parsed expression, and its evaluation.

Rule 1: an Expression gives a value, None standing for null and unknown alike; a Condition gives True, False
or None for unknown. Only AND and OR stop early: AND at the first false, OR at the first true.
Rule 2: every other operator first evaluates all its operands from left to right; then an unknown operand
makes the result unknown; then types are checked. IN asks its list one by one and stops at the first equal.
Rule 3: depth is bounded by the parser, length by the expression's size, text work by the step budget (B58).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pairbus.engine.rules.message_view import MISSING
from pairbus.engine.rules.sql.like import LikePattern
from pairbus.engine.rules.sql.values import (
    BOOLEAN,
    DIFFERENT,
    EQUAL,
    arithmetic,
    compare,
    described,
    family_of,
    kind_of,
    negated,
    primitive,
)
from pairbus.errors import FilterFailed

if TYPE_CHECKING:
    from pairbus.amqp.types import Uuid
    from pairbus.engine.rules.message_view import MessageView

STEPS_MAX: Final = 100_000
"""The steps one evaluation may take. A step is a few dozen characters searched or one place tried."""
PUBLISH_STEPS_MAX: Final = 200_000
"""The steps that all rules of a topic together may take for one publish: one message, or all of a batch."""
STEPS_PER_COPY: Final = 100
"""What storing one copy for a subscription counts among the steps of a turn: it takes about as long."""


@final
class RuleBudget:
    """What the rules of a topic may still take for one publish, and what this turn took so far, copies included."""

    __slots__ = ("left", "taken_in_burst")

    def __init__(self) -> None:
        self.left = PUBLISH_STEPS_MAX
        self.taken_in_burst = 0

    def renew(self) -> None:
        self.left = PUBLISH_STEPS_MAX

    def take(self, steps: int) -> bool:
        """Take steps; False when there were not as many left."""
        self.left -= steps
        self.taken_in_burst += steps
        return self.left >= 0


@final
class Evaluation:
    """One look at one message: remembers the properties read and counts the steps taken."""

    __slots__ = ("_budget", "_steps_left", "_system", "_user", "_view")

    def __init__(self, view: MessageView, budget: RuleBudget | None = None) -> None:
        """``budget``: what this and other evaluations may take together, if there are others."""
        self._view = view
        self._budget = budget
        self._user: dict[str, object] = {}
        self._system: dict[str, object] = {}
        self._steps_left = STEPS_MAX

    def restart(self) -> None:
        """Give the next filter its own budget; what was read of the message stays known."""
        self._steps_left = STEPS_MAX

    def charge(self, steps: int) -> None:
        """Take steps from the budget. Raises FilterFailed when it is used up."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise FilterFailed(f"the expression takes more than {STEPS_MAX} steps on this message")
        if self._budget is not None and not self._budget.take(steps):
            raise FilterFailed(
                f"the rules of the topic take more than {PUBLISH_STEPS_MAX} steps on this message"
            )

    def user(self, name: str) -> object:
        """The application property of this lower-case name, or MISSING."""
        value = self._user.get(name)
        if value is None and name not in self._user:
            value = self._user[name] = self._view.user(name)
        return value

    def system(self, name: str) -> object:
        """The broker property of this canonical name, or MISSING."""
        value = self._system.get(name)
        if value is None and name not in self._system:
            value = self._system[name] = self._view.system(name)
        return value

    def new_id(self) -> Uuid:
        return self._view.new_id()


class Node:
    __slots__ = ()


class Expression(Node):
    __slots__ = ()

    def value(self, evaluation: Evaluation) -> object:
        """The value for this message; None when null or unknown. Raises FilterFailed."""
        raise NotImplementedError


class Condition(Node):
    """Gives true, false or unknown."""

    __slots__ = ()

    def truth(self, evaluation: Evaluation) -> bool | None:
        """Whether it holds for this message; None when unknown. Raises FilterFailed."""
        raise NotImplementedError


@final
class Constant(Expression):
    """A literal or a parameter."""

    __slots__ = ("constant",)

    def __init__(self, constant: object) -> None:
        self.constant = constant

    def value(self, evaluation: Evaluation) -> object:  # noqa: ARG002 - all nodes are asked alike
        return self.constant


@final
@dataclass(slots=True, eq=False)
class Property(Expression):
    """A property by its name: the application's or, with ``is_system``, the broker's."""

    is_system: bool
    name: str
    """In lower case; canonical for a system property."""

    def value(self, evaluation: Evaluation) -> object:
        """What the message has there."""
        found = evaluation.system(self.name) if self.is_system else evaluation.user(self.name)
        return None if found is MISSING else found

    def exists(self, evaluation: Evaluation) -> bool:
        """Whether the message has it. An application property may exist and be null."""
        if self.is_system:
            return self.value(evaluation) is not None
        return evaluation.user(self.name) is not MISSING


@final
@dataclass(slots=True, eq=False)
class PropertyByName(Expression):
    """``property(expression)``: an application property whose name is computed."""

    name: Expression

    def value(self, evaluation: Evaluation) -> object:
        """What the message has there."""
        name = self.name.value(evaluation)
        if name is None:
            return None
        if not isinstance(name, str):
            raise FilterFailed(f"property() takes a name, not {described(name)}")
        found = evaluation.user(name.lower())
        return None if found is MISSING else found


@final
class NewId(Expression):
    """``newid()``."""

    __slots__ = ()

    def value(self, evaluation: Evaluation) -> object:
        return evaluation.new_id()


@final
@dataclass(slots=True, eq=False)
class Signed(Expression):
    """A sign before an expression."""

    is_minus: bool
    operand: Expression

    def value(self, evaluation: Evaluation) -> object:
        """The operand, negated for a minus."""
        value = self.operand.value(evaluation)
        if value is None:
            return None
        minus = negated(value)  # checks the type for a plus as well
        return minus if self.is_minus else value


@final
@dataclass(slots=True, eq=False)
class Arithmetic(Expression):
    """A run of operators of one precedence, from left to right: flat, so that depth stays small."""

    first: Expression
    operators: list[int]
    operands: list[Expression]

    def value(self, evaluation: Evaluation) -> object:
        """The result; unknown as soon as one side of an operator is."""
        result = self.first.value(evaluation)
        for i in range(len(self.operators)):
            operand = self.operands[i].value(evaluation)
            if result is None or operand is None:
                result = None
            else:
                result = arithmetic(self.operators[i], result, operand)
        return result


@final
@dataclass(slots=True, eq=False)
class And(Condition):
    parts: list[Condition]

    def truth(self, evaluation: Evaluation) -> bool | None:
        """False at the first false part, else unknown if one was unknown."""
        result: bool | None = True
        for part in self.parts:
            truth = part.truth(evaluation)
            if truth is None:
                result = None
            elif not truth:
                return False
        return result


@final
@dataclass(slots=True, eq=False)
class Or(Condition):
    parts: list[Condition]

    def truth(self, evaluation: Evaluation) -> bool | None:
        """True at the first true part, else unknown if one was unknown."""
        result: bool | None = False
        for part in self.parts:
            truth = part.truth(evaluation)
            if truth is None:
                result = None
            elif truth:
                return True
        return result


@final
@dataclass(slots=True, eq=False)
class Not(Condition):
    """The contrary; of unknown: unknown."""

    part: Condition

    def truth(self, evaluation: Evaluation) -> bool | None:
        truth = self.part.truth(evaluation)
        return None if truth is None else not truth


@final
@dataclass(slots=True, eq=False)
class Alone(Condition):
    """A boolean property or constant standing as a condition."""

    operand: Expression

    def truth(self, evaluation: Evaluation) -> bool | None:
        value = self.operand.value(evaluation)
        if value is None or isinstance(value, bool):
            return value
        raise FilterFailed(f"a condition is needed, not {described(value)}")


@final
@dataclass(slots=True, eq=False)
class Comparison(Condition):
    """Two expressions and what is between them."""

    operator: int
    left: Expression
    right: Expression

    def truth(self, evaluation: Evaluation) -> bool | None:
        """The comparison; unknown if a side is."""
        left = self.left.value(evaluation)
        right = self.right.value(evaluation)
        if left is None or right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):  # by far the most frequent case
            if self.operator == EQUAL:
                return left == right
            if self.operator == DIFFERENT:
                return left != right
        return compare(self.operator, left, right)


@final
@dataclass(slots=True, eq=False)
class IsNull(Condition):
    """``IS NULL``: null, or not there at all."""

    operand: Expression

    def truth(self, evaluation: Evaluation) -> bool | None:
        return self.operand.value(evaluation) is None


@final
@dataclass(slots=True, eq=False)
class Exists(Condition):
    """``EXISTS(property)``."""

    which: Property

    def truth(self, evaluation: Evaluation) -> bool | None:
        return self.which.exists(evaluation)


@final
@dataclass(slots=True, eq=False)
class In(Condition):
    """The same as the left side ``=`` one of the list, joined by OR."""

    left: Expression
    items: list[Expression]

    def truth(self, evaluation: Evaluation) -> bool | None:
        """True at the first equal; unknown if the left side or, without an equal, an item is."""
        left = self.left.value(evaluation)
        if left is None:
            return None
        result: bool | None = False
        for expression in self.items:
            item = expression.value(evaluation)
            if item is None:
                result = None
            elif compare(EQUAL, left, item):
                return True
        return result


@final
class InConstants(Condition):
    """IN over constants of one family: one look-up instead of a walk."""

    __slots__ = ("_family", "_items", "_left", "_sample")

    def __init__(self, left: Expression, constants: list[object]) -> None:
        """The constants are neither null nor opaque nor NaN, and of one family."""
        self._left = left
        self._family = family_of(constants[0])
        self._sample = constants[0]
        self._items = frozenset([primitive(constant) for constant in constants])

    def truth(self, evaluation: Evaluation) -> bool | None:
        """Whether the left side is among them."""
        left = self._left.value(evaluation)
        if left is None:
            return None
        if family_of(left) != self._family:
            return compare(EQUAL, left, self._sample)  # says in its error what does not fit
        return primitive(left) in self._items


@final
@dataclass(slots=True, eq=False)
class Like(Condition):
    """LIKE with a pattern or an escape character that only the message tells."""

    left: Expression
    pattern: Expression
    escape: Expression | None

    def truth(self, evaluation: Evaluation) -> bool | None:
        """Whether the text has the shape; unknown if any operand is."""
        left = self.left.value(evaluation)
        pattern = self.pattern.value(evaluation)
        escape = None if self.escape is None else self.escape.value(evaluation)
        if left is None or pattern is None or (self.escape is not None and escape is None):
            return None
        text = _text(left)
        wanted = _text(pattern)
        return LikePattern(wanted, None if escape is None else _text(escape)).matches(text, evaluation)


@final
@dataclass(slots=True, eq=False)
class LikeConstant(Condition):
    """LIKE with a pattern known beforehand."""

    left: Expression
    pattern: LikePattern

    def truth(self, evaluation: Evaluation) -> bool | None:
        """Whether the text has the shape; unknown if there is none."""
        left = self.left.value(evaluation)
        return None if left is None else self.pattern.matches(_text(left), evaluation)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise FilterFailed(f"LIKE compares texts, not {described(value)}")


def may_stand_alone(node: Expression) -> bool:
    """Whether an expression can be a condition at all: not a sum, not a text, not a number."""
    if isinstance(node, Constant):
        return node.constant is None or kind_of(node.constant) == BOOLEAN
    return not isinstance(node, (Arithmetic, Signed, NewId))
