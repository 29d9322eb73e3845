"""Prometheus' text format from plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GAUGE: Final = "gauge"
COUNTER: Final = "counter"


class Sample:
    """One value under a metric's name and labels."""

    __slots__ = ("labels", "name", "value")

    def __init__(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self.name = name
        self.value = value
        self.labels = labels or {}


class Metric:
    """A family of samples with its type and help."""

    __slots__ = ("help", "kind", "name", "samples")

    def __init__(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        self.name = name
        self.kind = kind
        self.help = text
        self.samples = list(samples)


def single(name: str, kind: str, text: str, value: float) -> Metric:
    """A metric without labels."""
    return Metric(name, kind, text, [Sample(name, value)])


def by_label(name: str, kind: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """A metric with one label."""
    return Metric(name, kind, text, [Sample(name, value, {label: key}) for key, value in values])


def render(metrics: Iterable[Metric]) -> str:
    """The exposition format, one family after another."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
            lines.append(
                f"{sample.name}{{{labels}}} {_number(sample.value)}"
                if labels
                else f"{sample.name} {_number(sample.value)}"
            )
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    # Whole numbers without a fraction, whether they came as int or, compiled, as float.
    return str(int(value)) if value == value // 1 else repr(value)
