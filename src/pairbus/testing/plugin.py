"""The pytest plugin: fixtures ``namespace``, ``pair``, ``shared_namespace``, ``fresh_queue`` and ``virtual_clock``.

Loaded into every pytest run on a machine that has PairBus, so it imports nothing until a fixture is used.

    @pytest.mark.namespace(queues=["orders", Queue("sessions", requires_session=True)])
    def test_it(namespace: Namespace) -> None: ...
"""

from __future__ import annotations

import inspect
import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pairbus.testing import Namespace, Pair, VirtualClock


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "namespace(name, **options): options of the `namespace` fixture; of `pair`: queues and topics of its primary",
    )


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that only the test moves. The ``namespace`` of the same test runs on it."""
    from pairbus.testing import VirtualClock

    return VirtualClock()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A broker in a thread, or as ``@pytest.mark.namespace`` says."""
    from pairbus.testing import Namespace

    options = _options_of(request)
    _check_names(options, inspect.signature(Namespace).parameters, "namespace")
    if "virtual_clock" in request.fixturenames:
        options.setdefault("clock", request.getfixturevalue("virtual_clock"))
    with Namespace(**options) as started:
        yield started


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Two brokers in processes of their own. What a syphon of the test keeps on disk is the test's alone."""
    from pairbus.testing import Pair

    monkeypatch.setenv("PAIRBUS_STATE_DIR", str(tmp_path_factory.mktemp("pairbus-state")))
    options = _options_of(request)
    if "namespace" not in request.fixturenames:  # else the other options are those of that broker
        _check_names(options, ("queues", "topics"), "pair")
    with Pair(queues=options.get("queues", ()), topics=options.get("topics", ())) as started:
        yield started


@pytest.fixture(scope="session")
def shared_namespace() -> Iterator[Namespace]:
    """One broker for the whole test run. Tests that use it must not share entities: see ``fresh_queue``."""
    from pairbus.testing import Namespace

    with Namespace("shared") as started:
        yield started


@pytest.fixture
def fresh_queue(shared_namespace: Namespace) -> str:
    """The name of a new queue in ``shared_namespace`` that no other test uses."""
    name = f"queue-{uuid.uuid4().hex}"
    shared_namespace.create_queue(name)
    return name


def _options_of(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The marker's options; its one positional argument is the name, as it is for ``Namespace``."""
    marker = request.node.get_closest_marker("namespace")
    if marker is None:
        return {}
    options = dict(marker.kwargs)
    names = marker.args if "name" not in options else (options["name"], *marker.args)
    if len(names) > 1:
        raise _usage_error(
            f"@pytest.mark.namespace has several names, {names!r}: give one, and every other option by its keyword"
        )
    if names:
        options["name"] = names[0]
    return options


def _check_names(options: dict[str, Any], known: Iterable[str], fixture: str) -> None:
    """Refuse options that the fixture would not use: most are misspelt."""
    known = list(known)
    for name, value in options.items():
        if name not in known:
            raise _usage_error(
                f"@pytest.mark.namespace({name}={value!r}): the fixture `{fixture}` has no such option. "
                f"It has: {', '.join(known)}"
            )


def _usage_error(text: str) -> Exception:
    from pairbus.errors import UsageError

    return UsageError(text)
