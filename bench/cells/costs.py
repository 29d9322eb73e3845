"""The costs that the model computes with: measured by `python -m bench.scale --measure`, kept in measured.json beside this file.

A cost that depends on size is a straight line: so much for each commit and so much for each byte. ``line`` fits it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True, slots=True)
class Line:
    """A cost of ``fixed`` + ``each`` × n."""

    fixed: float
    each: float

    def at(self, n: float) -> float:
        return self.fixed + self.each * n


def line(points: Iterable[tuple[float, float]]) -> Line:
    """The line with the least relative error through (n, cost). Neither part is negative."""
    points = [(n, cost) for n, cost in points if cost > 0]
    weight = sum(1 / cost**2 for _, cost in points)
    n_mean = sum(n / cost**2 for n, cost in points) / weight
    cost_mean = sum(1 / cost for _, cost in points) / weight
    spread = sum((n - n_mean) ** 2 / cost**2 for n, cost in points)
    each = sum((n - n_mean) * (cost - cost_mean) / cost**2 for n, cost in points) / spread if spread else 0.0
    fixed = cost_mean - each * n_mean
    if fixed < 0:
        return Line(0.0, cost_mean / n_mean)
    return Line(cost_mean, 0.0) if each < 0 else Line(fixed, each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one processor, seconds of waiting, and bytes. ``…_bytes`` lines are over the bytes of a frame."""

    # The broker, per message sent, received and settled.
    message_s: float
    send_share: float
    """Of ``message_s``: what the send takes. The rest is delivery and settlement."""
    commit_s: float
    """The broker's own work around one commit: the turn, sealing, handing over, writing the answers."""
    insert_client: Line
    """psycopg's work for one frame, in the broker."""
    relay_s: float
    """A relaying node's work per message."""
    open_s: float
    """One client connection opened, without TLS."""
    replay_s: float
    """The broker's time to replay one queued message at a takeover."""
    process_bytes: float
    message_bytes_in_memory: float
    connection_bytes: float

    # The database.
    insert: Line
    """The primary's processor time for one frame."""
    standby_insert: Line
    wal: Line
    """Bytes of write-ahead log for one frame."""
    flush: Line
    """Waiting for the primary's disk, by the bytes of log that are flushed together."""
    standby_flush: Line
    """What a synchronous standby adds to that, its network way included."""
    acquire_s: float
    """One lease given back and taken."""
    acquire_wal_bytes: float
    look_s: float
    """A waiting node looks at a lease."""
    renew_s: float
    renew_wal_bytes: float
    renew_many_s: float
    """A lease renewed together with a hundred others by one statement: per lease."""
    renew_many_wal_bytes: float
    heads_s: float
    """The primary's time to read the head of one message at replay."""
    backend_bytes: float
    """Memory of one connection in the database."""


HEAD_BYTES_STORED = 48
HEAD_BYTES_REMOVED = 16
MESSAGE_BYTES = 1024


def frame_bytes(stored: int, settled: int) -> int:
    """The size of a frame: so many messages of 1 KB with their heads, and so many records that remove one."""
    return stored * (MESSAGE_BYTES + HEAD_BYTES_STORED) + settled * HEAD_BYTES_REMOVED


def load(file: Path = FILE) -> Costs:
    """The costs that follow from a file of measurements."""
    return derive(json.loads(file.read_text()))


def derive(measured: dict[str, Any]) -> Costs:
    """Lines and averages through what was measured."""
    us = 1e-6
    broker = line((row["commits_per_message"], row["cpu_us"]) for row in measured["broker"])
    plain = [row for row in measured["commits"] if row["writers"] == 1]
    mirrored = [row for row in measured["commits_standby"] if row["writers"] == 1]
    renew, many = measured["renew"], measured["renew_many"]
    together = measured["renewed_together"]
    return Costs(
        message_s=broker.fixed * us,
        send_share=min(
            1.0,
            measured["send_only"]["cpu_us"] / _at_window(measured["broker"], measured["send_only"]["window"]),
        ),
        commit_s=broker.each * us,
        insert_client=_scaled(_least(measured["commits"], "client_cpu_us"), us),
        relay_s=measured["relay_us"] * us,
        open_s=measured["idle"]["open_cpu_us"] * us,
        replay_s=measured["replay"]["client_cpu_s"] / measured["replay"]["messages"],
        process_bytes=measured["idle"]["resident_mib"] * 2**20,
        message_bytes_in_memory=measured["replay"]["bytes_per_message"],
        connection_bytes=measured["idle"]["connection_kib"] * 2**10,
        insert=_scaled(_least(measured["commits"], "primary_cpu_us"), us),
        standby_insert=_scaled(_least(measured["commits_standby"], "standby_cpu_us"), us),
        wal=_least(measured["commits"], "wal_bytes"),
        flush=_scaled(line((row["bytes"], row["p10_ms"]) for row in measured["flush"]), 1e-3),
        standby_flush=_scaled(
            line(
                (two["wal_bytes"], two["p10_ms"] - one["p10_ms"])
                for one, two in zip(plain, mirrored, strict=True)
            ),
            1e-3,
        ),
        acquire_s=measured["acquire"]["primary_cpu_us"] * us,
        acquire_wal_bytes=measured["acquire"]["wal_bytes"],
        look_s=measured["look"]["primary_cpu_us"] * us,
        renew_s=renew["primary_cpu_us"] * us,
        renew_wal_bytes=renew["wal_bytes"],
        renew_many_s=many["primary_cpu_us"] * us / together,
        renew_many_wal_bytes=many["wal_bytes"] / together,
        heads_s=measured["replay"]["primary_cpu_s"] / measured["replay"]["messages"],
        backend_bytes=measured["connection_mib"] * 2**20,
    )


def _least(rows: list[dict[str, Any]], figure: str) -> Line:
    """A line over the bytes of a frame through the least that a commit of each size took, with any number of writers."""
    least: dict[int, float] = {}
    for row in rows:
        size = frame_bytes(row["messages"], row["messages"])
        least[size] = min(row[figure], least.get(size, row[figure]))
    return line(least.items())


def _at_window(rows: list[dict[str, Any]], window: int) -> float:
    return float(next(row["cpu_us"] for row in rows if row["window"] == window))


def _scaled(of: Line, factor: float) -> Line:
    return Line(of.fixed * factor, of.each * factor)
