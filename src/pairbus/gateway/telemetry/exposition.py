"""Prometheus' text format from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GAUGE: Final = "gauge"
COUNTER: Final = "counter"

Family: TypeAlias = tuple[str, str, tuple[str, ...]]
"""What a table says of one metric: its type, its help and the names of its labels."""
Values: TypeAlias = Mapping[tuple[str, ...], float]
"""A metric's values by those of its labels; without labels there is one, by the empty tuple."""


@dataclass(slots=True, eq=False)
class Sample:
    """One value under a metric's name and labels."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Metric:
    """A family of samples with its type and help."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def metrics_of(table: Mapping[str, Family], values: Mapping[str, Values]) -> list[Metric]:
    """The metrics of a table in its order; every row must have values."""
    found: list[Metric] = []
    for name, (kind, text, labels) in table.items():
        samples = [
            Sample(name, value, dict(zip(labels, key, strict=True))) for key, value in values[name].items()
        ]
        found.append(Metric(name, kind, text, samples))
    return found


def render(metrics: Iterable[Metric]) -> str:
    """The exposition format, one family after another."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            lines.append(f"{name} {_number(sample.value)}")
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    # Whole numbers without a fraction, whether they came as int or, compiled, as float.
    return str(int(value)) if value == value // 1 else repr(value)
