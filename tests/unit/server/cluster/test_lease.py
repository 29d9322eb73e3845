"""The lease machine, one transition at a time."""

from __future__ import annotations

import pytest

from pairbus.server.cluster.ownership.lease import NS_PER_MS, Lease, LeaseCall, LeaseState, NextCall
from pairbus.storage.table.ports import Acquired, Ownership

LEASE_MS = 1_000
FREE = Ownership(epoch=3, owner="", address="", remaining_ms=0)


def ms(count: float) -> int:
    return int(count * NS_PER_MS)


def owned(remaining_ms: int, epoch: int = 3) -> Ownership:
    return Ownership(epoch=epoch, owner="other", address="10.0.0.2:5672", remaining_ms=remaining_ms)


def idle() -> Lease:
    return Lease("here", LEASE_MS, ms(0))


def look(lease: Lease, found: Ownership, now_ns: int) -> None:
    lease.begin(LeaseCall.LOOK, now_ns)
    lease.looked(found, now_ns)


def serving(sent_ns: int = 0, answered_ns: int = 0) -> Lease:
    lease = idle()
    look(lease, FREE, sent_ns)
    lease.begin(LeaseCall.ACQUIRE, sent_ns)
    lease.acquired(Acquired(epoch=4, fence=17), answered_ns)
    lease.replayed()
    return lease


def test_a_shard_that_somebody_holds_is_looked_at_again_soon_and_at_the_end_of_its_lease() -> None:
    lease = idle()
    look(lease, owned(remaining_ms=5_000), ms(0))
    assert lease.next_call() == NextCall(LeaseCall.LOOK, ms(200))
    look(lease, owned(remaining_ms=70), ms(200))
    assert lease.next_call() == NextCall(LeaseCall.LOOK, ms(270))


@pytest.mark.parametrize("found", [FREE, owned(remaining_ms=0), owned(remaining_ms=-5)])
def test_a_free_shard_is_taken_at_once(found: Ownership) -> None:
    lease = idle()
    look(lease, found, ms(30))
    assert lease.next_call() == NextCall(LeaseCall.ACQUIRE, ms(30))


def test_nothing_is_said_before_the_log_was_replayed() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.acquired(Acquired(epoch=4, fence=17), ms(5))
    assert lease.state(ms(5)) is LeaseState.REPLAYING
    assert not lease.may_write(ms(5))
    assert lease.held == Acquired(epoch=4, fence=17)
    lease.replayed()
    assert lease.state(ms(6)) is LeaseState.SERVING
    assert lease.may_write(ms(6))


def test_the_lease_is_renewed_while_the_log_is_replayed() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.acquired(Acquired(epoch=4, fence=17), ms(5))
    for number in range(1, 8):
        assert lease.next_call() == NextCall(LeaseCall.RENEW, ms(200 * number))
        lease.begin(LeaseCall.RENEW, ms(200 * number))
        assert not lease.renewed(True, ms(200 * number + 1))
    lease.replayed()
    assert lease.may_write(ms(1_500))


@pytest.mark.promise("S4")
def test_the_lease_counts_from_before_the_renewal_was_sent_and_ends_a_margin_early() -> None:
    lease = serving()
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.renewed(True, ms(700))
    assert lease.may_write(ms(200 + 899))
    assert not lease.may_write(ms(200 + 900))


def test_the_lease_is_renewed_every_fifth_of_it() -> None:
    lease = serving()
    assert lease.next_call() == NextCall(LeaseCall.RENEW, ms(200))
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.renewed(True, ms(203))
    assert lease.next_call() == NextCall(LeaseCall.RENEW, ms(400))


@pytest.mark.promise("S4")
def test_an_unanswered_renewal_prolongs_nothing_and_is_repeated() -> None:
    lease = serving()
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.unknown(ms(600))
    assert lease.next_call() == NextCall(LeaseCall.RENEW, ms(650))
    assert lease.state(ms(899)) is LeaseState.SERVING
    assert lease.state(ms(900)) is LeaseState.SILENT


def test_a_renewal_under_the_same_epoch_ends_the_silence() -> None:
    lease = serving()
    assert lease.state(ms(2_000)) is LeaseState.SILENT
    lease.begin(LeaseCall.RENEW, ms(2_000))
    assert lease.renewed(True, ms(2_001))
    assert lease.state(ms(2_001)) is LeaseState.SERVING


def test_a_renewal_answered_after_the_lease_ended_ends_no_silence() -> None:
    lease = serving()
    lease.begin(LeaseCall.RENEW, ms(200))
    assert not lease.renewed(True, ms(1_200))
    assert lease.state(ms(1_200)) is LeaseState.SILENT


@pytest.mark.promise("S4")
def test_another_epoch_fences_for_ever() -> None:
    lease = serving()
    lease.begin(LeaseCall.RENEW, ms(200))
    assert not lease.renewed(False, ms(201))
    assert lease.state(ms(201)) is LeaseState.FENCED
    assert not lease.may_write(ms(201))
    assert lease.next_call().call is LeaseCall.NONE


