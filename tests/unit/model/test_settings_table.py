"""The one table of an entity's settings: complete, and true to the names that others use."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import InvalidEntity
from pairbus.gateway.atom import write
from pairbus.model.entity import (
    FLAG,
    FOREVER_MS,
    QUEUE,
    SETTINGS,
    SUBSCRIPTION,
    TOPIC,
    Setting,
    Settings,
    check_settings,
    check_update,
    settings_of,
)

NOT_CHOSEN = {"access_rules", "created_at", "rules", "updated_at"}


def test_every_field_that_a_person_can_choose_has_one_row() -> None:
    listed = [setting.field for setting in SETTINGS]

    assert len(listed) == len(set(listed))
    assert set(listed) == {one.name for one in fields(Settings)} - NOT_CHOSEN


@pytest.mark.parametrize(
    ("kind", "create"),
    [
        (QUEUE, ServiceBusAdministrationClient.create_queue),
        (TOPIC, ServiceBusAdministrationClient.create_topic),
        (SUBSCRIPTION, ServiceBusAdministrationClient.create_subscription),
    ],
)
def test_settings_have_the_names_of_the_official_client(kind: int, create: Callable[..., object]) -> None:
    wanted = {setting.sdk_name for setting in settings_of(kind)}

    # An entity is created active, and the client leaves the order of queues to the service.
    assert wanted - set(inspect.signature(create).parameters) <= {"status", "support_ordering"}


@pytest.mark.parametrize("kind", [QUEUE, TOPIC, SUBSCRIPTION])
def test_the_management_api_writes_every_setting_of_a_kind_once(kind: int) -> None:
    written = [name for name in write._ORDER[kind] if name in write._BY_ELEMENT]

    assert sorted(written) == sorted(setting.element for setting in settings_of(kind))


@pytest.mark.parametrize(
    "setting", [setting for setting in SETTINGS if setting.high], ids=lambda one: one.field
)
def test_a_value_outside_its_range_is_refused_by_name(setting: Setting) -> None:
    for value in (setting.low - 1, setting.high + 1):
        with pytest.raises(InvalidEntity, match=setting.element):
            check_settings(Settings(**{setting.field: value}))  # type: ignore[arg-type]


def test_what_is_fixed_at_creation_cannot_be_changed() -> None:
    fixed = [setting for setting in SETTINGS if setting.is_fixed]

    assert {setting.holds for setting in fixed} == {FLAG}
    for setting in fixed:
        with pytest.raises(InvalidEntity, match=f"{setting.element} is false"):
            check_update(Settings(), Settings(**{setting.field: True}))  # type: ignore[arg-type]


def test_settings_survive_their_json() -> None:
    settings = Settings(lock_duration_ms=5_000, default_ttl_ms=FOREVER_MS, forward_to="q", rules=("{}",))

    assert Settings.from_json(settings.to_json()) == settings
    assert Settings().to_json() == "{}"
