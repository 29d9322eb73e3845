"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from pairbus.gateway.telemetry.exposition import Metric, Sample, render


def test_metrics_are_written_exactly_and_escaped() -> None:
    text = render([Metric("a_total", "counter", "Help.", [Sample("a_total", 12345678901, {"x": 'q"\n\\'})])])

    assert text == '# HELP a_total Help.\n# TYPE a_total counter\na_total{x="q\\"\\n\\\\"} 12345678901\n'
