"""``pairbus store``: look after a namespace's data while its broker is stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.namespace import data_directory
from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import ended_by_sigterm, progress_bar, show
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pairbus.errors import StoreCorrupt
    from pairbus.server.offline.namespace import EntityCounts
    from pairbus.storage.postgres.database import Database
    from pairbus.storage.tools.inspect import CheckReport
    from pairbus.storage.tools.repair import RepairReport

EXIT_DAMAGED: Final = 1
COLUMNS: Final = ("active", "scheduled", "deferred", "dead_letter", "transfer_dead_letter", "bytes")

EPILOG: Final = """\b
Examples:
  pairbus store check --data ./contoso
  pairbus store export --data ./contoso ./backup
  pairbus store import --data ./restored ./backup
  pairbus store compact --data ./contoso --json
  pairbus store move --data ./contoso --to postgresql://pairbus@db-1,db-2/pairbus

\b
The broker must be stopped: data belongs to one process at a time.
Exit codes: 0 done, 1 the data is damaged (check, repair), 2 wrong usage, 3 the data is in use, not there,
of a newer version or cannot be read, or there is no space.
"""
CHECK_EXAMPLES: Final = """\b
Examples:
  pairbus store check --namespace contoso
  pairbus store check --data ./contoso --json

\b
Exit codes: 0 every frame is intact, 1 acknowledged data is damaged, 2 wrong usage, 3 the data is in use,
not there or of a newer version.
"""
COMPACT_EXAMPLES: Final = """\b
Examples:
  pairbus store compact --data ./contoso
"""
EXPORT_EXAMPLES: Final = """\b
Examples:
  pairbus store export --data ./contoso ./backup

\b
Read back:
  spark.read.parquet("./backup/messages").groupBy("entity", "state").count()
"""
REPAIR_EXAMPLES: Final = """\b
Examples:
  pairbus store repair --data ./contoso
  pairbus store repair --data ./contoso --accept-loss

\b
Exit codes: 0 nothing to repair, or repaired, 1 there is damage and nothing was changed, 2 wrong usage,
3 the data is in use, not there or of a newer version.
"""
IMPORT_EXAMPLES: Final = """\b
Examples:
  pairbus store import --data ./restored ./backup
  pairbus serve --namespace contoso --data ./restored
"""


MOVE_EXAMPLES: Final = """\b
Examples:
  pairbus store move --data ./contoso --to postgresql://pairbus@db-1,db-2/pairbus
  pairbus store move --data ./contoso --from postgresql://pairbus@db-1,db-2/pairbus --namespace contoso

