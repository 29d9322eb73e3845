"""Puts store, engine and gateway together: recovery, the root key, declared entities."""

from __future__ import annotations

import base64
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.engine.routing import HOPS_MAX
from pairbus.errors import InvalidEntity, Refusal, StoreCorrupt, StoreUnavailable, UsageError
from pairbus.gateway.broker import DELETE_IDLE, Broker
from pairbus.gateway.telemetry.audit_rows import AuditRows
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule, key_bytes
from pairbus.server.clock import BrokerClock, utc
from pairbus.server.config.forwarding import forwarding_loops
from pairbus.server.config.options import MEMORY, unknown_store
from pairbus.server.logs.audit import AuditLog
from pairbus.server.logs.audit_pauses import keep_number, known_of, note_audit, note_no_audit
from pairbus.server.logs.audit_reserve import give_back
from pairbus.server.logs.message_audit import AuditedStore, MessageAudit
from pairbus.server.logs.usage import UsageWriter
from pairbus.server.ready import READY_FILE
from pairbus.server.room import check_room, no_room
from pairbus.storage.identity import LOCK_FILE
from pairbus.storage.log.store import LogStore
from pairbus.storage.memory import MemoryStore
from pairbus.storage.table.store import RESERVE_BYTES, TableStore
from pairbus.storage.tools.inspect import holds_data

if TYPE_CHECKING:
    from pathlib import Path

    from pairbus.engine.namespace import Namespace
    from pairbus.engine.records import Record
    from pairbus.gateway.telemetry.meter import Meter
    from pairbus.server.cluster.ownership.building import AssembleShard
    from pairbus.server.config.declarations import AccessRuleDeclaration, Declarations, EntityDeclaration
    from pairbus.server.config.options import Options
    from pairbus.server.ports import BrokerPort
    from pairbus.server.server import Assemble
    from pairbus.storage.ports import Store
    from pairbus.storage.table.ports import Acquired, LastFrame, ShardTable

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 32
BROKER_RANDOM_BYTES: Final = 32
STORE_DIRECTORY: Final = "store"
MOVED_DIRECTORY: Final = f"{STORE_DIRECTORY}.moved"
"""What is left of a log whose namespace was moved to a database."""
MOVED_TO_FILE: Final = "moved-to"
"""Names that database, in MOVED_DIRECTORY."""
MOVING_TO_FILE: Final = "moving-to"
"""In MOVED_DIRECTORY: the move is not finished, and the copy in the database does not count yet."""
IMPORTING_DIRECTORY: Final = f"{STORE_DIRECTORY}.importing"
"""What an import is making, or one that was killed has left."""
MOVING_DIRECTORY: Final = f"{STORE_DIRECTORY}.moving"
"""A copy of a namespace that is moved out of a database."""
MOVING_FROM_FILE: Final = "moving-from"
"""In MOVING_DIRECTORY: the copy is whole. It does not count before the database says that the namespace was moved."""
AUDIT_DIRECTORY: Final = "audit"
MESSAGE_AUDIT_DIRECTORY: Final = "messages-audit"
USAGE_DIRECTORY: Final = "usage"
BOOT_ID_BYTES: Final = 8
UNDECLARED_NAMED_MAX: Final = 10
LOOPS_NAMED_MAX: Final = 10
REFUSED_CHARACTERS_MAX: Final = 256
"""Of a path or a key's name that a refused client sent, in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A broker ready to be driven, and the store behind it."""

    broker: BrokerPort
    store: Store
    root_key: str = field(repr=False)
    records_replayed: int = 0
    audit: AuditLog | None = None
    message_audit: MessageAudit | None = None
    """With ``--audit``; ``store`` then writes it."""
    meter: Meter | None = None
    usage_writer: UsageWriter | None = None
    """None: what is counted is not kept."""
    last_frame: Callable[[], LastFrame] | None = None
    """Tells the last frame of a shard's log that is durable; may be called by any thread. None: the store is not a shard's."""
    declare_rest: Callable[[int], bool] | None = None
    """Makes the declared entities that the disk had no room for at the start; True: they are there. None: there are none."""

    def close(self) -> None:
        """Release files and the lock on the data."""
        if self.audit is not None:
            self.audit.close()
        self.store.close()


