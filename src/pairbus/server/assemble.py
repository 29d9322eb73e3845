"""Puts store, engine and gateway together: recovery, the root key, declared entities."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pairbus.errors import Refusal, UsageError
from pairbus.gateway.broker import Broker
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.server.assembly import Assembly
from pairbus.server.audit import AuditLog
from pairbus.storage.log import LogStore
from pairbus.storage.memory import MemoryStore

if TYPE_CHECKING:
    from pairbus.engine.namespace import Namespace
    from pairbus.server.config import Options
    from pairbus.server.declarations import AccessRuleDeclaration, Declarations, EntityDeclaration
    from pairbus.storage.ports import Store

KEY_BYTES: Final = 32
BROKER_RANDOM_BYTES: Final = 16
STORE_DIRECTORY: Final = "store"
AUDIT_DIRECTORY: Final = "audit"
MEMORY: Final = "memory:"
"""The store's URL that keeps nothing beyond the process, for tests."""


def assemble(options: Options, now: int) -> Assembly:
    """Open the store, recover what it holds, make what is declared and missing. Nothing is durable before the first
    commit. Raises StorageError or UsageError; then nothing is left open.
    """
    store = open_store(options)
    audit: AuditLog | None = None
    try:
        audit = AuditLog(options.data / AUDIT_DIRECTORY) if options.store != MEMORY else None
        broker = Broker(
            options.namespace,
            store,
            secrets.token_bytes(BROKER_RANDOM_BYTES),
            audit.write if audit is not None else None,
        )
        broker.offers_faults = options.faults
        replayed = recover(broker.namespace, store)
        root_key = declare(broker.namespace, options.declarations, now)
    except BaseException:
        if audit is not None:
            audit.close()
        store.close()
        raise
    return Assembly(broker=broker, store=store, root_key=root_key, records_replayed=replayed, audit=audit)


def open_store(options: Options) -> Store:
    """The store that the options name. Raises UsageError or StoreUnavailable."""
    if options.store is None:
        return LogStore.open(options.data / STORE_DIRECTORY, namespace=options.namespace)
    if options.store == MEMORY:
        return MemoryStore()
    # Only the scheme is shown: the rest of a URL may hold a password.
    scheme = options.store.partition(":")[0][:20]
    raise UsageError(
        f"--store {scheme}:… is not known; use {MEMORY} or leave it out for files in the data directory"
    )


def recover(namespace: Namespace, store: Store) -> int:
    """Fold every durable record, then tell the store what still lives. Returns how many records there were."""
    count = 0
    for record in store.replay():
        namespace.fold(record)
        count += 1
    namespace.replayed()
    store.live(namespace.stored())
    return count


def declare(namespace: Namespace, declarations: Declarations, now: int) -> str:
    """Make what is declared and missing; what exists stays as it is. Returns the root rule's primary key.

    Raises UsageError when a declared entity cannot be made.
    """
    held = {rule.name: rule for rule in namespace.access_rules}
    wanted = {rule.name: rule for rule in declarations.access_rules}
    rules = dict(held)
    if ROOT_RULE not in held and ROOT_RULE not in wanted:
        rules[ROOT_RULE] = _new_rule(ROOT_RULE, RIGHTS, None, None, now)
    for declared in wanted.values():
        rules[declared.name] = _access_rule(declared, held.get(declared.name), now)
    if rules != held:
        namespace.set_access_rules(tuple(rules.values()), now)
    _declare_entities(namespace, declarations.entities, now)
    return rules[ROOT_RULE].primary_key


def _declare_entities(namespace: Namespace, entities: tuple[EntityDeclaration, ...], now: int) -> None:
    missing = [entity for entity in entities if namespace.find(entity.path) is None]
    for declared in missing:
        rules = tuple(_access_rule(rule, None, now) for rule in declared.access_rules)
        settings = replace(
            declared.settings, access_rules=rules, forward_to=None, forward_dead_letters_to=None
        )
        try:
            namespace.create(declared.kind, declared.path, settings, now)
        except Refusal as error:
            raise UsageError(f"{declared.where}: {error.description}") from error
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
            raise UsageError(f"{declared.where}: {error.description}") from error


def _access_rule(declared: AccessRuleDeclaration, held: AccessRule | None, now: int) -> AccessRule:
    if held is None:
        return _new_rule(declared.name, declared.rights, declared.primary_key, declared.secondary_key, now)
    # A key that the file gives wins; one that it does not give stays, so that a restart breaks nobody's token.
    changed = replace(
        held,
        rights=declared.rights,
        primary_key=declared.primary_key or held.primary_key,
        secondary_key=declared.secondary_key or held.secondary_key,
    )
    return held if changed == held else replace(changed, modified_at=now)


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
