"""Every operation, right, scope and token state against the table of rights, on AMQP and HTTP alike (M1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.types import Array, Int, Long, Symbol, Timestamp, UInt, Uuid
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings
from tests.unit.gateway.wire_bench import START, WireBench, message, rule, token

UUID = Uuid(bytes(16))
REQUESTS: dict[str, dict[str, object]] = {
    "renew-lock": {"lock-tokens": Array([UUID])},
    "peek-message": {"from-sequence-number": Long(0), "message-count": Int(1)},
    "schedule-message": {"messages": [{"message-id": "m", "message": message()}]},
    "cancel-scheduled-message": {"sequence-numbers": Array([Long(1)])},
    "receive-by-sequence-number": {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": UInt(1)},
    "update-disposition": {"disposition-status": "completed", "lock-tokens": Array([UUID])},
    "batch-delete-messages": {"message-count": Int(1), "enqueued-time-utc": Timestamp(START)},
    "renew-session-lock": {"session-id": "s"},
    "set-session-state": {"session-id": "s", "session-state": b"x"},
    "get-session-state": {"session-id": "s"},
    "get-message-sessions": {"last-updated-time": Timestamp(START), "skip": Int(0), "top": Int(1)},
    "add-rule": {
        "rule-name": "r",
        "rule-description": {"sql-filter": {"expression": "1=1"}, "sql-rule-action": None},
    },
    "remove-rule": {"rule-name": "r"},
    "enumerate-rules": {"top": Int(1), "skip": Int(0)},
}
TABLE = {
    "sender": SEND,
    "receiver": LISTEN,
    "dead-letter receiver": LISTEN,
    "session receiver": LISTEN,
    "renew-lock": LISTEN,
    "peek-message": LISTEN,
    "schedule-message": SEND,
    "cancel-scheduled-message": SEND,
    "receive-by-sequence-number": LISTEN,
    "update-disposition": LISTEN,
    "batch-delete-messages": LISTEN,
    "renew-session-lock": LISTEN,
    "set-session-state": LISTEN,
    "get-session-state": LISTEN,
    "get-message-sessions": LISTEN,
    "add-rule": MANAGE,
    "remove-rule": MANAGE,
    "enumerate-rules": LISTEN,
    "GET": MANAGE,
    "PUT": MANAGE,
    "DELETE": MANAGE,
}
"""The table of rights: what each operation needs. Manage implies the others."""

RULES = {LISTEN: "listener", SEND: "sender", MANAGE: "root", "none": "nobody"}
SCOPES = ["namespace", "this entity", "other entity", "rule of this entity", "rule of other entity"]
STATES = [
    "expired",
    "unknown name",
    "replaced key",
    "wrong signature",
    "wrong audience",
    "malformed",
    "absent",
]


def make_bench(path: str) -> WireBench:
    bench = WireBench()
    own = tuple(rule(f"own-{right}", *(() if right == "none" else (right,))) for right in RULES)
    settings = Settings(access_rules=own)
    bench.queue("q", settings)
    bench.queue("other", replace(settings, access_rules=tuple(replace(r, primary_key="other") for r in own)))
    bench.namespace.create(TOPIC, "t", settings, bench.now)
    bench.namespace.create(SUBSCRIPTION, "t/Subscriptions/s", Settings(), bench.now)
    assert bench.namespace.find(path) is not None
    return bench


def parts_of(right: str, scope: str, path: str) -> tuple[str, str, str]:
    """Rule, key and resource of a token."""
    entity = path.partition("/")[0]
    name = RULES[right]
    match scope:
        case "namespace":
            return name, f"{name}-1", ""
        case "this entity":
            return name, f"{name}-1", path
        case "other entity":
            return name, f"{name}-1", "other"
        case "rule of this entity":
            return f"own-{right}", f"own-{right}-1", entity
        case _:
            return f"own-{right}", "other", "other"


def make_token(right: str, scope: str, path: str) -> str:
    return token(*parts_of(right, scope, path))


def spoil(state: str, right: str, scope: str, path: str) -> str | None:
    """A token of this right and scope that is not good."""
    name, key, resource = parts_of(right, scope, path)
    match state:
        case "expired":
            return token(name, key, resource, expires_at=START - 1_000)
        case "unknown name":
            return token(f"{name}-stranger", key, resource)
        case "wrong signature":
            return token(name, "nobody's-key", resource)
        case "wrong audience":
            return token(name, key, path + "x")
        case "malformed":
            return token(name, key, resource).replace("&se=", "&xx=")
        case "absent":
            return None
        case _:
            return token(name, key, resource)  # good, until its key is replaced


def replace_keys(bench: WireBench) -> None:
    """Every rule gets new keys."""
    namespace = bench.namespace
    namespace.set_access_rules(_renewed(namespace.access_rules), bench.now)
    for path in ("q", "other", "t"):
        entity = namespace.find(path)
        assert entity is not None
        settings = replace(entity.settings, access_rules=_renewed(entity.settings.access_rules))
        namespace.update(entity, settings, bench.now)


def _renewed(rules: tuple[AccessRule, ...]) -> tuple[AccessRule, ...]:
    return tuple(replace(old, primary_key="new-1", secondary_key="new-2") for old in rules)


def path_for(operation: str) -> str:
    return "t/Subscriptions/s" if operation.endswith(("-rule", "-rules")) else "q"


def amqp_allows(bench: WireBench, operation: str, path: str, text: str | None) -> bool:
    """Whether the operation gets past the question of rights."""
    peer = bench.peer(user=None)
    try:
        if text is not None:
            peer.put_token(text, path)
        if operation in REQUESTS:
            answer = peer.ask(path, operation, REQUESTS[operation])
            if answer is None:
                return False
            status = answer.application_properties["statusCode"]
            if status == 401:
                assert answer.application_properties["errorCondition"] == "amqp:unauthorized-access"
            return status != 401
        if operation == "sender":
            link = peer.session.sender(path)
        elif operation == "receiver":
            link = peer.session.receiver(path)  # type: ignore[assignment]
        elif operation == "dead-letter receiver":
            link = peer.session.receiver(path + "/$DeadLetterQueue")  # type: ignore[assignment]
        else:
            filters: dict[str, object] = {Symbol("com.microsoft:session-filter"): "s"}
            link = peer.session.receiver(path, filter=filters)  # type: ignore[assignment]
        bench.settle()
        if link.is_attached:
            return True
        assert link.error is not None
        return link.error.condition != "amqp:unauthorized-access"
    finally:
        bench.peers.remove(peer)
        peer.gateway.lost(bench.now)


def http_allows(bench: WireBench, method: str, path: str, text: str | None) -> bool:
    target = f"/{path}?api-version=2021-05"
    return bench.http(method, target, text, b"").status != 401


def allows(bench: WireBench, operation: str, path: str, text: str | None) -> bool:
    if operation in ("GET", "PUT", "DELETE"):
        return http_allows(bench, operation, path, text)
    return amqp_allows(bench, operation, path, text)


@pytest.mark.promise("M1")
@pytest.mark.parametrize("operation", TABLE)
def test_rights_and_scopes_are_as_the_table_says(operation: str) -> None:
    path = path_for(operation)
    wrong = []
    for right in RULES:
        for scope in SCOPES:
            bench = make_bench(path)
            expected = right in (TABLE[operation], MANAGE) and "other" not in scope
            if allows(bench, operation, path, make_token(right, scope, path)) is not expected:
                wrong.append((right, scope, "allowed" if not expected else "denied"))

    assert wrong == []


@pytest.mark.promise("M2")
@pytest.mark.parametrize("operation", TABLE)
def test_a_key_of_an_entity_opens_none_whose_name_begins_with_its_own(operation: str) -> None:
    """``q/below`` is another entity than ``q``. A key of the namespace for the scope ``q`` opens both (whole segments)."""
    is_rule = operation.endswith(("-rule", "-rules"))
    path = "q/below/Subscriptions/s" if is_rule else "q/below"
    wrong = []
    for right, name in RULES.items():
        for scope in ("q", "q/below", path):
            bench = make_bench("q")
            if is_rule:
                bench.namespace.create(TOPIC, "q/below", Settings(), bench.now)
                bench.namespace.create(SUBSCRIPTION, path, Settings(), bench.now)
            else:
                bench.queue(path)
            if allows(bench, operation, path, token(f"own-{right}", f"own-{right}-1", scope)):
                wrong.append((right, scope))
            expected = right in (TABLE[operation], MANAGE)
            assert allows(bench, operation, path, token(name, f"{name}-1", scope)) is expected, (right, scope)

    assert wrong == []


@pytest.mark.promise("M1")
@pytest.mark.parametrize("operation", TABLE)
def test_a_token_that_is_not_good_gives_nothing(operation: str) -> None:
    path = path_for(operation)
    bench, renewed = make_bench(path), make_bench(path)
    replace_keys(renewed)
    wrong = []
    for right in RULES:
        for scope in SCOPES:
            for state in STATES:
                where = renewed if state == "replaced key" else bench
                if allows(where, operation, path, spoil(state, right, scope, path)):
                    wrong.append((right, scope, state))

    assert wrong == []


@pytest.mark.promise("M1")
@pytest.mark.parametrize("operation", TABLE)
def test_authorization_comes_before_existence(operation: str) -> None:
    """Who may not touch an entity does not learn whether it is there."""
    bench = make_bench("q")
    missing = path_for(operation).replace("q", "missing").replace("t/", "missing/")
    for text in (None, token("root", "nobody's-key"), token("nobody", "nobody-1")):
        assert not allows(bench, operation, missing, text)


@pytest.mark.promise("M1")
@pytest.mark.parametrize(
    "target", ["/$Resources/queues", "/$Resources/topics", "/$namespaceinfo", "/t/subscriptions"]
)
def test_lists_need_manage_on_all_they_show(target: str) -> None:
    bench = make_bench("q")
    for right, name in RULES.items():
        status = bench.http("GET", f"{target}?api-version=2021-05", token(name, f"{name}-1")).status
        assert (status == 200) is (right == MANAGE), (right, status)
    for scope in ("q", "other"):
        assert (
            bench.http("GET", f"{target}?api-version=2021-05", token("root", "root-1", scope)).status == 401
        )
    assert bench.http("GET", f"{target}?api-version=2021-05", None).status == 401


@pytest.mark.promise("M1")
def test_the_switchboard_needs_manage_on_the_namespace() -> None:
    bench = make_bench("q")
    bench.broker.offers_faults = True
    for right, name in RULES.items():
        status = bench.http("GET", "/$faults", token(name, f"{name}-1")).status
        assert status == (200 if right == MANAGE else 401), right
    assert bench.http("GET", "/$faults", token("root", "root-1", "q")).status == 401
    assert bench.http("GET", "/$faults", None).status == 401