def assemble(options: Options, now: int, store: Store | None = None) -> Assembly:
    """Open the store, recover what it holds, make what is declared and missing. Nothing is durable before the first
    commit, but for the number of an audit log that is ahead of the store. Raises StorageError or UsageError; then nothing is left open.

    On a full disk entities that are declared and missing wait for room: what is there must be receivable (B12). A new namespace
    has nothing to receive, and is refused there.

    ``store``: one that was opened already, such as the log of a shard that this node has acquired.
    """
    is_own = store is None and options.store is None
    store = open_store(options) if store is None else store
    audit: AuditLog | None = None
    messages: MessageAudit | None = None
    try:
        audit = AuditLog(_directory(options.data, AUDIT_DIRECTORY)) if options.store != MEMORY else None
        broker = Broker(
            options.namespace,
            store,
            secrets.token_bytes(BROKER_RANDOM_BYTES),
            _tell_actions(audit),
            _tell_refusals(audit),
        )
        broker.offers_faults = options.faults
        replayed = recover(broker.namespace, store, now=now)
        is_alone = options.cluster is None
        boot_id = f"{utc(now):%Y%m%dT%H%M%S}-{secrets.token_hex(BOOT_ID_BYTES)}"
        audit_rows = AuditRows() if options.audit else None
        kept: Store = store
        if audit_rows is not None:
            directory = _directory(options.data, MESSAGE_AUDIT_DIRECTORY)
            messages = MessageAudit(
                directory,
                options.namespace,
                known_of(broker.namespace, is_alone=is_alone),
                boot_id,
                BrokerClock(),
                retention_days=options.audit_days,
                message_count=broker.namespace.message_count,
            )
            keep_number(broker.namespace, store, messages.number)
            kept = AuditedStore(store, audit_rows, messages, messages.number)
        broker.serve(audit_rows, kept)
        broker.namespace.context.read_ahead = kept.read_ahead
        if options.cluster is not None and options.cluster.store_bytes_max is not None:
            broker.namespace.context.room_limit = partial(_room_limit, kept, options.cluster.store_bytes_max)
        root_key = declare_access_rules(broker.namespace, options.declarations, now)
        if audit_rows is not None:
            note_audit(broker.namespace, audit_rows, now)
        elif options.store != MEMORY:
            give_back(options.data / MESSAGE_AUDIT_DIRECTORY)
            directory = options.data / MESSAGE_AUDIT_DIRECTORY
            note_no_audit(broker.namespace, store, directory, boot_id, now, is_alone=is_alone)
        is_declared = declare_entities(broker.namespace, options.declarations, now)
        if is_own and not replayed and not is_declared:
            # Free space said otherwise, as it does where a quota limits it.
            raise no_room(options.data, None, _size_of(options.declarations.entities), options.audit)
    except BaseException:
        if messages is not None:
            messages.stop()
        if audit is not None:
            audit.close()
        store.close()
        raise
    usage: UsageWriter | None = None
    if options.store != MEMORY:
        usage = UsageWriter(options.data / USAGE_DIRECTORY, options.namespace, boot_id, options.usage_days)
    return Assembly(
        broker=broker,
        store=kept,
        root_key=root_key,
        records_replayed=replayed,
        audit=audit,
        message_audit=messages,
        meter=broker.meter,
        usage_writer=usage,
        declare_rest=(
            None
            if is_declared
            else lambda now: declare_entities(broker.namespace, options.declarations, now, is_quiet=True)
        ),
    )


def _directory(data: Path, name: str) -> Path:
    path = data / name
    if path.exists() and not path.is_dir():
        raise UsageError(
            f"{path} is a file, and the broker keeps a directory of this name: move the file away"
        )
    return path


def _room_limit(store: Store, bytes_max: int) -> str:
    """The limit by which something was refused; empty: the database, or the disk of the audit, is full."""
    return "" if store.statistics().is_full else f"--store-max-mb {bytes_max >> 20}"


def assemble_shard(
    database: ShardTable,
    wrap: Callable[[Assemble], Assemble] | None = None,
) -> AssembleShard:
    """An assembler for a node of a cluster: over the log of a shard that was just acquired. ``wrap``: see ``web.page.Page.assembling``."""

    def assembled(options: Options, now: int, acquired: Acquired, may_retry: Callable[[], bool]) -> Assembly:
        cluster = options.cluster
        store = open_table_store(
            database,
            acquired,
            may_retry,
            options.namespace,
            bytes_max=cluster.store_bytes_max if cluster is not None else None,
        )

        def over_store(options: Options, now: int) -> Assembly:
            return assemble(options, now, store)

        assembly = (over_store if wrap is None else wrap(over_store))(options, now)
        return replace(assembly, last_frame=lambda: store.last)

    return assembled


