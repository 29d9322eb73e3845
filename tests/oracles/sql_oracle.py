"""A second, simple reading of the rule language, to hold the broker's against (B55).

It shares nothing with ``pairbus.engine`` but the value types: it makes random trees, writes them as text, and
evaluates the tree itself, never the text. Trees are nested tuples:

    values      ("const", v) ("user", name) ("sys", name) ("prop", value) ("sign", "-", value) ("bin", "+", l, r)
    conditions  ("cmp", "=", l, r) ("null", v, negated) ("in", v, [v…], negated) ("like", v, pattern, escape, negated)
                ("exists", "user", name) ("alone", v) ("and", l, r) ("or", l, r) ("not", c)
"""

from __future__ import annotations

import datetime
import math
import re
import uuid
from fractions import Fraction
from random import Random
from typing import Any

from pairbus.amqp.types import Decimal128, Symbol, Timestamp, Uuid
from pairbus.engine.rules.sql.values import Duration

Tree = tuple[Any, ...]

USER_NAMES = ["color", "size", "flag", "when", "my prop", "x]y", 'q"t', "and"]
SYSTEM_NAMES = ["label", "messageid", "timetolive", "enqueuedtimeutc"]
TEXTS = ["", "a", "b", "ab", "aab", "red", "A", "it's", "%", "a_b", "a%b", "ü", "10", "a\nb"]
INTEGERS = [0, 1, 2, 3, 5, 10, -1, -7, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, 1.0, 0.5, -2.5, 10.0, 1e15, 1e300, -1e300, float(2**53), 1e-7]
RARE = [
    b"",
    b"x",
    Timestamp(0),
    Timestamp(1_700_000_000_123),
    Duration(0),
    Duration(90_061_001),
    Uuid(bytes(range(16))),
    Decimal128(bytes(16)),
    [1, 2],
    Symbol("red"),
    math.inf,
    math.nan,
    2**64 - 1,
]


class OracleError(Exception):
    """The expression fails on this message."""


# ---- evaluation ----------------------------------------------------------------------------------


class Message:
    """The two property maps of a message."""

    def __init__(self, user: dict[str, Any], system: dict[str, Any]) -> None:
        self.user = user
        self.system = system

    def find(self, name: str) -> tuple[bool, Any]:
        for key, value in self.user.items():
            if key.lower() == name.lower():
                return True, value
        return False, None


