"""Two namespaces for a test, each in a process of its own, so that one can die."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pairbus.errors import UsageError
from pairbus.testing.checks import check_optional
from pairbus.testing.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from pairbus.testing.entities import Queue, Topic


class Pair:
    """A primary and a secondary namespace, to be used with ``with``: ``pair.primary.kill()`` begins an outage, ``pair.primary.restart()`` ends it.

    It starts brokers and no client: give both connection strings to ``PairedServiceBusClient.from_connection_strings``.

    Args:
        primary: The primary, not yet started; a process of its own unless given.
        secondary: The secondary, not yet started; a process of its own unless given.
        queues: Queues of the primary, when it is not given.
        topics: Topics of the primary, when it is not given.

    Attributes:
        primary: The primary, a ``Namespace``.
        secondary: The secondary, a ``Namespace``.

    Raises:
        UsageError: ``queues`` or ``topics`` beside a ``primary``, or an argument of a wrong type.
    """

    def __init__(
        self,
        primary: Namespace | None = None,
        secondary: Namespace | None = None,
        *,
        queues: Sequence[str | Queue] = (),
        topics: Sequence[str | Topic] = (),
    ) -> None:
        check_optional("primary", primary, Namespace, "give a Namespace, or None for a new one")
        check_optional("secondary", secondary, Namespace, "give a Namespace, or None for a new one")
        if primary is not None and (queues or topics):
            raise UsageError(
                "queues and topics are those of a primary that Pair makes: give them to the Namespace that you "
                "pass as primary"
            )
        self.primary = primary or Namespace("primary", process=True, queues=queues, topics=topics)
        self.secondary = secondary or Namespace("secondary", process=True)
        self._open = ExitStack()

    def __repr__(self) -> str:
        return f"<Pair {self.primary!r} with {self.secondary!r}>"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.primary)
            stack.enter_context(self.secondary)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
