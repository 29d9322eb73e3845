"""Tokens, scopes, expiry and rotation (M1–M5), judged alone and over the wire."""

from __future__ import annotations

import hmac
from dataclasses import replace

import pytest

from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.errors import Unauthorized
from pairbus.gateway.rights import access
from pairbus.gateway.rights.access import covers
from pairbus.model.access import LISTEN, MANAGE, SEND
from pairbus.model.entity import TOPIC, Settings
from tests.unit.gateway.wire_bench import HOUR, START, WireBench, message, rule, token


def allows(bench: WireBench, text: str, path: str, right: str) -> bool:
    try:
        grant = bench.broker.access.verify(text, bench.now)
    except Unauthorized:
        return False
    return bench.broker.access.allows(grant, path, right, bench.now)


@pytest.mark.promise("M2")
@pytest.mark.parametrize(
    ("scope", "path", "expected"),
    [
        ("", "anything", True),
        ("a", "a", True),
        ("a", "a/subscriptions/s", True),
        ("a", "a/$management", True),
        ("a", "ab", False),
        ("a/b", "a", False),
        ("a/b", "a/bc", False),
    ],
)
def test_scope_is_by_whole_segments(scope: str, path: str, expected: bool) -> None:
    assert covers(scope, path) is expected


@pytest.mark.promise("M2")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", True),
        ("A", True),
        ("a/", True),
        ("/a", True),
        ("a/x", True),
        ("ab", False),
        ("b", False),
    ],
)
def test_a_token_covers_its_path_and_below_in_any_spelling(path: str, expected: bool) -> None:
    bench = WireBench()
    assert allows(bench, token("root", "root-1", "A"), path, SEND) is expected


@pytest.mark.promise("M2")
@pytest.mark.parametrize(
    "quoted",
    [
        "sb%3A%2F%2Flocalhost%2Fa%2F..%2Fb",
        "sb%3A%2F%2Flocalhost%2Fa%252F..%252Fb",
        "sb%3A%2F%2Flocalhost%2Fa%2F.%2Fb",
        "sb%3A%2F%2Flocalhost%2F..",
        "sb%3A%2F%2Flocalhost%2Fa%2F%2Fb",
        "sb%3A%2F%2Flocalhost%2Fa%5Cb",
        "sb%3A%2F%2Flocalhost%2F%2561",
    ],
)
def test_a_scope_that_is_not_a_plain_path_is_refused(quoted: str, bench: WireBench) -> None:
    with pytest.raises(Unauthorized, match="not a plain path"):
        bench.broker.access.verify(token("root", "root-1", quoted=quoted), bench.now)


@pytest.mark.promise("M2")
@pytest.mark.parametrize(
    "quoted",
    [
        "sb%3a%2f%2flocalhost%2fa",
        "amqp%3A%2F%2Flocalhost%2Fa",
        "https%3A%2F%2Flocalhost%3A5671%2Fa%2F",
        "sb%3A%2F%2Fanother-name%2Fa%3Fapi-version%3D2021-05",
        "localhost%2Fa",
    ],
)
def test_the_ways_in_which_clients_write_a_scope_mean_the_same(quoted: str, bench: WireBench) -> None:
    text = token("root", "root-1", quoted=quoted)
    assert allows(bench, text, "a", SEND)
    assert not allows(bench, text, "b", SEND)


@pytest.mark.promise("M3")
@pytest.mark.parametrize("expiry", ["", "soon", "-1", "1e9", "٣", "9" * 20, "253402300800"])
def test_an_expiry_that_is_no_instant_is_refused(expiry: str, bench: WireBench) -> None:
    good = token("root", "root-1")
    text = good.replace(f"se={(START + HOUR) // 1000}", f"se={expiry}")
    with pytest.raises(Unauthorized, match="MalformedToken"):
        bench.broker.access.verify(text, bench.now)


@pytest.mark.promise("M1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer abc",
        "SharedAccessSignature",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=root&skn=root",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=root&x=1",
        "SharedAccessSignature sr=a&sig&se=1&skn=root",
        "SharedAccessSignature " + "x" * 9_000,
    ],
)
def test_what_is_no_token_is_refused(text: str, bench: WireBench) -> None:
    with pytest.raises(Unauthorized):
        bench.broker.access.verify(text, bench.now)