def family(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    for kind in (str, bytes, Timestamp, Duration, Uuid):
        if isinstance(value, kind):
            return kind.__name__
    return "other " + type(value).__name__


def exact(number: float) -> Any:
    return Fraction(number) if math.isfinite(number) else number


def same(left: Any, right: Any) -> bool:
    if family(left) == "number":
        return bool(exact(left) == exact(right))
    return bool(left == right)


def value_of(tree: Tree, message: Message) -> Any:
    """The value; None is null and unknown."""
    match tree:
        case ("const", constant):
            return constant
        case ("user", name):
            return message.find(name)[1]
        case ("sys", name):
            return message.system.get(name)
        case ("prop", inner):
            name = value_of(inner, message)
            if name is None:
                return None
            if not isinstance(name, str):
                raise OracleError
            return message.find(name)[1]
        case ("sign", sign, inner):
            value = value_of(inner, message)
            return None if value is None else signed(sign, value)
        case ("bin", operator, left_tree, right_tree):
            left, right = value_of(left_tree, message), value_of(right_tree, message)
            return None if left is None or right is None else computed(operator, left, right)
    raise AssertionError(tree)


def signed(sign: str, value: Any) -> Any:
    if isinstance(value, Duration):
        result: Any = Duration(-value.ms)
    elif family(value) != "number":
        raise OracleError
    else:
        result = -value
    if isinstance(result, int) and not -(2**63) <= result < 2**63:
        raise OracleError
    return result if sign == "-" else value


def computed(operator: str, left: Any, right: Any) -> Any:
    families = (family(left), family(right))
    if families == ("number", "number"):
        if isinstance(left, int) and isinstance(right, int):
            return integers(operator, left, right)
        return doubles(operator, float(left), float(right))
    if operator == "+" and "str" in families:
        text = spelled(left) + spelled(right)
        if len(text) > 32768:
            raise OracleError
        return text
    if operator in "+-" and families in (("Timestamp", "Duration"), ("Duration", "Duration")):
        ms = left.ms + right.ms if operator == "+" else left.ms - right.ms
        return Timestamp(ms) if families[0] == "Timestamp" else Duration(ms)
    if operator == "-" and families == ("Timestamp", "Timestamp"):
        return Duration(left.ms - right.ms)
    raise OracleError


def integers(operator: str, left: int, right: int) -> int:
    if operator in "/%" and right == 0:
        raise OracleError
    quotient = math.trunc(Fraction(left, right)) if operator in "/%" else 0
    result = {
        "+": left + right,
        "-": left - right,
        "*": left * right,
        "/": quotient,
        "%": left - right * quotient,
    }[operator]
    if not -(2**63) <= result < 2**63:
        raise OracleError
    return result


def doubles(operator: str, left: float, right: float) -> float:
    try:
        result = {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "/": lambda: left / right,
            "%": lambda: math.fmod(left, right),
        }[operator]()
    except (ZeroDivisionError, ValueError, OverflowError):
        raise OracleError from None
    if not math.isfinite(result):
        raise OracleError
    return result


def spelled(value: Any) -> str:
    match value:
        case str():
            return str(value)
        case bool():
            return str(value)
        case int():
            return str(value)
        case float():
            whole = math.isfinite(value) and value == math.trunc(value) and abs(value) < 10**15
            return str(math.trunc(value)) if whole else repr(value)
        case Timestamp():
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            moment = epoch + datetime.timedelta(milliseconds=value.ms)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Duration():
            return {0: "PT0S", 90_061_001: "P1DT1H1M1.001S", -90_061_001: "-P1DT1H1M1.001S"}.get(
                value.ms, f"PT{value.ms}S"
            )
        case Uuid():
            return str(uuid.UUID(bytes=value.raw))
    raise OracleError


def truth_of(tree: Tree, message: Message) -> bool | None:
    """True, False or None for unknown."""
    match tree:
        case ("and", left_tree, right_tree):
            left = truth_of(left_tree, message)
            if left is False:
                return False
            right = truth_of(right_tree, message)
            return False if right is False else None if left is None or right is None else True
        case ("or", left_tree, right_tree):
            left = truth_of(left_tree, message)
            if left is True:
                return True
            right = truth_of(right_tree, message)
            return True if right is True else None if left is None or right is None else False
        case ("not", inner):
            return contrary(truth_of(inner, message))
        case ("alone", inner):
            value = value_of(inner, message)
            if value is not None and not isinstance(value, bool):
                raise OracleError
            return value
        case ("cmp", operator, left_tree, right_tree):
            left_value, right_value = value_of(left_tree, message), value_of(right_tree, message)
            if left_value is None or right_value is None:
                return None
            return compared(operator, left_value, right_value)
        case ("null", inner, negated):
            return (value_of(inner, message) is None) is not negated
        case ("exists", "user", name):
            return message.find(name)[0]
        case ("exists", "sys", name):
            return message.system.get(name) is not None
        case ("in", left_tree, items, negated):
            answer = is_in(value_of(left_tree, message), items, message)
            return contrary(answer) if negated else answer
        case ("like", left_tree, pattern, escape, negated):
            answer = is_like(left_tree, pattern, escape, message)
            return contrary(answer) if negated else answer
    raise AssertionError(tree)


def contrary(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def compared(operator: str, left: Any, right: Any) -> bool:
    if family(left) != family(right):
        raise OracleError
    if operator in ("=", "<>", "!="):
        return same(left, right) is (operator == "=")
    if family(left) not in ("number", "str", "Timestamp", "Duration"):
        raise OracleError
    if family(left) == "number":
        left, right = exact(left), exact(right)
    elif family(left) != "str":
        left, right = left.ms, right.ms
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])


def is_in(left: Any, items: list[Tree], message: Message) -> bool | None:
    if left is None:
        return None
    answer: bool | None = False
    for tree in items:
        item = value_of(tree, message)
        if item is None:
            answer = None
        elif compared("=", left, item):
            return True
    return answer


def is_like(left_tree: Tree, pattern_tree: Tree, escape_tree: Tree | None, message: Message) -> bool | None:
    operands = [value_of(left_tree, message), value_of(pattern_tree, message)]
    if escape_tree is not None:
        operands.append(value_of(escape_tree, message))
    if None in operands:
        return None
    if not all(isinstance(operand, str) for operand in operands):
        raise OracleError
    escape = operands[2] if escape_tree is not None else None
    return re.fullmatch(expression_of(operands[1], escape), operands[0], re.DOTALL) is not None


def expression_of(pattern: str, escape: str | None) -> str:
    if escape is not None and len(escape) != 1:
        raise OracleError
    result = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise OracleError
            result += re.escape(literal)
        else:
            result += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return result


def outcome(tree: Tree, message: Message) -> str:
    """``true``, ``false``, ``unknown`` or ``error``."""
    try:
        return {True: "true", False: "false", None: "unknown"}[truth_of(tree, message)]
    except OracleError:
        return "error"


# ---- making trees --------------------------------------------------------------------------------


