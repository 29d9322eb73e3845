"""Prometheus text from snapshots. Names and meanings are in the reference; a test compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.gateway.telemetry.exposition import CONTENT_TYPE, Metric, Sample, render
from pairbus.server.loop import COMMIT_SECONDS_BUCKETS

if TYPE_CHECKING:
    from pairbus.server.loop import DriverStatistics
    from pairbus.server.sockets.registry import ListenerStatistics
    from pairbus.storage.ports import StoreStatistics

__all__ = ["CONTENT_TYPE", "Metric", "Sample", "render", "server_metrics", "store_metrics"]


def server_metrics(
    namespace: str, version: str, listener: ListenerStatistics, driver: DriverStatistics
) -> list[Metric]:
    """What the server itself counts."""
    return [
        _one(
            "pairbus_build_info",
            "gauge",
            "Version and namespace; always 1.",
            1,
            version=version,
            namespace=namespace,
        ),
        _one("pairbus_healthy", "gauge", "1 while acknowledgements are given.", 0 if driver.is_failed else 1),
        Metric(
            "pairbus_connections",
            "gauge",
            "Open connections by what they speak.",
            [
                Sample("pairbus_connections", n, {"protocol": kind})
                for kind, n in listener.open_by_kind.items()
            ],
        ),
        _one("pairbus_connections_accepted_total", "counter", "Connections accepted.", listener.accepted),
        Metric(
            "pairbus_connections_refused_total",
            "counter",
            "Connections turned away, by reason.",
            [
                Sample("pairbus_connections_refused_total", n, {"reason": reason})
                for reason, n in listener.refused_by_reason.items()
            ],
        ),
        _one("pairbus_received_bytes_total", "counter", "Bytes read from sockets.", listener.received_bytes),
        _one("pairbus_sent_bytes_total", "counter", "Bytes written to sockets.", listener.sent_bytes),
        _one("pairbus_turns_total", "counter", "Bursts handled.", driver.turns),
        _commit_histogram(driver),
        _one(
            "pairbus_commit_seconds_max",
            "gauge",
            "The longest commit since the start.",
            driver.commit_seconds_max,
        ),
        _one(
            "pairbus_uncommitted_bytes",
            "gauge",
            "Input applied and not yet durable.",
            driver.uncommitted_bytes,
        ),
        _one(
            "pairbus_reading_pauses_total",
            "counter",
            "Times reading stopped for the disk.",
            driver.reading_pauses,
        ),
        _one(
            "pairbus_records_restated_total",
            "counter",
            "Old records looked at by compaction.",
            driver.records_restated,
        ),
    ]


def store_metrics(store: StoreStatistics) -> list[Metric]:
    """What the store says of itself."""
    return [
        _one("pairbus_store_segments", "gauge", "Segments that hold records.", store.segments),
        _one(
            "pairbus_store_spare_segments", "gauge", "Segments made ready ahead of use.", store.spare_segments
        ),
        _one("pairbus_store_disk_bytes", "gauge", "What the store takes on disk.", store.disk_bytes),
        _one("pairbus_store_used_bytes", "gauge", "What records take, live or not.", store.used_bytes),
        _one("pairbus_store_live_bytes", "gauge", "What stored messages take.", store.live_bytes),
        _one("pairbus_store_garbage_bytes", "gauge", "What could be given back.", store.garbage_bytes),
        _one("pairbus_store_cached_bytes", "gauge", "Message bytes kept in memory.", store.cached_bytes),
        _one("pairbus_store_cache_hits_total", "counter", "Reads served from memory.", store.cache_hits),
        _one("pairbus_store_cache_misses_total", "counter", "Reads served from disk.", store.cache_misses),
        _one(
            "pairbus_store_full", "gauge", "1 while sends are refused for lack of space.", int(store.is_full)
        ),
    ]


def _commit_histogram(driver: DriverStatistics) -> Metric:
    name = "pairbus_commit_seconds"
    samples = [
        Sample(f"{name}_bucket", count, {"le": f"{bound:g}"})
        for bound, count in zip(COMMIT_SECONDS_BUCKETS, driver.commit_seconds_buckets, strict=True)
    ]
    samples.append(Sample(f"{name}_bucket", driver.commits, {"le": "+Inf"}))
    samples.append(Sample(f"{name}_sum", driver.commit_seconds))
    samples.append(Sample(f"{name}_count", driver.commits))
    return Metric(name, "histogram", "Time of commits, write and sync.", samples)


def _one(name: str, kind: str, text: str, value: float, **labels: str) -> Metric:
    return Metric(name, kind, text, [Sample(name, value, labels)])
