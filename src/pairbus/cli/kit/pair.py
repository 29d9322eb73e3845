"""What the pairing commands share: which pair, which authorities, and how errors of the official client reach a person."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pairbus.cli.kit.errors import one_line, way_out
from pairbus.cli.kit.namespace import connection_of
from pairbus.cli.kit.options import option
from pairbus.cli.kit.output import silence_logs
from pairbus.errors import PairingError, UsageError
from pairbus.pairing.naming import identity_of
from pairbus.pairing.options import BACKLOG_QUEUE_COUNT_DEFAULT, BACKLOG_QUEUE_COUNT_MAX
from pairbus.sdk.place import errors_of, place_of

if TYPE_CHECKING:
    from pairbus.drain.backlog import Backlog
    from pairbus.pairing.statistics import Counters

_Result = TypeVar("_Result")


def alias_option(
    help: str = "Another address of the primary, for instance where it ran before it moved.",
) -> Any:
    """The option ``--primary-alias``."""
    return option(help, (), flag="--primary-alias", metavar="HOST[:PORT]", parse=_check_aliases)


def _check_aliases(addresses: Any) -> Any:
    for address in addresses:
        identity_of(address)
    return addresses


def queues_option() -> Any:
    """The option ``--queues``."""
    return option(
        "How many backlog queues. Give it with a key that may not list queues.",
        BACKLOG_QUEUE_COUNT_DEFAULT,
        minimum=1,
        maximum=BACKLOG_QUEUE_COUNT_MAX,
    )


@dataclass(frozen=True, kw_only=True)
class PairFlags:
    primary: str | None = option(
        "The primary.  [env: PAIRBUS_PRIMARY]", metavar="CS", envvar="PAIRBUS_PRIMARY"
    )
    secondary: str | None = option(
        "The secondary.  [env: PAIRBUS_SECONDARY]", metavar="CS", envvar="PAIRBUS_SECONDARY"
    )
    namespace: str | None = option(
        "The primary's own name, when its connection string lacks it.", metavar="NAME"
    )
    ca_files: tuple[str, ...] = option(
        "Certificate authority to trust in addition to the public ones. May repeat.  [default: that of a local broker in the user's data directory]",
        (),
        flag="--ca-file",
        metavar="FILE",
    )

    @property
    def both(self) -> tuple[str, str]:
        """Both connection strings. Raises UsageError."""
        return self._needed("primary"), self._needed("secondary")

    def authorities(self) -> str:
        """The text of the authorities to trust: as given, else those that local brokers made for themselves."""
        from pairbus.sdk.trust import read_authorities

        files = list(self.ca_files)
        if not files:
            given = (text for text in (self.primary, self.secondary) if text)
            known = (connection_of(text, None, None, os.environ)[1] for text in given)
            files = sorted({file for file in known if file is not None})
        return read_authorities(files)

    def ca_file(self) -> str | None:
        """A file with these authorities, which goes when the command ends."""
        from pairbus.sdk.trust import bundle_of

        return click.get_current_context().with_resource(bundle_of(self.authorities()))

    def backlog(self, queues: int, *, needs_primary: bool = True) -> Backlog:
        """The backlog in the secondary. Raises UsageError."""
        from pairbus.drain.backlog import Backlog

        primary = self._needed("primary") if needs_primary else self.primary
        secondary = self._needed("secondary")
        return Backlog(primary, secondary, self.namespace, queues, ca_file=self.ca_file())

    @property
    def addresses(self) -> str:
        """Both namespaces with their addresses, for an error that may be about either."""
        from pairbus.sdk.connection_string import parse_connection_string

        found = []
        for name, text in (("primary", self.primary), ("secondary", self.secondary)):
            with suppress(UsageError):
                if text:
                    hosts = parse_connection_string(text, name).hosts
                    found.append(f"the {name} {','.join(hosts)}")
        return " or ".join(found)

    def _needed(self, name: str) -> str:
        value: str | None = getattr(self, name)
        if not value:
            raise UsageError(f"no {name} namespace: set PAIRBUS_{name.upper()} to its connection string")
        return value


def delivered_text(counters: Counters) -> str:
    """How a drain ended, in a few words."""
    noun = "message" if counters.restored == 1 else "messages"
    return f"{counters.restored} {noun} delivered, {counters.set_aside} dead-lettered"


def run(work: Coroutine[Any, Any, _Result], pair: PairFlags) -> _Result:
    """Run to the end. A refusal of a namespace becomes one line for a person."""
    silence_logs("azure")
    with refusals(pair):
        return asyncio.run(work)


@contextmanager
def refusals(pair: PairFlags) -> Iterator[None]:
    """Turn errors of the official client into one line that names the namespace, with the way out."""
    from azure.core.exceptions import AzureError

    try:
        with errors_of(pair.addresses):
            yield
    except AzureError as error:
        raise PairingError(
            way_out(error) or f"{place_of(error)}: the namespace refused: {one_line(error)}"
        ) from error