@pytest.mark.promise("M1")
def test_signatures_with_strange_letters_are_refused_not_broken_on(bench: WireBench) -> None:
    good = token("root", "root-1")
    head, _, tail = good.partition("&sig=")
    with pytest.raises(Unauthorized, match="InvalidSignature"):
        bench.broker.access.verify(f"{head}&sig=%C3%A9&{tail.partition('&')[2]}", bench.now)


@pytest.mark.promise("M1")
def test_a_rule_of_an_entity_does_not_reach_beyond_it(bench: WireBench) -> None:
    bench.queue("a", Settings(access_rules=(rule("own", LISTEN),)))
    bench.queue("b")
    assert allows(bench, token("own", "own-1", "a"), "a", LISTEN)
    assert not allows(bench, token("own", "own-1", "a"), "a", SEND)
    assert not allows(bench, token("own", "own-1", "b"), "b", LISTEN)
    with pytest.raises(Unauthorized):
        bench.broker.access.verify(token("own", "own-1", ""), bench.now)


@pytest.mark.promise("M1")
def test_a_rule_of_the_namespace_does_not_hide_a_queues_rule_of_the_same_name(bench: WireBench) -> None:
    own = replace(rule("listener", SEND), primary_key="own-1", secondary_key="own-2")
    bench.queue("q", Settings(access_rules=(own,)))
    bench.queue("other", Settings())

    for key in ("own-1", "own-2"):
        assert allows(bench, token("listener", key, "q"), "q", SEND)
        assert not allows(bench, token("listener", key, "q"), "q", LISTEN)
        assert not allows(bench, token("listener", key, "other"), "other", SEND)
        assert not allows(bench, token("listener", key), "q", SEND)
    assert allows(bench, token("listener", "listener-1", "q"), "q", LISTEN)
    assert not allows(bench, token("listener", "listener-1", "q"), "q", SEND)
    assert allows(bench, token("listener", "listener-1"), "other", LISTEN)
    assert not allows(bench, token("listener", "own-3", "q"), "q", SEND)


@pytest.mark.promise("M1", "M2", "M5")
def test_a_key_of_two_rules_of_the_same_name_opens_what_either_allows(bench: WireBench) -> None:
    (both,) = (one for one in bench.namespace.access_rules if one.name == "listener")
    queue = bench.queue("q", Settings(access_rules=(replace(both, rights=(SEND,)),)))
    bench.queue("q/other")
    own, wide = token("listener", "listener-1", "q"), token("listener", "listener-1")
    assert allows(bench, own, "q", SEND)
    assert allows(bench, own, "q", LISTEN)
    assert not allows(bench, own, "q", MANAGE)
    # The queue's own rule opens nothing but the queue, and not by a token for more than the queue.
    assert not allows(bench, own, "q/other", SEND)
    assert allows(bench, own, "q/other", LISTEN)
    assert not allows(bench, token("listener", "listener-1", "q/other"), "q/other", SEND)
    assert not allows(bench, wide, "q", SEND)
    assert allows(bench, wide, "q", LISTEN)

    # Each rule counts as it is now: what the other one allows stays.
    grant = bench.broker.access.verify(own, bench.now)
    others = tuple(one for one in bench.namespace.access_rules if one.name != "listener")
    bench.namespace.set_access_rules((*others, replace(both, primary_key="new")), bench.now)
    assert bench.broker.access.allows(grant, "q", SEND, bench.now)
    assert not bench.broker.access.allows(grant, "q", LISTEN, bench.now)
    bench.namespace.set_access_rules((*others, both), bench.now)
    bench.namespace.update(queue, replace(queue.settings, access_rules=()), bench.now)
    assert not bench.broker.access.allows(grant, "q", SEND, bench.now)
    assert bench.broker.access.allows(grant, "q", LISTEN, bench.now)


@pytest.mark.promise("M1")
def test_a_topics_rule_covers_its_subscriptions(bench: WireBench) -> None:
    bench.namespace.create(TOPIC, "t", Settings(access_rules=(rule("own", LISTEN),)), bench.now)
    assert allows(bench, token("own", "own-1", "t/Subscriptions/s"), "t/Subscriptions/s", LISTEN)


