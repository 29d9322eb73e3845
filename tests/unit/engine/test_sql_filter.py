"""SQL filters: grammar, three-valued logic, types and limits."""

from __future__ import annotations

import math

import pytest

from pairbus.amqp.types import Decimal64, Symbol, Timestamp, Uuid
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.declared import Declared, declared
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.engine.rules.sql.nodes import STEPS_MAX, Evaluation
from pairbus.engine.rules.sql.parser import NESTING_MAX, SUB_EXPRESSIONS_MAX
from pairbus.engine.rules.sql.values import Duration
from pairbus.errors import FilterFailed, InvalidRule

UUID = Uuid(bytes(range(16)))
MESSAGE = MappingView(
    {
        "Color": "red",
        "size": 10,
        "price": 2.5,
        "flag": True,
        "off": False,
        "nothing": None,
        "my prop": 1,
        "a]b": 2,
        'c"d': 3,
        "and": 4,
        "data": b"x",
        "id": UUID,
        "symbol": Symbol("red"),
        "decimal": Decimal64(bytes(8)),
        "twin": Decimal64(bytes(8)),
        "big": 2**63 - 1,
        "unsigned": 2**64 - 1,
        "infinite": math.inf,
        "nan": math.nan,
        "lines": "a\nb",
        "ünï": 7,
    },
    {
        "label": "news",
        "messageid": "m1",
        "timetolive": Duration(60_000),
        "enqueuedtimeutc": Timestamp(1_000_000),
        "expiresatutc": Timestamp(1_060_000),
    },
    ids=[UUID] * 4,
)


def truth(expression: str, parameters: dict[str, object] | None = None) -> bool | None:
    return compile_filter(expression, parameters).truth(Evaluation(MESSAGE))


@pytest.mark.parametrize(
    "expression",
    [
        "1=1",
        "color = 'red'",
        "COLOR = 'red' and Size = 10",
        "user.color = 'red' AND USER.[COLOR] = 'red'",
        "sys.Label = 'news' AND SYS.label='news' AND sys.[Label]='news' AND sys.Subject = 'news'",
        "[my prop] = 1 AND [a]]b] = 2",
        '"my prop" = 1 AND "c""d" = 3',
        "[and] = 4 AnD nOt off",
        "flag",
        "(flag)",
        "NOT NOT flag",
        "TRUE",
        "not FALSE",
        "color <> 'blue' and color != 'blue'",
        "color = 'it''s' or color = 'red'",
        "color > 'RED'",
        "size >= 10 and size <= 10 and size > 9 and size < 11",
        "size = 10.0 and size = 1E1 and size = 1e+1 and size = 100E-1",
        "price = 2.5 and price = .25E1",
        "-size = -10 and +size = 10 and - -size = 10",
        "size+1*2 = 12 and (size+1)*2 = 22 and 20-size-5 = 5 and 20/size/2 = 1",
        "7/2 = 3 and -7/2 = -3 and 7%3 = 1 and -7%3 = -1 and 7%-3 = 1",
        "7/2.0 = 3.5 and 7.5 % 2 = 1.5",
        "size-1 = 9",
        "9223372036854775807 = big and -9223372036854775808 < big and unsigned > big",
        "color + '-' + size = 'red-10' and 1 + 'a' = '1a' and 'x' + flag = 'xTrue' and 'x' + price = 'x2.5'",
        "'x' + 2.0 = 'x2'",
        "color in ('blue', 'red') and color not in ('blue','green')",
        "size in (1, 10.0) and size in (1, price*4)",
        "color like 'r%' and color like '%d' and color like '_e_' and color not like 'R%'",
        "color like '%' and color like 'red' and '' like '' and '' like '%' and not '' like '_'",
        "lines like 'a_b' and lines like 'a%b'",
        "'100%' like '100!%' escape '!' and '1000' not like '100!%' escape '!'",
        "'a!b' like 'a!!b' escape '!' and 'ab' like 'a!b' escape '!'",
        "'[a]' like '[a]'",
        "missing is null and nothing is null and color is not null and not (color is null)",
        "size + missing is null",
        "exists(color) and exists(nothing) and not exists(missing) and exists ( [my prop] )",
        "exists(sys.label) and not exists(sys.to)",
        "property('color') = 'red' and p('CO'+'LOR') = 'red' and property(missing) is null",
        "newid() is not null and newid() = id",
        "id = id and data = data and decimal = twin and symbol = color and nan <> nan",
        "sys.TimeToLive < sys.EnqueuedTimeUtc - sys.EnqueuedTimeUtc or sys.EnqueuedTimeUtc < sys.ExpiresAtUtc",
        "sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive",
        "sys.EnqueuedTimeUtc + sys.TimeToLive = sys.ExpiresAtUtc",
        "ünï = 7",
        "size = 10\tAND\n flag",
        "off or missing or flag",
        "flag or 1/0 = 1",
        "not (off and 1/0 = 1)",
        "size in (10, 'text')",
        "set1 is null and sys is null and user is null and newid is null",
    ],
)
def test_filter_is_true(expression: str) -> None:
    assert truth(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "missing",
        "missing = 1",
        "missing <> 1",
        "missing = missing",
        "not missing",
        "nothing = NULL",
        "NULL",
        "color = NULL",
        "missing + 1 > 0",
        "missing + 'a' = 'a'",
        "-missing = 1",
        "missing like 'a%'",
        "color like missing",
        "color like 'r%' escape missing",
        "missing in (1, 2)",
        "missing not in (1, 2)",
        "color in ('blue', NULL)",
        "color not in ('blue', missing)",
        "flag and missing",
        "missing and flag",
        "off or missing",
        "missing or missing",
        "size = missing",
        "data = missing",
        "sys.To = 'x'",
        "missing = 'a' and size > 5",
    ],
)
def test_filter_is_unknown_and_does_not_select(expression: str) -> None:
    assert truth(expression) is None
    assert not compile_filter(expression).matches(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "1=0",
        "color = 'Red'",
        "off and missing",
        "missing and off",
        "color in ('a')",
        "nan = nan",
        "unsigned = big",
    ],
)
def test_filter_is_false(expression: str) -> None:
    assert truth(expression) is False


