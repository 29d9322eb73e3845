"""What it costs to find the subscriptions of one message, by kind of filter and number of subscriptions.

python -m bench.topics
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from pairbus.engine.rules.index import TopicIndex
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.filter import compile_filter
from pairbus.engine.rules.subscription import CorrelationFilter, Rule, RuleFilter, RuleSet, TrueFilter

COUNTS = (1, 100, 2_000)
SECONDS_PER_FIGURE = 0.3
USER = {"region": "eu", "kind": "k7", "size": 12, "priority": 3, "color": "red"}
SYSTEM = {"label": "l7", "messageid": "m1", "correlationid": "c1"}


def everything(_: int) -> RuleFilter:
    return TrueFilter()


def correlation(number: int) -> RuleFilter:
    return CorrelationFilter({"label": f"l{number}"}, properties={"region": "eu"})


def equalities(number: int) -> RuleFilter:
    return compile_filter(f"kind = 'k{number}' AND region = 'eu'")


def equalities_of_another_type(number: int) -> RuleFilter:
    return compile_filter(f"kind = {number} AND region = 'eu'")


def comparison(number: int) -> RuleFilter:
    return compile_filter(f"size > {number} AND region = 'us'")


def pattern(number: int) -> RuleFilter:
    return compile_filter(f"kind LIKE '%{number}' OR color IN ('blue', 'green{number}')")


def one_text(_: int) -> RuleFilter:
    return compile_filter("size > 100 AND region LIKE 'e%'")


KINDS: list[tuple[str, Callable[[int], RuleFilter]]] = [
    ("true filter, all match", everything),
    ("correlation, one matches", correlation),
    ("SQL equalities, one matches", equalities),
    ("SQL equalities, all fail by type", equalities_of_another_type),
    ("SQL comparison, none matches", comparison),
    ("SQL LIKE or IN, few match", pattern),
    ("SQL of one text, none matches", one_text),
]


def microseconds(index: TopicIndex[str]) -> tuple[float, int]:
    """The mean cost of one message, its view included, and how many subscriptions it found."""
    found = 0
    rounds = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS_PER_FIGURE:
        for _ in range(5):
            found = len(index.match(MappingView(USER, SYSTEM)))
        rounds += 5
    return (time.perf_counter() - begin) / rounds * 1e6, found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{'microseconds per message':34}" + "".join(f"{count:>12,}" for count in COUNTS) + "   found")
    for name, make in KINDS:
        cells: list[str] = []
        found: list[str] = []
        for count in COUNTS:
            index: TopicIndex[str] = TopicIndex()
            for number in range(count):
                index.put(f"s{number}", RuleSet([Rule("r", make(number))]))
            cost, matches = microseconds(index)
            cells.append(f"{cost:12.1f}")
            found.append(str(matches))
        print(f"{name:34}" + "".join(cells) + "   " + " / ".join(found))


if __name__ == "__main__":
    main()
