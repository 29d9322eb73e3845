"""The server's part of ``GET /metrics``. Names and meanings are in the reference; a test compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.telemetry.exposition import COUNTER, GAUGE, Family, Metric, Sample, Values, metrics_of
from pairbus.server.loop import COMMIT_SECONDS_BUCKETS

if TYPE_CHECKING:
    from pairbus.server.loop import DriverStatistics
    from pairbus.server.sockets.registry import ListenerStatistics
    from pairbus.storage.ports import StoreStatistics

METRICS: Final[dict[str, Family]] = {
    "pairbus_build_info": (GAUGE, "Version and namespace; always 1.", ("version", "namespace")),
    "pairbus_healthy": (GAUGE, "1 while acknowledgements are given.", ()),
    "pairbus_connections": (GAUGE, "Open connections by protocol.", ("protocol",)),
    "pairbus_connections_accepted_total": (COUNTER, "Connections accepted.", ()),
    "pairbus_connections_refused_total": (COUNTER, "Connections turned away, by reason.", ("reason",)),
    "pairbus_received_bytes_total": (COUNTER, "Bytes read from sockets.", ()),
    "pairbus_sent_bytes_total": (COUNTER, "Bytes written to sockets.", ()),
    "pairbus_turns_total": (COUNTER, "Turns of the event loop.", ()),
    "pairbus_commit_seconds_max": (GAUGE, "The longest commit since the start.", ()),
    "pairbus_uncommitted_bytes": (GAUGE, "Input applied and not yet durable.", ()),
    "pairbus_reading_pauses_total": (COUNTER, "Times reading stopped for the disk.", ()),
    "pairbus_records_restated_total": (COUNTER, "Old records looked at by compaction.", ()),
    "pairbus_store_segments": (GAUGE, "Segments that hold records.", ()),
    "pairbus_store_spare_segments": (GAUGE, "Segments made ready ahead of use.", ()),
    "pairbus_store_disk_bytes": (GAUGE, "What the store takes on disk.", ()),
    "pairbus_store_used_bytes": (GAUGE, "What records take, live or not.", ()),
    "pairbus_store_live_bytes": (GAUGE, "What stored messages take.", ()),
    "pairbus_store_garbage_bytes": (GAUGE, "What could be given back.", ()),
    "pairbus_store_cached_bytes": (GAUGE, "Message bytes kept in memory.", ()),
    "pairbus_store_cache_hits_total": (COUNTER, "Reads served from memory.", ()),
    "pairbus_store_cache_misses_total": (COUNTER, "Reads served from disk.", ()),
    "pairbus_store_full": (
        GAUGE,
        "1 while sends are refused for lack of space. Shortly before, the largest messages are refused already.",
        (),
    ),
}


def server_metrics(
    namespace: str,
    version: str,
    listener: ListenerStatistics,
    driver: DriverStatistics,
    store: StoreStatistics,
) -> list[Metric]:
    """What the server and its store count."""
    values: dict[str, Values] = {
        "pairbus_build_info": {(version, namespace): 1},
        "pairbus_healthy": {(): 0 if driver.is_failed else 1},
        "pairbus_connections": {(kind,): count for kind, count in listener.open_by_kind.items()},
        "pairbus_connections_accepted_total": {(): listener.accepted},
        "pairbus_connections_refused_total": {
            (reason,): count for reason, count in listener.refused_by_reason.items()
        },
        "pairbus_received_bytes_total": {(): listener.received_bytes},
        "pairbus_sent_bytes_total": {(): listener.sent_bytes},
        "pairbus_turns_total": {(): driver.turns},
        "pairbus_commit_seconds_max": {(): driver.commit_seconds_max},
        "pairbus_uncommitted_bytes": {(): driver.uncommitted_bytes},
        "pairbus_reading_pauses_total": {(): driver.reading_pauses},
        "pairbus_records_restated_total": {(): driver.records_restated},
        "pairbus_store_segments": {(): store.segments},
        "pairbus_store_spare_segments": {(): store.spare_segments},
        "pairbus_store_disk_bytes": {(): store.disk_bytes},
        "pairbus_store_used_bytes": {(): store.used_bytes},
        "pairbus_store_live_bytes": {(): store.live_bytes},
        "pairbus_store_garbage_bytes": {(): store.garbage_bytes},
        "pairbus_store_cached_bytes": {(): store.cached_bytes},
        "pairbus_store_cache_hits_total": {(): store.cache_hits},
        "pairbus_store_cache_misses_total": {(): store.cache_misses},
        "pairbus_store_full": {(): int(store.is_full)},
    }
    return [*metrics_of(METRICS, values), _commit_histogram(driver)]


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
