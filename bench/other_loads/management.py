"""The management API with 10,000 entities."""

from __future__ import annotations

from typing import Final

from bench.other_loads.kit import Management, Row, Setting, cost_of
from bench.ours import OurBroker
from pairbus.testing.entities import Queue

ENTITIES: Final = 10_000
FEW: Final = 1_000
PAGE: Final = 100
VERSION: Final = "api-version=2021-05"


def measure(setting: Setting) -> list[Row]:
    rows = []
    with OurBroker(setting.home) as peer:
        management = Management(peer)

        def create(first: int, count: int) -> int:
            for number in range(first, first + count):
                name = f"q{number * 7919 % 100_003:06d}"
                management.ask("PUT", f"/{name}?{VERSION}", Queue(name).entry())
            return count

        def list_pages(pages: int, skip: int) -> int:
            for _ in range(pages):
                management.ask("GET", f"/$Resources/queues?{VERSION}&$skip={skip}&$top={PAGE}")
            return pages

        def get(count: int) -> int:
            for number in range(count):
                management.ask("GET", f"/q{number % FEW * 7919 % 100_003:06d}?{VERSION}")
            return count

        def ask(path: str, count: int) -> int:
            for _ in range(count):
                management.ask("GET", path)
            return count

        works = {
            f"list a page of {PAGE}": lambda: list_pages(30, FEW // 2),
            "get": lambda: get(FEW),
            "GET /metrics": lambda: ask("/metrics", 5),
            "overview of the live page": lambda: ask("/$page/api/overview", 5),
        }
        setting.show(f"the first {FEW:,} of {ENTITIES:,} entities")
        before = {"create": cost_of(peer, lambda: create(0, FEW))}
        for name, work in works.items():
            before[name] = cost_of(peer, work)
        setting.show(f"{ENTITIES:,} entities")
        create(FEW, ENTITIES - 2 * FEW - 1)
        after = {"create": cost_of(peer, lambda: create(ENTITIES - FEW - 1, FEW))}
        for name, work in works.items():
            after[name] = cost_of(peer, work)
        for name, cost in after.items():
            rows.append(
                Row(
                    load=f"{ENTITIES:,} entities: {name}",
                    cost=cost.cpu_us,
                    yardstick=before[name].cpu_us,
                    unit=f"µs CPU, beside {FEW:,} entities",
                    note=f"{cost.per_s:,.0f}/s",
                )
            )
        management.close()
    return rows
