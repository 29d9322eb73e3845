"""Topics: a message for every subscription, or for one of many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.loadgen import Load
from bench.other_loads.kit import Row, Setting, beside, generated
from bench.other_loads.pauses import Pauses
from bench.ours import OurBroker

COUNTS: Final = (10, 100, 1_000)
COPIES: Final = 20_000
"""Copies stored in one turn of a topic that all subscriptions want."""
WANTED: Final = 7
"""The subscription that gets the message, where one does."""


def _filter(kind: str, number: int) -> Mapping[str, object]:
    if kind == "correlation filter":
        return {"FilterType": "Correlation", "CorrelationFilter": {"Label": f"l{number}"}}
    text = f"sys.Label = 'l{number}'" if kind == "SQL equality" else f"sys.Label LIKE '%l{number}'"
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": text}}


def _topic(name: str, kind: str, count: int) -> Mapping[str, object]:
    subscriptions = []
    for number in range(count):
        rules = [{"Name": "r", "Properties": _filter(kind, number)}] if kind else []
        subscriptions.append({"Name": f"s{number}", "Properties": {}, "Rules": rules})
    return {"Name": name, "Properties": {"MaxSizeInMegabytes": 5120}, "Subscriptions": subscriptions}


def _all_match(setting: Setting) -> list[Row]:
    rows = []
    declared = {"Topics": [_topic(f"all-{count}", "", count) for count in COUNTS]}
    with OurBroker(setting.home, declared=declared) as peer:
        for count in COUNTS:
            setting.show(f"topic, {count} subscriptions, all match")
            sends = max(20, COPIES // count)
            plain, fanned = beside(
                setting,
                peer,
                generated(setting, peer, Load(mode="send", window=100, count=COPIES)),
                generated(setting, peer, Load(mode="send", window=100, count=sends, address=f"all-{count}")),
            )
            rows.append(
                Row(
                    load=f"topic, {count} subscriptions, all match: a copy",
                    cost=fanned.cpu_us / count,
                    yardstick=plain.cpu_us,
                    unit="µs CPU, send",
                    note=f"{fanned.per_s * count:,.0f} copies/s, {plain.per_s:,.0f} plain sends/s",
                )
            )
    return rows


def _pauses(setting: Setting) -> list[Row]:
    count = COUNTS[-1]
    setting.show(f"topic, {count} subscriptions: pauses")
    pauses = Pauses(setting.home)
    declared = {"Topics": [_topic("all", "", count), _topic("like", "SQL LIKE", count)]}
    rows = []
    with OurBroker(setting.home, declared=declared, module="bench.watched") as peer:
        pauses.take(peer)
        for topic, text in (("all", "all match"), ("like", "SQL LIKE, none matches")):
            generated(setting, peer, Load(mode="send", window=100, count=100, address=topic))()
            rows.append(pauses.row(f"window 100 to {count} subscriptions, {text}", peer))
    return rows


def _one_matches(setting: Setting, kind: str) -> list[Row]:
    rows = []
    declared = {"Topics": [_topic(f"one-{count}", kind, count) for count in COUNTS]}
    with OurBroker(setting.home, declared=declared) as peer:
        for count in COUNTS:
            setting.show(f"topic, {count} subscriptions, one matches by {kind}")
            plain, chosen = beside(
                setting,
                peer,
                generated(setting, peer, Load(window=100, seconds=setting.seconds)),
                generated(
                    setting,
                    peer,
                    Load(
                        window=100,
                        seconds=setting.seconds,
                        address=f"one-{count}",
                        receive_address=f"one-{count}/subscriptions/s{WANTED}",
                        subject=f"l{WANTED}",
                    ),
                ),
            )
            rows.append(
                Row(
                    load=f"topic, {count} subscriptions, one matches by {kind}",
                    cost=chosen.cpu_us,
                    yardstick=plain.cpu_us,
                    unit="µs CPU, send + receive",
                    note=f"{chosen.per_s:,.0f} beside {plain.per_s:,.0f} messages/s",
                )
            )
    return rows


def measure(setting: Setting) -> list[Row]:
    rows = _all_match(setting)
    for kind in ("correlation filter", "SQL equality", "SQL LIKE"):
        rows += _one_matches(setting, kind)
    return rows + _pauses(setting)