@pytest.mark.promise("B58")
@pytest.mark.parametrize(
    "expression",
    [
        "color > 1",
        "color = 1",
        "size = '10'",
        "flag = 1",
        "flag > off",
        "id > id",
        "data < data",
        "decimal < twin",
        "decimal = 1",
        "id = '00010203-0405-0607-0809-0a0b0c0d0e0f'",
        "color",
        "size and flag",
        "not size",
        "size / 0 = 1",
        "size % 0 = 1",
        "price / 0 = 1",
        "price % 0.0 = 1",
        "big + 1 > 0",
        "-9223372036854775808 - size < 0",
        "-(-9223372036854775808) > 0",
        "-9223372036854775808 / -1 > 0",
        "big * big > 0",
        "1E308 * 10 > 0",
        "infinite - infinite = 0",
        "infinite % 2 = 0",
        "-color = 'a'",
        "+color = 'a'",
        "-flag = 1",
        "color - 'r' = 'ed'",
        "flag + 1 = 2",
        "'a' + data = 'a'",
        "size like '1%'",
        "color like size",
        "color like 'a' escape symbol",
        "color like symbol escape color",
        "property(size) = 1",
        "size in ('10')",
        "size in ('10', 10)",
        "sys.TimeToLive * 2 = sys.TimeToLive",
        "sys.EnqueuedTimeUtc = '1970'",
        "unknown + 1 = 1 or 1/0 = 1",
        "missing and 1/0 = 1",
    ],
)
def test_filter_fails_on_values_it_cannot_work_on(expression: str) -> None:
    with pytest.raises(FilterFailed):
        truth(expression)


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("", 1),
        ("   ", 4),
        ("color =", 8),
        ("= 1", 1),
        ("color = 'red", 9),
        ("[color = 1", 1),
        ("[] = 1", 1),
        ('"" = 1', 1),
        ("color = 'a' 'b'", 13),
        ("color == 1", 8),
        ("color = 1 AND", 14),
        ("AND = 1", 1),
        ("set = 1", 1),
        ("_color = 1", 1),
        ("color.shade = 1", 6),
        ("sys.Nonsense = 1", 5),
        ("sys. = 1", 6),
        ("5", 1),
        ("'text'", 1),
        ("size + 1", 1),
        ("-size", 1),
        ("newid()", 1),
        ("NOT 5", 5),
        ("flag AND size * 2", 10),
        ("1 = 2 = 3", 7),
        ("(a = 1) = TRUE", 1),
        ("1 + (a = 1) = 2", 5),
        ("(a = 1) + 1 = 2", 1),
        ("-(a = 1) = 2", 2),
        ("(a = 1) IS NULL", 1),
        ("a IS 1", 6),
        ("a IS NOT 1", 10),
        ("a NOT 1", 7),
        ("a NOT NULL", 7),
        ("a IN ()", 7),
        ("a IN 1", 6),
        ("a IN (1", 8),
        ("a IN (1,)", 9),
        ("a LIKE 5", 8),
        ("a LIKE 'x' ESCAPE 'xx'", 8),
        ("a LIKE 'x' ESCAPE ''", 8),
        ("a LIKE 'x!' ESCAPE '!'", 8),
        ("a LIKE 'x' ESCAPE 5", 8),
        ("EXISTS(5)", 8),
        ("EXISTS a", 8),
        ("EXISTS(p('a'))", 9),
        ("foo(1) = 1", 1),
        ("newid(1) = 1", 7),
        ("p() = 1", 3),
        ("a = @b", 6),
        ("a = @", 6),
        ("a = 9223372036854775808", 5),
        ("a = -9223372036854775809", 6),
        ("a = 1E400", 5),
        ("a = 1E", 7),
        ("a = 1E+", 8),
        ("a = 5x", 6),
        ("a = 1.2.3", 8),
        ("a = 1.", 6),
        ("a = #", 5),
        ("a = 1;", 6),
        ("((a = 1)", 9),
        ("a = 1)", 6),
        ("a ! b", 3),
    ],
)
def test_malformed_filter_is_refused_with_its_place(expression: str, position: int) -> None:
    with pytest.raises(InvalidRule, match=f"at character {position}:"):
        compile_filter(expression)


