"""Declares the options and arguments of a command once, as the fields of a frozen dataclass.

    @dataclass(frozen=True, kw_only=True)
    class PeekFlags:
        entity: str = argument()
        count: int = option("Maximum number of messages.", 10, minimum=1)
        as_json: bool = json_option("Print one JSON object a line.")

    @command(PeekFlags, EXAMPLES)
    def peek(flags: PeekFlags) -> int: ...

A field's type decides: `bool` is a flag, `int` and `float` take bounds, `Literal` is a choice, `tuple[str, ...]` may repeat,
`timedelta` is a length of time such as 90s or 1h30m,
`Path` a file that exists. A default other than None is shown in the help text.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from pairbus.cli.kit.group import HelpfulCommand
from pairbus.errors import UsageError
from pairbus.model.flags import FLAG, argument, option

__all__ = ["argument", "command", "is_given", "json_option", "option", "parameters_of", "values_of"]

_Flags = TypeVar("_Flags")
Parse = Callable[[str], object]
"""Makes a value of an option's text. Raises UsageError or ValueError, whose text is shown."""


def json_option(help: str = "Print one JSON object.") -> Any:
    return option(help, False, flag="--json")


def command(
    flags: type[_Flags], epilog: str = "", *, name: str = "", group: click.Group | None = None
) -> Callable[[Callable[[_Flags], int | None]], click.Command]:
    """Make a click command of a function that takes its flags as one object. The docstring is its help text."""

    def decorate(function: Callable[[_Flags], int | None]) -> click.Command:
        made = HelpfulCommand(
            name or function.__name__,
            callback=lambda **values: function(flags(**values)) or 0,
            params=parameters_of(flags),
            help=inspect.getdoc(function),
            epilog=epilog,
        )
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def parameters_of(flags: type) -> list[click.Parameter]:
    """Click's parameters for the fields of a dataclass; those of its base classes come last."""
    hints = get_type_hints(flags)
    own = [name for cls in flags.__mro__ for name in inspect.get_annotations(cls)]
    known = {one.name: one for one in fields(flags) if FLAG in one.metadata}
    found = [_parameter(known[name], hints[name]) for name in dict.fromkeys(own) if name in known]
    return sorted(found, key=lambda parameter: isinstance(parameter, click.Option))


def _parameter(one: Field[Any], hint: Any) -> click.Parameter:
    settings = dict(one.metadata[FLAG])
    hint, is_many = _plain(hint)
    choices: Sequence[str] = settings.pop("choices", ()) or (
        get_args(hint) if get_origin(hint) is Literal else ()
    )
    if choices:
        settings["type"] = click.Choice(list(choices))
    may_be_empty = settings.pop("may_be_empty", False)
    if settings.pop("is_argument", False):
        return click.Argument([one.name], callback=_callback(may_be_empty=may_be_empty), **settings)
    flag = settings.pop("flag") or "--" + one.name.replace("_", "-")
    if not settings.get("required"):  # click takes a default of None for a value, and then nothing is missing
        settings["default"] = None if is_many else _default(one.default)
    is_shown = one.default is not False and one.default not in (None, "", ())
    settings["show_default"] = is_shown or "/" in flag
    settings["multiple"] = is_many
    minimum, maximum = settings.pop("minimum", None), settings.pop("maximum", None)
    parse: Parse | None = settings.pop("parse", None) or (_length if hint is timedelta else None)
    settings["callback"] = _callback(parse, may_be_empty=may_be_empty)
    if parse is not None:
        pass  # the callback makes a value of the text
    elif hint is bool and "/" not in flag:
        settings["is_flag"] = True
    elif hint is int:
        settings["type"] = _WholeNumber(minimum, maximum) if minimum is not None else int
    elif hint is float:
        settings["type"] = _BoundedNumber(minimum, maximum) if minimum is not None else _Number()
    elif hint is Path:
        settings["type"] = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.Option([flag, one.name], **settings)


class _WholeNumber(click.IntRange):
    """Says of a wrong value that it is no integer, not that it is no "integer range"."""

    name = "integer"


class _Number(click.types.FloatParamType):
    """Refuses nan, which passes every comparison, and infinity, which no clock can wait for."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of a text. Fails with a sentence where it is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class _BoundedNumber(_Number, click.FloatRange):
    pass


def _default(value: object) -> object:
    if isinstance(value, timedelta):
        seconds = round(value.total_seconds())
        return f"{seconds}s" if seconds <= 60 or seconds % 60 else f"{seconds // 60}m"
    return value


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether its option may repeat."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    return hint, False


def _callback(
    parse: Parse | None = None, *, may_be_empty: bool
) -> Callable[[click.Context, click.Parameter, Any], object]:
    """Checks a value that a person gave, and makes what it stands for of its text."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> object:
        if not may_be_empty and _is_typed(ctx, param):
            _check_not_empty(ctx, param, value)
        if parse is None or value is None:
            return value
        try:
            return parse(value)
        except (UsageError, ValueError) as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def _is_typed(ctx: click.Context, param: click.Parameter) -> bool:
    return ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE


def _check_not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Refuse an empty text: it comes from a shell variable that is not set, and the command would take another file or namespace."""
    if "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("it is empty: is a variable of the shell not set?", ctx, param)


def _length(text: str) -> timedelta:
    """A length of time: 90s, 15m, 1h30m; a number alone is seconds."""
    from pairbus.reports.text import duration_ms

    return timedelta(milliseconds=duration_ms(f"{text}s" if text.isdecimal() else text))


def is_given(name: str, *, above: bool = False) -> bool:
    """Whether a person gave an option of the command that runs, or of the group ``above`` it; False for a default."""
    context = click.get_current_context()
    if above and context.parent is not None:
        context = context.parent
    return context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def values_of(flags: object, *names: str | type) -> dict[str, Any]:
    """Some fields of a dataclass by name, to pass on as keyword arguments. A dataclass among the names stands for its fields."""
    found: dict[str, Any] = {}
    for name in names:
        one_or_more = [name] if isinstance(name, str) else [one.name for one in fields(name)]
        found |= {one: getattr(flags, one) for one in one_or_more}
    return found