def random_value(random: Random, name: str) -> Any:
    """A value for a property; most have the type their name suggests."""
    if random.random() < 0.75:
        if name == "color" or name in ("label", "messageid"):
            return random.choice(TEXTS)
        if name == "size":
            return random.choice(INTEGERS + DOUBLES[:5])
        if name == "flag":
            return random.random() < 0.5
        if name == "enqueuedtimeutc":
            return Timestamp(1_700_000_000_123)
        if name == "timetolive":
            return Duration(90_061_001)
    pool = random.choice([TEXTS, INTEGERS, DOUBLES, [True, False, None], RARE])
    return random.choice(pool)  # type: ignore[arg-type]


def random_message(random: Random) -> Message:
    user = {
        respelled(random, name): random_value(random, name) for name in USER_NAMES if random.random() < 0.7
    }
    return Message(user, {name: random_value(random, name) for name in SYSTEM_NAMES if random.random() < 0.7})


def respelled(random: Random, name: str) -> str:
    return random.choice([name, name, name.upper(), name.title()])


def random_constant(random: Random) -> Tree:
    pool = random.choice([TEXTS, TEXTS, INTEGERS, DOUBLES, [True, False, None]])
    return ("const", random.choice(pool))  # type: ignore[arg-type]


def random_property(random: Random) -> Tree:
    if random.random() < 0.2:
        return ("sys", random.choice(SYSTEM_NAMES))
    return ("user", random.choice(USER_NAMES[:4] * 3 + USER_NAMES))


def value_tree(random: Random, depth: int) -> Tree:
    draw = random.random()
    if depth == 0 or draw < 0.45:
        return random_constant(random) if random.random() < 0.45 else random_property(random)
    if draw < 0.5:
        name: Tree = (
            ("const", random.choice(USER_NAMES)) if random.random() < 0.8 else value_tree(random, depth - 1)
        )
        return ("prop", name)
    if draw < 0.6:
        return ("sign", random.choice("+-"), value_tree(random, depth - 1))
    return ("bin", random.choice("+-*/%"), value_tree(random, depth - 1), value_tree(random, depth - 1))


def typed_comparison(random: Random) -> Tree:
    """A comparison as people write them, so that not everything ends as an error."""
    name = random.choice(["color", "size", "flag", "label", "messageid"])
    which: Tree = ("sys" if name in SYSTEM_NAMES else "user", name)
    constant: Tree = ("const", random.choice(TEXTS))
    if name == "size":
        constant = ("const", random.choice(INTEGERS[:8] + DOUBLES[:5]))
    elif name == "flag":
        constant = ("const", random.random() < 0.5)
    operator = (
        "=" if name == "flag" or random.random() < 0.6 else random.choice(["<>", "!=", "<", "<=", ">", ">="])
    )
    return ("cmp", operator, which, constant) if random.random() < 0.8 else ("cmp", operator, constant, which)


def condition_tree(random: Random, depth: int) -> Tree:
    if depth > 0 and random.random() < 0.6:
        if random.random() < 0.2:
            return ("not", condition_tree(random, depth - 1))
        kind = random.choice(["and", "or"])
        return (kind, condition_tree(random, depth - 1), condition_tree(random, depth - 1))
    draw = random.random()
    if draw < 0.35:
        return typed_comparison(random)
    if draw < 0.5:
        operator = random.choice(["=", "<>", "!=", "<", "<=", ">", ">="])
        return ("cmp", operator, value_tree(random, 2), value_tree(random, 2))
    if draw < 0.6:
        return ("null", value_tree(random, 1), random.random() < 0.5)
    if draw < 0.72:
        return in_tree(random)
    if draw < 0.86:
        return like_tree(random)
    if draw < 0.94:
        scope, name = random_property(random)
        return ("exists", scope, name)
    alone: list[Tree] = [("user", "flag"), ("user", "flag"), random_property(random)]
    return ("alone", random.choice([*alone, ("const", True), ("const", False), ("const", None)]))


def in_tree(random: Random) -> Tree:
    if random.random() < 0.6:
        items: list[Tree] = [("const", text) for text in random.sample(TEXTS, random.randint(1, 5))]
        return ("in", ("user", "color"), items, random.random() < 0.5)
    items = [value_tree(random, 1) for _ in range(random.randint(1, 4))]
    return ("in", value_tree(random, 1), items, random.random() < 0.5)


def like_tree(random: Random) -> Tree:
    left: Tree = ("user", "color") if random.random() < 0.7 else value_tree(random, 1)
    pattern: Tree = ("const", "".join(random.choice("ab%_!r") for _ in range(random.randint(0, 6))))
    escape: Tree | None = None
    if random.random() < 0.25:
        pattern = random_property(random)
    if random.random() < 0.4:
        escape = random_property(random) if random.random() < 0.2 else ("const", "!")
    if escape == ("const", "!") and pattern[0] == "const":
        # A constant pattern that ends in the middle of an escape is refused, not evaluated.
        pattern = ("const", pattern[1] + ("!" if _dangles(pattern[1]) else ""))
    return ("like", left, pattern, escape, random.random() < 0.4)


