"""How a reader or writer of ``format("servicebus")`` reaches its namespace, and what it says when the namespace refuses it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.errors import PairbusError, UsageError

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTITY_PATH: Final = re.compile(r"(?:^|;)\s*entitypath\s*=\s*([^;]+)", re.IGNORECASE)
_ENDPOINT: Final = re.compile(r"(?:^|;)\s*endpoint\s*=\s*(?:\w+://)?([^;/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """How a process gets to the namespace. With ``environment`` the secret is in no plan and no checkpoint at all."""

    text: str = field(default="", repr=False)
    environment: str = ""
    namespace: str = ""
    authorities: str = field(default="", repr=False)
    """Certificates to trust besides the public ones; the text travels with the job, so executors need no file."""

    def connection_string(self, variables: Mapping[str, str] | None = None) -> str:
        """The connection string, looked up in the process that needs it. Raises UsageError."""
        if not self.environment:
            return self.text
        found = (os.environ if variables is None else variables).get(self.environment, "")
        if not found:
            raise UsageError(
                f"credentialEnv: the environment variable {self.environment} is not set in this process; on a "
                f"cluster set spark.executorEnv.{self.environment} or the workers' own environment"
            )
        endpoint = _ENDPOINT.search(found)
        if endpoint is None and not self.namespace:
            raise UsageError(
                f"credentialEnv: {self.environment} holds a key without an Endpoint: give the option namespace too"
            )
        if endpoint is None:
            return f"Endpoint=sb://{self.namespace}/;{found}"
        if self.namespace and endpoint[1].lower() != self.namespace.lower():
            raise UsageError(
                f"option namespace is {self.namespace!r}, but {self.environment} holds the connection string of "
                f"{endpoint[1]!r}: give the same, or leave namespace out"
            )
        return found

    def entity_path(self) -> str:
        """The entity that the connection string is limited to (``EntityPath``); empty when it is not, or not known here."""
        found = _ENTITY_PATH.search(self.text or os.environ.get(self.environment, ""))
        return found[1].strip() if found is not None else ""

    def host(self) -> str:
        """Host and port of the namespace, in the form that a checkpoint keeps. Raises UsageError."""
        from pairbus.sdk.connection_string import normal_host, parse_connection_string

        parts = parse_connection_string(self.connection_string(), "given")
        return normal_host(parts.host, is_emulator=parts.is_emulator)

    def connection(self) -> dict[str, Any]:
        """What ``sdk.addresses.connect`` needs to know: the connection string and whom to trust."""
        from pairbus.sdk.trust import trusting

        trust = {"ssl_context": trusting(self.authorities)} if self.authorities else {}
        return {"conn_str": self.connection_string(), **trust}


def parse_access(connection_string: str, variable: str, namespace: str, ca_file: str) -> Access:
    """The values of the options ``connectionString``, ``credentialEnv``, ``namespace`` and ``caFile`` together.

    Raises:
        UsageError: They do not fit together, or one has the wrong form.
    """
    if bool(connection_string) == bool(variable):
        raise UsageError("give one of the options connectionString and credentialEnv (with namespace)")
    if connection_string and not _ENDPOINT.search(connection_string):
        raise UsageError("option connectionString is no connection string: expected Endpoint=sb://…;…")
    if connection_string and namespace:
        raise UsageError(
            "option namespace goes with credentialEnv: connectionString names the namespace itself"
        )
    if variable and not _VARIABLE.fullmatch(variable):
        # Not shown: it may be the secret itself.
        raise UsageError("option credentialEnv is no name: expected that of an environment variable")
    host = namespace.partition("://")[2] or namespace
    return Access(connection_string, variable, host.strip("/"), _authorities(ca_file))


def _authorities(ca_file: str) -> str:
    if not ca_file:
        return ""
    # With the official client behind it, which Spark's search for formats has no use for.
    from pairbus.sdk.trust import read_authorities

    try:
        return read_authorities([ca_file])
    except UsageError as error:
        raise UsageError(f"option caFile: {error}") from None


def lasting_refusal(error: BaseException, host: str, entity: str, right: str) -> PairbusError | None:
    """The error to raise for a wrong key or a missing entity; None for any other error.

    The official client retries both for almost a minute and then says "Service Bus has encountered an error".

    Args:
        error: What the official client raised.
        host: The namespace.
        entity: The path of the entity.
        right: What the key must allow, as ``listen``.
    """
    # Spark loads this module to look for formats, and has no use for the official client then.
    from pairbus.sdk.failures import Failure, classify

    failure = classify(error)
    if failure is Failure.NOT_FOUND:
        return UsageError(
            f"there is no entity {entity!r} in the namespace {host}: create it, or correct the option that names it"
        )
    if failure is Failure.UNAUTHORIZED:
        return PairbusError(
            f"the namespace {host} refused the key for {entity!r}: check SharedAccessKeyName and SharedAccessKey in the "
            f"connection string, and that the key has the right to {right}"
        )
    return None
