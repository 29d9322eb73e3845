"""The choice of the primary that a certificate is about."""

from __future__ import annotations

from pairbus.reports.engines.audit_log import BACKLOG, RECEIVED, SENT
from pairbus.reports.engines.primaries import Choice, Seen, choose, namespace_key


def seen(arrivals: tuple[str, ...], parked: tuple[str, ...]) -> list[Seen]:
    rows = [Seen(role, primary, "shared") for primary in parked for role in (SENT, BACKLOG)]
    return [*rows, *(Seen(RECEIVED, "", name) for name in arrivals)]


def test_one_pair_needs_no_choice() -> None:
    for arrivals in ((), ("",), ("contoso",), ("", "contoso")):
        for parked in ((), ("contoso",)):
            assert choose(seen(arrivals, parked)) == Choice()


def test_arrivals_of_one_namespace_choose_its_backlog_queues() -> None:
    assert choose(seen(("contoso",), ("contoso", "other"))) == Choice(("other",), ("other",))


def test_what_the_inputs_do_not_tell_is_a_doubt() -> None:
    cases = [
        (("",), ("contoso", "other")),
        (("", "contoso"), ("contoso", "other")),
        ((), ("contoso", "other")),
        (("contoso",), ("other",)),
        (("contoso", "other"), ()),
        (("contoso", "other"), ("contoso",)),
    ]
    for arrivals, parked in cases:
        assert "--primary NAME" in choose(seen(arrivals, parked)).doubt


def test_a_named_primary_ends_the_doubt() -> None:
    parked = ("contoso", "other")
    assert choose(seen(("",), parked), ["Contoso"]) == Choice(("other",), ("other",))
    assert choose(seen(("contoso", "other"), parked), ["contoso"]) == Choice(("other",), ("other",))
    assert choose(seen(("contoso",), ("other",)), ["contoso"]) == Choice(("other",), ("other",))
    # The backlog queues have another name for the namespace whose arrivals are given.
    assert choose(seen(("contoso",), ("alias", "other")), ["alias"]) == Choice(("other",), ("other",))


def test_a_name_that_no_row_has_and_two_namespaces_at_once_are_doubts() -> None:
    assert "no row" in choose(seen(("contoso",), ("other",)), ["contosso"]).doubt.lower()
    assert "one primary at a time" in choose(seen(("a", "b"), ("a", "b")), ["a", "b"]).doubt
    assert "one primary at a time" in choose(seen(("a", "b"), ("alias",)), ["alias"]).doubt


def test_what_a_secondary_accepted_for_itself_is_left_out() -> None:
    own = Seen(SENT, "", "shared")
    choice = choose([*seen(("contoso",), ("contoso",)), own])
    assert choice == Choice((), ("shared",), secondaries=("shared",))
    assert choice.unheard == ()  # its times without an audit matter
    # Its log tells that it is the secondary, also if nothing was parked.
    assert choose([Seen(RECEIVED, "", "contoso"), own, Seen(BACKLOG, "", "shared")]) == choice
    assert choose([*seen(("contoso",), ("contoso",)), own], ["contoso"]) == choice
    # Its arrivals may be among those without a namespace; and a namespace that has no backlog is no secondary.
    assert choose([*seen(("",), ("contoso",)), own]) == Choice()
    assert choose([*seen(("contoso",), ("contoso",)), Seen(SENT, "", "alias")]) == Choice()


def test_of_namespaces_that_are_each_others_secondary_the_gaps_of_both_matter() -> None:
    here, there = ("alpha", "beta")
    rows = [Seen(RECEIVED, "", here), Seen(SENT, "", here), Seen(SENT, there, here)]
    rows += [Seen(role, name, there) for role in (SENT, BACKLOG) for name in ("", here)]
    choice = choose(rows)
    assert (choice.parked_others, choice.direct_others, choice.unheard) == ((there,), (there,), ())
    # Those of another primary with no backlog do not.
    assert choose(seen((here, there), (here, there)), [here]).unheard == (there,)


def test_a_backlog_whose_sends_are_not_given_is_told() -> None:
    backlog, arrival = Seen(BACKLOG, "contoso", "shared"), Seen(RECEIVED, "", "contoso")
    assert choose([Seen(SENT, "", "contoso"), backlog, arrival]).unasked == ("shared",)
    assert (
        choose([Seen(SENT, "", "contoso"), Seen(SENT, "contoso", "shared"), backlog, arrival]).unasked == ()
    )
    # A sender's own ledger has what was parked, too; and another primary's backlog is not asked about.
    assert choose([Seen(SENT, "", ""), backlog, arrival]).unasked == ()
    others = Seen(BACKLOG, "other", "shared")
    assert choose([Seen(SENT, "", "contoso"), others, arrival], ["contoso"]).unasked == ()


def test_a_host_name_counts_by_its_first_part() -> None:
    assert namespace_key(" Contoso.servicebus.windows.net") == "contoso"
    assert namespace_key(None) == ""
