"""Money is exact: decimals of a stated scale and rounding, and shares that add up to what was shared (D7).

Amounts are kept to ``SCALE`` places and rounded half up, once, where a price meets a quantity that does not divide evenly.
A quantum is one unit of the last place; shares are whole quanta.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final

from pairbus.errors import UsageError

SCALE: Final = 10
"""Places of every amount."""
QUANTUM: Final = Decimal(1).scaleb(-SCALE)
CONTEXT: Final = Context(prec=60, rounding=ROUND_HALF_UP)
"""Wide enough that nothing but ``rounded`` and ``divided`` ever rounds."""
AMOUNT_MAX: Final = Decimal(10) ** 15
"""Larger prices are mistakes."""
SHOWN_PLACES_MIN: Final = 2


def parsed(text: object, what: str) -> Decimal:
    """An amount written as text, never as a binary fraction.

    Raises:
        UsageError: It is not a decimal of this scale, or negative.
    """
    if not isinstance(text, str):
        raise UsageError(
            f'{what} is {text!r}: write amounts as text, such as "0.80", so that they stay exact'
        )
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{what} is {text!r}: not a decimal number") from None
    if not amount.is_finite() or amount < 0 or amount > AMOUNT_MAX:
        raise UsageError(f"{what} is {text!r}: give a number from 0 to {AMOUNT_MAX:,}")
    if amount != rounded(amount):
        raise UsageError(f"{what} is {text!r}: at most {SCALE} decimal places are kept")
    return amount


def rounded(amount: Decimal) -> Decimal:
    """To the scale, half up."""
    return amount.quantize(QUANTUM, context=CONTEXT)


def product(price: Decimal, quantity: int | Decimal) -> Decimal:
    """Price × quantity, exactly."""
    return CONTEXT.multiply(price, Decimal(quantity))


def divided(amount: Decimal, divisor: int) -> Decimal:
    """To the scale, half up."""
    return rounded(CONTEXT.divide(amount, Decimal(divisor)))


def total(amounts: Sequence[Decimal]) -> Decimal:
    """The sum, exactly."""
    result = Decimal(0)
    for amount in amounts:
        result = CONTEXT.add(result, amount)
    return result


def quanta(amount: Decimal) -> int:
    """An amount of this scale as a whole number of its last place."""
    scaled = amount.scaleb(SCALE, context=CONTEXT)
    whole = int(scaled)
    assert whole == scaled, amount
    return whole


def from_quanta(number: int) -> Decimal:
    """The amount of that many quanta."""
    return Decimal(number).scaleb(-SCALE, context=CONTEXT)


def shares(amount: Decimal, weights: Sequence[int]) -> list[Decimal]:
    """An amount split by weights: each share within a quantum of its due, all together exactly the amount (D6).

    Share *i* is ``⌊amount × (w1+…+wi) / W⌋ − ⌊amount × (w1+…+w(i−1)) / W⌋``, so it depends on the order of the weights and on
    nothing else.
    """
    whole = quanta(rounded(amount))
    weight = sum(weights)
    if weight == 0:
        return [Decimal(0) for _ in weights]
    given = running = 0
    result = []
    for own in weights:
        running += own
        upto = whole * running // weight
        result.append(from_quanta(upto - given))
        given = upto
    return result


def shown(amount: Decimal | None, currency: str = "") -> str:
    """For people: as many places as it takes, at least two; nothing is rounded away."""
    if amount is None:
        return "unknown"
    text = f"{rounded(amount):,f}"
    whole, _, places = text.partition(".")
    places = places.rstrip("0").ljust(SHOWN_PLACES_MIN, "0")
    return f"{whole}.{places} {currency}".rstrip()
