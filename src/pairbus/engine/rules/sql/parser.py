"""Reads the tokens of an expression into a tree: one method per line of the grammar.

A parenthesis may hold a condition or a value, so both are read by the same methods and distinguished where one
of them is needed. A sub-expression, of which 32 are allowed, is one condition: a comparison, IS NULL, IN,
LIKE, EXISTS or a boolean alone. The keywords that join conditions are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from pairbus.engine.rules.message_view import SYSTEM_NAMES
from pairbus.engine.rules.sql import lexer as sql_lexer
from pairbus.engine.rules.sql.lexer import Token, refuse, tokens_of
from pairbus.engine.rules.sql.like import PATTERN_CHARACTERS_MAX, LikePattern
from pairbus.engine.rules.sql.nodes import (
    Alone,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Exists,
    Expression,
    In,
    InConstants,
    IsNull,
    Like,
    LikeConstant,
    NewId,
    Node,
    Not,
    Or,
    Property,
    PropertyByName,
    Signed,
    may_stand_alone,
)
from pairbus.engine.rules.sql.values import (
    ADD,
    DIFFERENT,
    DIVIDE,
    EQUAL,
    GREATER,
    GREATER_OR_EQUAL,
    LESS,
    LESS_OR_EQUAL,
    MULTIPLY,
    NOTHING,
    REMAINDER,
    STRING,
    SUBTRACT,
    described,
    family_of,
    is_nan,
    kind_of,
)
from pairbus.errors import FilterFailed, InvalidRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SUB_EXPRESSIONS_MAX: Final = 32
NESTING_MAX: Final = 32

COMPARISONS: Final[dict[str, int]] = {
    "=": EQUAL,
    "<>": DIFFERENT,
    "!=": DIFFERENT,
    "<": LESS,
    "<=": LESS_OR_EQUAL,
    ">": GREATER,
    ">=": GREATER_OR_EQUAL,
}
SUMS: Final[dict[str, int]] = {"+": ADD, "-": SUBTRACT}
PRODUCTS: Final[dict[str, int]] = {"*": MULTIPLY, "/": DIVIDE, "%": REMAINDER}


@final
class Parser:
    """Walks over the tokens of one expression. Every method raises InvalidRule."""

    __slots__ = (
        "_at",
        "_nesting",
        "_parameters",
        "_sub_expressions",
        "_tokens",
        "reads_message",
        "text_steps",
        "text_weight",
    )

    def __init__(self, expression: str, parameters: Mapping[str, object]) -> None:
        """``parameters`` by lower-case name without ``@``."""
        self._tokens = tokens_of(expression)
        self._parameters = parameters
        self._at = 0
        self._nesting = 0
        self._sub_expressions = 0
        self.reads_message = False
        """Whether the result can differ from message to message."""
        self.text_steps = 0
        """The steps that all LIKE together take at most on short texts."""
        self.text_weight = 0
        """The characters that they compare at one place of a text at most."""

    # ---- what callers ask for

    def whole_condition(self) -> Condition:
        """The condition that the expression consists of."""
        start = self.token()
        condition = self._condition(self._or(), start)
        if self.token().kind != sql_lexer.END:
            raise self.unexpected("an operator or the end")
        return condition

    def expression(self) -> Expression:
        start = self.token()
        return self._expression(self._sum(), start)

    def property(self) -> tuple[Property, str]:
        """``[sys.|user.]name`` at this place, and the name as it is written."""
        scope = ""
        token = self._name()
        if token.kind == sql_lexer.NAME and token.text.lower() in ("sys", "user") and self.take_symbol("."):
            scope = token.text.lower()
            token = self._name()
        self.reads_message = True
        name = token.text.lower()
        if scope != "sys":
            return Property(False, name), token.text
        if name not in SYSTEM_NAMES:
            raise refuse(token.position, "the name of a system property", repr(token.text))
        return Property(True, SYSTEM_NAMES[name]), token.text

    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    def take_symbol(self, text: str) -> bool:
        """Pass over this symbol if it comes next."""
        return self._take(sql_lexer.SYMBOL, text)

    def take_keyword(self, text: str) -> bool:
        """Pass over this keyword if it comes next."""
        return self._take(sql_lexer.KEYWORD, text)

    def need_symbol(self, text: str) -> None:
        """Pass over this symbol, which must come next."""
        if not self.take_symbol(text):
            raise self.unexpected(repr(text))

    def unexpected(self, expected: str) -> InvalidRule:
        """The error that something else should come next."""
        token = self.token()
        found = "the end" if token.kind == sql_lexer.END else repr(token.text)
        return refuse(token.position, expected, found)

    # ---- conditions

    def _or(self) -> Node:
        parts = self._joined("OR", self._and)
        return parts[0] if len(parts) == 1 else Or(cast("list[Condition]", parts))

    def _and(self) -> Node:
        parts = self._joined("AND", self._not)
        return parts[0] if len(parts) == 1 else And(cast("list[Condition]", parts))

    def _joined(self, keyword: str, part: Callable[[], Node]) -> list[Node]:
        """One node of any kind or, if the keyword joins several, those as conditions."""
        start = self.token()
        parts = [part()]
        if self._is_keyword(keyword):
            parts[0] = self._condition(parts[0], start)
        while self.take_keyword(keyword):
            start = self.token()
            parts.append(self._condition(part(), start))
        return parts

    def _not(self) -> Node:
        if not self._is_keyword("NOT"):
            return self._comparison()
        is_negated = False
        while self.take_keyword("NOT"):
            is_negated = not is_negated
        start = self.token()
        condition = self._condition(self._comparison(), start)
        return Not(condition) if is_negated else condition

    def _comparison(self) -> Node:
        start = self.token()
        if self.take_keyword("EXISTS"):
            self.need_symbol("(")
            which, _ = self.property()
            self.need_symbol(")")
            return self._counted(Exists(which), start)
        left = self._sum()
        token = self.token()
        if token.kind == sql_lexer.SYMBOL and token.text in COMPARISONS:
            self._at += 1
            operand = self._expression(left, start)
            return self._counted(Comparison(COMPARISONS[token.text], operand, self.expression()), start)
        if token.kind == sql_lexer.KEYWORD and token.text in ("IS", "NOT", "IN", "LIKE"):
            return self._counted(self._tested(self._expression(left, start)), start)
        return left

    def _tested(self, left: Expression) -> Condition:
        """A test by keyword that follows a value: ``IS [NOT] NULL``, ``[NOT] IN (…)``, ``[NOT] LIKE …``."""
        if self.take_keyword("IS"):
            is_negated = self.take_keyword("NOT")
            if not self.take_keyword("NULL"):
                raise self.unexpected("NULL")
            condition: Condition = IsNull(left)
        else:
            is_negated = self.take_keyword("NOT")
            if self.take_keyword("IN"):
                condition = self._in(left)
            elif self.take_keyword("LIKE"):
                condition = self._like(left)
            else:
                raise self.unexpected("IN or LIKE")
        return Not(condition) if is_negated else condition

    def _in(self, left: Expression) -> Condition:
        self.need_symbol("(")
        items = [self.expression()]
        while self.take_symbol(","):
            items.append(self.expression())
        self.need_symbol(")")
        constants = [item.constant for item in items if isinstance(item, Constant)]
        if len(constants) == len(items) and _are_of_one_family(constants):
            return InConstants(left, constants)
        return In(left, items)

    def _like(self, left: Expression) -> Condition:
        start = self.token()
        pattern = self.expression()
        escape: Expression | None = self.expression() if self.take_keyword("ESCAPE") else None
        for operand in (pattern, escape):
            if isinstance(operand, Constant) and kind_of(operand.constant) not in (NOTHING, STRING):
                raise refuse(start.position, "a text", described(operand.constant))
        text = _constant_text(pattern)
        mark = _constant_text(escape)
        if text is None or (mark is None and escape is not None):
            self._searches(PATTERN_CHARACTERS_MAX, 4 * PATTERN_CHARACTERS_MAX)  # only the message tells which
            return Like(left, pattern, escape)
        try:
            known = LikePattern(text, mark)
            self._searches(known.weight + 1, known.fixed_steps)
            return LikeConstant(left, known)
        except FilterFailed as failure:
            raise InvalidRule(f"at character {start.position}: {failure.description}") from None

    def _searches(self, weight: int, steps: int) -> None:
        self.text_weight += weight
        self.text_steps += steps

    def _counted(self, condition: Condition, start: Token) -> Condition:
        self._sub_expressions += 1
        if self._sub_expressions > SUB_EXPRESSIONS_MAX:
            raise refuse(start.position, f"at most {SUB_EXPRESSIONS_MAX} sub-expressions", "one more")
        return condition

    # ---- values

    def _sum(self) -> Node:
        return self._run(SUMS, self._product)

    def _product(self) -> Node:
        return self._run(PRODUCTS, self._factor)

    def _run(self, symbols: dict[str, int], operand: Callable[[], Node]) -> Node:
        """Operands joined by operators of one precedence."""
        start = self.token()
        first = operand()
        operators: list[int] = []
        operands: list[Expression] = []
        while self.token().kind == sql_lexer.SYMBOL and self.token().text in symbols:
            operators.append(symbols[self.token().text])
            self._at += 1
            after = self.token()
            operands.append(self._expression(operand(), after))
        return Arithmetic(self._expression(first, start), operators, operands) if operators else first

    def _factor(self) -> Node:
        token = self.token()
        if not self.take_symbol("-") and not self.take_symbol("+"):
            return self._primary()
        number = self.token()
        if token.text == "-" and number.kind in (sql_lexer.INTEGER, sql_lexer.DOUBLE):
            self._at += 1
            if number.kind == sql_lexer.DOUBLE:
                return Constant(-float(number.number))
            return self._integer(-int(number.number), number)  # the lowest integer exists only with its sign
        self._enter(token)
        after = self.token()
        operand = self._expression(self._factor(), after)
        self._nesting -= 1
        return Signed(token.text == "-", operand)

    def _primary(self) -> Node:
        token = self.token()
        if token.kind == sql_lexer.INTEGER:
            self._at += 1
            return self._integer(int(token.number), token)
        if token.kind == sql_lexer.DOUBLE:
            self._at += 1
            return Constant(float(token.number))
        if token.kind == sql_lexer.STRING:
            self._at += 1
            return Constant(token.text)
        if token.kind == sql_lexer.KEYWORD and token.text in ("TRUE", "FALSE", "NULL"):
            self._at += 1
            return Constant(None if token.text == "NULL" else token.text == "TRUE")
        if self.take_symbol("@"):
            return self._parameter()
        if self.take_symbol("("):
            self._enter(token)
            inner = self._or()
            self.need_symbol(")")
            self._nesting -= 1
            return inner
        if token.kind == sql_lexer.NAME and self._is_call():
            return self._function()
        if token.kind in (sql_lexer.NAME, sql_lexer.QUOTED_NAME):
            return self.property()[0]
        raise self.unexpected("a value")

    def _function(self) -> Expression:
        token = self._name()
        name = token.text.lower()
        self.reads_message = True
        self.need_symbol("(")
        if name == "newid":
            self.need_symbol(")")
            return NewId()
        if name not in ("property", "p"):
            raise refuse(token.position, "newid, property or p", repr(token.text))
        self._enter(token)
        argument = self.expression()
        self._nesting -= 1
        self.need_symbol(")")
        return PropertyByName(argument)

    def _parameter(self) -> Expression:
        token = self._name()
        name = token.text.lower()
        if name not in self._parameters:
            raise refuse(token.position, "a parameter that comes with the rule", repr("@" + token.text))
        return Constant(self._parameters[name])

    def _integer(self, number: int, token: Token) -> Constant:
        if not -sql_lexer.INTEGER_MAX - 1 <= number <= sql_lexer.INTEGER_MAX:
            raise refuse(token.position, "an integer of 64 bits", token.text[:40])
        return Constant(number)

    # ---- small steps

    def _condition(self, node: Node, start: Token) -> Condition:
        if isinstance(node, Condition):
            return node
        assert isinstance(node, Expression), node
        if not may_stand_alone(node):
            raise refuse(start.position, "a condition", "a value that is not boolean")
        return self._counted(Alone(node), start)

    def _expression(self, node: Node, start: Token) -> Expression:
        if not isinstance(node, Expression):
            raise refuse(start.position, "a value", "a condition")
        return node

    def _enter(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise refuse(token.position, f"at most {NESTING_MAX} levels of nesting", "one more")

    def _name(self) -> Token:
        token = self.token()
        if token.kind not in (sql_lexer.NAME, sql_lexer.QUOTED_NAME):
            raise self.unexpected("a name")
        self._at += 1
        return token

    def _is_call(self) -> bool:
        after = self._tokens[self._at + 1]  # the last token is END, never a name
        return after.kind == sql_lexer.SYMBOL and after.text == "("

    def _is_keyword(self, text: str) -> bool:
        token = self.token()
        return token.kind == sql_lexer.KEYWORD and token.text == text

    def _take(self, kind: int, text: str) -> bool:
        token = self.token()
        if token.kind != kind or token.text != text:
            return False
        self._at += 1
        return True


def _are_of_one_family(constants: list[object]) -> bool:
    """Whether a look-up can say what comparing one by one would."""
    family = family_of(constants[0])
    return family != NOTHING and all(
        family_of(constant) == family and not is_nan(constant) for constant in constants
    )


def _constant_text(expression: Expression | None) -> str | None:
    if isinstance(expression, Constant) and isinstance(expression.constant, str):
        return expression.constant
    return None
