"""``pairbus store``: look after a namespace's data while its broker is stopped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pairbus.cli.kit.group import HelpfulGroup

if TYPE_CHECKING:
    from pairbus.errors import StoreCorrupt
    from pairbus.server.offline.namespace import EntityCounts, Tell
    from pairbus.storage.tools.inspect import CheckReport
    from pairbus.storage.tools.repair import RepairReport

EXIT_DAMAGED: Final = 1
COLUMNS: Final = ("active", "scheduled", "deferred", "dead_letter", "transfer_dead_letter", "bytes")
_Command = TypeVar("_Command", bound=Callable[..., Any])

EPILOG: Final = """\b
Examples:
  pairbus store check --data ./contoso
  pairbus store export --data ./contoso ./backup
  pairbus store import --data ./restored ./backup
  pairbus store compact --data ./contoso --json

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


def data_options(command: _Command) -> _Command:
    """Which data directory is meant, as ``serve`` is told, and in which form the answer comes."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--data",
            metavar="DIR",
            help="The namespace's data directory.  [default: in the user's data directory]",
        ),
        click.option(
            "--namespace",
            metavar="NAME",
            default="local",
            show_default=True,
            help="Whose data, without --data.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def store() -> None:
    """Check, compact, export, import or repair the data of a namespace whose broker is stopped."""


@store.command("check", epilog=CHECK_EXAMPLES)
@data_options
def check_command(namespace: str, data: str | None, as_json: bool) -> int:
    """Verify every frame and say what is there. Changes nothing."""
    from pairbus.errors import StoreCorrupt
    from pairbus.server.offline.namespace import verify

    directory = _directory(namespace, data)
    try:
        with _watched("checking") as tell:
            report, counts = verify(directory, tell)
    except StoreCorrupt as error:
        return _say_damage(directory, error, as_json)
    if as_json:
        told = {"data": str(directory), "intact": True, **asdict(report), "records": dict(report.records)}
        click.echo(json.dumps({**told, "entities": [asdict(row) for row in counts]}))
    else:
        _say_report(directory, report, counts)
    return 0


def _say_damage(directory: Path, error: StoreCorrupt, as_json: bool) -> int:
    if as_json:
        told = {
            "data": str(directory),
            "intact": False,
            "file": error.file,
            "offset": error.offset,
            "damage": str(error),
        }
        click.echo(json.dumps(told))
    click.echo(f"pairbus: {directory}: {error}", err=True)
    return EXIT_DAMAGED


def _say_report(directory: Path, report: CheckReport, counts: list[EntityCounts]) -> None:
    click.echo(f"{directory}: intact")
    click.echo(
        f"namespace {report.namespace}, format {report.format_version}, {sum(report.records.values()):,} records in "
        f"{report.batches:,} commits, {report.segments} segments and {report.spare_segments} spare"
    )
    if report.is_torn:
        click.echo(
            "an incomplete frame after the last intact one will be dropped: a write that was interrupted before it was "
            "acknowledged, or the rest of a loss that was accepted"
        )
    width = max([6, *(len(row.path) for row in counts)])
    click.echo("  ".join([f"{'entity':{width}}", *(f"{name.replace('_', ' '):>9}" for name in COLUMNS)]))
    for row in counts:
        values = asdict(row)
        cells = [f"{values[name]:>{max(9, len(name))},}" for name in COLUMNS]
        click.echo("  ".join([f"{row.path:{width}}", *cells]))


@store.command("compact", epilog=COMPACT_EXAMPLES)
@data_options
def compact_command(namespace: str, data: str | None, as_json: bool) -> int:
    """Write anew what is still true and give the rest of the space back."""
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.namespace import compact

    directory = _directory(namespace, data)
    with _watched("compacting") as tell:
        before, after = compact(directory, BrokerClock()(), tell)
    if as_json:
        click.echo(json.dumps({"data": str(directory), "before": asdict(before), "after": asdict(after)}))
    else:
        click.echo(
            f"{directory}: {before.disk_bytes:,} bytes on disk before, {after.disk_bytes:,} after; "
            f"{after.live_bytes:,} of them are messages"
        )
    return 0


@store.command("export", epilog=EXPORT_EXAMPLES)
@click.argument("target", metavar="DIR")
@data_options
def export_command(target: str, namespace: str, data: str | None, as_json: bool) -> int:
    """Write everything into the new directory DIR, as Parquet files that Spark reads.

    DIR/messages has one row per stored message, DIR/entities one per entity. DIR/state holds what a restore needs
    besides, access keys among it: keep it as safe as the data directory.
    """
    from pairbus.server.clock import BrokerClock
    from pairbus.server.offline.export import export

    directory = _directory(namespace, data)
    with _watched("exporting") as tell:
        manifest = export(directory, Path(target), BrokerClock()(), tell)
    if as_json:
        click.echo(json.dumps({"data": str(directory), "export": target, **asdict(manifest)}))
    else:
        click.echo(
            f"{target}: {manifest.messages:,} messages of {manifest.entities:,} entities of {manifest.namespace}"
        )
    return 0


@store.command("import", epilog=IMPORT_EXAMPLES)
@click.argument("source", metavar="DIR")
@data_options
def import_command(source: str, namespace: str, data: str | None, as_json: bool) -> int:
    """Make a data directory from the export in DIR. The data directory must be new or empty.

    Entities, messages with their numbers, sessions, duplicate history and access keys come back as they were;
    certificates, usage files and audit logs are no part of an export.
    """
    from pairbus.server.offline.load import restore

    directory = _directory(namespace, data)
    with _watched("importing") as tell:
        manifest = restore(Path(source), directory, tell)
    if as_json:
        click.echo(json.dumps({"data": str(directory), "export": source, **asdict(manifest)}))
    else:
        click.echo(
            f"{directory}: {manifest.messages:,} messages in {manifest.entities:,} entities; "
            f"serve it with --namespace {manifest.namespace}"
        )
    return 0


@store.command("repair", epilog=REPAIR_EXAMPLES)
@click.option(
    "--accept-loss", is_flag=True, help="Give the lost messages up, so that the broker starts again."
)
@data_options
def repair_command(accept_loss: bool, namespace: str, data: str | None, as_json: bool) -> int:
    """Say what is lost at the end of the log; with --accept-loss give it up.

    The end of the log is lost if the newest files were deleted, cut short or overwritten. Restoring a copy is better if there is one:
    lost messages do not come back, and their sequence numbers are given to new messages. Keep a copy of the data directory
    before you accept the loss.
    """
    from pairbus.errors import StoreCorrupt
    from pairbus.server.offline.namespace import store_directory
    from pairbus.storage.tools.repair import repair

    directory = _directory(namespace, data)
    try:
        report = repair(store_directory(directory), accepts_loss=accept_loss)
    except StoreCorrupt as error:
        return _say_damage(directory, error, as_json)
    is_repaired = accept_loss and bool(report.damage)
    if as_json:
        click.echo(json.dumps({"data": str(directory), "repaired": is_repaired, **asdict(report)}))
    elif not report.damage:
        click.echo(f"{directory}: nothing to repair: the log ends where it should")
    else:
        click.echo(f"{directory}: {_loss_of(report)}")
        click.echo(
            "the loss is accepted: the broker starts again from there"
            if is_repaired
            else "nothing was changed; give the loss up with --accept-loss, or restore the data directory from a copy"
        )
    return EXIT_DAMAGED if report.damage and not accept_loss else 0


def _loss_of(report: RepairReport) -> str:
    place = f"the log ends with frame {report.last_frame} in {report.file} at offset {report.offset}"
    aside = "".join(f"; {name} cannot be read and is kept as {name}.damaged" for name in report.damaged_files)
    if report.lost_frames is None:
        return f"{place}; how many commits are lost behind it is not known, for the mark is lost too{aside}"
    return f"{place}; {report.lost_frames:,} acknowledged commits behind it are lost{aside}"


def _directory(namespace: str, data: str | None) -> Path:
    from pairbus.server.config.options import default_data_directory

    return Path(data) if data is not None else default_data_directory(os.environ) / namespace


@contextmanager
def _watched(what: str) -> Iterator[Tell]:
    """A bar on standard error when a person watches; else nothing."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
