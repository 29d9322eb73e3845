"""What no Python client sends or shows: other clients' spellings, conditions, limits, rights and the exact answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from pairbus.errors import Unauthorized
from pairbus.gateway.atom.xml import BODY_BYTES_MAX
from pairbus.gateway.http import HttpResponse
from pairbus.model.access import LISTEN, MANAGE, SEND, AccessRule
from pairbus.model.entity import QUEUE, Settings
from tests.unit.gateway.atom_bench import HOST, SERVICE_BUS, Allowing, Bench, entry, queue_entry

VERSION = "api-version=2021-05"
ATOM = "{http://www.w3.org/2005/Atom}"
BUS = "{" + SERVICE_BUS + "}"
UPDATE = {"if-match": "*"}


@pytest.fixture
def access() -> Allowing:
    return Allowing()


@pytest.fixture
def bench(access: Allowing) -> Bench:
    return Bench(access)


class Holding:
    """Lets callers do what one right allows."""

    def __init__(self, right: str) -> None:
        self._right = right

    def check_http(self, header: str | None, path: str, right: str, now: int) -> str:
        if right != self._right:
            raise Unauthorized(f"{right} is needed on {path}")
        return "one"


def detail_of(response: HttpResponse) -> str:
    root = ElementTree.fromstring(response.body)
    assert root.tag == "Error"
    assert root.findtext("Code") == str(response.status)
    return root.findtext("Detail") or ""


def text_of(response: HttpResponse) -> str:
    return response.body.decode()


# --- other clients' requests --------------------------------------------------------------------------

JAVASCRIPT_QUEUE = f"""<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<entry xmlns="http://www.w3.org/2005/Atom"><updated>2026-01-01T00:00:00.000Z</updated>
<content type="application/xml"><QueueDescription xmlns="{SERVICE_BUS}"
 xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT45S</LockDuration>
<AuthorizationRules><AuthorizationRule p5:type="SharedAccessAuthorizationRule"
 xmlns:p5="http://www.w3.org/2001/XMLSchema-instance"><ClaimType>SharedAccessKey</ClaimType>
