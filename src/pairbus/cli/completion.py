"""``pairbus completion``: the script that lets a shell complete commands, options and choices."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_PAIRBUS_COMPLETE"
"""How the script asks pairbus for words; click's own form of the name."""
EPILOG: Final = """\b
Examples:
  pairbus completion bash > ~/.local/share/bash-completion/completions/pairbus
  pairbus completion zsh > "${fpath[1]}/_pairbus"
  pairbus completion fish > ~/.config/fish/completions/pairbus.fish

\b
For the shell at hand alone: source <(pairbus completion bash)
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that completes pairbus commands in SHELL."""
    from pairbus.cli.root import root

    maker = get_completion_class(shell)
    assert maker is not None, shell
    click.echo(maker(root, {}, "pairbus", VARIABLE).source())
    return 0
