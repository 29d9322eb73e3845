"""The bill, the certificate and the estimate for programs: plain JSON values, amounts as text so that they stay exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from pairbus.reports.bill.estimate import Estimate
from pairbus.reports.bill.month import MonthBill
from pairbus.reports.bill.report import CostReport
from pairbus.reports.bill.what_if import Replay
from pairbus.reports.certificate.value import FATE_COLUMNS, THERE, Certificate


def encoded(value: object) -> Any:
    """A value as JSON can carry it: dataclasses by field, decimals as text, times in ISO 8601."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date):  # datetime is one too
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encoded(entry) for entry in value]
    return value


def cost_json(report: CostReport) -> dict[str, object]:
    found: dict[str, object] = encoded(
        {
            "currency": report.currency,
            "total": report.known,
            "unknown": report.unknown,
            "operations": report.operations,
            "months": [
                {"month": bill.month, "total": bill.known, "lines": bill.lines} for bill in report.bills
            ],
            "pairing": report.pairing(),
            "purposes": report.by_purpose(),
            "operations_by_stage": report.purposes,
            "days": report.days,
            "entities": report.entities,
            "entity_count": report.entity_count,
            "rows": {"read": report.rows.read, **encoded(report.rows)},
            "price_sources": report.billing.sources,
        }
    )
    return found


def estimate_json(found: Estimate) -> dict[str, object]:
    return {
        "figures": encoded(found.figures),
        "operations": found.operations,
        "pairing_operations": found.pairing_operations,
        "pairing_amount": encoded(found.pairing_amount),
        "bill": None if found.bill is None else _bill(found.bill),
    }


def _bill(bill: MonthBill) -> dict[str, object]:
    return {
        "currency": bill.currency,
        "total": encoded(bill.known),
        "unknown": encoded(bill.unknown),
        "lines": encoded(bill.lines),
    }


def replay_json(found: Replay, paid: Decimal | None, would: Decimal | None) -> dict[str, object]:
    """What-if: ``paid`` and ``would`` are the amounts of the recorded and of the supposed operations."""
    return {
        "recorded_operations": found.recorded.operations,
        "operations": found.operations,
        "outages": len(found.recorded.detours),
        "recorded_amount": encoded(paid),
        "amount": encoded(would),
        "differences": encoded(found.differences),
    }


def certificate_json(found: Certificate) -> dict[str, object]:
    """The certificate. The same rows give the same text, whatever files they lie in (D4)."""
    return {
        "verdict": found.verdict,
        "doubt": found.doubt,
        "gaps": encoded(found.gaps),
        "unasked": list(found.unasked),
        **{name: getattr(found, name) for name in ("accepted", "received", "messages", "detoured")},
        **{fate: found.fates[fate] for fate in FATE_COLUMNS},
        "altered": found.altered,
        "at_destination": {word: found.at_destination[name] for name, word in THERE.items()},
        "delays": encoded(found.delays),
        "reordered": encoded(found.reordered),
        "session_order": encoded(found.session_order),
        "outages": [
            {
                "first": encoded(outage.first),
                "last": encoded(outage.last),
                "messages": outage.messages,
                **outage.fates,
                "slowest_ms": outage.slowest_ms,
            }
            for outage in found.outages
        ],
        "named": {fate: encoded(names) for fate, names in found.named.items() if names},
        "rows": {role: {"read": count.read, **encoded(count)} for role, count in found.rows.items()},
        "quarantined": dict(found.reasons),
        "left_out": found.left_out,
        "repeated_parts": found.repeated_parts,
        "open_journals": len(found.journals),
    }
