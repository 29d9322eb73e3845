"""``pairbus completion``: the script that lets a shell complete commands, options and choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import get_completion_class

from pairbus.cli.kit.options import argument, command

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_PAIRBUS_COMPLETE"
"""The variable by which the script asks pairbus for completions; click's own form of the name."""
EPILOG: Final = """\b
Examples:
  pairbus completion bash > ~/.local/share/bash-completion/completions/pairbus
  pairbus completion zsh > "${fpath[1]}/_pairbus"
  pairbus completion fish > ~/.config/fish/completions/pairbus.fish

\b
For the current shell only: source <(pairbus completion bash)
"""


@dataclass(frozen=True, kw_only=True)
class CompletionFlags:
    shell: str = argument(choices=SHELLS)


@command(CompletionFlags, EPILOG)
def completion(flags: CompletionFlags) -> None:
    """Print the script that completes pairbus commands in SHELL."""
    from pairbus.cli.root import root

    maker = get_completion_class(flags.shell)
    assert maker is not None, flags.shell
    click.echo(maker(root, {}, "pairbus", VARIABLE).source())
