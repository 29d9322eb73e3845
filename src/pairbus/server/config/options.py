"""Options of one server: frozen, checked, and made from the command line, the environment and a file here alone."""

from __future__ import annotations

import math
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pairbus.errors import UsageError
from pairbus.model.flags import option
from pairbus.server.config.addresses import format_address, is_wildcard, parse_address
from pairbus.server.config.declarations import Declarations, is_tls_name, read_declarations
from pairbus.server.logs.message_audit import RETENTION_DAYS as AUDIT_RETENTION_DAYS
from pairbus.server.logs.usage import RETENTION_DAYS
from pairbus.server.sockets.registry import Limits
from pairbus.storage.postgres.opening import is_database

NAMESPACE_DEFAULT: Final = "local"
AMQP_ADDRESS_DEFAULT: Final = "127.0.0.1:5672"
HTTP_ADDRESS_DEFAULT: Final = "127.0.0.1:5300"
HTTP_OFF: Final = "off"
MEMORY: Final = "memory:"
"""The store's URL that keeps nothing beyond the process, for tests."""
CONFIG_BYTES_MAX: Final = 16 * 1024 * 1024
SECRET_BYTES_MAX: Final = 4096
LEASE_SECONDS_DEFAULT: Final = 3.0
"""With time to spare shorter than the failover interval of paired clients: a takeover is no outage."""
STORE_MB_MIN: Final = 64
"""Twice what the store keeps for settlements."""
LEASE_SECONDS_MIN: Final = 0.5
LEASE_SECONDS_MAX: Final = 300.0
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")