def _tell_actions(audit: AuditLog | None) -> Callable[[str, str, str, str, str], None]:
    """Where an action is recorded: the audit log, if there is one; what nobody asked for is in the log too."""

    def tell(action: str, path: str, who: str, result: str, peer: str) -> None:
        if audit is not None:
            audit.write(action, path, who, result, peer)
        if action.startswith(DELETE_IDLE):
            logger.info(
                "an entity was deleted with what it held: nobody had used it for as long as its AutoDeleteOnIdle says",
                extra={"event": "entity.idle_deleted", "path": path, "kind": action[len(DELETE_IDLE) + 1 :]},
            )

    return tell


def _tell_refusals(audit: AuditLog | None) -> Callable[[str, str, str, str, str], None]:
    """Where a refused key, token or request is recorded: the audit log, if there is one, and the log. No secret reaches either."""

    def tell(action: str, path: str, who: str, result: str, peer: str) -> None:
        if audit is not None:
            audit.write_refusal(action, path, who, result, peer)
        if not who:
            return  # no key was shown: a probe of the address, not a client with the wrong key
        logger.warning(
            "a client was refused",
            extra={
                "event": "access.refused",
                "action": action,
                "path": path[:REFUSED_CHARACTERS_MAX],
                "key_name": who[:REFUSED_CHARACTERS_MAX],
                "result": result,
                "peer": peer,
            },
        )

    return tell


def open_store(options: Options) -> Store:
    """The store that the options name. Raises UsageError, StoreUnavailable or StoreCorrupt."""
    if options.store is None:
        _refuse_a_store_that_is_gone(options.data)
        if not holds_data(options.data / STORE_DIRECTORY):
            check_room(options.data, _size_of(options.declarations.entities), options.audit)
        return LogStore.open(options.data / STORE_DIRECTORY, namespace=options.namespace)
    if options.store == MEMORY:
        return MemoryStore()
    raise unknown_store(options.store)


def open_table_store(
    table: ShardTable,
    acquired: Acquired,
    may_retry: Callable[[], bool],
    name: str,
    *,
    reserve_bytes: int = RESERVE_BYTES,
    bytes_max: int | None = None,
) -> TableStore:
    """The store of a shard that this node has acquired; ``may_retry`` tells whether the lease still holds."""
    return TableStore(
        table.writer(),
        table.reader(),
        epoch=acquired.epoch,
        fence=acquired.fence,
        may_retry=may_retry,
        reserve_bytes=reserve_bytes,
        bytes_max=bytes_max,
        name=name,
    )


def refuse_moved(data: Path) -> None:
    """Raises StoreUnavailable if the namespace of a data directory was moved to a database, or a move or an import is not finished."""
    aside = data / MOVED_DIRECTORY
    if not holds_data(data / STORE_DIRECTORY):
        _refuse_unfinished(data)
    if not aside.is_dir() or (data / STORE_DIRECTORY).is_dir():
        return
    if (aside / MOVING_TO_FILE).is_file():
        raise StoreUnavailable(
            f"the move of the namespace of {data} into a database is not finished: repeat `pairbus store move --data {data} --to URL`, "
            "which finishes it"
        )
    try:
        target = (aside / MOVED_TO_FILE).read_text(encoding="utf-8").strip()
    except OSError:  # an earlier version moved it
        target = "a database"
    raise StoreUnavailable(
        f"the namespace of {data} was moved to {target}: serve it with --store postgresql://host/database, or move it "
        "back with `pairbus store move`"
    )


def _refuse_unfinished(data: Path) -> None:
    """An empty log that a broker begins now would stand in the way of the one that is brought here."""
    moving, importing = data / MOVING_DIRECTORY, data / IMPORTING_DIRECTORY
    if moving.is_dir():
        # Once the copy is whole the database may say that the namespace is here.
        instead = (
            ""
            if (moving / MOVING_FROM_FILE).is_file()
            else f". To begin with nothing instead, remove {moving}"
        )
        raise StoreUnavailable(
            f"a move of a namespace out of a database into {data} is not finished: repeat `pairbus store move --data {data} --from URL "
            f"--namespace NAME`, which finishes it or begins it again{instead}"
        )
    if importing.is_dir():
        raise StoreUnavailable(
            f"an import into {data} is not finished: repeat `pairbus store import --data {data} EXPORT`, which begins it again. To begin with "
            f"nothing instead, remove {importing}"
        )


