"""The class of every command group: it answers a mistyped command with the one that is nearest."""

from __future__ import annotations

import difflib

import click


class HelpfulGroup(click.Group):
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