def check_namespace(name: str, option: str) -> None:
    """Raise UsageError, which names the option, unless a namespace may have this name."""
    if not _NAMESPACE.fullmatch(name):
        raise UsageError(
            f"{option} {name!r}: a namespace has 1 to 50 letters, digits and hyphens, none of them a hyphen at an end"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """One node's part in a cluster that serves a namespace from one database.

    Args:
        node: The name of this node: the same after a restart, and no other node has it.
        advertise: Where the other nodes reach this one; port 0: the port of ``amqp``. None: the address of ``amqp``.
        lease_ms: For how long the owner may write after each renewal. A namespace whose owner died is served again after about so long.
        store_bytes_max: How much of the database the namespace may use; None: as much as there is.
    """

    node: str
    advertise: tuple[str, int] | None = None
    lease_ms: int = int(LEASE_SECONDS_DEFAULT * 1000)
    store_bytes_max: int | None = None

    def __post_init__(self) -> None:
        if not _NODE.fullmatch(self.node):
            raise UsageError(
                f"--node {self.node!r}: a node's name has 1 to 63 letters, digits, dots, hyphens and underscores"
            )
        if not LEASE_SECONDS_MIN * 1000 <= self.lease_ms <= LEASE_SECONDS_MAX * 1000:
            raise UsageError(
                f"--lease {self.lease_ms / 1000:g}: a lease lasts {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g} seconds"
            )
        if self.store_bytes_max is not None and self.store_bytes_max < STORE_MB_MIN << 20:
            raise UsageError(
                f"--store-max-mb {self.store_bytes_max >> 20}: a namespace needs {STORE_MB_MIN} MB or more, of which a part is kept for "
                "settlements"
            )

    def address(self, taken: tuple[str, int]) -> str:
        """The address that other nodes relay to, of a node that listens on ``taken``. Port 0 means the port that was taken."""
        host, port = self.advertise if self.advertise is not None else taken
        if is_wildcard(host):
            raise UsageError(
                f"--advertise is missing: this node listens on {format_address(*taken)}, and the other nodes need an address of it that they "
                "can reach, such as --advertise node-1.example.com:5671"
            )
        return format_address(host, port or taken[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one namespace is served.

    Args:
        data: Directory for the store, certificates and logs of this namespace.
        amqp: Host and port that understand everything; port 0 takes a free one.
        http: Host and port for HTTP(S) and WebSocket alone; None for no such address.
        store: URL of the store; None for the embedded one in ``data``, ``postgresql://…`` for a database, ``memory:`` for tests.
        tls: Serve TLS; without it only this machine is served.
        tls_cert: A certificate chain of one's own instead of the broker's; goes with ``tls_key``.
        tls_names: Further names for the broker's own certificate.
        faults: Offer the fault switchboard.
        audit: Write the audit log of messages.
        usage_days: How many days of usage files are kept.
        audit_days: How many days of the message audit are kept.
    """

    namespace: str = NAMESPACE_DEFAULT
    data: Path
    amqp: tuple[str, int] = ("127.0.0.1", 5672)
    http: tuple[str, int] | None = ("127.0.0.1", 5300)
    store: str | None = None
    tls: bool = True
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_names: tuple[str, ...] = ()
    ready_file: Path | None = None
    faults: bool = False
    audit: bool = False
    usage_days: int = RETENTION_DAYS
    audit_days: int = AUDIT_RETENTION_DAYS
    declarations: Declarations = field(default_factory=Declarations)
    limits: Limits = field(default_factory=Limits)
    cluster: ClusterOptions | None = None
    """With a database as the store; None otherwise."""

    def __post_init__(self) -> None:
        check_namespace(self.namespace, "--namespace")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key go together: give both or neither")
        if self.audit and self.store == MEMORY:
            raise UsageError(
                f"--audit and --store {MEMORY} exclude each other: the audit log needs a store that lasts"
            )
        if self.ready_file is not None and not self.ready_file.parent.is_dir():
            raise UsageError(
                f"--ready-file {self.ready_file}: the directory {self.ready_file.parent} does not exist; make it first"
            )
        if self.ready_file is not None and self.ready_file.is_dir():
            raise UsageError(f"--ready-file {self.ready_file} is a directory; name a file in it")
        for name in self.tls_names:
            if not is_tls_name(name):
                raise UsageError(f"--tls-name {name!r} is neither a host name nor an IP address")
        if self.usage_days < 1:
            raise UsageError(f"--usage-days {self.usage_days}: at least one day of usage files is kept")
        if self.audit_days < 1:
            raise UsageError(f"--audit-days {self.audit_days}: at least one day of the message audit is kept")
        if not self.tls and self.tls_cert is not None:
            raise UsageError("--no-tls and --tls-cert exclude each other")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What a person sets; the options of ``pairbus serve``. ``make_options`` checks and completes it."""

    namespace: str | None = option(
        "Name of the namespace.  [default: the configuration's, or local]", metavar="NAME"
    )
    data: str | None = option(
        "Directory for the namespace's files.  [default: the user's data directory]", metavar="DIR"
    )
    amqp: str = option(
        "Address for AMQP, TLS, HTTP and WebSocket. Port 0 chooses a free port.",
        AMQP_ADDRESS_DEFAULT,
        metavar="HOST:PORT",
    )
    http: str = option(
        "A second address, for HTTP(S) and WebSocket only; 'off' for none.",
        HTTP_ADDRESS_DEFAULT,
        metavar="HOST:PORT",
    )
    store: str | None = option(
        "postgresql://host[,host]/database to share the namespace with other nodes; 'memory:', with the colon, to keep nothing.  "
        "[default: files in the data directory; env: PAIRBUS_STORE]",
        metavar="URL",
        envvar="PAIRBUS_STORE",
    )
    node: str | None = option(
        "Name of this node, with a database as the store.  [default: the host's name]", metavar="NAME"
    )
    advertise: str | None = option(
        "Address at which the other nodes reach this one.  [default: --amqp]", metavar="HOST:PORT"
    )
    lease: float | None = option(
        "Seconds that the owner of the namespace may serve without hearing from the database; another node takes over after about "
        "so long.  [default: 3]",
        metavar="SECONDS",
    )
    store_max_mb: int | None = option(
        "Megabytes of the database that the namespace may use; then sends are refused until messages were taken. The same on every "
        "node.  [default: no limit]",
        metavar="MB",
        minimum=STORE_MB_MIN,
    )
    tls_cert: str | None = option("Certificate chain (PEM) instead of the broker's own.", metavar="FILE")
    tls_key: str | None = option("Its private key (PEM).", metavar="FILE")
    tls_names: tuple[str, ...] = option(
        "Another name for the broker's own certificate.", (), flag="--tls-name", metavar="NAME"
    )
    tls: bool = option("Without TLS the broker serves only this machine.", True, flag="--tls/--no-tls")
    config: str | None = option(
        "Entities, access rules and quotas (JSON; the emulator's format works).", metavar="FILE"
    )
    ready_file: str | None = option(
        "File to write when the broker is ready: one JSON object with addresses and keys.", metavar="FILE"
    )
    faults: bool = option("Offer the fault switchboard at /$faults.", False)
    audit: bool = option("Write the audit log of messages, the input of reconcile.", False)
    usage_days: int = option("How many days of usage files are kept.", RETENTION_DAYS, minimum=1)
    audit_days: int = option(
        "How many days of the audit log of messages are kept.", AUDIT_RETENTION_DAYS, minimum=1
    )
    connections_max: int | None = option("Connections served at once.  [default: 10000]", minimum=1)


_SAME: Final = ("store", "tls", "tls_cert", "tls_key", "faults", "audit", "usage_days", "audit_days")
"""Fields that ``Options`` takes over as they are."""


def make_options(given: ServeSettings, environment: Mapping[str, str]) -> Options:
    """Complete the settings from the configuration file; a setting that was given wins over the file. Raises UsageError."""
    declarations = (
        load_declarations(given.config, environment) if given.config is not None else Declarations()
    )
    named = given.namespace if given.namespace is not None else declarations.namespace
    name = named if named is not None else NAMESPACE_DEFAULT
    quotas = declarations.quotas
    limits = Limits()
    if connections := given.connections_max or quotas.get("MaxConnections"):
        limits = replace(limits, connections_max=connections)
    if "MaxHttpBodyBytes" in quotas:
        limits = replace(limits, http_body_bytes_max=quotas["MaxHttpBodyBytes"])
    same: dict[str, Any] = {one: getattr(given, one) for one in _SAME}
    return Options(
        namespace=name,
        data=Path(given.data) if given.data is not None else default_data_directory(environment) / name,
        amqp=parse_address(given.amqp, "--amqp"),
        http=None if given.http == HTTP_OFF else parse_address(given.http, "--http"),
        tls_names=(*given.tls_names, *declarations.tls_names),
        ready_file=Path(given.ready_file) if given.ready_file is not None else None,
        declarations=declarations,
        limits=limits,
        cluster=_cluster_options(given),
        **same,
    )


def unknown_store(store: str) -> UsageError:
    """What is said of a ``--store`` of no known kind. Only its scheme is shown: the rest of a URL may hold a password."""
    return UsageError(
        f"--store {store.partition(':')[0][:20]}:… is not known: give postgresql://user@host/database or {MEMORY}, or leave it out for "
        "files in the data directory"
    )


def _cluster_options(given: ServeSettings) -> ClusterOptions | None:
    """This node's part, if the store is a database. Raises UsageError."""
    if given.store is None or not is_database(given.store):
        for name, value in (
            ("--node", given.node),
            ("--advertise", given.advertise),
            ("--lease", given.lease),
            ("--store-max-mb", given.store_max_mb),
        ):
            if value is not None:
                if given.store is not None and given.store != MEMORY:
                    raise unknown_store(given.store)
                raise UsageError(
                    f"{name} is for a namespace in a database: add --store postgresql://host/database, or leave {name} out"
                )
        return None
    advertise = parse_address(given.advertise, "--advertise") if given.advertise is not None else None
    if advertise is not None and is_wildcard(advertise[0]):
        raise UsageError(
            f"--advertise {given.advertise}: the other nodes cannot connect to this; name a host or an address of this machine"
        )
    if advertise is not None and not _HOST.fullmatch(advertise[0]):
        raise UsageError(
            f"--advertise {given.advertise!r}: {advertise[0]!r} is neither a host name nor an address"
        )
    lease = LEASE_SECONDS_DEFAULT if given.lease is None else given.lease
    if not math.isfinite(lease):
        raise UsageError(
            f"--lease {lease}: a lease lasts {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g} seconds"
        )
    return ClusterOptions(
        node=given.node if given.node is not None else socket.gethostname(),
        advertise=advertise,
        lease_ms=round(lease * 1000),
        store_bytes_max=None if given.store_max_mb is None else given.store_max_mb << 20,
    )


def load_declarations(file: str, environment: Mapping[str, str]) -> Declarations:
    """Read a configuration file. Key files are looked for beside it. Raises UsageError naming file, key and line."""
    path = Path(file)
    text = _read(path, CONFIG_BYTES_MAX, "--config")

    def read_secret(form: str, name: str) -> str:
        if form == "Env":
            if not environment.get(name):
                raise UsageError(f"the environment variable {name} is not set")
            return environment[name]
        secret = _read(path.parent / name, SECRET_BYTES_MAX, "the key file").strip()
        if not secret:
            raise UsageError(f"the key file {name} is empty")
        return secret

    try:
        return replace(read_declarations(text, read_secret), file=str(file))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error


def default_data_directory(environment: Mapping[str, str]) -> Path:
    """Where this user's programs keep their data."""
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "pairbus"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pairbus"
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pairbus"


def _read(path: Path, bytes_max: int, what: str) -> str:
    try:
        # A pipe or a device has no size to ask for beforehand.
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
        if len(content) > bytes_max:
            raise UsageError(f"{what} {path} is larger than {bytes_max} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