def _refuse_a_store_that_is_gone(data: Path) -> None:
    """A broker writes its ready file after its first commit. If that file is there, an empty store has lost everything."""
    directory = data / STORE_DIRECTORY
    refuse_moved(data)
    if (data / READY_FILE).is_file() and not any(
        name != LOCK_FILE for name in (os.listdir(directory) if directory.is_dir() else ())
    ):
        raise StoreCorrupt(
            f"{directory}: all files are missing, and {data / READY_FILE} shows that a namespace was served from here; restore "
            f"the data directory from a copy, or remove {READY_FILE} to begin with nothing"
        )


def recover(
    namespace: Namespace,
    store: Store,
    seen: Callable[[Record], None] | None = None,
    now: int | None = None,
) -> int:
    """Fold every durable record into an empty namespace, then tell the store what still lives. Returns the number of records.

    The one recovery: of a broker that starts, and of the tools that work on its data. ``seen`` is shown each record first.
    ``now``: when the broker begins to serve; None: it does not.
    """
    records = store.replay()
    count = namespace.fold_all(records if seen is None else _shown(records, seen))
    namespace.replayed(now)
    store.live(namespace.live_messages())
    return count


def _shown(records: Iterator[Record], seen: Callable[[Record], None]) -> Iterator[Record]:
    for record in records:
        seen(record)
        yield record


def declare_access_rules(namespace: Namespace, declarations: Declarations, now: int) -> str:
    """Make the access rules that are declared and missing, and the root rule; remove those that an earlier file declared and this one
    does not. Without a file nothing is removed. Returns the root rule's primary key.
    """
    held = {rule.name: rule for rule in namespace.access_rules}
    wanted = {rule.name: rule for rule in declarations.access_rules}
    if ROOT_RULE in wanted:
        wanted[ROOT_RULE] = _with_all_rights(wanted[ROOT_RULE], declarations.file)
    rules = dict(held)
    if declarations.file:
        for name in namespace.declared_rules:
            if name not in wanted:
                if name != ROOT_RULE:
                    rules.pop(name, None)
                _tell_undeclared_rule(name, declarations.file)
    if ROOT_RULE not in held and ROOT_RULE not in wanted:
        rules[ROOT_RULE] = _new_rule(ROOT_RULE, RIGHTS, None, None, now)
    for declared in wanted.values():
        rules[declared.name] = _access_rule(declared, held.get(declared.name), now)
    rules[ROOT_RULE] = _mended_root_rule(rules[ROOT_RULE], now)
    declared_names = tuple(wanted) if declarations.file else namespace.declared_rules
    if rules != held or declared_names != namespace.declared_rules:
        namespace.set_access_rules(tuple(rules.values()), now, declared_names)
    return rules[ROOT_RULE].primary_key


def declare_entities(
    namespace: Namespace, declarations: Declarations, now: int, *, is_quiet: bool = False
) -> bool:
    """Make the entities that are declared and missing; what exists stays as it is.

    All or none of them, for they may forward to each other. False: the disk has no room for them, and nothing has changed; the log
    says so unless ``is_quiet``. Raises UsageError when a declared entity cannot be made.
    """
    missing = [entity for entity in declarations.entities if namespace.find(entity.path) is None]
    if missing and not is_quiet:
        _tell_loops(declarations.entities)
    if missing and not namespace.context.log.has_room(_size_of(missing)):
        if not is_quiet:
            _tell_undeclared(missing)
        return False
    for declared in missing:
        rules = tuple(_access_rule(rule, None, now) for rule in declared.access_rules)
        settings = replace(
            declared.settings, access_rules=rules, forward_to=None, forward_dead_letters_to=None
        )
        try:
            namespace.create(declared.kind, declared.path, settings, now)
        except Refusal as error:
            raise _failed(declarations.file, declared, error) from error
    # Forwarding comes second, so that entities may forward to each other in any order. One commit covers both steps.
    for declared in missing:
        entity = namespace.find(declared.path)
        wanted = declared.settings
        if entity is None or (wanted.forward_to is None and wanted.forward_dead_letters_to is None):
            continue
        settings = replace(
            entity.settings,
            forward_to=wanted.forward_to,
            forward_dead_letters_to=wanted.forward_dead_letters_to,
        )
        try:
            namespace.update(entity, settings, now)
        except Refusal as error:
            raise _failed(declarations.file, declared, error) from error
    return True