@pytest.mark.promise("M5")
def test_both_keys_work_and_a_replaced_one_fails_at_once(bench: WireBench) -> None:
    one, two = token("root", "root-1"), token("root", "root-2")
    assert allows(bench, one, "q", MANAGE)
    assert allows(bench, two, "q", MANAGE)
    grant = bench.broker.access.verify(one, bench.now)
    bench.namespace.set_access_rules((rule("root", MANAGE, key="new"),), bench.now)

    assert not bench.broker.access.allows(grant, "q", MANAGE, bench.now)
    assert not allows(bench, one, "q", MANAGE)
    assert allows(bench, two, "q", MANAGE)
    assert allows(bench, token("root", "new"), "q", MANAGE)


@pytest.mark.promise("M5")
def test_a_rule_or_its_entity_that_is_gone_grants_nothing(bench: WireBench) -> None:
    entity = bench.queue("a", Settings(access_rules=(rule("own", LISTEN),)))
    of_entity = bench.broker.access.verify(token("own", "own-1", "a"), bench.now)
    of_namespace = bench.broker.access.verify(token("listener", "listener-1"), bench.now)
    bench.namespace.delete(entity, bench.now)
    bench.namespace.set_access_rules((), bench.now)

    assert not bench.broker.access.allows(of_entity, "a", LISTEN, bench.now)
    assert not bench.broker.access.allows(of_namespace, "a", LISTEN, bench.now)


@pytest.mark.promise("M7")
def test_a_grant_shows_no_key(bench: WireBench) -> None:
    grant = bench.broker.access.verify(token("root", "root-1"), bench.now)
    assert "root-1" not in repr(grant)


# -- over the wire


