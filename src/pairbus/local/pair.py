"""Runs a pair on this machine: two namespaces in processes of their own, the syphon here, and one page for both.

The page is passed in (`PageFactory`): this room is below `web`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from pairbus.errors import BrokerNotReady
from pairbus.local.hosts import ProcessHost, Setup
from pairbus.local.options import UpOptions
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.journal import ENVIRONMENT
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.sdk.connection_string import merge_connection_strings
from pairbus.server.config.addresses import format_address, parse_address
from pairbus.server.ready import ReadyInfo

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LOG_BYTES_MAX: Final = 10_000_000
"""A broker's log that is larger when the pair starts becomes ``.1``."""
ADDRESSES_MAX: Final = 20
"""Addresses of earlier runs that are remembered."""
LEFTOVER_SECONDS: Final = 10.0
WATCH_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 6.0
_TAKEN: Final = "another program listens there"
DATA: Final = "data"
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"

Report = Callable[[str], None]
"""Shows one line to a person."""


class PairPage(Protocol):
    """The HTTP server of the pair's page."""

    async def start(self, host: str, port: int) -> int: ...

    async def stop(self) -> None: ...


PageFactory = Callable[[PairedServiceBusClient, Path, "Sequence[Member]"], PairPage]
"""Makes the page of a paired client, its event journal and both namespaces, which are ready."""


@dataclass(frozen=True, kw_only=True)
class UpInfo:
    primary: str
    """A connection string."""
    secondary: str
    page: str
    journal: str
    data: str
    primary_data: str
    """What ``pairbus cost report`` and ``pairbus reconcile`` read."""
    secondary_data: str
    primary_ca_file: str | None
    """The certificate authority of the primary, for clients that use TLS."""
    secondary_ca_file: str | None
    audit: bool
    pids: dict[str, int]
    """Of the processes, by role: ``primary``, ``secondary``; further nodes as ``primary-2``."""


class Member:
    """One namespace of the pair and the process it lives in."""

    def __init__(
        self,
        role: str,
        name: str,
        *,
        address: str,
        work: Path,
        config: str = "{}",
        faults: bool = False,
        audit: bool = False,
        store: str | None = None,
        number: int = 1,
        nodes: int = 1,
    ) -> None:
        """``work`` is a directory of its own, ``config`` the text of a configuration file; ``number`` says which of so many nodes it is."""
        self.role = role
        self.name = name
        self.number = number
        self._is_alone = nodes == 1
        self.host = ProcessHost()
        self.ready: ReadyInfo | None = None
        self.died_at: float | None = None
        self._addresses = work / "addresses"
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        config_file = work / "config.json"
        config_file.write_text(_named(config, name))
        self._setup = Setup(
            namespace=name,
            data=work / DATA,
            work=work,
            config=config_file,
            amqp=address,
            http="127.0.0.1:0",
            faults=faults,
            audit=audit,
            store=store,
            node=None if store is None else _node_name(work),
        )

    @property
    def title(self) -> str:
        """Its name in messages to people."""
        named = f"the {self.role}" if self.name.lower() == self.role else f"the {self.role} {self.name}"
        return named if self._is_alone else f"node {self.number} of {named}"

    @property
    def data(self) -> Path:
        return self._setup.data

    def start(self) -> ReadyInfo:
        """Start or restart it where its clients left it."""
        end_leftover(self._setup.work / "ready.json", self._setup.data)
        log = self._setup.work / "broker.log"
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_name("broker.log.1"))
        if self.ready is not None:
            self._setup = Setup(**{**asdict(self._setup), "amqp": self.ready.amqp, "http": self.ready.http})
        self.ready = self._start_where_it_was() or self._start_at(self._setup)
        self.died_at = None
        self._remember(self.ready.amqp)
        return self.ready

    def _start_where_it_was(self) -> ReadyInfo | None:
        """With port 0, the port of the last time if it is free: connection strings and backlog queues name it."""
        host, port = parse_address(self._setup.amqp, f"--{self.role}-address")
        last = self.addresses()[-1:]
        if port or not last or parse_address(last[0], "the last address")[0] != host:
            return None
        try:
            return self._start_at(Setup(**{**asdict(self._setup), "amqp": last[0]}))
        except BrokerNotReady:
            return None  # another program listens there now, or it does not start at all, which the next attempt reports

    def _start_at(self, setup: Setup) -> ReadyInfo:
        try:
            return self.host.start(setup)
        except BrokerNotReady as error:
            raise BrokerNotReady(self._reason(str(error))) from error

    def addresses(self) -> list[str]:
        """Where the broker of this data has served, oldest first: all of them are addresses of one broker."""
        try:
            return self._addresses.read_text().split()
        except FileNotFoundError:
            return []

    def _remember(self, address: str) -> None:
        known = [one for one in self.addresses() if one != address]
        self._addresses.write_text("".join(f"{one}\n" for one in [*known, address][-ADDRESSES_MAX:]))

    def _reason(self, error: str) -> str:
        """The broker's own last line, which says what to do, in the words of ``up``'s options."""
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        own = [line.removeprefix("pairbus: ") for line in lines if line.startswith("pairbus: ")]
        reason = own[-1] if own else " ".join(lines)
        if _TAKEN in reason:
            return f"--{self.role}-address {self._setup.amqp}: {_TAKEN}; choose another address, or port 0"
        return f"{self.title} did not start: {reason}"

    def has_died(self) -> int | None:
        """The exit code of a process that ended by itself, the first time this is asked; else None."""
        if self.died_at is not None:
            return None
        with suppress(subprocess.TimeoutExpired):
            code = self.host.wait_ended(0)
            self.died_at = time.monotonic()
            return code
        return None


