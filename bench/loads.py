"""Other loads than one plain queue, each beside the broker's own plain queue in the same run: read the ratios.

    python -m bench.loads [--only NAME] [--full] [--quick] [--json FILE]

The cost is processor time of the broker's process for one message, because a shared machine disturbs that least.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench import ours
from bench.broker import BASE
from bench.loadgen import LoadGenerator
from bench.other_loads import backlog, large, management, queues, topics
from bench.other_loads.kit import Row, Setting, as_json, as_table
from bench.peer import BenchError, progress

LOADS: Final[dict[str, Callable[[Setting], list[Row]]]] = {
    "topics": topics.measure,
    "sessions": queues.sessions,
    "large": large.measure,
    "backlog": backlog.measure,
    "queues": queues.many_queues,
    "wires": queues.wires,
    "management": management.measure,
    "delete": queues.receive_and_delete,
    "duplicates": queues.duplicates,
    "page": queues.open_page,
}
ROUNDS: Final = 3
SECONDS: Final = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loads", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=sorted(LOADS), help="this load; may be given again"
    )
    parser.add_argument(
        "--full", action="store_true", help="a backlog of 10 million messages instead of 1 million"
    )
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE too")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="pairbus-loads-", dir=BASE) as directory:
            home = Path(directory)
            rounds = 1 if arguments.quick else ROUNDS
            setting = Setting(LoadGenerator(home), home, rounds, SECONDS, arguments.full, progress)
            for name in arguments.only or LOADS:
                rows += LOADS[name](setting)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"PairBus from this checkout, {ours.form()}; 1 KB messages unless said otherwise")
    print("\n".join(as_table(rows)))
    if arguments.json is not None:
        Path(arguments.json).write_text(as_json(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
