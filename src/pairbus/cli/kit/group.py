"""The classes of all commands and groups: help that fits the terminal, and the nearest command for a mistyped one."""

from __future__ import annotations

import difflib
import inspect
from typing import Final

import click

COLUMNS: Final = 80


def folded(epilog: str) -> str:
    """Notes and exit codes as paragraphs that click wraps. Long examples go on after a backslash, as a shell reads them."""
    found = []
    for paragraph in epilog.split("\n\n"):
        if not paragraph.lstrip().startswith("\b\nExample"):
            paragraph = paragraph.replace("\b\n", "").replace("\nExit codes:", "\n\nExit codes:")
        else:
            paragraph = "\n".join(map(_continued, paragraph.split("\n")))
        found.append(paragraph)
    return "\n\n".join(found)


def _continued(line: str) -> str:
    """An example in lines of COLUMNS at most, broken before options."""
    done = []
    while len(line) > COLUMNS:
        # Two columns are for the backslash. Before an option no quotation is open.
        at = line.rfind(" --", 0, COLUMNS - 1)
        if at < 0:
            break
        done.append(f"{line[:at]} \\")
        line = f"      {line[at + 1 :]}"
    return "\n".join([*done, line])


class HelpfulCommand(click.Command):
    """A command whose notes fit the terminal."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(folded(inspect.cleandoc(self.epilog)))


class HelpfulGroup(HelpfulCommand, click.Group):
    """A group that suggests the command that a person may have meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name. Raises click.UsageError with a suggestion."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"There is no command '{name}'.{hint}")
        return super().resolve_command(ctx, args)