def _dangles(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("!"))) % 2 == 1


def equality_tree(random: Random) -> Tree:
    """What the index keeps in tables: equalities joined by AND."""
    tree: Tree = ("cmp", "=", *typed_comparison(random)[2:])
    for _ in range(random.choice([0, 0, 1, 2])):
        tree = ("and", tree, ("cmp", "=", *typed_comparison(random)[2:]))
    return tree


# ---- writing trees -------------------------------------------------------------------------------

LEVELS = {"or": 1, "and": 2, "not": 3, "bin+": 5, "bin-": 5, "bin*": 6, "bin/": 6, "bin%": 6, "sign": 7}


class Writer:
    """Writes trees as text, with random case, blanks, quoting and needless parentheses."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def text(self, tree: Tree, least: int = 0) -> str:
        written = self._bare(tree)
        level = self._level(tree)
        if level < least or (self._random.random() < 0.08 and not written.startswith("((((")):
            return self._joined("(", written, ")")
        return written

    def _level(self, tree: Tree) -> int:
        if tree[0] == "bin":
            return LEVELS["bin" + tree[1]]
        if tree[0] in LEVELS:
            return LEVELS[tree[0]]
        if tree[0] in ("const", "user", "sys", "prop", "alone", "exists"):
            return 8
        return 4  # comparisons and their like

    def _bare(self, tree: Tree) -> str:
        match tree:
            case ("const", constant):
                return self._constant(constant)
            case ("user", name):
                return self._property("user", name)
            case ("sys", name):
                return self._property("sys", name)
            case ("prop", inner):
                return self._joined(
                    self._cased(self._random.choice(["property", "p"])), "(", self.text(inner, 5), ")"
                )
            case ("sign", sign, inner):
                return self._joined(sign, self.text(inner, 7))
            case ("bin", operator, left, right):
                level = self._level(tree)
                return self._joined(self.text(left, level), operator, self.text(right, level + 1))
            case ("cmp", operator, left, right):
                return self._joined(self.text(left, 5), operator, self.text(right, 5))
            case ("alone", inner):
                return self.text(inner, 8)
            case ("exists", scope, name):
                return self._joined(self._cased("EXISTS"), "(", self._property(scope, name), ")")
            case ("not", inner):
                return self._words(self._cased("NOT"), self.text(inner, 3))
            case ("and" | "or", left, right):
                level = self._level(tree)
                return self._words(self.text(left, level), self._cased(tree[0]), self.text(right, level + 1))
            case _:
                return self._tested(tree)

    def _tested(self, tree: Tree) -> str:
        negation = [self._cased("NOT")] if tree[-1] else []
        left = self.text(tree[1], 5)
        if tree[0] == "null":
            return self._words(left, self._cased("IS"), *negation, self._cased("NULL"))
        if tree[0] == "in":
            items = " , ".join(self.text(item, 5) for item in tree[2])
            return self._words(left, *negation, self._cased("IN"), f"({items})")
        words = [left, *negation, self._cased("LIKE"), self.text(tree[2], 5)]
        if tree[3] is not None:
            words += [self._cased("ESCAPE"), self.text(tree[3], 5)]
        return self._words(*words)

    def _constant(self, constant: Any) -> str:
        match constant:
            case None:
                return self._cased("NULL")
            case bool():
                return self._cased(str(constant))
            case str():
                return "'" + constant.replace("'", "''") + "'"
            case float():
                written = repr(constant)
                return f"({written})" if constant < 0 else self._cased(written)
        return f"({constant})" if constant < 0 else str(constant)

    def _property(self, scope: str, name: str) -> str:
        written = respelled(self._random, name)
        is_regular = re.fullmatch("[a-z]+", name) is not None and name != "and"
        quoted = ["[" + written.replace("]", "]]") + "]", '"' + written.replace('"', '""') + '"']
        if is_regular and self._random.random() < 0.8:
            quoted = [written]
        prefix = self._cased(scope) + "." if scope == "sys" or self._random.random() < 0.2 else ""
        return prefix + self._random.choice(quoted)

    def _cased(self, word: str) -> str:
        return self._random.choice([word.upper(), word.lower(), word.title()])

    def _joined(self, *parts: str) -> str:
        return self._random.choice(["", " ", "", "\t"]).join(parts)

    def _words(self, *parts: str) -> str:
        return self._random.choice([" ", "  ", "\n"]).join(parts)
