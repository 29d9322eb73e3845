"""What holds the nodes of a cluster to their promises (S1 to S8). Beside it, the broker world's ledger sees what clients see.

All of it is judged by true time and by what the database would keep in a failover: neither is known to any node.
"""

from __future__ import annotations

from pairbus.storage.table.ports import FrameMark
from tests.simulation.broker.checkers import PromiseBroken
from tests.simulation.cluster.database import Change, Database, Frame, ShardRow


class LogChecker:
    """Follows the log as the standby gets it.

    Args:
        is_blind: It checks nothing, so that only what clients see counts.
    """

    def __init__(self, database: Database, *, is_blind: bool = False) -> None:
        self._database = database
        self._is_blind = is_blind
        self.epochs: dict[int, int] = {}
        """When each epoch began."""
        self._last = Frame(0, FrameMark(0, 0), b"", b"")
        self._epoch = 0
        database.on_durable = self.durable

    def durable(self, change: Change) -> None:
        """The standby has got a change, so that no failover can lose it."""
        if isinstance(change, ShardRow) and change.epoch > self._epoch:
            self._epoch = change.epoch
            self.epochs[change.epoch] = self._database.now()
        elif isinstance(change, Frame):
            last, self._last = self._last, change
            if not self._is_blind:
                self._check(last, change)

    def _check(self, last: Frame, frame: Frame) -> None:
        epoch = frame.mark.epoch
        if frame.sequence != last.sequence + 1:
            raise PromiseBroken(f"S1: frame {frame.sequence} of epoch {epoch} follows frame {last.sequence}")
        if epoch < last.mark.epoch:
            raise PromiseBroken(
                f"S2: frame {frame.sequence} of epoch {epoch} follows one of epoch {last.mark.epoch}"
            )
        if epoch < self._epoch:
            raise PromiseBroken(
                f"S2: frame {frame.sequence} of epoch {epoch} was added though epoch {self._epoch} had begun"
            )

    def acquired(self, epoch: int, fence: int) -> None:
        """A node takes the shard, and replays what is below the fence (S2, S3)."""
        if self._is_blind:
            return
        for frame in self._database.primary.durable.frames.values():
            if frame.sequence > fence and frame.mark.epoch < epoch:
                raise PromiseBroken(
                    f"S3: epoch {epoch} begins behind frame {fence} and misses frame {frame.sequence} of epoch {frame.mark.epoch}"
                )

    def committed(self, epoch: int, sequence: int, mark: FrameMark) -> None:
        """A node takes it that this frame is durable (S3, S5, S7)."""
        if self._is_blind:
            return
        durable = self._database.primary.durable
        kept = durable.frames.get(sequence)
        if sequence < durable.dropped or (kept is not None and kept.mark == mark):
            return
        found = "nothing" if kept is None else f"a frame of epoch {kept.mark.epoch}"
        is_visible = sequence in self._database.primary.state.frames
        raise PromiseBroken(
            f"{'S7' if is_visible else 'S5'}: epoch {epoch} takes frame {sequence} for durable, and a failover would keep {found}"
        )

    def writes(self, epoch: int) -> None:
        """A node writes to a client (S4)."""
        if self._is_blind:
            return
        row, now = self._database.primary.durable.row, self._database.now()
        if row.epoch != epoch:
            raise PromiseBroken(f"S4: epoch {epoch} speaks though epoch {row.epoch} has begun")
        if now >= row.until:
            raise PromiseBroken(f"S4: epoch {epoch} speaks {now - row.until} ms after the end of its lease")
