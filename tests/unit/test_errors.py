"""Every error of the package: it survives pickling, and it is of the SDK's class where a program of the SDK catches it."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import traceback
import typing
from collections.abc import Iterator

import pytest
from azure.servicebus import exceptions as sdk

import pairbus
from pairbus import errors
from pairbus.errors import RemoteProtocolError
from pairbus.pairing import errors as of_the_sdk

NOT_IMPORTED = ("__main__", "testing.plugin", "spark.", "web.")
"""Modules that start something, or need Spark or the page's packages; their errors derive from ours."""
SAMPLES: dict[type, object] = {str: "text", int: 7, bytes: b"text", bool: True}


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(pairbus.__path__, "pairbus."):
        if not module.name.removeprefix("pairbus.").startswith(NOT_IMPORTED):
            yield module.name


def kinds() -> list[type[BaseException]]:
    found: dict[type[BaseException], None] = {}
    for name in modules():
        for value in vars(importlib.import_module(name)).values():
            is_error = inspect.isclass(value) and issubclass(value, BaseException)
            if is_error and value.__module__.startswith("pairbus"):
                found[value] = None
    return list(found)


def compiled_sample(kind: type[BaseException]) -> BaseException:
    """A compiled constructor does not name its arguments: it gets texts, as many as it wants."""
    try:
        return kind("text")
    except TypeError:
        return kind("text", "text")


def sample(kind: type[BaseException]) -> BaseException:
    """An error made as the code makes it: by every argument that its constructor names."""
    if kind.__init__ in (Exception.__init__, BaseException.__init__, AssertionError.__init__):
        return kind("text")
    hints = typing.get_type_hints(kind.__init__)
    given = {}
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return compiled_sample(kind)
        options = [option for option in typing.get_args(hints[name]) if option is not type(None)]
        given[name] = SAMPLES[options[0] if options else hints[name]]
    return kind(**given)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_error_survives_pickling(kind: type[BaseException]) -> None:
    try:
        try:
            raise RuntimeError("the reason")
        except RuntimeError as cause:
            raise sample(kind) from cause
    except kind as caught:
        error = caught

    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert twin.args == error.args
        assert object.__getstate__(twin) == object.__getstate__(error)
        assert traceback.format_exception_only(twin) == traceback.format_exception_only(error)


def test_what_was_noted_on_an_error_travels_with_it() -> None:
    error = of_the_sdk.ClientClosedError("closed")
    error.pairbus_outcome = "fail"  # type: ignore[attr-defined]  # as the sender notes it

    assert pairbus.outcome_of(pickle.loads(pickle.dumps(error))) == "fail"


@pytest.mark.parametrize(
    ("error", "classes"),
    [
        (of_the_sdk.MessageTooLargeForBacklogError(9, 2, 7), (sdk.MessageSizeExceededError, ValueError)),
        (of_the_sdk.EntityGoneError("orders"), (sdk.MessagingEntityNotFoundError,)),
        (of_the_sdk.ScheduledMessageGoneError("gone"), (sdk.MessageNotFoundError,)),
        (of_the_sdk.CancelInDoubtError("orders", ["a"]), ()),
        (of_the_sdk.ClientClosedError("closed"), (ValueError,)),
        (of_the_sdk.PartnerClosedError("a", "b"), ()),
        (of_the_sdk.NoBacklogQueuesError("none"), ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_program_of_the_sdk_catches_it(error: Exception, classes: tuple[type[Exception], ...]) -> None:
    for kind in (sdk.ServiceBusError, errors.PairbusError, errors.PairingError, *classes):
        assert isinstance(error, kind)
    assert getattr(pairbus, type(error).__name__) is type(error)
    assert getattr(errors, type(error).__name__) is type(error)


def test_a_wrong_value_is_a_value_error_and_a_wrong_type_a_type_error() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.WrongTypeError, TypeError)
    with pytest.raises(AttributeError, match="NoSuchError"):
        errors.NoSuchError  # type: ignore[attr-defined]  # noqa: B018


def test_remote_errors_carry_their_condition() -> None:
    assert RemoteProtocolError("amqp:decode-error", "x").condition == "amqp:decode-error"
