"""What ``pairing.client`` needs of the world around it: to wait, to run things side by side, and to call the SDK."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pairbus.spool.store import Append, Spool

Work = Callable[..., Coroutine[Any, Any, None]]


class Link(Protocol):
    """One sender of the SDK that any number of callers share."""

    sender: Any
    is_closed: bool

    async def send(
        self, message: Any, seconds: float, cut_seconds: float, patience: float | None = None
    ) -> None:
        """Send within ``seconds``. The SDK does not keep every one of its timeouts: ``cut_seconds`` ends the call.

        Both begin when the turn of the message has come, for which the caller waits in its order. ``patience``: the seconds that the
        caller has in all; None: no more than ``seconds``.
        """

    def try_to_send(
        self,
        message: Any,
        seconds: float,
        cut_seconds: float,
        attempts: Any = None,
        patience: float | None = None,
    ) -> Any:
        """The same; None: it was accepted, else what has failed (``Failed``). On asyncio the result is to be awaited."""

    async def open(self, seconds: float) -> None:
        """Open the link if it is not open, with the SDK's own retries."""

    async def call(
        self,
        work: Callable[..., Any],
        seconds: float,
        *given: Any,
        patience: float | None = None,
        **options: Any,
    ) -> Any:
        """Call another method of the sender while nobody else uses the link. ``patience``: see ``send``."""

    def rest(self) -> None:
        """Drop the connection if nobody uses it: after an outage a fresh one is wanted."""

    async def close(self) -> None:
        """Refuse callers that wait, and close the connection."""


class Runtime(Protocol):
    """The waiting side of one paired client."""

    def link(
        self,
        sender: Any,
        is_wanted: Callable[[], bool],
        is_final: Callable[[BaseException], bool] | None = None,
    ) -> Link:
        """A link around ``sender``.

        Args:
            sender: The SDK's sender; nobody else may call it.
            is_wanted: Whether a message should still go this way, asked before each attempt that does not begin at once.
            is_final: Errors after which the SDK shall not try again.
        """

    def notify(self) -> None:
        """Wake everybody who waits for a change."""

    def change_token(self) -> Any:
        """To be taken before one looks at what may change, so that no ``notify`` is missed before ``wait_for_change``."""

    async def wait_for_change(self, token: Any, seconds: float | None) -> None:
        """Wait for the first ``notify`` since ``token`` was taken, at most ``seconds``."""

    def limit(self, handler: Any, seconds: float) -> AbstractAsyncContextManager[Any]:
        """End a call of ``handler`` (a sender or receiver of the SDK) after ``seconds``."""

    async def call(self, work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """The result of a method of the SDK."""

    async def blocking(self, work: Callable[..., Any], *given: Any) -> Any:
        """The result of a function that waits for the disk of this machine."""

    async def commit(self, spool: Spool, append: Append) -> None:
        """Return once an append is durable. Those that wait at the same time share one write."""

    async def collect(self, pages: Any) -> list[Any]:
        """Every item of a listing of the SDK."""

    def entered(self, resource: Any) -> AbstractAsyncContextManager[Any]:
        """An SDK client, sender or receiver, opened here and closed at the end of the block."""

    def admin_client(self, client: Any, options: dict[str, Any], host: str | None) -> Any:
        """The administration client of the namespace that ``client`` reaches."""

    async def together(self, work: Work, items: Iterable[object], seconds: float) -> None:
        """Do ``work(item)`` for all items side by side. Work that is not done after ``seconds`` is given up."""

    async def shared(self, work: Work, seconds: float) -> bool:
        """Do ``work(seconds)``, or wait for the end of what an earlier caller has begun, at most ``seconds``. True: it has ended.

        ``work`` must bear to be begun again: by the next caller, after it was cancelled or its caller was interrupted.
        """

    def spawn(self, work: Work, *arguments: object) -> None:
        """Run ``work(*arguments)`` in the background."""

    async def stop_tasks(self, seconds: float) -> None:
        """Wait for the end of the work in the background, at most ``seconds``."""

    async def quiet(self, seconds: float) -> bool:
        """After the end: whether nothing that was begun here goes on any more. Waits for that, at most ``seconds``."""

    def begin(self) -> None:
        """The client is paired from here: what it does from now on belongs to this event loop, if there is one."""

    def is_over(self) -> bool:
        """Whether nothing that belongs here can go on: its event loop is closed. Never on threads."""

    def caller(self) -> object:
        """Who calls: a task or a thread."""

    async def end(self, seconds: float) -> None:
        """The client is closed: end what watches over its calls."""

    def drain_host(self) -> Any:
        """Runs the drain inside this process (``pairing.client.drain_host.DrainHost``)."""
