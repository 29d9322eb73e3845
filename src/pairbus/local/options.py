"""How a pair is run on this machine; the options of ``pairbus up``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import UsageError
from pairbus.model.flags import option
from pairbus.pairing.options import BACKLOG_QUEUE_COUNT_DEFAULT, FAILOVER_INTERVAL_DEFAULT
from pairbus.server.config.addresses import parse_address
from pairbus.server.config.options import check_namespace
from pairbus.server.sockets.registry import is_loopback_only
from pairbus.storage.postgres.opening import is_database


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    primary: str = option("The primary's name.", "primary", metavar="NAME")
    secondary: str = option("The secondary's name.", "secondary", metavar="NAME")
    primary_address: str = option(
        "Address of the primary. Port 0 chooses a free port.", "127.0.0.1:5672", metavar="HOST:PORT"
    )
    secondary_address: str = option(
        "Address of the secondary. Port 0 chooses a free port.", "127.0.0.1:5673", metavar="HOST:PORT"
    )
    page_address: str = option("The page.", "127.0.0.1:5300", flag="--page", metavar="HOST:PORT")
    config: Path | None = option("Entities of the primary, as for serve.")
    queues: int = option("Backlog queues.", BACKLOG_QUEUE_COUNT_DEFAULT, minimum=1, maximum=100)
    failover_interval: float = option(
        "How long sends must fail before they go to the backlog.",
        FAILOVER_INTERVAL_DEFAULT.total_seconds(),
        minimum=0,
        maximum=3600,
        metavar="SECONDS",
    )
    restart_after: float = option(
        "Seconds before a namespace that stopped is started again.",
        15.0,
        minimum=0,
        maximum=3600,
        metavar="SECONDS",
    )
    store: str | None = option(
        "postgresql://host/database that keeps both namespaces, instead of files.  [env: PAIRBUS_STORE]",
        metavar="URL",
        envvar="PAIRBUS_STORE",
    )
    nodes: int = option(
        "Nodes that serve each namespace, with a database as the store.", 1, minimum=1, maximum=5
    )
    primary_aliases: tuple[str, ...] = option(
        "Another address of the primary: where it ran before, if --data does not know that. It is remembered there.",
        (),
        flag="--primary-alias",
        metavar="HOST[:PORT]",
    )
    faults: bool = option("Offer the fault switchboard.", True, flag="--faults/--no-faults")
    audit: bool = option("Write the audit logs of messages, the input of reconcile.", False)


@dataclass(frozen=True, kw_only=True)
class UpOptions(UpSettings):
    """The settings, checked, and the directory where everything of the pair is kept."""

    data: Path

    def __post_init__(self) -> None:
        check_namespace(self.primary, "--primary")
        check_namespace(self.secondary, "--secondary")
        if self.primary.lower() == self.secondary.lower():
            raise UsageError(f"both namespaces are called {self.primary!r}: a pair needs two names")
        if self.store is not None and not is_database(self.store):
            raise UsageError("--store must name a database, such as postgresql://pairbus@localhost/pairbus")
        if self.nodes > 1 and self.store is None:
            raise UsageError(
                f"--nodes {self.nodes}: several nodes need a database that they share; add --store postgresql://host/database"
            )
        if not is_loopback_only(parse_address(self.page_address, "--page")[0]):
            raise UsageError(
                f"--page {self.page_address} can be reached from other machines, and the pair's page speaks plain text: "
                "use 127.0.0.1, or `pairbus serve` with TLS on each machine"
            )
