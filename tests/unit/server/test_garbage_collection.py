"""The collector does not pause the broker for a walk over all objects."""

from __future__ import annotations

import gc

from pairbus.server.memory import NEVER_COLLECTIONS, CollectorPolicy


def test_the_collector_never_walks_everything_by_itself_after_recovery() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovered()
        assert gc.get_threshold()[2] == NEVER_COLLECTIONS
        frozen = gc.get_freeze_count()
        kept = [[number] for number in range(250_000)]
        policy.tick()
        assert gc.get_freeze_count() > frozen + 200_000
        assert len(kept) == 250_000
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_the_collector_rests_while_a_restart_recovers_and_works_afterwards() -> None:
    thresholds = gc.get_threshold()
    try:
        policy = CollectorPolicy()
        policy.recovering()
        assert not gc.isenabled()
        policy.gave_up()
        assert gc.isenabled()
        policy.recovering()
        policy.recovered()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