def test_parameters_are_found_in_any_spelling() -> None:
    parameters: dict[str, object] = {"@Size": 10, "color": "red", "unused": None, "none": None}

    assert (
        truth("size = @SIZE and color = @Color and @none is null and size in (@size, 3)", parameters) is True
    )


def test_parameters_may_be_declared_with_a_type() -> None:
    parameters: dict[str, object] = {
        "at": declared("dateTime", "1970-01-01T00:16:40"),
        "span": declared("duration", "PT1M"),
        "yes": declared("boolean", "true"),
        "ten": declared("long", "10"),
    }

    assert truth(
        "sys.EnqueuedTimeUtc = @at and sys.TimeToLive = @span and flag = @yes and size = @ten", parameters
    )
    assert compile_filter("size = @ten", parameters).parameters == parameters


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("string", " a ", " a "),
        ("int", "-5", -5),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "2.50", 2.5),
        ("double", "INF", math.inf),
        ("boolean", "TRUE", True),
        ("boolean", "0", False),
        ("dateTime", "2020-07-05T11:12:13Z", Timestamp(1_593_947_533_000)),
        ("dateTime", "2020-07-05T13:12:13.5+02:00", Timestamp(1_593_947_533_500)),
        ("dateTime", "2020-07-05T06:12:13.123456-05:00", Timestamp(1_593_947_533_123)),
        ("duration", "P1DT2H3M4.5S", Duration(93_784_500)),
        ("duration", "-P2W", Duration(-1_209_600_000)),
    ],
)
def test_declared_values_keep_type_and_text(type_name: str, text: str, value: object) -> None:
    result = declared(type_name, text)

    assert result == Declared(value, type_name, text)
    assert type(result.value) is type(value)


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int", "1.5"),
        ("int", ""),
        ("long", "9223372036854775808"),
        ("double", "1e999"),
        ("double", "x"),
        ("boolean", "yes"),
        ("dateTime", "2020-02-30T00:00:00"),
        ("dateTime", "yesterday"),
        ("dateTime", "0001-01-01T00:00:00+01:00"),
        ("duration", "P"),
        ("duration", "PT"),
        ("duration", "P1Y"),
        ("anyURI", "x"),
        ("string", "x" * 40_000),
    ],
)
def test_declared_values_of_the_wrong_form_are_refused(type_name: str, text: str) -> None:
    with pytest.raises(InvalidRule):
        declared(type_name, text)


@pytest.mark.parametrize("parameters", [{"a": 1, "@A": 2}, {"@": 1}, {"a": [1]}])
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(InvalidRule):
        compile_filter("1=1", parameters)


