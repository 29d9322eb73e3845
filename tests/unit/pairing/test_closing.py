from __future__ import annotations

import pytest

from pairbus.pairing.rules.closing import Partnership, Side


@pytest.mark.promise("P43")
def test_the_partner_is_faulted_after_five_seconds_and_not_before() -> None:
    subject = Partnership(is_hosting_syphon=True)
    subject.ended(Side.PRIMARY, 1_000)

    assert subject.next_deadline() == 6_000
    assert subject.tick(5_999) is None
    assert subject.tick(6_000) is Side.SECONDARY
    assert subject.tick(6_001) is None


@pytest.mark.promise("P43")
def test_nothing_is_faulted_when_both_close_in_time() -> None:
    subject = Partnership(is_hosting_syphon=True)
    subject.ended(Side.SECONDARY, 1_000)
    subject.ended(Side.PRIMARY, 5_000)

    assert subject.next_deadline() is None
    assert subject.tick(99_000) is None


@pytest.mark.promise("P43")
def test_a_second_notice_does_not_start_the_time_again() -> None:
    subject = Partnership(is_hosting_syphon=True)
    subject.ended(Side.PRIMARY, 1_000)
    subject.ended(Side.PRIMARY, 4_000)

    assert subject.next_deadline() == 6_000


@pytest.mark.promise("P43")
def test_without_a_syphon_each_side_lives_its_own_life() -> None:
    subject = Partnership(is_hosting_syphon=False)
    subject.ended(Side.PRIMARY, 0)

    assert subject.tick(99_000) is None
