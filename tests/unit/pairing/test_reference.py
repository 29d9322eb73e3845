"""The reference pages name everything there is."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pairbus
import pairbus.aio
from pairbus.pairing.events import Event, Kind
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.statistics import Counters, Statistics, Tally, metric_name, prometheus, snapshot
from pairbus.spool.file import Content

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_every_option_is_in_the_reference() -> None:
    page = (REFERENCE / "options.md").read_text()

    assert [item.name for item in fields(SendAvailabilityOptions) if f"`{item.name}`" not in page] == []


def test_every_event_is_in_the_reference() -> None:
    page = (REFERENCE / "events.md").read_text()

    assert [kind.value for kind in Kind if f"`{kind.value}`" not in page] == []


def test_every_attribute_of_an_event_is_in_the_reference() -> None:
    page = (REFERENCE / "events.md").read_text()
    source = Path(pairbus.__file__).parent
    emits = [
        call.group(1)
        for file in (*(source / "pairing").rglob("*.py"), *(source / "drain").rglob("*.py"))
        for call in re.finditer(r"\.emit\((.*?)\n? *\)\n", file.read_text(), re.DOTALL)
    ]
    data = {name for call in emits for name in re.findall(r"(\w+)=(?!=)", call)} - {"is_loud"}

    assert data >= {"queues", "messages", "before", "after"}
    names = {*(item.name for item in fields(Event)), *data}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_durations_in_the_reference_are_what_a_program_writes() -> None:
    page = (REFERENCE / "options.md").read_text()
    for item in fields(SendAvailabilityOptions):
        if isinstance(item.default, timedelta):
            row = next(line for line in page.splitlines()[::-1] if line.startswith(f"| `{item.name}` |"))
            written = re.findall(r"`(timedelta\([^`]*\))`", row)
            assert eval(written[0], {"timedelta": timedelta}) == item.default, row
            assert len(written) >= 3, row  # and the range


def test_every_metric_is_in_the_reference_and_exported() -> None:
    page = (REFERENCE / "pairing-metrics.md").read_text()
    picture = snapshot(
        Counters(),
        Tally(),
        usable=1,
        evicted=0,
        failed_over=0,
        oldest_parked_age_ms=7,
        oldest_age_ms=5,
        drain_rate_per_s=1.5,
        spool=Content("", oldest_ms=1),
        now_ms=2,
    )
    exported = prometheus(picture)

    for item in fields(Statistics):
        assert f"`{metric_name(item.name)}`" in page, item.name
        assert f"\n{metric_name(item.name)} " in exported, item.name


def test_every_public_name_can_be_had() -> None:
    assert [name for name in pairbus.__all__ if not hasattr(pairbus, name)] == []


def test_every_pairing_error_is_in_the_reference() -> None:
    from pairbus import errors
    from pairbus.pairing import errors as of_the_sdk

    page = (REFERENCE / "errors.md").read_text()
    names = [
        name
        for name, value in (*vars(errors).items(), *vars(of_the_sdk).items())
        if isinstance(value, type) and issubclass(value, errors.PairingError)
    ]

    assert [name for name in names if name not in page] == []


def test_the_asynchronous_side_offers_the_same_names() -> None:
    assert pairbus.aio.__all__ == pairbus.__all__
    for name in pairbus.__all__:
        is_own = name in ("PairedSender", "PairedServiceBusClient")
        assert (getattr(pairbus.aio, name) is getattr(pairbus, name)) is not is_own
