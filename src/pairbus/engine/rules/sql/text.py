"""Numbers, instants, durations and uuids as text, and back. Pure arithmetic, no calendar of the machine."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

TEXT_CHARACTERS_MAX: Final = 32_768
"""How long a text may grow by joining; what one property may hold (32 KB)."""

INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,20}")
DOUBLE_PATTERN: Final = re.compile(
    r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?"
)
UUID_PATTERN: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
INSTANT_PATTERN: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(Z|z|[+-][0-9]{2}:?[0-9]{2})?"
)
DURATION_PATTERN: Final = re.compile(
    r"([+-]?)P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})(?:[.,]([0-9]{1,9}))?S)?)?"
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
INSTANT_MS_MIN: Final = -62_135_596_800_000
"""The first and last millisecond a date can be written for: years 1 to 9999."""
INSTANT_MS_MAX: Final = 253_402_300_799_999

DOUBLE_AS_INTEGER_MAX: Final = 1e15
"""Below this, a double without fraction is written as C# writes it: without point and exponent."""


def number_text(number: int | float) -> str:
    """The shortest text that gives the same number back; ``1.0`` is written ``1``."""
    if isinstance(number, int):
        return str(int(number))
    if number.is_integer() and abs(number) < DOUBLE_AS_INTEGER_MAX:
        return str(int(number))
    return repr(float(number))


def integer_from(text: str) -> int | None:
    """The integer a text spells, or None."""
    return int(text) if INTEGER_PATTERN.fullmatch(text) else None


def double_from(text: str) -> float | None:
    """The finite double a text spells, or None."""
    if not DOUBLE_PATTERN.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def uuid_octets_from(text: str) -> bytes | None:
    """The 16 octets of a uuid's text, or None."""
    return bytes.fromhex(text.replace("-", "")) if UUID_PATTERN.fullmatch(text) else None


def instant_text(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; outside the years 1 to 9999 the bare number."""
    if not INSTANT_MS_MIN <= ms <= INSTANT_MS_MAX:
        return str(ms)
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def instant_ms_from(text: str) -> int | None:
    """Milliseconds since the epoch for an ISO 8601 date and time, or None. Without a zone it is UTC."""
    found = INSTANT_PATTERN.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute = (int(found.group(i)) for i in range(1, 6))
    try:
        moment = datetime(year, month, day, hour, minute, int(found.group(6) or 0), tzinfo=UTC)
    except ValueError:
        return None
    ms = (moment - _EPOCH) // _MILLISECOND + _milliseconds(found.group(7)) - _zone_ms(found.group(8))
    return ms if INSTANT_MS_MIN <= ms <= INSTANT_MS_MAX else None


def _milliseconds(fraction: str | None) -> int:
    return int(fraction[:3].ljust(3, "0")) if fraction else 0


def _zone_ms(zone: str | None) -> int:
    if not zone or zone in "Zz":
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return (-minutes if zone[0] == "-" else minutes) * 60_000


def duration_text(ms: int) -> str:
    """ISO 8601, such as ``P1DT2H3M4.5S``."""
    sign, rest = ("-", -ms) if ms < 0 else ("", ms)
    days, rest = divmod(rest, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, fraction = divmod(rest, 1000)
    day_part = f"{days}D" if days else ""
    second_part = f"{seconds}.{fraction:03}".rstrip("0").rstrip(".") if rest else ""
    time_part = f"{hours}H" if hours else ""
    time_part += f"{minutes}M" if minutes else ""
    time_part += f"{second_part}S" if rest else ""
    if not day_part and not time_part:
        return "PT0S"
    return f"{sign}P{day_part}" + (f"T{time_part}" if time_part else "")


def duration_ms_from(text: str) -> int | None:
    """Milliseconds for an ISO 8601 duration of weeks, days and times, or None."""
    found = DURATION_PATTERN.fullmatch(text)
    if found is None or text[-1] in "PT":
        return None
    weeks, days, hours, minutes, seconds = (int(found.group(i) or 0) for i in range(2, 7))
    total = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000
    total += _milliseconds(found.group(7))
    return -total if found.group(1) == "-" else total
