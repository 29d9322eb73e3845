"""Declares the options of a command once, as fields of a frozen dataclass, wherever that dataclass is.

`cli.kit.options` makes click options of these fields; no other room needs to know how.
"""

from __future__ import annotations

from dataclasses import MISSING, field
from typing import Any, Final

FLAG: Final = "flag"
"""The key of these declarations in a field's metadata."""


def option(help: str = "", default: Any = None, *, flag: str = "", **settings: Any) -> Any:
    """A field that is an option.

    Args:
        help: Its help text.
        default: Its value when it is not given; shown in the help text unless it is None, False or empty.
        flag: Its name on the command line where it is not the field's; ``--on/--off`` for a switch with two names.
        settings: ``metavar``, ``minimum``, ``maximum`` (which needs a minimum), ``choices``, ``parse``, ``required``, ``envvar``,
            ``may_be_empty``: an empty text is a value, and not a mistake.
    """
    return field(default=default, metadata={FLAG: {"help": help, "flag": flag, **settings}})


def argument(**settings: Any) -> Any:
    """A field that is an argument; ``settings`` are click's (``required``, ``nargs``, ``metavar``), ``choices`` or ``may_be_empty``."""
    default = None if settings.get("required") is False else MISSING
    return field(default=default, metadata={FLAG: {"is_argument": True, **settings}})