@pytest.mark.promise("M6")
def test_nothing_is_attached_before_a_token(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    for link in (
        peer.session.sender("q"),
        peer.session.receiver("q"),
        peer.session.receiver("no-such-queue"),
    ):
        bench.settle()
        assert link.detached
        assert link.error is not None
        assert link.error.condition == "amqp:unauthorized-access"


def test_a_wrong_password_is_refused_and_noted(bench: WireBench) -> None:
    peer = bench.peer("root", "wrong")
    assert peer.client.is_refused
    assert bench.audits == [("login", "", "root", "refused", "127.0.0.1:50000")]


@pytest.mark.promise("M3")
def test_expiry_ends_links_and_operations(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    assert peer.put_token(token("root", "root-1", "q", expires_at=START + 60_000), "q") == 202
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q", credit=5)
    bench.settle()
    assert sender.is_attached
    bench.now += 60_000  # no timer has noticed yet

    sender.send(message())
    bench.settle()
    assert bench.namespace.find("q").counts().total == 0  # type: ignore[union-attr]
    assert sender.detached
    bench.wait(10_000)
    assert receiver.detached
    assert receiver.error is not None
    assert receiver.error.condition == "amqp:unauthorized-access"


@pytest.mark.promise("M3")
def test_the_refusal_of_an_expired_token_says_when_it_expired(bench: WireBench) -> None:
    response = bench.http("GET", "/q", token("root", "root-1", "q", expires_at=START - 60_000))
    assert response.status == 401
    assert (
        b"ExpiredToken: The token is expired. Expiration time: '2023-11-14T22:12:20.0000000Z'."
        in response.body.replace(b"&apos;", b"'").replace(b"&#x27;", b"'").replace(b"&#39;", b"'")
    )


@pytest.mark.promise("M3")
def test_a_new_token_in_time_keeps_links(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    peer.put_token(token("root", "root-1", "q", expires_at=START + 60_000), "q")
    sender = peer.session.sender("q")
    bench.wait(50_000)
    assert peer.put_token(token("root", "root-1", "q", expires_at=START + HOUR), "q") == 202
    bench.wait(60_000)
    delivery_id = sender.send(message())
    bench.settle()

    assert sender.outcomes[delivery_id].code == ACCEPTED_CODE


@pytest.mark.promise("M4")
def test_a_weaker_token_weakens_existing_links(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    peer.put_token(token("root", "root-1", "q"), "q")
    sender, receiver = peer.session.sender("q"), peer.session.receiver("q")
    bench.settle()
    assert peer.put_token(token("listener", "listener-1", "q"), "q") == 202

    assert sender.detached
    assert receiver.is_attached


@pytest.mark.promise("M4")
def test_a_token_that_ends_earlier_shortens_the_time_of_existing_links(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    peer.put_token(token("root", "root-1", "q"), "q")
    sender = peer.session.sender("q")
    bench.settle()
    assert peer.put_token(token("root", "root-1", "q", expires_at=START + 2_000), "q") == 202
    bench.now += 2_000  # no timer has noticed yet

    sender.send(message())
    bench.settle()
    assert bench.namespace.find("q").counts().total == 0  # type: ignore[union-attr]
    assert sender.detached


@pytest.mark.promise("M5")
def test_a_replaced_key_ends_its_links_and_no_others(bench: WireBench) -> None:
    bench.queue()
    old, new = bench.peer(user=None), bench.peer(user=None)
    old.put_token(token("root", "root-1", "q"), "q")
    new.put_token(token("root", "root-2", "q"), "q")
    by_login = bench.peer("root", "root-1")
    links = [peer.session.sender("q") for peer in (old, new, by_login)]
    bench.settle()
    bench.namespace.set_access_rules((rule("root", MANAGE, key="new"),), bench.now)
    bench.settle()

    assert [link.detached for link in links] == [True, False, True]
    assert not old.client.closed


def test_tokens_are_refused_with_the_reason_and_noted(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer(user=None)
    assert peer.put_token(token("root", "wrong", "q"), "q") == 401
    assert peer.put_token(token("root", "root-1", "other"), "q") == 401
    assert peer.put_token(token("root", "root-1"), "missing") == 404
    assert [event[0] for event in bench.audits] == ["put-token"] * 3
    assert [event[2] for event in bench.audits] == ["root"] * 3
    assert [event[3] for event in bench.audits] == [
        "refused: InvalidSignature", "refused: InvalidAudience", "refused",
    ]  # fmt: skip
    assert all("root-1" not in part for event in bench.audits for part in event)


@pytest.mark.promise("M6")
@pytest.mark.parametrize("path", ["", "q"])
def test_an_unknown_rule_and_a_wrong_signature_have_the_same_answer(path: str, bench: WireBench) -> None:
    """Whoever has no key learns no rule's name, the namespace's or an entity's."""
    bench.queue("q", Settings(access_rules=(rule("own", MANAGE),)))

    def refusal(name: str, scope: str) -> str:
        with pytest.raises(Unauthorized) as refused:
            bench.broker.access.verify(token(name, "wrong", scope), bench.now)
        return str(refused.value)

    answers = {refusal(name, path) for name in ("root", "own", "stranger", "")}
    # A rule of an entity in a wider scope than its own would tell its name as well.
    answers |= {refusal(name, "q/below") for name in ("own", "stranger")}
    assert len(answers) == 1


@pytest.mark.promise("M6")
@pytest.mark.uncompiled
def test_an_unknown_rule_costs_as_many_comparisons_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = WireBench()
    bench.queue("q", Settings(access_rules=(rule("own", SEND), rule("root", SEND))))
    compared = 0

    def compare(one: bytes, two: bytes) -> bool:
        nonlocal compared
        compared += 1
        return hmac.compare_digest(one, two)

    class CountingHmac:
        new = staticmethod(hmac.new)
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(access, "hmac", CountingHmac)
    for name in ("root", "own", "sender", "stranger"):
        with pytest.raises(Unauthorized):
            bench.broker.access.verify(token(name, "wrong", "q"), bench.now)
        assert bench.broker.access.log_in(name, "wrong") is None
        assert compared == 6, name
        compared = 0


@pytest.mark.promise("M1")
def test_the_stand_in_for_a_missing_rule_opens_nothing(bench: WireBench) -> None:
    for key in ("0" * 44, "1" * 44):
        assert bench.broker.access.log_in("nobody-knows", key) is None
        with pytest.raises(Unauthorized):
            bench.broker.access.verify(token("nobody-knows", key), bench.now)
