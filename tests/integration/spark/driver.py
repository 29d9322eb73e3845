"""The Spark syphon as a process of its own, so that a test can kill it."""

from __future__ import annotations

import argparse
import json
import os
import sys

from pairbus.spark.drain.driver import SyphonOptions, run_syphon


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--slice", type=float, default=10.0)
    parser.add_argument("--order", choices=("relaxed", "session"), default="relaxed")
    parser.add_argument("--ledger")
    given = parser.parse_args()
    options = SyphonOptions(
        primary=os.environ["PAIRBUS_PRIMARY"],
        secondary=os.environ["PAIRBUS_SECONDARY"],
        once=True,
        master=given.master,
        queues=given.queues,
        window=given.window,
        slice_seconds=given.slice,
        order=given.order,
        ledger=given.ledger,
        settings={"spark.executor.memory": "700m"},
    )
    report = run_syphon(options, report_progress=lambda progress: print(progress.line(), flush=True))
    print(json.dumps(report.as_json()), flush=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
