"""The ``pairbus`` group. Commands are imported when used, so that ``--help`` is quick."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from pairbus import __version__
from pairbus.cli.kit.errors import one_line, way_out
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.secrets import from_files
from pairbus.errors import PairbusError, SameNamespaceError, UsageError
from pairbus.form import FORM

COMMANDS: Final = {
    "demo": (
        "demo:demo",
        "Show an outage live: failover, backlog, drain, bill and proof.",
    ),
    "up": ("broker.up:up", "Run a pair on this machine, with the syphon and a live page."),
    "serve": ("broker.serve:serve", "Serve one namespace until stopped."),
    "cluster": (
        "broker.cluster:cluster",
        "Show the nodes that serve a namespace from a database, and move it between them.",
    ),
    "connection-string": (
        "broker.connection_string:connection_string",
        "Print the connection string of a namespace on this machine.",
    ),
    "access": (
        "broker.access:access",
        "List, set and remove the access rules of a namespace, and replace their keys.",
    ),
    "send": ("entities.messages:send", "Send messages to a queue or topic."),
    "receive": ("entities.messages:receive", "Receive messages from a queue or subscription."),
    "peek": ("entities.messages:peek", "Show messages without receiving them."),
    "entity": (
        "entities.entity:entity",
        "Work on the queues, topics, subscriptions and rules of a namespace.",
    ),
    "syphon": ("pairing.syphon:syphon", "Deliver the messages of the backlog to the primary."),
    "capture": ("capture:capture", "Stream an entity into Parquet files."),
    "backlog": ("pairing.backlog:backlog", "List, inspect, retry or delete messages in the backlog."),
    "spool": (
        "pairing.spool:spool",
        "List, replay or export messages that wait on this machine for a namespace.",
    ),
    "explain": (
        "pairing.explain:explain",
        "Explain the health of an entity: what failed, when, and what happens next.",
    ),
    "store": (
        "broker.store:store",
        "Check, compact, export, import, move or repair the data of a stopped namespace.",
    ),
    "completion": ("completion:completion", "Print the script that completes commands in a shell."),
    "cost": (
        "reports.cost:cost",
        "Estimate costs, calculate the bill, and replay usage with other settings.",
    ),
    "reconcile": (
        "reports.reconcile:reconcile",
        "Prove which messages arrived, which came twice and where the others are.",
    ),
    "drill": ("drill:drill", "Test a pair with an outage that ends by itself, and print a report card."),
    "bench": ("bench:bench", "Run a benchmark and its baseline."),
}
"""Each command: its module and name in this room, and its line in the list of commands."""
HELP: Final = ("-h", "--help")
WRONG_USAGE: Final = (UsageError, SameNamespaceError)
EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141
"""What a shell reports of a program whose reader has gone."""


class ReaderGone(Exception):
    """Nobody reads the output any more. click would end the process with 1 for the BrokenPipeError that this stands for."""


@contextmanager
def _noticing_a_gone_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


class LazyGroup(HelpfulGroup):
    """A group that imports a command when it is called or asked for help."""

    @_noticing_a_gone_reader()
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return super().make_context(info_name, args, parent, **extra)

    @_noticing_a_gone_reader()
    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"pairbus.cli.{module}"), name)
        assert isinstance(command, click.Command), command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": list(HELP), "max_content_width": 110},
    epilog="Each command explains itself: pairbus COMMAND --help",
)
@click.version_option(f"{__version__} ({FORM})", prog_name="pairbus")
def root() -> None:
    """PairBus: send, even when your broker is gone."""


class Nowhere(io.TextIOWrapper):
    """A standard stream in place of a closed one. A command may go on without it, but not end as if somebody had its answer."""

    is_used = False

    def write(self, text: str, /) -> int:
        """Drop the text, and remember that there was one."""
        self.is_used = self.is_used or bool(text)
        return len(text)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: runs a command and ends the process with its exit code."""
    _open_closed_output()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
        # Nobody reads on, as with `| head`. The answer is not "no", which an exit code of 1 would say.
        _drop_output()
        sys.exit(EXIT_PIPE)
    except OSError as error:
        if not _is_of_output(error):
            raise
        _drop_output()
        sys.exit(_complain(f"the output cannot be written: {error.strerror}", EXIT_REFUSED))
    if isinstance(sys.stdout, Nowhere) and sys.stdout.is_used:
        sys.exit(_complain("the output cannot be written: standard output is closed", EXIT_REFUSED))
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    """Run a command; its exit code. Raises OSError if the output cannot be written."""
    try:
        if not set(HELP).intersection(sys.argv[1:] if arguments is None else arguments):
            from_files(os.environ)
        code = root.main(args=arguments, prog_name="pairbus", standalone_mode=False)
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        # Nothing was typed: that is a question, not a mistake. A group without its command is a mistake.
        is_root = error.ctx.parent is None
        click.echo(error.format_message(), err=not is_root)
        return 0 if is_root else EXIT_USAGE
    except click.UsageError as error:
        return _complain(_usage_line(error), EXIT_USAGE)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PairbusError as error:
        return _complain(one_line(error), EXIT_USAGE if isinstance(error, WRONG_USAGE) else EXIT_REFUSED)
    except (BrokenPipeError, ReaderGone):
        raise
    except Exception as error:
        # A namespace that cannot be reached, or will not let us in, is no fault of the program.
        line = way_out(error)
        if line is None:
            raise
        return _complain(line, EXIT_REFUSED)
    return code if isinstance(code, int) else 0


def _open_closed_output() -> None:
    """Send what goes to a closed standard output or error to nowhere. Python has None for a closed one, and a file that is opened later
    would get its descriptor, and with it the output of child processes."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != descriptor and not _is_open(descriptor):
                os.dup2(nowhere, descriptor)
            setattr(sys, name, Nowhere(io.FileIO(nowhere, "w", closefd=False), encoding="utf-8"))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _is_of_output(error: OSError) -> bool:
    """Whether standard output failed, and not some file of a command."""
    try:
        sys.stdout.flush()  # what could not be written is still there
    except OSError:
        return True
    return error.errno == errno.ENOSPC and error.filename is None


def _drop_output() -> None:
    """Have nothing more written to standard output: the interpreter would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_line(error: click.UsageError) -> str:
    """A usage error as one line that says where to read on, without click's frame."""
    command = error.ctx.command_path if error.ctx is not None else "pairbus"
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text}; see {command} --help"


def _complain(line: str, code: int) -> int:
    print(f"pairbus: {line}", file=sys.stderr, flush=True)
    return code