def test_nan_parameter_is_equal_to_nothing() -> None:
    assert truth("nan = @n or nan in (@n, 1.5)", {"n": math.nan}) is False
    assert truth("size in (@n, 10)", {"n": math.nan}) is True


def test_expression_may_have_1024_characters_and_no_more() -> None:
    assert truth("1=1" + " " * 1021) is True
    with pytest.raises(InvalidRule, match="1025 characters"):
        compile_filter("1=1" + " " * 1022)


def test_expression_may_have_32_sub_expressions_and_no_more() -> None:
    assert truth(" OR ".join(["size=10"] * SUB_EXPRESSIONS_MAX)) is True
    with pytest.raises(InvalidRule, match="at most 32 sub-expressions"):
        compile_filter(" OR ".join(["size=10"] * (SUB_EXPRESSIONS_MAX + 1)))


def test_expression_may_nest_32_deep_and_no_more() -> None:
    assert truth("(" * NESTING_MAX + "flag" + ")" * NESTING_MAX) is True
    for begin, end in [("(", ")"), ("p(", ")"), ("- ", "")]:
        with pytest.raises(InvalidRule, match="at most 32 levels"):
            compile_filter(begin * (NESTING_MAX + 1) + "size" + end * (NESTING_MAX + 1) + " = 1")


@pytest.mark.promise("B58")
def test_long_flat_expressions_need_no_deep_stack() -> None:
    assert truth("1" + "+1" * 500 + " = 501") is True
    assert truth("NOT " * 254 + "flag") is True
    assert truth(f"size in ({','.join(['1'] * 400)}, 10)") is True


@pytest.mark.promise("B58")
def test_like_takes_no_more_than_its_budget() -> None:
    text = MappingView({"text": "a" * 200_000, "pattern": "%" + "a_" * 100 + "b%"})

    with pytest.raises(FilterFailed, match=f"more than {STEPS_MAX} steps"):
        compile_filter("text LIKE pattern").matches(text)
    with pytest.raises(FilterFailed, match="steps"):
        compile_filter(f"text LIKE '%{'a_' * 100}b%'").matches(text)
    assert not compile_filter("text LIKE '%a_a_a_a_b%'").matches(text)
    assert compile_filter("text LIKE '%a%a%a%a%'").matches(text)
    assert not compile_filter("text LIKE '%a%a%ab%'").matches(text)


@pytest.mark.promise("B58")
def test_budget_is_one_filters_own() -> None:
    evaluation = Evaluation(MappingView({"text": "a" * 15_000}))
    costly = compile_filter("text LIKE '%a_a_b%'")

    for _ in range(5):
        assert costly.truth(evaluation) is False


@pytest.mark.promise("B58")
def test_joined_texts_do_not_grow_for_ever() -> None:
    view = MappingView({"text": "x" * 20_000})

    with pytest.raises(FilterFailed, match="40000 characters"):
        compile_filter("text + text = 'a'").matches(view)
    with pytest.raises(FilterFailed, match="pattern has 20000"):
        compile_filter("text LIKE text").matches(view)


@pytest.mark.promise("B58")
def test_integers_beyond_every_double_fail() -> None:
    with pytest.raises(FilterFailed, match="double"):
        compile_filter("huge + 0.5 > 1").matches(MappingView({"huge": 10**400}))


def test_newid_asks_the_view_and_fails_when_it_has_none() -> None:
    with pytest.raises(FilterFailed, match="newid"):
        compile_filter("newid() = newid()").matches(MappingView({}))


def test_first_spelling_of_a_property_wins() -> None:
    assert compile_filter("a = 1").matches(MappingView({"A": 1, "a": 2}))


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("a = 1", 1),
        ("1 = a and sys.label = 'x'", 2),
        ("(a = 1) and (b = TRUE)", 2),
        ("a = 1 or b = 1", 0),
        ("a = 1 and a = 2", 0),
        ("a = 1 and sys.To = 'a' and user.To = 'b'", 3),
        ("a = b", 0),
        ("a = NULL", 0),
        ("a <> 1", 0),
        ("not a = 1", 0),
        ("1 = 1", 0),
        ("a = 1 and b > 1", 0),
    ],
)
def test_conjunctions_of_equalities_are_recognised(expression: str, count: int) -> None:
    assert len(compile_filter(expression).equalities) == count