def _size_of(entities: Sequence[EntityDeclaration]) -> int:
    """What their records take, twice: what forwards is written a second time."""
    return sum(2 * (len(entity.path) + len(entity.settings.to_json())) for entity in entities)


def _tell_loops(entities: Sequence[EntityDeclaration]) -> None:
    for loop in forwarding_loops(entities)[:LOOPS_NAMED_MAX]:
        logger.warning(
            "entities forward in a circle: every message there is dead-lettered when it has been forwarded "
            "%d times. Change ForwardTo of one of them",
            HOPS_MAX,
            extra={"event": "config.forwarding_loop", "way": " > ".join(loop)},
        )


def _tell_undeclared_rule(name: str, file: str) -> None:
    if name == ROOT_RULE:
        text = (
            "the configuration does not declare the root rule any more: it keeps its keys. Replace them with `pairbus access rotate` "
            "if somebody else knows them"
        )
    else:
        text = "an access rule was removed: the configuration does not declare it any more. Its keys open nothing from now on"
    logger.warning(text, extra={"event": "config.access_rule_removed", "key_name": name, "file": file})


def _tell_undeclared(missing: list[EntityDeclaration]) -> None:
    names = ", ".join(entity.path for entity in missing[:UNDECLARED_NAMED_MAX])
    more = len(missing) - UNDECLARED_NAMED_MAX
    logger.error(
        "the disk has no room for declared entities, which are missing until there is; everything else is served. "
        "Free some space: they are then made without a restart",
        extra={
            "event": "server.undeclared",
            "entities": f"{names} and {more} more" if more > 0 else names,
        },
    )


def _failed(file: str, declared: EntityDeclaration, error: Refusal) -> UsageError:
    """With the file and the place of the property that is refused."""
    place = declared.places.get(error.setting if isinstance(error, InvalidEntity) else "", declared.where)
    return UsageError(f"{file}: {place}: {error.description}" if file else f"{place}: {error.description}")


def _access_rule(declared: AccessRuleDeclaration, held: AccessRule | None, now: int) -> AccessRule:
    if held is None:
        return _new_rule(declared.name, declared.rights, declared.primary_key, declared.secondary_key, now)
    # A key that the file gives wins; one that it does not give stays, so that tokens stay valid over a restart.
    changed = replace(
        held,
        rights=declared.rights,
        primary_key=declared.primary_key or held.primary_key,
        secondary_key=declared.secondary_key or held.secondary_key,
    )
    return held if changed == held else replace(changed, modified_at=now)


def _with_all_rights(declared: AccessRuleDeclaration, file: str) -> AccessRuleDeclaration:
    """The root rule, which has all rights whatever a file declares: a namespace that nobody can manage is lost."""
    if set(declared.rights) == set(RIGHTS):
        return declared
    logger.warning(
        "the configuration declares the root rule with fewer rights: it keeps all rights. Declare another rule for clients that "
        "need fewer",
        extra={
            "event": "config.root_rights",
            "key_name": declared.name,
            "rights": ", ".join(declared.rights),
            "file": file,
        },
    )
    return replace(declared, rights=RIGHTS)


def _mended_root_rule(rule: AccessRule, now: int) -> AccessRule:
    """The root rule with what an earlier version may have taken from it: all rights, and a primary key that clients can use."""
    has_rights, has_key = set(rule.rights) == set(RIGHTS), key_bytes(rule.primary_key) is not None
    if has_rights and has_key:
        return rule
    logger.warning(
        "the root rule had fewer rights than all, or a primary key that no client can use: it has all rights and a usable key now",
        extra={"event": "config.root_mended", "key_name": rule.name},
    )
    key = rule.primary_key if has_key else new_key()
    return replace(rule, rights=RIGHTS, primary_key=key, modified_at=now)


def _new_rule(
    name: str, rights: tuple[str, ...], primary: str | None, secondary: str | None, now: int
) -> AccessRule:
    return AccessRule(
        name=name,
        rights=rights,
        primary_key=primary or new_key(),
        secondary_key=secondary or new_key(),
        created_at=now,
        modified_at=now,
    )


def new_key() -> str:
    """A random key in the form of the cloud service's."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode("ascii")
