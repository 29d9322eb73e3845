"""``pairbus access``: the access rules of a running broker's namespace. Keys are printed by ``connection-string`` alone."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import click

from pairbus.cli.kit.errors import CERTIFICATE, KEY, Missing, Refused
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.namespace import connection_of, shown_namespace
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show, table_lines, terminal_columns
from pairbus.errors import UsageError
from pairbus.gateway.rights.access_rules import ACCESS_RULES_PATH, PRIMARY, ROTATE
from pairbus.model.access import KEY_LENGTH_MAX, RIGHTS
from pairbus.sdk.connection_string import (
    CLOUD_SUFFIXES,
    ConnectionString,
    parse_connection_string,
    split_host,
)

EPILOG: Final = """\b
Examples:
  pairbus access list
  pairbus access set shop --right Send --right Listen
  pairbus access connection-string shop
  pairbus access rotate shop --key secondary
  pairbus access rotate RootManageSharedAccessKey
  pairbus access remove shop

\b
The namespace is named by PAIRBUS_PRIMARY (a connection string with the right Manage) or --ready-file.
It must be one of a PairBus broker: rules of a namespace on Azure belong to its resource manager.
Exit codes: 0 done, 1 there is no such rule, 2 wrong usage, 3 could not reach the namespace or it refused.
"""
KEY_FILE_CHARACTERS_MAX: Final = 4_096
"""Most that is read of a file with a key."""
REQUEST_SECONDS_MAX: Final = 30.0
OTHERS_SECONDS_MAX: Final = 3.0
"""How long one of several addresses may take to answer while another one is untried."""
READ: Final = "GET"
ROW_ORDER: Final = ("name", "rights", "declared")
NOT_FOUND: Final = 404
UNAUTHORIZED: Final = 401


@dataclass(frozen=True, kw_only=True)
class BrokerFlags:
    connection_string: str | None = option("The namespace.  [env: PAIRBUS_PRIMARY]", metavar="CS")
    ready_file: str | None = option("A broker's ready file, instead of a connection string.", metavar="FILE")
    ca_file: str | None = option(
        "Certificate authority to trust.  [default: that of a local broker in the user's data directory, else the system's]",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class ListFlags(BrokerFlags):
    as_json: bool = json_option("One JSON array.")


@dataclass(frozen=True, kw_only=True)
class RuleFlags(BrokerFlags):
    name: str = argument()


@dataclass(frozen=True, kw_only=True)
class SetFlags(RuleFlags):
    rights: tuple[str, ...] = option(
        f"A right: {', '.join(RIGHTS)}. Manage gives all.  [default: those it has]",
        (),
        flag="--right",
        metavar="RIGHT",
    )
    key_file: Path | None = option(
        "File with the primary key.  [default: the key it has, or a random one]", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class RotateFlags(RuleFlags):
    key: Literal["primary", "secondary"] = option("Which of the two keys is replaced.", "primary")
    key_file: Path | None = option("File with the new key.  [default: a random one]", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ConnectionStringFlags(RuleFlags):
    key: Literal["primary", "secondary"] = option("With which of the two keys.", "primary")


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def access() -> None:
    """List, set and remove the access rules of a namespace, and replace their keys, while its broker runs."""


@command(ListFlags, "\b\nExample:\n  pairbus access list --json\n", name="list", group=access)
def list_rules(flags: ListFlags) -> None:
    """List the access rules of the namespace, without their keys. Declared: by the configuration file of the last start."""
    rows = _ask(flags, READ)["rules"]
    shown = [{**row, "rights": ", ".join(row["rights"])} for row in rows]
    show(rows, flags.as_json, table_lines(shown, ROW_ORDER, terminal_columns()))


@command(
    SetFlags,
    "\b\nExamples:\n  pairbus access set shop --right Send --right Listen\n  pairbus access set shop --key-file shop.key\n",
    name="set",
    group=access,
)
def set_rule(flags: SetFlags) -> None:
    """Create the rule NAME, or change its rights or its primary key.

    The rights that you give replace those it has. A rule that a configuration file declares gets the file's rights and keys
    again at the next start.
    """
    wish: dict[str, object] = {}
    if flags.rights:
        wanted = {_right(text) for text in flags.rights}
        wish["rights"] = list(RIGHTS) if RIGHTS[-1] in wanted else [one for one in RIGHTS if one in wanted]
    if flags.key_file is not None:
        wish["primary_key"] = _key(flags.key_file)
    if not flags.rights and not _exists(flags):
        raise UsageError(
            f"there is no rule {flags.name} yet: give each right of a new rule with --right: {', '.join(RIGHTS)}"
        )
    rule = _ask(flags, "PUT", flags.name, wish=wish)
    click.echo(f"rule {flags.name} has {', '.join(rule['rights'])}")


@command(RuleFlags, "\b\nExample:\n  pairbus access remove shop\n", group=access)
def remove(flags: RuleFlags) -> None:
    """Remove the rule NAME. Links that were opened with its keys end at once."""
    _ask(flags, "DELETE", flags.name)
    click.echo(f"removed rule {flags.name}")


@command(
    RotateFlags,
    "\b\nExamples:\n  pairbus access rotate shop\n  pairbus access rotate RootManageSharedAccessKey --key secondary\n",
    group=access,
)
def rotate(flags: RotateFlags) -> None:
    """Replace a key of the rule NAME. The replaced key stops working at once; the other one goes on to work."""
    wish: dict[str, object] = {"key": flags.key}
    if flags.key_file is not None:
        wish["value"] = _key(flags.key_file)
    _ask(flags, "POST", flags.name, ROTATE, wish=wish)
    click.echo(f"replaced the {flags.key} key of rule {flags.name}")


@command(
    ConnectionStringFlags,
    '\b\nExample:\n  export PAIRBUS_PRIMARY="$(pairbus access connection-string shop)"\n',
    name="connection-string",
    group=access,
)
def print_connection_string(flags: ConnectionStringFlags) -> None:
    """Print a connection string with a key of the rule NAME."""
    rule = _ask(flags, READ, flags.name)
    given = _parse(flags)[0].text
    key = rule["primary_key" if flags.key == PRIMARY else "secondary_key"]
    parts = [part for part in given.split(";") if part.strip()]
    places = {
        "sharedaccesskeyname": f"SharedAccessKeyName={flags.name}",
        "sharedaccesskey": f"SharedAccessKey={key}",
    }
    click.echo(";".join(places.get(part.partition("=")[0].strip().lower(), part) for part in parts))


def _exists(flags: RuleFlags) -> bool:
    try:
        _ask(flags, READ, flags.name)
    except Missing:
        return False
    return True


def _right(text: str) -> str:
    for right in RIGHTS:
        if text.lower() == right.lower():
            return right
    raise UsageError(f"--right {text} is no right: give {', '.join(RIGHTS)}")


def _key(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            key = opened.read(KEY_FILE_CHARACTERS_MAX).strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--key-file {file} cannot be read as text") from None
    if not key or len(key) > KEY_LENGTH_MAX or not key.isascii() or any(one in key for one in " ;\n"):
        raise UsageError(
            f"--key-file {file} needs one key of 1 to {KEY_LENGTH_MAX} characters, without blanks and semicolons"
        )
    return key


def _parse(flags: BrokerFlags) -> tuple[ConnectionString, str | None]:
    text, ca_file = connection_of(flags.connection_string, flags.ready_file, flags.ca_file, os.environ)
    return parse_connection_string(text, "given"), ca_file


def _ask(flags: BrokerFlags, method: str, *names: str, wish: dict[str, object] | None = None) -> Any:
    """One request about the access rules, or about what ``names`` lead to below them. Returns the answer.

    Of several addresses the first that answers is asked. A change that was sent and not answered may have been made, so it goes nowhere else.
    """
    from pairbus.local.management import ManagementClient

    parts, ca_file = _parse(flags)
    if split_host(parts.host)[0].lower().rstrip(".").endswith(CLOUD_SUFFIXES):
        raise Refused(
            "access rules of a namespace on Azure are managed with the portal or `az servicebus namespace authorization-rule`"
        )
    tls = None if parts.is_emulator and not ca_file else ssl.create_default_context(cafile=ca_file)

    def ask(host: str, seconds_max: float, *request: Any) -> tuple[int, bytes]:
        client = ManagementClient(host, parts.first_text or parts.text, tls=tls, seconds_max=seconds_max)
        try:
            status, _, answer = client.ask(*request)
        except ssl.SSLCertVerificationError:
            raise Refused(f"{namespace}: {CERTIFICATE}") from None
        return status, answer

    namespace = shown_namespace(parts.text)
    path = "/".join((ACCESS_RULES_PATH, *(quote(name, safe="") for name in names)))
    body = json.dumps(wish).encode() if wish is not None else b""
    hosts = parts.hosts or (parts.host,)
    is_read = method == READ
    # A change is preceded by a question that changes nothing, so it is sent where an answer is to be expected.
    host, status, answer = _first_answer(hosts, ask, path if is_read else ACCESS_RULES_PATH)
    if is_read:
        return _result(namespace, status, answer)
    try:
        return _result(namespace, *ask(host, REQUEST_SECONDS_MAX, method, path, body))
    except (OSError, http.client.HTTPException) as error:
        raise Refused(
            f"{host} did not answer: {error}. The change may have been made, or be made yet: look with `pairbus access list` before you "
            "repeat it"
        ) from None


def _first_answer(
    hosts: Sequence[str], ask: Callable[..., tuple[int, bytes]], path: str
) -> tuple[str, int, bytes]:
    """Read from the first address that answers. Returns which one that is, its status and its answer. Raises Refused."""
    for place, host in enumerate(hosts):
        is_last = place + 1 == len(hosts)
        try:
            return (host, *ask(host, REQUEST_SECONDS_MAX if is_last else OTHERS_SECONDS_MAX, READ, path))
        except (OSError, http.client.HTTPException) as error:
            if is_last:
                raise Refused(
                    f"{', '.join(hosts)} cannot be reached: {error}; check that the broker runs"
                ) from None
    raise AssertionError("there is an address")


def _result(namespace: str, status: int, answer: bytes) -> Any:
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    if status < 300 and isinstance(value, dict):
        return value
    reason = value.get("error") if isinstance(value, dict) else None
    if status == UNAUTHORIZED:
        raise Refused(f"{namespace}: {KEY}: it needs Manage on the whole namespace")
    if reason is None:
        raise Refused(f"{namespace} answered {status}: is it served by a PairBus broker of this version?")
    text = str(reason).rstrip(".")
    if status == NOT_FOUND:
        raise Missing(f"{namespace}: {text}: pairbus access list shows what exists")
    raise Refused(f"{namespace} refused: {text}")