@pytest.mark.promise("S4")
def test_a_frame_of_another_epoch_fences_also_while_a_renewal_is_under_way() -> None:
    lease = serving()
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.fenced()
    assert not lease.renewed(True, ms(201))
    assert not lease.may_write(ms(201))
    lease.replayed()
    assert not lease.may_write(ms(201))


def test_an_acquisition_that_lost_the_race_for_a_number_is_repeated_at_once() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.sequence_taken(ms(4))
    assert lease.next_call() == NextCall(LeaseCall.ACQUIRE, ms(4))


@pytest.mark.promise("S5")
def test_an_acquisition_without_an_answer_is_not_taken_for_a_success() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.unknown(ms(300))
    assert lease.state(ms(300)) is LeaseState.IDLE
    assert lease.held is None
    # Should it be ours after all, it ends like any other lease.
    look(lease, Ownership(epoch=4, owner="here", address="here:1", remaining_ms=650), ms(350))
    assert lease.next_call().call is LeaseCall.LOOK
    look(lease, Ownership(epoch=4, owner="here", address="here:1", remaining_ms=-1), ms(1_001))
    assert lease.next_call().call is LeaseCall.ACQUIRE


def test_the_owner_is_unknown_while_the_database_does_not_answer() -> None:
    lease = idle()
    look(lease, owned(remaining_ms=5_000), ms(0))
    assert lease.ownership is not None
    lease.begin(LeaseCall.LOOK, ms(200))
    lease.unknown(ms(900))
    assert lease.ownership is None


def test_a_planned_move_writes_until_it_has_drained_and_then_gives_the_lease_back() -> None:
    lease = serving()
    lease.withdraw(ms(100), hold_off_ms=3_000)
    assert lease.state(ms(100)) is LeaseState.DRAINING
    assert lease.may_write(ms(100))
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.renewed(True, ms(201))
    assert lease.may_write(ms(1_000))
    lease.drained(ms(250))
    assert not lease.may_write(ms(250))
    assert lease.next_call() == NextCall(LeaseCall.RELEASE, ms(250))
    lease.begin(LeaseCall.RELEASE, ms(250))
    lease.released(ms(252))
    assert lease.state(ms(252)) is LeaseState.IDLE
    assert lease.next_call() == NextCall(LeaseCall.LOOK, ms(252))


def test_after_a_planned_move_the_node_leaves_the_shard_to_others_for_a_while() -> None:
    lease = serving()
    lease.withdraw(ms(0), hold_off_ms=3_000)
    lease.drained(ms(10))
    lease.begin(LeaseCall.RELEASE, ms(10))
    lease.released(ms(11))
    still_free = Ownership(epoch=4, owner="", address="", remaining_ms=-20)
    look(lease, still_free, ms(20))
    assert lease.next_call().call is LeaseCall.LOOK
    look(lease, still_free, ms(3_000))
    assert lease.next_call().call is LeaseCall.ACQUIRE


def test_a_shard_that_another_owner_had_since_the_move_is_taken_again() -> None:
    lease = serving()
    lease.withdraw(ms(0), hold_off_ms=60_000)
    lease.drained(ms(10))
    lease.begin(LeaseCall.RELEASE, ms(10))
    lease.released(ms(11))
    look(lease, owned(remaining_ms=100, epoch=5), ms(20))
    look(lease, owned(remaining_ms=-1, epoch=5), ms(121))
    assert lease.next_call().call is LeaseCall.ACQUIRE


def test_a_node_that_withdrew_takes_nothing_until_it_takes_part_again() -> None:
    lease = idle()
    lease.withdraw(ms(0))
    look(lease, FREE, ms(0))
    assert lease.next_call() == NextCall(LeaseCall.LOOK, ms(200))
    lease.take_part()
    look(lease, FREE, ms(200))
    assert lease.next_call().call is LeaseCall.ACQUIRE


def test_a_shard_acquired_after_the_node_withdrew_is_given_back_at_once() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.withdraw(ms(1))
    lease.acquired(Acquired(epoch=4, fence=17), ms(2))
    assert lease.next_call() == NextCall(LeaseCall.RELEASE, ms(2))
    assert not lease.may_write(ms(2))


def test_a_release_without_an_answer_leaves_the_lease_to_its_end() -> None:
    lease = serving()
    lease.withdraw(ms(0))
    lease.drained(ms(1))
    lease.begin(LeaseCall.RELEASE, ms(1))
    lease.unknown(ms(50))
    assert lease.state(ms(50)) is LeaseState.IDLE
    assert not lease.may_write(ms(50))


def test_a_node_that_is_asked_to_leave_while_it_replays_never_speaks() -> None:
    lease = idle()
    look(lease, FREE, ms(0))
    lease.begin(LeaseCall.ACQUIRE, ms(0))
    lease.acquired(Acquired(epoch=4, fence=17), ms(5))
    lease.withdraw(ms(6))
    lease.replayed()
    assert not lease.may_write(ms(7))
    lease.begin(LeaseCall.RENEW, ms(200))
    lease.renewed(True, ms(201))
    assert not lease.may_write(ms(202))
