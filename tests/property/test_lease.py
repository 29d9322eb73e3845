"""For all delays, pauses, lost answers and clocks of different speeds: at most one node may write, and only under its own lease (S4)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.server.cluster.ownership.lease import NS_PER_MS, Lease, LeaseCall, LeaseState
from pairbus.storage.table.ports import Acquired, Ownership

LEASE_MS = 1_000
NODES = 2


class Row:
    """The shard's row, with the database's own clock in milliseconds."""

    def __init__(self) -> None:
        self.epoch, self.owner, self.until = 0, "", 0

    def perform(self, call: LeaseCall, node: str, epoch: int, now: int) -> Acquired | Ownership | bool | None:
        if call is LeaseCall.LOOK:
            return Ownership(self.epoch, self.owner, "", self.until - now)
        if call is LeaseCall.ACQUIRE:
            if self.owner and self.until > now:
                return None
            self.epoch, self.owner, self.until = self.epoch + 1, node, now + LEASE_MS
            return Acquired(self.epoch, self.epoch)
        if self.epoch != epoch:
            return False
        self.until = now + LEASE_MS if call is LeaseCall.RENEW else now
        self.owner = node if call is LeaseCall.RENEW else ""
        return True


@dataclass
class Node:
    """One node, its clock, and the call that it has under way."""

    lease: Lease
    offset: int
    percent: int
    """How fast its clock runs."""
    call: LeaseCall = LeaseCall.NONE
    epoch: int = 0
    answer: Acquired | Ownership | bool | None = None
    is_performed: bool = False

    def clock(self, now: int) -> int:
        return self.offset + now * NS_PER_MS * self.percent // 100

    def begin(self, now: int) -> None:
        planned = self.lease.next_call()
        if planned.call is LeaseCall.NONE or self.clock(now) < planned.at_ns:
            return
        self.lease.begin(planned.call, self.clock(now))
        self.call, self.is_performed = planned.call, False
        self.epoch = self.lease.held.epoch if self.lease.held is not None else 0

    def perform(self, row: Row, now: int) -> None:
        self.answer = row.perform(self.call, self.lease.node, self.epoch, now)
        self.is_performed = True

    def finish(self, now: int) -> None:
        call, self.call = self.call, LeaseCall.NONE
        clock = self.clock(now)
        if not self.is_performed:
            self.lease.unknown(clock)
        elif call is LeaseCall.LOOK:
            assert isinstance(self.answer, Ownership)
            self.lease.looked(self.answer, clock)
        elif call is LeaseCall.ACQUIRE:
            assert self.answer is None or isinstance(self.answer, Acquired)
            self.lease.acquired(self.answer, clock)
        elif call is LeaseCall.RENEW:
            self.lease.renewed(bool(self.answer), clock)
        else:
            self.lease.released(clock)


# One step: a node does the next thing that it can (0: go on, 1: lose the answer, 2: be asked to move, 3: drained, 4: replayed), after
# some time in which all nodes that are not named are paused.
steps = st.lists(
    st.tuples(
        st.integers(0, NODES - 1),
        st.sampled_from((0,) * 12 + (4, 4, 1, 2, 3)),
        st.sampled_from((0, 0, 0, 1, 10, 200, 400, 850, 1_200)),
    ),
    min_size=40,
    max_size=100,
)


@pytest.mark.promise("S4", "S2")
@given(
    steps,
    st.lists(
        st.tuples(st.integers(0, 10**15), st.integers(97, 103)),
        min_size=NODES,
        max_size=NODES,
    ),
)
def test_at_most_one_node_writes_and_only_under_its_own_lease(
    moves: list[tuple[int, int, int]], clocks: list[tuple[int, int]]
) -> None:
    row = Row()
    nodes = [
        Node(Lease(f"node-{number}", LEASE_MS, offset), offset, percent)
        for number, (offset, percent) in enumerate(clocks)
    ]
    now = 0
    for number, move, pause in moves:
        now += pause
        node = nodes[number]
        if move == 2:
            node.lease.withdraw(node.clock(now), hold_off_ms=500)
        elif move == 3:
            node.lease.drained(node.clock(now))
        elif move == 4:
            node.lease.replayed()
        elif node.call is LeaseCall.NONE:
            node.begin(now)
        elif not node.is_performed and move == 0:
            node.perform(row, now)
        else:
            node.is_performed = node.is_performed and move == 0
            node.finish(now)
        writers = [other for other in nodes if other.lease.may_write(other.clock(now))]
        assert len(writers) <= 1
        for writer in writers:
            held = writer.lease.held
            assert held is not None
            assert (row.epoch, row.owner) == (held.epoch, writer.lease.node)
            assert row.until > now
            assert writer.lease.state(writer.clock(now)) in (LeaseState.SERVING, LeaseState.DRAINING)
