"""What the official administration client can rely on: one suite, run in process and over HTTPS.

They follow the service's public REST reference and what the client's source needs.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.conformance.admin_kit import Admin

FOREVER = dt.timedelta(days=10675199, seconds=10085, microseconds=477581)
SECOND = dt.timedelta(seconds=1)
AWKWARD_TEXT = "<a href=\"x\">&amp; 'quoted' \N{SNOWMAN}\n\t]]>  end"


def access_rule(name: str, *rights: AccessRights, primary: str = "cHJpbWFyeQ==") -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        created_at_utc=dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        modified_at_utc=dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        key_name=name,
        primary_key=primary,
        secondary_key="c2Vjb25kYXJ5",
    )


def status_of(error: pytest.ExceptionInfo[HttpResponseError]) -> int | None:
    return error.value.status_code


class QueueCases:
    def test_new_queue_has_the_documented_defaults(self, admin: Admin) -> None:
        name = admin.name("plain")

        created = admin.create_queue(name)
        found = admin.get_queue(name)

        for queue in (created, found):
            assert queue.name == name
            assert queue.lock_duration == dt.timedelta(minutes=1)
            assert queue.max_size_in_megabytes == 1024
            assert queue.requires_duplicate_detection is False
            assert queue.requires_session is False
            assert queue.default_message_time_to_live == FOREVER
            assert queue.dead_lettering_on_message_expiration is False
            assert queue.duplicate_detection_history_time_window == dt.timedelta(minutes=10)
            assert queue.max_delivery_count == 10
            assert queue.enable_batched_operations is True
            assert queue.status == "Active"
            assert queue.availability_status == "Available"
            assert queue.auto_delete_on_idle == FOREVER
            assert queue.enable_partitioning is False
            assert queue.enable_express is False
            assert queue.forward_to is None
            assert queue.forward_dead_lettered_messages_to is None
            assert queue.user_metadata is None
            assert queue.authorization_rules is None
            assert queue.max_message_size_in_kilobytes == 256

    def test_every_setting_of_a_queue_comes_back(self, admin: Admin) -> None:
        name, target, graveyard = admin.name("full"), admin.name("target"), admin.name("graveyard")
        admin.create_queue(target)
        admin.create_queue(graveyard)
        settings: dict[str, Any] = {
            "auto_delete_on_idle": dt.timedelta(minutes=10),
            "dead_lettering_on_message_expiration": True,
            "default_message_time_to_live": dt.timedelta(minutes=11, milliseconds=250),
            "duplicate_detection_history_time_window": dt.timedelta(minutes=12),
            "enable_batched_operations": False,
            "enable_express": True,
            "enable_partitioning": True,
            "lock_duration": dt.timedelta(seconds=13.5),
            "max_delivery_count": 14,
            "max_size_in_megabytes": 3072,
            "requires_session": True,
            "requires_duplicate_detection": True,
            "user_metadata": AWKWARD_TEXT,
            "max_message_size_in_kilobytes": 12345,
        }

        admin.create_queue(
            name,
            forward_to=target,
            forward_dead_lettered_messages_to=graveyard,
            status="SendDisabled",
            **settings,
        )

        found = admin.get_queue(name)
        settings["max_size_in_megabytes"] *= 16  # it is partitioned
        assert {setting: getattr(found, setting) for setting in settings} == settings
        assert found.status == "SendDisabled"
        assert found.forward_to.endswith(f"/{target}")
        assert found.forward_to.startswith("sb://")
        assert found.forward_dead_lettered_messages_to.endswith(f"/{graveyard}")

    def test_durations_may_be_given_as_text(self, admin: Admin) -> None:
        name = admin.name("textual")

        admin.create_queue(
            name, lock_duration="PT13S", default_message_time_to_live="P10675199DT2H48M5.4775807S"
        )

        found = admin.get_queue(name)
        assert found.lock_duration == 13 * SECOND
        assert found.default_message_time_to_live == FOREVER

    @pytest.mark.promise("M5")
    def test_access_rules_come_back_with_their_keys(self, admin: Admin) -> None:
        name = admin.name("guarded")
        rules = [
            access_rule("all", AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN),
            access_rule("listen-only", AccessRights.LISTEN, primary="b3RoZXI="),
        ]

        admin.create_queue(name, authorization_rules=rules)

        found = admin.get_queue(name).authorization_rules
        assert [vars_of(rule) for rule in found] == [vars_of(rule) for rule in rules]

    def test_access_rules_are_replaced_as_a_whole(self, admin: Admin) -> None:
        name = admin.name("rotated")
        admin.create_queue(name, authorization_rules=[access_rule("a", AccessRights.SEND)])
        queue = admin.get_queue(name)

        queue.authorization_rules = [access_rule("a", AccessRights.SEND, primary="bmV3"), access_rule("b")]
        admin.update_queue(queue)

        found = admin.get_queue(name).authorization_rules
        assert [(rule.key_name, rule.primary_key) for rule in found] == [("a", "bmV3"), ("b", "cHJpbWFyeQ==")]

    @pytest.mark.promise("M11")
    def test_second_create_is_refused_whatever_the_letter_case(self, admin: Admin) -> None:
        name = admin.name("once")
        admin.create_queue(name, max_delivery_count=3)

        for again in (name, name.upper()):
            with pytest.raises(ResourceExistsError):
                admin.create_queue(again, max_delivery_count=5)
        with pytest.raises(ResourceExistsError):
            admin.create_topic(name)

        assert admin.get_queue(name).max_delivery_count == 3

    @pytest.mark.promise("M11")
    def test_deleted_queue_is_gone_and_cannot_be_deleted_twice(self, admin: Admin) -> None:
        name = admin.name("gone")
        admin.create_queue(name)

        admin.delete_queue(name)

        with pytest.raises(ResourceNotFoundError):
            admin.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(name)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue_runtime_properties(name)

    def test_update_replaces_what_can_be_written(self, admin: Admin) -> None:
        name, target = admin.name("changed"), admin.name("destination")
        admin.create_queue(target)
        admin.create_queue(name, user_metadata="old")
        queue = admin.get_queue(name)

        queue.lock_duration = 20 * SECOND
        queue.default_message_time_to_live = dt.timedelta(hours=1)
        queue.user_metadata = None
        queue.status = "Disabled"
        queue.forward_to = target
        admin.update_queue(queue, max_delivery_count=7)

        found = admin.get_queue(name)
        assert found.lock_duration == 20 * SECOND
        assert found.default_message_time_to_live == dt.timedelta(hours=1)
        assert found.user_metadata is None
        assert found.status == "Disabled"
        assert found.max_delivery_count == 7
        assert found.forward_to.endswith(f"/{target}")

    def test_forwarding_can_be_cleared(self, admin: Admin) -> None:
        name, target = admin.name("cleared"), admin.name("destination")
        admin.create_queue(target)
        admin.create_queue(name, forward_to=target, forward_dead_lettered_messages_to=target)
        queue = admin.get_queue(name)

        queue.forward_to = None
        queue.forward_dead_lettered_messages_to = None
        admin.update_queue(queue)

        assert admin.get_queue(name).forward_to is None
        assert admin.get_queue(name).forward_dead_lettered_messages_to is None

    @pytest.mark.promise("M11")
    @pytest.mark.parametrize(
        "change",
        [
            {"requires_session": True},
            {"requires_duplicate_detection": True},
            {"enable_partitioning": True},
            {"lock_duration": dt.timedelta(days=25)},
            {"lock_duration": dt.timedelta(seconds=4)},
            {"max_delivery_count": 0},
            {"status": "Creating"},
            {"auto_delete_on_idle": dt.timedelta(minutes=4)},
            {"default_message_time_to_live": dt.timedelta(0)},
            {"duplicate_detection_history_time_window": dt.timedelta(days=8)},
            {"user_metadata": "x" * 1025},
            {"forward_to": "nobody-has-this-name"},
            {"max_message_size_in_kilobytes": 102_401},
            {"max_message_size_in_kilobytes": 1_023},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_refused_update_changes_nothing(self, admin: Admin, change: dict[str, Any]) -> None:
        name = admin.name("kept")
        admin.create_queue(name, user_metadata="before")
        queue = admin.get_queue(name)
        queue.user_metadata = "after"

        with pytest.raises(HttpResponseError) as refused:
            admin.update_queue(queue, **change)

        assert status_of(refused) == 400
        assert admin.get_queue(name).user_metadata == "before"

    def test_update_of_a_missing_queue_is_not_found(self, admin: Admin) -> None:
        name = admin.name("brief")
        queue = admin.create_queue(name)
        admin.delete_queue(name)

        with pytest.raises(ResourceNotFoundError):
            admin.update_queue(queue)

    @pytest.mark.promise("M9")
    @pytest.mark.parametrize(
        "name",
        ["", "-starts-badly", "two words", "question?", "a//b", "a/../b", "per%cent", "ünicode", "x" * 261],
    )
    def test_bad_names_are_refused(self, admin: Admin, name: str) -> None:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_queue(name)

        assert status_of(refused) == 400

    def test_names_with_slashes_are_ordinary_names(self, admin: Admin) -> None:
        top = admin.name("Top")
        name = f"{top}/x-servicebus-transfer/0"

        admin.create_queue(name)

        assert admin.get_queue(name).name == name
        assert [queue.name for queue in admin.list_queues() if queue.name.startswith(top)] == [name]
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(top)
        admin.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(name)

    def test_names_are_told_as_they_were_created(self, admin: Admin) -> None:
        name = admin.name("CamelCase")
        admin.create_queue(name)

        assert admin.get_queue(name.lower()).lock_duration == dt.timedelta(minutes=1)
        assert name in [queue.name for queue in admin.list_queues()]

    def test_list_is_sorted_and_whole_over_many_pages(self, admin: Admin) -> None:
        prefix = admin.name("paged")
        names = sorted(f"{prefix}-{number:03}" for number in range(23))
        for name in reversed(names):
            admin.create_queue(name)

        listed = [
            queue.name for queue in admin.list_queues(max_page_size=7) if queue.name.startswith(f"{prefix}-")
        ]
        counted = [queue.name for queue in admin.list_queues_runtime_properties(max_page_size=5)]

        assert listed == names
        assert [name for name in counted if name.startswith(f"{prefix}-")] == names
        assert len(counted) == len(set(counted))

    @pytest.mark.promise("B66")
    def test_an_empty_queue_counts_nothing(self, admin: Admin) -> None:
        name = admin.name("counted")
        before = dt.datetime.now(dt.UTC) - dt.timedelta(days=365 * 20)
        admin.create_queue(name)

        counts = admin.get_queue_runtime_properties(name)

        assert counts.name == name
        assert counts.size_in_bytes == 0
        assert counts.total_message_count == 0
        assert counts.active_message_count == 0
        assert counts.dead_letter_message_count == 0
        assert counts.scheduled_message_count == 0
        assert counts.transfer_message_count == 0
        assert counts.transfer_dead_letter_message_count == 0
        assert counts.created_at_utc > before
        assert counts.updated_at_utc >= counts.created_at_utc
        assert counts.accessed_at_utc is not None


def vars_of(rule: AuthorizationRule) -> dict[str, object]:
    return {
        "name": rule.key_name,
        "type": rule.type,
        "claim": (rule.claim_type, rule.claim_value),
        "rights": [str(getattr(right, "value", right)) for right in rule.rights or []],
        "created": rule.created_at_utc,
        "modified": rule.modified_at_utc,
        "keys": (rule.primary_key, rule.secondary_key),
    }


class TopicCases:
    def test_new_topic_has_the_documented_defaults(self, admin: Admin) -> None:
        name = admin.name("topic")

        admin.create_topic(name)

        topic = admin.get_topic(name)
        assert topic.name == name
        assert topic.default_message_time_to_live == FOREVER
        assert topic.max_size_in_megabytes == 1024
        assert topic.requires_duplicate_detection is False
        assert topic.duplicate_detection_history_time_window == dt.timedelta(minutes=10)
        assert topic.enable_batched_operations is True
        assert topic.status == "Active"
        assert topic.availability_status == "Available"
        assert topic.support_ordering is True
        assert topic.filtering_messages_before_publishing is False
        assert topic.auto_delete_on_idle == FOREVER
        assert topic.enable_partitioning is False
        assert topic.enable_express is False
        assert topic.user_metadata is None

    def test_every_setting_of_a_topic_comes_back(self, admin: Admin) -> None:
        name = admin.name("topic")
        settings: dict[str, Any] = {
            "default_message_time_to_live": dt.timedelta(minutes=11),
            "max_size_in_megabytes": 2048,
            "requires_duplicate_detection": True,
            "duplicate_detection_history_time_window": dt.timedelta(minutes=12),
            "enable_batched_operations": False,
            "support_ordering": False,
            "auto_delete_on_idle": dt.timedelta(minutes=10),
            "enable_express": True,
            "user_metadata": AWKWARD_TEXT,
            "max_message_size_in_kilobytes": 2000,
        }
        rules = [access_rule("all", AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN)]

        admin.create_topic(name, authorization_rules=rules, **settings)

        found = admin.get_topic(name)
        assert {setting: getattr(found, setting) for setting in settings} == settings
        assert [vars_of(rule) for rule in found.authorization_rules] == [vars_of(rule) for rule in rules]

    def test_topic_can_be_updated_and_deleted_with_its_subscriptions(self, admin: Admin) -> None:
        name = admin.name("topic")
        topic = admin.create_topic(name)
        admin.create_subscription(name, "s")

        topic.status = "SendDisabled"
        admin.update_topic(topic, user_metadata="new")

        assert admin.get_topic(name).status == "SendDisabled"
        assert admin.get_topic(name).user_metadata == "new"
        assert [s.name for s in admin.list_subscriptions(name)] == ["s"]
        with pytest.raises(HttpResponseError):
            admin.update_topic(topic, requires_duplicate_detection=True)
        admin.delete_topic(name)
        with pytest.raises(ResourceNotFoundError):
            admin.get_topic(name)
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription(name, "s")

    @pytest.mark.promise("B16")
    def test_a_topic_made_again_starts_empty(self, admin: Admin) -> None:
        name = admin.name("topic")
        admin.create_topic(name)
        admin.create_subscription(name, "s")
        admin.delete_topic(name)

        admin.create_topic(name)

        assert admin.list_subscriptions(name) == []
        assert admin.get_topic_runtime_properties(name).subscription_count == 0

    def test_topics_and_queues_are_listed_apart(self, admin: Admin) -> None:
        prefix = admin.name("mixed")
        for number in range(3):
            admin.create_topic(f"{prefix}-t{number}")
            admin.create_queue(f"{prefix}-q{number}")

        topics = [topic.name for topic in admin.list_topics(max_page_size=2) if topic.name.startswith(prefix)]
        counted = [
            topic.name for topic in admin.list_topics_runtime_properties() if topic.name.startswith(prefix)
        ]
        queues = [queue.name for queue in admin.list_queues(max_page_size=2) if queue.name.startswith(prefix)]

        assert topics == counted == [f"{prefix}-t{number}" for number in range(3)]
        assert queues == [f"{prefix}-q{number}" for number in range(3)]

    def test_runtime_properties_count_subscriptions_and_filters(self, admin: Admin) -> None:
        name = admin.name("topic")
        admin.create_topic(name)
        admin.create_subscription(name, "s1")
        admin.create_subscription(name, "s2")
        admin.create_rule(name, "s1", "sql", filter=SqlRuleFilter("a = 1"))
        admin.create_rule(name, "s2", "same", filter=CorrelationRuleFilter(label="x"))

        counts = admin.get_topic_runtime_properties(name)

        assert counts.subscription_count == 2
        assert counts.sql_filter_count == 3
        assert counts.correlation_filter_count == 1
        assert counts.scheduled_message_count == 0
        assert counts.size_in_bytes == 0


class SubscriptionCases:
    @pytest.fixture
    def topic(self, admin: Admin) -> str:
        name = admin.name("events/of")
        admin.create_topic(name)
        return name

    def test_new_subscription_has_the_documented_defaults(self, admin: Admin, topic: str) -> None:
        admin.create_subscription(topic, "s")

        found = admin.get_subscription(topic, "s")
        assert found.name == "s"
        assert found.lock_duration == dt.timedelta(minutes=1)
        assert found.requires_session is False
        assert found.default_message_time_to_live == FOREVER
        assert found.dead_lettering_on_message_expiration is False
        assert found.dead_lettering_on_filter_evaluation_exceptions is True
        assert found.max_delivery_count == 10
        assert found.enable_batched_operations is True
        assert found.status == "Active"
        assert found.availability_status == "Available"
        assert found.forward_to is None
        assert found.user_metadata is None
        assert found.auto_delete_on_idle == FOREVER

    def test_every_setting_of_a_subscription_comes_back(self, admin: Admin, topic: str) -> None:
        target = admin.name("target")
        admin.create_queue(target)
        settings: dict[str, Any] = {
            "auto_delete_on_idle": dt.timedelta(minutes=10),
            "dead_lettering_on_filter_evaluation_exceptions": False,
            "dead_lettering_on_message_expiration": True,
            "default_message_time_to_live": dt.timedelta(minutes=11),
            "enable_batched_operations": False,
            "lock_duration": dt.timedelta(seconds=13),
            "max_delivery_count": 14,
            "user_metadata": AWKWARD_TEXT,
        }

        admin.create_subscription(
            topic,
            "s",
            forward_to=target,
            forward_dead_lettered_messages_to=target,
            status="ReceiveDisabled",
            **settings,
        )

        found = admin.get_subscription(topic, "s")
        assert {setting: getattr(found, setting) for setting in settings} == settings
        assert found.status == "ReceiveDisabled"
        assert found.forward_to.endswith(f"/{target}")
        assert found.forward_dead_lettered_messages_to.endswith(f"/{target}")

    def test_update_keeps_the_rules(self, admin: Admin, topic: str) -> None:
        subscription = admin.create_subscription(topic, "s", requires_session=True)
        admin.create_rule(topic, "s", "mine", filter=SqlRuleFilter("a = 1"))

        subscription.max_delivery_count = 5
        admin.update_subscription(topic, subscription, lock_duration=10 * SECOND)

        found = admin.get_subscription(topic, "s")
        assert (found.max_delivery_count, found.lock_duration, found.requires_session) == (
            5,
            10 * SECOND,
            True,
        )
        assert [rule.name for rule in admin.list_rules(topic, "s")] == ["$Default", "mine"]

    def test_subscriptions_are_listed_sorted_over_pages(self, admin: Admin, topic: str) -> None:
        names = [f"s{number:02}" for number in range(12)]
        for name in reversed(names):
            admin.create_subscription(topic, name)

        assert [s.name for s in admin.list_subscriptions(topic, max_page_size=5)] == names
        assert [s.name for s in admin.list_subscriptions_runtime_properties(topic, max_page_size=4)] == names

    def test_missing_and_doubled_subscriptions_are_told_apart(self, admin: Admin, topic: str) -> None:
        admin.create_subscription(topic, "s")

        with pytest.raises(ResourceExistsError):
            admin.create_subscription(topic, "S")
        with pytest.raises(ResourceNotFoundError):
            admin.create_subscription(admin.name("nowhere"), "s")
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription(topic, "t")
        with pytest.raises(ResourceNotFoundError):
            admin.list_subscriptions(admin.name("nowhere"))
        admin.delete_subscription(topic, "s")
        with pytest.raises(ResourceNotFoundError):
            admin.delete_subscription(topic, "s")

    @pytest.mark.promise("M9")
    @pytest.mark.parametrize("name", ["two words", "x" * 51, "a.b-"])
    def test_bad_subscription_names_are_refused(self, admin: Admin, topic: str, name: str) -> None:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_subscription(topic, name)

        assert status_of(refused) == 400

    @pytest.mark.promise("B66")
    def test_an_empty_subscription_counts_nothing(self, admin: Admin, topic: str) -> None:
        admin.create_subscription(topic, "s")

        counts = admin.get_subscription_runtime_properties(topic, "s")

        assert counts.name == "s"
        assert counts.total_message_count == 0
        assert counts.active_message_count == 0
        assert counts.dead_letter_message_count == 0
        assert counts.transfer_message_count == 0
        assert counts.transfer_dead_letter_message_count == 0
        assert counts.created_at_utc <= counts.updated_at_utc


class RuleCases:
    @pytest.fixture
    def place(self, admin: Admin) -> tuple[str, str]:
        topic = admin.name("ruled")
        admin.create_topic(topic)
        admin.create_subscription(topic, "s")
        return topic, "s"

    def test_new_subscription_takes_everything(self, admin: Admin, place: tuple[str, str]) -> None:
        rule = admin.get_rule(*place, "$Default")

        assert rule.name == "$Default"
        assert isinstance(rule.filter, TrueRuleFilter)
        assert rule.action is None
        assert rule.created_at_utc is not None

    def test_sql_rule_keeps_types_and_texts_of_its_parameters(
        self, admin: Admin, place: tuple[str, str]
    ) -> None:
        parameters: dict[str, Any] = {
            "@text": "str1 <&>",
            "@int": 2,
            "@long": 2_147_483_650,
            "@float": 2.5,
            "@true": True,
            "@when": dt.datetime(2020, 7, 5, 11, 12, 13),
            "@span": dt.timedelta(days=1, hours=2, seconds=3),
        }
        expression = "Priority = @int AND name <> @text AND a < @float AND sys.MessageId = 'x'"

        admin.create_rule(
            *place,
            "sql",
            filter=SqlRuleFilter(expression, parameters=parameters),
            action=SqlRuleAction("SET Priority = @param", parameters={"@param": "str1"}),
        )

        rule = admin.get_rule(*place, "sql")
        assert type(rule.filter) is SqlRuleFilter
        assert rule.filter.sql_expression == expression
        assert rule.filter.parameters == parameters
        assert rule.action.sql_expression == "SET Priority = @param"
        assert rule.action.parameters == {"@param": "str1"}

    def test_correlation_rule_comes_back_whole(self, admin: Admin, place: tuple[str, str]) -> None:
        fields = {
            "correlation_id": "c",
            "message_id": "m",
            "to": "t",
            "reply_to": "r",
            "label": " l & l ",
            "session_id": "s",
            "reply_to_session_id": "rs",
            "content_type": "text/plain",
        }
        properties: dict[str, Any] = {
            "key_string": "str1",
            "key_int": 2,
            "key_long": 2_147_483_650,
            "key_bool": False,
            "key_float": 0.1,
            "key_datetime": dt.datetime(2020, 7, 5, 11, 12, 13),
            "key_duration": dt.timedelta(days=1, hours=2, seconds=3),
        }

        admin.create_rule(*place, "same", filter=CorrelationRuleFilter(**fields, properties=properties))

        rule = admin.get_rule(*place, "same")
        assert {name: getattr(rule.filter, name) for name in fields} == fields
        assert rule.filter.properties == properties
        assert rule.action is None

    @pytest.mark.parametrize("kind", [TrueRuleFilter, FalseRuleFilter])
    def test_constant_filters_keep_their_kind(
        self, admin: Admin, place: tuple[str, str], kind: type[Any]
    ) -> None:
        admin.create_rule(*place, "constant", filter=kind())

        assert type(admin.get_rule(*place, "constant").filter) is kind

    def test_rule_can_be_updated(self, admin: Admin, place: tuple[str, str]) -> None:
        rule = admin.create_rule(
            *place, "r", filter=SqlRuleFilter("a = 1"), action=SqlRuleAction("SET b = 2")
        )

        rule.filter = CorrelationRuleFilter(correlation_id="new")
        rule.action = None
        admin.update_rule(*place, rule)

        found = admin.get_rule(*place, "r")
        assert found.filter.correlation_id == "new"
        assert found.action is None
        assert found.created_at_utc == rule.created_at_utc

    def test_rules_are_listed_with_the_default_first(self, admin: Admin, place: tuple[str, str]) -> None:
        for name in ("b", "A", "c"):
            admin.create_rule(*place, name, filter=SqlRuleFilter(f"x = '{name}'"))

        rules = admin.list_rules(*place, max_page_size=3)

        assert [rule.name for rule in rules] == ["$Default", "A", "b", "c"]
        assert [rule.filter.sql_expression for rule in rules[1:]] == ["x = 'A'", "x = 'b'", "x = 'c'"]

    def test_all_rules_may_go(self, admin: Admin, place: tuple[str, str]) -> None:
        admin.delete_rule(*place, "$Default")

        assert admin.list_rules(*place) == []
        with pytest.raises(ResourceNotFoundError):
            admin.delete_rule(*place, "$Default")
        with pytest.raises(ResourceNotFoundError):
            admin.get_rule(*place, "$Default")

    @pytest.mark.promise("M11")
    def test_doubled_and_missing_rules_are_told_apart(self, admin: Admin, place: tuple[str, str]) -> None:
        topic, _ = place
        rule = admin.create_rule(*place, "r", filter=SqlRuleFilter("a = 1"))

        with pytest.raises(ResourceExistsError):
            admin.create_rule(*place, "R", filter=SqlRuleFilter("a = 2"))
        with pytest.raises(ResourceNotFoundError):
            admin.create_rule(topic, "nobody", "r")
        rule.name = "other"
        with pytest.raises(ResourceNotFoundError):
            admin.update_rule(*place, rule)

        assert admin.get_rule(*place, "r").filter.sql_expression == "a = 1"

    @pytest.mark.promise("M11")
    @pytest.mark.parametrize(
        ("rule_filter", "action"),
        [
            (SqlRuleFilter("this is ("), None),
            (SqlRuleFilter("a = @missing"), None),
            (SqlRuleFilter("a = 1" + " OR a = 1" * 200), None),
            (SqlRuleFilter("a = 1"), SqlRuleAction("DROP TABLE x")),
        ],
        ids=["syntax", "parameter", "long", "action"],
    )
    def test_a_rule_nobody_understands_is_refused(
        self, admin: Admin, place: tuple[str, str], rule_filter: SqlRuleFilter, action: SqlRuleAction | None
    ) -> None:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_rule(*place, "bad", filter=rule_filter, action=action)

        assert status_of(refused) == 400
        assert [rule.name for rule in admin.list_rules(*place)] == ["$Default"]

    @pytest.mark.promise("M9")
    @pytest.mark.parametrize("name", ["two words", "$other", "x" * 51])
    def test_bad_rule_names_are_refused(self, admin: Admin, place: tuple[str, str], name: str) -> None:
        with pytest.raises(HttpResponseError) as refused:
            admin.create_rule(*place, name)

        assert status_of(refused) == 400


class NamespaceCases:
    def test_namespace_tells_its_name_and_kind(self, admin: Admin) -> None:
        properties = admin.get_namespace_properties()

        assert properties.name == "contoso"
        assert properties.messaging_sku == "Standard"
        assert properties.namespace_type == "Messaging"
        assert properties.created_at_utc <= properties.modified_at_utc

    def test_oldest_api_version_leaves_out_what_came_later(self, admin: Admin) -> None:
        old = admin.with_version("2017-04")
        name, topic = admin.name("old"), admin.name("old-topic")
        admin.create_queue(name, max_message_size_in_kilobytes=2048)

        queue = old.get_queue(name)
        queue.max_delivery_count = 4
        old.update_queue(queue)
        old.create_topic(topic)

        assert queue.max_message_size_in_kilobytes is None
        assert old.get_topic_runtime_properties(topic).sql_filter_count is None
        assert admin.get_queue(name).max_delivery_count == 4
        assert admin.get_queue(name).max_message_size_in_kilobytes == 2048
        with pytest.raises(HttpResponseError) as refused:
            old.create_queue(admin.name("old"), max_message_size_in_kilobytes=2048)
        assert status_of(refused) == 400

    def test_middle_api_version_knows_message_sizes_but_no_filter_counts(self, admin: Admin) -> None:
        middle = admin.with_version("2021-05")
        topic = admin.name("middle")

        middle.create_topic(topic, max_message_size_in_kilobytes=2048)

        assert middle.get_topic(topic).max_message_size_in_kilobytes == 2048
        assert middle.get_topic_runtime_properties(topic).sql_filter_count is None
        assert middle.get_topic_runtime_properties(topic).subscription_count == 0

    def test_errors_say_what_was_wrong_and_where(self, admin: Admin) -> None:
        name = admin.name("nothing")

        with pytest.raises(ResourceNotFoundError) as refused:
            admin.get_queue(name)

        text = str(refused.value)
        assert f"The messaging entity '{name}' could not be found." in text
        assert "TrackingId:" in text
        assert "SystemTracker:" in text
        assert "Timestamp:" in text