<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>
<PrimaryKey>cA==</PrimaryKey><SecondaryKey>cw==</SecondaryKey></AuthorizationRule></AuthorizationRules>
</QueueDescription></content></entry>"""

JAVASCRIPT_RULE = f"""<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">
<RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
<Filter p4:type="SqlFilter" xmlns:p4="http://www.w3.org/2001/XMLSchema-instance">
<SqlExpression>stringValue = @stringParam</SqlExpression><Parameters><KeyValueOfstringanyType>
<Key>@stringParam</Key><Value p4:type="l28:string" xmlns:l28="http://www.w3.org/2001/XMLSchema">b</Value>
</KeyValueOfstringanyType></Parameters></Filter>
<Action p4:type="EmptyRuleAction" xmlns:p4="http://www.w3.org/2001/XMLSchema-instance"/><Name>r</Name>
</RuleDescription></content></entry>"""


def test_a_queue_as_the_javascript_client_writes_it(bench: Bench) -> None:
    response = bench.ask("PUT", f"/a/b?{VERSION}", JAVASCRIPT_QUEUE.encode())

    assert response.status == 201
    queue = bench.namespace.find("a/b")
    assert queue is not None
    assert queue.settings.lock_duration_ms == 45_000
    rule = queue.settings.access_rules[0]
    assert (rule.name, rule.rights, rule.primary_key, rule.secondary_key) == ("k", ("Send",), "cA==", "cw==")


def test_a_rule_as_the_javascript_client_writes_and_reads_it(bench: Bench) -> None:
    make_subscription(bench)

    response = bench.ask("PUT", f"/t/Subscriptions/s/Rules/r?{VERSION}", JAVASCRIPT_RULE.encode())

    assert response.status == 201
    text = text_of(response)
    assert f"<id>https://{HOST}/t/Subscriptions/s/Rules/r?api-version=2021-05</id>" in text
    assert '<Filter i:type="SqlFilter">' in text
    assert '<Value i:type="d6p1:string" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">b</Value>' in text
    assert '<Action i:type="EmptyRuleAction"/>' in text


def test_the_exact_answer_that_both_clients_accept(bench: Bench) -> None:
    response = bench.ask("PUT", f"/orders?{VERSION}", queue_entry("<MaxDeliveryCount>3</MaxDeliveryCount>"))

    assert dict(response.headers)["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    root = ElementTree.fromstring(response.body)
    assert [child.tag for child in root] == [
        ATOM + name for name in ("id", "title", "published", "updated", "author", "link", "content")
    ]
    description = root.find(f"{ATOM}content/{BUS}QueueDescription")
    assert description is not None
    assert [child.tag.removeprefix(BUS) for child in description] == [
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ]
    assert re.search(r'<CountDetails xmlns:(\w+)="[^"]*"><\1:ActiveMessageCount>0</\1:', text_of(response))
    assert "<AccessedAt>0001-01-01T00:00:00.0000000Z</AccessedAt>" in text_of(response)


def test_what_nobody_has_used_was_accessed_never_and_a_subscription_at_its_creation(bench: Bench) -> None:
    make_subscription(bench)
    never = "<AccessedAt>0001-01-01T00:00:00.0000000Z</AccessedAt>"
    assert never in text_of(bench.ask("GET", f"/t?{VERSION}"))
    text = text_of(bench.ask("GET", f"/t/subscriptions/s?{VERSION}"))
    created = re.search("<CreatedAt>(.*)</CreatedAt>", text)
    assert created is not None
    assert f"<AccessedAt>{created[1]}</AccessedAt>" in text
    assert never not in text


def test_a_default_rule_may_come_with_the_subscription(bench: Bench) -> None:
    bench.ask("PUT", f"/t?{VERSION}", entry(f'<TopicDescription xmlns="{SERVICE_BUS}"/>'))
    body = entry(
        f'<SubscriptionDescription xmlns="{SERVICE_BUS}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        '<DefaultRuleDescription><Filter i:type="FalseFilter"/><Name>only</Name></DefaultRuleDescription>'
        "</SubscriptionDescription>"
    )

    assert bench.ask("PUT", f"/t/subscriptions/s?{VERSION}", body).status == 201

    listed = text_of(bench.ask("GET", f"/t/subscriptions/s/rules?{VERSION}"))
    assert re.findall("<Name>([^<]*)</Name>", listed) == ["only"]
    assert '<Filter i:type="FalseFilter">' in listed


def test_filtering_before_publishing_is_kept(bench: Bench) -> None:
    inside = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
    body = entry(f'<TopicDescription xmlns="{SERVICE_BUS}">{inside}</TopicDescription>')

    assert inside in text_of(bench.ask("PUT", f"/t?{VERSION}", body))
    assert inside in text_of(bench.ask("GET", f"/t?{VERSION}"))


def test_pages_have_two_links_only_while_more_follows(bench: Bench) -> None:
    for number in range(3):
        bench.ask("PUT", f"/q{number}?{VERSION}", queue_entry())

    first = ElementTree.fromstring(bench.ask("GET", f"/$Resources/Queues?{VERSION}&$skip=0&$top=2").body)
    last = ElementTree.fromstring(bench.ask("GET", f"/$Resources/Queues?{VERSION}&$skip=2&$top=2").body)

    assert [link.get("rel") for link in first.findall(f"{ATOM}link")] == ["self", "next"]
    assert first.findall(f"{ATOM}link")[1].get("href") == (
        f"https://{HOST}/$Resources/queues?$skip=2&$top=2&api-version=2021-05"
    )
    assert [title.text for title in first.findall(f"{ATOM}entry/{ATOM}title")] == ["q0", "q1"]
    assert [link.get("rel") for link in last.findall(f"{ATOM}link")] == ["self"]
    assert [title.text for title in last.findall(f"{ATOM}entry/{ATOM}title")] == ["q2"]


def test_forwarding_is_stored_as_a_path_and_told_as_an_address(bench: Bench) -> None:
    bench.ask("PUT", f"/Dest/x?{VERSION}", queue_entry())

    for number, written in enumerate(("sb://other:1/dest/X", "https://host/Dest/x", "dest/x", "/dest/x/")):
        body = queue_entry(f"<ForwardTo>{written}</ForwardTo>")
        response = bench.ask("PUT", f"/q{number}?{VERSION}", body)

        path = ("dest/X", "Dest/x", "dest/x", "dest/x")[number]
        assert f"<ForwardTo>sb://{HOST}/{path}</ForwardTo>" in text_of(response), "in the case it was given"


def test_a_partitioned_entity_is_taken_and_told_as_such(bench: Bench) -> None:
    created = bench.ask("PUT", f"/q?{VERSION}", queue_entry("<EnablePartitioning>true</EnablePartitioning>"))

    assert created.status == 201
    assert "<EnablePartitioning>true</EnablePartitioning>" in text_of(bench.ask("GET", f"/q?{VERSION}"))
    changed = queue_entry("<EnablePartitioning>false</EnablePartitioning>")
    assert bench.ask("PUT", f"/q?{VERSION}", changed, UPDATE).status == 400, "it cannot change after creation"


@pytest.mark.parametrize("kind", ["Queue", "Topic"])
def test_a_partitioned_entity_has_16_times_the_size_it_was_given(bench: Bench, kind: str) -> None:
    def described(size: str) -> bytes:
        size = f"<MaxSizeInMegabytes>{size}</MaxSizeInMegabytes>" if size else ""
        return entry(
            f'<{kind}Description xmlns="{SERVICE_BUS}">{size}<EnablePartitioning>true</EnablePartitioning></{kind}Description>'
        )

    def told() -> str:
        return (
            text_of(bench.ask("GET", f"/e?{VERSION}")).partition("<MaxSizeInMegabytes>")[2].partition("<")[0]
        )

    for size, whole in (
        ("", "16384"),
        ("16384", "16384"),
        ("3072", "49152"),
        ("49152", "49152"),
        ("1", "16"),
    ):
        updates = None if not size else UPDATE
        assert bench.ask("PUT", f"/e?{VERSION}", described(size), updates).status == (200 if updates else 201)
        assert told() == whole
    assert bench.ask("PUT", f"/e?{VERSION}", described("16"), UPDATE).status == 200
    assert told() == "16", "what was told is sent back"
    for size in ("0", "81921"):
        assert bench.ask("PUT", f"/e?{VERSION}", described(size), UPDATE).status == 400


def test_the_root_is_an_empty_feed(bench: Bench) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())
    response = bench.ask("GET", f"/?{VERSION}")

    assert response.status == 200
    assert "<feed " in text_of(response)
    assert "<entry" not in text_of(response)
    assert bench.ask("PUT", f"/?{VERSION}", queue_entry()).status == 400


def test_a_queue_with_sessions_may_forward_and_any_may_forward_to_itself(bench: Bench) -> None:
    bench.ask("PUT", f"/Q?{VERSION}", queue_entry("<RequiresSession>true</RequiresSession>"))
    itself = queue_entry(
        "<RequiresSession>true</RequiresSession><ForwardTo>q</ForwardTo>"
        "<ForwardDeadLetteredMessagesTo>q</ForwardDeadLetteredMessagesTo>"
    )

    response = bench.ask("PUT", f"/q?{VERSION}", itself, UPDATE)

    assert response.status == 200
    assert f"<ForwardTo>sb://{HOST}/q</ForwardTo>" in text_of(response)


@pytest.mark.promise("M8")
def test_a_host_that_is_no_host_is_not_repeated(bench: Bench) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())

    strange = bench.ask("GET", f"/q?{VERSION}", headers={"host": 'a"><canary>'})

    assert "canary" not in text_of(strange)
    assert "<id>https://contoso/q?" in text_of(strange)


ONE_RULE = (
    "<AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    "<PrimaryKey>cA==</PrimaryKey><SecondaryKey>cw==</SecondaryKey></AuthorizationRule>"
)


def test_a_rule_that_is_stored_keeps_its_name_and_keys(bench: Bench) -> None:
    """Older brokers took any name and key: such a rule does not stand in the way of other changes."""
    old = AccessRule(name="a b", rights=(SEND,), primary_key="k;1", secondary_key="k 2")
    entity = bench.namespace.create(QUEUE, "q", Settings(access_rules=(old,)), bench.now)
    same = ONE_RULE.replace(">k<", ">a b<").replace(">cA==<", ">k;1<").replace(">cw==<", ">k 2<")

    taken = queue_entry(f"<AuthorizationRules>{same}</AuthorizationRules>")
    assert bench.ask("PUT", f"/q?{VERSION}", taken, UPDATE).status == 200
    assert entity.settings.access_rules[0].primary_key == "k;1"
    other = queue_entry(f"<AuthorizationRules>{same.replace('k;1', 'k;3')}</AuthorizationRules>")
    refused = bench.ask("PUT", f"/q?{VERSION}", other, UPDATE)
    assert refused.status == 400
    assert "k;3" not in text_of(refused)


# --- conditions, methods, limits ----------------------------------------------------------------------


def test_if_match_knows_any_version_only(bench: Bench) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())

    assert bench.ask("PUT", f"/q?{VERSION}", queue_entry(), UPDATE).status == 200
    assert bench.ask("PUT", f"/q?{VERSION}", queue_entry(), {"if-match": '"abc"'}).status == 412
    assert bench.ask("PUT", f"/missing?{VERSION}", queue_entry(), UPDATE).status == 404
    assert bench.ask("PUT", f"/q?{VERSION}", queue_entry()).status == 409
    assert bench.ask("DELETE", f"/q?{VERSION}", b"", {"if-match": '"abc"'}).status == 412
    assert bench.namespace.find("q") is not None, "a refusal leaves no trace"
    assert bench.ask("DELETE", f"/q?{VERSION}", b"", {"if-match": "*"}).status == 200


@pytest.mark.promise("M10")
@pytest.mark.parametrize("method", ["POST", "HEAD", "PATCH", "OPTIONS"])
def test_other_methods_do_nothing(bench: Bench, method: str) -> None:
    response = bench.ask(method, f"/q?{VERSION}", queue_entry())

    assert response.status == 405
    assert bench.namespace.find("q") is None


MESSAGES = [
    ("POST", "/q/messages"),
    ("POST", "/q/messages?timeout=60&api-version=2015-01"),
    ("POST", "/q/messages/head?timeout=5"),
    ("DELETE", "/q/messages/head?timeout=5"),
    ("DELETE", "/q/Messages/1/7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547"),
    ("PUT", "/q/messages/1/7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547"),
    ("POST", "/t/subscriptions/s/messages/head"),
    ("DELETE", "/t/subscriptions/s/messages/head"),
]


@pytest.mark.parametrize(("method", "target"), MESSAGES)
def test_messages_over_http_are_refused_with_the_way_out(bench: Bench, method: str, target: str) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())
    records = len(bench.journal.records)

    response = bench.ask(method, target, b"hello" if target == "/q/messages" else b"")

    assert response.status == 501
    assert "AMQP" in detail_of(response)
    assert len(bench.journal.records) == records


def test_an_entity_whose_name_is_like_an_address_for_messages_is_managed_as_any(bench: Bench) -> None:
    assert bench.ask("PUT", f"/q/messages/head?{VERSION}", queue_entry()).status == 201
    assert bench.ask("GET", f"/q/messages/head?{VERSION}").status == 200
    assert bench.ask("DELETE", f"/q/messages/head?{VERSION}").status == 200
    assert bench.namespace.find("q/messages/head") is None


@pytest.mark.promise("M6")
@pytest.mark.parametrize(("method", "target"), MESSAGES)
@pytest.mark.parametrize("right", [SEND, LISTEN])
def test_a_key_for_messages_alone_gets_the_way_out_and_manages_nothing(
    method: str, target: str, right: str
) -> None:
    bench = Bench(Holding(right))
    bench.namespace.create(QUEUE, "q/messages/head", Settings(), bench.now)

    response = bench.ask(method, target)

    assert response.status == 501
    assert bench.namespace.find("q/messages/head") is not None


@pytest.mark.parametrize("right", [SEND, LISTEN, ""])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["missing", "missing/Subscriptions/s", "q"])
def test_a_caller_without_manage_does_not_learn_which_entities_there_are(
    right: str, method: str, path: str
) -> None:
    bench = Bench(Holding(right))
    bench.namespace.create(QUEUE, "q", Settings(), bench.now)

    assert bench.ask(method, f"/{path}?{VERSION}").status == 401


@pytest.mark.promise("M6")
@pytest.mark.parametrize(("method", "target"), MESSAGES)
def test_a_caller_without_a_right_learns_nothing_about_messages(method: str, target: str) -> None:
    assert Bench(Holding("")).ask(method, target).status == 401


@pytest.mark.parametrize("method", ["PUT", "DELETE", "GET"])
@pytest.mark.parametrize(
    "target", ["/?api-version=2021-05", "/$Resources/relays", "/t/subscriptions/s/x?api-version=1999-01"]
)
def test_what_is_no_entity_is_refused(bench: Bench, method: str, target: str) -> None:
    expected = 200 if (method, target[:2]) == ("GET", "/?") else 400  # the root can be read
    assert bench.ask(method, target, queue_entry()).status == expected


@pytest.mark.parametrize(
    "target", ["/$Resources/queues", "/$namespaceinfo", "/t/subscriptions?api-version=2021-05"]
)
def test_lists_can_only_be_read(bench: Bench, target: str) -> None:
    assert bench.ask("PUT", target, queue_entry()).status == 400
    assert bench.ask("DELETE", target).status == 400


@pytest.mark.promise("M11")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<entry/>",
        b'<!DOCTYPE x [<!ENTITY y "z">]><entry xmlns="http://www.w3.org/2005/Atom">&y;</entry>',
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        entry(""),
        entry(f'<QueueDescription xmlns="{SERVICE_BUS}"/><QueueDescription xmlns="{SERVICE_BUS}"/>'),
        entry("<QueueDescription/>"),
        entry(f'<RuleDescription xmlns="{SERVICE_BUS}"/>'),
        entry(f'<SubscriptionDescription xmlns="{SERVICE_BUS}"/>'),
        queue_entry("<LockDuration>one minute</LockDuration>"),
        queue_entry("<LockDuration>PT1M</LockDuration><LockDuration>PT1M</LockDuration>"),
        queue_entry("<MaxDeliveryCount>many</MaxDeliveryCount>"),
        queue_entry("<MaxDeliveryCount>99999999999999999999</MaxDeliveryCount>"),
        queue_entry("<RequiresSession>maybe</RequiresSession>"),
        queue_entry("<Status>Asleep</Status>"),
        queue_entry("<IsAnonymousAccessible>true</IsAnonymousAccessible>"),
        queue_entry("<ForwardTo>ftp://host/x</ForwardTo>"),
        queue_entry("<ForwardTo>sb://host/</ForwardTo>"),
        queue_entry("<ForwardTo>missing</ForwardTo>"),
        queue_entry("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"),
        queue_entry("<AuthorizationRules><Other/></AuthorizationRules>"),
        queue_entry(
            "<AuthorizationRules><AuthorizationRule><ClaimType>Role</ClaimType></AuthorizationRule></AuthorizationRules>"
        ),
        queue_entry(f"<AuthorizationRules>{ONE_RULE}{ONE_RULE}</AuthorizationRules>"),
        queue_entry("<AuthorizationRules>" + "<AuthorizationRule/>" * 13 + "</AuthorizationRules>"),
        *(
            queue_entry(f"<AuthorizationRules>{ONE_RULE.replace(*change)}</AuthorizationRules>")
            for change in (
                ("<KeyName>k<", "<KeyName>a b<"),
                ("<KeyName>k<", "<KeyName>-k<"),
                (">cA==<", ">c;A<"),
                (">cA==<", "><"),
                (">cw==<", ">c w<"),
                (">cw==<", f">{'c' * 257}<"),
            )
        ),
    ],
)
def test_a_refused_create_leaves_no_trace(bench: Bench, body: bytes) -> None:
    before = list(bench.journal.records)

    response = bench.ask("PUT", f"/q?{VERSION}", body)

    assert response.status == 400
    assert detail_of(response)
    assert bench.journal.records == before
    assert bench.namespace.find("q") is None


@pytest.mark.parametrize("target", ["/t/subscriptions/new", "/t/subscriptions/s/rules/new"])
def test_descriptions_must_fit_the_path(bench: Bench, target: str) -> None:
    make_subscription(bench)

    assert bench.ask("PUT", f"{target}?{VERSION}", queue_entry()).status == 400


@pytest.mark.promise("M12")
def test_large_bodies_are_refused(bench: Bench) -> None:
    assert bench.ask("PUT", f"/q?{VERSION}", b" " * (BODY_BYTES_MAX + 1)).status == 413


def test_a_queue_cannot_become_a_topic(bench: Bench) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())
    topic = entry(f'<TopicDescription xmlns="{SERVICE_BUS}"/>')

    assert bench.ask("PUT", f"/q?{VERSION}", topic, UPDATE).status == 400
    assert (
        bench.ask(
            "PUT", f"/q/subscriptions/s?{VERSION}", entry(f'<SubscriptionDescription xmlns="{SERVICE_BUS}"/>')
        ).status
        == 404
    )


def test_an_update_without_the_unchangeable_settings_keeps_them(bench: Bench) -> None:
    fixed = (
        "<RequiresDuplicateDetection>true</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>"
    )
    bench.ask("PUT", f"/q?{VERSION}", queue_entry(fixed))

    assert bench.ask("PUT", f"/q?{VERSION}", queue_entry(), UPDATE).status == 200

    queue = bench.namespace.find("q")
    assert queue is not None
    assert (queue.settings.requires_session, queue.settings.requires_duplicate_detection) == (True, True)


@pytest.mark.promise("M2")
@pytest.mark.parametrize("target", ["//q", "/q//", "/./q", "/x/../q", "/q/$DeadLetterQueue", "/%71%2571"])
def test_only_the_plain_path_reaches_an_entity(bench: Bench, target: str) -> None:
    bench.ask("PUT", f"/q?{VERSION}", queue_entry())

    for method in ("GET", "DELETE"):
        assert bench.ask(method, f"{target}?{VERSION}").status == 404

    assert bench.namespace.find("q") is not None


TOPIC_ENTRY = entry(f'<TopicDescription xmlns="{SERVICE_BUS}"/>')


@pytest.mark.promise("M2")
@pytest.mark.parametrize("target", ["//q", "/q//", "///q", "/x//q", "/%2Fq", "/./q"])
@pytest.mark.parametrize("description", [queue_entry(), TOPIC_ENTRY])
def test_only_the_plain_path_makes_an_entity(bench: Bench, target: str, description: bytes) -> None:
    response = bench.ask("PUT", f"{target}?{VERSION}", description)

    assert response.status == 400
    assert "is not a queue or topic name" in detail_of(response)
    assert list(bench.namespace.paths()) == []


def test_errors_are_xml_with_a_tracking_id_of_their_own(bench: Bench) -> None:
    texts = [detail_of(bench.ask("GET", f"/missing?{VERSION}")) for _ in range(2)]

    assert texts[0].startswith("The messaging entity 'missing' could not be found. ")
    ids = [
        re.search(r"TrackingId:([^,]+), SystemTracker:contoso:missing, Timestamp:\d{4}-", text)
        for text in texts
    ]
    assert len({found.group(1) for found in ids if found is not None}) == 2


@pytest.mark.promise("M8")
def test_names_in_errors_are_text(bench: Bench) -> None:
    assert "<script>" in detail_of(bench.ask("GET", f"/%3Cscript%3E?{VERSION}"))
    assert b"<script>" not in bench.ask("GET", f"/%3Cscript%3E?{VERSION}").body


# --- rights -------------------------------------------------------------------------------------------


def test_tokens_are_judged_by_the_address_they_were_made_for(bench: Bench, access: Allowing) -> None:
    # The JavaScript client signs the whole address of each request.
    make_subscription(bench)
    access.asked.clear()

    for target in (
        "/$Resources/Queues",
        "/$namespaceinfo",
        "/t",
        "/t/Subscriptions",
        "/t/Subscriptions/s/Rules/$Default",
    ):
        bench.ask("GET", f"{target}?{VERSION}", headers={"authorization": "token"})

    assert access.asked == [
        ("token", "$Resources/Queues", MANAGE),
        ("token", "$namespaceinfo", MANAGE),
        ("token", "t", MANAGE),
        ("token", "t/Subscriptions", MANAGE),
        ("token", "t/Subscriptions/s/Rules/$Default", MANAGE),
    ]


@pytest.mark.promise("M1")
def test_forwarding_needs_the_right_to_send_to_the_destination(bench: Bench, access: Allowing) -> None:
    bench.ask("PUT", f"/dest?{VERSION}", queue_entry())
    bench.ask("PUT", f"/grave?{VERSION}", queue_entry())
    access.asked.clear()
    forwards = (
        "<ForwardTo>dest</ForwardTo><ForwardDeadLetteredMessagesTo>grave</ForwardDeadLetteredMessagesTo>"
    )
    headers = {"authorization": "mine", "servicebussupplementaryauthorization": "theirs"}

    bench.ask("PUT", f"/q?{VERSION}", queue_entry(forwards), headers)

    assert access.asked == [("mine", "q", MANAGE), ("theirs", "dest", SEND), ("mine", "grave", SEND)]
    access.asked.clear()
    bench.ask("PUT", f"/q?{VERSION}", queue_entry(forwards), {**headers, **UPDATE})
    assert access.asked == [("mine", "q", MANAGE)]
    access.asked.clear()
    made = bench.ask("PUT", f"/loop?{VERSION}", queue_entry("<ForwardTo>loop</ForwardTo>"), headers)
    assert made.status == 201
    assert f"<ForwardTo>sb://{HOST}/loop</ForwardTo>" in text_of(made)
    assert access.asked == [("mine", "loop", MANAGE), ("theirs", "loop", SEND)], "itself is no exception"


class Refusing:
    """Knows nobody."""

    def check_http(self, header: str | None, path: str, right: str, now: int) -> str:
        raise Unauthorized("InvalidSignature: The token has an invalid signature.")


@pytest.mark.promise("M6")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize(
    "target", ["/q", "/", "/$Resources/queues", "/t/subscriptions/s/rules/r", "/q?api-version=bad"]
)
def test_strangers_learn_nothing(method: str, target: str) -> None:
    bench = Bench(Refusing())
    before = list(bench.journal.records)

    response = bench.ask(method, target if "?" in target else f"{target}?{VERSION}", b"<!DOCTYPE x>")

    assert response.status == 401
    assert "InvalidSignature" in detail_of(response)
    assert bench.journal.records == before
    assert [(audit[2], audit[3]) for audit in bench.audits] == [("", "401")]


@pytest.mark.promise("M7")
def test_keys_appear_in_no_error_and_no_audit_event(bench: Bench) -> None:
    canary = "Y2FuYXJ5LWtleQ=="
    rule = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Sing</AccessRights></Rights><KeyName>k</KeyName>"
        f"<PrimaryKey>{canary}</PrimaryKey><SecondaryKey>{canary}</SecondaryKey></AuthorizationRule></AuthorizationRules>"
    )

    response = bench.ask("PUT", f"/q?{VERSION}", queue_entry(rule), {"authorization": canary})

    assert response.status == 400
    assert canary not in text_of(response)
    assert canary not in repr(bench.audits)


@pytest.mark.promise("M1")
def test_an_entity_key_manages_its_entity_only() -> None:
    bench = Bench()
    root = bench.namespace.access_rules[0]
    mine = AccessRule(
        name="mine", rights=(LISTEN, SEND, MANAGE), primary_key="bWluZQ==", secondary_key="bWluZTI="
    )
    weak = AccessRule(name="weak", rights=(LISTEN, SEND), primary_key="d2Vhaw==", secondary_key="d2VhazI=")
    tokens = {rule.name: {"authorization": token(rule, "q", bench.now)} for rule in (mine, weak)}
    by_root = {"authorization": token(root, "", bench.now)}
    rules = "".join(
        f"<AuthorizationRule><Rights>{''.join(f'<AccessRights>{right}</AccessRights>' for right in rule.rights)}</Rights>"
        f"<KeyName>{rule.name}</KeyName><PrimaryKey>{rule.primary_key}</PrimaryKey>"
        f"<SecondaryKey>{rule.secondary_key}</SecondaryKey></AuthorizationRule>"
        for rule in (mine, weak)
    )
    body = queue_entry(f"<AuthorizationRules>{rules}</AuthorizationRules>")
    assert bench.ask("PUT", f"/q?{VERSION}", body, by_root).status == 201
    assert bench.ask("PUT", f"/qq?{VERSION}", queue_entry(), by_root).status == 201

    assert bench.ask("GET", f"/q?{VERSION}", headers=tokens["mine"]).status == 200
    assert bench.ask("PUT", f"/q?{VERSION}", body, {**tokens["mine"], **UPDATE}).status == 200
    for headers in (tokens["weak"], {}, {"authorization": "Bearer a.b.c"}):
        assert bench.ask("GET", f"/q?{VERSION}", headers=headers).status == 401
    for target in (f"/qq?{VERSION}", "/$Resources/queues", "/$namespaceinfo", f"/?{VERSION}"):
        assert bench.ask("GET", target, headers=tokens["mine"]).status == 401
    forward = queue_entry("<ForwardTo>qq</ForwardTo>")
    assert bench.ask("PUT", f"/q?{VERSION}", forward, {**tokens["mine"], **UPDATE}).status == 401


def token(rule: AccessRule, path: str, now: int) -> str:
    """A shared access signature as every client makes it."""
    resource = quote(f"https://{HOST}/{path}", safe="")
    expiry = str(now // 1000 + 3600)
    signed = hmac.new(rule.primary_key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(signed), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={rule.name}"


def make_subscription(bench: Bench) -> None:
    bench.ask("PUT", f"/t?{VERSION}", entry(f'<TopicDescription xmlns="{SERVICE_BUS}"/>'))
    body = entry(f'<SubscriptionDescription xmlns="{SERVICE_BUS}"/>')
    assert bench.ask("PUT", f"/t/subscriptions/s?{VERSION}", body).status == 201


@pytest.mark.parametrize(
    ("size", "status"), [(256, 201), (1_024, 201), (102_400, 201), (1_023, 400), (102_401, 400)]
)
@pytest.mark.parametrize("kind", ["Queue", "Topic"])
def test_large_messages_are_between_1024_and_102400_kilobytes(
    bench: Bench, kind: str, size: int, status: int
) -> None:
    described = f'<{kind}Description xmlns="{SERVICE_BUS}"><MaxMessageSizeInKilobytes>{size}</MaxMessageSizeInKilobytes>'
    response = bench.ask("PUT", f"/q?{VERSION}", entry(f"{described}</{kind}Description>"))

    assert response.status == status
    if status == 400:
        text = "value for 'MaxMessageSizeInKilobytes' must be between 1024 and 102400"
        assert text in detail_of(response)


def test_a_size_that_the_configuration_gave_can_be_sent_back(bench: Bench) -> None:
    bench.namespace.create(QUEUE, "q", Settings(max_message_kb=64), 0)
    same = queue_entry("<MaxMessageSizeInKilobytes>64</MaxMessageSizeInKilobytes>")

    assert bench.ask("PUT", f"/q?{VERSION}", same, UPDATE).status == 200
    other = queue_entry("<MaxMessageSizeInKilobytes>65</MaxMessageSizeInKilobytes>")
    assert bench.ask("PUT", f"/q?{VERSION}", other, UPDATE).status == 400


@pytest.mark.parametrize("name", ["$Default", "$default", "%24DEFAULT"])
def test_a_rule_that_is_there_exists_already_in_any_spelling(bench: Bench, name: str) -> None:
    make_subscription(bench)
    body = entry(f'<RuleDescription xmlns="{SERVICE_BUS}"/>')
    target = f"/t/subscriptions/s/rules/{name}?{VERSION}"

    assert bench.ask("PUT", target, body).status == 409
    assert bench.ask("DELETE", target).status == 200
    assert bench.ask("PUT", target, body).status == 201, "and can be made anew once it is gone"


@pytest.mark.parametrize("version", ["2099-01", "1999-01", "2021-05-preview"])
def test_an_unknown_api_version_is_refused(bench: Bench, version: str) -> None:
    response = bench.ask("GET", f"/$namespaceinfo?api-version={version}")

    assert response.status == 400
    assert f"api-version is '{version}'" in detail_of(response)


def test_what_only_a_topic_has_is_passed_over_in_a_queue(bench: Bench) -> None:
    """The service reads this element of a topic; to a queue it is one of those that it does not know."""
    element = "<EnableSubscriptionPartitioning>true</EnableSubscriptionPartitioning>"
    topic = entry(f'<TopicDescription xmlns="{SERVICE_BUS}">{element}</TopicDescription>')

    assert bench.ask("PUT", f"/q?{VERSION}", queue_entry(element)).status == 201
    assert bench.ask("PUT", f"/t?{VERSION}", topic).status == 400