def _node_name(work: Path) -> str:
    """A name that the node has after each restart, and that no other pair has, on this machine or another."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40].strip("-.") or "local"
    return f"{host}-{hashlib.sha256(str(work).encode()).hexdigest()[:6]}"


def _named(config: str, name: str) -> str:
    """A configuration whose namespace is called by this name."""
    try:
        content = json.loads(config)
        if content:
            content["UserConfig"]["Namespaces"][0]["Name"] = name
    except (ValueError, KeyError, IndexError, TypeError):
        return config  # the broker says better what is wrong with it
    return json.dumps(content)


def end_leftover(ready_file: Path, data: Path) -> None:
    """A broker that outlived its ``up`` (which was killed) still holds the data: end it first."""
    try:
        pid = int(json.loads(ready_file.read_text())["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError, TypeError):
        return
    if str(data).encode() not in command or b"serve" not in command:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + LEFTOVER_SECONDS
        while time.monotonic() < until and Path(f"/proc/{pid}").exists():
            time.sleep(0.05)


def take_data(data: Path) -> IO[str]:
    """Hold the pair's directory: what another ``up`` runs there is no leftover. Raises BrokerNotReady."""
    file = (data / "up.lock").open("a+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read(20).strip() or "unknown"
        file.close()
        raise BrokerNotReady(
            f"another `pairbus up` runs with {data} (process {holder}): stop that one, or give --data another directory, "
            "and other addresses"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class RunningPair:
    """The pair, from start to stop. ``report`` gets lines that a person should read."""

    def __init__(self, options: UpOptions, report: Report, make_page: PageFactory) -> None:
        self._options = options
        self._make_page = make_page
        self._report = report
        self._stack = AsyncExitStack()
        self._members: list[Member] = []
        self.info: UpInfo | None = None
        self.client: PairedServiceBusClient | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        options = self._options
        options.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stack.callback(take_data(options.data).close)
        journal = options.data / "journal"
        os.environ[ENVIRONMENT] = str(journal)
        for role, name, address in (
            (PRIMARY, options.primary, options.primary_address),
            (SECONDARY, options.secondary, options.secondary_address),
        ):
            for number in range(1, options.nodes + 1):
                await self._start_member(role, name, address, number)
        (primary, first), (secondary, second) = self._side(PRIMARY), self._side(SECONDARY)
        self.client = client = await asyncio.to_thread(self._pair, primary, secondary)
        self._stack.push_async_callback(asyncio.to_thread, client.close, CLOSE_SECONDS)
        page = self._make_page(client, journal, self._members)
        self._stack.push_async_callback(page.stop)
        host, port = parse_address(options.page_address, "--page")
        try:
            port = await page.start(host, port)
        except OSError as error:
            reason = _TAKEN if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
            raise BrokerNotReady(
                f"--page {options.page_address}: {reason}; choose another address, or port 0"
            ) from error
        self.info = UpInfo(
            primary=primary,
            secondary=secondary,
            page=f"http://{format_address(host, port)}/",
            journal=str(journal),
            data=str(options.data),
            primary_data=str(options.data / PRIMARY / DATA),
            secondary_data=str(options.data / SECONDARY / DATA),
            primary_ca_file=first.ca_file,
            secondary_ca_file=second.ca_file,
            audit=options.audit,
            pids={
                member.role if member.number == 1 else f"{member.role}-{member.number}": member.host.pid
                for member in self._members
            },
        )

    async def _start_member(self, role: str, name: str, address: str, number: int) -> None:
        options = self._options
        config = options.config if role == PRIMARY else None
        host, _ = parse_address(address, f"--{role}-address")
        member = Member(
            role,
            name,
            address=address if number == 1 else format_address(host, 0),
            work=options.data / (role if number == 1 else f"{role}-{number}"),
            config="{}" if config is None else config.read_text(),
            faults=options.faults,
            audit=options.audit,
            store=options.store,
            number=number,
            nodes=options.nodes,
        )
        self._members.append(member)
        self._stack.push_async_callback(asyncio.to_thread, member.host.stop)
        await asyncio.to_thread(member.start)

    def _side(self, role: str) -> tuple[str, ReadyInfo]:
        """The connection string of one namespace, which lists its nodes, and what its first node says."""
        ready = [member.ready for member in self._members if member.role == role and member.ready is not None]
        return merge_connection_strings([one.connection_string for one in ready], role), ready[0]

    def _pair(self, primary: str, secondary: str) -> PairedServiceBusClient:
        options = SendAvailabilityOptions(
            backlog_queue_count=self._options.queues,
            failover_interval=timedelta(seconds=self._options.failover_interval),
            ping_primary_interval=timedelta(seconds=5),
            enable_syphon=True,
            while_suspect="wait",
        )
        details: dict[str, Any] = {"retry_total": 0}
        client = PairedServiceBusClient.from_connection_strings(
            primary,
            secondary,
            options=options,
            primary_aliases=self._aliases(),
            **details,
        )
        client.ledger = self._options.data / "syphon"
        client.pair()
        return client

    def _aliases(self) -> list[str]:
        """Where the primary has served: backlog queues name one of these addresses, also in a database that other files served before."""
        file = self._options.data / "aliases"
        kept = file.read_text().split() if file.exists() else []
        given = list(dict.fromkeys([*kept, *self._options.primary_aliases]))
        if given != kept:
            file.write_text("".join(f"{one}\n" for one in given))
        mine = [member for member in self._members if member.role == PRIMARY]
        return [*given, *(address for member in mine for address in member.addresses())]

    async def watch(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set, start a namespace that died again, after ``restart_after`` seconds."""
        while not stop.is_set():
            for member in self._members:
                code = await asyncio.to_thread(member.has_died)
                if code is not None:
                    self._report(
                        f"{member.title} ended ({_ending(code)}); "
                        f"it is started again in {self._options.restart_after:g} s"
                    )
                elif (
                    member.died_at is not None
                    and time.monotonic() >= member.died_at + self._options.restart_after
                ):
                    await self._restart(member)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), WATCH_SECONDS)

    async def _restart(self, member: Member) -> None:
        try:
            await asyncio.to_thread(member.start)
            self._report(f"{member.title} serves again")
        except BrokerNotReady as error:
            member.died_at = time.monotonic()
            self._report(f"{error}; it is tried again in {self._options.restart_after:g} s")


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