\b
Exit codes: 0 moved, 2 wrong usage, the database has no such namespace, or the target holds something already, 3 the
data or the namespace is in use or damaged, the data is not there, the database cannot be reached, there is no space,
or the move is not finished: then the same command again finishes it or begins it again.
"""


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def store() -> None:
    """Check, compact, export, import, move or repair the data of a namespace whose broker is stopped."""


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    namespace: str = option("Name of the namespace, if --data is not given.", "local", metavar="NAME")
    data: str | None = option(
        "The namespace's data directory.  [default: in the user's data directory]", metavar="DIR"
    )
    as_json: bool = json_option()

    @property
    def directory(self) -> Path:
        found = data_directory(self.namespace, self.data)
        if found.exists() and not found.is_dir():
            raise UsageError(f"--data is {found}, and that is a file: name a directory")
        return found


@dataclass(frozen=True, kw_only=True)
class ExportFlags(DataFlags):
    target: str = argument(metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class ImportFlags(DataFlags):
    source: str = argument(metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class MoveFlags(DataFlags):
    target: str | None = option(
        "The PostgreSQL database to move the namespace into.", flag="--to", metavar="URL"
    )
    source: str | None = option(
        "The PostgreSQL database to move the namespace out of.", flag="--from", metavar="URL"
    )


@dataclass(frozen=True, kw_only=True)
class RepairFlags(DataFlags):
    accept_loss: bool = option("Give the lost messages up, so that the broker starts again.", False)


@command(DataFlags, CHECK_EXAMPLES, group=store)
def check(flags: DataFlags) -> int:
    """Verify every frame and show the messages of each entity, deferred ones apart from active ones. Changes nothing."""
    from pairbus.errors import StoreCorrupt
    from pairbus.server.offline.namespace import verify

    directory = flags.directory
    try:
        with progress_bar("checking") as progress:
            report, counts = verify(directory, progress)
    except StoreCorrupt as error:
        return _report_damage(directory, error, flags.as_json)
    found = {"data": str(directory), "intact": True, **asdict(report), "records": dict(report.records)}
    found["entities"] = [asdict(row) for row in counts]
    show(found, flags.as_json, _check_lines(directory, report, counts))
    return 0


def _report_damage(directory: Path, error: StoreCorrupt, as_json: bool) -> int:
    place = {"file": error.file, "offset": error.offset, "damage": str(error)}
    show({"data": str(directory), "intact": False, **place}, as_json, ())
    click.echo(f"pairbus: {directory}: {error}", err=True)
    return EXIT_DAMAGED


def _check_lines(directory: Path, report: CheckReport, counts: list[EntityCounts]) -> Iterator[str]:
    yield f"{directory}: intact"
    yield (
        f"namespace {report.namespace}, format {report.format_version}, {sum(report.records.values()):,} records in "
        f"{report.batches:,} commits, {report.segments} segments and {report.spare_segments} spare"
    )
    if report.is_torn:
        yield (
            "an incomplete frame after the last intact one will be dropped: a write that was interrupted before it was "
            "acknowledged, or the rest of a loss that was accepted"
        )
    width = max([6, *(len(row.path) for row in counts)])
    yield "  ".join([f"{'entity':{width}}", *(f"{name.replace('_', ' '):>9}" for name in COLUMNS)])
    for row in counts:
        values = asdict(row)
        cells = [f"{values[name]:>{max(9, len(name))},}" for name in COLUMNS]
        yield "  ".join([f"{row.path:{width}}", *cells])


@command(DataFlags, COMPACT_EXAMPLES, group=store)
def compact(flags: DataFlags) -> None:
    """Write the data that is still needed again and free the rest of the space."""
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.namespace import compact as compact_store

    directory = flags.directory
    with progress_bar("compacting") as progress:
        before, after = compact_store(directory, BrokerClock()(), progress)
    show(
        {"data": str(directory), "before": asdict(before), "after": asdict(after)},
        flags.as_json,
        f"{directory}: {before.disk_bytes:,} bytes on disk before, {after.disk_bytes:,} after; "
        f"{after.live_bytes:,} of them are messages",
    )


@command(ExportFlags, EXPORT_EXAMPLES, group=store)
def export(flags: ExportFlags) -> None:
    """Write everything into the new directory DIR, as Parquet files that Spark reads.

    DIR/messages has one row per stored message, DIR/entities one per entity. DIR/state holds what a restore needs
    besides, access keys among it: keep it as safe as the data directory.
    """
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.export import export as export_store

    with progress_bar("exporting") as progress:
        manifest = export_store(flags.directory, Path(flags.target), BrokerClock()(), progress)
    show(
        {"data": str(flags.directory), "export": flags.target, **asdict(manifest)},
        flags.as_json,
        f"{flags.target}: {manifest.messages:,} messages of {manifest.entities:,} entities of {manifest.namespace}",
    )


@command(ImportFlags, IMPORT_EXAMPLES, name="import", group=store)
def import_store(flags: ImportFlags) -> None:
    """Make a data directory from the export in DIR. The data directory must be new or empty.

    Entities, messages with their numbers, sessions, duplicate history and access keys come back as they were;
    certificates, usage files and audit logs are no part of an export.
    """
    from pairbus.server.offline.load import restore

    with progress_bar("importing") as progress:
        manifest = restore(Path(flags.source), flags.directory, progress)
    show(
        {"data": str(flags.directory), "export": flags.source, **asdict(manifest)},
        flags.as_json,
        f"{flags.directory}: {manifest.messages:,} messages in {manifest.entities:,} entities of {manifest.namespace} were imported; "
        f"serve it with --namespace {manifest.namespace} --data {flags.directory}",
    )


@command(MoveFlags, MOVE_EXAMPLES, group=store)
def move(flags: MoveFlags) -> None:
    """Move a namespace from its data directory into a PostgreSQL database, or back.

    Everything moves: entities, messages with their numbers, schedules, deferred and dead-lettered messages, session states, duplicate
    history, keys and the certificate authority. The target must not hold the namespace yet. The source is kept, but no
    broker serves it any more: on disk it is called DIR/store.moved, in the database it carries a mark.
    """
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.marks import moving_name
    from pairbus.server.offline.move import move_to_database, move_to_files

    if (flags.target is None) == (flags.source is None):
        raise UsageError("give --to or --from, and one of them only: the database to move into or out of")
    directory, now = flags.directory, BrokerClock()()
    with ended_by_sigterm(), progress_bar("moving") as progress:
        if flags.target is not None:
            database = _database(flags.target, moving_name(directory))
            moved = move_to_database(directory, database, now, progress)
            way_on = f"serve it with --namespace {moved.namespace} --store postgresql://…"
        else:
            database = _database(flags.source or "", flags.namespace)
            moved = move_to_files(database, directory, now, progress)
            way_on = f"serve it with --namespace {moved.namespace} --data {directory}"
    show(
        {"data": str(directory), "database": str(database), **asdict(moved)},
        flags.as_json,
        f"{moved.messages:,} messages in {moved.entities:,} entities of {moved.namespace} were moved; {way_on}",
    )


def _database(url: str, namespace: str) -> Database:
    from pairbus.storage.postgres.opening import ANSWER_SECONDS_MAX, is_database, named_database

    if not is_database(url):
        raise UsageError("--to and --from take a URL of the form postgresql://user@host[,host]/database")
    return named_database(url, namespace, ANSWER_SECONDS_MAX)


@command(RepairFlags, REPAIR_EXAMPLES, group=store)
def repair(flags: RepairFlags) -> int:
    """Show what is lost at the end of the log. With --accept-loss give it up.

    The end of the log is lost if the newest files were deleted, cut short or overwritten. Restoring a copy is better if there is one:
    lost messages do not come back, and their sequence numbers are given to new messages. Keep a copy of the data directory
    before you accept the loss. An audit log of messages gets a row about the time of the loss.
    """
    from pairbus.errors import StoreCorrupt
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.audit_note import note_given_up
    from pairbus.server.offline.namespace import store_directory
    from pairbus.storage.tools.repair import repair as repair_store

    directory = flags.directory

    def note_loss(namespace: str, audited_batch: int) -> None:
        note_given_up(directory, namespace, audited_batch, BrokerClock()())

    try:
        report = repair_store(
            store_directory(directory), accepts_loss=flags.accept_loss, before_loss=note_loss
        )
    except StoreCorrupt as error:
        return _report_damage(directory, error, flags.as_json)
    is_repaired = flags.accept_loss and bool(report.damage)
    found = {"data": str(directory), "repaired": is_repaired, **asdict(report)}
    show(found, flags.as_json, _repair_lines(directory, report, is_repaired))
    return EXIT_DAMAGED if report.damage and not flags.accept_loss else 0


def _repair_lines(directory: Path, report: RepairReport, is_repaired: bool) -> Iterator[str]:
    if not report.damage:
        yield f"{directory}: nothing to repair: the log ends where it should"
        return
    place = f"the log ends with frame {report.last_frame} in {report.file} at offset {report.offset}"
    kept = "".join(f"; {name} cannot be read and is kept as {name}.damaged" for name in report.damaged_files)
    if report.lost_frames is None:
        lost = "how many commits are lost behind it is not known, for the mark is lost too"
    elif report.lost_frames:
        lost = f"{report.lost_frames:,} acknowledged commits behind it are lost"
    else:
        lost = "nothing is lost: every acknowledged commit is there"
    yield f"{directory}: {place}; {lost}{kept}"
    if report.lost_frames == 0:
        yield (
            "repaired: the broker starts again"
            if is_repaired
            else "nothing was changed; `pairbus store repair --accept-loss` repairs it, and no message is given up"
        )
        return
    yield "messages that were sent in lost commits are gone, and messages that were settled in them are there again"
    if report.missing_files:
        yield (
            f"{_between(report.missing_files)} missing: the lost commits may have moved what was still needed "
            "of it, so entities and messages older than the loss may be gone too"
        )
    if report.unowned_messages:
        yield f"{report.unowned_messages:,} messages belong to entities whose definition is lost: the broker drops them"
    if report.are_keys_lost:
        yield "the access keys are lost: the broker makes new ones at its next start"
    yield (
        "the loss is accepted: the broker starts again from there"
        if is_repaired
        else "nothing was changed; give the loss up with --accept-loss, or restore the data directory from a copy"
    )


def _between(names: tuple[str, ...]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} to {names[-1]} are"
